"""Event records: one per batch, and one for each lifecycle event of a loader and its workers.

Every timestamp is a value of `time.perf_counter_ns()`, in nanoseconds, comparable between the processes of one
machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from nbloader._util.format import clean


class Placed(NamedTuple):
    """How a batch was pinned or uploaded to an accelerator. Part of a `BatchRecord`."""

    device: str
    """The target device, such as "cuda:0"; "" if the batch was only pinned."""
    memory: str
    """The memory that the device read: "registered" (the shared memory into which a worker wrote the batch, pinned in
    place), "copied" (the batch was copied to a pool of pinned memory) or "pageable"."""
    begin: int
    """When the transfer was started, ns. Between `in_order` and `delivered` of the record."""
    pinned: int
    """When the batch was in pinned memory, ns; 0 if `memory` is "pageable"."""
    upload_begin: int
    """When the device began to copy the batch, ns. Measured by the device and converted to this machine's clock. 0 if
    there was no copy, or if the epoch ended before the time was known."""
    uploaded: int
    """When the device completed the copy, ns. Measured by the device."""
    needed: int
    """When the consumer's work on the device reached this batch, ns. Measured by the device. The part of the copy
    before this time overlapped with the work on earlier batches."""
    nbytes: int
    """Number of bytes copied to the device."""


class Machine(NamedTuple):
    """A machine, other than the notebook's, on which workers run."""

    identity: str
    """Identifies the machine: equal for all workers that share its cores."""
    cores: int
    """Number of CPU cores that workers may use on the machine."""


class NodeTransfer(NamedTuple):
    """How a batch was transferred from another machine. Part of a `BatchRecord`."""

    node: str
    """The machine: its address and the first characters of its id."""
    begin: int
    """When that machine began to send the batch, ns. Measured by that machine's clock and converted to this machine's.
    Between `collated` and this time, the batch waited for earlier batches to be sent."""
    end: int
    """When the last byte of the batch was copied into the memory of the notebook's process, ns."""
    nbytes: int
    """Number of bytes sent."""


class BatchRecord(NamedTuple):
    """Timing and origin of one batch. Published when the consumer asks for the next batch.

    Unlike the other events, this is a named tuple. One is created per batch, and constructing a frozen dataclass with
    this many fields takes 3.5 us; a named tuple takes 0.2 us.
    """

    epoch: int
    """Epoch number: 0 for the first `iter(loader)`, 1 for the second, ..."""
    index: int  # type: ignore[assignment]  # it hides tuple.index
    """Batch number within the epoch, from 0."""
    worker: int
    """Worker id, from 0; -1 for a batch produced in the notebook's own process."""
    pid: int
    """Id of the process that produced the batch."""
    attempt: int
    """Number of the attempt that produced the batch: 1, plus 1 for each worker that ended while it held the batch.
    `lost_sample` says where."""
    samples: int
    """Number of samples in the batch."""
    nbytes: int
    """Total size of the batch's arrays, bytes."""
    transport: str
    """How the batch was sent: "segment" (shared memory), "inline" (small, in the message), "pickle" or "local"."""
    requested: int
    """When the consumer asked for this batch, ns. For the first batch of an epoch, it is earlier by the time for which
    `iter(loader)` waited for the sampler."""
    dispatched: int
    """When the indices of the batch were sent to the worker, ns."""
    fetch_begin: int
    """When the worker began to fetch the samples, ns. With an asynchronous dataset, batches overlap within a worker."""
    fetched: int
    """When the last sample was fetched, ns."""
    collated: int
    """When the batch was collated and written to its segment, ns."""
    received: int
    """When the thread of the loader received the batch, ns."""
    in_order: int
    """When this batch and every earlier batch had been received, ns."""
    delivered: int
    """When the batch was delivered to the consumer, ns."""
    returned: int
    """When the consumer asked for the next batch, or ended the loop, ns."""
    fetch_cpu: int
    """CPU time of fetching, ns. It is close to `fetched - fetch_begin` if the worker computed, and far below that
    if the worker waited (disk, network, sleep). With an asynchronous dataset, this is the CPU time that the worker has
    used for samples of any batch since it completed the previous batch."""
    collate_cpu: int
    """CPU time of collating, ns."""
    in_flight: int
    """Number of batches, at delivery, that had been dispatched to workers but not yet received."""
    reordering: int
    """Number of batches, at delivery, that had been received and were waiting for an earlier batch."""
    ready: int
    """Number of batches, at delivery, that were in order and waiting for the consumer, not counting this one."""
    slowest_index: Any
    """Dataset index of the slowest sample in the batch; None if samples are not fetched one by one."""
    slowest_ns: int
    """Time to fetch that sample, ns. Includes time spent waiting if the dataset is asynchronous."""
    indices: Any = ()
    """The first eight dataset indices of the batch."""
    placed: Placed | None = None
    """How the batch was pinned and uploaded; None if neither was requested."""
    sampling: int = 0
    """Time spent in the sampler since the previous batch was delivered, ns. 0 with `num_workers=0`, where the time from
    `requested` to `dispatched` is spent in the sampler."""
    pickled: int = 0
    """Size of the pickled part of the batch (everything except arrays), bytes."""
    transfer: NodeTransfer | None = None
    """How the batch was transferred from another machine; None if it was produced on this machine."""
    checksum: int | None = None
    """Checksum of a small part of the batch, by which `DataLoader.replay` can tell that it has made another one. None
    if it was not computed: checksums take at most 0.5% of the loop's time, so some fast batches have none."""
    lost_sample: Any = None
    """Dataset index of the sample of this batch that a worker was fetching when it ended or was restarted, so that
    another attempt was needed; None if there was none, or if it is unknown. `slowest_index` is of the last attempt."""

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
    """A worker has loaded the dataset and is ready to process batches."""

    time: int
    """When, ns."""
    worker: int
    """Worker id, from 0."""
    pid: int
    startup_ns: int
    """Time from the request to start the worker until the worker was ready, ns."""
    machine: Machine | None = None
    """The machine on which the worker runs; None for the notebook's machine."""


