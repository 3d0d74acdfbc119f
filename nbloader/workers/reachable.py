"""A bounded search of the objects that a dataset refers to, for random generators and thread-bound objects.

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
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from nbloader._util.attributes import attributes_of
from nbloader._util.code_places import is_library
from nbloader.workers import seeders
from nbloader.workers.seeders import Seedable, seeder_of

MAX_OBJECTS = 5000
MAX_ITEMS = 200
"""Maximum number of items of one container that are visited."""
_LEAVES = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, ModuleType, CodeType)
_CONSTRUCTORS = frozenset({"default_rng", "RandomState", "Generator", "Random"})
"""Names of the constructors of random generators in NumPy, torch and `random`."""
_SETS_UP = frozenset({"__init__", "__new__", "__setstate__"})
"""Methods that have already run when a worker has its dataset. A generator that they created is found in the object."""


def holds_generator(*roots: Any, seeded: bool = False) -> bool:
    """Whether objects refer to a private random generator, or have methods that create a generator and keep it.

    Args:
        roots: The objects.
        seeded: Whether generators do not count that belong to objects of a registered class, since these are seeded for
            each batch (`seeders`).
    """
    shared = global_generators()
    closed = seeded and seeders.may_apply()
    for obj in _visit(roots, _closed if closed else _referents):
        if isinstance(obj, type):
            if _class_draws(obj):
                return True
        elif isinstance(obj, FunctionType):
            if _function_draws(obj):
                return True
        elif is_generator(obj) and id(obj) not in shared:
            return True
    return False


def seedables(*roots: Any) -> list[list[Seedable]]:
    """Return the objects of registered classes that each root refers to, and that no earlier root refers to.

    This includes what the user's classes and functions refer to: class attributes, closures and globals. Attributes are
    visited in the order of their names, so that copies in other processes give the same order.
    """
    if not seeders.may_apply():
        return [[] for _ in roots]
    seen: set[int] = set()
    found: list[list[Seedable]] = []
    for root in roots:
        of_root: list[Seedable] = []
        found.append(of_root)
        for obj in _visit((root,), _used):
            seed = None if id(obj) in seen or isinstance(obj, (*_LEAVES, type)) else seeder_of(type(obj))
            if seed is not None:
                seen.add(id(obj))
                of_root.append(Seedable(obj, seed))
    return found


def reachable(*roots: Any, closed: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """Visit objects as `seedables` does.

    Args:
        roots: The objects to begin with.
        closed: Returns whether what an object refers to is not visited through it.
    """
    if closed is None:
        return _visit(roots, _used)
    return _visit(roots, lambda obj: () if closed(obj) else _used(obj))


def edges(*roots: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Visit the same objects, each with the objects that it refers to."""
    for obj in reachable(*roots):
        yield obj, list(_used(obj))


def _closed(obj: Any) -> Iterable[Any]:
    """Return the referents of an object; none if it is of a registered class."""
    if isinstance(obj, (*_LEAVES, type)) or seeder_of(type(obj)) is not None:
        return ()
    attributes = attributes_of(obj)
    return (*(attributes[name] for name in sorted(attributes, key=str)), *_referents(obj))


def _used(obj: Any) -> Iterable[Any]:
    """Return what `_closed` returns; for classes and functions of the user, also their attributes and globals."""
    if isinstance(obj, type):
        return () if is_library(_file_of(obj)) else [vars(obj)[name] for name in sorted(vars(obj))]
    if isinstance(obj, FunctionType):
        if is_library(obj.__code__.co_filename):
            return ()
        names = dict.fromkeys(name for code in _codes(obj.__code__) for name in code.co_names)
        return [*_closed(obj), *(obj.__globals__[name] for name in names if name in obj.__globals__)]
    return _closed(obj)


def _file_of(cls: type) -> str:
    """Return the file of a class's first method; "" if it has none."""
    functions = (value for value in vars(cls).values() if isinstance(value, FunctionType))
    return next((function.__code__.co_filename for function in functions), "")


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Visit the code of a function, and of the functions and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


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


def _visit(roots: Iterable[Any], referents: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """Visit the objects and what they refer to, breadth first. This includes classes and functions, but no globals.

    Args:
        roots: The objects.
        referents: Returns what an object refers to.
    """
    queue = collections.deque(roots)
    seen: set[int] = set()
    while queue and len(seen) < MAX_OBJECTS:
        obj = queue.popleft()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        yield obj
        queue.extend(referents(obj))


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
