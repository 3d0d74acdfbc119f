"""Measures a span of an epoch: computes `Evidence` from batch records. Pure: no clock and no I/O.

A wait is divided by what happened during it: the sampler drew indices, the batch was ready and was being built or
uploaded, or the batch was still being produced. The first batches of an epoch (start-up) and a few exceptional batches
(stalls) are measured separately, so that the rest describes the loader in its steady state.

Only a sample of the batches is examined, but the total wait is known exactly. The sample therefore only tells in which
proportions the rest of the wait is divided: the parts always add up to `wait_share`.
"""

from __future__ import annotations

import collections
import heapq
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nbloader.events import BatchRecord, Machine
from nbloader.events.pauses import Pauses
from nbloader.metrics.evidence import Evidence, MachineLoad, MakeTime, Place, SlowBatch, SpanName
from nbloader.metrics.stage_times import elapsed_ns, median, placing_ns, share_of, upload_stats
from nbloader.metrics.usage import Usage

SAMPLED = 128
"""Number of records from which the records kept of an epoch are thinned out: at least about this many are kept. It also
limits the number of usual samples that are listed."""
OPENING = 32
"""Number of records kept from the start of an epoch."""
WORST = 16
"""Minimum number of longest waits kept of an epoch."""
STALL_TIMES, STALL_NS = 8, 100_000_000
"""A wait is a stall if it is longer than `STALL_NS`, and than `STALL_TIMES` times the usual wait and the usual time to
produce a batch."""
STALL_SHARE = 0.02
"""Long waits count as stalls only if they are rare: at most this share of the batches, or one batch. If there are more,
so many of the longest ones count if they are most of the wait."""
OVERLAPPING = 1.2
"""Workers that were busy for more than this multiple of the elapsed time may have fetched several batches
concurrently."""
SLOW_TIMES = 4
"""A sample is slow if it takes more than this many times as long as a usual sample."""
_HASHES = 1 << sys.hash_info.width
"""Number of hashes, half of which are negative."""


def thin_out(records: Sequence[BatchRecord], one_in: float) -> list[BatchRecord]:
    """Return about one in so many records, which have no rhythm in common.

    Several workers in step produce batches in a rhythm: with four workers, every fourth batch has the whole wait. A
    sample with a fixed stride may consist of such batches only, or contain none.

    Args:
        records: The records. The choice depends on the numbers of the batches only: a record that is in a sample is in
            all larger samples, too.
        one_in: How many records there are for each record that is returned.
    """
    if one_in <= 1:
        return list(records)
    below = round(_HASHES / one_in) - _HASHES // 2
    return [r for r in records if hash((r.index,)) < below]


class EpochSample:
    """Records of an epoch: the first ones, some that are spread over it, and those with the longest waits."""

    def __init__(self) -> None:
        self.opening: list[BatchRecord] = []
        self.records: list[BatchRecord] = []
        self.stride = 1
        """`records` holds about one in this many batches."""
        self.worst: list[BatchRecord] = []
        self._floor = 0

    def add(self, records: Sequence[BatchRecord], pauses: Pauses) -> None:
        """Add the records of the next batches. Takes about 0.2 us per batch.

        Args:
            records: The records.
            pauses: Pauses of the loader.
        """
        if len(self.opening) < OPENING:
            self.opening += records[: OPENING - len(self.opening)]
        self.records += thin_out(records, self.stride)
        while len(self.records) >= 2 * SAMPLED:
            self.stride *= 2
            self.records = thin_out(self.records, self.stride)
        floor = self._floor
        self.worst += [r for r in records if r.delivered - r.requested > floor and _wait(r, pauses) > floor]
        if len(self.worst) >= 2 * WORST:
            self.worst.sort(key=_waited, reverse=True)
            del self.worst[WORST:]
            self._floor = self.worst[-1].waited

    def forget(self) -> None:
        """Discard all records but the first ones, because they say nothing about the rest of the epoch."""
        self.records.clear()
        self.worst.clear()
        self._floor = 0


_waited = operator.attrgetter("waited")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOptions:
    """What `measure` needs besides the records."""

    span: SpanName
    seconds: float
    """Length of the span, without pauses."""
    wait_share: float
    batches: int
    total: int | None = None
    """See `Evidence.total`."""
    rate: float | None = None
    """See `Evidence.rate`."""
    workers: int
    """Number of workers that are alive; 0 if it is no longer known."""
    place: Place
    cores: int
    window: int
    opening: Sequence[BatchRecord] = ()
    """The first batches of the epoch; () if the span does not contain them."""
    worst: Sequence[BatchRecord] = ()
    """Batches with the longest waits, in addition to `records`."""
    startup: float | None = None
    worker_startup: float | None = None
    waiting: int = 0
    """How long the loop has been waiting for a batch that has not arrived, without pauses, ns."""
    waiting_for: int | None = None
    """Number of that batch."""
    mean_workers: float | None = None
    """Mean number of workers over the span; None if the number did not change."""
    pids: dict[int, int] = field(default_factory=dict)
    """Process id of each live worker, by worker id; {} if no worker is alive."""
    machines: Mapping[int, Machine] = field(default_factory=dict)
    """Machine of each worker that runs or ran on another machine than this one, by worker id."""
    usage: Usage | None = None
    pauses: Pauses = field(default_factory=Pauses)
    device: str = ""


