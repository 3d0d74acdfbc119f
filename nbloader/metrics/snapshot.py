"""The frozen snapshot of a loader and the records that it consists of.

`DataLoader.stats()` returns a `Snapshot`. The dashboard, the reports and the bottleneck rules read snapshots. A
`SnapshotRenderer`, which `nbloader.report` registers, formats them as text and HTML.

Times are in seconds, durations of stages in milliseconds. Rates are per second. Shares range from 0 to 1.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from nbloader.events import SampleFailed
from nbloader.events.gauges import CacheGauge, DeviceGauge, ProducedBatch

STAGES = ("queue", "fetch", "collate", "transport", "transfer", "reorder", "ready", "pin", "upload", "step")
"""The stages that a batch goes through. Each stage begins where the previous one ends, except "pin" and "upload". These
two overlap "ready" and the preceding "step", since a batch may be uploaded while the loop still processes another
batch."""
OVERLAPPING_STAGES = ("pin", "upload")
"""Stages that overlap others."""
OPTIONAL_STAGES = ("transfer", *OVERLAPPING_STAGES)
"""Stages that only some batches go through."""


ENDED = ("idle", "closed", "stopped")
"""States after the start of the first epoch in which no loop is running."""


class Percentiles(NamedTuple):
    """Percentiles of a duration (nearest rank), milliseconds."""

    p50: float
    p95: float
    p99: float


class PinnedBatches(NamedTuple):
    """Number of batches that the device read from one kind of memory."""

    memory: str
    """"registered" (the shared memory into which a worker wrote the batch, pinned in place), "copied" (a pool of pinned
    memory) or "pageable"."""
    batches: int


@dataclass(frozen=True, slots=True)
class UploadStats:
    """Statistics of pinning and uploading. Batches that were neither pinned nor uploaded are not included.

    In a `Snapshot`, they cover the last 200 batches.
    """

    ways: tuple[PinnedBatches, ...]
    """Number of batches per kind of memory that the device read, most frequent kind first."""
    pin: float
    """Mean time to pin a batch, milliseconds."""
    copy: float | None
    """Mean time of a copy to the device, measured by the device, milliseconds; None if unknown."""
    gb_per_second: float | None
    """Throughput of these copies, GB (1e9 bytes) per second; None if unknown."""
    hidden: float | None
    """Share of the copy time that overlapped the device's work on earlier batches; None if unknown."""


@dataclass(frozen=True, slots=True)
class StageStats:
    """Statistics of the duration of one stage over the last 200 batches, milliseconds."""

    name: str
    """"queue" (dispatched -> fetch began), "fetch", "collate", "transport" (collated -> received; for a batch from
    another machine: collated -> that machine began to send it), "transfer" (another machine began to send the batch ->
    the whole batch was received), "reorder" (received -> all earlier batches received), "ready" (in order ->
    delivered), "pin" (began -> in pinned memory), "upload" (the copy to the device, measured by the device) or "step"
    (delivered -> the consumer requested the next batch)."""
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
    """Number of the batch that the worker is processing; None when idle."""
    batch_age: float | None
    """How long the worker has been processing that batch, seconds; None when idle."""
    sample: Any
    """Dataset index of the sample that the worker is fetching; None when idle or unknown."""
    queued: int
    """Number of batches in its queue behind the current one."""
    batches: int
    """Number of batches that this worker id has produced since the loader was created, delivered or not."""
    batches_per_second: float
    """Rate over the last five seconds."""
    restarts: int
    """How often the process with this id was replaced."""
    errors: int
    """Number of batches that failed in this worker."""
    cpu_percent: float | None
    """CPU usage since the previous snapshot; 100 means one core. None if unknown."""
    rss: int | None
    """Resident memory, bytes; None if unknown."""
    exit_reason: str
    """Why the previous process with this id ended; "" if there was none."""
    stderr_tail: str
    """The last lines that the worker wrote to standard error, at most 4 kB."""
    stuck: bool
    """Whether the worker has been processing its batch for longer than 2 s and for more than ten times the median.
    Until the first batch of an epoch was delivered: for longer than 10 s. False if no batch was measured."""
    held: tuple[int, ...] = ()
    """See `WorkerGauge.held`."""
    left: bool = False
    """See `WorkerGauge.left`."""
    private: int | None = None
    """Memory that belongs to this process alone, bytes; None if unknown."""
    shared: int | None = None
    """Files (segments, libraries) and memory shared by a fork, bytes; None if unknown."""
    core_wait: float | None = None
    """See `WorkerGauge.core_wait`."""
    kind: str = "process"
    """See `WorkerGauge.kind`."""
    node: str = ""
    """See `WorkerGauge.node`."""
    in_process: bool = False
    """See `WorkerGauge.in_process`."""


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
    """Worker id; -1 for the notebook process."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the time series that the dashboard plots: mean values over an interval."""

    time: float
    """End of the interval, seconds since the loader's first event."""
    in_flight: float
    """Batches dispatched to workers but not yet received."""
    reordering: float
    """Batches received that wait for an earlier batch."""
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
    """Percentiles of each stage over the same batches as `stages`; empty before the first batch."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Time to produce one of the last 500 batches (fetch and collate), a histogram with six bins per power of ten."""

    edges: tuple[float, ...] = ()
    """Edges of the bins, milliseconds. There is one more edge than bins; empty before the first batch."""
    counts: tuple[int, ...] = ()
    """Number of batches in each bin."""


