"""Arrays of datasets in memory files that the notebook and all workers share.

`share_array` puts an array into such a file explicitly. `Store` holds the arrays that a dataset's pickle leaves out
(dataset_payload.py). `file_of` finds the memory file of an array that is in one already, and need not be copied.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import sys
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nbloader._util.system import pages_written
from nbloader.shm.segment import filled_file, mapped

SHARE_FROM = 64 * 1024
"""Arrays in a dataset from this size on are shared by all workers, bytes; smaller ones are copied to each."""


class Store:
    """A memory file with arrays, to which nobody can write any more. The file lives as long as this object.

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
        """Map the file copy-on-write: memory to build arrays on, which keeps the store alive."""
        memory = mapped(self.fd, self.size, private=True)
        memory.store = self
        return memory


def share_array(array: np.ndarray[Any, Any]) -> Any:
    """See `nbloader.share`.

    Args:
        array: Of any dtype but object.

    Raises:
        MemoryError: There is not that much memory left.
    """
    dense: Any = np.asarray(array, order="K")
    if not (dense.flags.c_contiguous or dense.flags.f_contiguous):
        dense = np.ascontiguousarray(dense)
    if not dense.nbytes:
        return dense.copy()
    order: Any = "C" if dense.flags.c_contiguous else "F"
    memory = Store([pickle.PickleBuffer(dense).raw()]).map()
    return np.ndarray(dense.shape, dense.dtype, memory, order=order)


# ---- where an array's memory is -------------------------------------------------------------------------------------


def address_of(raw: memoryview) -> int:
    """The address at which it begins."""
    address: int = np.frombuffer(raw, np.uint8).ctypes.data
    return address


def owner_of(raw: memoryview) -> Any:
    """The object that owns the memory."""
    owner: Any = raw.obj
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def store_of(owner: Any) -> Store | None:
    """The store that is mapped where this object's memory is; None where there is none."""
    return getattr(owner, "store", None) if isinstance(owner, ctypes.Array) else None


class Location(NamedTuple):
    """The memory file that contains an array."""

    fd: int
    start: int
    """Bytes."""
    private: bool
    """Whether it is to be mapped copy-on-write."""
    keeper: Any
    """Keeps the descriptor open."""


def file_of(raw: memoryview) -> Location | None:
    """The memory file that holds these bytes now; None where there is none, or the notebook has written to its copy."""
    owner = owner_of(raw)
    store = store_of(owner)
    if store is not None:
        address = address_of(raw)
        start = address - ctypes.addressof(owner)
        return None if pages_written(address, raw.nbytes) else Location(store.fd, start, private=True, keeper=store)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(owner, torch.Tensor) and owner.is_shared():
        storage = owner.untyped_storage()
        fd, size = _fd_of(storage)
        start = address_of(raw) - storage.data_ptr()
        if fd >= 0 and 0 <= start <= size - raw.nbytes:
            return Location(fd, start, private=False, keeper=storage)
    return None


def _fd_of(storage: Any) -> tuple[int, int]:
    """The descriptor of a tensor's shared memory and its size, as torch gives them to its own workers; -1 for none."""
    try:
        fd, size = storage._share_fd_cpu_()
        return (fd, size) if os.fstat(fd).st_size >= size else (-1, 0)
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
        return -1, 0


class Origin:
    """The identity of a buffer's memory: equal for the same memory of the same object, while that object lives."""

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
