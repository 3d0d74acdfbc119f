"""Observation of a loader: statistics, the trace, reports and the live dashboard."""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nbloader._util.code_places import place_of_sampler
from nbloader.cache import process_cache
from nbloader.cache.hit_cost import hit_seconds
from nbloader.device.transfer import DeviceTransfer
from nbloader.diagnose import outlook
from nbloader.diagnose.bottleneck import judge
from nbloader.diagnose.causes import NOT_FETCHING
from nbloader.diagnose.causes.sampler import SAMPLER
from nbloader.diagnose.what_if import MIN_REPLAYED, REPLAYED, CostChange, Prediction, Settings, predict, settings_of
from nbloader.diagnose.without_line import LineTime
from nbloader.engine.local_engine import AnyEngine
from nbloader.events import (
    DatasetReloaded,
    EpochEnded,
    EpochStarted,
    EventBus,
    LoaderClosed,
    LoaderResumed,
    WorkerReady,
    WorkersResized,
)
from nbloader.events.records import LifecycleEvent
from nbloader.loader.cache_use import CacheUse
from nbloader.loader.config import DEFAULT_PREFETCH_FACTOR
from nbloader.loader.line_profiler import LineProfiler
from nbloader.loader.sample_facts import SampleIndex
from nbloader.metrics.aggregator import RECOMPUTED_S, Aggregator
from nbloader.metrics.hot_lines import HotLine, HotLines
from nbloader.metrics.process_probe import MEASURING_SHARE, ProcessProbe
from nbloader.metrics.rates import RATE_NS
from nbloader.metrics.snapshot import ENDED, NO_VERDICT, Outlook, Point, Snapshot
from nbloader.metrics.stage_times import returned_at
from nbloader.metrics.usage_probe import UsageProbe
from nbloader.report.trace import Trace
from nbloader.scheduler.prefetch import Load
from nbloader.workers.registry import kind_class

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class in spite of its name

    from nbloader.dashboard.page import Report
    from nbloader.events.gauges import CacheGauge
    from nbloader.metrics.control import SettingSearch
    from nbloader.metrics.evidence import Evidence, KnownFacts, SampleFacts, SlowLine


OUTLOOK_BATCHES = 200
"""Number of batches from which the predictions beside a verdict are made."""
DISTURBING = (WorkersResized, WorkerReady, LoaderResumed, DatasetReloaded)
"""Events after which earlier batches are not used for predictions."""


def _settings(arguments: dict[str, Any], e: Evidence) -> Settings:
    factor = arguments["prefetch_factor"]
    load = Load(
        num_workers=arguments["num_workers"],
        prefetch_factor=DEFAULT_PREFETCH_FACTOR if factor is None else max(factor, 1),
        prefetch=arguments["prefetch"],
        nbytes=int(e.nbytes),
    )
    return settings_of(load, e, in_order=arguments["in_order"])


class _Predicted(NamedTuple):
    """The predictions beside a verdict."""

    made_for: tuple[object, ...]
    """What they depend on."""
    due: float
    """Time at which to compute them again, monotonic seconds."""
    changes: tuple[outlook.Change, ...]


