"""Thread that observes a loader periodically while the loader has news."""

from __future__ import annotations

import collections
import logging
import statistics
import threading
import time
from collections.abc import Callable, Collection

from nbloader._util.threads import daemon

log = logging.getLogger(__name__)

TICK, SLOWEST_TICK = 0.25, 1.0
"""Shortest and longest time between two ticks, seconds. The more expensive the ticks, the longer the time."""
SHARE = 0.0175
"""Share of one core that ticks may use. If they cost more, for example with many workers, they run less often."""
COSTS = 20
"""Number of ticks whose mean cost determines the interval, so that a single slow tick has little effect."""
QUIET_TICKS = 8
"""After this many ticks without news from an idle loader, the thread sleeps until it is woken."""


class Publisher:
    """Calls functions on a separate thread until `end()`.

    Args:
        name: Name of the thread.
        tick: Called at most four times a second; returns whether there was news. If it raises an exception, the
            exception is logged, and the thread ends.
        idle: Returns whether the loader is idle, so that there will be no news without an event.
        afterwards: Called after each tick. Its cost does not affect the time between ticks.
        finish: Called after the last tick, unless the thread ended because of an exception.
    """

    def __init__(
        self,
        name: str,
        *,
        tick: Callable[[], bool],
        idle: Callable[[], bool],
        finish: Callable[[], object],
        afterwards: Callable[[], object] = bool,
    ) -> None:
        self._tick, self._idle, self._afterwards, self._finish = tick, idle, afterwards, finish
        self._costs: collections.deque[float] = collections.deque([0.0] * COSTS, maxlen=COSTS)
        self._wake = threading.Event()
        self._ended = threading.Event()
        self.thread = daemon(self._run, name=name)

    def start(self) -> None:
        """Start the thread. The first tick is immediate."""
        self.thread.start()

    def wake(self) -> None:
        """Wake the thread, because there may be news from an idle loader."""
        self._wake.set()

    def end(self) -> None:
        """End the thread after one more tick. Returns immediately."""
        self._ended.set()
        self._wake.set()

    @property
    def ended(self) -> bool:
        """Whether `end()` was called."""
        return self._ended.is_set()

    def _run(self) -> None:
        quiet = 0
        while True:
            self._wake.clear()
            ended = self.ended
            began, cost = time.monotonic(), time.thread_time()
            try:
                quiet = 0 if self._tick() else quiet + 1
                self._costs.append(time.thread_time() - cost)
                self._afterwards()
            except Exception:  # a bug in the caller or in a panel: log it once, and leave the loader alone
                log.exception("%s failed and was stopped", self.thread.name)
                return
            if ended:
                break
            if quiet >= QUIET_TICKS and self._idle():
                self._wake.wait()
            self._ended.wait(max(0.0, began + interval(self._costs) - time.monotonic()))
        self._finish()


def interval(costs: Collection[float]) -> float:
    """Seconds from one tick to the next.

    Args:
        costs: CPU time of each of the last ticks, seconds.
    """
    return min(max(TICK, statistics.fmean(costs) / SHARE), SLOWEST_TICK)
