"""Fingerprints of datasets: they show whether workers have the current dataset, without pickling its code again.

Classes and functions of the notebook are pickled by value, and cloudpickle spends most of the time finding the imported
modules that they use. A function with the same code object can differ only in what it refers to, and a class only in
its members; comparing these takes little time. For a class with two methods, the first batch of a prefetched epoch
arrives after 0.7 ms instead of 1.8 ms.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import sys
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any
from weakref import WeakKeyDictionary

from nbloader.batch.pickling import SPAWNED_MAIN, dump
from nbloader.cache.code_names import global_names
from nbloader.shm.dataset_store import SHARE_FROM
from nbloader.transport.mp_objects import SharingPickler, Spawning

_BY_VALUE = b"cloudpickle"
"""Bytes that occur in every pickle that holds code by value."""
_MAIN = ("__main__", SPAWNED_MAIN)
"""Names of the module whose classes and functions are pickled by value."""
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
"""Types of the members that Python adds to a class for its `__dict__`, its `__weakref__` and its slots."""
_serials = itertools.count()
_classes: WeakKeyDictionary[type, int] = WeakKeyDictionary()


def worthwhile(data: bytes) -> bool:
    """Whether computing a fingerprint takes less time than creating this pickle did."""
    return _BY_VALUE in data and len(data) < SHARE_FROM


def fingerprint(obj: Any) -> tuple[bytes, int]:
    """Return the fingerprint of an object: while it stays the same, so does the object's pickle.

    This holds for objects without large arrays and without files that they share with workers. If an object acquires
    any of these, its fingerprint changes.

    Args:
        obj: The object to send to workers.

    Raises:
        Exception: The object cannot be pickled.
    """
    with Spawning():
        return dump(obj, _stays_in_band, _Pickler), len(sys.modules)  # a pickle depends on the imported modules


def _stays_in_band(buffer: pickle.PickleBuffer) -> bool:
    """Whether an array goes into the pickle, as in `SharedPickle`."""
    return buffer.raw().nbytes < SHARE_FROM


class _Code:
    """In a fingerprint: stands for the code object or the class with a given number."""


class _Pickler(SharingPickler):
    """Pickles functions and classes of the notebook as a number and what they refer to. The pickle cannot be loaded."""

    def reducer_override(self, obj: Any) -> Any:
        """See `Pickler`."""
        kind = type(obj)
        if kind not in (FunctionType, type) or (obj.__module__ not in _MAIN and "<locals>" not in obj.__qualname__):
            return super().reducer_override(obj)
        if kind is type:
            return _Code, (_of_class(obj),), (obj.__name__, obj.__qualname__, obj.__bases__, _members(obj))
        number, names = _of_code(obj.__code__)
        used = {name: obj.__globals__[name] for name in names if name in obj.__globals__}
        described = obj.__name__, obj.__qualname__, obj.__doc__, obj.__annotations__
        return _Code, (number,), (described, obj.__defaults__, obj.__kwdefaults__, obj.__closure__, used, obj.__dict__)


def _of_class(cls: type) -> int:
    """Return the serial number of a class, which no other class has."""
    number = _classes.get(cls)
    if number is None:
        number = _classes[cls] = next(_serials)
    return number


def _members(cls: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(cls).items()
        if not isinstance(value, _DESCRIPTORS) or value.__objclass__ is not cls
    }


@functools.lru_cache(maxsize=4096)
def _of_code(code: CodeType) -> tuple[int, tuple[str, ...]]:
    """Return a serial number that no other code has, and the names of the globals that the code uses."""
    return next(_serials), global_names(code)
