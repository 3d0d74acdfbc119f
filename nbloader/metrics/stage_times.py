"""Durations of the stages of batches: means, percentiles, histograms, slowest samples. Pure: no clock and no I/O."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

from nbloader.events import BatchRecord, Placed
from nbloader.metrics.snapshot import (
    OPTIONAL_STAGES,
    STAGES,
    Histogram,
    Percentiles,
    PinnedBatches,
    StageStats,
    UploadStats,
)

BINS = 6
"""Number of histogram bins per power of ten."""


class Spread(NamedTuple):
    """Mean and percentiles of the duration of each stage, milliseconds, in the order of `STAGES`."""

    means: tuple[float, ...]
    percentiles: tuple[Percentiles, ...]


def elapsed_ns(begin: int, end: int) -> int:
    """Return the time between two timestamps, ns; 0 if one is missing (0) or they are out of order."""
    return end - begin if end > begin > 0 else 0


def returned_at(record: BatchRecord) -> int:
    """Return when the consumer requested the next batch or, if unknown, received this one; perf_counter ns."""
    return record.returned or record.delivered


def share_of(part: int, whole: int) -> float:
    """Return `part / whole`, limited to 0 ... 1; 0 if `whole` is not positive."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def median(values: list[int]) -> int | None:
    """Return the median (the upper one for an even number of values); None for an empty list."""
    return sorted(values)[len(values) // 2] if values else None


class StageDurations(NamedTuple):
    """Duration of each stage of one batch, ns. The fields are the `STAGES` in order."""

    queue: int
    fetch: int
    collate: int
    transport: int
    transfer: int
    reorder: int
    ready: int
    pin: int
    upload: int
    step: int


def durations(r: BatchRecord) -> StageDurations:
    """Return the duration of each stage of a batch."""
    placed, transfer = r.placed, r.transfer
    return StageDurations(
        queue=elapsed_ns(r.dispatched, r.fetch_begin),
        fetch=elapsed_ns(r.fetch_begin, r.fetched),
        collate=elapsed_ns(r.fetched, r.collated),
        transport=elapsed_ns(r.collated, r.received if transfer is None else transfer.begin),
        transfer=0 if transfer is None else elapsed_ns(transfer.begin, transfer.end),
        reorder=elapsed_ns(r.received, r.in_order),
        ready=elapsed_ns(r.in_order, r.delivered),
        pin=0 if placed is None else elapsed_ns(placed.begin, placed.pinned),
        upload=0 if placed is None else elapsed_ns(placed.upload_begin, placed.uploaded),
        step=elapsed_ns(r.delivered, r.returned),
    )


def cpu_share(records: Sequence[BatchRecord]) -> float | None:
    """Return CPU time divided by wall time of fetching, at most 1; None if no time passed."""
    wall = sum(elapsed_ns(r.fetch_begin, r.fetched) for r in records)
    return min(1.0, max(0.0, sum(r.fetch_cpu for r in records) / wall)) if wall else None


def stage_stats(records: list[BatchRecord]) -> tuple[StageStats, ...]:
    """Return mean, percentiles (nearest rank) and maximum of each stage; () if there are no records."""
    # The last batch of an abandoned epoch has no step.
    whole = [r for r in records if r.returned] or records
    stages = []
    for name, column in zip(STAGES, zip(*map(durations, whole), strict=True), strict=False):
        ns = sorted(filter(None, column) if name in OPTIONAL_STAGES else column)
        if not ns:
            continue
        n = len(ns)
        p = percentiles(ns)
        stages.append(StageStats(name, mean=sum(ns) / n / 1e6, p50=p.p50, p95=p.p95, p99=p.p99, max=ns[-1] / 1e6))
    return tuple(stages)


def upload_stats(records: Sequence[BatchRecord]) -> UploadStats | None:
    """Return statistics of pinning and uploading; None if no batch was pinned or uploaded."""
    placed = [r.placed for r in records if r.placed is not None]
    if not placed:
        return None
    ways = collections.Counter(p.memory for p in placed)
    pinned = [elapsed_ns(p.begin, p.pinned) for p in placed]
    copies = [p for p in placed if p.uploaded > p.upload_begin > 0]
    copy_ns = sum(p.uploaded - p.upload_begin for p in copies)
    known = [p for p in copies if p.needed]
    exposed = share_of(sum(map(exposed_ns, known)), sum(p.uploaded - p.upload_begin for p in known))
    return UploadStats(
        ways=tuple(PinnedBatches(memory, count) for memory, count in ways.most_common()),
        pin=sum(pinned) / len(pinned) / 1e6,
        copy=copy_ns / len(copies) / 1e6 if copies else None,
        gb_per_second=sum(max(0, p.nbytes) for p in copies) / copy_ns if copies else None,
        hidden=1 - exposed if known else None,
    )


def placing_ns(r: BatchRecord) -> int:
    """Return the longest wait for a batch that its transfer can explain, ns; 0 if it was not transferred.

    A transfer that was started before the consumer asked for the batch takes place during a step, and delays the loop
    only if it takes longer than a step.
    """
    placed = r.placed
    if placed is None:
        return 0
    if placed.device and not placed.uploaded:  # the device has not told
        return elapsed_ns(r.requested, r.delivered)
    took = elapsed_ns(placed.begin, placed.pinned) + elapsed_ns(placed.upload_begin, placed.uploaded)
    hidden = elapsed_ns(r.delivered, returned_at(r)) if placed.begin < r.requested else 0
    return max(0, took - hidden)


def exposed_ns(placed: Placed) -> int:
    """Return the part of a copy that was not hidden, ns: the consumer's work on the device waited for the batch."""
    return elapsed_ns(max(placed.upload_begin, placed.needed), placed.uploaded) if placed.needed else 0


def percentiles(ns: Sequence[int]) -> Percentiles:
    """Return percentiles of sorted durations in ns, converted to milliseconds."""
    n = len(ns)
    return Percentiles(ns[(n + 1) // 2 - 1] / 1e6, ns[math.ceil(0.95 * n) - 1] / 1e6, ns[math.ceil(0.99 * n) - 1] / 1e6)


def spread_of(records: Sequence[BatchRecord]) -> Spread:
    """Return mean and percentiles of each stage over some batches."""
    columns = [sorted(ns) for ns in zip(*map(durations, records), strict=True)]
    return Spread(tuple(sum(ns) / len(ns) / 1e6 for ns in columns), tuple(map(percentiles, columns)))


def histogram(records: Sequence[BatchRecord]) -> Histogram:
    """Return a histogram of the time to produce a batch (fetch and collate), with six bins per power of ten.

    Takes about 0.4 us per batch.
    """
    log10 = math.log10
    bins = collections.Counter(
        [int(BINS * log10(max(1, r.collated - r.fetch_begin))) for r in records if r.collated > 0]
    )
    if not bins:
        return Histogram()
    first, last = min(bins), max(bins)
    edges = tuple(10 ** (b / BINS) / 1e6 for b in range(first, last + 2))
    return Histogram(edges, tuple(bins[b] for b in range(first, last + 1)))
