"""What a verdict is made from; the rules themselves live in `nbloader.diagnose`.

records of a span, usage of CPU -> Evidence -> [rules] -> Verdict
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from nbloader.events import LoopStopped, SampleFailed
from nbloader.metrics.snapshot import Snapshot, UploadStats, Verdict
from nbloader.metrics.usage import Usage

SpanName: TypeAlias = Literal["now", "epoch"]
Place: TypeAlias = Literal["process", "thread", "inline"]


class MakeTime(NamedTuple):
    """How long one worker's batches took to fetch and collate."""

    batches: int
    """Batches of this worker in the span."""
    median_ms: float
    quartile_ms: float
    """A quarter of them took no longer."""


class MachineLoad(NamedTuple):
    """Workers on a machine other than that of the notebook."""

    workers: int
    cores: float
    """CPU cores that they may use there."""


class SlowBatch(NamedTuple):
    """The batch for which the loop waited longest."""

    batch: int
    sample: Any
    """Dataset index of its slowest sample; None if samples are not fetched one by one."""
    wait: float
    """Seconds."""
    make: float | None
    """Seconds that a worker spent on it; None if it has not come yet."""
    attempt: int
    """More than 1 if the worker that processed it before was lost or restarted."""


FILE_SIZE = "file size"
"""Name of a size: bytes of the sample's file."""
OF_FILES = ("suffix", "folder")
"""Names of values that belong to the sample's file; others are attributes of the dataset."""


class SampleFacts(NamedTuple):
    """What is known of a sample without reading it."""

    values: dict[str, Hashable]
    """Such as its label, or the suffix and the folder of its file, by name."""
    sizes: dict[str, float]
    """Such as the size of its file, or the length of its text, by name."""


