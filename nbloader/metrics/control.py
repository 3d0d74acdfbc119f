"""The protocol by which a dashboard, or any other program, observes and controls a loader.

The dashboard uses nothing else of a loader. The protocol names `Snapshot` and `Point`, so it lives beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from nbloader.events import EventBus
from nbloader.metrics.hot_lines import HotLines
from nbloader.metrics.snapshot import Point, Snapshot, TuningGauge


class SettingSearch(Protocol):
    """A search for better settings."""

    @property
    def gauge(self) -> TuningGauge:
        """Its state."""
        ...

    def stop(self) -> None:
        """End it soon. The best setting so far stays."""
        ...

    def undo(self) -> None:
        """End it, and return to the settings before it."""
        ...


class SampleView(Protocol):
    """Samples or a batch, shown in the browser: what `explore` opens."""

    widget: Any
    """The widget that a page can show."""

    def open(self, index: int) -> None:
        """Show a sample in full.

        Raises:
            IndexError: There is no such sample.
        """
        ...

    def close(self) -> None:
        """End its workers."""
        ...


class Replayable(Protocol):
    """A batch that can be reproduced."""

    def explore(self) -> SampleView:
        """Open a view of its samples.

        Raises:
            RuntimeError: This is not a notebook.
        """
        ...


class LoaderControl(Protocol):
    """Commands and observations of a running loader. Every method is thread-safe.

    Commands return at once; the supervisor or the consumer executes them. Only `stack` blocks.
    """

    events: EventBus

    @property
    def num_workers(self) -> int:
        """Number of workers. Assigning another one adds or removes workers, also during an epoch.

        Raises:
            ValueError: The number is 0 for a loader with workers, or not 0 for one without.
            TypeError: The number is not an int.
        """
        ...

    @num_workers.setter
    def num_workers(self, value: int) -> None: ...

    @property
    def prefetch_factor(self) -> int | None:
        """Batches requested ahead, per worker; None if there are no workers. Can be assigned during an epoch.

        Raises:
            ValueError: The number is negative, or there are no workers.
            TypeError: The number is not an int.
        """
        ...

    @prefetch_factor.setter
    def prefetch_factor(self, value: int) -> None: ...

    @property
    def tuning(self) -> SettingSearch | None:
        """The newest search for better settings; None if there was none."""
        ...

    def tune(self, *, num_workers: int | None = None, prefetch_factor: int | None = None) -> SettingSearch:
        """Search for better settings while the loop runs. Returns at once.

        If `num_workers` or `prefetch_factor` is given, apply it and measure its effect instead.

        Raises:
            ValueError: There are no workers to search with, or a number is out of range.
        """
        ...

    def stats(self) -> Snapshot:
        """A snapshot of the loader. Cheap enough to be taken four times per second."""
        ...

    def points(self) -> list[Point]:
        """The time series of the last minutes, oldest first; `stats()` adds to it.

        Points are appended at the end and removed at the beginning; they never change.
        """
        ...

    def profile_lines(self, on: bool = True) -> None:
        """Start to sample the lines that workers execute, discarding earlier samples, or stop."""
        ...

    def hot_lines(self) -> HotLines:
        """The lines that workers have executed, according to the samples so far. Takes some milliseconds."""
        ...

    def explore(self) -> SampleView:
        """Open a view of the samples of the dataset.

        Raises:
            RuntimeError: This is not a notebook.
            TypeError: The dataset has no samples.
        """
        ...

    def replay(self, epoch: int, batch: int) -> Replayable:
        """Reproduce a batch as it was delivered.

        Raises:
            ReplayError: It cannot be reproduced.
        """
        ...

    def restart_workers(self, ids: Iterable[int] | None = None) -> None:
        """Restart these workers (all if None). Other workers produce the batches that they held."""
        ...

    def pause(self) -> None:
        """Stop delivering and dispatching batches until `resume()`."""
        ...

    def resume(self) -> None:
        """Continue after `pause()` or `step()`."""
        ...

    def step(self) -> None:
        """Pause if the loader is not paused, and deliver exactly one batch.

        The batch that takes its place in the prefetch window is dispatched; nothing else until the next `step()` or
        `resume()`.
        """
        ...

    def stack(self, worker: int) -> str:
        """The current Python stack of a worker, innermost frame first, even while it is blocked in C code.

        Waits two seconds at most.

        Raises:
            ValueError: There is no such worker.
            NbloaderError: It is not running, or does not respond.
        """
        ...

    def on_wait(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` from `__next__`, on the consumer's thread, at most every 100 ms.

        It is called while the consumer waits and also when a batch is ready, so that a front end can handle its
        messages while a cell is busy. It must be fast and must not iterate over the loader. A callback that raises is
        removed and logged.

        Returns:
            A function that unregisters it.
        """
        ...
