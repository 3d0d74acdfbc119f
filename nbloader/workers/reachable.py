"""A bounded look at what a dataset refers to: a random generator, what belongs to a thread, and whether it was changed.

A dataset may refer to millions of objects. At most `MAX_OBJECTS` of them are visited, those near to it first, and of a
large container its first items: a generator is an attribute of the dataset or of a transform, rarely item 5,000.
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import random
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

MAX_OBJECTS = 5000
MAX_ITEMS = 200
"""Items of one container that are visited."""
MAX_BYTES = 1 << 16
"""Size up to which the content of an array is compared."""
_LEAVES = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, ModuleType, CodeType)
_CONSTRUCTORS = frozenset({"default_rng", "RandomState", "Generator", "Random"})
"""Names by which code creates a generator: those of NumPy, torch and `random`."""
_SETS_UP = frozenset({"__init__", "__new__", "__setstate__"})
"""Methods that have run when a worker has its dataset: what they created is found in the object."""


def holds_generator(*roots: Any) -> bool:
    """Whether objects refer to a random generator of their own, or their methods create one and keep it."""
    shared = _global_generators()
    for obj in _visit(roots):
        if isinstance(obj, type):
            if _class_draws(obj):
                return True
        elif isinstance(obj, FunctionType):
            if _function_draws(obj):
                return True
        elif is_generator(obj) and id(obj) not in shared:
            return True
    return False


def holds_for_this_thread(*roots: Any) -> bool:
    """Whether objects, or their functions by globals, hold a connection of sqlite3 that only this thread may use."""
    connection_type = getattr(sys.modules.get("sqlite3"), "Connection", None)
    if connection_type is None:
        return False
    connections: dict[int, Any] = {}
    for obj in _visit(roots):
        for found in (obj, *_globals_of(obj)):
            if issubclass(type(found), connection_type):
                connections[id(found)] = found
    return any(_usable(connection) and not _usable_elsewhere(connection) for connection in connections.values())


def _globals_of(obj: Any) -> list[Any]:
    """The values of the globals that a function names, or the methods of a class."""
    functions = vars(obj).values() if isinstance(obj, type) else (obj,)
    return [
        function.__globals__.get(name)
        for function in functions
        if isinstance(function, FunctionType)
        for name in function.__code__.co_names
    ]


def _usable(connection: Any) -> bool:
    """Whether a connection of sqlite3 is open, and this thread may use it."""
    import sqlite3

    try:
        sqlite3.Connection.cursor(connection)
    except sqlite3.Error:
        return False
    return True


def _usable_elsewhere(connection: Any) -> bool:
    """Whether other threads may use it, too (`check_same_thread=False`)."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(_usable(connection)))
    thread.start()
    thread.join()
    return answers == [True]


def is_generator(obj: Any) -> bool:
    """Whether it is a random generator that has a state."""
    torch = sys.modules.get("torch")
    if isinstance(obj, random.Random):
        return not isinstance(obj, random.SystemRandom)
    if isinstance(obj, (np.random.RandomState, np.random.Generator, np.random.BitGenerator)):
        return True
    return torch is not None and isinstance(obj, torch.Generator)


def _global_generators() -> set[int]:
    """The ids of the generators behind the functions of `random`, NumPy and torch: each batch seeds them."""
    legacy: Any = np.random.mtrand._rand
    found = {id(random._inst), id(legacy), id(legacy._bit_generator)}
    torch = sys.modules.get("torch")
    return found if torch is None else found | {id(torch.default_generator)}


class Snapshot:
    """What objects referred to at some moment, to be compared with another one.

    Args:
        roots: The objects.
    """

    def __init__(self, *roots: Any) -> None:
        self._visited = [(obj, _describe(obj), list(_referents(obj))) for obj in _visit(roots)]
        """Objects, what was said of them, and what they referred to: kept, so that no other object gets their ids."""

    def __eq__(self, other: object) -> bool:
        """Whether nothing was changed, as far as was looked."""
        return isinstance(other, Snapshot) and self._described() == other._described()

    __hash__ = None  # type: ignore[assignment]

    def _described(self) -> list[tuple[Any, ...]]:
        return [(id(obj), described, *map(id, referents)) for obj, described, referents in self._visited]


def _describe(obj: Any) -> tuple[Any, ...]:
    if isinstance(obj, np.ndarray) and obj.dtype != object and obj.nbytes <= MAX_BYTES:
        return (zlib.crc32(obj.tobytes()),)
    if isinstance(obj, bytearray):
        return len(obj), zlib.crc32(obj[:MAX_BYTES])
    if isinstance(obj, (list, tuple, dict, set, frozenset)):
        return (len(obj),)
    if is_generator(obj):
        return (object(),)  # its state changes with each number: never equal
    return ()


def _visit(roots: Iterable[Any]) -> Iterator[Any]:
    """The objects, and what they refer to, breadth first. Classes and functions too, but not their globals."""
    queue = collections.deque(roots)
    seen: set[int] = set()
    while queue and len(seen) < MAX_OBJECTS:
        obj = queue.popleft()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        yield obj
        queue.extend(_referents(obj))


def _referents(obj: Any) -> Iterable[Any]:
    if isinstance(obj, (*_LEAVES, type)):
        return ()
    if isinstance(obj, FunctionType):
        return [*gc.get_referents(*(obj.__closure__ or ())), *(obj.__defaults__ or ())]
    if isinstance(obj, BuiltinFunctionType | MethodType):
        return gc.get_referents(obj)
    if isinstance(obj, dict):
        return itertools.islice(dict.values(obj), MAX_ITEMS)
    if type(obj) in (list, tuple, set, frozenset, collections.deque):
        return itertools.islice(obj, MAX_ITEMS)
    return _instance(obj)


def _instance(obj: Any) -> Iterable[Any]:
    """The attributes of an instance, and its class with those above it. The user's code is not run."""
    classes = [cls for cls in type(obj).__mro__ if cls.__module__ != "builtins"]
    return [*itertools.islice(gc.get_referents(obj), MAX_ITEMS), *classes]


@functools.lru_cache(maxsize=1024)
def _class_draws(cls: type) -> bool:
    """Whether a class holds a generator, or one of its methods uses a global one or keeps one that it creates."""
    for name, value in vars(cls).items():
        if is_generator(value):
            return True
        if isinstance(value, FunctionType) and name not in _SETS_UP and _function_draws(value):
            return True
    return False


def _function_draws(function: FunctionType) -> bool:
    code = function.__code__
    shared = _global_generators()
    for name in code.co_names:
        value = function.__globals__.get(name)
        if is_generator(value) and id(value) not in shared:
            return True
    if _CONSTRUCTORS.isdisjoint(code.co_names):
        return False
    import dis  # rarely needed, and a worker starts sooner without it

    return any(instruction.opname in ("STORE_ATTR", "STORE_GLOBAL") for instruction in dis.get_instructions(code))
