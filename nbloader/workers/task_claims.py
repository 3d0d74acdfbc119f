"""Work stealing from worker processes: a queued task is claimed by its worker or revoked by the pool, never both.

A worker process may spend minutes on one sample. If an idle worker could process the tasks that are queued behind that
sample, the pool cannot wait for a reply from the busy worker. Both sides therefore share a page of memory. Tasks are
numbered in the order in which they are sent. Before a worker begins a task, it claims the number of the task. The pool
revokes only numbers that were not claimed. A record lock on the file behind the page makes both operations atomic. The
operating system releases the lock if its owner dies.

Taking the lock costs two system calls, which would slow down tiny batches. A worker therefore claims several tasks at
once, as long as they take less time in total than stealing would save. If one of these tasks turns out to be slow, the
claimed tasks behind it stay with its worker. The consumer waits for the slow task first in any case, unless batches are
delivered out of order. In that case tasks are claimed one by one.
"""

from __future__ import annotations

import ctypes
import fcntl
import time
from collections.abc import Sequence
from typing import Any

_clock = time.perf_counter_ns

RING_SIZE = 4096
"""Number of marks for revoked tasks."""
BLOCK_NS = 1_000_000
"""Amount of work that a worker claims at once, ns. It claims at least one task."""
MAX_BLOCK = 16
"""Maximum number of tasks that a worker claims at once."""
REVOCABLE = RING_SIZE - MAX_BLOCK
"""Number of tasks behind the last claimed one that can be revoked. The marks of claimed tasks must not be overwritten,
because the worker may not have checked them yet."""


class ClaimsPage(ctypes.Structure):
    """The page of memory that the worker and the pool share."""

    _fields_ = (("claimed", ctypes.c_int64), ("singly", ctypes.c_int64), ("revoked", ctypes.c_uint8 * RING_SIZE))

    claimed: int
    """The highest number that the worker has claimed. Numbers start at 1."""
    singly: int
    """Whether the worker claims each task individually when it begins it, even if earlier tasks are not complete."""
    revoked: Any
    """Marks of the revoked numbers, indexed by number modulo `RING_SIZE`."""


CLAIMS_SIZE = ctypes.sizeof(ClaimsPage)
"""Size of a `ClaimsPage` in bytes."""


class TaskClaims:
    """The worker's side of the page.

    Args:
        memory: Writable buffer that both sides map, initially zero. This object keeps it alive.
        offset: Offset of the page in the buffer. The page has `CLAIMS_SIZE` bytes.
        fd: Descriptor of the file behind the memory. It must stay open while this object is used. Record locks belong
            to a process and end when the process closes any descriptor of the file.
        max_block: Maximum number of tasks to claim at once, not above `MAX_BLOCK`.
    """

    def __init__(self, memory: Any, offset: int, fd: int, max_block: int = MAX_BLOCK) -> None:
        self._page = ClaimsPage.from_buffer(memory, offset)
        self._max_block = max_block
        self._revoked = memoryview(self._page.revoked).cast("B")
        self._fd = fd
        self.unrevoked = 0
        """All numbers up to this one are claimed. `claim` need not be called for those that have not been passed to it
        yet, because none of them is revoked."""
        self._claimed = 0
        self._block = 1
        self._block_began = _clock()

    def claim_one_by_one(self) -> None:
        """Claim each task only when it begins, for a worker that processes several tasks at a time.

        This way, the pool can see which tasks were begun.
        """
        self._max_block = self._page.singly = 1

    def claim(self, number: int) -> bool:
        """Claim a task. Numbers must be claimed in ascending order, without gaps.

        Returns:
            False if the task was revoked; another worker processes it then.
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
        except OSError:  # record locks are not supported here, so the pool cannot revoke tasks either
            return
        try:
            self._page.claimed = self._claimed
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)
        first, end = number % RING_SIZE, number % RING_SIZE + self._block
        if end <= RING_SIZE and 1 not in self._revoked[first:end].tobytes():
            self.unrevoked = self._claimed


class TaskRevoker:
    """The pool's side of the page.

    Args:
        memory: See `TaskClaims`.
        offset: See `TaskClaims`.
        fd: See `TaskClaims`.
    """

    def __init__(self, memory: Any, offset: int, fd: int) -> None:
        self._page = ClaimsPage.from_buffer(memory, offset)
        self._fd = fd
        self.next_number = 1
        """Number of the task that is sent next."""

    @property
    def begun(self) -> int | None:
        """The highest number that was begun, if the worker processes several tasks at a time; None otherwise."""
        return self._page.claimed if self._page.singly else None

    def revoke(self, numbers: Sequence[int]) -> set[int]:
        """Revoke tasks that the worker has not claimed. Never blocks.

        Returns:
            The numbers of the tasks that the worker will not begin.
        """
        page = self._page
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:  # the worker is claiming tasks right now, or record locks are not supported
            return set()
        try:
            claimed = page.claimed
            revoked = {number for number in numbers if claimed < number <= claimed + REVOCABLE}
            for number in revoked:
                page.revoked[number % RING_SIZE] = 1
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)
        return revoked
