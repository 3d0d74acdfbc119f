"""Aggregates events and gauges into frozen snapshots. Pure: no clock, no process and no I/O.

One exception: the number of cores is read from the system if it was not given.
"""

from __future__ import annotations

import collections
import itertools
import math
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from nbloader import _platform
from nbloader.events import (
    BatchFailed,
    BatchRecord,
    DatasetReloaded,
    EpochEnded,
    EpochStarted,
    Event,
    LoaderPaused,
    LoaderResumed,
    LoopStopped,
    Machine,
    SampleFailed,
    SupervisorFailed,
    WorkerDied,
    WorkerLeaving,
    WorkerReady,
    WorkerRestarted,
)
from nbloader.events.gauges import Gauges, WorkerGauge
from nbloader.events.pauses import Pauses
from nbloader.events.records import LifecycleEvent
from nbloader.metrics.evidence import (
    Evidence,
    Judge,
    JudgedEpoch,
    KnownFacts,
    LoaderStatus,
    Place,
    SlowLine,
)
from nbloader.metrics.rates import (
    FIRST_STUCK_S,
    FirstBatch,
    FirstBatchPace,
    Rates,
    is_late,
    rates_of,
    stalled_for,
    usual_make_ns,
    waiting,
    without_progress,
)
from nbloader.metrics.slow_samples import SlowSamples
from nbloader.metrics.snapshot import Point, Snapshot, WorkerStats
from nbloader.metrics.span import SAMPLED, EpochSample, SpanOptions, continued, measure, thin_out
from nbloader.metrics.stage_times import (
    cpu_share,
    elapsed_ns,
    histogram,
    median,
    returned_at,
    share_of,
    stage_stats,
    upload_stats,
)
from nbloader.metrics.stuck import STUCK_S, STUCK_TIMES
from nbloader.metrics.time_series import TimeSeries
from nbloader.metrics.usage import Usage
from nbloader.metrics.worker_count import WorkerCount

RECENT = 2000
"""Number of batch records that are kept for rates."""
STAGE_BATCHES = 200
"""Number of batches over which stage times are computed, in a snapshot and in a point of the time series."""
FAILED_SAMPLES = 100
"""Number of failed samples whose errors are kept."""
HISTOGRAM_BATCHES = 500
"""Number of batches in the histogram of the time to produce a batch."""
COUNTED = 64
"""Number of batch records that are counted together, which costs a fraction of counting them one by one. A snapshot or
another event counts them earlier."""
MIN_SLOW = 4
"""Minimum number of slow samples for which facts are looked up: what fewer samples have in common may be chance."""
RECOMPUTED_S = 1.0
"""Minimum seconds between two computations of what takes some milliseconds while an epoch runs."""

MEASURED_ANEW = (EpochStarted, EpochEnded, LoopStopped, DatasetReloaded)
"""Events after which an epoch that has ended is measured again. Workers that end, and settings that change, do not
change what limited it."""
LIVE = ("starting", "running", "paused")
"""States of a loader whose epoch has not ended."""

_EPOCH = operator.attrgetter("epoch")


