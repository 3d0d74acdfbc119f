"""A bounded search of the objects that a dataset refers to, for random generators, thread-bound objects and changes.

A dataset may refer to millions of objects. At most `MAX_OBJECTS` of them are visited, the nearest ones first, and only
the first items of large containers. A generator is usually an attribute of the dataset or of a transform, and rarely
item 5,000 of a list.
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
"""Maximum number of items of one container that are visited."""
MAX_BYTES = 1 << 16
"""Size up to which the content of an array is compared, in bytes."""
_LEAVES = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, ModuleType, CodeType)
_CONSTRUCTORS = frozenset({"default_rng", "RandomState", "Generator", "Random"})
"""Names of the constructors of random generators in NumPy, torch and `random`."""
_SETS_UP = frozenset({"__init__", "__new__", "__setstate__"})
"""Methods that have already run when a worker has its dataset. A generator that they created is found in the object."""


def holds_generator(*roots: Any) -> bool:
    """Whether objects refer to a private random generator, or have methods that create a generator and keep it."""
    shared = global_generators()
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
    """Whether objects, or the globals that their functions use, hold an sqlite3 connection of only this thread."""
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
    """Return the values of the globals that a function, or the methods of a class, refer to."""
    functions = vars(obj).values() if isinstance(obj, type) else (obj,)
    return [
        function.__globals__.get(name)
        for function in functions
        if isinstance(function, FunctionType)
        for name in function.__code__.co_names
    ]


def _usable(connection: Any) -> bool:
    """Whether an sqlite3 connection is open, and this thread may use it."""
    import sqlite3

    try:
        sqlite3.Connection.cursor(connection)
    except sqlite3.Error:
        return False
    return True


def _usable_elsewhere(connection: Any) -> bool:
    """Whether other threads may use the connection, too (`check_same_thread=False`)."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(_usable(connection)))
    thread.start()
    thread.join()
    return answers == [True]


def is_generator(obj: Any) -> bool:
    """Whether an object is a random generator that has a state."""
    torch = sys.modules.get("torch")
    if isinstance(obj, random.Random):
        return not isinstance(obj, random.SystemRandom)
    numpy_random = sys.modules.get("numpy.random")  # a thread may be importing it
    of_numpy = [getattr(numpy_random, name, None) for name in ("RandomState", "Generator", "BitGenerator")]
    if isinstance(obj, tuple(filter(None, of_numpy))):
        return True
    return torch is not None and isinstance(obj, torch.Generator)


def global_generators() -> set[int]:
    """Return the ids of the global generators of `random`, NumPy and torch, which are seeded for each batch."""
    found = {id(random._inst)}
    legacy: Any = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if legacy is not None:
        found |= {id(legacy), id(legacy._bit_generator)}
    torch = sys.modules.get("torch")
    return found if torch is None else found | {id(torch.default_generator)}


class Snapshot:
    """A record of what objects referred to at some moment, for comparison with another snapshot.

    Args:
        roots: The objects.
    """

    def __init__(self, *roots: Any) -> None:
        self._visited = [(obj, _describe(obj), list(_referents(obj))) for obj in _visit(roots)]
        """The objects, their descriptions, and their referents. References are kept so that no new object can get the
        same id."""

    def __eq__(self, other: object) -> bool:
        """Whether nothing has changed in the part that the snapshots cover."""
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
        return (object(),)  # never equal, because its state changes with each number that is drawn
    return ()


def _visit(roots: Iterable[Any]) -> Iterator[Any]:
    """Visit the objects and what they refer to, breadth first. This includes classes and functions, but no globals."""
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
    """Return the referents of an instance, its class and its base classes, without running the user's code."""
    classes = [cls for cls in type(obj).__mro__ if cls.__module__ != "builtins"]
    return [*itertools.islice(gc.get_referents(obj), MAX_ITEMS), *classes]


@functools.lru_cache(maxsize=1024)
def _class_draws(cls: type) -> bool:
    """Whether a class holds a generator, or has a method that uses a generator in a global or creates and keeps one."""
    for name, value in vars(cls).items():
        if is_generator(value):
            return True
        if isinstance(value, FunctionType) and name not in _SETS_UP and _function_draws(value):
            return True
    return False


def _function_draws(function: FunctionType) -> bool:
    code = function.__code__
    shared = global_generators()
    for name in code.co_names:
        value = function.__globals__.get(name)
        if is_generator(value) and id(value) not in shared:
            return True
    if _CONSTRUCTORS.isdisjoint(code.co_names):
        return False
    import dis  # rarely needed, and a worker starts faster without it

    return any(instruction.opname in ("STORE_ATTR", "STORE_GLOBAL") for instruction in dis.get_instructions(code))
