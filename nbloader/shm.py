"""Shared memory: segments that a worker writes a batch into and the notebook's process reads without a copy.

A segment belongs to the worker that made it. It is lent to the notebook's process with a batch, and goes back when
the last array or tensor that views it dies: a consumer that keeps batches costs memory, never correctness.

    worker: SegmentPool.take() -> write -> send its number
    notebook: SegmentMaps.lend() -> arrays on the owner -> the owner dies -> number back with the next task

Segments are memfds: not limited by the size of /dev/shm, and nothing is left behind however a process dies. They are
allocated when they are made, after a look at how much memory is left, so that its end is an error here and not a
SIGBUS later. Reuse is what makes them fast: fresh pages are written at a third of the speed of used ones, so the most
recently used segment goes first.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import mmap
import os
import pickle
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from nbloader.memory import available
from nbloader.pickles import dump

ALIGN = 64
"""Arrays begin at multiples of this within a segment, bytes: a cache line, and enough for any vector instruction."""

INLINE_LIMIT = 16 * 1024
"""A batch smaller than this travels with its message, bytes: one copy of it is cheaper than a segment's bookkeeping."""

MAX_LENT = 1024
"""Segments lent at once by one worker before batches are copied out instead: the kernel bounds mappings (65,530)."""

ASK_FROM = 1 << 20
"""Files in memory from this size on are made only when the system says that there is room, bytes: the allocation of a
memfd does not fail when memory ends, it lets the kernel kill processes."""

SHARE_BUFFERS_FROM = 64 * 1024
"""Arrays inside a dataset from this size on are shared by all workers, bytes; smaller ones are copied to each."""


def aligned(nbytes: int) -> int:
    """Round up to a multiple of `ALIGN`."""
    return -(-nbytes // ALIGN) * ALIGN


def segment_size(nbytes: int) -> int:
    """The size of the segment for a batch of `nbytes`: rounded up by at most 1/16, so that similar batches reuse it."""
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 5))
    return max(1, -(-nbytes // step)) * step


def anonymous_file(size: int) -> int:
    """A file in memory that no other user can open and that vanishes with its last descriptor.

    Returns:
        Its descriptor, with `size` bytes allocated.

    Raises:
        MemoryError: The machine (or the container) has not that much memory left.
    """
    if size >= ASK_FROM:
        left = available()
        if left is not None and size > left:
            raise _no_memory(size, f"{left / 1e6:,.0f} MB are left")
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("nbloader", os.MFD_CLOEXEC)
    else:  # macOS: an unlinked file
        fd, path = tempfile.mkstemp(prefix="nbloader-")
        Path(path).unlink()
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
    except OSError as error:
        os.close(fd)
        raise _no_memory(size, error.strerror or "unknown reason") from error
    return fd


def _no_memory(size: int, why: str) -> MemoryError:
    return MemoryError(
        f"{size / 1e6:,.1f} MB of shared memory were asked for and are not there ({why}). Use a smaller batch_size, "
        "fewer workers or a smaller prefetch_factor, or give the machine more memory."
    )


def mapped(fd: int, size: int) -> Any:
    """Map a file into memory, shared and writable, and keep no descriptor of it.

    `mmap.mmap` keeps a duplicate of the descriptor (until Python 3.13 can be told not to), and a consumer that keeps
    batches would soon have too many open files. And it unmaps before it tells weak references that it dies, while
    memory that was pinned must be unpinned first.

    Returns:
        A ctypes array of `size` bytes; what is built on it keeps it mapped.

    Raises:
        OSError: The system's bound on mappings is reached.
    """
    address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"{size:,} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")
    memory = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, _libc().munmap, address, size).atexit = False
    return memory


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


class SegmentPool:
    """A worker's segments: those it may write to now, the most recently used first."""

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = collections.defaultdict(list)
        self._sizes: dict[int, int] = {}
        self._maps: dict[int, Any] = {}
        self._made = 0

    def take(self, nbytes: int) -> tuple[int, Any, int | None]:
        """A segment for a batch of `nbytes`.

        Returns:
            Its number, its memory, and the descriptor of a segment made just now (to be sent to the notebook's
            process and closed), or None when it has been sent before.
        """
        size = segment_size(nbytes)
        fitting = [other for other, free in self._free.items() if free and size <= other <= 2 * size]
        if fitting:
            number = self._free[min(fitting)].pop()
            return number, self._maps[number], None
        fd = anonymous_file(size)
        number, self._made = self._made, self._made + 1
        self._maps[number] = mapped(fd, size)
        self._sizes[number] = size
        return number, self._maps[number], fd

    def size(self, number: int) -> int:
        """Size of a segment, bytes."""
        return self._sizes[number]

    def give_back(self, numbers: list[int]) -> None:
        """Nobody views these segments any more."""
        for number in numbers:
            self._free[self._sizes[number]].append(number)