@dataclass(frozen=True, slots=True)
class WorkerLeaving:
    """A worker was removed or restarted in the middle of a batch: it finishes its present sample before it ends.

    Other workers produce the batches that it held. `WorkerDied` follows when it has ended.
    """

    time: int
    """When, ns."""
    worker: int
    """Worker id, from 0."""
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker ended, either on its own or by request."""

    time: int
    """When, ns."""
    worker: int
    """Worker id, from 0."""
    pid: int
    exitcode: int | None
    """As in `multiprocessing`: the exit status, or minus the number of the signal that killed it; None if unknown."""
    reason: str
    """A phrase such as "was killed by SIGKILL" or "restarted by request"."""
    expected: bool
    """Whether the loader ended the worker (restart, resize, close)."""
    batches: tuple[int, ...]
    """Numbers of the batches that the worker held. Other workers produce them instead."""
    stderr_tail: str
    """The last lines that the worker wrote to standard error, at most 4 kB."""
    since: int = 0
    """When the worker began to process the first of `batches`, ns; 0 if it was not processing a batch."""


@dataclass(frozen=True, slots=True)
class WorkerRestarted:
    """A worker was replaced by a new process with the same id."""

    time: int
    """When, ns."""
    worker: int
    """Worker id, from 0."""
    reason: str
    """"request" if the user restarted the worker; otherwise, why the previous process ended."""


@dataclass(frozen=True, slots=True)
class EpochStarted:
    """An iterator was created."""

    time: int
    """When, ns."""
    epoch: int
    """Epoch number, as in `BatchRecord.epoch`."""
    batches: int | None
    """Number of batches in the epoch; None if unknown."""
    num_workers: int
    iterable: bool = False
    """Whether each worker iterates over the dataset, as torch's `IterableDataset` says, instead of indexing it."""


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """An iterator ended."""

    time: int
    """When, ns."""
    epoch: int
    """Epoch number, as in `BatchRecord.epoch`."""
    batches: int
    """Number of batches delivered."""
    reason: str
    """"exhausted", "abandoned" (the loop was left early), "error" or "closed"."""


