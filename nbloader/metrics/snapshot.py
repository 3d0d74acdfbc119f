"""The frozen snapshot of a loader, and the records that it consists of.

`DataLoader.stats()` returns a `Snapshot`; the dashboard, reports and the bottleneck rules read one. Its text and HTML
are written by a `SnapshotRenderer`, which `nbloader.report` registers.

Times are in seconds, and durations of stages in milliseconds. Rates are per second. Shares are from 0 to 1.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from nbloader.events import SampleFailed
from nbloader.events.gauges import CacheGauge, ProducedBatch

STAGES = ("queue", "fetch", "collate", "transport", "transfer", "reorder", "ready", "pin", "upload", "step")
"""The stages of a batch's path. Each begins where the one before ends, except "pin" and "upload": these overlap "ready"
and the preceding "step", since a batch may be uploaded while the loop still works on another one."""
OVERLAPPING_STAGES = ("pin", "upload")
"""Stages that overlap others."""
OPTIONAL_STAGES = ("transfer", *OVERLAPPING_STAGES)
"""Stages that only some batches go through."""


ENDED = ("idle", "closed", "stopped")
"""States in which no loop runs, after the first epoch has begun."""


class Percentiles(NamedTuple):
    """Percentiles of a duration, milliseconds, by nearest rank."""

    p50: float
    p95: float
    p99: float


class PinnedBatches(NamedTuple):
    """How many batches the device read from one kind of memory."""

    memory: str
    """"registered" (the shared memory into which a worker wrote the batch, pinned in place), "copied" (a pool of pinned
    memory) or "pageable"."""
    batches: int


@dataclass(frozen=True, slots=True)
class UploadStats:
    """How batches were pinned and uploaded, over those of the last 200 batches that were."""

    ways: tuple[PinnedBatches, ...]
    """Batches by the kind of memory that the device read, most frequent first."""
    pin: float
    """Mean time to pin a batch, milliseconds."""
    copy: float | None
    """Mean time of the copy to the device, by the device's clock, milliseconds; None where unknown."""
    gb_per_second: float | None
    """Throughput of these copies, 1e9 bytes per second; None where unknown."""
    hidden: float | None
    """Share of the time of these copies that overlapped the device's work on earlier batches; None where unknown."""


@dataclass(frozen=True, slots=True)
class StageStats:
    """Duration of one stage over the last 200 batches, milliseconds."""

    name: str
    """"queue" (dispatched -> fetch began), "fetch", "collate", "transport" (collated -> received; of a batch from
    another machine: collated -> that machine began to send it), "transfer" (another machine began to send it -> all
    of it was received), "reorder" (received -> all earlier batches received), "ready" (in order -> delivered), "pin"
    (began -> in pinned memory), "upload" (the copy to the device, by the device's clock) or "step" (delivered -> the
    consumer asked for the next batch)."""
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """State and history of one worker."""

    worker: int
    """Worker id, from 0. A replacement keeps the id."""
    pid: int
    """Process id; 0 while there is no process."""
    state: str
    """See `WorkerGauge.state`."""
    batch: int | None
    """Number of the batch that it is processing; None when idle."""
    batch_age: float | None
    """How long it has been processing that batch, seconds; None when idle."""
    sample: Any
    """Dataset index of the sample that it is fetching; None when idle or unknown."""
    queued: int
    """Batches in its queue behind the current one."""
    batches: int
    """Batches that this worker id has produced since the loader was created, delivered or not."""
    batches_per_second: float
    """Rate over the last five seconds."""
    restarts: int
    """How often the process behind this id was replaced."""
    errors: int
    """Batches that failed in it."""
    cpu_percent: float | None
    """CPU use since the previous snapshot; 100 is one core. None where unknown."""
    rss: int | None
    """Resident memory, bytes; None where unknown."""
    exit_reason: str
    """Why the previous process with this id ended; "" if none has."""
    stderr_tail: str
    """Last lines that it wrote to standard error, at most 4 kB."""
    stuck: bool
    """Whether it has been processing its batch for longer than 2 s and longer than ten times the median."""
    held: tuple[int, ...] = ()
    """See `WorkerGauge.held`."""
    left: bool = False
    """See `WorkerGauge.left`."""
    private: int | None = None
    """Memory that no other process shares, bytes; None where unknown."""
    shared: int | None = None
    """Resident memory shared with other processes, bytes; None where unknown."""
    core_wait: float | None = None
    """See `WorkerGauge.core_wait`."""
    kind: str = "process"
    """See `WorkerGauge.kind`."""
    node: str = ""
    """See `WorkerGauge.node`."""


