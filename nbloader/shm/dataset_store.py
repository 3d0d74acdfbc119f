"""Arrays of datasets in memory files that the notebook and all workers share.

`share_array` explicitly copies an array to such a file. `Store` holds the arrays that a dataset's pickle leaves out
(dataset_payload.py). `file_of` finds the memory file of an array that is already in one and need not be copied.
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

from nbloader._platform import mapped, pages_written
from nbloader._platform.descriptors import close_all
from nbloader.shm.segment import filled_file

SHARE_FROM = 64 * 1024
"""Arrays in a dataset of at least this size, in bytes, are shared by all workers; smaller ones are copied to each."""

COMPARED = 16 << 20
"""Number of bytes that are compared at a time."""


class Store:
    """A sealed memory file that holds arrays. The file exists as long as this object.

    Args:
        pieces: The memory of the arrays.

    Raises:
        MemoryError: Not enough memory is left.
    """

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self.starts: list[int] = []
        self.size = 0
        for piece in pieces:
            self.starts.append(self.size)
            self.size += -(-piece.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        file: list[int] = []
        weakref.finalize(self, close_all, file)
        filled_file(self.size, list(zip(self.starts, pieces, strict=True)), file)
        self.fd = file[0]

    def map(self) -> Any:
        """Map the file copy-on-write. Returns memory to build arrays on, which keeps the store alive."""
        memory = mapped(self.fd, self.size, private=True)
        memory.store = self
        return memory


def share_array(array: np.ndarray[Any, Any]) -> Any:
    """Copy an array to a memory file: see `nbloader.share`.

    Args:
        array: An array of any dtype but object.

    Raises:
        MemoryError: Not enough memory is left.
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
    """Return the address at which the memory begins."""
    address: int = np.frombuffer(raw, np.uint8).ctypes.data
    return address


def owner_of(raw: memoryview) -> Any:
    """Return the object that owns the memory."""
    owner: Any = raw.obj
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def store_of(owner: Any) -> Store | None:
    """Return the store whose mapping is this object's memory; None if there is none."""
    return getattr(owner, "store", None) if isinstance(owner, ctypes.Array) else None


class Location(NamedTuple):
    """The memory file that contains an array."""

    fd: int
    start: int
    """Position of the array in the file, in bytes."""
    private: bool
    """Whether to map the file copy-on-write."""
    keeper: Any
    """Object that keeps the descriptor open."""


def file_of(raw: memoryview) -> Location | None:
    """Return the memory file that holds these bytes.

    Returns:
        None if there is none, or if the notebook has written to its private copy.
    """
    owner = owner_of(raw)
    store = store_of(owner)
    if store is not None:
        address = address_of(raw)
        start = address - ctypes.addressof(owner)
        written = pages_written(address, raw.nbytes)
        if written is None:
            written = _differs(store, start, raw)
        return None if written else Location(store.fd, start, private=True, keeper=store)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(owner, torch.Tensor) and owner.is_shared():
        storage = owner.untyped_storage()
        fd, size = _fd_of(storage)
        start = address_of(raw) - storage.data_ptr()
        if fd >= 0 and 0 <= start <= size - raw.nbytes:
            return Location(fd, start, private=False, keeper=storage)
    return None


def _differs(store: Store, start: int, raw: memoryview) -> bool:
    """Whether these bytes, at a position of a store's private mapping, are not those of the store's file."""
    original = np.frombuffer(mapped(store.fd, store.size, private=True), np.uint8, raw.nbytes, start)
    present = np.frombuffer(raw, np.uint8)
    return any(
        not np.array_equal(original[begin : begin + COMPARED], present[begin : begin + COMPARED])
        for begin in range(0, raw.nbytes, COMPARED)
    )


def _fd_of(storage: Any) -> tuple[int, int]:
    """Return the descriptor and the size of a tensor's shared memory, which torch sends to its workers; -1 if none."""
    try:
        fd, size = storage._share_fd_cpu_()
        return (fd, size) if os.fstat(fd).st_size >= size else (-1, 0)
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
        return -1, 0
