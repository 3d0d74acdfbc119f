"""Shared memory: segments that one process writes a batch into and another reads without a copy.

A segment belongs to the worker that created it. It is lent to the notebook's process with a batch, and goes back when
the last array or tensor that views it is collected: a consumer that keeps batches costs memory, never correctness. If
the notebook's process was forked meanwhile, the child may view it as long as it likes: then it is not written again.

    worker:   SegmentWriter.begin() -> write -> commit() -> send the number    (abort() where writing failed)
    notebook: SegmentReader.lend() -> arrays on the owner -> the owner is collected -> number back with the next task

A batch that arrives in its message is copied to a slab, where it lies beside others (`SegmentReader.store`).

`BlockWriter` and `BlockReader` are the protocol of both ends. arena.py has the other writer: segments that several
workers write at the same time.

Segments are memfds: not limited by the size of /dev/shm, and nothing is left behind however a process ends. They are
allocated when they are created, after a check of the memory that is left, so that exhausted memory is an error here and
not a SIGBUS later. Reuse is what makes them fast: fresh pages are written at a third of the speed of used ones, so the
most recently used segment is taken first. Those that were not needed for a while are returned to the system.
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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from nbloader._util.system import available_memory, cores

ALIGN = 64
"""Arrays begin at multiples of this within a segment, bytes: a cache line, and enough for any vector instruction."""

INLINE_LIMIT = 16 * 1024
"""A batch smaller than this is sent in its message, bytes: one copy of it is cheaper than a segment's bookkeeping."""

SLAB_SIZE = 4 * INLINE_LIMIT
"""Memory for small batches: it is free again when nobody views any of them, bytes."""
_SLAB = ctypes.c_char * SLAB_SIZE
_NO_SLAB = memoryview(bytearray())
FREE_SLABS = 8
"""Slabs of one worker that are kept to be used again."""

NO_SEGMENT = -1
"""In place of a segment's number: the memory is a buffer of this process."""

MAX_LENT = 1024
"""Segments lent at once by one worker before batches are copied out instead: the kernel bounds mappings (65,530)."""

CHECK_FROM = 1 << 20
"""Memory files from this size on are created only if that much memory is available, bytes: the allocation of a memfd
does not fail when memory is exhausted, the kernel kills processes instead."""

KEEP = 5.0
"""Seconds for which an unused segment is kept at least, and twice that at most, while others are used. The prefetch
window grows by up to 16 batches per worker while a batch is late, and their segments would stay until the workers end.
But fresh pages are slow: while a segment is created a batch is late, for which the window would grow again."""

WRITE_SIZE = 16 << 20
"""Bytes of an array that are written to a memory file with one system call."""
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
    """A memory file that no other user can open and that is deleted with its last descriptor.

    Returns:
        Its descriptor, with `size` bytes allocated.

    Raises:
        MemoryError: The machine (or the container) does not have that much memory left.
    """
    check_memory(size)
    fd = new_file()
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
    except OSError as error:
        os.close(fd)
        raise no_memory(size, error.strerror or "unknown reason") from error
    return fd


def filled_file(size: int, pieces: list[tuple[int, memoryview]]) -> int:
    """A memory file that is written now and sealed against later writes.

    Writing 1 GB takes 0.7 s; allocating it first and writing to a mapping takes 0.95 s.

    Args:
        size: Bytes.
        pieces: What to write where.

    Returns:
        Its descriptor.

    Raises:
        MemoryError: The machine (or the container) does not have that much memory left.
    """
    from concurrent.futures import ThreadPoolExecutor  # workers do without

    check_memory(size)
    fd = new_file()
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
        raise no_memory(size, error.strerror or "unknown reason") from error
    except BaseException:
        os.close(fd)
        raise
    seal(fd)
    return fd


def seal(fd: int) -> None:
    """Refuse later writes to a memory file, by any process."""
    if hasattr(fcntl, "F_ADD_SEALS"):
        with contextlib.suppress(OSError):  # a file that is no memfd
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)


