"""What can be seen of a loader: statistics, a trace, pictures of an epoch, the live dashboard, a bar in a terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from nbloader.device.transfer import DeviceTransfer
from nbloader.engine.engine import Engine
from nbloader.engine.inline_engine import LocalEngine
from nbloader.events import EventBus
from nbloader.metrics.aggregator import Aggregator
from nbloader.metrics.probe import ProcessProbe
from nbloader.metrics.snapshot import Point, Snapshot
from nbloader.report.trace import Trace

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class in spite of its name

    from nbloader.dashboard import Dashboard
    from nbloader.dashboard.page import Report
    from nbloader.metrics.control import LoaderControl

T_co = TypeVar("T_co", covariant=True)


class Watching(Generic[T_co]):
    """The part of `DataLoader` by which it is watched; nothing here changes what it does."""

    events: EventBus
    _engine: Engine | LocalEngine
    _fold: Aggregator
    _probe: ProcessProbe
    _iterations: int
    _placer: DeviceTransfer | None

    def stats(self) -> Snapshot:
        """A frozen picture of the loader now; `print` it, or leave it as the last line of a cell."""
        gauges = self._engine.gauges("new" if self._iterations == 0 else "idle")
        if self._placer is not None:
            begun = self._placer.started(gauges.run)
            gauges = dataclasses.replace(gauges, pinned=self._placer.pins, device=self._placer.name, begun=begun)
        return self._fold.snapshot(self._probe.fill(gauges))

    def points(self) -> list[Point]:
        """The history that the dashboard plots: a point for each `stats()` that was asked for, 0.2 s apart at least."""
        return self._fold.points()

    @property
    def trace(self) -> Trace:
        """What happened to the last 10,000 batches: `loader.trace.save("epoch.json")` writes it for Perfetto."""
        return Trace(self.events.recent())

    def timeline(self, epoch: int | None = None) -> Figure:
        """A Bokeh figure of what each worker and the loop were at, over time; for `bokeh.plotting.show`.

        Args:
            epoch: Which one; the newest by default.
        """
        from nbloader.dashboard.figures import timeline

        return timeline(self.trace.epoch(epoch))

    def report(self, epoch: int | None = None) -> Report:
        """The pictures of an epoch on a page of HTML without a kernel: `loader.report().save("report.html")`.

        Args:
            epoch: Which one; the newest by default.
        """
        from nbloader.dashboard.page import Report

        return Report(self.stats(), self.trace.epoch(epoch))

    def dashboard(self) -> Dashboard:
        """Show the live dashboard in this cell's output. A loader as the last line of a cell does the same.

        Raises:
            RuntimeError: There is no notebook here.
        """
        from nbloader.dashboard import show

        return show(cast("LoaderControl", self))

    def progress(self, **options: Any) -> Iterator[T_co]:
        """Iterate with a bar in the terminal: `for batch in loader.progress():`.

        Beside tqdm's own figures it says how much of the time the loop waits, and at the end what limited it.

        Args:
            **options: Of `tqdm.tqdm`, such as `desc`, `leave` or `file`.

        Raises:
            ModuleNotFoundError: tqdm is not installed.
        """
        from nbloader.report.progress import progress

        return progress(self, options)

    def on_wait(self, callback: Callable[[], object]) -> Callable[[], None]:
        """See `nbloader.control.LoaderControl.on_wait`."""
        return self._engine.callbacks.add(callback)

    def _ipython_display_(self) -> None:
        self.dashboard()