class Aggregator:
    """Aggregates the events of one loader and makes snapshots from them. Thread-safe.

    `update` runs once per batch and usually only stores the record. Records are counted in groups, or by `snapshot`.

    Args:
        judge: Function that determines the verdicts of a snapshot, such as `nbloader.diagnose.bottleneck.judge`.
        cores: Number of CPU cores that workers may use, for the verdicts; None for the cores that this process may use.
        on_lifecycle: Function that is called with each event that is not a `BatchRecord`, on the publishing thread.
        sampler: See `Evidence.sampler`.
    """

    def __init__(
        self,
        judge: Judge,
        cores: int | None = None,
        on_lifecycle: Callable[[LifecycleEvent], object] | None = None,
        sampler: str = "",
    ) -> None:
        self._on_lifecycle = on_lifecycle
        self._judge, self._sampler, self._iterable = judge, sampler, False
        self._cores = cores  # determined by the first snapshot, since this reads files
        # Reentrant: during an update, the garbage collector may end an abandoned iterator, which publishes an event.
        self._lock = threading.RLock()
        self._fresh: collections.deque[BatchRecord] = collections.deque()
        """Records that have not been counted yet. They are appended without holding the lock."""
        self._recent: collections.deque[BatchRecord] = collections.deque(maxlen=RECENT)
        self._total = self._waited = 0
        self._produced: dict[int, int] = {}
        self._errors: collections.Counter[int] = collections.Counter()
        self._restarts: collections.Counter[int] = collections.Counter()
        self._leaving: collections.Counter[int] = collections.Counter()
        self._deaths = self._supervisor_failures = 0
        self._failed_samples: collections.deque[SampleFailed] = collections.deque(maxlen=FAILED_SAMPLES)
        self._failed_by_outcome: collections.Counter[str] = collections.Counter()
        self._slow, self._pauses = SlowSamples(), Pauses()
        self._origin: int | None = None
        self._epoch = -1
        self._batches: int | None = None
        self._began = self._done = self._samples = self._epoch_waited = 0
        self._sample = EpochSample()
        self._folded = 0
        """Number of batches of the epoch that have been added to `_sample`."""
        self._measured: tuple[int, Evidence] | None = None
        """When the epoch was last measured, perf_counter ns, and the result; None if it has not been measured."""
        self._final = False
        """Whether that was after the end of the epoch, or after the loop had stopped."""
        self._judged: JudgedEpoch | None = None
        """The newest epoch whose cause is known, as of the last snapshot."""
        self._last_seconds: Evidence | None = None
        """The measurements of the last seconds before that; None until then."""
        self._ready: list[WorkerReady] = []
        """The events of the newest epoch."""
        self._worker_count = WorkerCount()
        self._machines: dict[int, Machine] = {}
        """Machine of the newest worker with each id, by worker id. Workers on this machine are not included."""
        self._nodes: dict[int, str] = {}  # the newest cluster node of each worker, by worker id; "" if there was none
        self._failed: BatchFailed | None = None
        """The last batch of the newest epoch that failed; None if there is none."""
        self._ended: EpochEnded | None = None
        self._stop: LoopStopped | None = None
        """The last error or interrupt that stopped the loop of the newest epoch; None if there was none."""
        self._stop_asked = 0
        """When the loop requested the batch that it did not receive, perf_counter ns."""
        self._left_out = 0
        """Number of samples of the newest epoch that were skipped or replaced."""
        self._usual_make = 0.0
        """Time to produce a batch, estimated from the epoch's first batches, seconds; 0 if unknown."""
        self._pace = FirstBatchPace()
        self._series = TimeSeries()

    def update(self, event: Event) -> None:
        """Process one event. Batch records are counted later in groups: one by one, each would take a microsecond."""
        if isinstance(event, BatchRecord):
            self._fresh.append(event)
            if len(self._fresh) >= COUNTED:
                with self._lock:
                    self._count()
            return
        with self._lock:
            self._count()
            if self._on_lifecycle is not None:
                self._on_lifecycle(event)
            self._lifecycle(event)

    def _count(self) -> None:
        """Count the batch records that have arrived since the last call. Called with the lock held."""
        fresh, recent, pauses, produced, slow = self._fresh, self._recent, self._pauses, self._produced, self._slow
        while fresh:
            record = fresh.popleft()
            epoch = record.epoch
            if epoch > self._epoch:  # its EpochStarted was missed or arrives late
                self._begin(epoch, None, record.requested)
            recent.append(record)
            self._total += 1
            wait = record.delivered - record.requested
            if pauses.recorded:
                wait -= pauses.within(record.requested, record.delivered)
            if wait > 0:
                self._waited += wait
                if epoch == self._epoch:
                    self._epoch_waited += wait
            if epoch == self._epoch:
                self._done += 1
                self._samples += record.samples
            worker = record.worker
            produced[worker] = produced.get(worker, 0) + 1
            if record.slowest_ns > slow.floor.get(epoch, 0):
                slow.add(record)
            if epoch == self._epoch:
                self._final = False
        self._fold()

    @property
    def cores(self) -> int:
        """Number of CPU cores that workers on this machine may use."""
        if self._cores is None:
            self._cores = _platform.cores()
        return self._cores

    def _fold(self) -> None:
        """Add the records of the new batches to the `EpochSample`."""
        new = self._done - self._folded
        self._folded = self._done
        if not new:
            return
        records = list(itertools.islice(reversed(self._recent), new))
        epoch = self._epoch
        if set(map(_EPOCH, records)) != {epoch}:  # several iterators take turns
            records = [r for r in reversed(self._recent) if r.epoch == epoch][:new]
        self._sample.add(records[::-1], self._pauses)

    @property
    def _first(self) -> BatchRecord | None:
        """Record of the epoch's first batch; None if there is none yet."""
        return self._sample.opening[0] if self._sample.opening else None

    def snapshot(
        self,
        gauges: Gauges,
        now: Usage | None = None,
        epoch: Usage | None = None,
        facts: KnownFacts | None = None,
        line: SlowLine | None = None,
        step: SlowLine | None = None,
        draw: SlowLine | None = None,
    ) -> Snapshot:
        """Make a snapshot from the events so far and the present gauges.

        Args:
            gauges: The present state.
            now: CPU usage of the workers and the loop over the last seconds in which they ran; None if unknown.
            epoch: CPU usage of the workers and the loop over the newest epoch; None if unknown.
            facts: Function that looks up what is known about samples; None to look up nothing.
            line: The line of code that takes most of the workers' time; None if unknown.
            step: The line that takes most of the time of the loop's own code; None if unknown.
            draw: The line that takes most of the time of the sampler; None if unknown.
        """
        with self._lock:
            self._count()
            snapshot, records = self._snapshot_and_records(gauges, now, epoch, facts, line, step, draw)
            fresh = min(self._total - self._series.total, len(records), STAGE_BATCHES)
            newest = records[len(records) - fresh :]
            if self._origin is not None:
                waited = self._waited + waiting(gauges, self._pauses, gauges.now)
                age = gauges.now - self._origin
                self._series.add(snapshot, gauges.now, age, total=self._total, waited=waited, fresh=newest)
            return snapshot

    @property
    def epoch(self) -> int:
        """The newest epoch; -1 before the first."""
        with self._lock:
            self._count()
            return self._epoch

    @property
    def judged_epoch(self) -> JudgedEpoch | None:
        """The newest epoch whose cause is known, as of the last snapshot; None if there is none."""
        with self._lock:
            return self._judged

    @property
    def is_final(self) -> bool:
        """Whether the last snapshot was taken after the end of the newest epoch, or there was nothing to judge."""
        with self._lock:
            self._count()
            return self._final or not self._done

    def epoch_evidence(self) -> Evidence:
        """Return the measurements of the newest epoch, as of the last snapshot."""
        with self._lock:
            return Evidence() if self._measured is None else self._measured[1]

    def points(self) -> list[Point]:
        """Return the time series of the last 120 s, oldest first: one point per `snapshot`, at least 0.2 s apart.

        An idle loader adds no points, so the plots of an epoch stay visible after it ends.
        """
        with self._lock:
            return list(self._series.points)

    # --- counting

    def _lifecycle(self, event: LifecycleEvent) -> None:  # noqa: C901, PLR0912, PLR0915 - one branch per kind of event
        if self._origin is None:
            self._origin = event.time
        if isinstance(event, MEASURED_ANEW):
            self._final = False
        match event:
            case EpochStarted():
                if event.epoch >= self._epoch:
                    self._begin(event.epoch, event.batches, event.time)
                    self._iterable = event.iterable
            case EpochEnded():
                if event.epoch == self._epoch:
                    self._ended = event
            case LoopStopped():
                if event.epoch == self._epoch:
                    newest = next((r for r in reversed(self._recent) if r.epoch == event.epoch), None)
                    before = self._began if self._stop is None else self._stop.time
                    self._stop_asked = before if newest is None else max(before, returned_at(newest))
                    self._stop = event
            case WorkerLeaving():
                self._leaving[event.worker] += 1
                self._worker_count.add(event.time, -1)
            case WorkerDied():
                self._deaths += not event.expected
                if event.expected and self._leaving[event.worker]:
                    self._leaving[event.worker] -= 1
                else:
                    self._worker_count.add(event.time, -1)
            case WorkerRestarted():
                self._restarts[event.worker] += 1
            case WorkerReady():
                self._ready.append(event)
                self._worker_count.add(event.time, 1)
                if event.machine is None:
                    self._machines.pop(event.worker, None)
                else:
                    self._machines[event.worker] = event.machine
            case BatchFailed():
                self._errors[event.worker] += 1
                if event.epoch == self._epoch:
                    self._failed = event
            case SampleFailed():
                self._failed_by_outcome[event.done] += 1
                self._left_out += event.epoch == self._epoch and event.done != "retried"
                self._failed_samples.append(event)
            case SupervisorFailed():
                self._supervisor_failures += 1
            case LoaderPaused():
                self._pauses.begin(event.time)
            case LoaderResumed():
                self._pauses.end(event.time)
            case DatasetReloaded():  # the speed of the old dataset says nothing about the new one
                self._recent.clear()
                self._slow.forget()
                self._sample.forget()

    def _begin(self, epoch: int, batches: int | None, time: int) -> None:
        if self._origin is None:
            self._origin = time
        known = epoch == self._epoch
        self._epoch, self._batches, self._began = epoch, batches, time
        if known:  # its batches were published before its EpochStarted
            return
        self._done = self._samples = self._epoch_waited = 0
        self._sample = EpochSample()
        self._folded = 0
        self._usual_make = 0.0
        self._ended = self._measured = self._stop = None
        self._final = False
        self._ready = [event for event in self._ready if event.time >= time]
        self._left_out = 0
        self._failed = None
        self._pace = FirstBatchPace()
        self._slow.begin(epoch)

    # --- the snapshot

    def _snapshot_and_records(
        self,
        g: Gauges,
        usage: Usage | None,
        epoch_usage: Usage | None,
        facts: KnownFacts | None,
        line: SlowLine | None,
        step: SlowLine | None,
        draw: SlowLine | None,
    ) -> tuple[Snapshot, list[BatchRecord]]:
        records = list(self._recent)
        last = records[-STAGE_BATCHES:]
        stop = self._stopped(g, records)
        live = self._ended is None and stop is None and self._epoch >= 0 and g.state in LIVE
        rates = rates_of(
            g, records, self._pauses, first=self._first, began=self._began, epoch=self._epoch, live=live
        )  # fmt: skip
        of_epoch = [r for r in last if r.epoch == self._epoch]
        # Batches that wait for an earlier one were measured, too: also before the first one is delivered.
        usual_ns = usual_make_ns(of_epoch) or usual_make_ns([m for m in g.made if m.epoch == self._epoch])
        usual_ns = usual_ns or usual_make_ns(last)
        patience = 0.0 if of_epoch else FIRST_STUCK_S
        stuck = {w.worker for w in g.workers if _is_stuck(w, g.now, usual_ns, patience)}
        stalled = None
        if live and self._first is not None:
            stalled = stalled_for(g, last, self._pauses)
        elif live and g.state != "paused" and any(w.worker in stuck and w.batch == g.waiting_for for w in g.workers):
            stalled = waiting(g, self._pauses, g.now) / 1e9
        if stalled is not None:
            rates = without_progress(rates)
        end = self._end(g, stop)
        done = self._done if self._ended is None else max(self._done, self._ended.batches)
        if live and g.epoch == self._epoch:
            done = max(done, g.delivered)
        active = self._pauses.active(self._began, end) if self._epoch >= 0 else 0
        left = max(0, self._batches - done) if live and g.state != "paused" and self._batches is not None else None
        eta = left / rates.own if left is not None and rates.own > 0 else None
        first = self._pace.estimate(g, usual_ns) if live and not done else None
        rough = left is not None and not rates.count and stalled is None
        if left is not None and rough:
            eta = None if first is None and is_late(g, usual_ns) else self._rough_eta(g, left, first)
        wait_share_epoch = self._epoch_share(g, records, stop, live=live)
        snapshot = Snapshot(
            state=self._state(g, stop),
            epoch=self._epoch,
            batches_done=done,
            batches_total=self._batches,
            samples_done=self._samples,
            elapsed=max(0, end - self._began) / 1e9 if self._epoch >= 0 else 0.0,
            eta=eta,
            batches_per_second=rates.batches,
            samples_per_second=rates.samples,
            mb_per_second=rates.nbytes / 1e6,
            wait_share=rates.wait_share,
            rate_seconds=rates.seconds,
            headspace=_headspace(rates.count, rates.seconds, rates.wait_share),
            wait_share_epoch=wait_share_epoch,
            headspace_epoch=_headspace(done, active / 1e9, wait_share_epoch),
            waiting=None if g.waiting_since is None else max(0, g.now - g.waiting_since) / 1e9,
            waiting_for=g.waiting_for,
            window=g.window,
            in_flight=g.in_flight,
            reordering=g.reordering,
            ready=g.ready,
            stages=stage_stats(last),
            cpu_share=cpu_share(last),
            workers=tuple(self._worker(w, g.now, rates, stuck=w.worker in stuck) for w in g.workers),
            slowest=self._slow.listed(),
            errors=sum(self._errors.values()),
            deaths=self._deaths,
            restarts=sum(self._restarts.values()),
            verdict="",
            make_times=histogram(records[-HISTOGRAM_BATCHES:]),
            skipped=self._failed_by_outcome["skipped"],
            replaced=self._failed_by_outcome["replaced"],
            failed_samples=tuple(self._failed_samples),
            epoch_rate=done * 1e9 / active if active else 0.0,
            iterators=g.iterators,
            at=None if stop is not None else g.at,
            at_for=None if stop is not None or g.at is None or not g.at_since else max(0, g.now - g.at_since) / 1e9,
            asked=g.asked,
            made=g.made,
            pinned=g.pinned,
            device=g.device,
            begun=g.begun,
            devices=g.devices,
            uploads=upload_stats(last),
            now=g.now,
            supervisor_failures=self._supervisor_failures,
            retried=self._failed_by_outcome["retried"],
            cache=g.cache,
            stalled=stalled,
            first_batch_in=None if first is None else first.left,
            eta_rough=rough and eta is not None,
        )
        if not self._final or live or self._last_seconds is None:
            judged = thin_out(rates.records, max(1, len(rates.records) / SAMPLED))
            self._last_seconds = measure(judged, self._span(g, rates, usage, live=live))
        now = self._last_seconds
        epoch = self._epoch_evidence(g, snapshot, epoch_usage, stop, live=live)
        known = partial(replace, sampler=self._sampler, iterable=self._iterable, step=step, draw=draw)
        diagnosis = self._judge(
            snapshot,
            self._status(g, rates, stop, usual_ns),
            _with_facts(known(now), facts, line),
            _with_facts(known(epoch), facts, line),
        )
        if diagnosis.epoch.cause not in ("", "unknown"):
            self._judged = JudgedEpoch(self._epoch, diagnosis.epoch, epoch)
        headline = diagnosis.headline
        return replace(
            snapshot,
            cause=headline.cause,
            verdict=headline.sentence,
            restart=headline.restart,
            failure=headline.failure,
            now_verdict=diagnosis.now,
            epoch_verdict=diagnosis.epoch,
            slow_in_common=diagnosis.slow_samples,
        ), records

    def _stopped(self, g: Gauges, records: list[BatchRecord]) -> LoopStopped | None:
        """Return the error or interrupt that stopped the loop; None if there is none or iteration has resumed."""
        stop = self._stop
        newest = next((r for r in reversed(records) if r.epoch == self._epoch), None)
        if stop is None or (newest is not None and newest.requested > stop.time):
            return None
        here = g.at_since if g.waiting_since is None else g.waiting_since
        return None if g.epoch == self._epoch and here > stop.time else stop

    def _end(self, g: Gauges, stop: LoopStopped | None) -> int:
        """Return when the epoch ended or the loop stopped, or the present time if it is running; perf_counter ns."""
        if stop is not None:
            return stop.time
        return g.now if self._ended is None else self._ended.time

    def _epoch_share(self, g: Gauges, records: list[BatchRecord], stop: LoopStopped | None, *, live: bool) -> float:
        waited = self._epoch_waited
        if stop is not None:
            end = stop.time
            waited += self._pauses.active(self._stop_asked, end)
        elif self._ended is not None:
            end = self._ended.time
        elif live and g.waiting_since is not None:
            end = g.now
            waited += waiting(g, self._pauses, end, self._began)
        else:
            end = next((returned_at(r) for r in reversed(records) if r.epoch == self._epoch), self._began)
        return share_of(waited, self._pauses.active(self._began, end))

    def _rough_eta(self, g: Gauges, left: int, first: FirstBatch | None) -> float | None:
        """Estimate the time left, seconds, from the first batches alone. Assumes that all workers are always busy.

        Args:
            g: The gauges.
            left: Number of batches that have not been delivered.
            first: Estimated time of the first batch; None if unknown and after the batch has been delivered.

        Returns:
            The estimate; None if the time to produce a batch is unknown.
        """
        made = median([elapsed_ns(batch.fetch_begin, batch.collated) for batch in g.made])
        if made:  # batches wait for the consumer or for an earlier batch
            self._usual_make = made / 1e9
        elif first is not None:
            self._usual_make = first.make
        elif self._first is not None:
            self._usual_make = elapsed_ns(self._first.fetch_begin, self._first.collated) / 1e9
        if not self._usual_make:
            return None
        alive = sum(w.state != "dead" for w in g.workers)
        to_make = max(0, left - len(g.made) - (first is not None))
        return (0.0 if first is None else first.left) + to_make * self._usual_make / max(1, alive)

    def _state(self, g: Gauges, stop: LoopStopped | None) -> str:
        """Return the state, by what the events say: the engine may notice the end of an epoch a moment later."""
        if g.state not in LIVE[:2]:
            return g.state
        if self._ended is not None and g.epoch == self._epoch:
            return "idle"
        return "stopped" if stop is not None and self._ended is None else g.state

    def _worker(self, w: WorkerGauge, now: int, rates: Rates, *, stuck: bool) -> WorkerStats:
        age = None if w.batch is None else max(0, now - w.since) / 1e9
        self._nodes[w.worker] = w.node or self._nodes.get(w.worker, "")  # a worker that has ended is on none
        return WorkerStats(
            worker=w.worker,
            pid=w.pid,
            state=w.state,
            batch=w.batch,
            batch_age=age,
            sample=w.sample,
            queued=w.queued,
            batches=max(w.made, self._produced.get(w.worker, 0)),
            batches_per_second=rates.workers.get(w.worker, 0.0),
            restarts=self._restarts[w.worker],
            errors=self._errors[w.worker],
            cpu_percent=w.cpu_percent if w.cpu_percent is not None and math.isfinite(w.cpu_percent) else None,
            rss=w.rss,
            exit_reason=w.exit_reason,
            stderr_tail=w.stderr_tail,
            stuck=stuck,
            held=w.held,
            left=w.left,
            private=w.private,
            shared=w.shared,
            core_wait=w.core_wait,
            kind=w.kind,
            node=self._nodes[w.worker],
            in_process=w.in_process,
        )

    def _first_batch(self, g: Gauges) -> float | None:
        """Return the time from the start of the epoch to the delivery of its first batch, seconds; None before.

        The record of the first batch is published when the consumer requests the next batch. Until then, the gauges
        tell when the first batch was delivered.
        """
        if self._first is not None:
            return max(0, self._first.delivered - self._began) / 1e9
        if g.epoch == self._epoch and g.delivered:
            return max(0, (g.at_since or g.waiting_since or g.now) - self._began) / 1e9
        return None

    def _status(self, g: Gauges, rates: Rates, stop: LoopStopped | None, usual_ns: float | None) -> LoaderStatus:
        left_out = [e for e in self._failed_samples if e.epoch == self._epoch and e.done != "retried"]
        return LoaderStatus(
            recent=rates.count,
            first_batch=self._first_batch(g),
            ended="" if self._ended is None else self._ended.reason or "abandoned",
            failed=self._failed,
            usual_make=None if usual_ns is None else usual_ns / 1e9,
            paused_for=None if self._pauses.since is None else max(0, g.now - self._pauses.since) / 1e9,
            stopped=stop,
            stop_waited=0.0 if stop is None else max(0, stop.time - self._stop_asked) / 1e9,
            left_out=tuple(left_out[-1:]),
            left_out_count=self._left_out,
            before=self._judged if self._judged is not None and self._judged.epoch < self._epoch else None,
        )

    def _span(self, g: Gauges, rates: Rates, usage: Usage | None, *, live: bool) -> SpanOptions:
        """Return the options for measuring the last seconds."""
        alive = [w for w in g.workers if w.state not in ("dead", "starting")] if live else []
        # The rates begin after the first batch of the epoch. The first ones of other workers may be among them.
        workers = len(alive) or len({r.worker for r in rates.records})  # after the end, those that produced something
        others = self._sample.opening[1:workers] if rates.records else []
        opening = [r for r in others if r.requested >= rates.records[0].requested]
        late = 2 * (median([r.waited for r in rates.records]) or 0) if opening else 0
        opening = [r for r in opening if r.waited > late]
        return SpanOptions(
            span="now",
            seconds=rates.seconds,
            wait_share=rates.wait_share,
            batches=rates.count,
            rate=rates.batches,
            workers=len(alive),
            place=_place(g, self._recent),
            cores=self.cores,
            window=g.window,
            opening=opening,
            startup=self._first_batch(g) if opening else None,
            waiting=waiting(g, self._pauses, g.now) if live else 0,
            waiting_for=g.waiting_for,
            mean_workers=self._mean_workers(g.now - round(rates.seconds * 1e9), g.now) if live else None,
            pids={w.worker: w.pid for w in alive},
            machines=self._machines,
            usage=usage,
            pauses=self._pauses,
            device=g.device,
        )

    def _epoch_evidence(
        self, g: Gauges, s: Snapshot, usage: Usage | None, stop: LoopStopped | None, *, live: bool
    ) -> Evidence:
        end = self._end(g, stop)
        seconds = self._pauses.active(self._began, end) / 1e9 if self._epoch >= 0 else 0.0
        if self._measured is not None:
            at, before = self._measured
            if not live and self._final:
                return before  # the verdict about an epoch that has ended does not change any more
            if live and g.now - at < RECOMPUTED_S * 1e9:
                return continued(before, seconds=seconds, wait_share=s.wait_share_epoch, batches=s.batches_done)
        sample = self._sample
        waited = waiting(g, self._pauses, g.now) if live else 0
        if stop is not None:
            waited = self._pauses.active(self._stop_asked, stop.time)
        alive = [w for w in g.workers if w.state not in ("dead", "starting")] if live else []
        first = self._first_batch(g)
        options = SpanOptions(
            span="epoch",
            seconds=seconds,
            wait_share=s.wait_share_epoch,
            batches=s.batches_done,
            total=None if self._ended is not None and self._ended.reason == "exhausted" else s.batches_total,
            workers=len(alive),
            place=_place(g, self._recent),
            cores=self.cores,
            window=g.window,
            opening=sample.opening,
            worst=sample.worst,
            startup=first,
            worker_startup=max([e.startup_ns / 1e9 for e in self._ready if e.time >= self._began], default=None),
            waiting=waited,
            waiting_for=g.waiting_for if stop is None else stop.index,
            mean_workers=self._mean_workers(self._began, end),
            pids={w.worker: w.pid for w in alive},
            machines=self._machines,
            usage=usage,
            pauses=self._pauses,
            device=g.device,
        )
        evidence = measure(sample.records, options)
        if sample.records or not live:  # without a batch, it has no parts that could be continued
            self._measured, self._final = (g.now, evidence), not live
        return evidence

    def _mean_workers(self, begin: int, end: int) -> float | None:
        """Return the mean number of workers after the first batch; None if it did not change, or before that batch."""
        first = self._first
        return None if first is None else self._worker_count.mean(begin, end, after=first.delivered)


