"""Event records: one per batch, and one for each step in the life of a loader and its workers.

Every time is `time.perf_counter_ns()`, in nanoseconds, comparable between the processes of one machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias


class Placed(NamedTuple):
    """How a batch was pinned or uploaded to an accelerator. Part of its `BatchRecord`."""

    device: str
    """Such as "cuda:0"; "" if it was only pinned."""
    memory: str
    """The memory that the device read: "registered" (the shared memory into which a worker wrote the batch, pinned in
    place), "copied" (a pool of pinned memory) or "pageable"."""
    begin: int
    """When its transfer was started, between `in_order` and `delivered`, ns."""
    pinned: int
    """When it lay in pinned memory, ns; 0 if `memory` is "pageable"."""
    upload_begin: int
    """When the device began to copy it, ns; measured by the device, converted to this machine's clock. 0 if there was
    no copy, or the epoch ended before the time was known."""
    uploaded: int
    """When the device had copied it, ns; measured by the device."""
    needed: int
    """When the consumer's work on the device reached this batch, ns; measured by the device. The part of the copy
    before this time was hidden behind the work on earlier batches."""
    nbytes: int
    """Bytes copied to the device."""


class Machine(NamedTuple):
    """A machine, other than that of the notebook, on which workers run."""

    identity: str
    """Equal for workers that share its cores."""
    cores: int
    """CPU cores that workers may use there."""


class NodeTransfer(NamedTuple):
    """How a batch came from another machine. Part of its `BatchRecord`."""

    node: str
    """The machine: its address, and the beginning of its id."""
    begin: int
    """When that machine began to send it, ns; measured by its clock, converted to this machine's. Between `collated`
    and this time it waited for earlier batches to be sent."""
    end: int
    """When its last byte was copied into memory of the notebook's process, ns."""
    nbytes: int
    """Bytes that were sent."""


class BatchRecord(NamedTuple):
    """Timing and origin of one batch. Published when the consumer asks for the next batch.

    A named tuple, unlike the other events: one is created per batch, and a frozen dataclass with this many fields takes
    3.5 us to construct, a named tuple 0.2 us.
    """

    run: int
    """Number of the iterator that delivered the batch: 0 for the first `iter(loader)`, 1 for the second, ..."""
    epoch: int
    """Epoch number, from 0."""
    index: int  # type: ignore[assignment]  # it hides tuple.index
    """Batch number within the epoch, from 0."""
    worker: int
    """Worker id, from 0; -1 for a batch produced in the notebook's own process."""
    pid: int
    """Process that produced the batch."""
    attempt: int
    """1 if the batch was produced at the first attempt; plus 1 for each worker that ended while it processed it."""
    samples: int
    """Number of samples in the batch."""
    nbytes: int
    """Size of the batch's arrays, bytes."""
    transport: str
    """How it was transported: "segment" (shared memory), "inline" (small, in the message), "pickle", or "local"."""
    requested: int
    """When the consumer asked for this batch, ns."""
    dispatched: int
    """When its indices were sent to the worker, ns."""
    fetch_begin: int
    """When the worker began to fetch its samples, ns. Batches of an asynchronous dataset overlap in their worker."""
    fetched: int
    """When the last sample was fetched, ns."""
    collated: int
    """When the batch was collated and lay in its segment, ns."""
    received: int
    """When the notebook's process received it, ns. At once if the consumer waited for this batch; up to 2 ms later if
    it waited for another one of quick batches, and up to 20 ms later if it was processing one."""
    in_order: int
    """When every earlier batch had been received too, ns."""
    delivered: int
    """When the consumer received it, ns."""
    returned: int
    """When the consumer asked for the next batch, or ended the loop, ns."""
    fetch_cpu: int | None
    """CPU time of fetching, ns. Near `fetched - fetch_begin` for computation; far below it for waiting (disk, network,
    sleep). None if it was not measured: one of eight batches is while they take less than 0.5 ms. With an asynchronous
    dataset: what the worker has used for samples of any batch since it completed the batch before."""
    collate_cpu: int | None
    """CPU time of collating, ns; None if it was not measured."""
    in_flight: int
    """At delivery: batches dispatched to workers and not received."""
    reordering: int
    """At delivery: batches received that wait for an earlier one."""
    ready: int
    """At delivery: batches in order that wait for the consumer, without this one."""
    slowest_index: Any
    """Dataset index of the slowest sample of the batch; None if samples are not fetched one by one."""
    slowest_ns: int
    """Time to fetch that sample, ns; with the waiting, if the dataset is asynchronous."""
    indices: Any = ()
    """The first eight of its dataset indices."""
    placed: Placed | None = None
    """How it was pinned and uploaded; None if neither was requested."""
    sampling: int = 0
    """Time in the sampler since the batch before was delivered, ns; 0 with `num_workers=0`, where it is the time from
    `requested` to `dispatched`."""
    pickled: int = 0
    """Size of the pickled part of the batch (everything but arrays), bytes."""
    transfer: NodeTransfer | None = None
    """How it came from another machine; None if it was produced on this one."""

    @property
    def waited(self) -> int:
        """How long the consumer waited for this batch, ns."""
        return self.delivered - self.requested


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process or thread was started. It is not ready yet."""

    time: int
    """When, ns."""
    worker: int
    """Worker id, from 0."""
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker has loaded the dataset and waits for batches."""

    time: int
    """When, ns."""
    worker: int
    """Worker id, from 0."""
    pid: int
    startup_ns: int
    """From the request to start it until it was ready, ns."""
    machine: Machine | None = None
    """The machine that it runs on; None for that of the notebook."""


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker ended, by itself or on request."""

    time: int
    """When, ns."""
    worker: int
    """Worker id, from 0."""
    pid: int
    exitcode: int | None
    """As `multiprocessing`: the exit status, or minus the signal that killed it; None where unknown."""
    reason: str
    """A phrase such as "killed by SIGKILL" or "restarted by request"."""
    expected: bool
    """Whether the loader ended it (restart, resize, close)."""
    batches: tuple[int, ...]
    """Numbers of the batches that it held, which other workers produce again."""
    stderr_tail: str
    """The last lines that it wrote to standard error, at most 4 kB."""
    since: int = 0
    """When it began to process the first of these batches, ns; 0 if it was not processing one."""


@dataclass(frozen=True, slots=True)
class WorkerRestarted:
    """A worker was replaced by a new process with the same id."""

    time: int
    """When, ns."""
    worker: int
    """Worker id, from 0."""
    reason: str
    """"request" for a restart by the user, else why the previous process ended."""


@dataclass(frozen=True, slots=True)
class EpochStarted:
    """An iterator was created."""

    time: int
    """When, ns."""
    run: int
    """Number of the iterator, as `BatchRecord.run`."""
    epoch: int
    """Epoch number, from 0."""
    batches: int | None
    """Number of batches in the epoch; None where unknown."""
    num_workers: int


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """An iterator ended."""

    time: int
    """When, ns."""
    run: int
    """Number of the iterator, as `BatchRecord.run`."""
    epoch: int
    """Epoch number, from 0."""
    batches: int
    """Number of batches delivered."""
    reason: str
    """"exhausted", "abandoned" (the loop was left early), "error" or "closed"."""


@dataclass(frozen=True, slots=True)
class LoopStopped:
    """An exception left `__next__` of an iterator that can go on: a batch failed, or the wait was interrupted.

    A loop that does not catch it has ended, though its iterator has not: the traceback keeps that alive.
    """

    time: int
    """When, ns."""
    run: int
    """Number of the iterator, as `BatchRecord.run`."""
    index: int
    """Number of the batch that the loop asked for."""
    error: str
    """Type and message."""
    interrupted: bool
    """Whether a signal handler raised it, as after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """A batch could not be produced: the dataset or the collate function raised."""

    time: int
    """When, ns."""
    run: int
    """Number of the iterator, as `BatchRecord.run`."""
    index: int
    """Batch number."""
    worker: int
    """Worker id; -1 for the notebook's own process."""
    sample: Any
    """Dataset index of the sample at which the dataset raised; None if collating raised."""
    error: str
    """Type and message."""


