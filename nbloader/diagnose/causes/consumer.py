"""The loop itself is slower than the loader, perhaps because its own thread computes."""

from __future__ import annotations

import re

from nbloader._util.format import clean, percent, plural
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.parts import Part, own_ms
from nbloader.diagnose.phrases import SOURCE, line_of, millis, of_span
from nbloader.diagnose.work import CONTENDED, PYTHON_STEP, split_steps, taken_by_others
from nbloader.metrics.evidence import Evidence, Place

_TO_PYTHON = re.compile(r"\.(item|tolist)\(\)")
"""Converts tensors to numbers of Python."""
_ROUNDING = 0.05
"""A mean count that is this close to an integer is shown as an integer."""


def _computes(e: Evidence) -> bool:
    """Whether the loop's thread computes, or waits for a core, during most of the loop's own steps."""
    steps = split_steps(e)
    return steps is not None and steps.computing + steps.queued >= PYTHON_STEP


def _sentence(e: Evidence) -> str:
    ready = "" if e.place is Place.CONSUMER or e.ready < 1 else f" The loader keeps {_mean_batches(e.ready)} ready."
    return (
        f"Your loop is the bottleneck: it waited for {percent(e.wait_share)} {of_span(e)}. It spends "
        f"{millis(own_ms(e))} on each batch{_steps(e)}.{line_of(e.step, 'that time')}{ready}"
    )


def _mean_batches(count: float) -> str:
    """Format a mean number of batches: "4 batches", "3.6 batches"."""
    return plural(round(count), "batch") if abs(count - round(count)) < _ROUNDING else f"{count:.1f} batches"


def _steps(e: Evidence) -> str:
    """What the loop's thread does during the loop's own steps; "" if not measured."""
    steps = split_steps(e)
    if steps is None:
        return ""
    parts = [f"{percent(steps.computing)} of it computing on the CPU"]
    if steps.queued >= CONTENDED:
        parts.append(f"{percent(steps.queued)} waiting for a core")
    rest = f"the rest waiting{f', for example for {clean(e.device, 40)}' if e.device else ''}"
    if not _computes(e):
        return f", {', '.join(parts)} and {rest}"
    return f", {' and '.join(parts)}"


def _less(e: Evidence) -> str:
    """How the steps compute less, as a sentence without its period."""
    if e.step is None:
        return "Do less on the CPU in your loop (loader.profile_lines() before an epoch finds its slowest line)"
    place = clean(e.step.place, SOURCE)
    if _TO_PYTHON.search(e.step.source):
        return f"Keep values as tensors, and convert them once after the loop ({place})"
    return f"Make the slowest line of your loop cheaper ({place})"


def _remedy(e: Evidence) -> Remedy:
    steps = split_steps(e)
    text = "Make the steps of your loop faster."
    if steps is not None and _computes(e):
        less = _less(e)
        text = f"{less}."
        if steps.queued > steps.computing and taken_by_others(e):
            text = f"{less}, or free the cores that other programs use."
    return Remedy(text, more_workers=False, larger_window=False)


CONSUMER = Cause(
    name="consumer",
    takes={Part.STEPS: always},
    sentence=_sentence,
    short=lambda _e: "the loop itself",
    remedy=_remedy,
    by_settings=False,
)
CONSUMER_PYTHON = Cause(
    name="consumer_python",
    takes={Part.STEPS: _computes},
    sentence=_sentence,
    short=lambda _e: "the loop computes on the CPU",
    remedy=_remedy,
    by_settings=False,
)