def _place(g: Gauges, recent: Sequence[BatchRecord]) -> Place:
    """Return where batches are produced, even after the workers have ended."""
    newest = recent[-1] if recent else None
    if newest is not None and newest.worker < 0:
        return Place.CONSUMER
    if any(w.in_process for w in g.workers) or (newest is not None and newest.transport == "local"):
        return Place.THREADS
    return Place.PROCESSES


def _headspace(batches: int, seconds: float, wait_share: float) -> float | None:
    """Return how many batches per second the loop would consume if it never waited; None if that was not measured."""
    own = (1 - wait_share) * seconds
    return batches / own if batches and own > 0 else None


def _is_stuck(w: WorkerGauge, now: int, usual_ns: int | None, patience: float) -> bool:
    """Whether a worker has been processing its batch for far longer than usual; False if nothing was measured."""
    if usual_ns is None or w.batch is None or w.state not in ("fetching", "collating", "sending"):
        return False
    return max(0, now - w.since) / 1e9 > max(patience, STUCK_S, STUCK_TIMES * usual_ns / 1e9)


def _with_facts(e: Evidence, facts: KnownFacts | None, line: SlowLine | None) -> Evidence:
    e = e if line is None else replace(e, line=line)
    if facts is None or len(e.slow_indices) < MIN_SLOW:
        return e
    return replace(e, facts=facts((*e.slow_indices, *e.usual_indices)))