@dataclass(frozen=True, slots=True)
class LoopStopped:
    """`__next__` of an iterator raised, but the iterator can continue: a batch failed, or the wait was interrupted.

    A loop that does not catch the exception has ended. Its iterator has not: the traceback keeps it alive.
    """

    time: int
    """When, ns."""
    epoch: int
    """Epoch number, as in `BatchRecord.epoch`."""
    index: int
    """Number of the batch that the loop requested."""
    error: str
    """Type and message."""
    interrupted: bool
    """Whether a signal handler raised the exception, for example after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """A batch could not be produced: the dataset or the collate function raised."""

    time: int
    """When, ns."""
    epoch: int
    """Epoch number, as in `BatchRecord.epoch`."""
    index: int
    """Batch number."""
    worker: int
    """Worker id; -1 for the notebook's own process."""
    sample: Any
    """Dataset index of the sample for which the dataset raised; None if collating raised, and if the dataset fetches
    whole batches."""
    error: str
    """Type and message."""
    stage: str = "fetch"
    """"fetch" or "collate": what raised."""
    indices: tuple[Any, ...] = ()
    """The first eight dataset indices of the batch; () if they are unknown."""

    @property
    def place(self) -> str:
        """What failed, such as "sample 77", "one of the samples 72, 73, ..." or "the collate function"."""
        if self.sample is not None:
            return f"sample {clean(self.sample, 40)}"
        if self.stage == "collate":
            return "the collate function"
        found = clean(", ".join(clean(index, 24) for index in self.indices), 120)
        if len(self.indices) == 1:
            return f"sample {found}"
        return f"one of the samples {found}, ..." if found else "the dataset"


@dataclass(frozen=True, slots=True)
class SampleFailed:
    """A sample could not be fetched, but its batch was produced nevertheless.

    With `on_error`, the sample was skipped or replaced. With `__getitems__`, the fetch of the whole batch may have
    failed and been retried sample by sample.
    """

    time: int
    """When, ns."""
    epoch: int
    """Epoch number, as in `BatchRecord.epoch`."""
    index: int
    """Batch number."""
    worker: int
    """Worker id; -1 for the notebook's own process."""
    sample: Any
    """Dataset index; None if the fetch of the whole batch failed."""
    error: str
    """Type and message."""
    traceback: str
    """The traceback as text."""
    done: str
    """"skipped", "replaced" or "retried" (`__getitems__` raised, and the samples were then fetched one by one)."""


@dataclass(frozen=True, slots=True)
class WorkersResized:
    """The number of workers was changed."""

    time: int
    """When, ns."""
    before: int
    """Number of workers before the change."""
    after: int
    """Number of workers after the change."""


@dataclass(frozen=True, slots=True)
class SettingTried:
    """`DataLoader.tune` has measured a setting."""

    time: int
    """When, ns."""
    num_workers: int
    prefetch_factor: int | None
    """None if the loader's own prefetch window was used: `prefetch`, or the adaptive window."""
    rate: float
    """Batches per second."""
    kept: bool
    """Whether the setting was kept: it is the best so far, or the user chose it."""
    workers: str = ""
    """"process" or "thread" if both are tried; otherwise ""."""


@dataclass(frozen=True, slots=True)
class LoaderPaused:
    """The loader was paused: it neither dispatches nor delivers batches until `resume()` is called."""

    time: int
    """When, ns."""


@dataclass(frozen=True, slots=True)
class LoaderResumed:
    """The loader was resumed after `pause()`."""

    time: int
    """When, ns."""


@dataclass(frozen=True, slots=True)
class DatasetReloaded:
    """Workers received a new dataset, or the same dataset with the current definition of its class."""

    time: int
    """When, ns."""


@dataclass(frozen=True, slots=True)
class SupervisorFailed:
    """The thread that supervises the workers raised an error and went on. This is a bug in nbloader."""

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
    | WorkerLeaving
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
"""Every event except `BatchRecord`. All have a field `time`, in ns of `time.perf_counter_ns()`."""

Event: TypeAlias = BatchRecord | LifecycleEvent
