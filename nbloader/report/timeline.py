"""The description of a timeline: rows of coloured blocks with tooltips. No clock and no I/O.

The live canvas, the static SVG and the Bokeh figure all draw these rows; none of them knows what a batch record is.

A batch in the reorder buffer has no record yet. Its row comes from the snapshot and is replaced when the record
arrives. If there are more batches than the eye can tell apart, consecutive batches of a worker are merged into one row.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nbloader._util.format import clean, duration, megabytes, number, percent, plural
from nbloader.events import BatchRecord, WorkerDied
from nbloader.events.pauses import Pauses
from nbloader.metrics.stage_times import exposed_ns, returned_at, share_of
from nbloader.report.slices import (
    PIN_LANE,
    STALL_NS,
    STALL_TIMES,
    Lane,
    LaneKind,
    consumer_lanes,
    first_indices,
    loop_lane,
    slices_of,
    stalls,
    upload_lane,
    usual_wait,
    waited,
    worker_lane,
)

if TYPE_CHECKING:
    from nbloader.events import Placed
    from nbloader.events.gauges import ProducedBatch

SINGLE = 60
"""Maximum number of batches in an interval for which each batch gets a row; if there are more, they are merged."""
INTERVAL_NS = 250_000_000
"""Length of the intervals in which batches are merged, ns."""
KEPT = 6000
"""Number of rows that a timeline keeps."""


class Block(NamedTuple):
    """One coloured block of a row."""

    kind: str
    """One of `slices.KINDS`."""
    begin: int
    """perf_counter ns."""
    end: int
    """perf_counter ns; 0 while the block lasts."""


class RowKey(NamedTuple):
    """Identifies a row, by attributes of `Row`."""

    lane: Lane
    epoch: int
    batch: int
    lost: int


@dataclass(frozen=True, slots=True)
class Row:
    """What one lane did with one batch, or with several that are drawn as one."""

    lane: Lane
    epoch: int
    """-1 if it is unknown: a worker was lost."""
    batch: int
    """Number of the first batch."""
    batches: int
    """Number of batches that the row stands for."""
    blocks: tuple[Block, ...]
    tip: str
    """Tooltip text of several lines."""
    stall: int = 0
    """The longest unusual wait of the loop in this row, ns; 0 if there is none. It ended with the last "wait" block."""
    lost: int = 0
    """When the worker was lost, if that was before the batch was produced, ns; 0 otherwise."""

    @property
    def key(self) -> RowKey:
        """Identity of the row: a later row with the same key replaces it."""
        return RowKey(self.lane, self.epoch, self.batch, self.lost)

    @property
    def begin(self) -> int:
        """When its first block begins, ns."""
        return self.blocks[0].begin

    @property
    def end(self) -> int:
        """When its last block ends, ns. For a block that has not ended, its begin is used."""
        return max(block.end or block.begin for block in self.blocks)

    @property
    def stalled_until(self) -> int:
        """When its last wait ended, ns; `begin` if it has none."""
        return max((block.end for block in self.blocks if block.kind == "wait"), default=self.begin)


def rows_of(records: Sequence[BatchRecord], pauses: Pauses | None = None) -> list[Row]:
    """Return the rows of complete records, such as those of an epoch that has ended, without merging."""
    loops = consumer_lanes(records)
    stalled = {id(r) for r in stalls(records, pauses)}
    rows: list[Row] = []
    for r in records:
        rows += _single(r, loops[r.epoch], pauses, waited(r, pauses) if id(r) in stalled else 0)
    return rows


def lost_rows(deaths: Iterable[WorkerDied]) -> list[Row]:
    """Return rows for what lost workers were doing when they ended, for which there are no batch records."""
    return [_lost(e) for e in deaths if e.batches and e.time > e.since > 0]


def _lost(e: WorkerDied) -> Row:
    ended = "restarted" if e.expected else f"lost: it {clean(e.reason)}"
    tip = f"batch {e.batches[0]}\nprocessed for {_ns(e.time - e.since)}, until worker {e.worker} was {ended}"
    others = len(e.batches) - 1
    queued = f", and the {plural(others, 'batch')} queued behind it" if others else ""
    tip += f"\nanother worker produces it again{queued}"
    return Row(worker_lane(e.worker), -1, e.batches[0], 1, (Block("lost", e.since, e.time),), tip, lost=e.time)


class Timeline:
    """Collects the rows of a loader while it runs."""

    def __init__(self) -> None:
        self.pauses = Pauses()
        """Pauses of the loader; add a pause before the batches that waited during it."""
        self._rows: dict[RowKey, Row] = {}  # ordered by arrival
        self._lanes: collections.Counter[Lane] = collections.Counter()  # number of rows in each lane
        self._seen: collections.deque[tuple[int, int]] = collections.deque(maxlen=256)
        self._waits: collections.deque[int] = collections.deque(maxlen=101)
        self._loops: dict[int, int] = {}  # epoch -> number of its lane
        self._ends: list[int] = []  # when the last batch of each loop lane ended, ns

    @property
    def rows(self) -> list[Row]:
        """The rows kept, oldest first."""
        return list(self._rows.values())

    def lanes(self, workers: Iterable[int] = ()) -> list[Lane]:
        """The lanes to draw, from top to bottom.

        Args:
            workers: Workers that get a lane even if they have no row.
        """
        return sorted({loop_lane(0), *map(worker_lane, workers), *self._lanes})

    def take(
        self,
        records: Sequence[BatchRecord],
        waiting: Iterable[ProducedBatch] = (),
        deaths: Iterable[WorkerDied] = (),
    ) -> list[Row]:
        """Add rows for new records, batches and deaths.

        Args:
            records: Records published since the last call.
            waiting: Batches that have been received but not delivered.
            deaths: Workers that ended since the last call.

        Returns:
            The new rows. A row with the key of an earlier one replaces it.
        """
        rows: list[Row] = []
        for _, group in itertools.groupby(records, key=lambda r: returned_at(r) // INTERVAL_NS):
            interval = list(group)
            rows += self._singly(interval) if len(interval) <= SINGLE else self._merged(interval)
        for m in waiting:
            if m.fetch_begin and (m.epoch, m.number) not in self._seen:
                self._seen.append((m.epoch, m.number))
                rows.append(_received(m))
        rows += lost_rows(deaths)
        for row in rows:
            key = row.key
            self._lanes[row.lane] += key not in self._rows
            self._rows[key] = row
        for key in list(itertools.islice(self._rows, max(0, len(self._rows) - KEPT))):
            lane = self._rows.pop(key).lane
            self._lanes[lane] -= 1
            if not self._lanes[lane]:
                del self._lanes[lane]
        return rows

    def _singly(self, records: Iterable[BatchRecord]) -> list[Row]:
        rows: list[Row] = []
        for r in records:
            rows += _single(r, self._lane(r), self.pauses, self._stall([waited(r, self.pauses)]))
        return rows

    def _merged(self, records: Sequence[BatchRecord]) -> list[Row]:
        workers: dict[tuple[int, int], list[BatchRecord]] = collections.defaultdict(list)
        loops: dict[int, list[BatchRecord]] = collections.defaultdict(list)
        for r in records:
            workers[r.worker, r.epoch].append(r)
            loops[r.epoch].append(r)
        rows = [_merged_worker(own) for own in workers.values()]
        for own in loops.values():
            waits = [waited(r, self.pauses) for r in own]
            rows.append(_merged_loop(own, self._lane(own[-1]), sum(waits), self._stall(waits)))
            devices: dict[str, list[BatchRecord]] = collections.defaultdict(list)
            for r in own:
                if r.placed is not None:
                    devices[r.placed.device].append(r)
            for sent in devices.values():
                rows += _device_rows(sent)
        return rows

    def _stall(self, waits: Sequence[int]) -> int:
        """Record some waits. Return the longest, ns, if it is unusually long; otherwise 0."""
        longest = max(waits)
        usual = usual_wait(self._waits) if longest > STALL_NS else 0
        self._waits.extend(waits)
        return longest if longest > max(STALL_NS, STALL_TIMES * usual) else 0

    def _lane(self, r: BatchRecord) -> Lane:
        """The lane of a record's loop; loops that run at the same time get different lanes."""
        lane = self._loops.get(r.epoch)
        if lane is None:
            lane = next((i for i, end in enumerate(self._ends) if end <= r.requested), len(self._ends))
            self._loops = {epoch: i for epoch, i in self._loops.items() if i != lane} | {r.epoch: lane}
            if lane == len(self._ends):
                self._ends.append(0)
        self._ends[lane] = returned_at(r)
        return loop_lane(lane)


