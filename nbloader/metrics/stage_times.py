"""Batch records in, figures out: stage times, slowest samples, the points of the plots over time. Pure."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from dataclasses import replace

from nbloader.events import BatchRecord, Placed
from nbloader.metrics.snapshot import BESIDE, STAGES, Histogram, Point, Snapshot, StageStats, UploadStats

SLOWEST = 10
"""Slowest samples that are kept."""
BINS = 6
"""Bins of the histogram per power of ten."""
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
        self._marks: collections.deque[tuple[int, int]] = collections.deque(maxlen=5)  # when, batches until then

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
        stages: tuple[float, ...] = (0.0,) * len(STAGES)
        spread: tuple[tuple[float, float, float], ...] = ()
        if fresh:
            stages, spread = spread_of(fresh)
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
    placed = r.placed
    return (
        between(r.dispatched, r.fetch_begin),
        between(r.fetch_begin, r.fetched),
        between(r.fetched, r.collated),
        between(r.collated, r.received),
        between(r.received, r.in_order),
        between(r.in_order, r.delivered),
        0 if placed is None else between(placed.begin, placed.pinned),
        0 if placed is None else between(placed.upload_begin, placed.uploaded),
        between(r.delivered, r.returned),
    )


def stage_stats(records: list[BatchRecord]) -> tuple[StageStats, ...]:
    """Give mean, percentiles (nearest rank) and maximum of each stage; nothing for no records."""
    # A batch that the consumer never came back from has no step.
    whole = [r for r in records if r.returned] or records
    stages = []
    for name, column in zip(STAGES, zip(*map(durations, whole), strict=True), strict=False):
        ns = sorted(filter(None, column) if name in BESIDE else column)
        if not ns:
            continue
        n = len(ns)
        p50, p95, p99 = percentiles(ns)
        stages.append(StageStats(name, sum(ns) / n / 1e6, p50, p95, p99, ns[-1] / 1e6))
    return tuple(stages)


def upload_stats(records: Sequence[BatchRecord]) -> UploadStats | None:
    """How batches were pinned and uploaded; None where none was."""
    placed = [r.placed for r in records if r.placed is not None]
    if not placed:
        return None
    ways = collections.Counter(p.memory for p in placed)
    pinned = [between(p.begin, p.pinned) for p in placed]
    copies = [p for p in placed if p.uploaded > p.upload_begin > 0]
    ns = sum(p.uploaded - p.upload_begin for p in copies)
    told = [p for p in copies if p.needed]
    return UploadStats(
        ways=tuple(ways.most_common()),
        pin=sum(pinned) / len(pinned) / 1e6,
        copy=ns / len(copies) / 1e6 if copies else None,
        gb_per_second=sum(max(0, p.nbytes) for p in copies) / ns if copies else None,
        hidden=1 - share_of(sum(map(shown_of, told)), sum(p.uploaded - p.upload_begin for p in told)) if told else None,
    )


def shown_of(placed: Placed) -> int:
    """What of a copy was not hidden: it came after the consumer's work had come to it, and that stood still, ns."""
    return between(max(placed.upload_begin, placed.needed), placed.uploaded) if placed.needed else 0


def handing_share(records: Sequence[BatchRecord]) -> float:
    """Give the share of a usual wait in which the batch was there and was being pinned or uploaded, 0 to 1."""
    if not records or records[-1].placed is None:
        return 0.0
    handing = middle([between(max(r.requested, r.in_order), r.delivered) for r in records])
    return share_of(handing or 0, middle([r.waited for r in records]) or 0)  # medians: the first wait is start-up


def percentiles(ns: Sequence[int]) -> tuple[float, float, float]:
    """Give p50, p95 and p99 of sorted nanoseconds, by nearest rank, in milliseconds."""
    n = len(ns)
    return ns[(n + 1) // 2 - 1] / 1e6, ns[math.ceil(0.95 * n) - 1] / 1e6, ns[math.ceil(0.99 * n) - 1] / 1e6


def spread_of(records: Sequence[BatchRecord]) -> tuple[tuple[float, ...], tuple[tuple[float, float, float], ...]]:
    """Give mean and percentiles of each stage of some batches, milliseconds, in the order of `STAGES`."""
    columns = [sorted(ns) for ns in zip(*map(durations, records), strict=True)]
    return tuple(sum(ns) / len(ns) / 1e6 for ns in columns), tuple(map(percentiles, columns))


def histogram(records: Sequence[BatchRecord]) -> Histogram:
    """Count how long batches took to make, in bins of a sixth of a decade; about 0.4 us a batch."""
    log10 = math.log10
    bins = collections.Counter(
        [int(BINS * log10(max(1, r.collated - r.fetch_begin))) for r in records if r.collated > 0]
    )
    if not bins:
        return Histogram()
    first, last = min(bins), max(bins)
    edges = tuple(10 ** (b / BINS) / 1e6 for b in range(first, last + 2))
    return Histogram(edges, tuple(bins[b] for b in range(first, last + 1)))


def points_of(records: Sequence[BatchRecord], count: int = 240) -> list[Point]:
    """Give the plots over time of records that are complete, as for an epoch that has ended.

    Args:
        records: Batches of one epoch.
        count: Points at most; fewer where that would be less than four batches each.

    Returns:
        One point per interval, its time in seconds since the first batch was asked for.
    """
    if not records:
        return []
    records = sorted(records, key=back)
    begin, end = min(r.requested for r in records), back(records[-1])
    width = max(1, -(-(end - begin) // max(1, min(count, len(records) // 4))))
    points: list[Point] = []
    stages: tuple[float, ...] = (0.0,) * len(STAGES)
    at = 0
    waits = collections.deque(sorted((r.requested, r.delivered) for r in records if r.delivered > r.requested))
    nothing = Point(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, stages)
    for left in range(begin, end, width):
        right = left + width
        picked = []
        while at < len(records) and back(records[at]) <= right:
            picked.append(records[at])
            at += 1
        spread: tuple[tuple[float, float, float], ...] = ()
        if picked:
            stages, spread = spread_of(picked)
        waited = 0
        while waits and waits[0][0] < right:
            waited += max(0, min(waits[0][1], right) - max(waits[0][0], left))
            if waits[0][1] > right:
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
