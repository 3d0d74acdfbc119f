"""Arrays of datasets in memory files that the notebook and all workers share.

`share_array` explicitly copies an array to such a file. `location_of` finds the memory file of an array that is already
in one and need not be copied for the workers (dataset_payload.py).
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from typing import Any, NamedTuple

import numpy as np

from nbloader._platform import pages_written
from nbloader.shm.memory_file import MemoryFile

SHARE_FROM = 64 * 1024
"""Arrays in a dataset of at least this size, in bytes, are shared by all workers; smaller ones are copied to each."""

COMPARED = 16 << 20
"""Number of bytes that are compared at a time."""


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
    file = MemoryFile()
    file.add(pickle.PickleBuffer(dense).raw())
    file.seal()
    return np.ndarray(dense.shape, dense.dtype, file.map(), order=order)


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


def file_of(owner: Any) -> MemoryFile | None:
    """Return the memory file whose mapping is this object's memory; None if there is none."""
    return getattr(owner, "file", None) if isinstance(owner, ctypes.Array) else None


class Location(NamedTuple):
    """The memory file that contains an array."""

    fd: int
    start: int
    """Position of the array in the file, in bytes."""
    private: bool
    """Whether to map the file copy-on-write."""
    keeper: Any
    """Object that keeps the descriptor open."""


def location_of(raw: memoryview) -> Location | None:
    """Return the memory file that holds these bytes.

    Returns:
        None if there is none, or if the notebook has written to its private copy.
    """
    owner = owner_of(raw)
    file = file_of(owner)
    if file is not None:
        address = address_of(raw)
        start = address - ctypes.addressof(owner)
        written = pages_written(address, raw.nbytes)
        if written is None:
            written = _differs(file, start, raw)
        return None if written else Location(file.fd, start, private=True, keeper=file)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(owner, torch.Tensor) and owner.is_shared():
        storage = owner.untyped_storage()
        fd, size = _fd_of(storage)
        start = address_of(raw) - storage.data_ptr()
        if fd >= 0 and 0 <= start <= size - raw.nbytes:
            return Location(fd, start, private=False, keeper=storage)
    return None


def _differs(file: MemoryFile, start: int, raw: memoryview) -> bool:
    """Whether these bytes, at a position of a private mapping of a file, are not those of the file."""
    original = np.frombuffer(file.map(), np.uint8, raw.nbytes, start)
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
