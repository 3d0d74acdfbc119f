"""Observation of a loader: statistics, the trace, reports and the live dashboard."""

from __future__ import annotations

import dataclasses
import time
import weakref
from typing import TYPE_CHECKING, Any

from nbloader.cache import sample_cache
from nbloader.device.transfer import DeviceTransfer
from nbloader.diagnose.bottleneck import judge
from nbloader.diagnose.what_if import CostChange, LineTime, Prediction, Settings, predict
from nbloader.engine.engine import Engine
from nbloader.events import (
    DatasetReloaded,
    EpochEnded,
    EpochStarted,
    EventBus,
    LoaderResumed,
    WorkerReady,
    WorkersResized,
)
from nbloader.events.records import LifecycleEvent
from nbloader.loader.config import DEFAULT_PREFETCH_FACTOR
from nbloader.loader.line_profiler import LineProfiler
from nbloader.metrics.aggregator import Aggregator
from nbloader.metrics.hot_lines import HotLine
from nbloader.metrics.probe import ProcessProbe, UsageProbe
from nbloader.metrics.rates import RATE_NS
from nbloader.metrics.snapshot import Point, Snapshot
from nbloader.report.trace import Trace

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class in spite of its name

    from nbloader.dashboard.page import Report
    from nbloader.metrics.control import SettingSearch


DISTURBING = (WorkersResized, WorkerReady, LoaderResumed, DatasetReloaded)
"""After these, earlier batches are not used for predictions."""


def _settings(arguments: dict[str, Any], cores: int) -> Settings:
    workers, factor = arguments["num_workers"], arguments["prefetch_factor"]
    return Settings(
        workers=workers,
        window=workers * (DEFAULT_PREFETCH_FACTOR if factor is None else max(factor, 1)),
        cores=cores,
        in_order=arguments["in_order"],
    )


