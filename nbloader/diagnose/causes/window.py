"""The prefetch window is full while workers are idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import percent, plural
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.causes.slow_samples import keep_others_idle
from nbloader.diagnose.parts import MAJORITY, Part
from nbloader.diagnose.phrases import waits
from nbloader.diagnose.work import lock_is_taken

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

FULL = 0.5
"""The prefetch window is a limit if it is full at this share of the deliveries."""


def _limits(e: Evidence) -> bool:
    if e.span == "epoch" and e.batches <= e.window:  # all its batches were requested at once
        return False
    return e.full >= FULL and e.window <= 2 * e.workers


def _limits_all(e: Evidence) -> bool:
    """Whether nothing else keeps workers idle, and they are idle for most of the time."""
    return _limits(e) and e.utilization < MAJORITY and not keep_others_idle(e) and not lock_is_taken(e)


def _sentence(e: Evidence) -> str:
    short = _short(e)
    return (
        f"The prefetch window is too small: {waits(e)}, while its {plural(e.workers, 'worker')} "
        f"{'is' if e.workers == 1 else 'are'} busy for {percent(e.utilization)} of the time. "
        f"{short[0].upper()}{short[1:]}."
    )


def _short(e: Evidence) -> str:
    return f"the window of {plural(e.window, 'batch')} was full at {percent(e.full)} of the deliveries"


def _remedy(e: Evidence) -> Remedy:
    return Remedy(
        "Use a larger prefetch_factor, or a larger prefetch if it is set.",
        more_workers=False if e.window < e.workers else None,
        larger_window=True,
    )


WINDOW = Cause(
    name="window",
    takes={Part.PRODUCTION: _limits_all, Part.IDLE: _limits},
    sentence=_sentence,
    short=_short,
    remedy=_remedy,
)
