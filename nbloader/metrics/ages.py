"""How long the things in a snapshot have lasted, so that each is shown with the same number everywhere. Pure.

A worker that hangs and the loop that waits for its batch are one hang. The wait of the loop, the age of the batch and
the age of an epoch without any batch begin within moments of each other, and would be rounded to different seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import age

if TYPE_CHECKING:
    from nbloader.metrics.snapshot import Snapshot, WorkerStats

TOGETHER_S, TOGETHER_SHARE = 0.5, 0.25
"""An age is shown as that of the awaited batch if the two differ by at most this: in seconds, and as a share."""


def age_in(s: Snapshot, seconds: float) -> str:
    """Format an age in a snapshot: of a wait, of a stall, of a batch, of an epoch.

    Args:
        s: The snapshot.
        seconds: The age. It is shown as the age of the batch that the loop waits for, if the two are close.
    """
    worker = awaited_worker(s)
    of_batch = None if worker is None else worker.batch_age
    if of_batch is None:
        return age(seconds)
    close = abs(of_batch - seconds) <= min(TOGETHER_S, TOGETHER_SHARE * max(of_batch, seconds))
    return age(of_batch if close else seconds)


def awaited_worker(s: Snapshot) -> WorkerStats | None:
    """Return the worker that processes the batch for which the loop waits; None if there is none."""
    if s.waiting is None or s.waiting_for is None:
        return None
    return next((w for w in s.workers if w.batch == s.waiting_for and not w.left), None)