class Monitor:
    """Aggregates a loader's events. It changes nothing about the loading.

    Args:
        events: The loader's event bus.
        engine: Its engine.
        transfer: What moves batches to their devices; None where they stay as they are.
    """

    def __init__(self, events: EventBus, engine: Engine, transfer: DeviceTransfer | None) -> None:
        self._events = events
        self._engine = engine
        self._transfer = transfer
        self._aggregator = Aggregator(judge, on_lifecycle=self._on_lifecycle)
        self._probe = ProcessProbe()
        self._usage = UsageProbe()
        self.lines = LineProfiler(engine)
        """Samples the lines that workers execute."""
        self._changed_at = 0
        """When the loader was changed in a way that makes batches before useless for predictions, perf_counter ns."""
        self.tuning: SettingSearch | None = None
        """The newest search for better settings."""
        events.subscribe(self._aggregator.update)
        monitor_ref = weakref.ref(self)

        def read() -> None:  # the engine does not keep its monitor alive
            monitor = monitor_ref()
            if monitor is not None:
                monitor._read_counters(consumer=True)

        engine.callbacks.add(read, each_batch=False)

    def _read_counters(self, *, consumer: bool = False) -> None:
        """Read the counters of workers and loop, unless they were just read."""
        if self._usage.due():
            self._usage.read(self._engine.worker_threads(), consumer=consumer)

    def _on_lifecycle(self, event: LifecycleEvent) -> None:
        if isinstance(event, EpochStarted):
            self._usage.begin_epoch()
            self.lines.epoch_began(event.run)
        elif isinstance(event, EpochEnded):
            self._usage.end_epoch()
            self.lines.epoch_ended(event.run)
        elif isinstance(event, DISTURBING):
            self._changed_at = event.time

    def window_changed(self) -> None:
        """Another number of batches is requested ahead from now on."""
        self._changed_at = time.perf_counter_ns()

    def follow(self, engine: Engine, transfer: DeviceTransfer | None) -> None:
        """Observe another engine, which has taken the place of the present one.

        Args:
            engine: The engine.
            transfer: What moves its batches; None where they stay as they are.
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

    def stats(self, *, iterated: bool) -> Snapshot:
        """See `DataLoader.stats`.

        Args:
            iterated: Whether an epoch has ever been started.
        """
        gauges = self._engine.gauges("idle" if iterated else "new")
        if self._transfer is not None:
            begun = self._transfer.started(gauges.run)
            gauges = dataclasses.replace(gauges, pinned=self._transfer.pins, device=self._transfer.name, begun=begun)
        cache = sample_cache.gauge()
        if cache is not None:
            gauges = dataclasses.replace(gauges, cache=cache)
        self._read_counters()
        usage = self._usage.since(gauges.now - RATE_NS)
        snapshot = self._aggregator.snapshot(self._probe.fill(gauges), usage, self._usage.epoch())
        return snapshot if self.tuning is None else dataclasses.replace(snapshot, tuning=self.tuning.gauge)

    def what_if(self, changed: dict[str, Any], given: dict[str, Any], *, iterated: bool) -> Prediction:
        """See `DataLoader.what_if`.

        Args:
            changed: The arguments that differ.
            given: All arguments that the model knows, as they are.
            iterated: Whether an epoch has ever been started.
        """
        s = self.stats(iterated=iterated)
        if "line" in changed:
            changed = changed | {"line": self.lines.result().find(changed["line"])}
        change = ", ".join(
            f"without {value.place}" if isinstance(value, HotLine) else f"{name}={value}"
            for name, value in changed.items()
        )
        return self._predict(s, changed, given, change, self._cost_change(changed, given, s))

    def _cost_change(self, changed: dict[str, Any], given: dict[str, Any], s: Snapshot) -> CostChange | str:
        """What a change means for the costs of batches; a text if that cannot be predicted."""
        line = changed.get("line")
        if line is not None:
            lines = self.lines.result()
            shares = lines.on_stack(line)
            line = LineTime(shares.computing, shares.waiting, lines.samples)
        kind = changed.get("workers", given["workers"])
        threads = kind != given["workers"] and given["num_workers"] > 0
        if threads and kind == "process":
            return "what it takes to send these batches from a process was not measured"
        if changed.get("batch_size") is not None and given["batch_size"] is None:
            return "the loader does not make the batches: its batch_size is None"
        cached = float(changed.get("cache", 0.0))
        if cached and s.cache is not None and s.cache.hits:
            return f"the dataset uses a cache already, with {s.cache.hits:,} hits"
        return CostChange(
            cached=cached,
            line=line,
            threads=threads,
            transport=changed.get("transport") != "none",
            batch_size=changed.get("batch_size"),
        )

    def _predict(
        self, s: Snapshot, changed: dict[str, Any], given: dict[str, Any], change: str, costs: CostChange | str
    ) -> Prediction:
        """Predict from the newest epoch.

        Args:
            s: A snapshot that was just taken.
            changed: The arguments that differ.
            given: All arguments that the model knows, as they are.
            change: The change, for a person.
            costs: What it means for the costs of batches, or why that is not known.
        """
        epoch = self._aggregator.epoch_evidence()
        run = self._aggregator.run
        records = [
            r for r in self._events.batches() if r.run == run and not r.placed and r.dispatched >= self._changed_at
        ]
        now = _settings(given, epoch.cores)
        if given["num_workers"] and epoch.window > now.window:  # `prefetch`, or a window that adapted itself
            now = dataclasses.replace(now, window=epoch.window)
        after = _settings(given | changed, epoch.cores)
        if "num_workers" not in changed and "prefetch_factor" not in changed:
            after = dataclasses.replace(after, window=now.window)
        cause = s.epoch_verdict.cause
        if isinstance(costs, str):
            rate = predict(records[2 * now.workers :], epoch, now, now, cause, change).measured
            return Prediction(change=change, measured=rate, reason=costs)
        return predict(records[2 * now.workers :], epoch, now, after, cause, change, costs)

    def points(self) -> list[Point]:
        """See `DataLoader.points`."""
        return self._aggregator.points()

    @property
    def trace(self) -> Trace:
        """See `DataLoader.trace`."""
        return Trace(self._events.recent())

    def timeline(self, epoch: int | None) -> Figure:
        """See `DataLoader.timeline`."""
        from nbloader.dashboard.figures import timeline

        return timeline(self.trace.epoch(epoch))

    def report(self, epoch: int | None, *, iterated: bool) -> Report:
        """See `DataLoader.report`."""
        from nbloader.dashboard.page import Report

        return Report(self.stats(iterated=iterated), self.trace.epoch(epoch))
