"""Batch records in, figures out: stage times, slowest samples, the points of the plots over time. Pure."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from dataclasses import replace

from nbloader.events import BatchRecord
from nbloader.snapshot import STAGES, Point, Snapshot, StageStats

SLOWEST = 10
"""Slowest samples that are kept."""
POINT_NS, POINTS_NS = 200_000_000, 120_000_000_000
"""Least time between two plot points, and how long they are kept, ns."""


class Plot:
    """The points of the plots over time, made from what each snapshot saw."""

    def __init__(self) -> None:
        self.points: collections.deque[Point] = collections.deque(maxlen=POINTS_NS // POINT_NS)
        self.total = 0
        self._waited = 0
        self._now: int | None = None
        self._idle = True
        self._marks: collections.deque[tuple[int, int]] = collections.deque(maxlen=5)

    def add(self, s: Snapshot, now: int, age: int, *, total: int, waited: int, fresh: Sequence[BatchRecord]) -> None:
        """Add a point, unless the last one is less than 0.2 s old or nothing goes on.

        Args:
            s: The picture.
            now: When it was taken, ns.
            age: The same, since the loader's first event.
            total: Batches delivered until now.
            waited: How long the consumer has waited until now, ns.
            fresh: The newest of the batches delivered since the last point.
        """
        gap = now - self._now if self._now is not None else max(0, age)
        idle = s.state in ("new", "idle", "closed")
        if (self._now is not None and gap < POINT_NS) or (idle and self._idle):
            return
        at = max(0, age) / 1e9
        if self.points and self._idle and gap > 5 * POINT_NS:  # nothing went on: a flat line, not a slope
            self.points.append(replace(self.points[-1], time=max(self.points[-1].time, at - POINT_NS / 1e9)))
        if gap > 5 * POINT_NS:
            self._marks.clear()
            rate, share = s.batches_per_second, s.wait_share
        else:
            since, before = self._marks[0] if self._marks else (now - gap, 0)
            rate = (total - before) * 1e9 / max(1, now - since)
            share = share_of(max(0, waited - self._waited), gap)
        stages = self.points[-1].stages if self.points else (0.0,) * len(STAGES)
        if fresh:
            stages = tuple(sum(ns) / len(ns) / 1e6 for ns in zip(*map(durations, fresh), strict=True))
        seen = len(fresh) + 1
        self.points.append(
            Point(
                time=at,
                in_flight=(sum(r.in_flight for r in fresh) + s.in_flight) / seen,
                reordering=(sum(r.reordering for r in fresh) + s.reordering) / seen,
                ready=(sum(r.ready for r in fresh) + s.ready) / seen,
                batches_per_second=rate,
                wait_share=share,
                stages=stages,
            )
        )
        while self.points[0].time < at - POINTS_NS / 1e9:
            self.points.popleft()
        self._now, self._idle, self.total = now, idle, total
        # A record comes after its batch: what was already counted of a wait is not counted again.
        self._waited = max(self._waited, waited)
        self._marks.append((now, total))


def between(begin: int, end: int) -> int:
    """Give the time between two stamps, ns; 0 when one is missing (0) or they are out of order."""
    return end - begin if end > begin > 0 else 0


def back(record: BatchRecord) -> int:
    """When the consumer came back; when it got the batch, where that is not known."""
    return record.returned or record.delivered


def share_of(part: int, whole: int) -> float:
    """Give `part / whole`, within 0 and 1; 0 of nothing."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def middle(values: list[int]) -> int | None:
    """Give the median (the upper one of two); None of nothing."""
    return sorted(values)[len(values) // 2] if values else None


def durations(r: BatchRecord) -> tuple[int, ...]:
    """Give the time in each stage, ns, in the order of `STAGES`."""
    return (
        between(r.dispatched, r.fetch_begin),
        between(r.fetch_begin, r.fetched),
        between(r.fetched, r.collated),
        between(r.collated, r.received),
        between(r.received, r.in_order),
        between(r.in_order, r.delivered),
        between(r.delivered, r.returned),
    )


def stage_stats(records: list[BatchRecord]) -> tuple[StageStats, ...]:
    """Give mean, percentiles (nearest rank) and maximum of each stage; nothing for no records."""
    # A batch that the consumer never came back from has no step.
    whole = [r for r in records if r.returned] or records
    stages = []
    for name, column in zip(STAGES, zip(*map(durations, whole), strict=True), strict=False):
        ns = sorted(column)
        n = len(ns)
        p50, p95 = ns[(n + 1) // 2 - 1], ns[math.ceil(0.95 * n) - 1]
        stages.append(StageStats(name, sum(ns) / n / 1e6, p50 / 1e6, p95 / 1e6, ns[-1] / 1e6))
    return tuple(stages)


def slowest(records: list[BatchRecord]) -> list[BatchRecord]:
    """The slowest samples, slowest first, each sample once."""
    best: dict[object, BatchRecord] = {}
    for r in sorted(records, key=lambda r: -r.slowest_ns):
        # Only plain indices are compared: others may not be hashable.
        key = r.slowest_index if isinstance(r.slowest_index, int | str) else (id(r), None)
        best.setdefault(key, r)
        if len(best) == SLOWEST:
            break
    return list(best.values())
