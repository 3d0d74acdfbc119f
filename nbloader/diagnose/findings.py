"""Find out why a loop waits, from the evidence of one span. Pure.

Each part of the loop's time (`parts`) gets a cause: the first one of `CAUSES` that applies to it. A part that no cause
takes as a whole is divided further. The cause with the largest share of the time is the verdict. If another cause is
comparable, it is the second cause.

An epoch that was left early, or still runs, is judged as if it had gone on: start-up takes a larger share of its first
batches than of the whole epoch.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from nbloader.diagnose.causes import CAUSES, UNKNOWN, Cause
from nbloader.diagnose.parts import INNER, MAJORITY, MIN_BATCHES, SMALL_WAIT, WAIT, Part, divide, keeps_up, one_off_wait

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

RECURRING = ("stall_wait", "sampler_wait", "placing_wait", "opening_wait", "producing_wait")
"""Names of the parts of the wait that grow with the number of batches."""
LARGE_START = 0.3
"""For a loader that otherwise keeps up, start-up or stalls are the verdict only from this share of the time on."""
SECOND = 0.25
"""A second cause is named if its part of the loop's time is at least this share of the first cause's part."""


class Finding(NamedTuple):
    """A cause, and its part of the loop's time."""

    cause: Cause
    share: float
    """0 to 1."""


def find_causes(e: Evidence) -> tuple[Finding, ...]:
    """Find what limited the loop: one cause, or two comparable ones, the larger first."""
    e = of_whole_epoch(e)
    if e.batches <= MIN_BATCHES and e.startup_wait + e.stall_wait < MAJORITY:
        return (Finding(UNKNOWN, e.wait_share),)
    shares = divide(e)
    if e.wait_share < SMALL_WAIT or (keeps_up(e) and one_off_wait(e) < LARGE_START):
        (loop,) = _attribute(e, shares, Part.STEPS)
        once = max(Part.STARTUP, Part.STALL, key=shares.__getitem__)
        return (loop, *_attribute(e, shares, once)) if e.wait_share >= SMALL_WAIT else (loop,)
    found: dict[Cause, float] = collections.defaultdict(float)
    for part in WAIT:
        for finding in _attribute(e, shares, part):
            found[finding.cause] += finding.share
    return _ranked(found, e.wait_share)


def of_whole_epoch(e: Evidence) -> Evidence:
    """Return the evidence with the shares that the loop's time would have if the epoch went on as it is.

    The loop waits for the first batch of each worker once. Everything else grows with the number of batches.
    """
    if e.completed in (0.0, 1.0):
        return e
    once = _once(e)
    grown = once + (1 - once) / e.completed
    recurring = 1 / (e.completed * grown)
    first = once / grown + max(0.0, e.first_wait - once) * recurring
    return replace(_scaled(e, recurring), startup_wait=e.startup_wait / grown, first_wait=first)


def after_startup(e: Evidence) -> Evidence:
    """Return the evidence for the epoch without the waits for the first batch of each worker."""
    once = _once(e)
    rest = 1 - once
    first = max(0.0, e.first_wait - once) / rest
    later = _scaled(e, 1 / rest)
    return replace(later, after_startup=True, total=None, seconds=e.seconds * rest, startup_wait=0.0, first_wait=first)


def _once(e: Evidence) -> float:
    """Share of the span for which the loop waits once: a worker's first batch, or what it takes longer than others.

    If no worker has made a second batch, the first ones tell how long it would take.
    """
    return min(max(e.first_wait, e.startup_wait) if e.batches > e.workers else e.startup_wait, 0.99)


def _scaled(e: Evidence, factor: float) -> Evidence:
    """Return the evidence with other shares of what grows with the number of batches."""
    shares = {name: getattr(e, name) * factor for name in RECURRING}
    usage = (
        None
        if e.usage is None
        else replace(
            e.usage, consumer_cpu=e.usage.consumer_cpu * factor, consumer_core_wait=e.usage.consumer_core_wait * factor
        )
    )
    return replace(e, **shares, wait_share=1 - (1 - e.wait_share) * factor, usage=usage)


def _attribute(e: Evidence, shares: Mapping[Part, float], part: Part) -> Iterator[Finding]:
    """Find the cause of a part, or else the causes of the parts within it."""
    cause = next((cause for cause in CAUSES if cause.applies(part, e)), None)
    if cause is not None:
        yield Finding(cause, shares[part])
        return
    for inner in INNER[part]:
        if shares[inner]:
            yield from _attribute(e, shares, inner)


def _ranked(found: Mapping[Cause, float], wait_share: float) -> tuple[Finding, ...]:
    ranked = sorted(found.items(), key=lambda item: -item[1] / item[0].discount)
    first, *others = [Finding(cause, share) for cause, share in ranked]
    if not first.share:
        return (Finding(UNKNOWN, wait_share),)
    known = [one for one in others if one.cause is not UNKNOWN]
    second = known[0] if known else None
    if first.cause is UNKNOWN and second is not None:
        together = sum(one.share for one in known)
        if second.share >= wait_share / 3:
            first, second = second, None
        elif second.share >= wait_share / 4 and together >= MAJORITY * wait_share:
            first, second = second, known[1]
    if second is None or first.cause is UNKNOWN or second.share < max(SECOND * first.share, SMALL_WAIT / 2):
        return (first,)
    return first, second
