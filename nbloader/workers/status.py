"""What a worker is doing now: published by the worker without a message, so that it can be read while it hangs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from enum import IntEnum
from operator import length_hint
from typing import Any, Protocol


class WorkerState(IntEnum):
    """The state of a worker."""

    STARTING = 0
    IDLE = 1
    FETCHING = 2
    COLLATING = 3
    SENDING = 4


PRODUCING = (WorkerState.FETCHING, WorkerState.COLLATING)


class WorkerAbandonedError(Exception):
    """The worker was abandoned: its batch is discarded, and it ends. Raised in a worker thread between two samples.

    Its argument is the status of the worker: see `is_abandoned`.
    """


def is_abandoned(error: Exception, status: WorkerStatus) -> bool:
    """Whether an exception says that this worker was abandoned. The user's code could raise one of the same type."""
    return isinstance(error, WorkerAbandonedError) and bool(error.args) and error.args[0] is status


class WorkerStatus(Protocol):
    """The fields that a worker writes. All are integers; readers may see one field updated before another."""

    state: int
    """A `WorkerState`."""
    run: int
    """Number of the iteration that the batch belongs to."""
    number: int
    """Number of the batch, or of the chunk; -1 for none."""
    since: int
    """When `state` began, `time.perf_counter_ns()`."""
    pid: int
    """Process id; 0 until the process has started."""

    position: int
    """Position in the batch of the sample that is being fetched; -1 if the whole batch is fetched at once."""


class SharedStatus(ctypes.Structure):
    """The status of a worker process, in memory that it shares with the notebook's process."""

    _fields_ = (
        ("state", ctypes.c_int64),
        ("run", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("since", ctypes.c_int64),
        ("position", ctypes.c_int64),
        ("pid", ctypes.c_int64),
        ("computing", ctypes.c_int64),
        ("waiting", ctypes.c_int64),
    )

    state: int
    run: int
    number: int
    since: int
    position: int
    pid: int
    computing: int
    """Samples of its stack that were requested while it computed; the notebook's process writes this and the next."""
    waiting: int
    """Samples that were requested while it waited."""

    @classmethod
    def at(cls, memory: Any) -> SharedStatus:
        """The status that lies at the beginning of a writable buffer, which this keeps alive."""
        return cls.from_buffer(memory)


SHARED_STATUS_SIZE = ctypes.sizeof(SharedStatus)
"""Bytes."""


class LocalStatus:
    """The status of a worker in the notebook's own process.

    A thread cannot be killed. `abandon()` makes it stop before its next sample instead.
    """

    __slots__ = ("_left", "_position", "_size", "abandoned", "number", "pid", "run", "since", "state")

    def __init__(self, pid: int, state: int = WorkerState.STARTING) -> None:
        self.state = state
        self.run = 0
        self.number = -1
        self.since = 0
        self.pid = pid
        self.abandoned = False
        self._left: Iterator[Any] | None = None
        self._size = 0
        self._position = -1

    @property
    def position(self) -> int:
        """See `WorkerStatus`. It follows from how many keys are left, so a sample costs nothing to count."""
        left = self._left
        return self._position if left is None else self._size - length_hint(left) - 1

    @position.setter
    def position(self, value: int) -> None:
        self._left, self._position = None, value

    def fetching(self, keys: list[Any] | range) -> Iterator[Any]:
        """Iterate over the keys of a batch; `position` follows. When the worker is abandoned, no key is left.

        Raises:
            WorkerAbandonedError: It was abandoned before.
        """
        self._size = len(keys)
        self._left = left = iter(keys)
        if self.abandoned:
            raise WorkerAbandonedError(self)
        return left

    def check(self) -> None:
        """Raise `WorkerAbandonedError` if it was abandoned."""
        if self.abandoned:
            raise WorkerAbandonedError(self)

    def abandon(self) -> None:
        """Have the worker stop before its next sample. May be called from any thread."""
        self.abandoned = True
        for _key in self._left or ():
            pass
