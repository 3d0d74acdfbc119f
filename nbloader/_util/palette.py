"""Colors of stages and states, shared by reports, plots and the dashboard.

People with color vision deficiency can tell them apart, and they are visible on light and dark backgrounds. No
information is conveyed by color alone.
"""

from __future__ import annotations

STAGES = {
    "queue": "#8d99a8",
    "fetch": "#3b8fd6",
    "collate": "#1a9e77",
    "transport": "#c76bb0",
    "transfer": "#2bb3b8",
    "reorder": "#e08a1e",
    "ready": "#7cc4ee",
    "pin": "#c79af0",
    "upload": "#8a66e8",
    "step": "#a8a03c",
}
WAIT = "#d1573a"
"""The training loop is waiting for a batch."""
LOST = "#b0306a"
"""Work lost because the worker ended before it had produced the batch."""
STATES = {
    "idle": "#8d99a8",
    "starting": STAGES["transport"],
    "fetching": STAGES["fetch"],
    "collating": STAGES["collate"],
    "sending": STAGES["transport"],
    "dead": "#c93c3c",
}
"""Colors of the states of a worker."""
GOOD = "#1a9e77"
"""The loader keeps up."""
BAD = "#c93c3c"
"""A fault."""
OTHER = "#8d99a8"
"""Any other state or cause."""
_NO_CAUSES = ("", "new", "closed", "paused", "starting", "idle", "unknown")


def cause_color(cause: str) -> str:
    """Return the color of a value of `Snapshot.cause`."""
    if cause in ("consumer", "consumer_python"):
        return GOOD
    if cause == "worker":
        return BAD
    return OTHER if cause in _NO_CAUSES else STAGES["reorder"]