def measure(records: Sequence[BatchRecord], options: SpanOptions) -> Evidence:
    """Measure a span.

    Args:
        records: Records of batches that are spread over the span.
        options: What else is known about the span.
    """
    o = options
    if not records:
        return Evidence(
            span=o.span, seconds=o.seconds, batches=o.batches, total=o.total, rate=o.rate, cores=o.cores,
            workers=max(1, o.workers), place=o.place, window=o.window, wait_share=o.wait_share, startup=o.startup,
            worker_startup=o.worker_startup, usage=o.usage, device=o.device, elsewhere=_elsewhere(o.pids, o.machines),
        )  # fmt: skip
    workers = 1 if o.place is Place.CONSUMER else max(o.workers, 1) if o.workers else len({r.worker for r in records})
    span_ns = max(1, round(o.seconds * 1e9))
    waited_ns = round(o.wait_share * span_ns)
    first = {r.index for r in o.opening[:workers]} if o.opening else set()
    steady = [r for r in records if r.index not in first] or list(records)

    makes = [elapsed_ns(r.fetch_begin, r.collated) for r in steady]
    waits = [_wait(r, o.pauses) for r in steady]
    usual_make, usual_wait = median(makes) or 0, median(waits) or 0
    opening = [(r, _wait(r, o.pauses)) for r in o.opening[:workers]]
    drawn_first = min(sum(min(_drawn(r), wait) for r, wait in opening), waited_ns)
    first_ns = min(sum(wait for _r, wait in opening), waited_ns) - drawn_first
    # Even an ideal loader takes the time of one batch to deliver the first. Up to twice that is not worth reporting.
    startup_ns = max(0, first_ns - 2 * usual_make - workers * usual_wait)
    later_ns = waited_ns - first_ns - drawn_first
    stalled = _stalls([*steady, *(r for r in o.worst if r.index not in first)], o, usual_make, usual_wait, later_ns)
    if o.waiting > _stall_limit(usual_make, usual_wait) and o.waiting_for is not None:
        stalled[o.waiting_for] = o.waiting
    stall_ns = min(sum(wait - usual_wait for wait in stalled.values()), later_ns)
    kept = [(r, wait, make) for r, wait, make in zip(steady, waits, makes, strict=True) if r.index not in stalled]
    kept = kept or list(zip(steady, waits, makes, strict=True))
    regular = [r for r, _wait_ns, _make in kept]
    regular_waits = [wait for _r, wait, _make in kept]

    fetches = [elapsed_ns(r.fetch_begin, r.fetched) for r in regular]
    collates = [elapsed_ns(r.fetched, r.collated) for r in regular]
    # A worker that sends a pickle through its socket is busy until the pickle has been read.
    sends = [elapsed_ns(r.collated, r.received) if r.transport == "pickle" else 0 for r in regular]
    busy_ns = sum(fetches) + sum(collates) + sum(sends)
    sampling = [min(_drawn(r), wait) for r, wait in zip(regular, regular_waits, strict=True)]
    there = [
        max(0, min(wait, r.delivered - max(r.requested, r.in_order)) - drawn)
        for r, wait, drawn in zip(regular, regular_waits, sampling, strict=True)
    ]
    transferred = sum(ns for r, ns in zip(regular, there, strict=True) if r.placed is not None)
    # Workers begin to work the usual time before the first batch is there.
    begun_ns = opening[0][1] - _drawn(opening[0][0]) - usual_make if opening else 0
    starting_ns = max(startup_ns, min(begun_ns, first_ns))
    steady_ns = max(1, span_ns - starting_ns - drawn_first - stall_ns)
    batches = max(1, o.batches)  # the first ones, too: they were made within this time
    count = len(regular)
    there_ns, drawn_ns, placed_ns = sum(there), sum(sampling), min(transferred, sum(map(placing_ns, regular)))
    produced_ns = sum(regular_waits) - drawn_ns - there_ns
    rest = max(0, later_ns - stall_ns) / span_ns
    if not any(regular_waits):  # the whole rest is a wait that has not ended
        produced_ns = 1
    part = rest / (there_ns + drawn_ns + produced_ns)  # share of the span, per ns measured in these batches
    worst = max([*steady, *(r for r in o.worst if r.index not in first)], key=_waited)
    used = busy_ns / count * batches / ((o.mean_workers or workers) * steady_ns)
    overlap = used if used > OVERLAPPING and _overlap([*o.opening, *records]) else 1.0
    if overlap > 1:  # worker time per batch, minus collating and sending
        left = workers * steady_ns / batches - (busy_ns - sum(fetches)) / count
        fetches = [max(1, round(left))] * count
    # The time of a sample that is fetched concurrently with others does not tell how much worker time it costs.
    slow = _SlowSamples(regular if overlap == 1 else ())
    return Evidence(
        span=o.span,
        seconds=o.seconds,
        batches=o.batches,
        total=o.total,
        rate=o.rate,
        cores=o.cores,
        workers=workers,
        elsewhere=_elsewhere(o.pids or {r.worker for r in records}, o.machines),
        nodes=len({r.transfer.node for r in records if r.transfer is not None}),
        place=o.place,
        window=o.window,
        wait_share=o.wait_share,
        startup_wait=share_of(startup_ns, span_ns),
        first_wait=share_of(first_ns, span_ns),
        startup=o.startup,
        worker_startup=o.worker_startup,
        stall_wait=share_of(stall_ns, span_ns),
        stalls=len(stalled),
        worst=_worst(worst, o),
        sampler_wait=drawn_ns * part + share_of(drawn_first, span_ns),
        placing_wait=placed_ns * part,
        opening_wait=(there_ns - placed_ns) * part,
        producing_wait=produced_ns * part,
        make_ms=usual_make / 1e6,
        fetch_ms=sum(fetches) / count / 1e6,
        overlap=overlap,
        collate_ms=sum(collates) / count / 1e6,
        transport_ms=(median([elapsed_ns(r.collated, r.received) for r in regular]) or 0) / 1e6,
        reorder_ms=sum(elapsed_ns(r.received, r.in_order) for r in regular) / count / 1e6,
        fetch_cpu=_ratio([r.fetch_cpu for r in regular], fetches),
        collate_cpu=_ratio([r.collate_cpu for r in regular], collates),
        utilization=min(1.0, used),
        full=sum(r.in_flight + r.reordering + r.ready + 1 >= o.window for r in regular) / count,
        ready=sum(r.ready for r in regular) / count,
        nbytes=sum(r.nbytes for r in regular) / count,
        pickled=sum(r.pickled for r in regular) / count,
        by_pickle=sum(r.transport == "pickle" for r in regular) / count,
        samples=sum(r.samples for r in regular) / count,
        slow_share=share_of(slow.excess, sum(fetches) + sum(collates)),
        slow_every=sum(r.samples for r in regular) / len(slow.found) if slow.found else 0.0,
        slow_workers=len({r.worker for r in slow.found}),
        slow_indices=tuple([r.slowest_index for r in slow.found if r.slowest_ns >= slow.typical / 2]),
        usual_indices=slow.others(regular) if slow.found else (),
        slow_ms=slow.median / 1e6,
        sample_ms=slow.usual / 1e6,
        by_worker=_by_worker(regular, o.pids),
        usage=o.usage,
        uploads=upload_stats(regular),
        device=o.device,
        records=tuple(regular),
    )