@dataclass(frozen=True, slots=True)
class SlowSample:
    """One of the slowest samples."""

    index: Any
    """Dataset index."""
    seconds: float
    """How long `dataset[index]` took."""
    batch: int
    """Batch number within its epoch."""
    epoch: int
    worker: int
    """Worker id; -1 for the notebook's own process."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the time series that the dashboard plots: means over an interval."""

    time: float
    """End of the interval, seconds since the loader's first event."""
    in_flight: float
    """Batches dispatched to workers and not received."""
    reordering: float
    """Batches received that wait for an earlier one."""
    ready: float
    """Batches in order that wait for the consumer."""
    batches_per_second: float
    wait_share: float
    """Share of the interval in which the consumer waited."""
    stages: tuple[float, ...]
    """Mean duration of each stage, milliseconds, in the order of `STAGES`."""
    samples_per_second: float = 0.0
    mb_per_second: float = 0.0
    """Megabytes (1e6 bytes) per second."""
    spread: tuple[Percentiles, ...] = ()
    """Percentiles of each stage, of the same batches as `stages`; empty before the first batch."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Time to produce a batch (fetch and collate) over the last 500 batches, in six bins per power of ten."""

    edges: tuple[float, ...] = ()
    """Edges of the bins, milliseconds: one more than there are bins. Empty before the first batch."""
    counts: tuple[int, ...] = ()
    """Batches in each bin."""


class Verdict(NamedTuple):
    """What limited the loop over a span of time."""

    cause: str = ""
    """One of the causes listed at `Snapshot.cause`."""
    sentence: str = ""
    """For a person, with the span and the numbers that it rests on."""
    also: str = ""
    """The second cause, if there are two; "" otherwise."""
    restart: tuple[int, ...] = ()
    """Workers whose restart would help."""


class Suggestion(NamedTuple):
    """A change that would help: new settings, or a restart of workers."""

    label: str
    """What it does, such as "Use 4 workers"."""
    call: str
    """The statement that does it, such as "loader.num_workers = 4"."""
    num_workers: int | None = None
    """Number of workers to use."""
    prefetch_factor: int | None = None
    """Batches to request ahead, per worker."""
    restart: tuple[int, ...] = ()
    """Workers to restart."""


class Outlook(NamedTuple):
    """What changes would gain."""

    text: str = ""
    """Predictions, such as "4 workers: 2.9 x (2.6 to 3.1); a larger window: nothing"; "" if there are none."""
    suggestions: tuple[Suggestion, ...] = ()
    """Changes that would help, the one with the largest gain first."""


class TuningGauge(NamedTuple):
    """A search for better settings, or the trial of one."""

    running: bool
    changed: bool
    """Whether it has changed the settings."""
    text: str
    """Its result, or what it waits for."""
    chosen: bool = False
    """Whether it is the trial of one setting that was chosen."""


