"""Finished batches are pinned or uploaded to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import clean, megabytes, number
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import SMALLER, millis, of_wait, waits

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


def _sentence(e: Evidence) -> str:
    u = e.uploads
    where = clean(e.device, 40) or "pinned memory"
    share = of_wait(e, e.placing_wait)
    placing = f"{share} of that while finished batches were pinned or copied"
    head = f"The transfer to {where} is the bottleneck: {waits(e)}, {placing}"
    if u is None:
        return f"{head}."
    speed = "" if u.gb_per_second is None else f" ({number(u.gb_per_second)} GB/s)"
    copying = "" if u.copy is None else f" and {millis(u.copy)} to copy{speed}"
    return f"{head}. A batch of {megabytes(e.nbytes)} takes {millis(u.pin)} to pin{copying}."


def _remedy(e: Evidence) -> Remedy:
    if e.uploads is not None and e.uploads.ways[0].memory == "pageable":
        return Remedy("Set pin_memory=True, which makes copies faster and lets them run ahead of the loop.")
    if e.uploads is not None and not e.device:
        return Remedy(
            "Set device='cuda', which pins batches in place, without this copy, and uploads them ahead of time."
        )
    return Remedy(SMALLER)


UPLOAD = Cause(
    name="upload",
    takes={Part.PLACING: always},
    sentence=_sentence,
    short=lambda _e: "batches are pinned or uploaded",
    remedy=_remedy,
    by_settings=False,
)