_PARTS = (
    "startup_wait", "first_wait", "stall_wait", "sampler_wait", "placing_wait", "opening_wait", "producing_wait",
)  # fmt: skip


def continued(e: Evidence, *, seconds: float, wait_share: float, batches: int) -> Evidence:
    """Return measurements that were made a moment ago with the present length, wait and batches of the span.

    The parts of the wait keep their proportions.

    Args:
        e: The measurements.
        seconds: Length of the span, without pauses.
        wait_share: Share of the span in which the loop waited.
        batches: Number of batches delivered in the span.
    """
    if e.wait_share:
        parts = {name: getattr(e, name) * wait_share / e.wait_share for name in _PARTS}
    else:
        parts = {"producing_wait": wait_share}
    return replace(e, seconds=seconds, wait_share=wait_share, batches=batches, **parts)


def _elsewhere(workers: Iterable[int], machines: Mapping[int, Machine]) -> tuple[MachineLoad, ...]:
    counts = collections.Counter(machines[worker] for worker in workers if worker in machines)
    return tuple(MachineLoad(count, machine.cores) for machine, count in counts.items())


def _overlap(records: Sequence[BatchRecord]) -> bool:
    """Return whether a worker fetched several batches concurrently."""
    ends: dict[tuple[int, int], int] = {}
    for r in sorted({(r.epoch, r.index): r for r in records}.values(), key=operator.attrgetter("fetch_begin")):
        if r.fetch_begin < ends.get((r.worker, r.pid), 0):
            return True
        ends[r.worker, r.pid] = r.fetched
    return False


