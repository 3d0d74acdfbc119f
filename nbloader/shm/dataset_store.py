"""A file in memory that holds arrays, and which memory an array's is."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from nbloader.shm.segment import filled_file, mapped


class Store:
    """A file in memory with arrays in it, which nobody can write to any more. It lives as long as this.

    Args:
        pieces: The memory of the arrays.

    Raises:
        MemoryError: There is not that much memory left.
    """

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self.starts: list[int] = []
        self.size = 0
        for piece in pieces:
            self.starts.append(self.size)
            self.size += -(-piece.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.fd = filled_file(self.size, list(zip(self.starts, pieces, strict=True)))
        weakref.finalize(self, os.close, self.fd)

    def map(self) -> Any:
        """Map it here, copy-on-write: memory to build arrays on, which keeps the store alive."""
        memory = mapped(self.fd, self.size, private=True)
        memory.store = self
        return memory


def address_of(raw: memoryview) -> int:
    """Where in memory it begins."""
    address: int = np.frombuffer(raw, np.uint8).ctypes.data
    return address


def owner_of(raw: memoryview) -> Any:
    """The object whose memory it is."""
    owner: Any = raw.obj
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def store_of(owner: Any) -> Store | None:
    """The store that is mapped where this object's memory is, if one is."""
    return getattr(owner, "store", None) if isinstance(owner, ctypes.Array) else None


class Origin:
    """Which memory a buffer was: equal for the same memory of the same object, while that object lives."""

    def __init__(self, raw: memoryview) -> None:
        self._span = address_of(raw), raw.nbytes
        self._owner = _reference(owner_of(raw))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Origin):
            return NotImplemented
        owner = self._owner()
        return self._span == other._span and owner is not None and owner is other._owner()

    __hash__ = None  # type: ignore[assignment]


def _reference(owner: Any) -> Any:
    try:
        return weakref.ref(owner)
    except TypeError:  # bytes and the like
        return lambda: owner
