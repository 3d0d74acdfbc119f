"""What worker processes of the course import. It imports little, since each of them pays for it."""

from __future__ import annotations

import collections
import random
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import cloudpickle

from nbloader import get_worker_info

R = TypeVar("R")


def call_pickled(pickled: bytes, tasks: Any, results: Any) -> None:
    """Unpickle `(function, dataset, collate)` and call the function with them and the queues: a worker of unit 2."""
    function, dataset, collate = cloudpickle.loads(pickled)
    function(dataset, collate, tasks, results)


class Straggler:
    """Sample i is i. One of them, in the second half, takes much longer than the others."""

    newest = -1
    """The slow sample of the newest object in this process."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.slow = Straggler.newest = random.randrange(length // 2, length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> int:
        if i == self.slow:
            time.sleep(0.5)
        return i


class Hangs:
    """Sample i is i. A worker hangs at its first sample, but its replacement does not."""

    def __init__(self, length: int, worker: int) -> None:
        self.length, self.worker = length, worker
        folder = tempfile.mkdtemp()
        self.hung = Path(folder) / "hung"
        self.cleanup = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"length": self.length, "worker": self.worker, "hung": self.hung}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> int:
        time.sleep(0.002)
        info = get_worker_info()
        if info is not None and info.id == self.worker and not self.hung.exists():
            self.hung.touch()
            time.sleep(600)
        # The others leave it a batch, however late it starts.
        while info is not None and not self.hung.exists():
            time.sleep(0.005)
        return i


CALLS: collections.Counter[str] = collections.Counter()
"""How often each function that is `counted` was called in this process."""


class Counted(Generic[R]):
    """A function whose calls are counted."""

    def __init__(self, function: Callable[..., R]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> R:
        """Count, and call it."""
        CALLS[self.function.__name__] += 1
        return self.function(*arguments)


def counted(function: Callable[..., R]) -> Counted[R]:
    """Count the calls of a function, in each process for itself."""
    return Counted(function)


def note(folder: Path) -> None:
    """Count something in a file, for all processes together."""
    with (folder / "notes").open("a", encoding="ascii") as file:
        file.write("x")


def notes(folder: Path) -> int:
    """How often `note` was called for this folder."""
    path = folder / "notes"
    return path.stat().st_size if path.exists() else 0
