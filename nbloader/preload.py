"""What a dataset will import that is slow to import: the fork server imports it once, for all workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

PRELOADABLE = ("torch", "torchvision", "PIL.Image", "pandas", "scipy", "cv2")
"""Slow to import, and never edited by the user."""


def needed(payload: bytes, dataset: Any) -> list[str]:
    """Modules that workers will import to rebuild a dataset and use it.

    Args:
        payload: Its pickle: a class of the notebook names there what it uses.
        dataset: One of a module's class needs all that its module imports.
    """
    used = _imported_by(type(dataset).__module__)
    return [name for name in _loaded() if _root(name) in used or _root(name).encode() in payload]


def expected(dataset: Any) -> list[str]:
    """The same by the look of a dataset that has not been pickled yet: cheap, and it may miss some."""
    used = set(_roots(dataset))
    return [name for name in _loaded() if _root(name) in used]


def _loaded() -> list[str]:
    return [name for name in PRELOADABLE if name in sys.modules]


def _root(name: str) -> str:
    return name.partition(".")[0]


def _imported_by(home: str) -> set[str]:
    if home == "__main__" or home not in sys.modules:
        return set()
    return {_home(value) for value in vars(sys.modules[home]).values()}


def _home(value: Any) -> str:
    """The package that must be imported to have this module, class or function."""
    name = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
    return "torch" if name == "nbloader.loader" else _root(name)


def _roots(dataset: Any) -> Iterator[str]:
    for cls in type(dataset).__mro__:
        yield _root(cls.__module__)
        yield from _imported_by(cls.__module__)
        for value in vars(cls).values():
            names = getattr(value, "__globals__", {})
            for name in _names(getattr(value, "__code__", None)):
                yield _home(names.get(name))
    for value in getattr(dataset, "__dict__", {}).values():
        yield _root(type(value).__module__)


def _names(code: CodeType | None) -> Iterator[str]:
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _names(constant)