def _wait(record: BatchRecord, pauses: Pauses) -> int:
    wait = record.delivered - record.requested
    if pauses.recorded:
        wait -= pauses.within(record.requested, record.delivered)
    return max(0, wait)


def _drawn(record: BatchRecord) -> int:
    """Return the time spent in the sampler while the consumer waited for this batch, or just before, ns."""
    return record.sampling if record.worker >= 0 else elapsed_ns(record.requested, record.dispatched)


def _stall_limit(usual_make: int, usual_wait: int) -> int:
    return max(STALL_NS, STALL_TIMES * usual_make, STALL_TIMES * usual_wait)


def _stalls(
    candidates: Sequence[BatchRecord], o: SpanOptions, usual_make: int, usual_wait: int, later: int
) -> dict[int, int]:
    """Return the waits for the batches that stalled the loop, ns, by batch number; {} if they are not rare.

    Args:
        candidates: The batches of which some may have stalled it.
        o: What else is known about the span.
        usual_make: Usual time to produce a batch, ns.
        usual_wait: Usual wait for a batch, ns.
        later: The whole wait apart from that for the first batches, ns.
    """
    limit = _stall_limit(usual_make, usual_wait)
    found = {r.index: _wait(r, o.pauses) for r in candidates if _wait(r, o.pauses) - _drawn(r) > limit}
    rare = max(1, int(STALL_SHARE * o.batches))
    if len(found) <= rare:
        return found
    longest = dict(heapq.nlargest(rare, found.items(), key=operator.itemgetter(1)))
    return longest if sum(longest.values()) > later / 2 else {}


def _worst(record: BatchRecord, o: SpanOptions) -> SlowBatch:
    """Describe the batch with the longest wait, which may be the present wait."""
    wait = _wait(record, o.pauses)
    if o.waiting > wait and o.waiting_for is not None:
        return SlowBatch(o.waiting_for, None, o.waiting / 1e9, None, 1)
    make = elapsed_ns(record.fetch_begin, record.collated) / 1e9
    slowest, lost = record.slowest_ns / 1e9, record.lost_sample
    return SlowBatch(record.index, record.slowest_index, wait / 1e9, make, record.attempt, lost, slowest)


def _ratio(cpu: Sequence[int], wall: Sequence[int]) -> float | None:
    """Return CPU time divided by wall time; None if no time passed."""
    whole = sum(wall)
    return max(0.0, sum(cpu) / whole) if whole else None


class _SlowSamples:
    """The samples that take far longer than usual. Only the slowest sample of each batch is known."""

    def __init__(self, records: Sequence[BatchRecord]) -> None:
        timed = [r for r in records if r.slowest_ns and r.samples]
        # For each batch: the mean time of its samples without the slowest one.
        others = [
            (elapsed_ns(r.fetch_begin, r.fetched) - r.slowest_ns) // (r.samples - 1) if r.samples > 1 else r.slowest_ns
            for r in timed
        ]
        self.usual = median(others) or 0
        limit = SLOW_TIMES * max(self.usual, 1)
        self.found = sorted((r for r in timed if r.slowest_ns > limit), key=lambda r: -r.slowest_ns)
        self.median = median([r.slowest_ns for r in self.found]) or 0
        self.excess = sum(r.slowest_ns - self.usual for r in self.found)

    @property
    def typical(self) -> int:
        """The typical time of a slow sample, ns: samples that take at least this long cause half of the lost time.

        If many samples were delayed by chance, the median would only describe those.
        """
        lost = 0
        for r in self.found:
            lost += r.slowest_ns - self.usual
            if 2 * lost >= self.excess:
                return r.slowest_ns
        return 0

    def others(self, records: Sequence[BatchRecord]) -> tuple[Any, ...]:
        """Return dataset indices of samples that are not slow, if possible of batches without any slow sample."""
        with_slow = {(r.epoch, r.index) for r in self.found}
        found = [i for r in records if (r.epoch, r.index) not in with_slow for i in r.indices]
        if len(found) < SAMPLED // 2:
            slow = {r.slowest_index for r in self.found if isinstance(r.slowest_index, int | str)}
            found = [i for r in records for i in r.indices if isinstance(i, int | str) and i not in slow]
        return tuple(found[:: -(-len(found) // SAMPLED) or 1])


def _by_worker(records: Sequence[BatchRecord], pids: dict[int, int]) -> dict[int, MakeTime]:
    times: dict[int, list[int]] = collections.defaultdict(list)
    for r in records:
        if not pids or pids.get(r.worker) == r.pid:  # times of a replaced process say nothing about the new one
            times[r.worker].append(elapsed_ns(r.fetch_begin, r.collated))
    return {
        worker: MakeTime(len(ns), (median(ns) or 0) / 1e6, sorted(ns)[len(ns) // 4] / 1e6)
        for worker, ns in times.items()
    }
