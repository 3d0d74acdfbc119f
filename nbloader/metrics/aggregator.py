"""Events and gauges in, a frozen picture of the loader out. Pure: no clock, no process, no I/O of its own."""

from __future__ import annotations

import collections
import math
import threading
from dataclasses import replace

from nbloader._util import system
from nbloader.events import (
    BatchFailed,
    BatchRecord,
    DatasetReloaded,
    EpochEnded,
    EpochStarted,
    Event,
    LoaderPaused,
    LoaderResumed,
    SampleFailed,
    WorkerDied,
    WorkerRestarted,
)
from nbloader.events.gauges import Gauges, WorkerGauge
from nbloader.events.pauses import Pauses
from nbloader.metrics.evidence import Evidence, Judge, MakeTime, Verdict
from nbloader.metrics.rates import Rates, rates_of, waiting
from nbloader.metrics.snapshot import (
    STAGES,
    Histogram,
    Point,
    SlowSample,
    Snapshot,
    StageStats,
    WorkerStats,
)
from nbloader.metrics.stage_times import (
    SLOWEST,
    Plot,
    back,
    between,
    handing_share,
    histogram,
    middle,
    share_of,
    slowest,
    stage_stats,
    upload_stats,
)

__all__ = [
    "STAGES",
    "Gauges",
    "Histogram",
    "Point",
    "SlowSample",
    "Snapshot",
    "StageStats",
    "StatsFold",
    "WorkerGauge",
    "WorkerStats",
]


RECENT = 2000
"""Batch records kept, for rates."""
STAGE_BATCHES = 200
"""Batches that stage times rest on."""
FAILED_SAMPLES = 100
"""Samples that could not be fetched whose errors are kept."""
POINT_BATCHES = 64
"""Batches that a point of the plots rests on at most."""
HISTOGRAM_BATCHES = 500
"""Batches in the histogram of the time to make one."""
SLOW_RUNS = 3
"""Runs whose slowest samples are kept."""
STUCK_S, STUCK_TIMES = 2.0, 10
"""A worker is stuck when its batch lasts longer than this, and than this many median batches."""


