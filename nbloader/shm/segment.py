"""Shared memory: segments into which one process writes a batch and from which another reads it without a copy.

A segment belongs to the worker that created it. It is lent to the notebook's process together with a batch, and is
returned when the last array or tensor that views it is garbage-collected. So a consumer that keeps batches costs
memory, never correctness. If the notebook's process was forked in the meantime, the child process may view the segment
for any length of time; such a segment is not written again.

    worker:   SegmentWriter.begin() -> write -> send the number    (abort() if writing failed)
    notebook: SegmentReader.view() -> lend() -> arrays on the view -> it is collected -> number back with the next task

A batch that arrives inside its message is copied to a slab, which holds several small batches (`SegmentReader.store`).
So are small arrays of large batches when they are delivered, so that a kept label does not keep the images' segment.

Segments are memfds: they are not limited by the size of /dev/shm, and nothing is left behind, however a process ends.
Their memory is allocated when they are created, after a check of the available memory. So exhausted memory raises an
error here and does not cause a SIGBUS later. Reuse makes segments fast: fresh pages are written at a third of the speed
of used ones, so the most recently used segment is taken first. Segments that were not needed for a while are returned
to the system.
"""

from __future__ import annotations

import collections
import functools
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from nbloader._platform import allocate, available_memory, mapped, new_file, when_forked
from nbloader._platform.descriptors import close_all

ALIGN = 64
"""Alignment of arrays within a segment, in bytes: a cache line, and sufficient for any vector instruction."""

INLINE_LIMIT = 16 * 1024
"""Batches smaller than this (in bytes) are sent inside their message: one copy is cheaper than managing a segment."""

SLAB_SIZE = 4 * INLINE_LIMIT
"""Size of a slab in bytes. A slab holds small batches, and is released when nobody views any of them."""

NO_SEGMENT = -1
"""Takes the place of a segment's number if the memory is a buffer of this process."""

MAX_LENT = 1024
"""Maximum number of segments of one worker that are lent at a time. Further batches are copied out instead, because the
kernel limits the number of mappings (65,530)."""

CHECK_FROM = 1 << 20
"""Memory files of at least this size, in bytes, are created only if that much memory is available. When memory is
exhausted, allocating a memfd does not fail: the kernel kills processes instead."""

KEEP = 5.0
"""Time, in seconds, for which an unused segment is kept while others are used. While a batch is late, workers fill the
prefetch window, and without a limit their segments would stay until the workers end. But the time must not be too
short, since fresh pages are slow: creating a segment delays a batch."""


