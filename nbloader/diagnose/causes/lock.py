"""Workers wait for a lock in the kernel, and the one that holds it waits or computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import percent, plural
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import waits
from nbloader.diagnose.work import split_work, workers_usage

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

LOCKED = 0.4
"""A lock serializes the workers if this share of the looks at busy workers found them waiting for a lock."""
TURNS = 0.65
"""It does so, too, from this part of the share that is found if workers do nothing but wait for their turns."""
ONE_AT_A_TIME = 1.25
"""What workers compute is done under the lock if together they use at most this many cores."""
MIN_LOOKS = 8
"""Minimum number of looks at busy workers for this."""


def _serializes(e: Evidence) -> bool:
    usage = workers_usage(e)
    if usage is None or not e.utilization or e.workers <= 1 or usage.looks < MIN_LOOKS:
        return False
    all_but_one = (e.workers - 1) / e.workers
    return usage.locked >= min(LOCKED, TURNS * all_but_one)


def _computes_in_turns(e: Evidence) -> bool:
    """Whether the workers hold the lock while they compute, so that their computing does not overlap."""
    if e.usage is None or not _serializes(e) or e.usage.locked < TURNS * (e.workers - 1) / e.workers:
        return False
    return e.workers * e.utilization * split_work(e).fetching.computing <= ONE_AT_A_TIME


def _sentence(e: Evidence) -> str:
    locked, looks = (0.0, 0) if e.usage is None else (e.usage.locked, e.usage.looks)
    return (
        f"A lock makes the {plural(e.workers, 'worker')} take turns: {waits(e)}. Busy workers were waiting for a lock "
        f"in {percent(locked)} of {plural(looks, 'observation')}."
    )


def _remedy(_e: Evidence) -> Remedy:
    return Remedy(
        "Hold the lock for a shorter time, or give each worker its own file, connection or cache.", more_workers=False
    )


LOCK = Cause(
    name="lock",
    takes={Part.COMPUTING: _computes_in_turns, Part.WAITING: _serializes},
    sentence=_sentence,
    short=lambda _e: "workers wait for a lock",
    remedy=_remedy,
    unmodeled="a lock makes the workers take turns",
    names_line=True,
)
