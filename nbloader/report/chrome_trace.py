"""Converts the events of a loader to entries of a trace file for Perfetto.

The format is Chrome's "Trace Event Format" (JSON), which ui.perfetto.dev and chrome://tracing open. Times are in
microseconds from the first event of the trace. The trace contains:

- complete slices ("X") on lanes (threads): one lane per worker, one for the loop, one for pinning, and one for the
  uploads to each device
- an arrow for each batch, from the worker that produced it ("s"), through its upload ("t") if it has one, to the loop
  that received it ("f")
- asynchronous slices ("b", "e") for batches in the reorder buffer, for transfers from other machines, and for batches
  that a worker fetches at the same time
- counters ("C") for the queue depths
- instants ("i") for lifecycle events
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nbloader._util.format import clean
from nbloader.events import BatchRecord, Event
from nbloader.events.pauses import Pauses
from nbloader.metrics.stage_times import exposed_ns, share_of
from nbloader.report.eventlog import line_of
from nbloader.report.slices import Lane, Slice, consumer_lanes, first_indices, slices, upload_lane, worker_lane

_PROCESS = 1


def begin_of(event: Event) -> int:
    """When an event began, perf_counter ns."""
    if isinstance(event, BatchRecord):
        return min(event.requested, event.dispatched or event.requested)
    return event.time


class ChromeTrace:
    """The entries of a trace file.

    Args:
        events: Batch records and lifecycle events.
        pauses: When the loader was paused.
        origin: Origin of the times in the file, perf_counter ns.
    """

    def __init__(self, events: Sequence[Event], pauses: Pauses, origin: int) -> None:
        self._events = events
        self._batches = [event for event in events if isinstance(event, BatchRecord)]
        self._pauses = pauses
        self._origin = origin

    def events(self) -> Iterator[dict[str, Any]]:
        """Return the entries of the file."""
        cut = list(slices(self._batches, self._pauses))
        loops = consumer_lanes(self._batches)
        lanes = {worker_lane(r.worker) for r in self._batches} | set(loops.values()) | {s.lane for s in cut}
        others = (event for event in self._events if not isinstance(event, BatchRecord))
        lanes |= {worker_lane(event.worker) for event in others if hasattr(event, "worker")}
        tids = {lane: tid for tid, lane in enumerate(sorted(lanes), start=1)}
        yield _meta("process_name", 0, name="nbloader")
        for lane, tid in tids.items():
            yield _meta("thread_name", tid, name=lane.label)
            yield _meta("thread_sort_index", tid, sort_index=tid)
        numbers = {id(r): n for n, r in enumerate(self._batches)}
        overlapping = _overlapping(cut)
        for s in cut:
            common = {"pid": _PROCESS, "cat": s.kind, "name": f"{s.kind} {s.record.index}"}
            if s.kind in ("reorder", "transfer"):
                name = "in the reorder buffer" if s.kind == "reorder" else f"transfer {s.record.index}"
                common |= {"name": name, "id2": {"local": f"{s.kind} {numbers[id(s.record)]}"}}
                yield {**common, "ph": "b", "ts": self._us(s.begin), "args": _args(s.kind, s.record)}
                yield {**common, "ph": "e", "ts": self._us(s.end)}
                continue
            if s.kind == "fetch" and s.lane in overlapping:  # slices of a thread must be nested
                asynchronous = {**common, "tid": tids[s.lane], "id2": {"local": f"fetch {numbers[id(s.record)]}"}}
                yield {**asynchronous, "ph": "b", "ts": self._us(s.begin), "args": _args(s.kind, s.record)}
                yield {**asynchronous, "ph": "e", "ts": self._us(s.end)}
                continue
            span = {"ts": self._us(s.begin), "dur": (s.end - s.begin) / 1e3}
            yield {**common, **span, "ph": "X", "tid": tids[s.lane], "args": _args(s.kind, s.record)}
        for number, r in enumerate(self._batches):
            yield from self._arrow(number, r, tids, loops[r.epoch])
            depths = {"in flight": r.in_flight, "reorder": r.reordering, "ready": r.ready}
            yield {"ph": "C", "pid": _PROCESS, "name": "batches", "ts": self._us(r.delivered), "args": depths}
        for event in self._events:
            if not isinstance(event, BatchRecord):
                yield self._instant(event, tids)

    def _arrow(self, number: int, r: BatchRecord, tids: dict[Lane, int], loop: Lane) -> Iterator[dict[str, Any]]:
        """The arrow from the slice that completes the batch to the slice in which the loop works on it."""
        produced = r.fetched if r.collated > r.fetched else r.fetch_begin
        if not produced or r.worker < 0:
            return
        common = {"pid": _PROCESS, "cat": "batch", "name": "batch", "id": number}
        yield {**common, "ph": "s", "tid": tids[worker_lane(r.worker)], "ts": self._us(produced)}
        arrived = r.delivered if r.returned > r.delivered else r.requested
        p = r.placed
        if p is not None and produced <= p.upload_begin < p.uploaded and p.upload_begin < (r.returned or r.delivered):
            arrived = max(arrived, p.upload_begin)  # a device may start to copy after the loop has received the batch
            yield {**common, "ph": "t", "tid": tids[upload_lane(p.device)], "ts": self._us(p.upload_begin)}
        yield {**common, "ph": "f", "bp": "e", "tid": tids[loop], "ts": self._us(arrived)}

    def _instant(self, event: Event, tids: dict[Lane, int]) -> dict[str, Any]:
        worker = getattr(event, "worker", None)
        lane = {} if worker is None else {"tid": tids[worker_lane(worker)]}
        scope = "p" if worker is None else "t"
        ts = self._us(begin_of(event))
        name = line_of(event).text
        return {"ph": "i", "pid": _PROCESS, **lane, "s": scope, "cat": "event", "name": name, "ts": ts}

    def _us(self, ns: int) -> float:
        return max(0, ns - self._origin) / 1e3


def _meta(kind: str, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": tid, "name": kind, "args": args}


def _overlapping(cut: Iterable[Slice]) -> set[Lane]:
    """The lanes of workers that fetch several batches at a time because their dataset is asynchronous."""
    ends: dict[Lane, int] = {}
    found: set[Lane] = set()
    for s in sorted((s for s in cut if s.kind == "fetch"), key=operator.attrgetter("begin")):
        if s.begin < ends.get(s.lane, 0):
            found.add(s.lane)
        ends[s.lane] = max(s.end, ends.get(s.lane, 0))
    return found


def _args(kind: str, r: BatchRecord) -> dict[str, Any]:
    args: dict[str, Any] = {"epoch": r.epoch, "batch": r.index}
    if kind == "fetch":
        args |= {
            "samples": r.samples,
            "indices": first_indices(r),
            "slowest sample": clean(r.slowest_index, 60),
            "slowest ms": r.slowest_ns / 1e6,
            "pid": r.pid,
            "attempt": r.attempt,
        }
        if r.lost_sample is not None:
            args["worker lost at sample"] = clean(r.lost_sample, 60)
        args["cpu ms"] = r.fetch_cpu / 1e6
    elif kind == "collate":
        args |= {"bytes": r.nbytes, "transport": r.transport, "cpu ms": r.collate_cpu / 1e6}
    elif kind == "transfer" and r.transfer is not None:
        args |= {"node": r.transfer.node, "bytes": r.transfer.nbytes}
    elif kind == "pin" and r.placed is not None:
        args |= {"memory": r.placed.memory, "bytes": r.nbytes}
    elif kind == "upload" and r.placed is not None:
        p = r.placed
        took = p.uploaded - p.upload_begin
        args |= {"bytes": p.nbytes, "GB/s": round(p.nbytes / took, 3), "from": f"{p.memory} memory"}
        if p.needed:
            args |= {"hidden": round(1 - share_of(exposed_ns(p), took), 3)}
    else:
        args |= {"worker": r.worker}
    return args
