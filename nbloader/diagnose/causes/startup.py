"""The loop waits for the first batches."""

from __future__ import annotations

from nbloader._util.format import duration
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import millis, of_wait, waits
from nbloader.metrics.evidence import Evidence, Place


def _sentence(e: Evidence) -> str:
    began = "" if e.startup is None else f"; the first batch came after {duration(e.startup)}"
    ready = "" if e.worker_startup is None else f", of which the workers took {duration(e.worker_startup)} to start"
    return (
        f"Start-up is the bottleneck: {waits(e)}, {of_wait(e, e.startup_wait)} of that for the first batch "
        f"of each worker{began}{ready}; later ones take {millis(e.make_ms)}."
    )


def _remedy(e: Evidence) -> Remedy:
    if e.place is Place.CONSUMER:
        return Remedy("Let the dataset open its files faster, or make epochs longer.", more_workers=False)
    return Remedy(
        "Start up less often or faster: longer epochs, persistent_workers=True, a dataset that opens its files faster.",
        more_workers=False,
    )


STARTUP = Cause(
    name="startup",
    takes={Part.STARTUP: always},
    sentence=_sentence,
    short=lambda e: f"start-up, {duration(e.startup or 0.0)} until the first batch",
    remedy=_remedy,
    by_settings=False,
    discount=1.5,  # other causes affect later batches, too
)
