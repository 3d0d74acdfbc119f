"""Modules that a dataset needs and that are slow to import: the fork server imports them once for all workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

LOADER = "nbloader.loader"
PRELOADABLE = ("torch", "torchvision", "PIL.Image", "pandas", "scipy", "cv2", LOADER)
"""Slow to import, and never edited by the user."""


def needed(payload: bytes, *parts: Any, by_torch: bool = False) -> list[str]:
    """Modules that workers will import to rebuild a dataset and its functions, and to use them.

    Args:
        payload: Their pickle: code of the notebook names there the modules that it uses.
        parts: An object whose class is from a module, or a function from one, needs all that this module imports.
        by_torch: Whether workers collate with torch.
    """
    used = {"torch"} if by_torch else set()
    used |= {_key(name) for name in PRELOADABLE if _key(name).encode() in payload}
    return _loaded(used.union(*(_imported_by(getattr(part, "__module__", None) or "") for part in parts)))


def expected(dataset: Any, *, by_torch: bool = False) -> list[str]:
    """An estimate of `needed` for a dataset that has not been pickled yet: cheap, and it may miss some."""
    used = set(_used_by(dataset))
    return _loaded(used | {"torch"} if by_torch else used)


def _loaded(used: set[str]) -> list[str]:
    """Those of them that this process has imported."""
    if LOADER in used:
        used.add("torch")
    return [name for name in PRELOADABLE if name in sys.modules and _key(name) in used]


def _key(name: str) -> str:
    """The part of a module's name by which its use is recognized."""
    return LOADER if f"{name}.".startswith(f"{LOADER}.") else _root(name)


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
            if isinstance(value, FunctionType):  # other objects may answer any attribute
                for name in _names(value.__code__):
                    yield _home(value.__globals__.get(name))
    for value in attributes_of(dataset).values():
        yield _root(type(value).__module__)


def attributes_of(obj: Any) -> dict[str, Any]:
    """The instance attributes of an object, without running its `__getattr__`."""
    try:
        attributes: dict[str, Any] = object.__getattribute__(obj, "__dict__")
    except AttributeError:  # it has slots only
        return {}
    return attributes


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
