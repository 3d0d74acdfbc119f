"""Clicks become calls of the loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl


def carry_out(loader: LoaderControl, message: dict[str, Any]) -> None:
    """Do what a view in the browser asks for. What it names and is not known is ignored.

    Args:
        loader: The loader.
        message: `name`, and what belongs to it: `worker` (None for all), `value`.

    Raises:
        ValueError: The loader says so: no such worker, no such number.
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
    elif name == "resize" and value is not None:
        loader.num_workers = int(value)
    elif name == "prefetch" and value is not None:
        loader.prefetch_factor = int(value)
