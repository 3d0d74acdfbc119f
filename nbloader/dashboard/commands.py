"""Translate clicks into calls of the loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl


def execute(loader: LoaderControl, message: Mapping[str, Any]) -> None:
    """Execute a command from a view in the browser. Unknown commands are ignored.

    Args:
        loader: The loader.
        message: `name` and its arguments: `worker` (None for all), `value`, `num_workers`, `prefetch_factor`.

    Raises:
        ValueError: The loader rejects the command: there is no such worker, or the number is out of range.
        LoaderClosedError: The loader was closed.
    """
    command = COMMANDS.get(str(message.get("name")))
    if command is not None:
        command(loader, message)


def _restart(loader: LoaderControl, message: Mapping[str, Any]) -> None:
    worker = message.get("worker")
    loader.restart_workers(None if worker is None else [int(worker)])


def _resize(loader: LoaderControl, message: Mapping[str, Any]) -> None:
    if message.get("value") is not None:
        loader.num_workers = int(message["value"])


def _prefetch(loader: LoaderControl, message: Mapping[str, Any]) -> None:
    if message.get("value") is not None:
        loader.prefetch_factor = int(message["value"])


def _apply(loader: LoaderControl, message: Mapping[str, Any]) -> None:
    numbers = {name: message.get(name) for name in ("num_workers", "prefetch_factor")}
    settings = {name: int(value) for name, value in numbers.items() if value is not None}
    if settings:
        loader.tune(**settings)


def _stop_tuning(loader: LoaderControl, _message: Mapping[str, Any]) -> None:
    if loader.tuning is not None:
        loader.tuning.stop()


def _undo_tuning(loader: LoaderControl, _message: Mapping[str, Any]) -> None:
    if loader.tuning is not None:
        loader.tuning.undo()


COMMANDS: Mapping[str, Callable[[LoaderControl, Mapping[str, Any]], object]] = {
    "restart": _restart,
    "pause": lambda loader, _message: loader.pause(),
    "resume": lambda loader, _message: loader.resume(),
    "step": lambda loader, _message: loader.step(),
    "apply": _apply,
    "tune": lambda loader, _message: loader.tune(),
    "stop_tuning": _stop_tuning,
    "undo_tuning": _undo_tuning,
    "resize": _resize,
    "prefetch": _prefetch,
    "profile": lambda loader, message: loader.profile_lines(on=bool(message.get("value"))),
}
"""Commands by the name in the message."""
