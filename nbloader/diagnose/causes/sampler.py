"""The sampler draws indices too slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import clean
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import line_of, millis, of_wait, per_batch, waits

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


def _sentence(e: Evidence) -> str:
    where = f" in {clean(e.sampler, 120)}" if e.sampler else ""
    return (
        f"The sampler is the bottleneck: {waits(e)}. For {of_wait(e, e.sampler_wait)} of that time, the sampler was "
        f"drawing indices ({millis(per_batch(e, e.sampler_wait))} per batch){where}.{line_of(e.draw, 'its time')}"
    )


SAMPLER = Cause(
    name="sampler",
    takes={Part.SAMPLING: always},
    sentence=_sentence,
    short=lambda e: f"the sampler takes {millis(per_batch(e, e.sampler_wait))} per batch",
    remedy=lambda _e: Remedy("Draw the indices faster, or in advance.", more_workers=False),
    by_settings=False,
)
