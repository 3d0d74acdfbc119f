"""What a worker is doing, published without a message so that it can be read even while the worker hangs."""

from __future__ import annotations

import ctypes
from enum import IntEnum
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
    """The worker was abandoned: its batch is discarded, and it ends. Raised in a worker between two samples.

    Its argument is the status of the worker: see `is_abandoned`.
    """


def is_abandoned(error: Exception, status: WorkerStatus) -> bool:
    """Whether an exception says that this worker was abandoned. User code could raise one of the same type."""
    return isinstance(error, WorkerAbandonedError) and bool(error.args) and error.args[0] is status


class WorkerStatus(Protocol):
    """The fields that a worker writes. All are integers; readers may see one field updated before another."""

    state: int
    """A `WorkerState`."""
    epoch: int
    """Number of the epoch that the batch belongs to."""
    job: int
    """Job number of the batch or chunk; -1 if there is none."""
    since: int
    """When `state` began, `time.perf_counter_ns()`."""
    pid: int
    """Process id; 0 until the process has started."""

    position: int
    """Position in the batch of the sample that is being fetched; -1 if the whole batch is fetched at once."""

    @property
    def abandoned(self) -> int:
        """Whether the worker ends before its next sample. The only field that the notebook's side writes."""


class SharedStatus(ctypes.Structure):
    """The status of a worker process, in memory that it shares with the notebook's process."""

    _fields_ = (
        ("state", ctypes.c_int64),
        ("epoch", ctypes.c_int64),
        ("job", ctypes.c_int64),
        ("since", ctypes.c_int64),
        ("position", ctypes.c_int64),
        ("pid", ctypes.c_int64),
        ("computing", ctypes.c_int64),
        ("waiting", ctypes.c_int64),
        ("abandoned", ctypes.c_int64),
        ("queued", ctypes.c_int64),
        ("begun", ctypes.c_int64),
    )

    state: int
    epoch: int
    job: int
    since: int
    position: int
    pid: int
    computing: int
    """Number of stack samples that were requested while the worker computed. The notebook's process writes this field,
    `waiting` and `queued`."""
    waiting: int
    """Number of stack samples that were requested while the worker waited."""
    queued: int
    """The part of `waiting` in which the worker waited for a core."""
    abandoned: int
    """See `WorkerStatus`."""
    begun: int
    """How many of the tasks that were sent to the worker it has begun, if it processes several at a time; -1 if no task
    was begun yet, 0 if it processes one at a time."""

    def abandon(self) -> None:
        """Make the worker stop before its next sample."""
        self.abandoned = 1

    @classmethod
    def at(cls, memory: Any) -> SharedStatus:
        """Return the status at the beginning of a writable buffer. The status keeps the buffer alive."""
        return cls.from_buffer(memory)


SHARED_STATUS_SIZE = ctypes.sizeof(SharedStatus)
"""Size of a `SharedStatus` in bytes."""


class LocalStatus:
    """The status of a worker in the notebook's own process.

    A thread cannot be killed. `abandon()` makes it stop before its next sample instead.
    """

    __slots__ = ("abandoned", "epoch", "job", "pid", "position", "since", "state")

    def __init__(self, pid: int, state: int = WorkerState.STARTING) -> None:
        self.state = state
        self.epoch = 0
        self.job = -1
        self.since = 0
        self.pid = pid
        self.position = -1
        self.abandoned = False

    def abandon(self) -> None:
        """Make the worker stop before its next sample. This method is thread-safe."""
        self.abandoned = True