def _write(fd: int, part: tuple[int, memoryview]) -> None:
    position, data = part
    while data.nbytes:
        written = os.pwrite(fd, data, position)
        position, data = position + written, data[written:]


def check_memory(size: int) -> None:
    """Check that a memory file of `size` bytes can be filled.

    Raises:
        MemoryError: The machine (or the container) does not have that much memory left.
    """
    if size >= CHECK_FROM:
        left = available_memory()
        if left is not None and size > left:
            raise no_memory(size, f"{left / 1e6:,.0f} MB are left")


def new_file() -> int:
    """An empty memory file. Returns its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nbloader", os.MFD_CLOEXEC | getattr(os, "MFD_ALLOW_SEALING", 0))
    import tempfile  # macOS: an unlinked file

    fd, path = tempfile.mkstemp(prefix="nbloader-")
    Path(path).unlink()
    return fd


def no_memory(size: int, why: str) -> MemoryError:
    """The error for a memory file of `size` bytes that cannot be created."""
    return MemoryError(
        f"{size / 1e6:,.1f} MB of shared memory could not be allocated ({why}). Use a smaller batch_size, fewer "
        "workers or a smaller prefetch_factor, or give the machine more memory."
    )


def mapped(fd: int, size: int, *, private: bool = False) -> Any:
    """Map a file into memory, writable, without keeping a descriptor of it.

    `mmap.mmap` keeps a duplicate of the descriptor (optional only since Python 3.13), and a consumer that keeps batches
    would soon have too many open files. Also, it unmaps before callbacks of weak references run, but pinned memory must
    be unpinned first.

    Args:
        fd: Its descriptor.
        size: Bytes.
        private: Whether to map copy-on-write: what is written stays in this process.

    Returns:
        A ctypes array of `size` bytes; whatever is built on it keeps it mapped.

    Raises:
        OSError: The system's limit on mappings is reached.
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
    """Segments that are free, the most recently used of each size first. Without I/O.

    The last one that was put back is the first to be taken. So the segments that were never needed since the last check
    are at the other end, and their number is the smallest number of free segments since then.

    Args:
        now: Seconds, of any clock.
    """

    def __init__(self, now: float) -> None:
        self._free: dict[int, list[int]] = {}  # by size, the most recently used last
        self._fewest: dict[int, int] = {}  # smallest number of free ones since the last check, by size
        self._next_check = now + KEEP

    def put(self, number: int, size: int) -> None:
        """A segment of `size` bytes is free."""
        self._free.setdefault(size, []).append(number)
        self._fewest.setdefault(size, 0)

    def take(self, size: int) -> int | None:
        """A segment of at least `size` bytes and at most twice that; None where there is none."""
        fitting = [other for other, free in self._free.items() if free and size <= other <= 2 * size]
        if not fitting:
            return None
        best = min(fitting)
        free = self._free[best]
        number = free.pop()
        self._fewest[best] = min(self._fewest[best], len(free))
        return number

    def unused(self, now: float) -> list[int]:
        """Take out those that were not needed for `KEEP` seconds. It checks no more often than that."""
        if now < self._next_check:
            return []
        self._next_check = now + KEEP
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
        """Take out all but `kept` of each size."""
        out: list[int] = []
        for size, free in self._free.items():
            excess = max(0, len(free) - kept)
            out += free[:excess]
            del free[:excess]
            self._fewest[size] = min(self._fewest[size], len(free))
        return out


class Block(NamedTuple):
    """Memory for one batch."""

    number: int
    """Number of the segment, or `NO_SEGMENT`."""
    memory: Any
    """A writable buffer."""


class BlockWriter(Protocol):
    """The end that writes batches."""

    def begin(self, nbytes: int) -> Block:
        """Memory for a batch.

        Args:
            nbytes: Its size.

        Raises:
            MemoryError: There is not that much memory left.
            OSError: It cannot be mapped.
        """

    def commit(self, block: Block) -> None:
        """The batch is written: the reader may read it. The block is used again when the reader returns it."""

    def abort(self, block: Block) -> None:
        """The batch is not written, and nobody will read it."""


