"""What a picture of a loader is made of: the gauges that go in, the frozen snapshot that comes out. Pure.

Users find these in `nbloader.stats`.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, Protocol

from nbloader.events import SampleFailed
from nbloader.events.gauges import Made


@dataclass(frozen=True, slots=True)
class UploadStats:
    """How batches came into pinned memory and onto a device, over those of the last 200 that did."""

    ways: tuple[tuple[str, int], ...]
    """Batches by where the device read them, most first: "registered" (the shared memory in which they were made,
    pinned where it lies), "copied" (to pinned memory) or "pageable"."""
    pin: float
    """Mean time to pin, milliseconds."""
    copy: float | None
    """Mean time of the copy to the device, by the device's clock, milliseconds; None where that is not known."""
    gb_per_second: float | None
    """Of those copies, 1e9 bytes a second."""
    hidden: float | None
    """Share of the time of those copies in which the device still worked on earlier batches, 0 to 1."""


@dataclass(frozen=True, slots=True)
class StageStats:
    """How long one stage of the path took, over the batches in the window. All in milliseconds."""

    name: str
    """"queue" (sent -> fetch begun), "fetch", "collate", "transport" (collated -> received), "reorder" (received -> in
    order), "ready" (in order -> delivered), "pin" (taken up -> in pinned memory), "upload" (the copy to the device, by
    the device's clock), "step" (delivered -> the consumer came back)."""
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One row of the table of workers."""

    worker: int
    pid: int
    state: str
    """As `WorkerGauge.state`."""
    batch: int | None
    """Batch it is at now."""
    batch_age: float | None
    """For how long, seconds."""
    sample: Any
    """Dataset index of the sample it is at."""
    queued: int
    batches: int
    """Batches made by this worker id since the loader was made, those included that wait for the consumer."""
    batches_per_second: float
    """Over the last five seconds."""
    restarts: int
    """How often the process behind this id was replaced."""
    errors: int
    """Batches that failed in it."""
    cpu_percent: float | None
    rss: int | None
    """Bytes."""
    exit_reason: str
    """Why the process before this one ended."""
    stderr_tail: str
    stuck: bool
    """True when its current batch has lasted longer than 2 s and longer than ten times the median batch."""
    held: tuple[int, ...] = ()
    """As `WorkerGauge.held`."""
    left: bool = False
    """As `WorkerGauge.left`."""
    private: int | None = None
    """Memory that is its own, bytes."""
    shared: int | None = None
    """Resident memory that it shares with other processes, bytes."""
    core_wait: float | None = None
    """As `WorkerGauge.core_wait`."""


@dataclass(frozen=True, slots=True)
class SlowSample:
    """One of the slowest samples seen."""

    index: Any
    """Dataset index."""
    seconds: float
    batch: int
    epoch: int
    worker: int


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the plots over time."""

    time: float
    """Seconds since the loader's first event."""
    in_flight: float
    reordering: float
    ready: float
    batches_per_second: float
    wait_share: float
    """Share of the interval in which the consumer waited, 0 to 1."""
    stages: tuple[float, ...]
    """Mean milliseconds by stage, in the order of `STAGES`."""
    samples_per_second: float = 0.0
    mb_per_second: float = 0.0
    spread: tuple[tuple[float, float, float], ...] = ()
    """p50, p95 and p99 by stage, milliseconds, of the same batches as `stages`; empty before the first."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long the last 500 batches took to make (fetch and collate), in bins of a sixth of a decade."""

    edges: tuple[float, ...] = ()
    """Milliseconds, one more than there are bins; empty before the first batch."""
    counts: tuple[int, ...] = ()
    """Batches in each bin."""


