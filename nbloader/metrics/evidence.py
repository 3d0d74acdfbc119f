"""Measurements from which verdicts are derived. The rules themselves are in `nbloader.diagnose`.

records of a span, CPU usage -> Evidence -> [rules] -> Verdict
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, TypeAlias

from nbloader.events import BatchFailed, BatchRecord, LoopStopped, SampleFailed
from nbloader.metrics.snapshot import Snapshot, UploadStats, Verdict
from nbloader.metrics.usage import Usage

SpanName: TypeAlias = Literal["now", "epoch"]


class Place(Enum):
    """Where batches are produced."""

    PROCESSES = "processes"
    """In worker processes, on any machine."""
    THREADS = "threads"
    """In worker threads of the notebook's process."""
    CONSUMER = "consumer"
    """In the loop's own thread (`num_workers=0`)."""


class MakeTime(NamedTuple):
    """Time to fetch and collate a batch in one worker."""

    batches: int
    """Number of batches from this worker in the span."""
    median_ms: float
    quartile_ms: float
    """First quartile: a quarter of the batches took no longer than this."""


class MachineLoad(NamedTuple):
    """Workers on a machine other than the notebook's machine."""

    workers: int
    cores: float
    """Number of CPU cores that workers may use on that machine."""


class SlowBatch(NamedTuple):
    """The batch for which the loop waited longest."""

    batch: int
    sample: Any
    """Dataset index of the slowest sample of the last attempt; None if samples are not fetched one by one."""
    wait: float
    """Seconds."""
    make: float | None
    """Seconds that a worker spent on the batch in the last attempt; None if it has not arrived yet."""
    attempt: int
    """Greater than 1 if a worker that held the batch before was lost or restarted."""
    lost_sample: Any = None
    """Dataset index of the sample that a worker was fetching for the batch when it was lost; None if unknown."""
    slowest: float = 0.0
    """Seconds to fetch the slowest sample of the last attempt."""

    @property
    def slow_sample(self) -> Any:
        """`sample`, unless an earlier attempt, whose worker was lost, took the time; None then, or if unknown."""
        return self.sample if self.attempt <= 1 or self.slowest >= self.wait / 2 else None


FILE_SIZE = "file size"
"""Key in `SampleFacts.sizes` for the size of the sample's file, bytes."""
OF_FILES = ("suffix", "folder")
"""Keys in `SampleFacts.values` that describe the sample's file. Other keys are attributes of the dataset."""


class SampleFacts(NamedTuple):
    """What is known about a sample without reading it."""

    values: dict[str, Hashable]
    """Values by name, such as the label of the sample, or the suffix and the folder of its file."""
    sizes: dict[str, float]
    """Sizes by name, such as the size of the sample's file or the length of its text."""


class SlowLine(NamedTuple):
    """The line of the user's code that takes most of the workers' time."""

    share: float
    """Its share of the time in which workers produced batches, 0 to 1."""
    source: str
    """The text of the line."""
    place: str
    """Where it is, such as "cell 4 line 12"."""
    remedy: str = ""
    """What is known to make it cheaper, such as "Read the file once per worker"; "" if nothing is."""
    shorter_wait: str = ""
    """What is known to shorten its waits, such as for a disk, too; "" if nothing is."""
    is_kept: bool = False
    """Whether a cache keeps what it computes: it runs once for each result."""
    remedy_place: str = ""
    """Where to change something; "" if it is at the line itself."""
    is_tried: bool = False
    """Whether remedies were tried on samples: if none is known then, none has helped."""
    missed: int = 0
    """Number of calls of cached functions in this epoch, if none found a result of the epoch before; else 0."""


