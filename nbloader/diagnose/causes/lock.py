"""Workers wait for a lock in the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import percent, plural
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import waits
from nbloader.diagnose.work import workers_usage

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

LOCKED = 0.4
"""A lock serializes the workers if this share of the looks at busy workers found them waiting for a lock."""
MIN_LOOKS = 8
"""Minimum number of looks at busy workers for this."""


def _applies(e: Evidence) -> bool:
    usage = workers_usage(e)
    if usage is None or not e.utilization:
        return False
    return e.workers > 1 and usage.looks >= MIN_LOOKS and usage.locked >= LOCKED


def _sentence(e: Evidence) -> str:
    locked, looks = (0.0, 0) if e.usage is None else (e.usage.locked, e.usage.looks)
    return (
        f"A lock serializes the workers: {waits(e)}; at {percent(locked)} of {plural(looks, 'look')} "
        f"a busy worker was waiting for one ({plural(e.workers, 'worker')})."
    )


def _remedy(_e: Evidence) -> Remedy:
    return Remedy(
        "Hold the lock for a shorter time, or give each worker its own file, connection or cache.", more_workers=False
    )


LOCK = Cause(
    name="lock",
    takes={Part.WAITING: _applies},
    sentence=_sentence,
    short=lambda _e: "workers wait for a lock",
    remedy=_remedy,
    unmodeled="a lock serializes the workers",
    names_line=True,
)
