"""How many workers were ready, over time."""

from __future__ import annotations

import collections
import itertools
from typing import NamedTuple

CHANGES = 256
"""Number of changes that are kept."""


class _Since(NamedTuple):
    """Number of workers since a point in time, perf_counter ns."""

    time: int
    workers: int


class WorkerCount:
    """Records the number of workers that were ready, from the events of their starts and ends."""

    def __init__(self) -> None:
        self._changes: collections.deque[_Since] = collections.deque(maxlen=CHANGES)

    def add(self, time: int, change: int) -> None:
        """Record that a worker became ready (1) or ended (-1). A worker that ends may never have been ready."""
        workers = self._changes[-1].workers if self._changes else 0
        self._changes.append(_Since(time, max(0, workers + change)))

    def mean(self, begin: int, end: int, *, after: int) -> float | None:
        """Return the mean number of workers over an interval; None if the number did not change during it.

        Args:
            begin: Start of the interval, perf_counter ns.
            end: End of the interval, perf_counter ns.
            after: The interval does not begin before this: until then, workers are starting. perf_counter ns.
        """
        begin = max(begin, after)
        if not any(begin < change.time < end for change in self._changes):
            return None
        total = 0
        for change, following in itertools.zip_longest(self._changes, itertools.islice(self._changes, 1, None)):
            until = end if following is None else min(end, following.time)
            total += change.workers * max(0, until - max(begin, change.time))
        return total / (end - begin) if total and end > begin else None
