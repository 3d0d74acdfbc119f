"""One value of the cache as bytes: a pickle, and separately the memory of its arrays.

    meta:    number of buffers, size of the pickle | sizes of the buffers | pickle
    buffers: the memory of arrays and tensors, one after the other

Buffers are read straight into the memory of the arrays that they become: a hit costs one copy of the data, and what it
returns belongs to the caller.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, NamedTuple

import numpy as np

from nbloader.batch.pickling import dump

OUT_OF_BAND = 4096
"""Minimum size of an array, in bytes, for its memory to be stored outside the pickle."""
_COUNTS = struct.Struct("<II")
_BY_VALUE = b"cloudpickle"
"""Bytes that occur in every pickle that holds code of the notebook by value."""


class Entry(NamedTuple):
    """A value to be stored."""

    meta: bytes
    buffers: list[memoryview]

    @property
    def nbytes(self) -> int:
        """Size of the entry, bytes."""
        return len(self.meta) + sum(buffer.nbytes for buffer in self.buffers)

    @property
    def by_value(self) -> bool:
        """Whether the entry holds classes of the notebook, which other processes would unpickle as new classes."""
        return _BY_VALUE in self.meta


class Found(NamedTuple):
    """A copy of an entry."""

    meta: bytes
    buffers: list[Any]
    cost: int
    """How long the value took to compute, us."""


def encode(value: Any) -> Entry:
    """Make an entry of a value. Its arrays are not copied.

    Raises:
        Exception: The value cannot be pickled.
    """
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    data = dump(value, keep_in_band)
    sizes = [buffer.nbytes for buffer in buffers]
    meta = _COUNTS.pack(len(sizes), len(data)) + struct.pack(f"<{len(sizes)}Q", *sizes) + data
    return Entry(meta, buffers)


def sizes(meta: bytes) -> tuple[int, ...]:
    """Return the sizes of an entry's buffers, bytes. If the entry is damaged, the numbers are arbitrary."""
    if len(meta) < _COUNTS.size:
        return (-1,)
    count, _size = _COUNTS.unpack_from(meta)
    if _COUNTS.size + 8 * count > len(meta):
        return (-1,)
    return struct.unpack_from(f"<{count}Q", meta, _COUNTS.size)


def allocate(meta: bytes) -> list[Any]:
    """Allocate the memory into which the buffers of an entry are read."""
    return [np.empty(size, np.uint8) for size in sizes(meta)]


def decode(meta: bytes, buffers: list[Any]) -> Any:
    """Return the value of an entry. Its arrays use the memory of the buffers."""
    count, size = _COUNTS.unpack_from(meta)
    start = _COUNTS.size + 8 * count
    return pickle.loads(memoryview(meta)[start : start + size], buffers=buffers)