def _single(r: BatchRecord, loop: Lane, pauses: Pauses | None, stall: int) -> Iterator[Row]:
    lanes: dict[Lane, list[Block]] = collections.defaultdict(list)
    for s in slices_of(r, loop, pauses):
        lanes[s.lane].append(Block(s.kind, s.begin, s.end))
    for lane, blocks in lanes.items():
        if lane.kind is LaneKind.WORKER:
            yield Row(lane, r.epoch, r.index, 1, tuple(blocks), _worker_tip(r))
        elif lane.kind is LaneKind.LOOP:
            tip = _loop_tip(f"batch {r.index}", waited(r, pauses), returned_at(r) - r.delivered, stall=stall, batches=1)
            yield Row(lane, r.epoch, r.index, 1, tuple(blocks), tip, stall)
    if r.placed is not None:
        yield from _device_rows([r])


def _received(m: ProducedBatch) -> Row:
    """The row of a batch that has not been delivered yet."""
    blocks = [Block("fetch", m.fetch_begin, m.fetched), Block("collate", m.fetched, m.collated)]
    tip = [f"batch {m.number}", f"fetch {_ns(m.fetched - m.fetch_begin)}, collate {_ns(m.collated - m.fetched)}"]
    if not m.in_order or m.in_order > m.received:
        blocks.append(Block("reorder", m.received, m.in_order))
        tip.append(f"reorder buffer {_ns(m.in_order - m.received)}" if m.in_order else "waiting in the reorder buffer")
    return Row(worker_lane(m.worker), m.epoch, m.number, 1, tuple(blocks), "\n".join(tip))


