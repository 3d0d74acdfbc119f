"""Phrases with numbers that the sentences of several causes share. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nbloader._util.format import clean, consumable, duration, number, percent, plural
from nbloader.diagnose.parts import MAJORITY, own_ms
from nbloader.diagnose.work import cores_used, split_work
from nbloader.metrics.evidence import Place

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence, SlowLine

SMALLER = "Make batches smaller, with a smaller dtype (uint8 instead of float32) or fewer samples."
"""A remedy against large batches."""
TRY = "try loader.remedies()"
CHEAPER = f"Make samples cheaper: {TRY}"
"""A remedy where no line takes most of the time."""
SOURCE = 80
"""Maximum length of a line of code, characters."""


def waits(e: Evidence) -> str:
    """The share of time for which the loop waited, and the span over which it was measured."""
    return f"the loop waited for {percent(e.wait_share)} {of_span(e)}"


def of_span(e: Evidence) -> str:
    """The span over which something was measured."""
    if e.span == "now":
        return f"of the last {duration(e.seconds)}"
    if e.after_startup:
        return f"of the {duration(e.seconds)} after start-up"
    return f"of the epoch's {duration(e.seconds)}"


def of_wait(e: Evidence, share: float) -> str:
    """Convert a share of the span to a share of the wait."""
    return percent(share / max(share, e.wait_share)) if share else percent(0)


def millis(ms: float) -> str:
    """Format a time in ms."""
    return duration(ms / 1e3)


def per_batch(e: Evidence, share: float) -> float:
    """Convert a share of the span to milliseconds per batch."""
    return share * e.seconds * 1e3 / max(1, e.batches)


def workers_limit(e: Evidence) -> str:
    """How fast the workers are, and how fast the loop could consume batches."""
    own = own_ms(e)
    could = consumable(1e3 / own if own else math.inf)
    one = e.workers == 1
    return (
        f"{'The worker is' if one else 'Workers are'} the bottleneck: {waits(e)}. "
        f"The {'worker produces' if one else f'{e.workers} workers produce'} {number(e.batches_per_second)} batches/s, "
        f"but the loop could consume {could}."
    )


def cpu_share(e: Evidence) -> str:
    """The share of fetching that computes."""
    return percent(split_work(e).fetching.computing)


def cores_in_use(e: Evidence) -> str:
    """How many cores of this machine the workers and the loop use."""
    return f"{number(cores_used(e))} of {plural(e.cores, 'core')}"


def usable_cores(e: Evidence) -> str:
    """The number of cores that workers can use."""
    return f"the number of cores ({e.cores})" if not e.elsewhere else "the number of cores of their machines"


def is_one_round(e: Evidence) -> bool:
    """Whether no worker has produced two batches of the epoch, so that more workers would have had nothing to do."""
    return e.span == "epoch" and e.place is not Place.CONSUMER and 0 < e.batches <= e.workers


def one_round_remedy(e: Evidence, *, waits: bool = False) -> str:
    """What to do about such an epoch, as a sentence. For `waits`, see `line_remedy`."""
    own = line_remedy(e, waits=waits)
    if own:
        return f"{own}."
    return "Make samples cheaper, or use epochs of more batches than workers."


def preemptions(e: Evidence, what: str) -> str:
    """How often a worker loses its core; "" if not measured."""
    if e.usage is None or e.usage.preempted is None:
        return ""
    return f"{what} {number(e.usage.preempted)} times a second"


def slowest_line(e: Evidence) -> str:
    """The line that takes most of the workers' time, as a sentence that begins with a space; "" if it is not known."""
    return line_of(e.line, "the time of fetching" if e.place is Place.CONSUMER else "the workers' time")


def line_of(line: SlowLine | None, time: str) -> str:
    """The line that takes most of some time, as a sentence that begins with a space; "" if it is not known."""
    if line is None:
        return ""
    source, place = clean(line.source, SOURCE), clean(line.place, SOURCE)
    vain = ", and none of {:,} cached calls in this epoch found an earlier result" if line.missed else ""
    return f" {percent(line.share)} of {time} is spent in `{source}` ({place}){vain.format(line.missed)}."


def line_remedy(e: Evidence, *, waits: bool = False) -> str:
    """What makes the slowest line cheaper, where it is, and how to try it; "" if nothing is known for it.

    Args:
        e: The evidence.
        waits: Whether the line is slow because it waits: what only saves CPU time does not help then.
    """
    if e.line is None:
        return ""
    own = e.line.shorter_wait if waits else e.line.remedy
    place = clean(e.line.remedy_place or e.line.place, SOURCE)
    return f"{own} ({place}), as loader.remedies() {'has shown' if e.line.is_tried else 'shows'}" if own else ""


def cheaper_line(e: Evidence) -> str:
    """What makes the slowest line cheaper, or the call that may find something."""
    if e.line is None:
        return CHEAPER
    if e.line.missed:
        return f"Remove nbloader.cached, or pass arguments that come again ({clean(e.line.place, SOURCE)})"
    if e.line.is_kept:
        return f"Let the cache fill: {clean(e.line.place, SOURCE)} runs once for each result that it keeps"
    own = f"Make the slowest line cheaper ({clean(e.line.place, SOURCE)})"
    return line_remedy(e) or (own if e.line.is_tried else f"{own}: {TRY}")


def with_line_remedy(e: Evidence, other: str, *, waits: bool = False) -> str:
    """Two remedies as sentences: that of the slowest line, if one is known, and another one, without its period.

    The one of the line is first if the line takes most of the workers' time: then it gains more. For `waits`, see
    `line_remedy`.
    """
    own = line_remedy(e, waits=waits)
    return _either(*((own, other) if e.line is not None and e.line.share >= MAJORITY else (other, own)))


def free_cores(e: Evidence, more: str = "") -> str:
    """What helps if other programs use the cores, as sentences: a cheaper line, which is in the user's hands, or cores.

    Args:
        e: The evidence.
        more: What else helps, a clause that begins with a comma.
    """
    free = f"Free the cores that other programs use{more}"
    return _either(free, CHEAPER) if e.line is None else _either(cheaper_line(e), free)


def _either(first: str, second: str) -> str:
    """Two remedies as sentences; one of them may be ""."""
    if not (first and second):
        return f"{first or second}."
    return f"{first}. Or {second[0].lower()}{second[1:]}."