KnownFacts: TypeAlias = Callable[[Sequence[Any]], Mapping[Any, SampleFacts]]
"""Looks up what is known about samples. Takes and returns dataset indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Measurements over one span of an epoch. Shares range from 0 to 1."""

    span: SpanName = "now"
    """Which span: the last seconds, or the whole epoch."""
    seconds: float = 0.0
    """Length of the span, without pauses."""
    batches: int = 0
    """Number of batches delivered in the span."""
    after_startup: bool = False
    """Whether the span is the epoch without the wait for the first batch of each worker."""
    total: int | None = None
    """Number of batches that the epoch has if it is not left early; None if it is unknown, or for another span."""
    rate: float | None = None
    """Batches per second over the span, as the snapshot shows it; None if it is `batches / seconds`."""
    cores: int = 1
    """Number of CPU cores that workers on this machine may use."""
    workers: int = 1
    """Number of live workers or, if there are none, of workers that produced the batches; 1 for `num_workers=0`."""
    elsewhere: tuple[MachineLoad, ...] = ()
    """The workers that run on other machines, grouped by machine."""
    nodes: int = 0
    """Number of cluster nodes that sent batches."""
    place: Place = Place.PROCESSES
    line: SlowLine | None = None
    """The line that takes most of the workers' time; None if none does, or if too few samples were taken."""
    step: SlowLine | None = None
    """The line that takes most of the time of the loop's own code; None if none does, or if it was not sampled."""
    draw: SlowLine | None = None
    """The line that takes most of the time of the sampler; None if none does, or if it was not sampled."""
    sampler: str = ""
    """The user's function that draws indices, such as "Balanced.__iter__ (cell 4 line 12)"; "" if it is a library's."""
    iterable: bool = False
    """See `EpochStarted.iterable`."""
    window: int = 0
    """Number of batches that may be requested ahead."""

    wait_share: float = 0.0
    """Share of the span in which the loop waited. It is the sum of the shares below for the first batches
    (`first_wait`), stalls, sampler, placing, opening and producing."""
    startup_wait: float = 0.0
    """Share of the span in which the loop waited for each worker's first batch, beyond the usual time of a batch."""
    first_wait: float = 0.0
    """Share of the span in which the loop waited for each worker's first batch; includes `startup_wait`."""
    startup: float | None = None
    """Seconds from the start of the epoch to the delivery of its first batch."""
    worker_startup: float | None = None
    """Startup time of the slowest worker that started for this epoch, from the request until it was ready, seconds."""
    stall_wait: float = 0.0
    """Share of the span in which the loop waited for the few batches that took far longer than all others."""
    stalls: int = 0
    """Number of batches that took far longer than all others."""
    worst: SlowBatch | None = None
    """The batch with the longest wait. For an epoch, the first batch of each worker is excluded."""
    sampler_wait: float = 0.0
    """Share of the span in which the loop waited while the sampler drew indices."""
    placing_wait: float = 0.0
    """Share of the span in which the loop waited while a ready batch was being pinned or uploaded."""
    opening_wait: float = 0.0
    """Share of the span in which the loop waited while a ready batch was being unpickled or built."""
    producing_wait: float = 0.0
    """Share of the span in which the loop waited while the batch was being produced or waited for an earlier batch."""

    make_ms: float = 0.0
    """Median time to fetch and collate a batch."""
    fetch_ms: float = 0.0
    """Mean time to fetch a batch. If a worker fetches several concurrently: worker time per fetched batch."""
    overlap: float = 1.0
    """Mean number of batches that a worker fetches concurrently, if the dataset is asynchronous; 1 otherwise."""
    collate_ms: float = 0.0
    """Mean time to collate a batch."""
    transport_ms: float = 0.0
    """Median time from the end of collation in the worker to the arrival in the notebook's process."""
    reorder_ms: float = 0.0
    """Mean time that a batch waited for an earlier one."""
    fetch_cpu: float | None = None
    """CPU time divided by wall time of fetching; above 1 if several threads compute. None if it was not measured."""
    collate_cpu: float | None = None
    """CPU time divided by wall time of collating. None if it was not measured."""
    utilization: float = 0.0
    """Share of the workers' time in which they fetched, collated or sent a pickle. Excludes start-up and stalls."""
    full: float = 0.0
    """Share of deliveries at which the prefetch window was full: all its batches were requested or produced."""
    ready: float = 0.0
    """Mean number of other batches that were ready at a delivery."""
    nbytes: float = 0.0
    """Mean size of a batch's arrays, bytes."""
    pickled: float = 0.0
    """Mean size of the pickled part of a batch, bytes."""
    by_pickle: float = 0.0
    """Share of batches that were transported as a plain pickle."""
    samples: float = 0.0
    """Mean number of samples in a batch."""
    slow_share: float = 0.0
    """Share of the workers' time that slow samples took beyond the time of usual samples."""
    slow_every: float = 0.0
    """One in this many samples is slow; 0 if none is."""
    slow_workers: int = 0
    """Number of workers that fetched slow samples."""
    slow_indices: tuple[Any, ...] = ()
    """Dataset indices of slow samples, slowest first."""
    usual_indices: tuple[Any, ...] = ()
    """Dataset indices of samples that are not slow."""
    facts: Mapping[Any, SampleFacts] = field(default_factory=dict)
    """What is known about slow and usual samples, by dataset index."""
    slow_ms: float = 0.0
    """Median time to fetch a slow sample."""
    sample_ms: float = 0.0
    """Median time to fetch a usual sample."""
    by_worker: dict[int, MakeTime] = field(default_factory=dict)
    """Time to fetch and collate a batch, by worker id: of live workers, or of all workers if none is alive."""
    usage: Usage | None = None
    """CPU usage of the workers and the loop; None if it was not measured."""
    uploads: UploadStats | None = None
    device: str = ""
    records: Sequence[BatchRecord] = field(default=(), repr=False)
    """Records of usual batches that are spread over the span: without the first ones of the workers, and without
    stalls. What only one cause needs, that cause measures in them."""

    @property
    def batches_per_second(self) -> float:
        """Rate over the span; 0 if it is empty."""
        if self.rate is not None:
            return self.rate
        return self.batches / self.seconds if self.seconds else 0.0

    @property
    def completed(self) -> float:
        """Share of the epoch's batches that have been delivered; 1 if their number is unknown."""
        return min(1.0, self.batches / self.total) if self.total else 1.0

    @property
    def workers_here(self) -> int:
        """Number of workers that run on this machine."""
        return self.workers - sum(machine.workers for machine in self.elsewhere)


