"""Batches take longer from the worker to the loop than to be produced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import megabytes, plural
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import SMALLER, millis, waits
from nbloader.metrics.stage_times import median

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

TRANSPORT_BYTES = 1e5
"""Transport can be the bottleneck if a batch is larger than this many bytes."""


def dominates(e: Evidence) -> bool:
    """Whether batches take longer to transport than to produce."""
    long = e.transport_ms > max(1.0, e.fetch_ms + e.collate_ms)
    return long and max(e.nbytes, e.pickled) > TRANSPORT_BYTES


def _sending_ms(e: Evidence) -> float:
    """Median time from the moment a node began to send a batch until it was received."""
    return (median([r.transfer.end - r.transfer.begin for r in e.records if r.transfer is not None]) or 0) / 1e6


def _sentence(e: Evidence) -> str:
    what, parts = "Transport", ""
    if e.nodes:
        what = f"The transfer from {'the node' if e.nodes == 1 else plural(e.nodes, 'node')}"
        parts = f" (after earlier ones, its node sends it in {millis(_sending_ms(e))})"
    return (
        f"{what} is the bottleneck: {waits(e)}. A batch of {megabytes(e.nbytes)} takes "
        f"{millis(e.fetch_ms + e.collate_ms)} to produce, and {millis(e.transport_ms)} from the worker to the "
        f"loop{parts}."
    )


TRANSPORT = Cause(
    name="transport",
    takes={Part.PRODUCTION: dominates},
    sentence=_sentence,
    short=lambda e: f"transport takes {millis(e.transport_ms)} per batch",
    remedy=lambda e: Remedy(SMALLER, more_workers=False if e.nodes else None),
)