@dataclass(frozen=True, slots=True)
class SampleFailed:
    """A sample could not be fetched, and its batch was produced all the same.

    With `on_error`, the sample was skipped or replaced. With `__getitems__`, a whole fetch may have failed and been
    repeated sample by sample.
    """

    time: int
    """When, ns."""
    run: int
    """Number of the iterator, as `BatchRecord.run`."""
    index: int
    """Batch number."""
    worker: int
    """Worker id; -1 for the notebook's own process."""
    sample: Any
    """Dataset index; None if a fetch of the whole batch failed."""
    error: str
    """Type and message."""
    traceback: str
    """The traceback as text."""
    done: str
    """"skipped", "replaced" or "retried" (one by one, after `__getitems__` raised)."""


@dataclass(frozen=True, slots=True)
class WorkersResized:
    """The number of workers was changed."""

    time: int
    """When, ns."""
    before: int
    """Workers before."""
    after: int
    """Workers after."""


@dataclass(frozen=True, slots=True)
class SettingTried:
    """`DataLoader.tune` has measured a setting."""

    time: int
    """When, ns."""
    num_workers: int
    prefetch_factor: int | None
    """None for the loader's own window: `prefetch`, or one that adapts itself."""
    rate: float
    """Batches per second."""
    kept: bool
    """Whether it is the fastest so far."""
    workers: str = ""
    """"process" or "thread", if both are tried."""


@dataclass(frozen=True, slots=True)
class LoaderPaused:
    """The loader was paused: no batch is delivered or dispatched until `resume()`."""

    time: int
    """When, ns."""


@dataclass(frozen=True, slots=True)
class LoaderResumed:
    """The loader was resumed after `pause()`."""

    time: int
    """When, ns."""


@dataclass(frozen=True, slots=True)
class DatasetReloaded:
    """Workers received a new dataset, or the old one under the present definition of its class."""

    time: int
    """When, ns."""


@dataclass(frozen=True, slots=True)
class SupervisorFailed:
    """The supervisor thread raised, which is a defect of nbloader; it was restarted."""

    time: int
    """When, ns."""
    error: str
    """Type and message; the traceback is logged."""


@dataclass(frozen=True, slots=True)
class LoaderClosed:
    """The loader was closed."""

    time: int
    """When, ns."""


LifecycleEvent: TypeAlias = (
    WorkerStarted
    | WorkerReady
    | WorkerDied
    | WorkerRestarted
    | EpochStarted
    | EpochEnded
    | LoopStopped
    | BatchFailed
    | SampleFailed
    | WorkersResized
    | SettingTried
    | LoaderPaused
    | LoaderResumed
    | DatasetReloaded
    | SupervisorFailed
    | LoaderClosed
)
"""Every event but `BatchRecord`. All have `time`, perf_counter ns."""

Event: TypeAlias = BatchRecord | LifecycleEvent
