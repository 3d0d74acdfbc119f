"""Which datasets must not be used in a process that was forked from the notebook's.

A library with threads of its own, which it started in the notebook, finds them missing in a forked process and waits
for them forever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from nbloader.workers.reachable import reachable

THREADED = frozenset({"grpc", "jax", "obstore", "polars", "tensorflow"})
"""Packages whose threads do not survive a fork, once they have been used. All others are forked; if their workers hang,
the loader changes to clean ones."""


def threaded_package(*parts: Any) -> str:
    """Return a package of `THREADED` that a dataset or a function uses, as far as `_used_by` shows, or "".

    Args:
        parts: The dataset and the functions.
    """
    loaded = THREADED & sys.modules.keys()
    used = (_package(value) for part in parts for value in _used_by(part)) if loaded else ()
    return next((package for package in used if package in loaded), "")


def _used_by(part: Any) -> Iterator[Any]:
    """Yield what an object refers to, and the globals of its own methods, even if a library defines its class."""
    yield from reachable(part)
    for function in _functions(part):
        yield from (function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__)


def _functions(part: Any) -> Iterable[FunctionType]:
    if isinstance(part, FunctionType):
        return [part]
    members = [member for cls in type(part).__mro__ for member in vars(cls).values()]
    return [member for member in members if isinstance(member, FunctionType)]


def _package(value: Any) -> str:
    """Return the name of the top-level package that a module, or the type of an object, belongs to."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", None)
    if isinstance(value, (type, FunctionType)):
        name = value.__module__
    return name.partition(".")[0] if isinstance(name, str) else ""
