"""Batches are so large that copying them limits the rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import megabytes, number
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import SMALLER, millis, waits

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

HUGE_BYTES = 30e6
"""Memory bandwidth may matter if a batch is larger than this many bytes."""
HUGE_RATE = 0.5e9
"""Collating consists mostly of copying if it produces more than this many bytes per second."""


def _applies(e: Evidence) -> bool:
    return e.nbytes > HUGE_BYTES and e.nbytes > HUGE_RATE * e.collate_ms / 1e3


def _sentence(e: Evidence) -> str:
    rate = e.nbytes / max(1e-6, e.collate_ms / 1e3) / 1e9
    return (
        f"The size of batches is the bottleneck: {waits(e)}. Collating {megabytes(e.nbytes)} takes "
        f"{millis(e.collate_ms)} ({number(rate)} GB/s), and fetching the samples takes {millis(e.fetch_ms)}."
    )


HUGE_BATCHES = Cause(
    name="huge_batches",
    takes={Part.COLLATING: _applies},
    sentence=_sentence,
    short=lambda e: f"each batch takes up {megabytes(e.nbytes)}",
    remedy=lambda _e: Remedy(SMALLER, more_workers=False),
)
