"""The measurements do not explain the wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import percent, plural
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.parts import BUSY, INNER, MIN_BATCHES, Part
from nbloader.diagnose.phrases import line_remedy, waits

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


def _sentence(e: Evidence) -> str:
    if e.batches <= MIN_BATCHES:
        few = "one batch is" if e.batches == 1 else f"{plural(e.batches, 'batch')} are"
        return f"Cannot tell yet what limits the loop: {few} too few."
    if not e.make_ms:
        return f"Cannot tell yet what limits the loop: {waits(e)}, but no batch has been measured."
    workers = f"Its {plural(e.workers, 'worker')} {'is' if e.workers == 1 else 'are'} busy"
    share = f"{percent(e.utilization)} of the time"
    if e.utilization >= BUSY:
        return f"Cannot tell what limits the loop: {waits(e)}. {workers} for {share}, and no measurement explains why."
    return (
        f"Cannot tell what limits the loop: {waits(e)}. {workers} for only {share}, and no measurement explains the "
        f"rest."
    )


def _remedy(e: Evidence) -> Remedy:
    line = line_remedy(e)
    return Remedy(f"{line}." if line else "")


UNKNOWN = Cause(
    name="unknown",
    takes=dict.fromkeys((part for part in Part if part not in INNER), always),
    sentence=_sentence,
    short=lambda _e: "unknown",
    remedy=_remedy,
    names_line=True,
)
