"""Code and styles of the explorer for the browser; `frontend/live.py` serves them."""

from __future__ import annotations

from pathlib import Path

from nbloader.explorer.kinds import KINDS
from nbloader.frontend import scripted
from nbloader.frontend.live import Assets, with_base, with_helpers

HERE = Path(__file__).parent


def styles() -> str:
    """Return the style sheet."""
    return with_base((HERE / "explorer.css").read_text("utf-8"))


TEXT = "nbloader explorer"
"""The plain-text form of a widget. It is constant, so that executed notebooks can be compared."""

ASSETS = Assets(
    {
        "code": lambda: with_helpers(
            HERE / "drawing.js", HERE / "confusion.js", HERE / "statistics.js", HERE / "explorer.js"
        ),
        "kinds": lambda: scripted.sources(KINDS),
        "styles": lambda: styles().encode(),
    }
)