KnownFacts: TypeAlias = Callable[[Sequence[Any]], Mapping[Any, SampleFacts]]
"""Looks up what is known of samples, by their dataset indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Measurements over one span of an epoch. Shares are from 0 to 1."""

    span: SpanName = "now"
    """The last seconds, or the whole epoch."""
    seconds: float = 0.0
    """Length of the span."""
    batches: int = 0
    """Batches delivered in it."""
    cores: int = 1
    """CPU cores that this process may use."""
    workers: int = 1
    """Workers that produced them, or that are alive; 1 if it is the loop itself."""
    elsewhere: tuple[MachineLoad, ...] = ()
    """Those of them that run on other machines."""
    nodes: int = 0
    """Nodes of a cluster that sent the batches."""
    place: Place = "process"
    """What the workers are; "inline" if batches are produced in the loop's own thread (`num_workers=0`)."""
    window: int = 0
    """Batches that may be requested ahead."""

    wait_share: float = 0.0
    """Share of the span in which the loop waited. The shares of the wait below are parts of this one."""
    startup_wait: float = 0.0
    """Share of the span: waiting for the first batch of each worker, beyond what a batch usually takes."""
    startup: float | None = None
    """Seconds from the start of the epoch to the delivery of its first batch."""
    worker_startup: float | None = None
    """Seconds from the request of a worker until it was ready, of the slowest that started for this epoch."""
    stall_wait: float = 0.0
    """Share of the span: waiting for few batches that took far longer than all others."""
    stalls: int = 0
    """Number of these batches."""
    worst: SlowBatch | None = None
    """The longest wait, but for that for the first batch."""
    sampler_wait: float = 0.0
    """Share of the span: the sampler drew indices while the loop waited."""
    placing_wait: float = 0.0
    """Share of the span: the batch was ready, and was being pinned or uploaded."""
    opening_wait: float = 0.0
    """Share of the span: the batch was ready, and was being unpickled or built."""
    producing_wait: float = 0.0
    """Share of the span: the batch was being produced, or waited for an earlier one."""

    step_ms: float = 0.0
    """Mean time that the loop spends on a batch."""
    make_ms: float = 0.0
    """Median time to fetch and collate a batch."""
    fetch_ms: float = 0.0
    """Mean time to fetch a batch. Where a worker fetches several at a time: the part of its time that one takes."""
    overlap: float = 1.0
    """Batches that a worker fetches at a time, if its dataset is asynchronous."""
    collate_ms: float = 0.0
    """Mean time to collate one."""
    transport_ms: float = 0.0
    """Median time from worker to loop."""
    transfer_ms: float = 0.0
    """The part of it from when its node began to send a batch, median; 0 for batches of this machine."""
    reorder_ms: float = 0.0
    """Mean time in which a batch waited for an earlier one."""
    fetch_cpu: float | None = None
    """CPU time of fetching over its wall time; above 1 if several threads compute. None if it was not measured."""
    collate_cpu: float | None = None
    """The same of collating."""
    utilization: float = 0.0
    """Share of the workers' time in which they fetched, collated or sent a pickle, without start-up and stalls."""
    full: float = 0.0
    """Share of deliveries at which the whole window was requested or produced."""
    ready: float = 0.0
    """Mean number of ready batches at a delivery."""
    nbytes: float = 0.0
    """Mean size of a batch's arrays, bytes."""
    pickled: float = 0.0
    """Mean size of its pickled part, bytes."""
    by_pickle: float = 0.0
    """Share of batches that were transported as a plain pickle."""
    samples: float = 0.0
    """Mean number of samples of a batch."""
    slow_share: float = 0.0
    """Share of the workers' time that the slowest samples took beyond a usual one."""
    slow_every: float = 0.0
    """One in this many samples is slow; 0 if none is."""
    slow_workers: int = 0
    """Workers that fetched slow samples."""
    slow_indices: tuple[Any, ...] = ()
    """Dataset indices of slow samples, slowest first."""
    usual_indices: tuple[Any, ...] = ()
    """Dataset indices of samples that are not slow."""
    facts: Mapping[Any, SampleFacts] = field(default_factory=dict)
    """What is known of slow and usual samples, by dataset index."""
    slow_ms: float = 0.0
    """Median time of a slow sample."""
    sample_ms: float = 0.0
    """Median time of a usual one."""
    by_worker: dict[int, MakeTime] = field(default_factory=dict)
    """Time to fetch and collate a batch, for each worker that is alive."""
    usage: Usage | None = None
    """What workers and loop used of the cores; None where it was not measured."""
    uploads: UploadStats | None = None
    device: str = ""

    @property
    def workers_here(self) -> int:
        """Workers that use the cores of this machine."""
        return self.workers - sum(machine.workers for machine in self.elsewhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStatus:
    """What else a verdict says: the state of the epoch, beside the snapshot."""

    recent: int
    """Batches of this epoch that the rates rest on."""
    first_batch: float | None
    """Seconds from the start of the epoch to the delivery of its first batch; None before it."""
    ended: str
    """Reason of `EpochEnded` for the newest epoch; "" while it is running."""
    error: str = ""
    """The last error of a batch of this epoch."""
    paused_for: float | None = None
    """Seconds since `pause()`; None when not paused."""
    stopped: LoopStopped | None = None
    """The error or the interrupt that left the loop, unless it came back."""
    stop_waited: float = 0.0
    """How long the loop had waited until then, seconds."""
    left_out: tuple[SampleFailed, ...] = ()
    """The last of the samples of this epoch that were skipped or replaced; at most one."""
    left_out_count: int = 0
    """How many they were."""


class Diagnosis(NamedTuple):
    """The verdicts of a snapshot."""

    headline: Verdict
    """What matters at this moment: the state, or `now`, or after the end of an epoch `epoch`."""
    now: Verdict
    """What limited the loop in the last seconds in which it ran."""
    epoch: Verdict
    """What limited it over the newest epoch."""
    slow_samples: str = ""
    """What the slow samples of that epoch have in common; "" if there is nothing."""


Judge: TypeAlias = Callable[[Snapshot, LoaderStatus, Evidence, Evidence], Diagnosis]
"""Diagnoses a snapshot that is complete except for its verdicts, from the evidence of the last seconds and of the
epoch."""
