"""What is known for a line, in a few words for a verdict: from the code alone, nothing is tried."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from nbloader.metrics.hot_lines import HotLine
from nbloader.remedies.kinds import REMEDIES
from nbloader.remedies.site import locate

log = logging.getLogger(__name__)


def short_advice(line: HotLine, roots: Sequence[Any]) -> str:
    """Return what to do about a line; "" if nothing is known. Never raises.

    Args:
        line: The line.
        roots: The dataset and the collate function, from which the line's function is reachable.
    """
    try:
        site = locate(line, roots)
        if site is None:
            return ""
        return next((p.short for remedy in REMEDIES for p in remedy.propose(site) if p.short), "")
    except Exception:  # objects that other threads change, source code that nobody has foreseen
        log.debug("no remedy was looked for at %s", line.place, exc_info=True)
        return ""