class Verdict(NamedTuple):
    """What limited the loop over a span of time."""

    cause: str = ""
    """One of the causes, see `Snapshot.cause`."""
    sentence: str = ""
    """An explanation for the user, with the span and the numbers that it is based on."""
    also: str = ""
    """The second cause if there are two; "" otherwise."""
    restart: tuple[int, ...] = ()
    """Workers whose restart would help."""
    evidence: str = ""
    """The part of `sentence` that says what limited the loop, without what to do about it."""
    more_workers: bool | None = None
    """Whether more workers help; None if `sentence` does not say so."""
    larger_window: bool | None = None
    """Whether a larger prefetch window helps; None if `sentence` does not say so."""
    failure: str = ""
    """The beginning of `sentence` that says which error ended the epoch; "" if none did."""


class Suggestion(NamedTuple):
    """A change that would help: new settings, or a restart of workers."""

    label: str
    """What the change does, such as "Use 4 workers"."""
    call: str
    """The statement that makes the change, such as "loader.num_workers = 4"."""
    num_workers: int | None = None
    """Number of workers to use; None to keep it."""
    prefetch_factor: int | None = None
    """Number of batches to request ahead per worker; None to keep it."""
    restart: tuple[int, ...] = ()
    """Workers to restart."""


class Outlook(NamedTuple):
    """How much changes would speed up the loop."""

    text: str = ""
    """The predictions, such as "4 workers: 2.9x (2.6 to 3.1); a larger window: nothing"; "" if there are none."""
    suggestions: tuple[Suggestion, ...] = ()
    """Changes that would help: first a restart of workers, then settings by decreasing gain."""


class TuningGauge(NamedTuple):
    """The state of a search for better settings, or of the trial of a single setting."""

    running: bool
    changed: bool
    """Whether the search or trial has changed the settings."""
    text: str
    """The result, or what the search is waiting for."""
    chosen: bool = False
    """Whether this is the trial of a single setting that was chosen, not a search."""


