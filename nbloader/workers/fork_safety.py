"""Which datasets must not be used in a process that was forked from the notebook's.

A library with threads of its own, which it started in the notebook, finds them missing in a forked process and waits
for them forever.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

from nbloader.workers.reachable import reachable

THREADED = frozenset({"grpc", "jax", "polars", "tensorflow"})
"""Packages whose threads do not survive a fork, once they have been used. All others are forked; if their workers hang,
the loader changes to clean ones."""


def threaded_package(*parts: Any) -> str:
    """Return a package of `THREADED` that a dataset or a function uses, or "".

    That is what their attributes, closures and globals show, as far as `reachable` goes.

    Args:
        parts: The dataset and the functions.
    """
    loaded = THREADED & sys.modules.keys()
    used = (_package(value) for value in reachable(*parts)) if loaded else ()
    return next((package for package in used if package in loaded), "")


def _package(value: Any) -> str:
    """Return the name of the top-level package that a module, or the type of an object, belongs to."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", None)
    if isinstance(value, (type, FunctionType)):
        name = value.__module__
    return name.partition(".")[0] if isinstance(name, str) else ""
