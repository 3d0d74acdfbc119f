"""Computes rates over the last seconds from batch records and the current wait. Pure: no clock and no I/O."""

from __future__ import annotations

import bisect
import collections
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nbloader.events import BatchRecord
from nbloader.events.gauges import FetchProgress, Gauges, ProducedBatch
from nbloader.events.pauses import Pauses
from nbloader.metrics.stage_times import elapsed_ns, median, returned_at, share_of
from nbloader.metrics.stuck import STUCK_S, STUCK_TIMES

RATE_NS = 5_000_000_000
"""Length of the "last seconds", over which rates are computed, ns."""
RATE_BATCHES = 4
"""Minimum number of batches over which rates are computed, regardless of how long they took."""
FIRST_STUCK_S = 10.0
"""Before the first batch of an epoch was delivered, a worker is stuck only after this many seconds: its first batch may
open files and import modules."""
LATE_S, LATE_TIMES = 0.3, 3
"""A batch is late if a worker has been processing it for longer than `LATE_S` seconds and for more than `LATE_TIMES`
times the usual time. When it will be complete is then unknown."""

_EPOCH, _WORKER, _SAMPLES, _NBYTES, _REQUESTED, _DELIVERED = map(
    operator.attrgetter, ("epoch", "worker", "samples", "nbytes", "requested", "delivered")
)  # for thousands of records, this takes half as long as a loop


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per second over the last seconds."""

    count: int = 0
    """Number of batches over which the rates were computed."""
    batches: float = 0.0
    samples: float = 0.0
    nbytes: float = 0.0
    """Rate of bytes in arrays."""
    own: float = 0.0
    """Rate of batches of the newest iterator alone, since several iterators may be active."""
    wait_share: float = 0.0
    """Share of the time in which the consumer waited."""
    workers: dict[int, float] = field(default_factory=dict)
    """Rate of batches by worker id."""
    seconds: float = 0.0
    """Length of the interval over which the rates were computed, without pauses."""
    records: list[BatchRecord] = field(default_factory=list)
    """Records of the batches over which the rates were computed."""


def waiting(g: Gauges, pauses: Pauses, end: int, begin: int | None = None) -> int:
    """Return how much of the consumer's current wait lies in an interval, without pauses, ns.

    Args:
        g: The gauges.
        pauses: Pauses of the loader.
        end: End of the interval, perf_counter ns.
        begin: Start of the interval; None to start with the wait.
    """
    if g.waiting_since is None:
        return 0
    return pauses.active(g.waiting_since if begin is None else max(begin, g.waiting_since), end)


def usual_make_ns(batches: Sequence[BatchRecord | ProducedBatch]) -> int | None:
    """Return the median time to fetch and collate a batch, ns; None if it was measured for none of these batches."""
    return median([ns for batch in batches if (ns := elapsed_ns(batch.fetch_begin, batch.collated))])


def stalled_for(g: Gauges, records: Sequence[BatchRecord], pauses: Pauses) -> float | None:
    """Return how long the loop has been waiting, seconds, if far longer than usual; None otherwise and while paused.

    Without measured batches, nothing is usual.

    Args:
        g: The gauges.
        records: The last batches.
        pauses: Pauses of the loader.
    """
    seconds = waiting(g, pauses, g.now) / 1e9
    if seconds <= STUCK_S or g.state == "paused" or not records:
        return None
    make = usual_make_ns(records)
    wait = median([elapsed_ns(r.requested, r.delivered) for r in records]) or 0
    return seconds if make is not None and seconds > STUCK_TIMES * max(make, wait) / 1e9 else None


def without_progress(rates: Rates) -> Rates:
    """Return a copy with all rates set to 0, for a stalled loop. Rates over the last seconds would fall only slowly."""
    stopped = dict.fromkeys(rates.workers, 0.0)
    return replace(rates, batches=0.0, samples=0.0, nbytes=0.0, own=0.0, workers=stopped)


class FirstBatch(NamedTuple):
    """Estimated time of the first batch of an epoch, seconds."""

    left: float
    """Time left until the batch is complete."""
    make: float
    """Total time to produce the batch."""


class _Progress(NamedTuple):
    """How far a worker was with a batch when its present sample was first seen."""

    fetched: int
    make: float
    """The time to produce the batch that followed from it, seconds."""


class FirstBatchPace:
    """Estimates when the first batch of an epoch is complete, from its samples that have been fetched.

    An estimate follows from the pace of the samples before. If the present sample takes so long that it would have to
    be corrected again and again, as a sample that hangs does, there is no estimate.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], _Progress] = {}

    def estimate(self, g: Gauges, usual_ns: int | None) -> FirstBatch | None:
        """Return the estimate; None if there is none.

        Args:
            g: The gauges.
            usual_ns: The usual time to produce a batch, ns; None if it was not measured.
        """
        found = []
        for progress in g.fetching:
            if progress.number != g.waiting_for or not progress.fetched:
                continue
            age = max(0, g.now - progress.since) / 1e9
            make = age * max(1.0, progress.samples / (progress.fetched + 0.5))  # half of the next sample is done
            if self._is_late(progress, age, make, usual_ns):
                return None
            found.append(FirstBatch(make - age, make))
        return max(found, default=None)

    def _is_late(self, progress: FetchProgress, age: float, make: float, usual_ns: int | None) -> bool:
        if usual_ns is not None and age > LATE_TIMES * usual_ns / 1e9:
            return True
        key = (progress.number, progress.since)
        seen = self._seen.get(key)
        if seen is None or seen.fetched != progress.fetched:
            seen = self._seen[key] = _Progress(progress.fetched, make)
        return make > LATE_TIMES * seen.make


