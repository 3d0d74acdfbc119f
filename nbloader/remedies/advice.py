"""What is known for a line, in a few words for a verdict: from the code alone, nothing is tried."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from nbloader.device.placement import accelerator_type
from nbloader.metrics.hot_lines import HotLine
from nbloader.remedies.kept_samples import calls_kept, is_filled
from nbloader.remedies.kinds import REMEDIES
from nbloader.remedies.results import Remedies
from nbloader.remedies.site import locate

log = logging.getLogger(__name__)


class Advice(NamedTuple):
    """What is known for a line."""

    remedy: str = ""
    """What makes it cheaper; "" if nothing is known."""
    shorter_wait: str = ""
    """What also shortens its waits; "" if nothing is known."""
    is_kept: bool = False
    """Whether a cache keeps what it computes."""
    remedy_place: str = ""
    """Where to change something; "" if it is at the line itself."""
    is_tried: bool = False
    """Whether remedies were tried on samples."""


def tried_advice(found: Remedies) -> Advice:
    """Return what gains most of what was tried."""
    best = next((one for one in found if one.samples), None)
    if best is None:
        return Advice(is_tried=True)
    return Advice(best.proposal.short, best.proposal.short, remedy_place=best.line.place, is_tried=True)


def short_advice(line: HotLine, roots: Sequence[Any]) -> Advice:
    """Return what to do about a line. Never raises.

    Args:
        line: The line.
        roots: The dataset and the collate function, from which the line's function is reachable.
    """
    try:
        site = locate(line, roots)
        if site is None or site.is_kept:
            return Advice(is_kept=site is not None)
        if calls_kept(site) and not is_filled():
            return Advice(is_kept=True)
        every = [p for remedy in REMEDIES for p in remedy.propose(site)]
        proposals = [] if any(p.alone for p in every) else [p for p in every if p.short and p.is_certain and p.is_valid]
        if any(p.loop for p in proposals) and not accelerator_type():
            proposals = [p for p in proposals if not p.loop]  # the loop's CPU may lose more than the workers save
        return Advice(
            next((p.short for p in proposals), ""), next((p.short for p in proposals if p.shortens_waits), "")
        )
    except Exception:  # objects that other threads change, source code that nobody has foreseen
        log.debug("no remedy was looked for at %s", line.place, exc_info=True)
        return Advice()