class Monitor:
    """Aggregates a loader's events, without affecting how it loads.

    Args:
        events: The loader's event bus.
        engine: The loader's engine.
        transfer: Moves batches to their devices; None if they are not moved.
        roots: Returns the dataset and the collate function.
        sampler: What draws the indices; None if they are not drawn.
    """

    def __init__(
        self,
        events: EventBus,
        engine: AnyEngine,
        transfer: DeviceTransfer | None,
        roots: Callable[[], Sequence[Any]],
        sampler: Any = None,
    ) -> None:
        self._events = events
        self._engine = engine
        self._transfer = transfer
        self._aggregator = Aggregator(judge, on_lifecycle=self._on_lifecycle, sampler=place_of_sampler(sampler))
        self._probe = ProcessProbe()
        self._usage = UsageProbe()
        self.lines = LineProfiler(engine, roots)
        """Samples the lines that workers execute."""
        self._changed_at = 0
        """Time of the last change that makes earlier batches useless for predictions, perf_counter ns."""
        self._judged_from = 0
        """The same as of the end of the newest epoch whose cause is known."""
        self._predicted = _Predicted((), 0.0, ())
        self._samples: SampleIndex | None = None
        """Facts about the dataset's samples; created when slow samples are found."""
        self._cache_use = CacheUse()
        self._kept_at = -RECOMPUTED_S
        """When a verdict was last kept, monotonic seconds."""
        self.tuning: SettingSearch | None = None
        """The newest search for better settings."""
        events.subscribe(self._aggregator.update)
        monitor_ref = weakref.ref(self)

        def read() -> None:  # the engine does not keep its monitor alive
            monitor = monitor_ref()
            if monitor is not None:
                monitor._read_counters(consumer=True)
                monitor.lines.awaited()

        engine.callbacks.add(read, each_batch=False)

    def _read_counters(self, *, consumer: bool = False) -> None:
        """Read the counters of workers and loop, unless they were just read."""
        if self._usage.due():
            self._usage.read(self._engine.worker_threads(), consumer=consumer, switches=True)

    def _on_lifecycle(self, event: LifecycleEvent) -> None:
        if isinstance(event, EpochStarted):
            self._usage.begin_epoch()
            self._cache_use.epoch_began(process_cache.gauge())
            self.lines.epoch_began(event.epoch)
        elif isinstance(event, EpochEnded):
            self._usage.end_epoch()
            self._cache_use.epoch_ended(event.reason, process_cache.gauge())
            self.lines.epoch_ended(event.epoch)
        elif isinstance(event, LoaderClosed):
            self.lines.loader_closed()
        elif isinstance(event, DISTURBING):
            self._changed_at = event.time
            if isinstance(event, DatasetReloaded):
                self.lines.dataset_changed()
                self._cache_use.code_changed()

    def keep_verdict(self) -> None:
        """Judge the newest epoch before the next one begins, unless that was done after its end.

        Workers of the next one, which make earlier batches useless for predictions, have not started yet.
        """
        if not self._aggregator.is_final and time.monotonic() - self._kept_at >= RECOMPUTED_S:
            self._kept_at = time.monotonic()
            self._snapshot(iterated=True)
        judged = self._aggregator.judged_epoch
        if judged is not None and judged.epoch == self._aggregator.epoch:
            self._judged_from = self._changed_at

    def window_changed(self) -> None:
        """Note that the size of the prefetch window was changed."""
        self._changed_at = time.perf_counter_ns()

    def follow(self, engine: AnyEngine, transfer: DeviceTransfer | None) -> None:
        """Observe another engine, which replaces the present one.

        Args:
            engine: The new engine.
            transfer: Moves its batches to their devices; None if they are not moved.
        """
        self._engine = engine
        self._transfer = transfer
        self.lines.follow(engine)

    @property
    def closed(self) -> bool:
        """Whether the loader was closed."""
        return self._engine.closed

    @property
    def draws_by_worker(self) -> bool:
        """See `Engine.draws_by_worker`."""
        return self._engine.draws_by_worker

    @property
    def most_workers(self) -> int:
        """The largest number of workers to try: 4 for each core of their machines, and at least 8."""
        e = self._aggregator.epoch_evidence()
        here = self._aggregator.cores if e.workers_here else 0
        return max(8, 4 * round(here + sum(machine.cores for machine in e.elsewhere)))

    @property
    def collating(self) -> float:
        """Share of the workers' time in which they collate."""
        e = self._aggregator.epoch_evidence()
        make = e.fetch_ms + e.collate_ms
        return e.collate_ms / make if make else 0.0

    def stats(self, given: dict[str, Any], dataset: Any = None, *, iterated: bool) -> Snapshot:
        """See `DataLoader.stats`.

        Args:
            given: Current values of all arguments that the model of the loader uses.
            dataset: The dataset, whose labels and files slow samples may have in common; None to ignore both.
            iterated: Whether an epoch has ever been started.
        """
        snapshot = self._snapshot(iterated=iterated, dataset=dataset)
        return dataclasses.replace(
            snapshot,
            tuning=None if self.tuning is None else self.tuning.gauge,
            outlook=self._outlook(snapshot, given),
            most_workers=self.most_workers,
        )

    def _outlook(self, s: Snapshot, given: dict[str, Any]) -> Outlook:
        """Collect what changes would gain: predictions from the last seconds, and workers to restart now."""
        ended = s.state in ENDED
        found = Outlook()
        searching = self.tuning is not None and self.tuning.gauge.running
        if not searching and outlook.by_settings(s):  # no button contradicts the sentence
            judged = self._aggregator.judged_epoch  # its verdict stands beside that of an epoch of too few batches
            verdicts = (s.epoch_verdict if ended else s.now_verdict), (NO_VERDICT if judged is None else judged.verdict)
            shown = next((verdict for verdict in verdicts if verdict.cause == s.cause), NO_VERDICT)
            found = outlook.outlook(self._predictions(s, given, ended=ended), shown)
            if s.state == "closed":
                found = found._replace(suggestions=())
        if s.restart and not ended:
            return found._replace(suggestions=(outlook.restart(s.restart), *found.suggestions))
        return found

    def _predictions(self, s: Snapshot, given: dict[str, Any], *, ended: bool) -> tuple[outlook.Change, ...]:
        made_for = (*given.values(), self._aggregator.epoch, self._changed_at, ended)
        before, began = self._predicted, time.monotonic()
        if s.epoch < 0 or (before.made_for == made_for and began < before.due):
            return before.changes
        fixed = given["iterable"] or self.draws_by_worker
        workers = given["num_workers"]
        present = outlook.Present(workers, -(-s.window // max(1, workers)), workers if fixed else self.most_workers)

        def predict(changed: dict[str, int]) -> Prediction:
            return self._predict(s, changed, given, "", CostChange(), OUTLOOK_BATCHES)

        found = outlook.changes(s.epoch_verdict.cause, present, predict)
        now = time.monotonic()
        due = float("inf") if ended else now + max(RECOMPUTED_S, (now - began) / MEASURING_SHARE)
        self._predicted = _Predicted(made_for, due, found)
        return found

    def _snapshot(self, *, iterated: bool, dataset: Any = None) -> Snapshot:
        gauges = self._engine.gauges("idle" if iterated else "new")
        if self._transfer is not None:
            transfer = self._transfer
            gauges = dataclasses.replace(
                gauges, pinned=transfer.pins, device=transfer.name, begun=transfer.started(gauges.epoch),
                devices=transfer.gauges(),
            )  # fmt: skip
        cache = process_cache.gauge()
        if cache is not None:
            gauges = dataclasses.replace(gauges, cache=cache)
        self._read_counters()
        usage = self._usage.since(gauges.now - RATE_NS)
        known = None if dataset is None else self._known_samples(dataset, patient=gauges.state in ("idle", "closed"))
        return self._aggregator.snapshot(
            self._probe.fill(gauges),
            usage,
            self._usage.epoch(),
            known,
            self._slowest_line(cache),
            self.lines.slowest_step(),
            self.lines.slowest_draw(),
        )

    def _slowest_line(self, cache: CacheGauge | None) -> SlowLine | None:
        line = self.lines.slowest()
        return line._replace(missed=self._cache_use.missed(cache)) if line is not None and line.is_kept else line

    def _known_samples(self, dataset: Any, *, patient: bool) -> KnownFacts:
        """Return a function that looks up facts about samples without reading them.

        Args:
            dataset: The dataset.
            patient: Whether a short wait is acceptable, because it delays nothing.
        """

        def facts(indices: Sequence[Any]) -> Mapping[Any, SampleFacts]:
            known = self._samples
            if known is None or known.dataset is not dataset:
                known = self._samples = SampleIndex(dataset)
            return known.facts(indices, patient=patient)

        return facts

    def hot_lines(self, *, iterated: bool) -> HotLines:
        """See `DataLoader.hot_lines`. For the argument, see `stats`."""
        verdict = self._snapshot(iterated=iterated).epoch_verdict
        elsewhere = verdict.evidence if verdict.cause in NOT_FETCHING else ""
        if elsewhere and verdict.cause != SAMPLER.name and not self.lines.on:
            elsewhere += " Call loader.profile_lines() before the loop to find its slowest line."
        missed = self._cache_use.missed(process_cache.gauge())
        return dataclasses.replace(self.lines.result(), elsewhere=elsewhere, missed=missed)

    def what_if(self, changed: dict[str, Any], given: dict[str, Any], *, iterated: bool) -> Prediction:
        """See `DataLoader.what_if`.

        Args:
            changed: The arguments that differ.
            given: Current values of all arguments that the model of the loader uses.
            iterated: Whether an epoch has ever been started.
        """
        s = self._snapshot(iterated=iterated)
        if "line" in changed:
            changed = changed | {"line": self.lines.result().find(changed["line"])}
        change = ", ".join(
            f"without {value.place}" if isinstance(value, HotLine) else f"{name}={value}"
            for name, value in changed.items()
        )
        return self._predict(s, changed, given, change, self._cost_change(changed, given, s))

    def what_if_cheaper(
        self, saved: LineTime, change: str, given: dict[str, Any], *, iterated: bool, unlocks: bool = False
    ) -> Prediction:
        """Predict the rate if the workers spent less time.

        Args:
            saved: The shares of their time that are saved.
            change: Description of the change.
            given: Current values of all arguments that the model of the loader uses.
            iterated: Whether an epoch has ever been started.
            unlocks: Whether what is saved are waits for a lock.
        """
        costs = CostChange(line=saved, unlocks=unlocks)
        return self._predict(self._snapshot(iterated=iterated), {}, given, change, costs)

    def _cost_change(self, changed: dict[str, Any], given: dict[str, Any], s: Snapshot) -> CostChange | str:
        """Return how a change affects the cost of batches, or a text that says why that cannot be predicted."""
        line = changed.get("line")
        if line is not None:
            lines = self.lines.result()
            shares = lines.on_stack(line)
            line = LineTime(shares.computing, shares.waiting, lines.samples)
        kind = changed.get("workers", given["workers"])
        threads = kind != given["workers"] and given["num_workers"] > 0
        if (threads or changed.get("num_workers") == 0) and self._aggregator.epoch_evidence().elsewhere:
            return "the samples were fetched on other machines, and how long they take on this one was not measured"
        if threads and not kind_class(kind).in_process:
            return "what it takes to send these batches from a process was not measured"
        if changed.get("batch_size") is not None and given["batch_size"] is None:
            return "the loader does not make the batches: its batch_size is None"
        cached = float(changed.get("cache", 0.0))
        if cached and (hits := self._cache_use.hits(s.cache)):
            return f"the dataset uses a cache already, with {hits:,} hits in this epoch"
        hit = 0.0
        if cached:
            newest = [r for r in self._events.batches() if r.samples][-REPLAYED:]
            nbytes = sum(max(r.nbytes, r.pickled) for r in newest) / max(1, sum(r.samples for r in newest))
            measured = hit_seconds(nbytes)
            if measured is None:
                return "samples cannot be cached in memory: shared memory is not available here"
            hit = measured
        return CostChange(
            cached=cached,
            hit_seconds=hit,
            line=line,
            threads=threads,
            transport=changed.get("transport") != "none",
            batch_size=changed.get("batch_size"),
        )

    def _predict(
        self,
        s: Snapshot,
        changed: dict[str, Any],
        given: dict[str, Any],
        change: str,
        costs: CostChange | str,
        batches: int = REPLAYED,
    ) -> Prediction:
        """Predict from the newest epoch; while it has too few batches, from the last one whose cause is known.

        Args:
            s: A snapshot that was just taken.
            changed: The arguments that differ.
            given: Current values of all arguments that the model of the loader uses.
            change: Description of the change, for the user.
            costs: How it affects the cost of batches, or why that is not known.
            batches: Maximum number of batches to replay.
        """
        epoch, evidence, cause = self._aggregator.epoch, self._aggregator.epoch_evidence(), s.epoch_verdict.cause
        usable = [r for r in self._events.batches() if not r.placed]
        records = [r for r in usable if r.epoch == epoch and r.dispatched >= self._changed_at]
        judged = self._aggregator.judged_epoch
        if judged is not None and judged.epoch < epoch and len(records) < MIN_REPLAYED:
            evidence, cause = judged.evidence, judged.verdict.cause
            records = [r for r in usable if r.epoch == judged.epoch and r.dispatched >= self._judged_from]
        now = _settings(given, evidence)
        if given["num_workers"] and evidence.window > now.window:  # `prefetch`, or a window that adapted itself
            now = dataclasses.replace(now, window=evidence.window)
        after = _settings(given | ({"prefetch": None} if "prefetch_factor" in changed else {}) | changed, evidence)
        if "num_workers" not in changed and "prefetch_factor" not in changed:
            after = dataclasses.replace(after, window=now.window)
        records = records[2 * now.workers :][-batches:]
        of_epoch = [r for r in usable if r.epoch == epoch]  # a replay tells whether a change disturbed it
        undisturbed = bool(of_epoch) and self._changed_at <= max(map(returned_at, of_epoch))
        ended = s.state in ENDED and s.batches_total == len(of_epoch)
        whole = len(records) < MIN_REPLAYED and ended and undisturbed
        if whole:
            records = of_epoch
        if isinstance(costs, str):
            rate = predict(records, evidence, now, now, cause, change, whole=whole).measured
            return Prediction(change=change, measured=rate, reason=costs)
        return predict(records, evidence, now, after, cause, change, costs, whole=whole)

    def points(self) -> list[Point]:
        """See `DataLoader.points`."""
        return self._aggregator.points()

    @property
    def trace(self) -> Trace:
        """See `DataLoader.trace`."""
        return Trace(self._events.recent())

    def timeline(self, epoch: int | None) -> Figure:
        """See `DataLoader.timeline`."""
        from nbloader.dashboard.timeline_figure import timeline

        return timeline(self.trace.epoch(epoch))

    def report(self, given: dict[str, Any], dataset: Any, epoch: int | None, *, iterated: bool) -> Report:
        """See `DataLoader.report`."""
        from nbloader.dashboard.page import Report

        return Report(self.stats(given, dataset, iterated=iterated), self.trace.epoch(epoch))
