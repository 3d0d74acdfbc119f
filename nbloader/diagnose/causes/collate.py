"""Collating takes most of the workers' time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import percent
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.parts import MAJORITY, Part
from nbloader.diagnose.phrases import millis, waits, with_line_remedy
from nbloader.diagnose.work import CONTENDED, all_used, core_wait, split_work

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


def _sentence(e: Evidence) -> str:
    make = e.fetch_ms + e.collate_ms
    work = split_work(e).collating
    computing = "" if e.collate_cpu is None else f", {percent(work.computing)} of it CPU time"
    if work.queued >= CONTENDED:
        computing += f" and {percent(work.queued)} waiting for a core"
    return (
        f"Collating is the bottleneck: {waits(e)}. A batch takes {millis(e.fetch_ms)} to fetch and "
        f"{millis(e.collate_ms)} to collate ({percent(e.collate_ms / make if make else 0)} of the workers' "
        f"time{computing})."
    )


def _short(e: Evidence) -> str:
    queued = split_work(e).collating.queued
    apart = ", apart from waiting for a core," if queued >= CONTENDED else ""
    own = e.collate_ms * (1 - queued) if apart else e.collate_ms
    return f"collating takes {millis(own)}{apart} of {millis(e.fetch_ms + e.collate_ms)}"


def _remedy(e: Evidence) -> Remedy:
    computes = split_work(e).collating.computing >= MAJORITY
    free = core_wait(e) < CONTENDED and not all_used(e)
    more = ", or use more workers" if free or not computes else ""
    faster = f"Make the collate function faster{more}"
    collates = e.line is not None and e.line.share >= MAJORITY  # a shorter one may be a line of fetching
    text = with_line_remedy(e, faster, waits=not computes) if collates else f"{faster}."
    return Remedy(text, more_workers=True if more else None)


COLLATE = Cause(
    name="collate",
    takes={Part.COLLATING: always},
    sentence=_sentence,
    short=_short,
    remedy=_remedy,
    names_line=True,
)
