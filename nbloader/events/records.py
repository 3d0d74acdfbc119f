"""Event records: one per batch, and one for each step in the life of a loader and of its workers.

All times are `time.perf_counter_ns()`, in nanoseconds, comparable between the processes of one machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias


class Placed(NamedTuple):
    """How a batch came into pinned memory or onto an accelerator. Part of its `BatchRecord`."""

    device: str
    """Such as "cuda:0"; "" where it was only pinned."""
    memory: str
    """Where the device read it: "registered" (the shared memory in which the worker wrote it, pinned where it lies),
    "copied" (to a pool of pinned memory) or "pageable"."""
    begin: int
    """When it was taken up, between `in_order` and `delivered`, ns."""
    pinned: int
    """When it lay in pinned memory, ns: at once where that is "registered". 0 where it is "pageable"."""
    upload_begin: int
    """When the copy to the device began, ns: a time of the device, told in this machine's clock. 0 where there was no
    copy, or where the epoch ended before it was known."""
    uploaded: int
    """When that copy was done, ns; a time of the device."""
    needed: int
    """When the consumer's work on the device came to this batch, ns; a time of the device. What of the copy lies
    before it was hidden behind the work on earlier batches."""
    nbytes: int
    """Bytes copied to the device."""


class BatchRecord(NamedTuple):
    """Where one batch spent its time. Published when the consumer comes back for the next batch.

    A named tuple and not a dataclass like the other events: one is made per batch, and a frozen dataclass of this
    many fields takes 3.5 us to make against 0.2 us.
    """

    run: int
    """Which iterator of this loader made the batch: 0 for the first `iter(loader)`, 1 for the second, ..."""
    epoch: int
    """Epoch number, from 0."""
    index: int  # type: ignore[assignment]  # it hides tuple.index
    """Batch number within the epoch, from 0."""
    worker: int
    """Worker id, from 0; -1 for a batch made in the notebook's own process."""
    pid: int
    """Process that made the batch."""
    attempt: int
    """1 when the batch was made at the first try; one more for each worker that died or was restarted under it."""
    samples: int
    """Samples in the batch."""
    nbytes: int
    """Size of the batch's arrays, in bytes."""
    transport: str
    """How it travelled: "segment" (shared memory), "inline" (small, with the message), "pickle", "local"."""
    requested: int
    """When the consumer asked for this batch, ns."""
    dispatched: int
    """When its indices were sent to the worker, ns."""
    fetch_begin: int
    """When the worker began to fetch its samples, ns."""
    fetched: int
    """When the last sample was there, ns."""
    collated: int
    """When the batch lay ready in its segment, ns."""
    received: int
    """When the notebook's process learned of it, ns: at once where the loop waited for this batch, up to 2 ms later
    where it waited for another one of quick batches, and up to 20 ms later where it was away."""
    in_order: int
    """When every earlier batch had been received too, ns."""
    delivered: int
    """When the consumer got it, ns."""
    returned: int
    """When the consumer came back for the next batch, or ended the loop, ns."""
    fetch_cpu: int
    """CPU time of fetching, ns. Near `fetched - fetch_begin`: computing; far below: waiting (disk, network, sleep)."""
    collate_cpu: int
    """CPU time of collating, ns."""
    in_flight: int
    """At delivery: batches sent to workers and not yet received."""
    reordering: int
    """At delivery: batches received that wait for an earlier one."""
    ready: int
    """At delivery: batches that wait, in order, for the consumer (this one not counted)."""
    slowest_index: Any
    """Dataset index of the slowest sample of the batch (None where samples are not fetched one by one)."""
    slowest_ns: int
    """Time of that sample, ns."""
    indices: Any = ()
    """The first eight of its dataset indices."""
    placed: Placed | None = None
    """How it was pinned and uploaded; None where neither was asked for."""

    @property
    def waited(self) -> int:
        """How long the consumer waited for this batch, ns."""
        return self.delivered - self.requested


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process or thread was started; it is not ready yet."""

    time: int
    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker has rebuilt the dataset and waits for work."""

    time: int
    worker: int
    pid: int
    startup_ns: int
    """From the request to start it until it was ready, ns."""


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker ended, by itself or because it was told to."""

    time: int
    worker: int
    pid: int
    exitcode: int | None
    """As `multiprocessing`: the exit status, or minus the signal that ended it; None where unknown."""
    reason: str
    """A phrase for people, such as "killed by SIGKILL" or "restarted by request"."""
    expected: bool
    """True when the loader asked for it (restart, resize, close)."""
    batches: tuple[int, ...]
    """Batch numbers it held, which others make again."""
    stderr_tail: str
    """The last lines that it wrote to its standard error."""


@dataclass(frozen=True, slots=True)
class WorkerRestarted:
    """A worker's place was given to a new process."""

    time: int
    worker: int
    reason: str
    """"request" for a restart by the user, else why the old one had ended."""


@dataclass(frozen=True, slots=True)
class EpochStarted:
    """An iterator was made."""

    time: int
    run: int
    epoch: int
    batches: int | None
    """Batches that the epoch will have; None where that is not known."""
    num_workers: int


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """An iterator ended."""

    time: int
    run: int
    epoch: int
    batches: int
    """Batches delivered."""
    reason: str
    """"exhausted", "abandoned" (the loop was left early), "error" or "closed"."""


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """A batch could not be made: the dataset or the collate function raised."""

    time: int
    run: int
    index: int
    worker: int
    sample: Any
    """Dataset index at which the error was raised; None when it was in collate."""
    error: str
    """Type and message."""


@dataclass(frozen=True, slots=True)
class SampleFailed:
    """A sample could not be fetched, and `on_error` made the batch without it or with another in its place."""

    time: int
    run: int
    index: int
    """Batch number."""
    worker: int
    """Worker id; -1 for a batch made in the notebook's own process."""
    sample: Any
    """Dataset index; None if `__getitems__` raised for a whole batch."""
    error: str
    """Type and message."""
    traceback: str
    done: str
    """"skipped", "replaced", or "retried": `__getitems__` raised, and the samples were then fetched one by one."""


@dataclass(frozen=True, slots=True)
class WorkersResized:
    """The number of workers was changed."""

    time: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class LoaderPaused:
    """No batch is delivered or dispatched until `resume()`."""

    time: int


@dataclass(frozen=True, slots=True)
class LoaderResumed:
    """The loader goes on after `pause()`."""

    time: int


@dataclass(frozen=True, slots=True)
class DatasetReloaded:
    """Workers got a new dataset, or the old one under its class as it is now defined."""

    time: int


@dataclass(frozen=True, slots=True)
class SupervisorFailed:
    """The supervisor thread raised, which is a defect of nbloader; it was restarted."""

    time: int
    error: str
    """Type and message; the traceback is logged."""


@dataclass(frozen=True, slots=True)
class LoaderClosed:
    """The loader was closed."""

    time: int


LifecycleEvent: TypeAlias = (
    WorkerStarted
    | WorkerReady
    | WorkerDied
    | WorkerRestarted
    | EpochStarted
    | EpochEnded
    | BatchFailed
    | SampleFailed
    | WorkersResized
    | LoaderPaused
    | LoaderResumed
    | DatasetReloaded
    | SupervisorFailed
    | LoaderClosed
)
"""Every event but `BatchRecord`. All have `time`, perf_counter ns."""

Event: TypeAlias = BatchRecord | LifecycleEvent