def aligned(nbytes: int) -> int:
    """Round up to a multiple of `ALIGN`."""
    return -(-nbytes // ALIGN) * ALIGN


def segment_size(nbytes: int) -> int:
    """Return the size of the segment for a batch of `nbytes`.

    The size is rounded up by at most 1/16, or to a whole page, so that similar batches can reuse the segment.
    """
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 5))
    return max(1, -(-nbytes // step)) * step


def anonymous_file(size: int, opened: list[int] | None = None) -> int:
    """Create a memory file that no other user can open and that is deleted when its last descriptor is closed.

    Args:
        size: Size of the file in bytes.
        opened: Receives the descriptor, so that an interrupt does not lose it.

    Returns:
        The descriptor of the file, which has `size` bytes allocated.

    Raises:
        MemoryError: The machine (or the container) does not have that much memory left.
        OSError: There are too many open files.
    """
    check_memory(size)
    file: list[int] = []
    try:
        new_file(file)
        try:
            allocate(file[0], size)
        except OSError as error:
            raise no_memory(size, error.strerror or "unknown reason") from error
    except BaseException:  # includes interrupts
        close_all(file)
        raise
    if opened is not None:
        opened += file
    return file[0]


def check_memory(size: int) -> None:
    """Check that a memory file of `size` bytes can be filled.

    Raises:
        MemoryError: The machine (or the container) does not have that much memory left.
    """
    if size >= CHECK_FROM:
        left = available_memory()
        if left is not None and size > left:
            raise no_memory(size, f"{left / 1e6:,.0f} MB are left")


def no_memory(size: int, why: str) -> MemoryError:
    """Return the error for a memory file of `size` bytes that cannot be created."""
    return MemoryError(
        f"{size / 1e6:,.1f} MB of shared memory could not be allocated ({why}). Use a smaller batch_size, fewer "
        "workers or a smaller prefetch_factor, or give the machine more memory."
    )


class _Free(NamedTuple):
    """A free segment."""

    number: int
    size: int
    since: float
    """When it became free, in seconds."""


class FreeSegments:
    """Free segments; the most recently used segment of a size is taken first."""

    def __init__(self) -> None:
        self._free: list[_Free] = []  # the most recently used last

    def put(self, number: int, size: int, now: float) -> None:
        """Add a free segment of `size` bytes at the time `now`, in seconds of any clock."""
        self._free.append(_Free(number, size, now))

    def take(self, size: int) -> int | None:
        """Take a segment of at least `size` bytes and at most twice that; None if there is none."""
        fitting = [free for free in reversed(self._free) if size <= free.size <= 2 * size]
        if not fitting:
            return None
        taken = min(fitting, key=attrgetter("size"))
        self._free.remove(taken)
        return taken.number

    def unused(self, now: float) -> list[int]:
        """Remove and return the segments that were not needed for `KEEP` seconds."""
        return self._take_first(sum(free.since <= now - KEEP for free in self._free))

    def all_but_one(self) -> list[int]:
        """Remove and return all segments but the most recently used one."""
        return self._take_first(len(self._free) - 1)

    def _take_first(self, count: int) -> list[int]:
        taken, self._free = self._free[: max(0, count)], self._free[max(0, count) :]
        return [free.number for free in taken]


class Block(NamedTuple):
    """Memory for one batch."""

    number: int
    """Number of the segment, or `NO_SEGMENT`."""
    memory: Any
    """A writable buffer."""


class SegmentWriter:
    """The segments of one worker.

    Args:
        announce: Notifies the reader of a new segment, given its number and its descriptor.
        retire: Notifies the reader that segments are no longer used, given their numbers.
    """

    def __init__(self, announce: Callable[[int, int], object], retire: Callable[[list[int]], object]) -> None:
        self._announce = announce
        self._retire = retire
        self._free = FreeSegments()
        self._maps: dict[int, Any] = {}
        self._created = 0

    def begin(self, nbytes: int) -> Block:
        """Provide memory for a batch. A small batch gets a buffer that is sent in its message.

        Args:
            nbytes: Size of the batch in bytes.

        Raises:
            MemoryError: Not enough memory is left.
            OSError: The memory cannot be mapped.
        """
        if nbytes < INLINE_LIMIT:
            return Block(NO_SEGMENT, bytearray(nbytes))
        size = segment_size(nbytes)
        number = self._free.take(size)
        if number is None:
            number = self._create(size)
        memory = self._maps[number]
        self.discard(self._free.unused(time.monotonic()))
        return Block(number, memory)

    def abort(self, block: Block) -> None:
        """Give up a block whose batch was not written; nobody will read it."""
        if block.number != NO_SEGMENT:
            self.give_back([block.number])

    def give_back(self, numbers: Iterable[int]) -> None:
        """Reuse these segments: nobody views them any more."""
        for number in numbers:
            self._free.put(number, len(self._maps[number]), time.monotonic())

    def discard(self, numbers: list[int]) -> None:
        """Drop segments, for example those that must not be written again: see `SegmentReader.inherited`."""
        for number in numbers:
            del self._maps[number]
        if numbers:
            self._retire(numbers)

    def rest(self) -> None:
        """Keep only one segment, for the first batch of the next epoch. Called when idle."""
        self.discard(self._free.all_but_one())

    def _create(self, size: int) -> int:
        fd = anonymous_file(size)
        try:
            try:
                memory = mapped(fd, size)
            except OSError as error:
                raise no_memory(size, str(error)) from error
            number, self._created = self._created, self._created + 1
            self._announce(number, fd)
        finally:
            os.close(fd)
        self._maps[number] = memory
        return number


class _Forks:
    """A counter that changes whenever this process forks, before and after the fork."""

    def __init__(self) -> None:
        self.count = 0
        # Twice: other threads run between the first call and the fork.
        when_forked(before=self._add, after_in_parent=self._add)

    def _add(self) -> None:
        self.count += 1


_forks = _Forks()


class SegmentReader:
    """The segments of one writer, as the notebook's process sees them.

    The memory is provided in two calls, so that the caller can store it in between. If it were lost to an interrupt
    after `lend`, the segment would be written again although its batch was not delivered.
    """

    def __init__(self) -> None:
        self._maps: dict[int, Any] = {}
        self._lent: dict[int, weakref.ref[Any]] = {}
        self.returned: collections.deque[int] = collections.deque()
        """Segments that nobody views: the worker may write to them again. It is notified with its next task."""
        self.inherited: collections.deque[int] = collections.deque()
        """Segments that this process does not view any more, but that a forked copy of it may still view: they must not
        be written again. The worker is notified before its next task."""
        self._storing = threading.RLock()
        """Batches arrive while another thread delivers one. Reentrant, for signal handlers."""
        self._slab = memoryview(bytearray())
        """What is left of the current slab: small batches are stored in it one after the other."""

    def add(self, number: int, fd: int) -> None:
        """Map a new segment. The caller may close the descriptor then."""
        self._maps[number] = mapped(fd, os.fstat(fd).st_size)

    def forget(self, number: int) -> None:
        """Drop a segment that is no longer used. It is unmapped when nobody views it any more."""
        del self._maps[number]

    def store(self, batch: memoryview) -> Any:
        """Copy a batch that has arrived inside a message, or a small array of a large batch. Thread-safe.

        Returns:
            A buffer of the same size: in shared memory, unless that is exhausted or the batch is larger than a slab.
        """
        size = aligned(batch.nbytes)
        with self._storing:
            if size > self._slab.nbytes and (size > SLAB_SIZE or not self._begin_slab()):
                return bytearray(batch)
            memory, self._slab = self._slab[: batch.nbytes], self._slab[size:]
        memory[:] = batch
        return memory

    def _begin_slab(self) -> bool:
        """Continue with another slab. Returns False if the system provides none."""
        file: list[int] = []
        try:
            self._slab = memoryview(mapped(anonymous_file(SLAB_SIZE, file), SLAB_SIZE)).cast("B")
        except (MemoryError, OSError):
            return False
        finally:
            close_all(file)
        return True

    def view(self, number: int, nbytes: int) -> Any:
        """Provide the memory of a batch, to build arrays on.

        Args:
            number: Number of the segment.
            nbytes: Size of the batch in bytes.

        Returns:
            A buffer of at least `nbytes` bytes: a ctypes array on the segment, or a private copy if so many segments
            are already lent that the kernel's limit on mappings is near.
        """
        memory = self._maps[number]
        if len(self._lent) >= MAX_LENT:
            return bytearray(memoryview(memory)[:nbytes])
        # The object of the weak reference must be the one that NumPy keeps as the arrays' base. NumPy looks through a
        # memoryview to the object below it, so a reference to a memoryview would die while arrays use the memory.
        return type(memory).from_buffer(memory)

    def lend(self, number: int, memory: Any) -> None:
        """Return the segment when nobody views its memory any more; immediately if that is a private copy.

        Args:
            number: Number of the segment.
            memory: What `view` has returned for the segment.
        """
        if type(memory) is bytearray:
            self.returned.append(number)
            return
        self._lent[number] = weakref.ref(
            memory, functools.partial(_return, self._lent, self.returned, self.inherited, number, _forks.count)
        )

    def mapping(self, number: int) -> Any:
        """Return the whole segment as a ctypes array; it stays mapped while this or anything built on it lives."""
        return self._maps[number]

    def discard(self, number: int) -> None:
        """Return a segment whose batch is not needed."""
        self.returned.append(number)

    def take_returned(self) -> list[int]:
        """Remove and return all numbers in `returned`. Safe while another thread drops arrays."""
        return _taken(self.returned)

    def take_inherited(self) -> list[int]:
        """Remove and return all numbers in `inherited`. Safe while another thread drops arrays."""
        return _taken(self.inherited)


def _taken(numbers: collections.deque[int]) -> list[int]:
    out = []
    while numbers:
        out.append(numbers.popleft())
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
