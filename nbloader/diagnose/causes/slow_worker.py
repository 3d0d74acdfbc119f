"""One worker is slower than the others, and delays their batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import Part, slow_part
from nbloader.diagnose.phrases import millis, waits, workers_limit

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

STRAGGLER_TIMES = 2.0
"""A worker is slow if its batches take this many times as long as those of the others."""


def _slow_worker(e: Evidence) -> int | None:
    """The worker whose batches take several times as long as those of the others, and delay them.

    None if there is no such worker.
    """
    times = e.by_worker
    if len(times) < 2:  # noqa: PLR2004 - to compare
        return None
    worker = max(times, key=lambda w: times[w].median_ms)
    usual = _usual_ms(e, worker)
    # The quartile, not the median: by chance the worker may have got more of the slow samples than the others.
    slow = times[worker].batches > 1 and times[worker].quartile_ms >= STRAGGLER_TIMES * max(usual, 0.5)
    return worker if slow and e.reorder_ms >= usual / 4 else None


def _usual_ms(e: Evidence, worker: int) -> float:
    """Time per batch of the other workers."""
    others = sorted(time.median_ms for other, time in e.by_worker.items() if other != worker)
    return others[len(others) // 2]


def _applies(e: Evidence) -> bool:
    by_its_samples = slow_part(e) > 0 and e.slow_workers != 1
    return _slow_worker(e) is not None and not by_its_samples


def _sentence(e: Evidence) -> str:
    worker = _slow_worker(e)
    if worker is None:
        return workers_limit(e)
    others = "the other worker" if len(e.by_worker) == 2 else "the other workers"  # noqa: PLR2004 - a pair
    own, usual = millis(e.by_worker[worker].median_ms), millis(_usual_ms(e, worker))
    return (
        f"Worker {worker} is slow: its batches take {own}, and those of {others} take {usual}. On average, a batch "
        f"waits {millis(e.reorder_ms)} in the reorder buffer for an earlier one, and {waits(e)}."
    )


def _remedy(e: Evidence) -> Remedy:
    worker = _slow_worker(e)
    if worker is None:
        return Remedy()
    return Remedy(f"If worker {worker} stays slow, restart it: loader.restart_workers([{worker}]).", restart=(worker,))


SLOW_WORKER = Cause(
    name="worker",
    takes={Part.PRODUCTION: _applies},
    sentence=_sentence,
    short=lambda _e: "one worker is slow",
    remedy=_remedy,
)
