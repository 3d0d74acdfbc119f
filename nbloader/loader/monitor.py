"""Observation of a loader: statistics, the trace, reports and the live dashboard."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any

from nbloader.cache import sample_cache
from nbloader.device.transfer import DeviceTransfer
from nbloader.diagnose.bottleneck import judge
from nbloader.diagnose.what_if import Prediction, Settings, predict
from nbloader.engine.engine import Engine
from nbloader.events import EpochEnded, EpochStarted, EventBus
from nbloader.events.records import LifecycleEvent
from nbloader.loader.config import DEFAULT_PREFETCH_FACTOR
from nbloader.loader.line_profiler import LineProfiler
from nbloader.metrics.aggregator import Aggregator
from nbloader.metrics.probe import ProcessProbe, UsageProbe
from nbloader.metrics.rates import RATE_NS
from nbloader.metrics.snapshot import Point, Snapshot
from nbloader.report.trace import Trace

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class in spite of its name

    from nbloader.dashboard.page import Report
    from nbloader.metrics.control import SettingSearch


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
        epoch = self._aggregator.epoch_evidence()
        records = [r for r in self._events.batches() if r.run == self._aggregator.run and not r.placed]
        now = _settings(given, epoch.cores)
        if given["num_workers"] and epoch.window > now.window:  # `prefetch`, or a window that adapted itself
            now = dataclasses.replace(now, window=epoch.window)
        after = _settings(given | changed, epoch.cores)
        if "num_workers" not in changed and "prefetch_factor" not in changed:
            after = dataclasses.replace(after, window=now.window)
        change = ", ".join(f"{name}={value}" for name, value in changed.items())
        return predict(records[2 * now.workers :], epoch, now, after, s.epoch_verdict.cause, change)

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
