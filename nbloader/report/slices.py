"""Split batch records into slices of time on lanes. Pure.

There is one lane per worker, one per loop that runs at the same time, one for pinning, and one per device for uploads.
The trace file and all timelines (live, static and Bokeh) are drawn from these slices.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nbloader._util import palette
from nbloader._util.format import clean
from nbloader.events import BatchRecord
from nbloader.events.pauses import Pauses
from nbloader.metrics.stage_times import returned_at

STALL_NS, STALL_TIMES, USUAL = 50_000_000, 2, 0.9
"""The loop stalls if it waits for a batch longer than `STALL_NS`, and longer than `STALL_TIMES` times the `USUAL`
quantile of the recent waits. With workers in lockstep, for example, a wait for every eighth batch is normal."""


@dataclass(frozen=True, slots=True)
class SliceKind:
    """How slices of one kind are labelled and drawn."""

    name: str
    label: str
    color: str
    below: bool = False
    """Whether it is drawn as a thin strip below the others: the worker is already busy with its next batch."""
    device: bool = False
    """Whether it occurs only if batches are pinned or uploaded."""
    loss: bool = False
    """Whether it occurs only if a worker was lost while it processed a batch."""
    remote: bool = False
    """Whether it occurs only if workers run on other machines."""


KINDS: dict[str, SliceKind] = {
    kind.name: kind
    for kind in (
        SliceKind("fetch", "fetching", palette.STAGES["fetch"]),
        SliceKind("collate", "collating", palette.STAGES["collate"]),
        SliceKind("transfer", "sending to this machine", palette.STAGES["transfer"], below=True, remote=True),
        SliceKind("reorder", "in the reorder buffer", palette.STAGES["reorder"], below=True),
        SliceKind("pin", "pinning", palette.STAGES["pin"], device=True),
        SliceKind("upload", "uploading", palette.STAGES["upload"], device=True),
        SliceKind("wait", "loop waiting", palette.WAIT),
        SliceKind("step", "loop working", palette.STAGES["step"]),
        SliceKind("lost", "lost with its worker", palette.LOST, loss=True),
    )
}
"""Kinds of slices by name, in the order of the legend."""


class LaneKind(enum.IntEnum):
    """Kinds of lanes, from top to bottom: the reverse of the path of a batch."""

    LOOP = 0
    UPLOAD = 1
    PIN = 2
    WORKER = 3


class Lane(NamedTuple):
    """One lane of a timeline. Lanes sort in the order in which they are drawn."""

    kind: LaneKind
    number: int = 0
    """Number of the loop or worker; -1 stands for the loader's own process."""
    device: str = ""
    """Device to which batches are uploaded; "" for other kinds of lanes."""

    @property
    def label(self) -> str:
        """Text beside the lane, unique among the lanes of a loader."""
        if self.kind is LaneKind.LOOP:
            return "your loop" if self.number == 0 else f"your loop {self.number + 1}"
        if self.kind is LaneKind.UPLOAD:
            return f"upload to {self.device}"
        if self.kind is LaneKind.PIN:
            return "pin"
        return f"worker {self.number}" if self.number >= 0 else "this process"


PIN_LANE = Lane(LaneKind.PIN)


def worker_lane(worker: int) -> Lane:
    """Lane of a worker; for -1, the lane of the loader's own process."""
    return Lane(LaneKind.WORKER, worker)


def loop_lane(number: int) -> Lane:
    """Lane of a loop; of the loops that run at the same time, the first has number 0."""
    return Lane(LaneKind.LOOP, number)


def upload_lane(device: str) -> Lane:
    """Lane of the uploads to a device."""
    return Lane(LaneKind.UPLOAD, device=clean(device, 24))


class Slice(NamedTuple):
    """What one lane did during an interval."""

    lane: Lane
    kind: str
    """One of `KINDS`."""
    begin: int
    """perf_counter ns."""
    end: int
    record: BatchRecord


def consumer_lanes(records: Iterable[BatchRecord]) -> dict[int, Lane]:
    """Assign a lane to the loop of each epoch; loops that overlap (`zip(loader, loader)`) get different lanes."""
    spans: dict[int, tuple[int, int]] = {}
    for r in records:
        begin, end = spans.get(r.epoch, (r.requested, r.requested))
        spans[r.epoch] = min(begin, r.requested), max(end, returned_at(r))
    lanes: dict[int, Lane] = {}
    ends: list[int] = []
    for epoch, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        free = next((i for i, until in enumerate(ends) if until <= begin), None)
        if free is None:
            free = len(ends)
            ends.append(end)
        ends[free] = end
        lanes[epoch] = loop_lane(free)
    return lanes


def slices(records: Sequence[BatchRecord], pauses: Pauses | None = None) -> Iterator[Slice]:
    """Split records into slices, without empty intervals, missing timestamps, and waits during a pause."""
    loops = consumer_lanes(records)
    for r in records:
        yield from slices_of(r, loops[r.epoch], pauses)


def slices_of(r: BatchRecord, loop: Lane, pauses: Pauses | None = None) -> Iterator[Slice]:
    """Split one record into slices.

    Args:
        r: The record.
        loop: Lane of the loop that received the batch.
        pauses: Intervals that do not count as waiting.
    """
    worker = worker_lane(r.worker)
    waits = pauses.outside(r.requested, r.delivered) if pauses else ((r.requested, r.delivered),)
    for lane, kind, begin, end in (
        (worker, "fetch", r.fetch_begin, r.fetched),
        (worker, "collate", r.fetched, r.collated),
        *(() if r.transfer is None else ((worker, "transfer", r.transfer.begin, r.transfer.end),)),
        (worker, "reorder", r.received, r.in_order),
        *_device_slices(r),
        *((loop, "wait", *part) for part in waits),
        (loop, "step", r.delivered, r.returned),
    ):
        if end > begin > 0:
            yield Slice(lane, kind, begin, end, r)


def _device_slices(r: BatchRecord) -> tuple[tuple[Lane, str, int, int], ...]:
    p = r.placed
    if p is None:
        return ()
    return (
        (PIN_LANE, "pin", p.begin, p.pinned),
        (upload_lane(p.device), "upload", p.upload_begin, p.uploaded),
    )


def stalls(records: Sequence[BatchRecord], pauses: Pauses | None = None) -> list[BatchRecord]:
    """The batches for which the loop waited unusually long, not counting paused time."""
    waits = [waited(r, pauses) for r in records]
    if not waits:
        return []
    limit = max(STALL_NS, STALL_TIMES * usual_wait(waits))
    return [r for r, wait in zip(records, waits, strict=True) if wait >= limit]


def usual_wait(waits: Iterable[int]) -> int:
    """The wait that nine of ten waits do not exceed, ns; 0 if there are none."""
    ranked = sorted(waits)
    return ranked[int(USUAL * len(ranked))] if ranked else 0


def waited(r: BatchRecord, pauses: Pauses | None) -> int:
    """How long the loop waited for a batch while the loader was not paused, ns."""
    return pauses.active(r.requested, r.delivered) if pauses else r.waited


def first_indices(r: BatchRecord) -> str:
    """The first dataset indices of a batch as text: "3, 17, 4, ..."."""
    more = r.samples > len(r.indices) > 0
    return clean(", ".join(clean(i, 24) for i in r.indices)) + (", …" if more else "")
