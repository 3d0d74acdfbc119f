"""Turns clicks into calls of the loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl


def execute(loader: LoaderControl, message: Mapping[str, Any]) -> None:
    """Execute a command from a view in the browser. Unknown commands are ignored.

    Args:
        loader: The loader.
        message: `name` and its arguments: `worker` (None for all), `value`.

    Raises:
        ValueError: The loader refuses it: there is no such worker, or the number is out of range.
        LoaderClosedError: The loader was closed.
    """
    name, worker, value = message.get("name"), message.get("worker"), message.get("value")
    if name == "restart":
        loader.restart_workers(None if worker is None else [int(worker)])
    elif name == "pause":
        loader.pause()
    elif name == "resume":
        loader.resume()
    elif name == "step":
        loader.step()
    elif name == "tune":
        loader.tune()
    elif name == "stop_tuning" and loader.tuning is not None:
        loader.tuning.stop()
    elif name == "undo_tuning" and loader.tuning is not None:
        loader.tuning.undo()
    elif name == "resize" and value is not None:
        loader.num_workers = int(value)
    elif name == "profile":
        loader.profile_lines(on=bool(value))
    elif name == "prefetch" and value is not None:
        loader.prefetch_factor = int(value)
