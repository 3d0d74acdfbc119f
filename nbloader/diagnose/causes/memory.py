"""Pages are read back from a disk or from swap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import number
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import waits
from nbloader.diagnose.work import workers_usage

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

FAULT_SECONDS = 5e-5
"""Minimum cost, in seconds, of a page that is read from a disk."""
FAULTED = 0.2
"""Page faults matter if they cost at least this share of production."""


def _applies(e: Evidence) -> bool:
    usage = workers_usage(e)
    return usage is not None and e.utilization > 0 and usage.major_faults * FAULT_SECONDS / e.utilization >= FAULTED


def _sentence(e: Evidence) -> str:
    faults = 0.0 if e.usage is None else e.usage.major_faults
    return (
        f"Memory is the bottleneck: {waits(e)}. Each worker reads {number(faults)} pages a second back from a disk or "
        f"from swap."
    )


def _remedy(_e: Evidence) -> Remedy:
    return Remedy("Use fewer workers or smaller batches, or keep less of the dataset in memory.", more_workers=False)


MEMORY = Cause(
    name="memory",
    takes={Part.WAITING: _applies},
    sentence=_sentence,
    short=lambda _e: "pages are read back from a disk or swap",
    remedy=_remedy,
    unmodeled="pages are read back from a disk or swap",
)
