"""The protocol through which a dashboard, or any other program, observes and controls a loader.

The dashboard uses no other part of a loader. The protocol is defined in this package because it refers to `Snapshot`
and `Point`.
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
        """The state of the search."""
        ...

    def stop(self) -> None:
        """Ask the search to stop soon. The best setting so far is kept."""
        ...

    def undo(self) -> None:
        """End the search and restore the previous settings."""
        ...


class SampleView(Protocol):
    """A view in the browser that shows samples or a batch. `explore` opens it."""

    widget: Any
    """The widget to display in a page."""

    def open(self, index: int) -> None:
        """Show a sample in full.

        Raises:
            IndexError: There is no such sample.
        """
        ...

    def close(self) -> None:
        """Stop the workers of the view."""
        ...


class Replayable(Protocol):
    """A batch that can be reproduced."""

    def explore(self) -> SampleView:
        """Open a view of the samples in the batch.

        Raises:
            RuntimeError: The code does not run in a notebook.
        """
        ...


class LoaderControl(Protocol):
    """Observes and controls a running loader. Every method is thread-safe.

    Commands return at once; the thread of the loop executes them. Only `stack` and `remedies` block.
    """

    events: EventBus

    @property
    def num_workers(self) -> int:
        """Number of workers. Assigning another number adds or removes workers, even during an epoch.

        Raises:
            ValueError: The number is negative.
            TypeError: The number is not an int.
        """
        ...

    @num_workers.setter
    def num_workers(self, value: int) -> None: ...

    @property
    def prefetch_factor(self) -> int | None:
        """Number of batches requested ahead per worker; None if there are no workers. Can be assigned during an epoch.

        Raises:
            ValueError: The number is negative.
            TypeError: The number is not an int.
        """
        ...

    @prefetch_factor.setter
    def prefetch_factor(self, value: int) -> None: ...

    @property
    def tuning(self) -> SettingSearch | None:
        """The most recent search for better settings; None if there has been none."""
        ...

    def tune(self, *, num_workers: int | None = None, prefetch_factor: int | None = None) -> SettingSearch:
        """Search for better settings while the loop runs. Returns at once.

        If `num_workers` or `prefetch_factor` is given, apply it and measure its effect instead.

        Raises:
            ValueError: There are no workers to search with, or a number is out of range.
        """
        ...

    def stats(self) -> Snapshot:
        """Return a snapshot of the loader. This is cheap enough to do four times per second."""
        ...

    def points(self) -> list[Point]:
        """Return the time series of the last two minutes, oldest first. `stats()` adds points to it.

        Points are appended at the end and removed at the beginning. Existing points never change.
        """
        ...

    def profile_lines(self, on: bool | None = True) -> None:
        """Start sampling the lines that workers execute, discarding earlier samples, or stop sampling.

        None samples while the loop waits for them.
        """
        ...

    def hot_lines(self) -> HotLines:
        """Return the lines that workers have executed, based on the samples so far. Takes a few milliseconds."""
        ...

    def remedies(self, *, report: Callable[[str, int, int], object] | None = None) -> Any:
        """Try what could be written instead of the slowest lines, and return the remedies. Takes some seconds.

        Args:
            report: Called before each trial, with its name, its number from 0, and the number of trials.
        """
        ...

    def explore(self) -> SampleView:
        """Open a view of the samples of the dataset.

        Raises:
            RuntimeError: The code does not run in a notebook.
            TypeError: The dataset is neither an iterable nor a map-style dataset with a length.
        """
        ...

    def replay(self, epoch: int, batch: int) -> Replayable:
        """Reproduce a batch as it was delivered.

        Raises:
            ReplayError: The batch cannot be reproduced.
        """
        ...

    def restart_workers(self, ids: Iterable[int] | None = None) -> None:
        """Restart the workers with these ids (all if None). Other workers produce the batches assigned to them."""
        ...

    def pause(self) -> None:
        """Stop delivering and dispatching batches until `resume()`."""
        ...

    def resume(self) -> None:
        """Continue after `pause()` or `step()`."""
        ...

    def step(self) -> None:
        """Pause if the loader is not paused, and deliver exactly one batch.

        One batch is dispatched to refill the prefetch window. Nothing else happens until the next `step()` or
        `resume()`.
        """
        ...

    def stack(self, worker: int) -> str:
        """Return the current Python stack of a worker, innermost frame first, even while it is blocked in C code.

        Waits for at most two seconds.

        Raises:
            ValueError: There is no such worker.
            NbloaderError: The worker is not running, or does not respond.
        """
        ...

    def on_wait(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` from `__next__`, on the consumer's thread, at most every 100 ms.

        The callback is called while the consumer waits, and also if a batch is ready at once, so that a front end can
        handle its messages while a cell is busy. It must be fast and must not iterate over the loader. If it raises,
        the error is logged and the callback is removed.

        Returns:
            A function that unregisters the callback.
        """
        ...