def is_late(g: Gauges, usual_ns: int | None) -> bool:
    """Whether the batch that the loop waits for takes so long that the usual time says nothing about the time left."""
    if usual_ns is None or g.waiting_for is None:
        return False
    limit = max(LATE_S, LATE_TIMES * usual_ns / 1e9)
    return any(w.batch == g.waiting_for and not w.left and g.now - w.since > limit * 1e9 for w in g.workers)


def rates_of(
    g: Gauges,
    records: list[BatchRecord],
    pauses: Pauses,
    *,
    first: BatchRecord | None,
    began: int,
    epoch: int,
    live: bool,
) -> Rates:
    """Compute the rates over the last five seconds of an epoch, without start-up (until the first batch is done).

    Args:
        g: The current gauges.
        records: The last batches, oldest first.
        pauses: Pauses of the loader. Paused time is excluded, and so are batches that `step()` delivers in a pause.
        first: The epoch's first batch; None if there is none yet.
        began: When the epoch began, perf_counter ns.
        epoch: Number of the epoch.
        live: Whether the epoch has neither ended nor been stopped by an error or an interrupt.
    """
    if first is None:
        end = g.now if live else began
        return Rates(wait_share=share_of(waiting(g, pauses, end, began), pauses.active(began, end)))
    lower = returned_at(first)
    newest = returned_at(records[-1]) if records else lower
    end = g.now if live else newest
    cut = end - RATE_NS - pauses.within(end - RATE_NS, end)
    # A record is published when the consumer requests the next batch, so records are sorted by that time.
    recent = min(bisect.bisect_left(records, cut, key=returned_at), len(records) - RATE_BATCHES)
    picked = records[max(bisect.bisect_right(records, lower, key=returned_at), recent) :]
    begin = max(lower, picked[0].requested) if picked else lower
    if len(picked) > RATE_BATCHES:
        begin = max(begin, cut)
    paused = pauses.after(begin)
    if paused:
        picked = [r for r in picked if pauses.active(r.requested, returned_at(r))]
    count = len(picked)
    rate = count * 1e9 / max(1, pauses.active(begin, newest))
    if live:  # the outstanding batch bounds the rate, so that it falls while no batch arrives
        rate = min(rate, (count + 1) * 1e9 / max(1, pauses.active(begin, g.now)))
    # While the consumer processes a batch, the wait for that batch is not recorded yet: stop at the last record.
    waits = live and g.waiting_since is not None
    if paused:
        waited = sum([pauses.active(max(begin, r.requested), r.delivered) for r in picked])
    else:
        asked = list(map(_REQUESTED, picked))
        waited = sum(map(_DELIVERED, picked)) - sum(asked) - sum([begin - time for time in asked if time < begin])
    if waits:
        waited += waiting(g, pauses, g.now, begin)
    each = rate / max(1, count)
    return Rates(
        count=count,
        batches=rate,
        samples=each * sum(map(_SAMPLES, picked)),
        nbytes=each * sum(map(_NBYTES, picked)),
        own=each * list(map(_EPOCH, picked)).count(epoch),
        wait_share=share_of(waited, pauses.active(begin, g.now if waits else newest)),
        workers={w: each * n for w, n in collections.Counter(map(_WORKER, picked)).items()},
        seconds=pauses.active(begin, g.now if waits else newest) / 1e9,
        records=picked,
    )