STAGES = ("queue", "fetch", "collate", "transport", "reorder", "ready", "pin", "upload", "step")
"""Each begins where the one before ends, but for "pin" and "upload", which lie beside "ready" and the "step" before: a
batch may be brought to its device while the loop still works on another."""
BESIDE = ("pin", "upload")
"""Stages that overlap others, and that only some batches go through."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A frozen picture of a loader: what `loader.stats()` gives and what the dashboard draws."""

    state: str
    """As `Gauges.state`."""
    epoch: int
    """Epoch of the newest iterator, from 0; -1 before the first."""
    batches_done: int
    """Delivered in that epoch, the one that the loop is at included."""
    batches_total: int | None
    """In that epoch; None where not known."""
    samples_done: int
    """Samples delivered in that epoch."""
    elapsed: float
    """Seconds since that epoch began; until its end once it has ended."""
    eta: float | None
    """Seconds left at the present rate; None where not known."""
    batches_per_second: float
    """Over the last five seconds of activity (2,000 batches at most, four at least), after the epoch's first batch."""
    samples_per_second: float
    mb_per_second: float
    """Megabytes (1e6 bytes) a second."""
    wait_share: float
    """Share of the same time in which the consumer waited for the loader, 0 to 1. Time paused counts as neither."""
    wait_share_epoch: float
    """The same over the epoch, the wait for its first batch included; time paused counts as neither here too."""
    waiting: float | None
    """For how long the consumer has been waiting now, seconds; None while it works."""
    waiting_for: int | None
    """The batch that it waits for."""
    window: int
    in_flight: int
    reordering: int
    ready: int
    stages: tuple[StageStats, ...]
    """Over the last 200 batches, in the order of `STAGES`; empty before the first batch. "pin" and "upload" are there
    only where batches went through them."""
    cpu_share: float | None
    """CPU time over wall time of fetch, last 200 batches: near 1 computes, near 0 waits. None before the first."""
    workers: tuple[WorkerStats, ...]
    slowest: tuple[SlowSample, ...]
    """The ten slowest samples, slowest first."""
    errors: int
    """Batches that failed, since the loader was made."""
    deaths: int
    """Workers that died unasked, since the loader was made."""
    restarts: int
    """Workers replaced, since the loader was made."""
    verdict: str
    """What limits the loop now, with the numbers it rests on."""
    cause: str = ""
    """The verdict as a word: "closed", "new", "paused", "starting", "idle", "consumer" (the loop is the limit),
    "in_process" (no workers), "worker" (one of them is stuck or slow), "workers", "workers_compute", "workers_wait",
    "transport" or "upload" (pinned memory or the device)."""
    make_times: Histogram = Histogram()
    """How long the last batches took to make."""
    skipped: int = 0
    """Samples that could not be fetched and were left out (`on_error="skip"`), since the loader was made."""
    replaced: int = 0
    """Samples that could not be fetched and were replaced (by the function `on_error`), since the loader was made."""
    failed_samples: tuple[SampleFailed, ...] = ()
    """The last hundred of both, oldest first."""
    epoch_rate: float = 0.0
    """Batches a second over the whole epoch, start-up included, time paused left out."""
    iterators: int = 0
    """Iterators that have not ended. Queues and rates are over all of them, progress is the newest one's."""
    at: int | None = None
    """Number of the batch that the loop works on; None before the first and while it waits."""
    at_for: float | None = None
    """For how long, seconds."""
    asked: tuple[int, ...] = ()
    """As `Gauges.asked`."""
    made: tuple[Made, ...] = ()
    """As `Gauges.made`."""
    pinned: bool = False
    """As `Gauges.pinned`."""
    device: str = ""
    """As `Gauges.device`."""
    begun: tuple[int, ...] = ()
    """As `Gauges.begun`."""
    uploads: UploadStats | None = None
    """None where nothing is pinned or uploaded, and before the first batch."""
    now: int = 0
    """When the picture was taken, perf_counter ns."""

    def __repr__(self) -> str:
        """Give one line; `print` the snapshot for all of it."""
        return object.__repr__(self) if _renderer is None else _renderer.one_line(self)

    def __str__(self) -> str:
        """Give the whole picture as text of about 80 columns."""
        return repr(self) if _renderer is None else _renderer.to_text(self)

    def _repr_html_(self) -> str:
        """Give the whole picture as HTML that needs nothing else, for a notebook."""
        return html.escape(repr(self)) if _renderer is None else _renderer.to_html(self)


class SnapshotRenderer(Protocol):
    """Writes snapshots for people. `nbloader.report.render` is one, and registers itself when it is imported."""

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
    """Choose who writes snapshots for `repr()`, `str()` and notebooks."""
    global _renderer  # noqa: PLW0603 - one per process: a snapshot itself is plain data
    _renderer = renderer
