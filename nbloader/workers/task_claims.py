"""Which side a queued task belongs to: the worker that begins it, or the pool that takes it back. Never to both.

A worker process may be inside a sample for minutes, so the pool cannot wait for its reply when an idle worker could do
the tasks that are queued behind it. Both sides therefore share a page of memory. Tasks are numbered in the order in
which they are sent. Before the worker begins a task it claims its number; the pool revokes only numbers that were not
claimed. A record lock of the file behind the page makes each of the two atomic. The system releases the lock if its
owner dies.

The lock costs two system calls, which tiny batches would notice. A worker therefore claims as many tasks at once as
take it less than the time for which stealing is worthwhile. If one of them turns out to be slow, those behind it stay
with its worker. The consumer waits for the slow one first in any case, unless batches are delivered out of order: then
tasks are claimed one by one.
"""

from __future__ import annotations

import ctypes
import fcntl
import time
from collections.abc import Sequence
from typing import Any

_clock = time.perf_counter_ns

RING_SIZE = 4096
"""Places for marks of revoked tasks."""
BLOCK_NS = 1_000_000
"""Work that a worker claims at once, ns; one task at least."""
MAX_BLOCK = 16
"""Tasks that it claims at once, at most."""
REVOCABLE = RING_SIZE - MAX_BLOCK
"""Tasks behind the last claimed one that can be revoked. The worker has yet to look at the marks of those that it has
claimed."""


class ClaimsPage(ctypes.Structure):
    """What both sides see."""

    _fields_ = (("claimed", ctypes.c_int64), ("singly", ctypes.c_int64), ("revoked", ctypes.c_uint8 * RING_SIZE))

    claimed: int
    """The highest number that the worker has claimed. Numbers begin with 1."""
    singly: int
    """Whether it claims a task only when it begins it, though others are not completed."""
    revoked: Any
    """Whether a number is revoked, by the number modulo the size."""


CLAIMS_SIZE = ctypes.sizeof(ClaimsPage)
"""Bytes."""


class TaskClaims:
    """The worker's side.

    Args:
        memory: Writable buffer that both sides map, zero at first. This object keeps it alive.
        offset: Where in it the `CLAIMS_SIZE` bytes of the page begin.
        fd: The file of that memory, open as long as this object is used. Record locks belong to a process and end when
            it closes any descriptor of the file.
        max_block: Tasks to claim at once, at most `MAX_BLOCK`.
    """

    def __init__(self, memory: Any, offset: int, fd: int, max_block: int = MAX_BLOCK) -> None:
        self._page = ClaimsPage.from_buffer(memory, offset)
        self._max_block = max_block
        self._revoked = memoryview(self._page.revoked).cast("B")
        self._fd = fd
        self.unrevoked = 0
        """Numbers up to this one are claimed, and those that `claim` has not been called for are not revoked: there is
        no need to call it."""
        self._claimed = 0
        self._block = 1
        self._block_began = _clock()

    def claim_one_by_one(self) -> None:
        """Claim no more than the task that is begun: the worker begins others before it has completed this one.

        The pool then sees which tasks are begun.
        """
        self._max_block = self._page.singly = 1

    def claim(self, number: int) -> bool:
        """Claim a task. Numbers must be claimed in ascending order, without gaps.

        Returns:
            False if the task was revoked: another worker produces it.
        """
        if number > self._claimed:
            self._claim_block(number)
        position = number % RING_SIZE
        if not self._revoked[position]:
            return True
        self._revoked[position] = 0
        return False

    def _claim_block(self, number: int) -> None:
        now = _clock()
        per_task = (now - self._block_began) // self._block  # idle time makes the next block smaller, which is safe
        self._block = max(1, min(self._max_block, BLOCK_NS // max(1, per_task)))
        self._block_began = now
        self._claimed = number + self._block - 1
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
        except OSError:  # no record locks here: then the pool cannot revoke either
            return
        try:
            self._page.claimed = self._claimed
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)
        first, end = number % RING_SIZE, number % RING_SIZE + self._block
        if end <= RING_SIZE and 1 not in self._revoked[first:end].tobytes():
            self.unrevoked = self._claimed


class TaskRevoker:
    """The pool's side.

    Args:
        memory: See `TaskClaims`.
        offset: See `TaskClaims`.
        fd: See `TaskClaims`.
    """

    def __init__(self, memory: Any, offset: int, fd: int) -> None:
        self._page = ClaimsPage.from_buffer(memory, offset)
        self._fd = fd
        self.next_number = 1
        """Of the task that is sent next."""

    @property
    def begun(self) -> int | None:
        """The highest number that a worker has begun which processes several tasks at a time; None for other ones."""
        return self._page.claimed if self._page.singly else None

    def revoke(self, numbers: Sequence[int]) -> set[int]:
        """Revoke tasks that the worker has not claimed. Never waits.

        Returns:
            Those that the worker will not begin.
        """
        page = self._page
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:  # the worker claims tasks at this very moment, or there are no record locks
            return set()
        try:
            claimed = page.claimed
            revoked = {number for number in numbers if claimed < number <= claimed + REVOCABLE}
            for number in revoked:
                page.revoked[number % RING_SIZE] = 1
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)
        return revoked
