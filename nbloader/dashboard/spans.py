"""Rows for the live timeline: what workers and the loop were at, as plain numbers. Pure.

A batch that a worker has made but that the loop has not got has no record yet; its row comes from the snapshot, and
a second one when the record is there. While there are more batches than an eye can tell apart, those that a worker
made one after the other become one row.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nbloader.events import BatchRecord
from nbloader.lanes import STALL_NS, STALL_TIMES
from nbloader.measure import back
from nbloader.trace import first_indices

if TYPE_CHECKING:
    from nbloader.snapshot import Made

SECONDS = 30
"""What the timeline shows."""
SINGLE = 60
"""Batches between two messages that get a row each; more are merged."""
KEPT = 6000
"""Rows kept, for a view that comes later."""

Row = list[Any]
"""[0, worker, run, number, count, fetch begins, fetch ends, made, received, in order (0: not yet), indices] of a
worker; [1, lane, run, number, count, asked for, delivered, loop came back, stalls, time waited] of the loop. Times
in ms."""


class Spans:
    """Makes the rows, each once.

    Args:
        origin: Zero of their times, perf_counter ns.
    """

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.rows: collections.deque[Row] = collections.deque(maxlen=KEPT)
        """The last rows, oldest first."""
        self._told: collections.deque[tuple[int, int]] = collections.deque(maxlen=256)
        self._waits: collections.deque[int] = collections.deque(maxlen=101)
        self._loops: dict[int, int] = {}  # run -> its lane
        self._ends: list[int] = []  # of the loops' lanes

    def ms(self, ns: int) -> float:
        """A time for a row; 0 for a stamp that is missing."""
        return round((ns - self.origin) / 1e6, 2) if ns else 0

    def take(self, records: Sequence[BatchRecord], made: Iterable[Made] = ()) -> list[Row]:
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
                rows.append([0, m.worker, m.run, m.number, 1, *map(self.ms, stamps), ""])
        self.rows.extend(rows)
        return rows

    def _singly(self, records: Iterable[BatchRecord]) -> list[Row]:
        rows: list[Row] = []
        for r in records:
            stamps = (r.fetch_begin, r.fetched, r.collated, r.received, r.in_order)
            rows.append([0, r.worker, r.run, r.index, 1, *map(self.ms, stamps), first_indices(r)])
            times = map(self.ms, (r.requested, r.delivered, back(r)))
            stalled = int(self._stalls(r))
            rows.append([1, self._lane(r), r.run, r.index, 1, *times, stalled, round(r.waited / 1e6, 2)])
        return rows

    def _merged(self, records: Sequence[BatchRecord]) -> list[Row]:
        groups: dict[tuple[int, int], list[BatchRecord]] = collections.defaultdict(list)
        loops: dict[int, list[BatchRecord]] = collections.defaultdict(list)
        for r in records:
            groups[r.worker, r.run].append(r)
            loops[r.run].append(r)
        rows: list[Row] = []
        for (worker, run), own in groups.items():
            begin, end = min(r.fetch_begin for r in own), max(r.collated for r in own)
            fetching = sum(r.fetched - r.fetch_begin for r in own)
            making = sum(r.collated - r.fetch_begin for r in own)
            numbers = f"batches {own[0].index} to {own[-1].index}"
            stamps = (begin, begin + min(fetching, end - begin), begin + min(making, end - begin))
            rows.append([0, worker, run, own[0].index, len(own), *map(self.ms, stamps), self.ms(end), 0, numbers])
        for run, own in loops.items():
            stalled = sum([self._stalls(r) for r in own])
            begin, end = own[0].requested, back(own[-1])
            waited = min(sum(r.waited for r in own), max(0, end - begin))
            times = tuple(map(self.ms, (begin, begin + waited, end)))
            lane = self._lane(own[-1])
            rows.append([1, lane, run, own[0].index, len(own), *times, stalled, round(waited / 1e6, 2)])
        return rows

    def _stalls(self, r: BatchRecord) -> bool:
        waited = r.delivered - r.requested
        usual = sorted(self._waits)[len(self._waits) // 2] if waited > STALL_NS and self._waits else 0
        self._waits.append(waited)
        return waited > max(STALL_NS, STALL_TIMES * usual)

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