class BlockReader(Protocol):
    """The end that reads batches."""

    def lend(self, number: int, nbytes: int) -> Any:
        """The memory of a batch; the segment is returned when nobody views it any more.

        Args:
            number: Of the segment.
            nbytes: Size of the batch.
        """

    def discard(self, number: int) -> None:
        """The batch in this segment is not wanted: return the segment."""


class SegmentWriter:
    """A worker's segments.

    Args:
        announce: Notifies the reader of a new segment: (number, descriptor). Called before the segment's first batch.
        retire: Notifies the reader that these segments are no longer used: (numbers).
    """

    def __init__(self, announce: Callable[[int, int], object], retire: Callable[[list[int]], object]) -> None:
        self._announce = announce
        self._retire = retire
        self._free = FreeSegments(time.monotonic())
        self._sizes: dict[int, int] = {}
        self._maps: dict[int, Any] = {}
        self._unannounced: dict[int, int] = {}  # descriptors of segments that were not committed yet
        self._created = 0

    def begin(self, nbytes: int) -> Block:
        """See `BlockWriter`. A small batch gets a buffer that is sent in its message."""
        if nbytes < INLINE_LIMIT:
            return Block(NO_SEGMENT, bytearray(nbytes))
        size = segment_size(nbytes)
        number = self._free.take(size)
        if number is None:
            number = self._create(size)
        memory = self._maps[number]
        self._drop(self._free.unused(time.monotonic()))
        return Block(number, memory)

    def commit(self, block: Block) -> None:
        """See `BlockWriter`."""
        if self._unannounced and (fd := self._unannounced.pop(block.number, None)) is not None:
            try:
                self._announce(block.number, fd)
            finally:
                os.close(fd)

    def abort(self, block: Block) -> None:
        """See `BlockWriter`."""
        if block.number != NO_SEGMENT:
            self.give_back([block.number])

    def give_back(self, numbers: Iterable[int]) -> None:
        """Nobody views these segments any more: they are written again."""
        for number in numbers:
            self._free.put(number, self._sizes[number])

    def discard(self, numbers: list[int]) -> None:
        """These segments must not be written again: see `SegmentReader.inherited`."""
        self._drop(numbers)

    def rest(self) -> None:
        """There is nothing to do for now: keep one segment of each size, for the first batch of the next epoch."""
        self._drop(self._free.all_but(1))

    def _create(self, size: int) -> int:
        fd = anonymous_file(size)
        try:
            memory = mapped(fd, size)
        except BaseException:
            os.close(fd)
            raise
        number, self._created = self._created, self._created + 1
        self._maps[number], self._sizes[number], self._unannounced[number] = memory, size, fd
        return number

    def _drop(self, numbers: list[int]) -> None:
        known = []
        for number in numbers:
            del self._maps[number], self._sizes[number]
            fd = self._unannounced.pop(number, None)
            if fd is None:
                known.append(number)
            else:
                os.close(fd)
        if known:
            self._retire(known)


class _Forks:
    """How often this process was forked, or about to be."""

    def __init__(self) -> None:
        self.count = 0
        if hasattr(os, "register_at_fork"):  # twice: other threads run between the first one and the fork
            os.register_at_fork(before=self._add, after_in_parent=self._add)

    def _add(self) -> None:
        self.count += 1


_forks = _Forks()


