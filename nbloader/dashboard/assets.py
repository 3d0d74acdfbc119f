"""Code and styles of the dashboard for the browser; `frontend/live.py` serves them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import bokeh

from nbloader._util import palette
from nbloader.dashboard.panels import PANELS
from nbloader.frontend import scripted
from nbloader.frontend.live import Assets, with_base, with_helpers

HERE = Path(__file__).parent


@cache
def styles() -> str:
    """Return the style sheet. Its colours come from the palette that the Python code uses too."""
    colors = {"fetch", "collate", "reorder", "upload"}
    variables = "".join(f"--nbl-{name}: {palette.STAGES[name]}; " for name in sorted(colors))
    own = (HERE / "dashboard.css").read_text("utf-8")
    return f".nbl {{ {variables}--nbl-wait: {palette.WAIT}; }}\n" + with_base(own)


SOURCES: dict[str, Callable[[], bytes]] = {
    "code": lambda: with_helpers(HERE / "core.js"),
    "panels": lambda: scripted.sources(PANELS),
    "styles": lambda: styles().encode(),
    "bokeh": (Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js").read_bytes,
}
"""Functions that return the content of each asset, by name."""

ASSETS = Assets(SOURCES, large=frozenset({"bokeh"}), version=bokeh.__version__)