def _merged_worker(own: Sequence[BatchRecord]) -> Row:
    begins, fetched, collated = (
        list(map(operator.attrgetter(stamp), own)) for stamp in ("fetch_begin", "fetched", "collated")
    )
    begin, end = min(begins), max(collated)
    fetching, producing = sum(fetched) - sum(begins), sum(collated) - sum(begins)
    until_fetched, until_collated = begin + min(fetching, end - begin), begin + min(producing, end - begin)
    tip = f"{_batches(own)}\nfetch {_ns(fetching)}, collate {_ns(producing - fetching)} in total"
    blocks = (Block("fetch", begin, until_fetched), Block("collate", until_fetched, until_collated))
    return Row(worker_lane(own[0].worker), own[0].epoch, own[0].index, len(own), blocks, tip)


def _merged_loop(own: Sequence[BatchRecord], lane: Lane, wait: int, stall: int) -> Row:
    begin, end = own[0].requested, returned_at(own[-1])
    wait = min(wait, max(0, end - begin))
    blocks = (Block("wait", begin, begin + wait), Block("step", begin + wait, end))
    tip = _loop_tip(_batches(own), wait, end - begin - wait, stall=stall, batches=len(own))
    return Row(lane, own[0].epoch, own[0].index, len(own), blocks, tip, stall)


def _device_rows(records: Sequence[BatchRecord]) -> Iterator[Row]:
    """Rows for one or more batches that were pinned or copied to one device."""
    first, head = records[0], _batches(records)
    placed = [r.placed for r in records if r.placed is not None]
    pinned = [p for p in placed if p.pinned > p.begin]
    if pinned:
        begin, took = pinned[0].begin, sum(p.pinned - p.begin for p in pinned)
        block = Block("pin", begin, min(pinned[-1].pinned, begin + took))
        how = "in place" if pinned[0].memory == "registered" else "by a copy"
        tip = f"{head}\npinned {how} in {_ns(took)}"
        yield Row(PIN_LANE, first.epoch, first.index, len(records), (block,), tip)
    copies = [p for p in placed if p.uploaded > p.upload_begin > 0]
    if copies:
        begin, took = copies[0].upload_begin, sum(p.uploaded - p.upload_begin for p in copies)
        block = Block("upload", begin, min(copies[-1].uploaded, begin + took))
        tip = f"{head}\n{_upload_tip(copies, took)}"
        yield Row(upload_lane(copies[0].device), first.epoch, first.index, len(records), (block,), tip)


def _upload_tip(copies: Sequence[Placed], took: int) -> str:
    nbytes = sum(p.nbytes for p in copies)
    text = f"{megabytes(nbytes)} to {clean(copies[0].device, 24)} in {_ns(took)}: {number(nbytes / took)} GB/s"
    if all(p.needed for p in copies):
        text += f"\n{percent(1 - share_of(sum(map(exposed_ns, copies)), took))} hidden behind the work of the loop"
    return text


def _worker_tip(r: BatchRecord) -> str:
    lines = [f"batch {r.index}", f"fetch {_ns(r.fetched - r.fetch_begin)}, collate {_ns(r.collated - r.fetched)}"]
    if r.transfer is not None:
        t = r.transfer
        lines.append(f"{megabytes(t.nbytes)} sent from {clean(t.node, 60)} in {_ns(t.end - t.begin)}")
    if r.in_order > r.received > 0:
        lines.append(f"reorder buffer {_ns(r.in_order - r.received)}")
    if r.indices:
        lines.append(f"{plural(r.samples, 'sample')}: {first_indices(r)}")
    if r.slowest_ns:
        lines.append(f"slowest sample {clean(r.slowest_index, 40)}: {_ns(r.slowest_ns)}")
    if r.attempt > 1:
        lost = "" if r.lost_sample is None else f" at sample {clean(r.lost_sample, 40)}"
        lines.append(f"attempt {r.attempt}, after a worker was lost{lost}")
    return "\n".join(lines)


def _loop_tip(head: str, wait: int, step: int, *, stall: int, batches: int) -> str:
    mark = "" if not stall else " (stall)" if batches == 1 else f", including a stall of {_ns(stall)}"
    return f"{head}\nloop waited {_ns(wait)}{mark}\nloop worked {_ns(step)}"


def _batches(records: Sequence[BatchRecord]) -> str:
    first, last = records[0].index, records[-1].index
    return f"batch {first}" if len(records) == 1 else f"{plural(len(records), 'batch')}, {first} to {last}"


def _ns(ns: int) -> str:
    return duration(max(0, ns) / 1e9)


def stall_label(row: Row) -> str:
    """The duration of a stall as text, for the mark above it."""
    return duration(row.stall / 1e9)
