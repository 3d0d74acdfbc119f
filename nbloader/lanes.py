"""Batch records as slices of time on lanes: one lane per worker, one for each loop that runs at a time. Pure.

The trace file, the timeline of a finished epoch and the live timeline are all drawn from these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nbloader.events import BatchRecord
from nbloader.measure import back

KINDS = ("fetch", "collate", "order", "wait", "step")
"""Of slices: the worker gets samples, stacks them; the finished batch waits for an earlier one; the loop waits for a
batch, works on it."""
STALL_NS, STALL_TIMES = 50_000_000, 3
"""The loop stalls when it waits for a batch longer than this, and than this many times as long as usually."""


class Slice(NamedTuple):
    """What one lane was at, for a while."""

    lane: str
    """As `worker_lane` and `consumer_lanes` name it."""
    kind: str
    """One of `KINDS`."""
    begin: int
    """perf_counter ns."""
    end: int
    record: BatchRecord


def worker_lane(worker: int) -> str:
    """Name the lane of a worker; of the notebook's own process for -1."""
    return f"worker {worker}" if worker >= 0 else "in this process"


def consumer_lanes(records: Iterable[BatchRecord]) -> dict[int, str]:
    """Name the lane of each run's loop. Loops that run at the same time (`zip(loader, loader)`) get one each."""
    spans: dict[int, list[int]] = {}
    for r in records:
        span = spans.setdefault(r.run, [r.requested, back(r)])
        span[0], span[1] = min(span[0], r.requested), max(span[1], back(r))
    lanes: dict[int, str] = {}
    ends: list[int] = []
    for run, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        free = next((i for i, until in enumerate(ends) if until <= begin), None)
        if free is None:
            free = len(ends)
            ends.append(end)
        ends[free] = end
        lanes[run] = "your loop" if free == 0 else f"your loop, iterator {free + 1}"
    return lanes


def slices(records: Sequence[BatchRecord]) -> Iterator[Slice]:
    """Cut records into slices. What took no time, or was not stamped, gives none."""
    loops = consumer_lanes(records)
    for r in records:
        worker, loop = worker_lane(r.worker), loops[r.run]
        for lane, kind, begin, end in (
            (worker, "fetch", r.fetch_begin, r.fetched),
            (worker, "collate", r.fetched, r.collated),
            (worker, "order", r.received, r.in_order),
            (loop, "wait", r.requested, r.delivered),
            (loop, "step", r.delivered, r.returned),
        ):
            if end > begin > 0:
                yield Slice(lane, kind, begin, end, r)


def lane_order(lane: str) -> tuple[int, int, str]:
    """Sort key of lanes: loops first, then workers by number."""
    number = lane.rpartition(" ")[2]
    return (int(not lane.startswith("your loop")), int(number) if number.isdigit() else -1, lane)


def stalls(records: Sequence[BatchRecord]) -> list[BatchRecord]:
    """The batches that the loop waited for unusually long."""
    waits = sorted(r.waited for r in records)
    if not waits:
        return []
    limit = max(STALL_NS, STALL_TIMES * waits[len(waits) // 2])
    return [r for r in records if r.waited >= limit]
