"""The loop waits for the first batches."""

from __future__ import annotations

from nbloader._util.format import duration
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.parts import Part, divide
from nbloader.diagnose.phrases import millis, of_wait, waits
from nbloader.metrics.evidence import Evidence, Place


def _sentence(e: Evidence) -> str:
    began = "" if e.startup is None else f" The first batch came after {duration(e.startup)}{_of_workers(e)}."
    return (
        f"Start-up is the bottleneck: {waits(e)}, {of_wait(e, divide(e)[Part.STARTUP])} of that for the first batch "
        f"of each worker.{began} Later batches take {millis(e.make_ms)}."
    )


def _of_workers(e: Evidence) -> str:
    """How long the slowest worker took to start, which may have been later than the first batch; "" if none started."""
    if e.startup is None or e.worker_startup is None:
        return ""
    if e.worker_startup <= e.startup:
        return f", including {duration(e.worker_startup)} to start the {'worker' if e.workers == 1 else 'workers'}"
    return f", and the slowest worker took {duration(e.worker_startup)} to start"


def _remedy(e: Evidence) -> Remedy:
    if e.place is Place.CONSUMER or e.worker_startup is None:  # no worker started for this epoch
        return Remedy("Make the dataset open its files faster, or use longer epochs.", more_workers=False)
    return Remedy(
        "Set persistent_workers=True, use longer epochs, or make the dataset open its files faster.",
        more_workers=False,
    )


STARTUP = Cause(
    name="startup",
    takes={Part.STARTUP: always},
    sentence=_sentence,
    short=lambda e: f"start-up, with {duration(e.startup or 0.0)} until the first batch",
    remedy=_remedy,
    by_settings=False,
    discount=1.5,  # other causes affect later batches, too
)
