"""Verdicts: what limited the loop over a span, as sentences that begin with a remedy. Pure.

causes -> remedy of the first one -> what to do, and what does not help unless it helps against the second cause
-> evidence of both        -> what limited the loop, with numbers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import duration
from nbloader.diagnose.causes.startup import STARTUP
from nbloader.diagnose.findings import LARGE_START, after_startup, find_causes
from nbloader.diagnose.parts import SMALL_WAIT, Part
from nbloader.diagnose.phrases import of_wait, slowest_line
from nbloader.metrics.snapshot import Verdict

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


YIELD_A_PART = (
    " Let `__iter__` yield only its worker's part (torch.utils.data.get_worker_info()), or each sample arrives once "
    "per worker."
)


def verdict(e: Evidence) -> Verdict:
    """State what limited the loop over a span, as a word and as a sentence."""
    first, *second = find_causes(e)
    once = ""
    if first.cause is not STARTUP and e.completed < 1:
        if e.startup_wait >= LARGE_START:
            once = f" Start-up took {duration(e.first_wait * e.seconds)}."
        if once or (Part.STEPS in first.cause.takes and e.wait_share >= SMALL_WAIT):
            e = after_startup(e)
            first, *second = find_causes(e)
    remedy = first.cause.remedy(e)
    text = first.cause.sentence(e) + (slowest_line(e) if first.cause.names_line else "")
    parts = YIELD_A_PART if remedy.more_workers and e.iterable and e.workers == 1 else ""
    also = ""
    if second:
        remedy = remedy.beside(second[0].cause.remedy(e))
        also = f" A second cause accounts for {of_wait(e, second[0].share)} of the wait: {second[0].cause.short(e)}."
    return Verdict(
        cause=first.cause.name,
        sentence=f"{remedy.text}{parts} {text}{remedy.no_help(e, alone=not second)}{also}{once}".lstrip(),
        also=second[0].cause.name if second else "",
        restart=remedy.restart if e.span == "now" else (),
        evidence=text + also + once,
        more_workers=remedy.more_workers,
        larger_window=remedy.larger_window,
    )
