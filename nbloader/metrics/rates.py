"""What happened a second, lately: from batch records and the present wait. Pure."""

from __future__ import annotations

import bisect
import collections
import operator
from dataclasses import dataclass, field

from nbloader.events import BatchRecord
from nbloader.events.gauges import Gauges
from nbloader.events.pauses import Pauses
from nbloader.metrics.stage_times import back, share_of

RATE_NS = 5_000_000_000
"""Time that rates rest on, ns."""
RATE_BATCHES = 4
"""Batches that rates rest on at least, however long they took."""

_RUN, _WORKER, _SAMPLES, _NBYTES, _REQUESTED, _DELIVERED = map(
    operator.attrgetter, ("run", "worker", "samples", "nbytes", "requested", "delivered")
)  # of thousands of records: in half the time of a loop


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened a second, lately."""

    count: int = 0
    """Batches that the rates rest on."""
    batches: float = 0.0
    samples: float = 0.0
    nbytes: float = 0.0
    own: float = 0.0
    """Batches a second of the newest epoch alone: several may run at once."""
    wait_share: float = 0.0
    workers: dict[int, float] = field(default_factory=dict)
    """Batches a second by worker."""


def waiting(g: Gauges, pauses: Pauses, end: int, begin: int | None = None) -> int:
    """How long the consumer has waited in its present wait, ns."""
    if g.waiting_since is None:
        return 0
    return pauses.active(g.waiting_since if begin is None else max(begin, g.waiting_since), end)


def rates_of(
    g: Gauges,
    records: list[BatchRecord],
    pauses: Pauses,
    *,
    first: BatchRecord | None,
    began: int,
    run: int,
    live: bool,
) -> Rates:
    """Measure the last five seconds of an epoch, from its first batch on: before that it started up.

    Args:
        g: What the loader says of itself now.
        records: The last batches, oldest first.
        pauses: Time that does not count, nor do batches that were delivered in it, step by step.
        first: The epoch's first batch, if it has one.
        began: When the epoch began, ns.
        run: Its number.
        live: Whether it goes on.
    """
    if first is None:
        end = g.now if live else began
        return Rates(wait_share=share_of(waiting(g, pauses, end, began), pauses.active(began, end)))
    lower = back(first)
    newest = back(records[-1]) if records else lower
    end = g.now if live else newest
    cut = end - RATE_NS - pauses.within(end - RATE_NS, end)
    # Records come when the loop is back from their batches, and so stand in that order.
    recent = min(bisect.bisect_left(records, cut, key=back), len(records) - RATE_BATCHES)
    picked = records[max(bisect.bisect_right(records, lower, key=back), recent) :]
    begin = max(lower, picked[0].requested) if picked else lower
    if len(picked) > RATE_BATCHES:
        begin = max(begin, cut)
    paused = pauses.after(begin)
    if paused:
        picked = [r for r in picked if pauses.active(r.requested, back(r))]
    count = len(picked)
    rate = count * 1e9 / max(1, pauses.active(begin, newest))
    if live:  # the batch that is not here yet bounds the rate, so that it falls while nothing comes
        rate = min(rate, (count + 1) * 1e9 / max(1, pauses.active(begin, g.now)))
    # While the consumer works, its last wait is not known yet: look only as far as the last record.
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
        own=each * list(map(_RUN, picked)).count(run),
        wait_share=share_of(waited, pauses.active(begin, g.now if waits else newest)),
        workers={w: each * n for w, n in collections.Counter(map(_WORKER, picked)).items()},
    )