class SegmentReader:
    """The notebook's view of the segments of one writer."""

    def __init__(self) -> None:
        self._maps: dict[int, tuple[Any, Any]] = {}
        self._lent: dict[int, weakref.ref[Any]] = {}
        self.returned: collections.deque[int] = collections.deque()
        """Segments without views: the worker may write them again. It is notified with its next task."""
        self.inherited: collections.deque[int] = collections.deque()
        """Segments without views in this process that a forked copy of it may still view: they must not be written
        again. The worker is notified before its next task."""
        self._slab = _NO_SLAB
        """Where small batches are stored, one behind the other."""
        self._stored = 0
        """Bytes of it that are in use, or were."""
        self._slabs: dict[int, weakref.ref[Any]] = {}
        self._free_slabs: list[Any] = []

    def add(self, number: int, fd: int) -> None:
        """Map a new segment; takes ownership of the descriptor."""
        try:
            size = os.fstat(fd).st_size
            self._maps[number] = mapped(fd, size), ctypes.c_char * size
        finally:
            os.close(fd)

    def forget(self, number: int) -> None:
        """The segment is not used any more; it is unmapped when nobody views it."""
        del self._maps[number]

    def store(self, batch: memoryview) -> Any:
        """Copy a batch that has arrived in a message.

        Returns:
            A buffer of the same size, in shared memory unless that is exhausted.
        """
        start, end = self._stored, self._stored + batch.nbytes
        if end > self._slab.nbytes:
            if batch.nbytes > SLAB_SIZE or not self._begin_slab():
                return bytearray(batch)
            start, end = 0, batch.nbytes
        self._stored = end + ALIGN - 1 & -ALIGN
        memory = self._slab[start:end]
        memory[:] = batch
        return memory

    def _begin_slab(self) -> bool:
        """Store batches in another slab. False if the system provides none."""
        self._slab = _NO_SLAB  # it may be free now
        if self._free_slabs:
            memory = self._free_slabs.pop()
        else:
            try:
                fd = anonymous_file(SLAB_SIZE)
                try:
                    memory = mapped(fd, SLAB_SIZE)
                finally:
                    os.close(fd)
            except (MemoryError, OSError):
                return False
        owner = _SLAB.from_buffer(memory)
        key = id(owner)
        free = functools.partial(_free_slab, self._slabs, self._free_slabs, key, memory, _forks.count)
        self._slabs[key] = weakref.ref(owner, free)
        self._slab = memoryview(owner).cast("B")
        self._stored = 0
        return True

    def lend(self, number: int, nbytes: int) -> Any:
        """The memory of a segment to build arrays on; when the last of them is collected the segment is returned.

        Returns:
            A buffer of at least `nbytes` bytes: a ctypes array on the segment, or a private copy if so many segments
            are lent already that the kernel's limit on mappings is near.
        """
        memory, array_type = self._maps[number]
        if len(self._lent) >= MAX_LENT:
            copy = bytearray(memoryview(memory)[:nbytes])
            self.returned.append(number)
            return copy
        # The object of the weak reference must be the one that NumPy keeps as the arrays' base. NumPy looks through a
        # memoryview to the object below it, so a reference to one would die while arrays still use the memory.
        owner = array_type.from_buffer(memory)
        self._lent[number] = weakref.ref(
            owner, functools.partial(_return, self._lent, self.returned, self.inherited, number, _forks.count)
        )
        return owner

    def mapping(self, number: int) -> Any:
        """The whole segment, a ctypes array; it stays mapped as long as this or anything built on it lives."""
        memory, _array_type = self._maps[number]
        return memory

    def discard(self, number: int) -> None:
        """The batch in this segment is not wanted."""
        self.returned.append(number)

    def take_returned(self) -> list[int]:
        """Empty `returned`. Safe while another thread drops arrays."""
        out = []
        while self.returned:
            out.append(self.returned.popleft())
        return out

    def take_inherited(self) -> list[int]:
        """Empty `inherited`. Safe while another thread drops arrays."""
        out = []
        while self.inherited:
            out.append(self.inherited.popleft())
        return out


def _return(
    lent: dict[int, Any],
    returned: collections.deque[int],
    inherited: collections.deque[int],
    number: int,
    forks: int,
    _ref: object,
) -> None:
    lent.pop(number, None)
    (returned if forks == _forks.count else inherited).append(number)


def _free_slab(slabs: dict[int, Any], free: list[Any], key: int, memory: Any, forks: int, _ref: object) -> None:
    slabs.pop(key, None)
    if forks == _forks.count and len(free) < FREE_SLABS:
        free.append(memory)
