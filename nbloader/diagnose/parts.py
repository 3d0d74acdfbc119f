"""Divide the loop's time into parts, from the evidence of one span. Pure.

    STEPS
    the wait     STARTUP, STALL, SAMPLING, PLACING, OPENING
                 PRODUCTION    IDLE, COLLATING_QUEUED, COLLATING, SLOW_SAMPLES, UNMEASURED
                               FETCHING    COMPUTING, QUEUED, WAITING

The evidence contains the parts of the wait that were measured. During the rest of it, the loop waits for production,
which is divided by what the workers do. The parts within a part add up to it. This module knows no cause: see `causes`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from nbloader.diagnose.work import CONTENDED, core_wait, many_threads, split_work, takes_turns

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

SMALL_WAIT = 0.1
"""A loop that waits for less than this share of its time is the bottleneck itself: without any wait it would be at most
11% faster."""
MIN_BATCHES = 3
"""Minimum number of batches after the first one for a verdict."""
MAJORITY = 0.5
BUSY = 0.7
"""Workers that are busy for at least this share of their time limit the rate; otherwise something keeps them idle."""
SLOW_SHARE = 0.25
"""Slow samples matter if they take this share of the workers' time more than usual samples would."""
RARE = 5
"""Slow samples are exceptions: at most 1 in this many samples is slow."""


class Part(enum.Enum):
    """A part of the loop's time."""

    STEPS = enum.auto()
    """The loop does not wait."""
    STARTUP = enum.auto()
    """It waits for the first batch of a worker."""
    STALL = enum.auto()
    """It waits for one of the few batches that take far longer than all others."""
    SAMPLING = enum.auto()
    """The sampler draws indices."""
    PLACING = enum.auto()
    """A finished batch is pinned or uploaded."""
    OPENING = enum.auto()
    """A batch that has arrived is unpickled or built."""
    PRODUCTION = enum.auto()
    """A batch is produced, or waits for an earlier one."""
    IDLE = enum.auto()
    """Production, the share of the time in which workers are idle."""
    COLLATING_QUEUED = enum.auto()
    """Workers collate, and wait for a core."""
    COLLATING = enum.auto()
    """Workers collate, or send pickled batches."""
    SLOW_SAMPLES = enum.auto()
    """Workers fetch slow samples, beyond the time of usual ones."""
    UNMEASURED = enum.auto()
    """Workers fetch samples, and their CPU time is not known."""
    FETCHING = enum.auto()
    """Workers fetch samples, and their CPU time is known."""
    COMPUTING = enum.auto()
    """Fetching uses a core."""
    QUEUED = enum.auto()
    """Fetching waits for a core."""
    WAITING = enum.auto()
    """Fetching waits for anything else."""


WAIT = (Part.STARTUP, Part.STALL, Part.SAMPLING, Part.PLACING, Part.OPENING, Part.PRODUCTION)
"""The parts of the wait."""
INNER = {
    Part.PRODUCTION: (
        Part.IDLE,
        Part.COLLATING_QUEUED,
        Part.COLLATING,
        Part.SLOW_SAMPLES,
        Part.UNMEASURED,
        Part.FETCHING,
    ),
    Part.FETCHING: (Part.COMPUTING, Part.QUEUED, Part.WAITING),
}
"""The parts that a part is divided into."""


def divide(e: Evidence) -> dict[Part, float]:
    """Divide the span. Returns the share of each part, 0 to 1."""
    first = _first_wait(e)
    startup = first if keeps_up(e) else e.startup_wait
    producing = e.producing_wait + (first - startup)
    return {
        Part.STEPS: 1 - e.wait_share,
        Part.STARTUP: startup,
        Part.STALL: e.stall_wait,
        Part.SAMPLING: e.sampler_wait,
        Part.PLACING: e.placing_wait,
        Part.OPENING: e.opening_wait,
        Part.PRODUCTION: producing,
        **_divide_production(e, producing),
    }


def _first_wait(e: Evidence) -> float:
    return max(e.first_wait, e.startup_wait)


def one_off_wait(e: Evidence) -> float:
    """Share of the span in which the loop waits for first batches and for stalls, which do not recur."""
    return _first_wait(e) + e.stall_wait


def keeps_up(e: Evidence) -> bool:
    """Whether the loop hardly waits, apart from first batches and stalls.

    An epoch in which no worker has made a second batch says nothing about that: then the workers would have to make
    batches as fast as the loop takes them.
    """
    if e.first_wait and e.batches <= e.workers and e.make_ms / e.workers > own_ms(e):
        return False
    one_off = one_off_wait(e)
    return e.wait_share - one_off < SMALL_WAIT * (1 - one_off)


def own_ms(e: Evidence) -> float:
    """Time per batch for which the loop did not wait, ms."""
    return (1 - e.wait_share) * e.seconds * 1e3 / max(1, e.batches)


def _divide_production(e: Evidence, share: float) -> dict[Part, float]:
    idle = share * (1 - e.utilization) if e.utilization < BUSY else 0.0
    busy = share - idle
    sending = sending_ms(e)
    make = e.fetch_ms + e.collate_ms + sending
    collating = busy * (e.collate_ms + sending) / make if make else 0.0
    fetching = busy * e.fetch_ms / make if sending else busy - collating
    slow = 0.0 if sending else slow_part(e)
    contended = core_wait(e) >= CONTENDED and not many_threads(e) and not takes_turns(e) and not sending
    collating_queued = collating * split_work(e).collating.queued if contended else 0.0
    usual = fetching * (1 - slow)
    measured = 0.0 if e.fetch_cpu is None else usual
    computing, queued, waiting = split_work(e).fetching
    if queued < CONTENDED:
        waiting, queued = waiting + queued, 0.0
    return {
        Part.IDLE: idle,
        Part.COLLATING_QUEUED: collating_queued,
        Part.COLLATING: collating - collating_queued,
        Part.SLOW_SAMPLES: fetching * slow,
        Part.UNMEASURED: usual - measured,
        Part.FETCHING: measured,
        Part.COMPUTING: measured * computing,
        Part.QUEUED: measured * queued,
        Part.WAITING: measured * waiting,
    }


def sending_ms(e: Evidence) -> float:
    """Mean time for which a worker sends a pickled batch."""
    return e.transport_ms * e.by_pickle


def slow_part(e: Evidence) -> float:
    """The part of fetching that is due to slow samples; 0 if they do not matter, or are not exceptions.

    If workers wait for cores, this can slow down any sample. That part of the time says nothing about the samples.
    """
    if e.slow_share - core_wait(e) < SLOW_SHARE or e.slow_every < RARE:
        return 0.0
    make = e.fetch_ms + e.collate_ms
    return min(1.0, e.slow_share * make / e.fetch_ms) if e.fetch_ms else 0.0
