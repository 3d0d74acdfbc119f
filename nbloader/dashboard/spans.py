"""Rows for the live timeline: what workers and the loop were at, as plain numbers. Pure.

A batch that a worker has made but that the loop has not got has no record yet; its row comes from the snapshot, and
a second one when the record is there. While there are more batches than an eye can tell apart, those that a worker
made one after the other become one row.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nbloader._util.format import clean
from nbloader.events import BatchRecord
from nbloader.events.pauses import Pauses
from nbloader.metrics.stage_times import back, shown_of
from nbloader.report.slices import STALL_NS, STALL_TIMES, usual_wait, waited
from nbloader.report.trace import first_indices

if TYPE_CHECKING:
    from nbloader.events.gauges import ProducedBatch

SECONDS = 30
"""What the timeline shows."""
SINGLE = 60
"""Batches between two messages that get a row each; more are merged."""
KEPT = 6000
"""Rows kept, for a view that comes later."""
PAUSES, PAUSES_NS = 40, 120 * 10**9
"""Pauses that are told, the last ones, and how far back."""
_MADE = tuple(map(operator.attrgetter, ("fetch_begin", "fetched", "collated")))

WORKER, LOOP, PIN, UPLOAD = range(4)
"""Kinds of rows, their first entry."""
Row = list[Any]
"""[0, worker, run, number, count, fetch begins, fetch ends, made, received, in order (0: not yet), indices] of a
worker; [1, lane, run, number, count, asked for, delivered, loop came back, longest stall (0:
none), time waited] of the loop; [2, how,
run, number, count, taken up, pinned, pinned, 0, 0] of pinning; [3, device, run, number, count, copy begins, ends, ends,
time of it that was hidden (None: not known), MB] of an upload. Times in ms."""


class Spans:
    """Makes the rows, each once.

    Args:
        origin: Zero of their times, perf_counter ns.
    """

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.rows: collections.deque[Row] = collections.deque(maxlen=KEPT)
        """The last rows, oldest first."""
        self.pauses = Pauses()
        """Of the loader, to be told by `Pauses.note`: before the batches that waited in them."""
        self._told: collections.deque[tuple[int, int]] = collections.deque(maxlen=256)
        self._waits: collections.deque[int] = collections.deque(maxlen=101)
        self._loops: dict[int, int] = {}  # run -> its lane
        self._ends: list[int] = []  # of the loops' lanes

    def ms(self, ns: int) -> float:
        """A time for a row; 0 for a stamp that is missing."""
        return round((ns - self.origin) / 1e6, 2) if ns else 0

    def paused(self, now: int) -> list[list[float]]:
        """When the loader was paused in the time that can be shown: begin and end of each pause, ms."""
        return [[self.ms(a), self.ms(b)] for a, b in self.pauses.between(now - PAUSES_NS, now)][-PAUSES:]

    def take(self, records: Sequence[BatchRecord], made: Iterable[ProducedBatch] = ()) -> list[Row]:
        """Make the rows of what is new.

        Args:
            records: Batches whose records came since the last time.
            made: Batches that have come from workers and not gone to the loop.
        """
        rows = self._singly(records) if len(records) <= SINGLE else self._merged(records)
        for m in made:
            if m.fetch_begin and (m.run, m.number) not in self._told:
                self._told.append((m.run, m.number))
                stamps = (m.fetch_begin, m.fetched, m.collated, m.received, m.in_order)
                rows.append([WORKER, m.worker, m.run, m.number, 1, *map(self.ms, stamps), ""])
        self.rows.extend(rows)
        return rows

    def _singly(self, records: Iterable[BatchRecord]) -> list[Row]:
        rows: list[Row] = []
        for r in records:
            stamps = (r.fetch_begin, r.fetched, r.collated, r.received, r.in_order)
            rows.append([WORKER, r.worker, r.run, r.index, 1, *map(self.ms, stamps), first_indices(r)])
            times = map(self.ms, (r.requested, r.delivered, back(r)))
            waits = self._waits_of([r])
            rows.append([LOOP, self._lane(r), r.run, r.index, 1, *times, self._stall(waits), round(waits[0] / 1e6, 2)])
            if r.placed is not None:
                rows += self._placed([r])
        return rows

    def _placed(self, records: Sequence[BatchRecord]) -> list[Row]:
        """Rows of how records, one or several, came to one device."""
        placed = [r.placed for r in records if r.placed is not None]
        head = [records[0].run, records[0].index, len(records)]
        rows: list[Row] = []
        pinned = [p for p in placed if p.pinned > p.begin]
        if pinned:
            begin, took = pinned[0].begin, sum(p.pinned - p.begin for p in pinned)
            end = self.ms(min(pinned[-1].pinned, begin + took))
            rows.append([PIN, pinned[0].memory, *head, self.ms(begin), end, end, 0, 0])
        copies = [p for p in placed if p.uploaded > p.upload_begin > 0]
        if copies:
            begin, took = copies[0].upload_begin, sum(p.uploaded - p.upload_begin for p in copies)
            end = self.ms(min(copies[-1].uploaded, begin + took))
            known = all(p.needed for p in copies)
            hidden = round((took - sum(map(shown_of, copies))) / 1e6, 3) if known else None
            mb = round(sum(p.nbytes for p in copies) / 1e6, 3)
            rows.append([UPLOAD, clean(copies[0].device, 24), *head, self.ms(begin), end, end, hidden, mb])
        return rows

    def _merged(self, records: Sequence[BatchRecord]) -> list[Row]:
        groups: dict[tuple[int, int], list[BatchRecord]] = collections.defaultdict(list)
        loops: dict[int, list[BatchRecord]] = collections.defaultdict(list)
        for r in records:
            groups[r.worker, r.run].append(r)
            loops[r.run].append(r)
        rows: list[Row] = []
        for (worker, run), own in groups.items():
            begins, fetched, collated = (list(map(stamp, own)) for stamp in _MADE)
            begin, end = min(begins), max(collated)
            fetching, making = sum(fetched) - sum(begins), sum(collated) - sum(begins)
            numbers = f"batches {own[0].index} to {own[-1].index}"
            stamps = (begin, begin + min(fetching, end - begin), begin + min(making, end - begin))
            rows.append([WORKER, worker, run, own[0].index, len(own), *map(self.ms, stamps), self.ms(end), 0, numbers])
        for run, own in loops.items():
            waits = self._waits_of(own)
            stalled = self._stall(waits)
            begin, end = own[0].requested, back(own[-1])
            wait = min(sum(waits), max(0, end - begin))
            times = tuple(map(self.ms, (begin, begin + wait, end)))
            lane = self._lane(own[-1])
            rows.append([LOOP, lane, run, own[0].index, len(own), *times, stalled, round(wait / 1e6, 2)])
            devices: dict[str, list[BatchRecord]] = collections.defaultdict(list)
            for r in own:
                if r.placed is not None:
                    devices[r.placed.device].append(r)
            for sent in devices.values():
                rows += self._placed(sent)
        return rows

    def _waits_of(self, records: Sequence[BatchRecord]) -> list[int]:
        if not self.pauses:
            return [r.delivered - r.requested for r in records]
        return [waited(r, self.pauses) for r in records]

    def _stall(self, waits: Sequence[int]) -> float:
        """The longest of some waits, ms, where it is out of the ordinary; else 0."""
        longest = max(waits)
        usual = usual_wait(self._waits) if longest > STALL_NS else 0
        self._waits.extend(waits)
        return round(longest / 1e6, 2) if longest > max(STALL_NS, STALL_TIMES * usual) else 0

    def _lane(self, r: BatchRecord) -> int:
        """0 for the loop; 1 and so on for others that run at the same time."""
        lane = self._loops.get(r.run)
        if lane is None:
            lane = next((i for i, end in enumerate(self._ends) if end <= r.requested), len(self._ends))
            self._loops = {run: i for run, i in self._loops.items() if i != lane} | {r.run: lane}
            if lane == len(self._ends):
                self._ends.append(0)
        self._ends[lane] = back(r)
        return lane
