"""`np.memmap` in a dataset: workers map the file for themselves, none of its bytes is sent.

NumPy's own pickle of a memmap holds all that it maps, once for each worker.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nbloader._util.system import pages_written

_MAPS = Path("/proc/self/maps")


class File(NamedTuple):
    """Which file it was: another one may stand under its name when a worker opens it."""

    path: str
    inode: int
    size: int


def reduce(array: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """How to map it again elsewhere, for `pickle`.

    Args:
        array: An `np.memmap`, or a view of one.

    Returns:
        None where the file does not hold what the array holds: it is no longer under its name, or the array was mapped
        copy-on-write and written to.
    """
    memory = getattr(array, "_mmap", None)
    if not isinstance(memory, mmap.mmap) or not array.size or min(array.strides, default=0) < 0:
        return None
    start = np.frombuffer(memory, np.uint8).ctypes.data
    path, begin = os.fspath(array.filename or ""), array.ctypes.data - start
    nbytes = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    if not 0 <= begin <= len(memory) - nbytes or not _is_mapped_from(path, start, memory.size()):
        return None
    if array.mode == "c" and pages_written(array.ctypes.data, nbytes):
        return None
    stat = Path(path).stat()
    mode = "r+" if array.mode == "w+" else array.mode  # which would empty the file
    position = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY + begin
    file = File(os.path.realpath(path), stat.st_ino, stat.st_size)
    if array.flags.c_contiguous or array.flags.f_contiguous:
        order = "C" if array.flags.c_contiguous else "F"
        return whole, (file, mode, position, array.dtype, array.shape, order)
    return part, (file, mode, position, nbytes, array.dtype, array.shape, array.strides, array.flags.writeable)


def whole(file: File, mode: Any, position: int, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    """Map an array without gaps, in a worker.

    Raises:
        FileNotFoundError: The file is gone, or another one stands under its name.
    """
    _check(file)
    return np.memmap(file.path, dtype, mode, position, shape, order)


def part(
    file: File,
    mode: Any,
    position: int,
    nbytes: int,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    writeable: bool,
) -> Any:
    """Map the bytes among which an array lies, in a worker.

    Raises:
        FileNotFoundError: The file is gone, or another one stands under its name.
    """
    _check(file)
    flat: Any = np.memmap(file.path, np.uint8, mode, position, (nbytes,))
    array: Any = np.ndarray(shape, dtype, flat, strides=strides)
    array.flags.writeable = writeable
    return array


def _check(file: File) -> None:
    stat = Path(file.path).stat()
    if (stat.st_ino, stat.st_size) != file[1:]:
        raise FileNotFoundError(
            f"{file.path} is another file than the one that the dataset's np.memmap was made of (of {file.size:,} "
            f"bytes; now {stat.st_size:,}). Make the memmap again, and the loader or loader.reload() after it."
        )


def _is_mapped_from(path: str, address: int, size: int) -> bool:
    """Whether the file under this name is the one that is mapped at this address."""
    try:
        if Path(path).stat().st_size != size:
            return False
        if not _MAPS.exists():
            return True
        for line in _MAPS.read_text(errors="surrogateescape").splitlines():
            span, *_, name = line.split(maxsplit=5)
            begin, _, end = span.partition("-")
            if int(begin, 16) <= address < int(end, 16):
                return name == os.path.realpath(path)  # a file that is gone is called "... (deleted)"
    except OSError:
        pass
    return False
