"""What a dataset will import that is slow to import: the fork server imports it once, for all workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

LOADER = "nbloader.loader"
PRELOADABLE = ("torch", "torchvision", "PIL.Image", "pandas", "scipy", "cv2", LOADER)
"""Slow to import, and never edited by the user."""


def needed(payload: bytes, *parts: Any, by_torch: bool = False) -> list[str]:
    """Modules that workers will import to rebuild a dataset and its functions, and to use them.

    Args:
        payload: Their pickle: what is of the notebook names there what it uses.
        parts: An object of a module's class, or a function of a module, needs all that its module imports.
        by_torch: Whether torch makes the batches.
    """
    used = {"torch"} if by_torch else set()
    used |= {_key(name) for name in PRELOADABLE if _key(name).encode() in payload}
    return _loaded(used.union(*(_imported_by(getattr(part, "__module__", None) or "") for part in parts)))


def expected(dataset: Any, *, by_torch: bool = False) -> list[str]:
    """The same by the look of a dataset that has not been pickled yet: cheap, and it may miss some."""
    used = set(_used_by(dataset))
    return _loaded(used | {"torch"} if by_torch else used)


def _loaded(used: set[str]) -> list[str]:
    """Which of these this process has, too."""
    if LOADER in used:
        used.add("torch")
    return [name for name in PRELOADABLE if name in sys.modules and _key(name) in used]


def _key(name: str) -> str:
    """What of a module's name tells that it is used."""
    return name if name == LOADER else _root(name)


def _root(name: str) -> str:
    return name.partition(".")[0]


def _imported_by(home: str) -> set[str]:
    if home == "__main__" or home not in sys.modules:
        return set()
    return {_home(value) for value in vars(sys.modules[home]).values()}


def _home(value: Any) -> str:
    """The package that must be imported to have this module, class or function."""
    name = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
    return _key(name)


def _used_by(dataset: Any) -> Iterator[str]:
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
