"""Messages from workers to the engine: outcomes of batches, stages of a worker's life, output.

A message identifies its worker by `uid`, the unique number of that process or thread. A replacement gets a new uid, so
that a late message from the replaced worker is not mistaken for one from its successor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nbloader.batch.payload import BatchOutcome
from nbloader.events.remote_errors import ErrorInfo, SampleFailure
from nbloader.events.silent_faults import FaultSign
from nbloader.events.stack_samples import StackCount


@dataclass(frozen=True, slots=True)
class WorkerLaunched:
    """The worker's process or thread exists."""

    uid: int


@dataclass(frozen=True, slots=True)
class WorkerInitialized:
    """The worker has loaded its dataset and accepts batches."""

    uid: int
    round_robin: bool = False
    """Whether it draws from generators that are not seeded for each batch: batches must be assigned round-robin."""


@dataclass(frozen=True, slots=True)
class WorkerInitFailed:
    """The worker could not rebuild the dataset, or `worker_init_fn` raised; it ends."""

    uid: int
    error: ErrorInfo
    raised: Exception | None = None
    """The exception itself, if the worker is a thread."""


@dataclass(frozen=True, slots=True)
class DescriptorsExhausted:
    """This process has too many open files to receive what the worker sent. The worker is ended."""

    uid: int


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The worker has ended."""

    uid: int
    exitcode: int | None
    """As in `multiprocessing`; None if unknown."""
    server: str = ""
    """Identifies the zygote, or the node, that has ended, and the worker with it: its batch is not the cause. Empty if
    the worker has ended by itself."""
    reason: str = ""
    """A phrase that gives the reason, such as "was killed by SIGKILL", if it is more precise than the exit code."""


@dataclass(frozen=True, slots=True)
class PoolFailed:
    """The pool cannot start or keep workers, for a reason that would affect any worker. All workers are ended."""

    uid: int
    """The worker that could not be started, or one of the lost workers."""
    error: Exception
    """The exception that is raised in the loop."""


@dataclass(slots=True)  # not frozen: constructing a frozen one takes four times as long, and each batch has one
class BatchDone:
    """The worker produced a batch (or a chunk of one), or failed to."""

    uid: int
    epoch: int
    job: int
    """Job number of the batch or the chunk."""
    outcome: BatchOutcome
    failed_samples: Sequence[SampleFailure] = ()
    """Samples of the batch that could not be fetched and were skipped or replaced."""


@dataclass(frozen=True, slots=True)
class ShardExhausted:
    """The shard of this batch is exhausted, so the batch does not exist."""

    uid: int
    epoch: int
    job: int


@dataclass(frozen=True, slots=True)
class ShardAdvanced:
    """The position of the worker's iterator over a shard, and how to return to it."""

    uid: int
    epoch: int
    shard: int
    position: int
    """Batches produced so far."""
    state: str | None
    """State of the iterator as JSON; None if it cannot be saved."""
    problem: str
    """Why the state cannot be saved."""


@dataclass(frozen=True, slots=True)
class OutputText:
    """The worker wrote whole lines to its standard output or error."""

    uid: int
    stream: str
    """ "stdout" or "stderr"."""
    text: str


@dataclass(frozen=True, slots=True)
class StacksSampled:
    """Samples of the worker's stacks since the previous message."""

    uid: int
    stacks: Sequence[StackCount]


@dataclass(frozen=True, slots=True)
class SignSeen:
    """The worker has seen what may be a sign of a silent fault."""

    uid: int
    sign: FaultSign


WorkerMessage: TypeAlias = (
    "WorkerLaunched | WorkerInitialized | WorkerInitFailed | DescriptorsExhausted | WorkerGone | BatchDone"
    " | ShardExhausted | ShardAdvanced | OutputText | StacksSampled | PoolFailed"
    " | SignSeen"
)
