"""Worker threads compute, and take turns under the interpreter lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import number, plural
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import cpu_share, waits
from nbloader.diagnose.work import lock_is_taken, takes_turns

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


def _sentence(e: Evidence) -> str:
    loop = 0.0 if e.usage is None else e.usage.loop_cores
    return (
        f"The interpreter lock is the bottleneck: {waits(e)}. The {plural(e.workers, 'thread')} take turns. Each "
        f"computes for {cpu_share(e)} of its fetching, and together they use {number(loop)} of "
        f"{plural(e.cores, 'core')}."
    )


INTERPRETER_LOCK = Cause(
    name="interpreter_lock",
    takes={
        Part.STEPS: lock_is_taken,  # a step takes this long because it, too, waits for the lock
        Part.OPENING: lock_is_taken,
        Part.IDLE: lock_is_taken,  # workers need the lock to begin the next batch
        Part.FETCHING: takes_turns,
    },
    sentence=_sentence,
    short=lambda _e: "threads wait for the interpreter lock",
    remedy=lambda _e: Remedy("Use workers='process', so that the workers compute in parallel.", more_workers=False),
    unmodeled="threads wait for the interpreter lock",
    names_line=True,
)