NO_VERDICT = Verdict()
"""The verdict of a loader that has not been iterated."""
NO_OUTLOOK = Outlook()
"""The outlook if nothing is known about the effect of changes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a loader at one moment."""

    state: str
    """See `Gauges.state`; or "stopped" if an error or an interrupt ended the loop and iteration has not resumed."""
    epoch: int
    """Epoch of the newest iterator, from 0; -1 before the first epoch."""
    batches_done: int
    """Number of batches delivered in that epoch, including the one that the consumer is processing."""
    batches_total: int | None
    """Number of batches in that epoch; None if unknown."""
    samples_done: int
    """Number of samples delivered in that epoch."""
    elapsed: float
    """Duration of that epoch until now or until its end, seconds."""
    eta: float | None
    """Time left at the current rate, seconds; None if unknown and while the loop is `stalled`. Until the consumer has
    processed two batches, it is estimated from the first batches (`eta_rough`)."""
    batches_per_second: float
    """Rate over the last five seconds of activity (at least four batches, at most 2,000), after the first batch."""
    samples_per_second: float
    """Rate over the same interval."""
    mb_per_second: float
    """Megabytes (1e6 bytes) per second over the same interval."""
    wait_share: float
    """Share of the same interval in which the consumer waited for a batch. Paused time is excluded."""
    wait_share_epoch: float
    """The same share over the epoch, including the wait for the first batch. Paused time is excluded."""
    waiting: float | None
    """How long the consumer has been waiting for a batch, seconds; None while it is processing one."""
    waiting_for: int | None
    """Number of the batch that the consumer is waiting for; None while it is processing one."""
    window: int
    """Size of the prefetch window: number of batches that may be requested ahead."""
    in_flight: int
    """Number of batches dispatched to workers but not yet received."""
    reordering: int
    """Number of batches received that wait for an earlier batch."""
    ready: int
    """Number of batches in order that wait for the consumer."""
    stages: tuple[StageStats, ...]
    """Durations over the last 200 batches, in the order of `STAGES`; empty before the first batch. The
    `OPTIONAL_STAGES` are included only if batches went through them."""
    cpu_share: float | None
    """CPU time divided by wall time of fetching, over the last 200 batches. Near 1, fetching computes; near 0, it waits
    for disk, network or sleep. None before the first batch. Not every fast batch is measured: see `BatchRecord`."""
    workers: tuple[WorkerStats, ...]
    """The workers by id; empty with `num_workers=0`."""
    slowest: tuple[SlowSample, ...]
    """The ten slowest samples, slowest first."""
    errors: int
    """Number of batches that failed since the loader was created."""
    deaths: int
    """Number of workers that ended unexpectedly since the loader was created."""
    restarts: int
    """Number of workers that were replaced since the loader was created."""
    verdict: str
    """What limits the loop, as a sentence with the numbers that it is based on. It covers the last seconds while the
    loop runs, and the whole epoch afterwards."""
    cause: str = ""
    """The verdict as a word. States: "new", "closed" (without an epoch), "paused", "starting", "idle" (the epoch
    was too short). Causes: "consumer" (the loop is slower than the loader), "worker" (one is stuck or slow),
    "workers_wait", "unknown" (the measurements are inconclusive), and the others that the page about diagnosis explains
    under "How a cause is found"."""
    make_times: Histogram = Histogram()
    """Time to produce a batch."""
    skipped: int = 0
    """Number of samples that failed and were skipped (`on_error="skip"`) since the loader was created."""
    replaced: int = 0
    """Number of samples that failed and were replaced (`on_error` is a function) since the loader was created."""
    failed_samples: tuple[SampleFailed, ...] = ()
    """The last 100 samples that were skipped, replaced or retried, oldest first."""
    epoch_rate: float = 0.0
    """Batches per second over the whole epoch, including start-up. Paused time is excluded."""
    iterators: int = 0
    """Number of iterators that have not ended. Queue lengths and rates cover all of them, progress only the newest."""
    at: int | None = None
    """Number of the batch that the consumer is processing; None before the first batch, while the consumer waits, and
    after an error or an interrupt ended the loop."""
    at_for: float | None = None
    """How long the consumer has been processing that batch, seconds; None if unknown or if `at` is None."""
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
    devices: tuple[DeviceGauge, ...] = ()
    """See `Gauges.devices`."""
    uploads: UploadStats | None = None
    """Pinning and uploading; None if batches are neither pinned nor uploaded, and before the first batch."""
    now: int = 0
    """When the snapshot was taken, perf_counter ns."""
    supervisor_failures: int = 0
    """How often the engine's thread failed (a bug in nbloader) and went on since the loader was created."""
    retried: int = 0
    """Number of fetches of whole batches (`__getitems__`) that failed and were repeated sample by sample since the
    loader was created."""
    now_verdict: Verdict = NO_VERDICT
    """What limited the loop in the last seconds in which it ran. Kept after the end of the epoch and `close()`."""
    epoch_verdict: Verdict = NO_VERDICT
    """What limited the loop over the newest epoch so far. Kept after the end of the epoch and `close()`."""
    cache: CacheGauge | None = None
    """The cache of samples, which all loaders share; None if no function is cached (`nbloader.cached`)."""
    tuning: TuningGauge | None = None
    """The newest search of `tune()`; None if there has been none."""
    most_workers: int = 8
    """The largest number of workers that `tune()` tries: 4 per core of the machines that workers run on, at least 8."""
    restart: tuple[int, ...] = ()
    """Workers whose restart would help."""
    outlook: Outlook = NO_OUTLOOK
    """How much changes would speed up the loop, predicted from the last seconds."""
    stalled: float | None = None
    """How long the loop has been waiting for a batch, seconds, if this is longer than 2 s and more than ten times both
    the usual time to produce a batch and the usual wait. Before the first batch: if a worker is stuck in that batch.
    Rates are 0 then. None while batches arrive, and if no batch was measured."""
    first_batch_in: float | None = None
    """Estimated time until the first batch of the epoch is complete, seconds. The estimate is based on the samples of
    that batch that have been fetched. None if unknown, if a sample takes far longer than those before it, and after the
    first batch."""
    slow_in_common: str = ""
    """What the slow samples of the newest epoch have in common, such as "suffix .tif"; "" if nothing."""
    eta_rough: bool = False
    """Whether `eta` is an estimate from the first batches, which assumes that the loop itself takes no time."""
    headspace: float | None = None
    """Batches per second that the loop would consume if loading took no time: the batches of the interval of
    `batches_per_second`, divided by the time in which the loop did not wait. None if that was not measured."""
    headspace_epoch: float | None = None
    """The same over the epoch so far."""
    rate_seconds: float = 0.0
    """Length of the interval over which rates and `wait_share` were computed, seconds. It is 0 until the consumer has
    processed the first batch: until then, `wait_share` covers the epoch so far."""
    failure: str = ""
    """The first sentence of `verdict`, if it says which error ended the newest epoch; "" otherwise. An interrupt is no
    error."""

    def __repr__(self) -> str:
        """Return a one-line summary; `print` shows the whole snapshot."""
        return object.__repr__(self) if _renderer is None else _renderer.one_line(self)

    def __str__(self) -> str:
        """Return the whole snapshot as text of about 80 columns."""
        return repr(self) if _renderer is None else _renderer.to_text(self)

    def _repr_html_(self) -> str:
        """Return the whole snapshot as self-contained HTML for a notebook."""
        return html.escape(repr(self)) if _renderer is None else _renderer.to_html(self)


class SnapshotRenderer(Protocol):
    """Formats snapshots. `nbloader.report.render` implements it; importing `nbloader.report` registers it."""

    def one_line(self, s: Snapshot) -> str:
        """Format a snapshot as one line of text."""
        ...

    def to_text(self, s: Snapshot) -> str:
        """Format a snapshot as text for a terminal."""
        ...

    def to_html(self, s: Snapshot) -> str:
        """Format a snapshot as HTML for a notebook."""
        ...


_renderer: SnapshotRenderer | None = None


def set_renderer(renderer: SnapshotRenderer) -> None:
    """Set the renderer that formats snapshots in `repr()`, `str()` and notebooks."""
    global _renderer  # noqa: PLW0603 - one per process: a snapshot itself is plain data
    _renderer = renderer
