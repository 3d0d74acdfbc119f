"""What the browser gets of the dashboard; `frontend/live.py` serves it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import bokeh

from nbloader._util import palette
from nbloader.dashboard.panels import PANELS
from nbloader.frontend.live import Assets, with_base, with_helpers

HERE = Path(__file__).parent


def _panels() -> bytes:
    """A JSON object of JavaScript modules by the name of their panel."""
    return json.dumps({panel.name: panel.script().read_text("utf-8") for panel in PANELS}).encode()


@cache
def styles() -> str:
    """The style sheet. Colours come from the palette, which Python uses too."""
    colors = {"fetch", "collate", "reorder", "upload"}
    variables = "".join(f"--nbl-{name}: {palette.STAGES[name]}; " for name in sorted(colors))
    own = (HERE / "dashboard.css").read_text("utf-8")
    return f".nbl {{ {variables}--nbl-wait: {palette.WAIT}; }}\n" + with_base(own)


SOURCES: dict[str, Callable[[], bytes]] = {
    "code": lambda: with_helpers(HERE / "core.js"),
    "panels": _panels,
    "styles": lambda: styles().encode(),
    "bokeh": (Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js").read_bytes,
}
"""By name."""

ASSETS = Assets(SOURCES, large=frozenset({"bokeh"}), version=bokeh.__version__)