class SegmentMaps:
    """The notebook's view of one worker's segments."""

    def __init__(self) -> None:
        self._maps: dict[int, tuple[Any, Any]] = {}
        self._lent: dict[int, weakref.ref[Any]] = {}
        self.returned: collections.deque[int] = collections.deque()
        """Segments that nobody views any more, to be named to the worker with its next task."""

    def add(self, number: int, fd: int) -> None:
        """Map a new segment; takes the descriptor."""
        try:
            size = os.fstat(fd).st_size
            self._maps[number] = mapped(fd, size), ctypes.c_char * size
        finally:
            os.close(fd)

    def lend(self, number: int, nbytes: int) -> Any:
        """The memory of a segment for building arrays on; when the last of them dies the segment goes back.

        Returns:
            A buffer of at least `nbytes` bytes: a ctypes array on the segment, or a private copy when so many
            segments are lent already that the kernel's bound on mappings comes near.
        """
        memory, array_type = self._maps[number]
        if len(self._lent) >= MAX_LENT:
            copy = bytearray(memoryview(memory)[:nbytes])
            self.returned.append(number)
            return copy
        # What the weak reference watches must be what numpy keeps as the arrays' base. numpy looks through a
        # memoryview to the object below it, so one on a memoryview would fire while arrays still use the memory.
        owner = array_type.from_buffer(memory)
        self._lent[number] = weakref.ref(owner, functools.partial(_give_back, self._lent, self.returned, number))
        return owner

    def mapping(self, number: int) -> Any:
        """The whole of a segment, a ctypes array; it is unmapped when this and all that is built on it are gone."""
        return self._maps[number][0]

    def discard(self, number: int) -> None:
        """The batch in this segment is not wanted."""
        self.returned.append(number)

    def take_returned(self) -> list[int]:
        """Empty `returned`. Safe while another thread drops arrays."""
        out = []
        while self.returned:
            out.append(self.returned.popleft())
        return out


def _give_back(lent: dict[int, Any], returned: collections.deque[int], number: int, _ref: object) -> None:
    lent.pop(number, None)
    returned.append(number)


class SharedPickle:
    """An object pickled once for many workers, with its large arrays in shared memory.

    Workers map those arrays copy-on-write, so that memory is used once and not per worker, and a worker that writes
    to them changes nothing for the others.

    Args:
        obj: What to send. Classes and functions of the notebook go along by value (cloudpickle).
    """

    def __init__(self, obj: Any) -> None:
        buffers: list[memoryview] = []

        def keep_out(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < SHARE_BUFFERS_FROM:
                return True  # stays in the pickle
            buffers.append(raw)
            return False

        self.data: bytes = dump(obj, keep_out)
        self.spans: list[tuple[int, int]] = []
        self.identity = (self.data, [_Origin(b) for b in buffers])
        """Equal for two pickles of an object that was not changed in between (in-place writes to arrays aside)."""
        self._buffers = buffers
        self._fd: int | None = None

    def fd(self) -> int | None:
        """The descriptor of the shared arrays, made at first use; None when there are none."""
        if self._fd is None and self._buffers:
            offset = 0
            for raw in self._buffers:
                self.spans.append((offset, raw.nbytes))
                offset += -(-raw.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            self._fd = anonymous_file(offset)
            with mmap.mmap(self._fd, offset) as memory:
                for raw, (start, nbytes) in zip(self._buffers, self.spans, strict=True):
                    memory[start : start + nbytes] = raw
            self._buffers = []
            weakref.finalize(self, os.close, self._fd)
        return self._fd


class _Origin:
    """Which memory a buffer was: equal for the same memory of the same object, while that object lives."""

    def __init__(self, buffer: memoryview) -> None:
        array: Any = np.asarray(buffer)
        self._span = array.ctypes.data, buffer.nbytes
        owner: Any = buffer.obj
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        try:
            self._owner: Any = weakref.ref(owner)
        except TypeError:  # bytes and the like
            self._owner = lambda: owner

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Origin):
            return NotImplemented
        owner = self._owner()
        return self._span == other._span and owner is not None and owner is other._owner()

    __hash__ = None  # type: ignore[assignment]


def load_shared(data: bytes, spans: list[tuple[int, int]], fd: int | None) -> Any:
    """Rebuild, in a worker, what `SharedPickle` sent; takes the descriptor."""
    if fd is None:
        return pickle.loads(data)
    try:
        memory = mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    view = memoryview(memory)
    return pickle.loads(data, buffers=[view[start : start + nbytes] for start, nbytes in spans])
