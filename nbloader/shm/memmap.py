"""`np.memmap` in a dataset: each worker maps the file itself, and no data is sent.

NumPy's own pickle of a memmap would send all mapped data to each worker.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nbloader._platform import mapped_path, pages_written


class MappedFile(NamedTuple):
    """The identity of a file: when a worker opens the path, another file may be there."""

    path: str
    inode: int
    size: int


def reduce(array: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Reduce an array to a call that maps its file again, for `pickle`.

    Args:
        array: An `np.memmap`, or a view of one.

    Returns:
        A function and its arguments. None if the file does not have the contents of the array: the file is no longer at
        its path, or the array was mapped copy-on-write and written to. Also None if the array is empty, has negative
        strides or is not backed by a map.
    """
    memory = getattr(array, "_mmap", None)
    if not isinstance(memory, mmap.mmap) or not array.size or min(array.strides, default=0) < 0:
        return None
    start = np.frombuffer(memory, np.uint8).ctypes.data
    path, begin = os.fspath(array.filename or ""), array.ctypes.data - start
    nbytes = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    if not 0 <= begin <= len(memory) - nbytes or not _is_mapped_from(path, start, memory.size()):
        return None
    if array.mode == "c" and pages_written(array.ctypes.data, nbytes) is not False:
        return None
    stat = Path(path).stat()
    mode = "r+" if array.mode == "w+" else array.mode  # "w+" would empty the file
    position = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY + begin
    file = MappedFile(os.path.realpath(path), stat.st_ino, stat.st_size)
    if array.flags.c_contiguous or array.flags.f_contiguous:
        order = "C" if array.flags.c_contiguous else "F"
        return map_contiguous, (file, mode, position, array.dtype, array.shape, order)
    return map_strided, (file, mode, position, nbytes, array.dtype, array.shape, array.strides, array.flags.writeable)


def map_contiguous(file: MappedFile, mode: Any, position: int, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    """Map an array without gaps. Called in a worker.

    Raises:
        FileNotFoundError: The file was deleted, or replaced by another one.
    """
    _check(file)
    return np.memmap(file.path, dtype, mode, position, shape, order)


def map_strided(
    file: MappedFile,
    mode: Any,
    position: int,
    nbytes: int,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    writeable: bool,
) -> Any:
    """Map the part of the file that contains a strided array. Called in a worker.

    Raises:
        FileNotFoundError: The file was deleted, or replaced by another one.
    """
    _check(file)
    flat: Any = np.memmap(file.path, np.uint8, mode, position, (nbytes,))
    array: Any = np.ndarray(shape, dtype, flat, strides=strides)
    array.flags.writeable = writeable
    return array


def _check(file: MappedFile) -> None:
    stat = Path(file.path).stat()
    if (stat.st_ino, stat.st_size) != (file.inode, file.size):
        raise FileNotFoundError(
            f"{file.path} is not the file that the dataset's np.memmap has mapped (that one has {file.size:,} bytes, "
            f"this one {stat.st_size:,}). Create the memmap again, then the loader, or call loader.reload()."
        )


def _is_mapped_from(path: str, address: int, size: int) -> bool:
    """Whether the file at this path is the one that is mapped at this address."""
    try:
        if Path(path).stat().st_size != size:
            return False
    except OSError:
        return False
    mapped = mapped_path(address)
    return mapped is None or mapped == os.path.realpath(path)  # the path of a deleted file ends with " (deleted)"
