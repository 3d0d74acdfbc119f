"""A checksum of a small part of a batch, by which a replay can tell whether it is the batch that was delivered.

The part is bounded: some elements of some arrays, spread evenly, and the numbers and texts beside them. Batches with
equal content have equal checksums, in whatever process and memory they are. Sets, whose order differs between
processes, count by their size.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from nbloader._util.attributes import attributes_of

ELEMENTS = 256
"""Maximum number of elements of one array that are covered."""
ITEMS = 64
"""Maximum number of items of one container that are covered."""
VALUES = 256
"""Maximum number of values of a batch that are covered, including containers."""

Parts: TypeAlias = tuple[bytes, Iterable[Any]]
"""The bytes that represent a value, without the values that it contains, and some of these."""
_SIZES = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""Integers that stand for elements of a dtype that NumPy does not know, by their size in bytes."""


def checksum(batch: Any) -> int:
    """Return a checksum of a small part of a batch. Takes about 4 us for each array or text."""
    values: collections.deque[Any] = collections.deque((batch,))
    result = 0
    for _ in range(VALUES):
        if not values:
            break
        data, inner = _parts(values.popleft())
        result = crc32(data, result)
        values.extend(inner)
    return result


def _parts(value: Any) -> Parts:
    """Return the parts of a value. No method of the user's classes is called: it might raise, or change something."""
    kind = type(value)
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        return _tensor(torch, value)
    for base, parts in _KINDS:
        if issubclass(kind, base):
            return parts(value)
    return kind.__qualname__.encode(), _values(attributes_of(value))


def _values(mapping: dict[Any, Any]) -> Iterable[Any]:
    """Return some values of a dict, in the order of its keys: they may have been inserted in the order of a set."""
    items = list(dict.items(mapping))
    if all(type(key) is str for key, _value in items):
        items.sort(key=itemgetter(0))
    return [value for _key, value in _spread(items)]


def _spread(items: Sequence[Any]) -> Iterable[Any]:
    """Return at most `ITEMS` items, evenly spread."""
    if len(items) <= ITEMS:
        return items
    return [items[at * len(items) // ITEMS] for at in range(ITEMS)]


def _text(value: bytes) -> Parts:
    return b"t%d" % len(value) + value[:: len(value) // ELEMENTS or 1], ()


def _array(array: np.ndarray[Any, Any]) -> Parts:
    kind = array.dtype
    head = b"%s%s" % (kind.str.encode(), str(array.shape).encode())
    if kind.names is not None:  # between the fields there may be bytes of any value
        return head, [array[name] for name in kind.names]
    step = array.size // ELEMENTS
    if array.size > ELEMENTS:
        array = array.flat[step // 2 :: step | 1]  # an odd step does not stay in one column of a picture
    if kind.hasobject:
        return head, _spread(array.ravel().tolist())
    if kind.char in "gG":  # so do the elements themselves
        array = array.astype(np.complex128)
    return head + array.tobytes(), ()


def _tensor(torch: Any, tensor: Any) -> Parts:
    try:
        if type(tensor) is torch.Tensor:
            return _array(_as_array(torch, tensor.detach()))
        with torch._C.DisableTorchFunctionSubclass():
            return _array(_as_array(torch, tensor.detach()))
    except (RuntimeError, TypeError, NotImplementedError, KeyError):  # sparse, nested, on a device, of a subclass
        return b"tensor", ()


def _as_array(torch: Any, tensor: Any) -> Any:
    try:
        return tensor.numpy()
    except RuntimeError:  # it is a conjugate or negative view
        return tensor.resolve_conj().resolve_neg().numpy()
    except TypeError:  # bfloat16, float8_...: unknown to NumPy
        return tensor.view(getattr(torch, _SIZES[tensor.element_size()])).numpy()


_KINDS: tuple[tuple[Any, Callable[[Any], Parts]], ...] = (
    ((np.ndarray, np.generic), lambda value: _array(np.asarray(value))),
    (dict, lambda value: (b"dict%d" % dict.__len__(value), _values(value))),
    (list, lambda value: (b"list%d" % list.__len__(value), _spread(list.copy(value)))),
    (tuple, lambda value: (b"list%d" % tuple.__len__(value), _spread(tuple.__getitem__(value, slice(None))))),
    (str, lambda value: _text(str.encode(value, "utf-8", "surrogatepass"))),
    (bytes, lambda value: _text(bytes.__getitem__(value, slice(None)))),
    (int, lambda value: (b"int%d" % int.__hash__(value), ())),
    (float, lambda value: (float.__repr__(value).encode(), ())),
    (complex, lambda value: (complex.__repr__(value).encode(), ())),
    ((set, frozenset), lambda value: (b"set%d" % (set if isinstance(value, set) else frozenset).__len__(value), ())),
    (
        (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType),
        lambda value: (type(value).__name__.encode(), ()),
    ),
)
"""How values are represented, by their type; any other object by its attributes. Code is represented by its type."""
