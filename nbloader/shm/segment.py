"""Shared memory: segments that a worker writes a batch into and the notebook's process reads without a copy.

A segment belongs to the worker that made it. It is lent to the notebook's process with a batch, and goes back when
the last array or tensor that views it dies: a consumer that keeps batches costs memory, never correctness.

    worker: SegmentPool.take() -> write -> send its number
    notebook: SegmentMaps.lend() -> arrays on the owner -> the owner dies -> number back with the next task

Segments are memfds: not limited by the size of /dev/shm, and nothing is left behind however a process dies. They are
allocated when they are made, after a look at how much memory is left, so that its end is an error here and not a
SIGBUS later. Reuse is what makes them fast: fresh pages are written at a third of the speed of used ones, so the most
recently used segment goes first. Those that nothing needed for a while are given back to the system.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import time
import weakref
from pathlib import Path
from typing import Any

from nbloader._util.system import available_memory, cores

ALIGN = 64
"""Arrays begin at multiples of this within a segment, bytes: a cache line, and enough for any vector instruction."""

INLINE_LIMIT = 16 * 1024
"""A batch smaller than this travels with its message, bytes: one copy of it is cheaper than a segment's bookkeeping."""

MAX_LENT = 1024
"""Segments lent at once by one worker before batches are copied out instead: the kernel bounds mappings (65,530)."""

ASK_FROM = 1 << 20
"""Files in memory from this size on are made only when the system says that there is room, bytes: the allocation of a
memfd does not fail when memory ends, it lets the kernel kill processes."""

KEEP = 5.0
"""Seconds that a segment which nothing needs is kept at least, and twice as long at most, while others are used. The
window grows by up to 16 batches a worker while one is late, and what that took would stay until the workers end. But
fresh pages are slow, and while a segment is made anew a batch is late, for which the window grows again."""

WRITE_SIZE = 16 << 20
"""Bytes of an array that are written to a file in memory with one system call."""
WRITERS = 4
"""Threads at most that do so."""


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
    fd = _new_file(size)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
    except OSError as error:
        os.close(fd)
        raise _no_memory(size, error.strerror or "unknown reason") from error
    return fd


def filled_file(size: int, pieces: list[tuple[int, memoryview]]) -> int:
    """A file in memory that is written now, and by nobody later.

    The pages of 1 GB are written in 0.7 s; to have them allocated first and write to a mapping of them takes 0.95 s.

    Args:
        size: Bytes.
        pieces: What to write where.

    Returns:
        Its descriptor.

    Raises:
        MemoryError: The machine (or the container) has not that much memory left.
    """
    from concurrent.futures import ThreadPoolExecutor  # workers do without

    fd = _new_file(size)
    parts = [
        (start + begin, piece[begin : begin + WRITE_SIZE])
        for start, piece in pieces
        for begin in range(0, piece.nbytes, WRITE_SIZE)
    ]
    try:
        os.ftruncate(fd, size)
        with ThreadPoolExecutor(min(WRITERS, cores())) as writers:
            for _done in writers.map(functools.partial(_write, fd), parts):
                pass
    except OSError as error:
        os.close(fd)
        raise _no_memory(size, error.strerror or "unknown reason") from error
    except BaseException:
        os.close(fd)
        raise
    if hasattr(fcntl, "F_ADD_SEALS"):
        with contextlib.suppress(OSError):  # a file that is no memfd
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    return fd


def _write(fd: int, part: tuple[int, memoryview]) -> None:
    position, data = part
    while data.nbytes:
        written = os.pwrite(fd, data, position)
        position, data = position + written, data[written:]


def _new_file(size: int) -> int:
    if size >= ASK_FROM:
        left = available_memory()
        if left is not None and size > left:
            raise _no_memory(size, f"{left / 1e6:,.0f} MB are left")
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nbloader", os.MFD_CLOEXEC | getattr(os, "MFD_ALLOW_SEALING", 0))
    import tempfile  # macOS: an unlinked file

    fd, path = tempfile.mkstemp(prefix="nbloader-")
    Path(path).unlink()
    return fd


