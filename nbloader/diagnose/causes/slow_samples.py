"""A few samples take much longer than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import clean, percent
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.common import in_common
from nbloader.diagnose.parts import Part, slow_part
from nbloader.diagnose.phrases import millis, waits

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


def keep_others_idle(e: Evidence) -> bool:
    """Whether workers are idle because another one fetches a slow sample."""
    return slow_part(e) > 0 and e.workers > 1


def _sentence(e: Evidence) -> str:
    common = in_common(e.slow_indices, e.usual_indices, e.facts)
    return (
        f"Slow samples are the bottleneck: {waits(e)}. One sample in {round(e.slow_every)} takes {millis(e.slow_ms)}, "
        f"and the others take {millis(e.sample_ms)}. This costs {percent(e.slow_share)} of the workers' time."
        f"{f' The slow ones are those with {common}.' if common else _slowest(e)}"
    )


def _slowest(e: Evidence) -> str:
    """Name the slowest samples, as a sentence that begins with a space; "" if they are not known."""
    listed = ", ".join(clean(index, 20) for index in e.slow_indices[:3])
    if not listed:
        return ""
    return f" The slowest {'sample is' if len(e.slow_indices) == 1 else 'samples are'} {listed}."


def _short(e: Evidence) -> str:
    common = in_common(e.slow_indices, e.usual_indices, e.facts)
    which = f" (those with {common})" if common else ""
    return (
        f"one sample in {round(e.slow_every)}{which} takes {millis(e.slow_ms)}, and the others take "
        f"{millis(e.sample_ms)}"
    )


SLOW_SAMPLES = Cause(
    name="slow_samples",
    takes={Part.IDLE: keep_others_idle, Part.SLOW_SAMPLES: always},
    sentence=_sentence,
    short=_short,
    remedy=lambda _e: Remedy("Make the slow samples as fast as the others.", larger_window=False),
)
