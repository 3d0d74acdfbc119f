"""Compare the loaders of all ranks, and say in sentences who holds up whom. Pure.

    1. ranks that have failed, died, or given no sign, and those that have not begun
    2. ranks that are late: they stand at an earlier batch than the others, or wait for a batch that does not come
    3. ranks that hold up the others: they wait for data more than the others do, and produce it more slowly
    4. otherwise: all wait, or none does

Ranks that share gradients do one step at a time. A rank that waits for data comes last to the exchange, and the others
wait for it inside their step, where a loader sees nothing but a long step. So a slow loader shows on its own rank as
waiting, and on all others as a longer step. The step of the rank that comes last contains no such wait: it tells what
the run would do if loading took no time.

Among ranks that produce batches equally fast, too, some wait more than others, because their batches come a little
later in each round. None of them is to blame.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nbloader._util.format import age, clean, duration, number, percent, plural
from nbloader.metrics.snapshot import ENDED
from nbloader.report.render import throughput, wait_share

if TYPE_CHECKING:
    from nbloader.distributed.record import RankRecord

SILENT_S = 10.0
"""A rank that has not reported for this many seconds has died, or cannot run."""
HANGS_S = 2.0
"""A rank is late if it waits for its first batch for this many seconds longer than others did."""
MATTERS = 0.1
"""A wait matters if it takes this share of the time per batch."""
IN_STEP = 0.1
"""Ranks are in step if their rates differ by at most this share."""
BEHIND_BATCHES, BEHIND_S = 3, 0.5
"""A rank is late if it is this many batches behind, and the batches of this many seconds more: reports are not taken at
the same moment."""
LISTED = 8
"""Largest number of ranks that are listed."""
SLOWER = 1.25
"""A time is called longer if it is this many times as long."""
PRODUCING = ("workers_compute", "workers_compute_full", "workers_wait", "collate", "in_process")
"""Causes that show in the time to produce a batch. A rank with another one may wait although it produces fast."""


class Figures(NamedTuple):
    """What matters of a rank, over the last seconds, or over the epoch after its end."""

    rank: int
    rate: float
    """Batches per second; 0 if unknown."""
    wait_share: float
    waited: float
    """Mean wait for a batch, seconds."""
    step: float | None
    """Mean time between two waits, seconds; None if unknown."""
    make: float | None
    """Mean time of a worker to fetch and collate a batch, seconds; None if unknown."""
    each: float | None
    """The same, divided by the number of workers; None if unknown."""
    cause: str
    """What limits its loop, in a word."""


def figures(record: RankRecord) -> Figures:
    """Compute the figures of a rank."""
    s = record.snapshot
    rates = throughput(s)
    rate = 0.0 if rates is None else rates.batches
    share = wait_share(s)
    free = s.headspace_epoch if s.state in ENDED else s.headspace
    make = sum(stage.mean for stage in s.stages if stage.name in ("fetch", "collate")) / 1e3
    return Figures(
        record.rank,
        rate,
        share,
        waited=share / rate if rate else 0.0,
        step=1 / free if free else None,
        make=make or None,
        each=make / max(1, len(s.workers)) or None,
        cause=s.cause,
    )


def state_of(record: RankRecord, now: float, gone: Collection[int]) -> str:
    """The state of a rank in a word: that of its loader, or "failed", "ended", "died" or "silent"."""
    if record.error:
        return "failed"
    if record.ended:
        return "ended"
    if record.rank in gone:
        return "died"
    return "silent" if now - record.time > SILENT_S else record.snapshot.state


def findings(records: Sequence[RankRecord], now: float, gone: Collection[int]) -> list[str]:
    """Say what the ranks do, in sentences; the one that matters most comes first.

    Args:
        records: The reports, by rank.
        now: The time, seconds since 1970.
        gone: Ranks whose process does not exist any more.
    """
    if not records:
        return []
    states = {r.rank: state_of(r, now, gone) for r in records}
    lost = [r for r in records if states[r.rank] in ("failed", "died", "silent")]
    found = [_lost(r, states[r.rank], now) for r in sorted(lost, key=lambda r: r.time)]  # the others may follow from it
    missing = sorted(set(range(records[0].world)) - {r.rank for r in records})
    if missing:
        verb = "has" if len(missing) == 1 else "have"
        found.append(f"{_names(missing)} of {records[0].world} {verb} not begun an epoch.")
    live = [r for r in records if states[r.rank] not in ("failed", "died", "silent", "ended")]
    late = _late(live)
    if late or (lost and not live):
        return [*found, *late]
    return [*found, *_holding_up(live or records)]


def _lost(record: RankRecord, state: str, now: float) -> str:
    where = f"{_position(record)} on {clean(record.host, 60)}"
    if state == "failed":
        return f"Rank {record.rank} has ended with {clean(record.error, 300)}, {where}."
    since = age(max(0.0, now - record.time))
    if state == "died":
        return f"Rank {record.rank} has died: process {record.pid} is gone, {where}. Its last report was {since} ago."
    return (
        f"Rank {record.rank} has given no sign for {since}, {where}: it has died, or its process {record.pid} cannot "
        "run."
    )


def _position(record: RankRecord) -> str:
    s = record.snapshot
    total = "" if s.batches_total is None else f" of {s.batches_total:,}"
    return f"after {s.batches_done:,}{total} batches of epoch {s.epoch}"


def _late(live: Sequence[RankRecord]) -> list[str]:
    """Name the ranks that are behind the others, or wait for a batch that does not come."""
    if len(live) < 2:  # noqa: PLR2004 - to compare
        return []
    found = []
    newest = max(r.time for r in live)
    epoch = statistics.median_high([r.snapshot.epoch for r in live])
    there = {r.rank: _reached(r, newest) for r in live if r.snapshot.epoch == epoch}
    usual = statistics.median_high(there.values())
    for r in live:
        s, others = r.snapshot, [o for o in live if o is not r]
        behind = usual - there[r.rank] if r.rank in there else 0.0
        slack = BEHIND_BATCHES + BEHIND_S * max(f.rate for f in map(figures, live))
        begun = s.epoch == epoch and s.elapsed > HANGS_S and all(o.snapshot.batches_done for o in others)
        if s.stalled is not None:
            waits = f"has been waiting for batch {s.waiting_for} for {age(s.stalled)}"
            found.append(f"Rank {r.rank} {waits}, and {_effect(others)}. {_own(r)}")
        elif begun and not s.batches_done:
            found.append(
                f"Rank {r.rank} is late: its first batch has not come after {age(s.elapsed)}, and {_effect(others)}. "
                f"{_own(r)}"
            )
        elif s.epoch < epoch or behind > slack:
            found.append(
                f"Rank {r.rank} is late: it is {_position(r)}, the others are at about batch {usual:,.0f} of epoch "
                f"{epoch}. {_why_slow(r, others)}"
            )
    if len(found) < len(live):
        return found
    return [f"All {len(live)} ranks wait for a batch that does not come. {_own(live[0])}"]


def _reached(record: RankRecord, time: float) -> float:
    """The number of batches that a rank has received at a time, if it went on as it did."""
    s = record.snapshot
    rate = s.batches_per_second if s.state == "running" else 0.0
    reached = s.batches_done + rate * max(0.0, time - record.time)
    return reached if s.batches_total is None else min(reached, s.batches_total)


def _effect(others: Sequence[RankRecord]) -> str:
    ranks = "rank" if len(others) == 1 else "ranks"
    return f"{ranks} {_list([o.rank for o in others])} may be waiting for it in a step"


def _why_slow(record: RankRecord, others: Sequence[RankRecord]) -> str:
    """Compare the wait, the step and the workers of a rank that is slow with those of the others."""
    mine, theirs = figures(record), [figures(o) for o in others]
    if mine.wait_share >= MATTERS:
        return f"{_compared(mine, theirs)} {_own(record)}"
    steps = [f.step for f in theirs if f.step is not None]
    if mine.step is not None and steps and mine.step > SLOWER * statistics.median(steps):
        usual = duration(statistics.median(steps))
        return f"Its step takes {duration(mine.step)}, and those of the others {usual}. It does not wait for data."
    return "It does not wait for data."


def _holding_up(records: Sequence[RankRecord]) -> list[str]:
    """Name the ranks that wait for data while the others do not, or say that all wait alike or none does."""
    known = {r.rank: figures(r) for r in records}
    known = {rank: f for rank, f in known.items() if f.rate > 0}
    if not known:
        return []
    by_rank = {r.rank: r for r in records}
    if len(known) == 1:
        ((rank, _only),) = known.items()
        return [f"Rank {rank}: {by_rank[rank].snapshot.verdict}"]
    waits = [f.waited for f in known.values()]
    base = statistics.median_low(waits)
    cycle = statistics.median([1 / f.rate for f in known.values()])
    slow = [
        rank for rank, f in known.items() if f.waited - base > MATTERS * cycle and _is_slower(f, list(known.values()))
    ]
    if slow:
        worst = max(slow, key=lambda rank: known[rank].waited)
        rest = [f for rank, f in known.items() if rank not in slow]
        several = len(slow) > 1
        holds = f"{'hold' if several else 'holds'} up the others: " if _in_step(known) else ""
        text = (
            f"{holds}{'their' if several else 'its'} data is slow"
            if holds
            else f"{'wait' if several else 'waits'} more"
        )
        compared = _compared(known[worst], rest, several=several)
        return [f"{_names(slow)} {text}. {compared}{_gain(known, slow, base)} {_own(by_rank[worst])}"]
    most = max(known, key=lambda rank: known[rank].wait_share)
    shares = sorted(f.wait_share for f in known.values())
    if shares[-1] < MATTERS:
        most_of = f"all {len(known)} wait for at most {percent(shares[-1])} of their time"
        return [f"No rank waits for data: the loops of {most_of}."]
    waiting = f"wait for data for {percent(shares[0])} to {percent(shares[-1])} of their time"
    return [
        f"All {len(known)} ranks produce batches about equally fast, and {waiting}.{_free(known)} {_own(by_rank[most])}"
    ]


def _is_slower(mine: Figures, everyone: Sequence[Figures]) -> bool:
    """Whether a rank gets its batches more slowly than others, apart from when in each round they come."""
    usual = statistics.median_low([f.each for f in everyone if f.each] or [0.0])
    if mine.each and usual and mine.each > SLOWER * usual:
        return True
    return mine.cause not in PRODUCING and sum(f.cause == mine.cause for f in everyone) <= len(everyone) / 2


def _compared(mine: Figures, theirs: Sequence[Figures], *, several: bool = False) -> str:
    """Compare the wait of a rank, and the time of its workers for a batch, with those of others."""
    who = f"The loop of rank {mine.rank}" if several else "Its loop"
    rest = percent(statistics.median([f.wait_share for f in theirs]))
    text = f"{who} waits for {percent(mine.wait_share)} of the time, and those of the others for {rest}."
    makes = [f.make for f in theirs if f.make]
    if mine.make and makes and mine.make > SLOWER * statistics.median(makes):
        usual = duration(statistics.median(makes))
        text += f" Its workers take {duration(mine.make)} for a batch, and those of the others {usual}."
    return text


def _gain(known: dict[int, Figures], slow: Sequence[int], base: float) -> str:
    """What the run would do if the data of slow ranks were as fast as that of others; "" if they are not in step."""
    if not _in_step(known):
        return ""
    rate = statistics.median([f.rate for f in known.values()])
    left = max(1 / known[rank].rate - (known[rank].waited - base) for rank in slow)
    return f" With data as fast as theirs, the run could reach {number(1 / left)} batches/s instead of {number(rate)}."


def _free(known: dict[int, Figures]) -> str:
    """What the run would do if loading took no time; "" if that is unknown."""
    steps = [f.step for f in known.values() if f.step]
    if not steps or not _in_step(known):
        return ""
    rate = statistics.median([f.rate for f in known.values()])
    free = number(1 / min(steps))
    return f" If loading took no time, the run could reach {free} batches/s instead of {number(rate)}."


def _in_step(known: dict[int, Figures]) -> bool:
    rates = [f.rate for f in known.values()]
    return max(rates) <= (1 + IN_STEP) * min(rates)


def _own(record: RankRecord) -> str:
    """What limits the loop of a rank, by its own verdict."""
    return f"Rank {record.rank}: {record.snapshot.verdict}"


def _names(ranks: Sequence[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {_list(ranks)}"


def _list(ranks: Sequence[int]) -> str:
    if len(ranks) > LISTED:
        return f"{', '.join(map(str, ranks[:LISTED]))} and {plural(len(ranks) - LISTED, 'other')}"
    return " and ".join(filter(None, [", ".join(map(str, ranks[:-1])), str(ranks[-1])]))
