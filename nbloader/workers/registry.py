"""The kinds of workers by name: the values of `DataLoader(workers=...)`."""

from __future__ import annotations

import importlib
from typing import Literal, TypeAlias

from nbloader.workers.api import WorkerKind
from nbloader.workers.process_pool import ProcessKind
from nbloader.workers.spec import WorkerSpec
from nbloader.workers.thread_pool import ThreadKind

Workers: TypeAlias = Literal["process", "thread", "ray"]
"""The kinds that are registered below, for type checkers."""
InterchangeableKind: TypeAlias = Literal["process", "thread"]
"""The kinds between which `tune`, `what_if` and `explore` can choose: they need nothing but this machine."""

_kinds: dict[str, type[WorkerKind] | str] = {}


def register(name: str, kind: type[WorkerKind] | str) -> None:
    """Register a kind of worker.

    Args:
        name: The name of the kind.
        kind: The class, or "module:class" if the module is to be imported when the kind is first used.

    Raises:
        ValueError: Another kind has this name.
    """
    if _kinds.setdefault(name, kind) is not kind:
        raise ValueError(f"there is a kind of worker named {name!r} already: choose another name")


def unregister(name: str) -> None:
    """Remove a kind of worker. Loaders that use it keep working."""
    del _kinds[name]


def kind_names() -> tuple[str, ...]:
    """Return the names that `DataLoader(workers=...)` accepts."""
    return tuple(_kinds)


def kind_class(name: str) -> type[WorkerKind]:
    """Return the class of a kind, whose attributes say how its workers differ from others.

    Args:
        name: The name of the kind.
    """
    kind = _kinds[name]
    if isinstance(kind, str):
        module, _, attribute = kind.partition(":")
        kind = getattr(importlib.import_module(module), attribute)
        if not (isinstance(kind, type) and issubclass(kind, WorkerKind)):
            raise TypeError(f"the kind of worker {name!r} is registered as {_kinds[name]!r}, which is not a WorkerKind")
    return kind


def create_kind(spec: WorkerSpec) -> WorkerKind:
    """Create the kind `spec.kind` for one loader."""
    return kind_class(spec.kind)(spec)


register("process", ProcessKind)
register("thread", ThreadKind)
register("ray", "nbloader.workers.cluster.pool:RayKind")  # only workers on a cluster need these modules
