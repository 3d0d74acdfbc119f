"""Bound the gain of a line of code that takes no time, from its share of the workers' time alone. Pure.

This needs no model of the loader, so that there is always an answer: also if a lock, other programs or too few batches
make a replay impossible. Of the loop's time, only the wait for production shrinks. Two extremes bound what is left:

    slowest   each wait for a batch shrinks by the share of the line
    fastest   workers, which limit the loop, produce a batch in that much less time, until the loop itself is the limit

Workers that are idle for a part of their time gain less: their utilization decides where between both it is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from nbloader.metrics.evidence import Place

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

LEAST = 0.01
"""Smallest share of the loop's time that is left, so that a gain is at most 100x."""


class LineTime(NamedTuple):
    """The share of the workers' time that goes into a line of code and what it calls."""

    computing: float
    waiting: float
    samples: int
    """Number of stack samples, of all lines, on which these shares are based."""

    @property
    def share(self) -> float:
        """The share of the workers' time."""
        return self.computing + self.waiting

    @property
    def error(self) -> float:
        """Two standard errors of the share."""
        samples = max(1, self.samples)
        return 2 * math.sqrt(max(self.share * (1 - self.share), 1 / samples) / samples)


class Gain(NamedTuple):
    """A speedup and its interval."""

    speedup: float
    low: float
    high: float


def gain_without(line: LineTime, e: Evidence, *, serialized: bool) -> Gain:
    """Bound how much faster the loop is if a line takes no time.

    Args:
        line: The share of the line.
        e: The measurements of the epoch in which it was sampled.
        serialized: Whether the workers wait for a lock. If the line holds it, the gain is larger than its share.
    """
    share, low, high = (max(0.0, min(1.0, line.share + by)) for by in (0.0, -line.error, line.error))
    producing = min(1.0, e.producing_wait)

    def slowest(saved: float) -> float:
        return max(LEAST, 1 - saved * producing)

    def fastest(saved: float) -> float:
        if e.place is Place.CONSUMER:  # the loop itself produces: nothing overlaps
            return slowest(saved)
        return max(LEAST, 1 - producing, 1 - saved)

    busy = max(0.0, min(1.0, e.utilization))
    left = busy * fastest(share) + (1 - busy) * slowest(share)
    most = fastest(1.0) if serialized else fastest(high)
    return Gain(1 / left, min(1 / slowest(low), 1 / left), max(1 / most, 1 / left))
