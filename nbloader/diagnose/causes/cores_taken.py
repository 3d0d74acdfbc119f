"""Workers or the loop wait for a core that other programs use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import percent
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import cores_in_use, free_cores, preemptions, workers_limit
from nbloader.diagnose.work import CONTENDED, opening_is_queued, split_work, taken_by_others

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


def _slow_computing(e: Evidence) -> bool:
    """Whether computing would take less time, too, if the cores were free."""
    computing, queued, _waiting = split_work(e).fetching
    return queued >= CONTENDED and taken_by_others(e) and queued > computing / 2


def _queued(e: Evidence) -> float:
    """Share of the workers' production in which they wait for a core."""
    make, work = e.fetch_ms + e.collate_ms, split_work(e)
    return (work.fetching.queued * e.fetch_ms + work.collating.queued * e.collate_ms) / make if make else 0.0


def _sentence(e: Evidence) -> str:
    waiting = f"Workers wait for a core during {percent(_queued(e))} of their work"
    waiting += preemptions(e, ", and each loses its core")
    if not _queued(e):  # the cause was found in the loop's own thread
        loop = 0.0 if e.usage is None else e.usage.consumer_core_wait
        waiting = f"The loop waits for a core during {percent(loop)} of the time"
    return (
        f"{workers_limit(e)} {waiting}. The workers and the loop use only {cores_in_use(e)}, so other programs use "
        f"the rest."
    )


def _short(e: Evidence) -> str:
    queued = _queued(e)
    return f"workers wait for a core during {percent(queued)} of their work" if queued else "the loop waits for a core"


CORES_TAKEN = Cause(
    name="cores_taken",
    takes={
        Part.OPENING: lambda e: opening_is_queued(e) and taken_by_others(e),
        Part.COLLATING_QUEUED: taken_by_others,
        Part.COMPUTING: _slow_computing,
        Part.QUEUED: taken_by_others,
    },
    sentence=_sentence,
    short=_short,
    remedy=lambda e: Remedy(free_cores(e), more_workers=False),
    unmodeled="other programs use the cores",
    names_line=True,
)