NO_VERDICT = Verdict()
"""The verdict of a loader that has not been iterated."""
NO_OUTLOOK = Outlook()
"""Nothing is known about changes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a loader at one moment."""

    state: str
    """See `Gauges.state`; or "stopped": an error or an interrupt left the loop, and it has not come back."""
    epoch: int
    """Epoch of the newest iterator, from 0; -1 before the first."""
    batches_done: int
    """Batches delivered in that epoch, including the one that the consumer is processing."""
    batches_total: int | None
    """Batches of that epoch; None where unknown."""
    samples_done: int
    """Samples delivered in that epoch."""
    elapsed: float
    """Duration of that epoch until now, or until its end, seconds."""
    eta: float | None
    """Time left at the current rate, seconds; None where unknown, and while the loop is `stalled`. Until two batches
    have been delivered: estimated from the first one (`eta_rough`)."""
    batches_per_second: float
    """Rate over the last five seconds of activity (at least four batches, at most 2,000), after the first batch."""
    samples_per_second: float
    """Rate over the same time."""
    mb_per_second: float
    """Megabytes (1e6 bytes) per second over the same time."""
    wait_share: float
    """Share of the same time in which the consumer waited for a batch. Paused time is left out."""
    wait_share_epoch: float
    """The same over the epoch, including the wait for its first batch. Paused time is left out."""
    waiting: float | None
    """How long the consumer has been waiting for a batch, seconds; None while it is processing one."""
    waiting_for: int | None
    """Number of the batch that it waits for; None while it is processing one."""
    window: int
    """Prefetch window: batches that may be requested ahead."""
    in_flight: int
    """Batches dispatched to workers and not received."""
    reordering: int
    """Batches received that wait for an earlier one."""
    ready: int
    """Batches in order that wait for the consumer."""
    stages: tuple[StageStats, ...]
    """Durations over the last 200 batches, in the order of `STAGES`; empty before the first batch. "pin" and "upload"
    are included only if batches went through them."""
    cpu_share: float | None
    """CPU time divided by wall time of fetching, over the last 200 batches: near 1 it computes, near 0 it waits for
    disk, network or sleep. None before the first batch. Of fast batches some are not measured: see `BatchRecord`."""
    workers: tuple[WorkerStats, ...]
    """By worker id; empty with `num_workers=0`."""
    slowest: tuple[SlowSample, ...]
    """The ten slowest samples, slowest first."""
    errors: int
    """Batches that failed since the loader was created."""
    deaths: int
    """Workers that ended unexpectedly since the loader was created."""
    restarts: int
    """Workers that were replaced since the loader was created."""
    verdict: str
    """What limits the loop, as a sentence with the numbers that it rests on: of the last seconds while it runs, of the
    whole epoch afterwards."""
    cause: str = ""
    """The verdict as a word. States: "new", "closed" (without an epoch), "paused", "starting", "idle" (too short an
    epoch). The loop keeps up with the loader, or limits it: "consumer", "consumer_python" (Python in it).
    Workers: "workers_wait", "workers_compute" (and cores are free), "workers_compute_full" (none is), "collate",
    "worker" (one is stuck or slow), "slow_samples", "stall", "lock", "interpreter_lock", "threads", "cores_taken",
    "memory", "in_process" (no workers). Between them: "sampler", "window", "transport", "pickle", "huge_batches",
    "upload", "startup". "unknown": the measurements do not tell."""
    make_times: Histogram = Histogram()
    """Time to produce a batch."""
    skipped: int = 0
    """Samples that failed and were left out (`on_error="skip"`), since the loader was created."""
    replaced: int = 0
    """Samples that failed and were replaced (`on_error` is a function), since the loader was created."""
    failed_samples: tuple[SampleFailed, ...] = ()
    """The last 100 skipped, replaced or retried ones, oldest first."""
    epoch_rate: float = 0.0
    """Batches per second over the whole epoch, including start-up. Paused time is left out."""
    iterators: int = 0
    """Iterators that have not ended. Queues and rates are over all of them; progress is that of the newest."""
    at: int | None = None
    """Number of the batch that the consumer is processing; None before the first and while it waits."""
    at_for: float | None = None
    """How long it has been processing it, seconds."""
    asked: tuple[int, ...] = ()
    """See `Gauges.asked`."""
    made: tuple[ProducedBatch, ...] = ()
    """See `Gauges.made`."""
    pinned: bool = False
    """See `Gauges.pinned`."""
    device: str = ""
    """See `Gauges.device`."""
    begun: tuple[int, ...] = ()
    """See `Gauges.begun`."""
    uploads: UploadStats | None = None
    """None where nothing is pinned or uploaded, and before the first batch."""
    now: int = 0
    """When the snapshot was taken, perf_counter ns."""
    supervisor_failures: int = 0
    """How often the supervisor thread failed and was restarted, since the loader was created: a defect of nbloader."""
    retried: int = 0
    """Fetches of whole batches (`__getitems__`) that failed and were repeated sample by sample, since the loader was
    created."""
    now_verdict: Verdict = NO_VERDICT
    """What limited the loop in the last seconds in which it ran; kept after the end of the epoch and `close()`."""
    epoch_verdict: Verdict = NO_VERDICT
    """What limited it over the whole of the newest epoch so far; kept likewise."""
    cache: CacheGauge | None = None
    """The cache of samples, which all loaders share; None if no function is cached (`nbloader.cached`)."""
    tuning: TuningGauge | None = None
    """The newest search of `tune()`; None if there was none."""
    most_workers: int = 8
    """The largest number of workers that `tune()` tries: 4 for each core of the machines they run on, at least 8."""
    restart: tuple[int, ...] = ()
    """Workers whose restart would help."""
    outlook: Outlook = NO_OUTLOOK
    """What changes would gain, as of the last seconds."""
    stalled: float | None = None
    """How long the loop has been waiting for a batch, seconds, if that is longer than 2 s and than ten times the usual
    time to produce one or to wait for one: rates are 0 then. None while batches come."""
    first_batch_in: float | None = None
    """Estimate of the time until the first batch of the epoch is there, from those of its samples that are, seconds;
    None where unknown, and afterwards."""
    slow_in_common: str = ""
    """What the slow samples of the newest epoch have in common, such as "suffix .tif"; "" if there is nothing."""
    eta_rough: bool = False
    """Whether `eta` is an estimate from the first batch, as if the loop itself took no time."""
    rate_seconds: float = 0.0
    """Length of the time over which rates and `wait_share` were computed, seconds; 0 before the first batch is done:
    then `wait_share` is over the epoch so far."""

    def __repr__(self) -> str:
        """One line; `print` the snapshot for all of it."""
        return object.__repr__(self) if _renderer is None else _renderer.one_line(self)

    def __str__(self) -> str:
        """The whole snapshot as text of about 80 columns."""
        return repr(self) if _renderer is None else _renderer.to_text(self)

    def _repr_html_(self) -> str:
        """The whole snapshot as self-contained HTML, for a notebook."""
        return html.escape(repr(self)) if _renderer is None else _renderer.to_html(self)


class SnapshotRenderer(Protocol):
    """Formats snapshots. `nbloader.report.render` is one; importing `nbloader.report` registers it."""

    def one_line(self, s: Snapshot) -> str:
        """Text of one line."""
        ...

    def to_text(self, s: Snapshot) -> str:
        """Text for a terminal."""
        ...

    def to_html(self, s: Snapshot) -> str:
        """HTML for a notebook."""
        ...


_renderer: SnapshotRenderer | None = None


def set_renderer(renderer: SnapshotRenderer) -> None:
    """Choose what formats snapshots in `repr()`, `str()` and notebooks."""
    global _renderer  # noqa: PLW0603 - one per process: a snapshot itself is plain data
    _renderer = renderer