def _no_memory(size: int, why: str) -> MemoryError:
    return MemoryError(
        f"{size / 1e6:,.1f} MB of shared memory were asked for and are not there ({why}). Use a smaller batch_size, "
        "fewer workers or a smaller prefetch_factor, or give the machine more memory."
    )


def mapped(fd: int, size: int, *, private: bool = False) -> Any:
    """Map a file into memory, writable, and keep no descriptor of it.

    `mmap.mmap` keeps a duplicate of the descriptor (until Python 3.13 can be told not to), and a consumer that keeps
    batches would soon have too many open files. And it unmaps before it tells weak references that it dies, while
    memory that was pinned must be unpinned first.

    Args:
        fd: Its descriptor.
        size: Bytes.
        private: Whether what is written stays here, in pages of one's own, and does not go to the file.

    Returns:
        A ctypes array of `size` bytes; what is built on it keeps it mapped.

    Raises:
        OSError: The system's bound on mappings is reached.
    """
    kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, fd, 0)
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


class FreeSegments:
    """Segments that may be written to now, the most recently used of a size first. Pure.

    Since the last one that came is the first to go, those that were in excess all the time since the last look are at
    the other end, and as many as the fewest that were free meanwhile.

    Args:
        now: Seconds, of any clock.
    """

    def __init__(self, now: float) -> None:
        self._free: dict[int, list[int]] = {}  # by size, the most recently used last
        self._fewest: dict[int, int] = {}  # that were free since the last look, by size
        self._look = now + KEEP

    def put(self, number: int, size: int) -> None:
        """This one, of `size` bytes, is not used at present."""
        self._free.setdefault(size, []).append(number)
        self._fewest.setdefault(size, 0)

    def take(self, size: int) -> int | None:
        """One of at least `size` bytes and at most twice that; None where there is none."""
        fitting = [other for other, free in self._free.items() if free and size <= other <= 2 * size]
        if not fitting:
            return None
        best = min(fitting)
        free = self._free[best]
        number = free.pop()
        self._fewest[best] = min(self._fewest[best], len(free))
        return number

    def unused(self, now: float) -> list[int]:
        """Take out those that nothing needed for `KEEP` seconds. It looks no more often than that."""
        if now < self._look:
            return []
        self._look = now + KEEP
        out: list[int] = []
        for size, free in list(self._free.items()):
            fewest = self._fewest[size]
            out += free[:fewest]
            del free[:fewest]
            self._fewest[size] = len(free)
            if fewest and not free:
                del self._free[size], self._fewest[size]
        return out

    def all_but(self, kept: int) -> list[int]:
        """Take out all but so many of each size."""
        out: list[int] = []
        for size, free in self._free.items():
            excess = max(0, len(free) - kept)
            out += free[:excess]
            del free[:excess]
            self._fewest[size] = min(self._fewest[size], len(free))
        return out


class SegmentPool:
    """A worker's segments."""

    def __init__(self) -> None:
        self._free = FreeSegments(time.monotonic())
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
        free = self._free.take(size)
        if free is not None:
            return free, self._maps[free], None
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
            self._free.put(number, self._sizes[number])

    def drop_unused(self) -> list[int]:
        """Give those back to the system that nothing needed for a while.

        Returns:
            Their numbers: the notebook's process must forget them too. They are not used again.
        """
        return self._drop(self._free.unused(time.monotonic()))

    def rest(self) -> list[int]:
        """Nothing is to do for now: keep one of each size, for the next epoch's first batch.

        Returns:
            As `drop_unused`.
        """
        return self._drop(self._free.all_but(1))

    def _drop(self, numbers: list[int]) -> list[int]:
        for number in numbers:
            del self._maps[number], self._sizes[number]
        return numbers


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

    def forget(self, number: int) -> None:
        """This segment is not used any more; it is unmapped when nobody views it."""
        del self._maps[number]

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
