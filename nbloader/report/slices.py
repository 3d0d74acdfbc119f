"""Batch records as slices of time on lanes: one lane per worker, one for each loop that runs at a time. Pure.

Where batches go to a device there is one more for pinning, and one for the uploads to each device.
The trace file, the timeline of a finished epoch and the live timeline are all drawn from these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nbloader.events import BatchRecord
from nbloader.events.pauses import Pauses
from nbloader.metrics.stage_times import back

KINDS = ("fetch", "collate", "order", "pin", "upload", "wait", "step")
"""Of slices: the worker gets samples, stacks them; the finished batch waits for an earlier one, is put into pinned
memory, is copied to its device; the loop waits for a batch, works on it."""
PIN_LANE = "pin"
STALL_NS, STALL_TIMES, USUAL = 50_000_000, 2, 0.9
"""The loop stalls when it waits for a batch longer than this, and than this many times as long as for so many others:
where workers keep step, a wait for every eighth batch is nothing out of the ordinary."""


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


def upload_lane(device: str) -> str:
    """Name the lane of the copies to a device."""
    return f"upload to {device}"


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


def slices(records: Sequence[BatchRecord], pauses: Pauses | None = None) -> Iterator[Slice]:
    """Cut records into slices. What took no time, or was not stamped, gives none, nor do waits while it was paused."""
    loops = consumer_lanes(records)
    for r in records:
        worker, loop = worker_lane(r.worker), loops[r.run]
        for lane, kind, begin, end in (
            (worker, "fetch", r.fetch_begin, r.fetched),
            (worker, "collate", r.fetched, r.collated),
            (worker, "order", r.received, r.in_order),
            *_placing(r),
            *((loop, "wait", *part) for part in _waits(r, pauses)),
            (loop, "step", r.delivered, r.returned),
        ):
            if end > begin > 0:
                yield Slice(lane, kind, begin, end, r)


def _waits(r: BatchRecord, pauses: Pauses | None) -> Iterable[tuple[int, int]]:
    return pauses.outside(r.requested, r.delivered) if pauses else ((r.requested, r.delivered),)


def _placing(r: BatchRecord) -> tuple[tuple[str, str, int, int], ...]:
    p = r.placed
    if p is None:
        return ()
    return (
        (PIN_LANE, "pin", p.begin, p.pinned),
        (upload_lane(p.device), "upload", p.upload_begin, p.uploaded),
    )


def lane_order(lane: str) -> tuple[int, int, str]:
    """Sort key of lanes: against the path of a batch, loops first, then devices, pinning, and workers by number."""
    number = lane.rpartition(" ")[2]
    place = 0 if lane.startswith("your loop") else 1 if lane.startswith("upload") else 2 if lane == PIN_LANE else 3
    return (place, int(number) if number.isdigit() else -1, lane)


def stalls(records: Sequence[BatchRecord], pauses: Pauses | None = None) -> list[BatchRecord]:
    """The batches that the loop waited for unusually long, time paused left out."""
    waits = [waited(r, pauses) for r in records]
    if not waits:
        return []
    limit = max(STALL_NS, STALL_TIMES * usual_wait(waits))
    return [r for r, wait in zip(records, waits, strict=True) if wait >= limit]


def usual_wait(waits: Iterable[int]) -> int:
    """What nine of ten waits do not exceed."""
    ranked = sorted(waits)
    return ranked[int(USUAL * len(ranked))] if ranked else 0


def waited(r: BatchRecord, pauses: Pauses | None) -> int:
    """How long the loop waited for a batch while the loader was not paused, ns."""
    return pauses.active(r.requested, r.delivered) if pauses else r.waited
