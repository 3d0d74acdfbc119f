"""Export the events of a loader as a trace file for Perfetto and as a table. The only I/O is writing the file.

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

import json
import operator
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbloader._util.format import clean, duration, plural
from nbloader.events import BatchRecord, Event
from nbloader.events.pauses import Pauses
from nbloader.metrics.snapshot import STAGES
from nbloader.metrics.stage_times import durations, exposed_ns, share_of
from nbloader.report.eventlog import line_of
from nbloader.report.slices import Lane, Slice, consumer_lanes, first_indices, slices, upload_lane, worker_lane

if TYPE_CHECKING:
    import pandas as pd

_PROCESS = 1
_STAMPS = ("requested", "dispatched", "fetch_begin", "fetched", "collated", "received", "in_order", "delivered",
           "returned")  # fmt: skip


class Trace:
    """The events of a loader up to now; `loader.trace` returns one.

    Args:
        events: Events, oldest first. A loader keeps the last 10,000.
        pauses: When the loader was paused. By default, this is taken from the events.
    """

    def __init__(self, events: Iterable[Event], pauses: Pauses | None = None) -> None:
        self.events = tuple(events)
        """Batch records and lifecycle events, oldest first."""
        self.pauses = Pauses.of(self.events) if pauses is None else pauses
        """When the loader was paused. This time does not count as time that the loop waited."""
        self.batches = tuple(e for e in self.events if isinstance(e, BatchRecord))
        """Only the batch records."""
        begins = [_begin(event) for event in self.events]
        self.origin = min(begins, default=0)
        """Origin of the times in the trace, perf_counter ns."""

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batches)

    def __repr__(self) -> str:
        """One line."""
        ends = [r.returned or r.delivered for r in self.batches]
        span = f" over {duration((max(ends) - self.origin) / 1e9)}" if ends else ""
        return f"<Trace of {plural(len(self.batches), 'batch')}{span}>"

    def epoch(self, run: int | None = None) -> Trace:
        """Select the events of one epoch.

        Args:
            run: Number of the iterator (`BatchRecord.run`); None for the latest one that delivered a batch.
        """
        if run is None:
            run = max((r.run for r in self.batches), default=-1)
        own = [r for r in self.batches if r.run == run]
        begin = min((_begin(r) for r in own), default=0)
        end = max((r.returned or r.delivered for r in own), default=0)
        events = (
            e for e in self.events if (e.run == run if isinstance(e, BatchRecord) else begin <= e.time <= end + 1)
        )
        return Trace(events, self.pauses)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace for Perfetto (ui.perfetto.dev, "Open trace file") or chrome://tracing.

        Args:
            path: File to write, such as "epoch.json". It takes about 1.5 kB per batch.

        Returns:
            The path.

        Raises:
            OSError: The file cannot be written.
        """
        target = Path(path)
        target.write_text(self.to_json(), "utf-8")
        return target

    def to_json(self) -> str:
        """Return the trace as JSON text."""
        trace = {"traceEvents": list(self._chrome()), "displayTimeUnit": "ms"}
        return json.dumps(trace, separators=(",", ":"), allow_nan=False)

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with one row per batch, with its worker, timestamps and stage durations.

        Timestamps are in seconds from the start of the trace, durations in milliseconds.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("to_pandas() needs pandas: pip install pandas", name="pandas") from error
        return pd.DataFrame([self._row(r) for r in self.batches], columns=[*_COLUMNS])

    def _row(self, r: BatchRecord) -> tuple[Any, ...]:
        stamps = ((ns - self.origin) / 1e9 if ns else None for ns in (getattr(r, name) for name in _STAMPS))
        return (
            r.run, r.epoch, r.index, r.worker, r.pid, r.attempt, r.samples, r.nbytes, r.transport, *stamps,
            *(ns / 1e6 for ns in durations(r)), r.waited / 1e6, _ms(r.fetch_cpu), _ms(r.collate_cpu), r.in_flight,
            r.reordering, r.ready, r.slowest_index, r.slowest_ns / 1e6, r.indices,
        )  # fmt: skip

    # ---- Chrome's format ---------------------------------------------------------------------------------------------

    def _chrome(self) -> Iterator[dict[str, Any]]:
        cut = list(slices(self.batches, self.pauses))
        loops = consumer_lanes(self.batches)
        lanes = {worker_lane(r.worker) for r in self.batches} | set(loops.values()) | {s.lane for s in cut}
        lanes |= {worker_lane(e.worker) for e in self.events if not isinstance(e, BatchRecord) and hasattr(e, "worker")}
        tids = {lane: tid for tid, lane in enumerate(sorted(lanes), start=1)}
        yield _meta("process_name", 0, name="nbloader")
        for lane, tid in tids.items():
            yield _meta("thread_name", tid, name=lane.label)
            yield _meta("thread_sort_index", tid, sort_index=tid)
        numbers = {id(r): n for n, r in enumerate(self.batches)}
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
        for number, r in enumerate(self.batches):
            yield from self._arrow(number, r, tids, loops[r.run])
            depths = {"in flight": r.in_flight, "reorder": r.reordering, "ready": r.ready}
            yield {"ph": "C", "pid": _PROCESS, "name": "batches", "ts": self._us(r.delivered), "args": depths}
        for event in self.events:
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
        ts = self._us(_begin(event))
        name = line_of(event).text
        return {"ph": "i", "pid": _PROCESS, **lane, "s": scope, "cat": "event", "name": name, "ts": ts}

    def _us(self, ns: int) -> float:
        return max(0, ns - self.origin) / 1e3


_COLUMNS = (
    "run", "epoch", "batch", "worker", "pid", "attempt", "samples", "nbytes", "transport", *_STAMPS,
    *(f"{stage}_ms" for stage in STAGES), "wait_ms", "fetch_cpu_ms", "collate_cpu_ms", "in_flight", "reordering",
    "ready", "slowest_index", "slowest_ms", "indices",
)  # fmt: skip


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e6


def _begin(event: Event) -> int:
    if isinstance(event, BatchRecord):
        return min(ns for ns in (event.requested, event.dispatched or event.requested))
    return event.time


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
        if r.fetch_cpu is not None:
            args["cpu ms"] = _ms(r.fetch_cpu)
    elif kind == "collate":
        args |= {"bytes": r.nbytes, "transport": r.transport}
        if r.collate_cpu is not None:
            args["cpu ms"] = _ms(r.collate_cpu)
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
