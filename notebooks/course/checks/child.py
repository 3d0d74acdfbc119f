"""What a new worker process of unit 2 runs first. It is imported there, so it imports little."""

from __future__ import annotations

from typing import Any

import cloudpickle


def call_pickled(pickled: bytes, tasks: Any, results: Any) -> None:
    """Unpickle `(function, dataset, collate)` and call the function with them and the queues."""
    function, dataset, collate = cloudpickle.loads(pickled)
    function(dataset, collate, tasks, results)
