"""What may be asked of an engine from any thread, and what follows for the window.

Each command is queued, and carried out with the lock by whoever drives (driver.py).
"""

from __future__ import annotations

import time

from nbloader import events as ev
from nbloader.engine.config import EngineConfig
from nbloader.engine.supervisor import Driver

_clock = time.perf_counter_ns

DEEP = 16
"""Batches asked for ahead per worker while they are small and quick, where the user left that open."""
QUICK = 2_000_000
"""What a quick batch takes a worker at most, ns."""
SMALL = 512 * 1024
"""Size of a small batch at most, bytes. Above that the segments of so many batches would not stay in the caches."""


class Commands(Driver):
    """The commands, and how far ahead batches are asked for; a base of `engine.Engine`.

    Args:
        bus: Where events go.
        settings: What the loader asks for.
    """

    def __init__(self, bus: ev.EventBus, settings: EngineConfig) -> None:
        super().__init__(bus, settings)
        self._num_workers = settings.num_workers
        self._prefetch_factor = settings.prefetch_factor
        self._prefetch = settings.prefetch
        self._adapts = settings.adapts
        self._deep = False  # small and quick batches are asked for further ahead
        self._plan_window()

    # ---- the window -------------------------------------------------------------------------------------------------

    def _plan_window(self) -> None:
        """How many batches to ask for ahead, in total and of each worker."""
        n = self._num_workers
        self._base = self._prefetch_factor * n if self._prefetch is None else self._prefetch
        self._window = DEEP * n if self._deep else self._base
        self.ahead = self._base > 0
        """Whether batches are asked for before they are wanted."""
        self._dispatcher.depth = max(1, -(-self._window // n))
        for run in self._dispatcher.runs.values():
            run.window = self._window

    def _adapt(self) -> None:
        """Small, quick batches are asked for many at a time.

        Waking a worker for each costs more than making it: with 2 a worker the system calls took two thirds of the
        consumer's time on tiny batches.
        """
        if self._quick != self._deep:
            self._deep = self._quick
            self._plan_window()

    @property
    def _quick(self) -> bool:
        return self._batch_bytes <= SMALL and self._batch_ns < QUICK

    # ---- commands: from any thread ----------------------------------------------------------------------------------

    def restart_workers(self, ids: list[int]) -> None:
        """Replace workers; what they held is made again by others."""
        self._command(lambda: self._crew.restart(ids))

    def replace_all(self, *, keep: bool = True) -> None:
        """Give all workers what was loaded last.

        Args:
            keep: Whether batches that are made already are delivered, or made again.
        """
        self._command(lambda: self._replace_all(keep=keep))

    def _replace_all(self, *, keep: bool) -> None:
        self._work()  # what has been sent counts as made
        if not keep:
            for payload in self._dispatcher.redo():
                payload.discard()
            self._untold.clear()
        self._crew.restart(list(range(self._num_workers)))

    def pause(self) -> None:
        """Deliver and dispatch nothing until `resume`."""
        self._command(self._pause)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._command(self._resume)

    def step(self) -> None:
        """Pause, and let one batch go to the consumer."""
        self._command(self._step)

    def _pause(self) -> None:
        if not self._dispatcher.paused:
            self._dispatcher.pause()
            self._events.append(ev.LoaderPaused(_clock()))
            self._wake_all()

    def _resume(self) -> None:
        if self._dispatcher.paused:
            self._dispatcher.resume()
            self._events.append(ev.LoaderResumed(_clock()))
            self._wake_all()

    def _step(self) -> None:
        self._pause()
        self._dispatcher.step()
        self._wake_all()

    def resize(self, num_workers: int) -> None:
        """Have so many workers from now on."""
        self._command(lambda: self._resize(num_workers))

    def _resize(self, num_workers: int) -> None:
        before, self._num_workers = self._num_workers, num_workers
        self._events.append(ev.WorkersResized(_clock(), before, num_workers))
        self._plan_window()
        self._crew.resize(num_workers)
        self._wake_all()  # there may be more credit

    def set_prefetch_factor(self, prefetch_factor: int) -> None:
        """Ask for so many batches ahead, per worker, from now on."""
        self._command(lambda: self._set_prefetch_factor(prefetch_factor))

    def _set_prefetch_factor(self, prefetch_factor: int) -> None:
        self._prefetch_factor, self._prefetch = prefetch_factor, None
        self._adapts = self._deep = False
        self._plan_window()
        self._wake_all()

    def close_run(self, run: int) -> None:
        """End an iterator."""
        self._command(lambda: self._close_run(run))

    def supersede(self) -> None:
        """The cell that made this loader was run again: give up the workers soon, at once if no epoch is under way."""
        self._superseded = True
        self._command(lambda: None if self._dispatcher.runs else self._crew.stop())
