"""Computes rates over the last seconds from batch records and the current wait. Pure: no clock and no I/O."""

from __future__ import annotations

import bisect
import collections
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nbloader.events import BatchRecord
from nbloader.events.gauges import Gauges
from nbloader.events.pauses import Pauses
from nbloader.metrics.stage_times import elapsed_ns, median, returned_at, share_of

RATE_NS = 5_000_000_000
"""Length of the interval over which rates are computed, ns."""
RATE_BATCHES = 4
"""Minimum number of batches over which rates are computed, regardless of how long they took."""
STUCK_S, STUCK_TIMES = 2.0, 10
"""A worker is stuck if it has been processing a batch for longer than `STUCK_S` seconds and for more than `STUCK_TIMES`
times the median time to produce one. A loop is stalled if it has been waiting for longer than `STUCK_S` seconds and for
more than `STUCK_TIMES` times both that median and the median wait."""
FIRST_STUCK_S = 10.0
"""Before the first batch of an epoch was delivered, a worker is stuck only after this many seconds: its first batch may
open files and import modules."""

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


def stalled_for(g: Gauges, records: Sequence[BatchRecord], pauses: Pauses) -> float | None:
    """Return how long the loop has been waiting, seconds, if far longer than usual; None otherwise and while paused.

    Args:
        g: The gauges.
        records: The last batches.
        pauses: Pauses of the loader.
    """
    seconds = waiting(g, pauses, g.now) / 1e9
    if seconds <= STUCK_S or g.state == "paused" or not records:
        return None
    make = median([elapsed_ns(r.fetch_begin, r.collated) for r in records]) or 0
    wait = median([elapsed_ns(r.requested, r.delivered) for r in records]) or 0
    return seconds if seconds > STUCK_TIMES * max(make, wait) / 1e9 else None


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


def first_batch_of(g: Gauges) -> FirstBatch | None:
    """Estimate the time of the first batch from the number of its samples fetched so far; None if there are none.

    Args:
        g: The gauges.
    """
    found = []
    for progress in g.fetching:
        age = max(0, g.now - progress.since) / 1e9
        if progress.number == g.waiting_for and progress.fetched:
            make = age * max(1.0, progress.samples / (progress.fetched + 0.5))  # half of the next sample is done
            found.append(FirstBatch(make - age, make))
    return max(found, default=None)


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
