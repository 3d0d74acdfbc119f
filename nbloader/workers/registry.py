"""The kinds of workers by name: the values of `DataLoader(workers=...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nbloader.workers.api import WorkerKind, WorkerOptions
from nbloader.workers.process_pool import ProcessKind
from nbloader.workers.thread_pool import ThreadKind

KindFactory: TypeAlias = "Callable[[WorkerOptions], WorkerKind]"

_factories: dict[str, KindFactory] = {}


def register(name: str, factory: KindFactory) -> None:
    """Register a kind of worker.

    Args:
        name: The name of the kind.
        factory: Creates the kind for one loader.

    Raises:
        ValueError: Another kind has this name.
    """
    if _factories.setdefault(name, factory) is not factory:
        raise ValueError(f"there is a kind of worker named {name!r} already: choose another name")


def unregister(name: str) -> None:
    """Remove a kind of worker. Loaders that use it keep working."""
    del _factories[name]


def kind_names() -> tuple[str, ...]:
    """Return the names that `DataLoader(workers=...)` accepts."""
    return tuple(_factories)


def create_kind(options: WorkerOptions) -> WorkerKind:
    """Create the kind `options.kind` for one loader."""
    return _factories[options.kind](options)


def _ray(options: WorkerOptions) -> WorkerKind:
    from nbloader.workers.cluster.pool import RayKind  # Ray is an extra, and only its workers need these modules

    return RayKind.of(options)


register("process", ProcessKind)
register("thread", ThreadKind)
register("ray", _ray)
