"""The attributes of an object, and a bounded walk over these and those of the objects in them, by name."""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from nbloader._util.code_places import is_installed

MAX_OBJECTS = 1000
"""Maximum number of objects that are visited, and of attributes of one object."""
MAX_ITEMS = 32
"""Maximum number of items of one container that are visited."""
PLAIN = (type(None), bool, int, float, complex, str, bytes)
"""Types of values that are compared as such."""
_NOT_ENTERED = (*PLAIN, type, ModuleType, FunctionType, BuiltinFunctionType)


class Attribute(NamedTuple):
    """A value that an object refers to."""

    path: str
    """How an expression refers to it, without the name of the object: "epoch", "transforms[0].strength"."""
    value: Any


def attributes_of(obj: Any) -> dict[str, Any]:
    """Return the `__dict__` of an object without running the user's code; an empty dict if it has none."""
    try:
        attributes = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def walk(root: Any) -> Iterator[Attribute]:
    """Visit what an object refers to by attributes, breadth first, without running the user's code.

    Lists, tuples, dicts and `functools.partial` are entered, and objects of the user's own classes. Of the objects of
    installed packages only the root and the datasets in torch's wrappers are entered: others may change by themselves.

    Args:
        root: The object.
    """
    queue = collections.deque([Attribute("", root)])
    seen: set[int] = set()
    while queue and len(seen) < MAX_OBJECTS:
        path, value = queue.popleft()
        if isinstance(value, (*_NOT_ENTERED, np.ndarray, np.generic)) or id(value) in seen:
            continue
        seen.add(id(value))
        for attribute in _children(path, value):
            yield attribute
            queue.append(attribute)


def _children(path: str, value: Any) -> Iterable[Attribute]:
    cls: Any = type(value)
    if isinstance(value, dict):
        return [Attribute(f"{path}[{key!r}]", dict.get(value, key)) for key in _first(value) if type(key) in (str, int)]
    if type(value) in (list, tuple):
        return [Attribute(f"{path}[{position}]", item) for position, item in enumerate(value[:MAX_ITEMS])]
    if isinstance(value, functools.partial):
        parts = {"func": value.func, "args": value.args, "keywords": value.keywords}
    elif isinstance(value, MethodType):
        parts = {"__self__": value.__self__}
    elif not path or path.rpartition(".")[2] in ("dataset", "datasets") or not is_of_package(cls):
        own = list(attributes_of(value).items())[:MAX_OBJECTS]
        parts = {**_plain_defaults(cls), **dict(own)}
    else:
        return ()
    dot = "." if path else ""
    return [Attribute(f"{path}{dot}{name}", part) for name, part in parts.items()]


def _plain_defaults(cls: type) -> dict[str, Any]:
    """Return the attributes that an object has from the user's own classes if they are numbers, strings or None."""
    return {
        name: value
        for base in reversed(cls.__mro__)
        if not is_of_package(base)
        for name, value in vars(base).items()
        if not name.startswith("__") and isinstance(value, PLAIN)
    }


def _first(value: dict[Any, Any]) -> list[Any]:
    return [key for key, _ in zip(dict.__iter__(value), range(MAX_ITEMS), strict=False)]


@functools.lru_cache(maxsize=1024)
def is_of_package(cls: Any) -> bool:
    """Whether a class belongs to Python or to an installed package."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return cls.__module__ == "builtins" or (isinstance(file, str) and is_installed(file))
