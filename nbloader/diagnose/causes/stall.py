"""A few batches took far longer than all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import clean, duration, plural
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import millis, of_wait, waits

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence, SlowBatch


def _sentence(e: Evidence) -> str:
    worst = e.worst
    count = "One batch" if e.stalls == 1 else plural(e.stalls, "batch")
    text = f"{count} stalled the loop: {waits(e)}, {of_wait(e, e.stall_wait)} of that for "
    text += "this batch." if e.stalls == 1 else "these batches."
    if worst is not None:
        text += f" {_longest_wait(worst, e.stalls)}."
        if worst.slow_sample is not None:
            text += f" Its slowest sample was {clean(worst.slow_sample, 40)}."
    return f"{text} A batch usually takes {millis(e.make_ms)}." if e.make_ms and worst is not None else text


def _longest_wait(worst: SlowBatch, stalls: int) -> str:
    """Describe the longest wait, as a sentence without a period."""
    # How long a wait has lasted so far is said where its age is shown: evidence may be a second old.
    if worst.make is None:
        text = f"Batch {worst.batch} has not arrived"  # also said of an interrupted epoch
    elif stalls == 1:
        text = f"The loop waited {duration(worst.wait)} for batch {worst.batch}"
    else:
        text = f"The longest wait was {duration(worst.wait)}, for batch {worst.batch}"
    if worst.attempt == 1:
        return text
    lost = "" if worst.lost_sample is None else f" at sample {clean(worst.lost_sample, 40)}"
    return f"{text}, which was produced again after a worker was lost{lost} (attempt {worst.attempt})"


def _remedy(e: Evidence) -> Remedy:
    worst = e.worst
    what = "the longest waits" if worst is None else f"batch {worst.batch}"
    sample = None if worst is None else worst.lost_sample if worst.slow_sample is None else worst.slow_sample
    if sample is not None:
        what = f"sample {clean(sample, 40)}"
    return Remedy(f"Look at {what}, or limit waits with timeout= and on_timeout='restart'.", more_workers=False)


STALL = Cause(
    name="stall",
    takes={Part.STALL: always},
    sentence=_sentence,
    short=lambda e: f"{plural(e.stalls, 'batch')} that stalled the loop",
    remedy=_remedy,
    by_settings=False,
)