class StatsFold:
    """Folds the events of one loader into totals, and makes snapshots of them.

    `update` runs once per batch and only counts; all arithmetic waits for `snapshot`. Safe to use from several threads.

    Args:
        judge: Finds the verdict of a snapshot, such as `nbloader.diagnose.bottleneck.judge`; None for no verdict.
        cores: CPU cores that workers may use, for the verdict; None for those this process may run on.
    """

    def __init__(self, judge: Judge | None = None, cores: int | None = None) -> None:
        self._judge = judge or _no_verdict
        self._cores = cores or system.cores()
        # Reentrant: the garbage collector may end an abandoned iterator, and so publish, in the middle of an update.
        self._lock = threading.RLock()
        self._recent: collections.deque[BatchRecord] = collections.deque(maxlen=RECENT)
        self._total = self._waited = 0
        self._made: dict[int, int] = {}
        self._failed: collections.Counter[int] = collections.Counter()
        self._replaced: collections.Counter[int] = collections.Counter()
        self._deaths = 0
        self._failed_samples: collections.deque[SampleFailed] = collections.deque(maxlen=FAILED_SAMPLES)
        self._spared: collections.Counter[str] = collections.Counter()
        self._slow: dict[int, list[BatchRecord]] = {}
        self._slow_floor: dict[int, int] = {}
        self._pauses = Pauses()
        self._origin: int | None = None
        self._run = self._epoch = -1
        self._batches: int | None = None
        self._began = self._done = self._samples = self._epoch_waited = 0
        self._first: BatchRecord | None = None
        self._ended: EpochEnded | None = None
        self._plot = Plot()

    def update(self, event: Event) -> None:
        """Count one event. About a microsecond for a `BatchRecord`."""
        with self._lock:
            if not isinstance(event, BatchRecord):
                self._lifecycle(event)
                return
            run = event.run
            if run > self._run:  # its EpochStarted was not seen, or comes late
                self._begin(run, event.epoch, None, event.requested)
            self._recent.append(event)
            self._total += 1
            wait = event.delivered - event.requested
            if self._pauses:
                wait -= self._pauses.within(event.requested, event.delivered)
            if wait > 0:
                self._waited += wait
                if run == self._run:
                    self._epoch_waited += wait
            if run == self._run:
                self._done += 1
                self._samples += event.samples
                if self._first is None:
                    self._first = event
            worker = event.worker
            self._made[worker] = self._made.get(worker, 0) + 1
            if event.slowest_ns > self._slow_floor.get(run, 0):
                self._note_slow(event)

    def snapshot(self, gauges: Gauges) -> Snapshot:
        """Make a picture of the loader from the events so far and from what it says of itself now."""
        with self._lock:
            picture, records = self._picture(gauges)
            fresh = min(self._total - self._plot.total, len(records), POINT_BATCHES)
            newest = records[len(records) - fresh :]
            if self._origin is not None:
                waited = self._waited + waiting(gauges, self._pauses, gauges.now)
                age = gauges.now - self._origin
                self._plot.add(picture, gauges.now, age, total=self._total, waited=waited, fresh=newest)
            return picture

    def points(self) -> list[Point]:
        """The plot points of the last 120 s, oldest first: one per `snapshot` that came 0.2 s or more after the last.

        Idle loaders make none, so that the plots of an epoch stay after its end.
        """
        with self._lock:
            return list(self._plot.points)

    # --- counting

    def _lifecycle(self, event: Event) -> None:  # noqa: C901, PLR0912 - one branch per kind of event
        if isinstance(event, BatchRecord):
            return
        if self._origin is None:
            self._origin = event.time
        if isinstance(event, EpochStarted):
            if event.run >= self._run:
                self._begin(event.run, event.epoch, event.batches, event.time)
        elif isinstance(event, EpochEnded):
            if event.run == self._run:
                self._ended = event
        elif isinstance(event, WorkerDied):
            self._deaths += not event.expected
        elif isinstance(event, WorkerRestarted):
            self._replaced[event.worker] += 1
        elif isinstance(event, BatchFailed):
            self._failed[event.worker] += 1
        elif isinstance(event, SampleFailed):
            self._spared[event.done] += 1
            self._failed_samples.append(event)
        elif isinstance(event, LoaderPaused):
            self._pauses.begin(event.time)
        elif isinstance(event, LoaderResumed):
            self._pauses.end(event.time)
        elif isinstance(event, DatasetReloaded):
            # How the old dataset fared says nothing of the new one.
            self._recent.clear()
            self._slow.clear()
            self._slow_floor.clear()

    def _begin(self, run: int, epoch: int, batches: int | None, time: int) -> None:
        if self._origin is None:
            self._origin = time
        known = run == self._run
        self._run, self._epoch, self._batches, self._began = run, epoch, batches, time
        if known:  # its batches came before its EpochStarted
            return
        self._done = self._samples = self._epoch_waited = 0
        self._first = self._ended = None
        for old in sorted(self._slow)[: -(SLOW_RUNS - 1)]:
            del self._slow[old]
            self._slow_floor.pop(old, None)

    def _note_slow(self, record: BatchRecord) -> None:
        if record.run <= self._run - SLOW_RUNS:
            return
        kept = self._slow.setdefault(record.run, [])
        kept.append(record)
        if len(kept) >= 4 * SLOWEST:
            kept[:] = slowest(kept)
            if len(kept) == SLOWEST:
                self._slow_floor[record.run] = kept[-1].slowest_ns

    # --- the picture

    def _picture(self, g: Gauges) -> tuple[Snapshot, list[BatchRecord]]:
        records = list(self._recent)
        last = records[-STAGE_BATCHES:]
        live = self._ended is None and self._run >= 0 and g.state in ("starting", "running", "paused")
        rates = rates_of(
            g, records, self._pauses, first=self._first, began=self._began, run=self._run, live=live
        )  # fmt: skip
        end = g.now if self._ended is None else self._ended.time
        done = self._done if self._ended is None else max(self._done, self._ended.batches)
        if live and g.run == self._run:
            done = max(done, g.delivered)
        active = self._pauses.active(self._began, end) if self._run >= 0 else 0
        left = max(0, self._batches - done) if live and g.state != "paused" and self._batches is not None else None
        fetch_ns = sum(between(r.fetch_begin, r.fetched) for r in last)
        usual_ns = middle([between(r.fetch_begin, r.collated) for r in last])
        picture = Snapshot(
            state=g.state,
            epoch=self._epoch,
            batches_done=done,
            batches_total=self._batches,
            samples_done=self._samples,
            elapsed=max(0, end - self._began) / 1e9 if self._run >= 0 else 0.0,
            eta=left / rates.own if left is not None and rates.own > 0 else None,
            batches_per_second=rates.batches,
            samples_per_second=rates.samples,
            mb_per_second=rates.nbytes / 1e6,
            wait_share=rates.wait_share,
            wait_share_epoch=self._epoch_share(g, records, live=live),
            waiting=None if g.waiting_since is None else max(0, g.now - g.waiting_since) / 1e9,
            waiting_for=g.waiting_for,
            window=g.window,
            in_flight=g.in_flight,
            reordering=g.reordering,
            ready=g.ready,
            stages=stage_stats(last),
            cpu_share=min(1.0, max(0.0, sum(r.fetch_cpu for r in last) / fetch_ns)) if fetch_ns else None,
            workers=tuple(self._worker(w, g.now, usual_ns, rates) for w in g.workers),
            slowest=tuple(
                SlowSample(r.slowest_index, r.slowest_ns / 1e9, r.index, r.epoch, r.worker)
                for r in slowest([r for kept in self._slow.values() for r in kept])
            ),
            errors=sum(self._failed.values()),
            deaths=self._deaths,
            restarts=sum(self._replaced.values()),
            verdict="",
            make_times=histogram(records[-HISTOGRAM_BATCHES:]),
            skipped=self._spared["skipped"],
            replaced=self._spared["replaced"],
            failed_samples=tuple(self._failed_samples),
            epoch_rate=done * 1e9 / active if active else 0.0,
            iterators=g.iterators,
            at=g.at,
            at_for=max(0, g.now - g.at_since) / 1e9 if g.at is not None and g.at_since else None,
            asked=g.asked,
            made=g.made,
            pinned=g.pinned,
            device=g.device,
            begun=g.begun,
            uploads=upload_stats(last),
            now=g.now,
        )
        cause, sentence = self._judge(picture, self._evidence(g, last, usual_ns, rates))
        return replace(picture, cause=cause, verdict=sentence), records

    def _epoch_share(self, g: Gauges, records: list[BatchRecord], *, live: bool) -> float:
        waited = self._epoch_waited
        if self._ended is not None:
            end = self._ended.time
        elif live and g.waiting_since is not None:
            end = g.now
            waited += waiting(g, self._pauses, end, self._began)
        else:
            end = next((back(r) for r in reversed(records) if r.run == self._run), self._began)
        return share_of(waited, self._pauses.active(self._began, end))

    def _worker(self, w: WorkerGauge, now: int, usual_ns: int | None, rates: Rates) -> WorkerStats:
        age = None if w.batch is None else max(0, now - w.since) / 1e9
        limit = math.inf if usual_ns is None else max(STUCK_S, STUCK_TIMES * usual_ns / 1e9)
        return WorkerStats(
            worker=w.worker,
            pid=w.pid,
            state=w.state,
            batch=w.batch,
            batch_age=age,
            sample=w.sample,
            queued=w.queued,
            batches=max(w.made, self._made.get(w.worker, 0)),
            batches_per_second=rates.workers.get(w.worker, 0.0),
            restarts=self._replaced[w.worker],
            errors=self._failed[w.worker],
            cpu_percent=w.cpu_percent if w.cpu_percent is not None and math.isfinite(w.cpu_percent) else None,
            rss=w.rss,
            exit_reason=w.exit_reason,
            stderr_tail=w.stderr_tail,
            stuck=age is not None and age > limit and w.state in ("fetching", "collating", "sending"),
            held=w.held,
            left=w.left,
            private=w.private,
            shared=w.shared,
            core_wait=w.core_wait,
        )

    def _first_batch(self, g: Gauges) -> float | None:
        """Seconds until the epoch's first batch was delivered; its record comes only when the loop is done with it."""
        if self._first is not None:
            return max(0, self._first.delivered - self._began) / 1e9
        if g.run == self._run and g.delivered and g.at_since:
            return max(0, g.at_since - self._began) / 1e9
        return None

    def _evidence(self, g: Gauges, last: list[BatchRecord], usual_ns: int | None, rates: Rates) -> Evidence:
        pids = {w.worker: w.pid for w in g.workers}
        by_worker: dict[int, list[int]] = collections.defaultdict(list)
        for r in last:
            if pids.get(r.worker) == r.pid:  # what a replaced process did says nothing of the new one
                by_worker[r.worker].append(between(r.fetch_begin, r.collated))
        count = max(1, len(last))
        return Evidence(
            cores=self._cores,
            recent=rates.count,
            first_batch=self._first_batch(g),
            ended="" if self._ended is None else self._ended.reason or "abandoned",
            paused_for=None if self._pauses.since is None else max(0, g.now - self._pauses.since) / 1e9,
            in_process=not g.workers and bool(last) and last[-1].worker < 0,
            make_ms=(usual_ns or 0) / 1e6,
            make_ms_by_worker={w: MakeTime(len(ns), (middle(ns) or 0) / 1e6) for w, ns in by_worker.items()},
            ready_mean=sum(r.ready for r in last) / count,
            nbytes_mean=sum(r.nbytes for r in last) / count,
            pickled=sum(r.transport == "pickle" for r in last) / count,
            handing=handing_share(last),
        )


def _no_verdict(_snapshot: Snapshot, _evidence: Evidence) -> Verdict:
    return Verdict("", "")