class JudgedEpoch(NamedTuple):
    """An epoch, what limited it, and the measurements that this follows from."""

    epoch: int
    verdict: Verdict
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStatus:
    """The state of the epoch, which a verdict is based on in addition to the snapshot."""

    recent: int
    """Number of batches over which the rates were computed."""
    first_batch: float | None
    """Seconds from the start of the epoch to the delivery of its first batch; None before it."""
    ended: str
    """`EpochEnded.reason` of the newest epoch; "" while it is running."""
    failed: BatchFailed | None = None
    """The last batch of this epoch that failed; None if there is none."""
    usual_make: float | None = None
    """Median time to produce a batch, seconds; None before any batch was measured."""
    paused_for: float | None = None
    """Seconds since `pause()`; None when not paused."""
    stopped: LoopStopped | None = None
    """The error or interrupt that stopped the loop; None if there is none or iteration has resumed."""
    stop_waited: float = 0.0
    """How long the loop had been waiting when it stopped, seconds."""
    left_out: tuple[SampleFailed, ...] = ()
    """The last sample of this epoch that was skipped or replaced; () if there is none."""
    left_out_count: int = 0
    """Number of samples of this epoch that were skipped or replaced."""
    before: JudgedEpoch | None = None
    """The newest epoch before this one whose cause is known; None if there is none, or if that of this one is known."""


class Diagnosis(NamedTuple):
    """The verdicts of a snapshot."""

    headline: Verdict
    """What matters at this moment: the state, `now` or, after the end of an epoch, `epoch`."""
    now: Verdict
    """What limited the loop in the last seconds in which it ran."""
    epoch: Verdict
    """What limited the loop over the newest epoch."""
    slow_samples: str = ""
    """What the slow samples of that epoch have in common; "" if they have nothing in common."""


Judge: TypeAlias = Callable[[Snapshot, LoaderStatus, Evidence, Evidence], Diagnosis]
"""Determines the verdicts of a snapshot that is otherwise complete. The last two arguments are the evidence of the last
seconds and of the epoch."""
