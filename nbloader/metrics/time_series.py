"""Time series for the plots of the dashboard and of reports. Pure: no clock and no I/O."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from nbloader.events import BatchRecord
from nbloader.metrics.snapshot import ENDED, STAGES, Percentiles, Point, Snapshot
from nbloader.metrics.stage_times import returned_at, share_of, spread_of

POINT_NS = 200_000_000
"""Minimum time between two points, ns."""
KEPT_NS = 120_000_000_000
"""How long points are kept, ns."""


class _Mark(NamedTuple):
    """Number of batches delivered until a point in time."""

    time: int
    """The point in time, perf_counter ns."""
    batches: int


class _Wait(NamedTuple):
    """A wait of the consumer, perf_counter ns."""

    begin: int
    end: int


class TimeSeries:
    """The points of the last two minutes. A snapshot adds one unless it follows the previous point too closely."""

    def __init__(self) -> None:
        self.points: collections.deque[Point] = collections.deque(maxlen=KEPT_NS // POINT_NS)
        self.total = 0
        """Number of batches delivered until the last point."""
        self._waited = 0
        self._now: int | None = None
        self._idle = True
        self._marks: collections.deque[_Mark] = collections.deque(maxlen=5)

    def add(self, s: Snapshot, now: int, age: int, *, total: int, waited: int, fresh: Sequence[BatchRecord]) -> None:
        """Add a point, unless the last one is less than 0.2 s old or the loader was and is still idle.

        Args:
            s: The snapshot.
            now: When the snapshot was taken, perf_counter ns.
            age: Time since the loader's first event, ns.
            total: Number of batches delivered until now.
            waited: Total time that the consumer has waited until now, ns.
            fresh: The newest of the batches delivered since the last point.
        """
        gap = now - self._now if self._now is not None else max(0, age)
        idle = s.state in ("new", *ENDED)
        if (self._now is not None and gap < POINT_NS) or (idle and self._idle):
            return
        at = max(0, age) / 1e9
        if self.points and self._idle and gap > 5 * POINT_NS:  # it was idle: draw a flat line, not a slope
            self.points.append(replace(self.points[-1], time=max(self.points[-1].time, at - POINT_NS / 1e9)))
        if gap > 5 * POINT_NS:
            self._marks.clear()
            rate, share = s.batches_per_second, s.wait_share
        else:
            since, before = self._marks[0] if self._marks else _Mark(now - gap, 0)
            rate = (total - before) * 1e9 / max(1, now - since)
            share = share_of(max(0, waited - self._waited), gap)
        stages: tuple[float, ...] = (0.0,) * len(STAGES)
        spread: tuple[Percentiles, ...] = ()
        if fresh:
            spread_now = spread_of(fresh)
            stages, spread = spread_now.means, spread_now.percentiles
        elif self.points:
            stages, spread = self.points[-1].stages, self.points[-1].spread
        seen = len(fresh) + 1
        each = rate / max(1e-9, s.batches_per_second)
        self.points.append(
            Point(
                time=at,
                in_flight=(sum(r.in_flight for r in fresh) + s.in_flight) / seen,
                reordering=(sum(r.reordering for r in fresh) + s.reordering) / seen,
                ready=(sum(r.ready for r in fresh) + s.ready) / seen,
                batches_per_second=rate,
                wait_share=share,
                stages=stages,
                samples_per_second=each * s.samples_per_second,
                mb_per_second=each * s.mb_per_second,
                spread=spread,
            )
        )
        while self.points[0].time < at - KEPT_NS / 1e9:
            self.points.popleft()
        self._now, self._idle, self.total = now, idle, total
        # `waited` falls between the delivery of a batch and the publication of its record: do not count a wait twice.
        self._waited = max(self._waited, waited)
        self._marks.append(_Mark(now, total))


def points_of(records: Sequence[BatchRecord], count: int = 240) -> list[Point]:
    """Return the time series of a complete set of records, such as those of an epoch that has ended.

    Args:
        records: Batches of one epoch.
        count: Maximum number of points; fewer if there would be fewer than four batches per point.

    Returns:
        One point per interval; `Point.time` is in seconds since the first batch was requested.
    """
    if not records:
        return []
    records = sorted(records, key=returned_at)
    begin, end = min(r.requested for r in records), returned_at(records[-1])
    width = max(1, -(-(end - begin) // max(1, min(count, len(records) // 4))))
    points: list[Point] = []
    stages: tuple[float, ...] = (0.0,) * len(STAGES)
    at = 0
    waits = collections.deque(sorted(_Wait(r.requested, r.delivered) for r in records if r.delivered > r.requested))
    nothing = Point(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, stages)
    for left in range(begin, end, width):
        right = left + width
        picked = []
        while at < len(records) and returned_at(records[at]) <= right:
            picked.append(records[at])
            at += 1
        spread: tuple[Percentiles, ...] = ()
        if picked:
            spread_now = spread_of(picked)
            stages, spread = spread_now.means, spread_now.percentiles
        waited = 0
        while waits and waits[0].begin < right:
            waited += max(0, min(waits[0].end, right) - max(waits[0].begin, left))
            if waits[0].end > right:
                break
            waits.popleft()
        before = points[-1] if points else nothing
        points.append(
            Point(
                time=(right - begin) / 1e9,
                in_flight=_mean([r.in_flight for r in picked], before.in_flight),
                reordering=_mean([r.reordering for r in picked], before.reordering),
                ready=_mean([r.ready for r in picked], 0.0),
                batches_per_second=len(picked) * 1e9 / width,
                wait_share=share_of(waited, width),
                stages=stages,
                samples_per_second=sum(r.samples for r in picked) * 1e9 / width,
                mb_per_second=sum(r.nbytes for r in picked) * 1e3 / width,
                spread=spread,
            )
        )
    return points


def _mean(values: list[int], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
