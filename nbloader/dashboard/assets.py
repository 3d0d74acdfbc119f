"""What the browser gets: a stub that is saved with the notebook, and the assets that the stub requests."""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from pathlib import Path

import bokeh

from nbloader._util import palette
from nbloader.dashboard.panels import PANELS

HERE = Path(__file__).parent
NAMES = ("code", "panels", "styles", "bokeh")
"""Assets that can be requested."""


def read(name: str) -> bytes:
    """One of the assets in `NAMES`; "panels" is a JSON object of JavaScript modules by name."""
    if name == "code":
        return (HERE / "core.js").read_bytes()
    if name == "panels":
        return json.dumps({panel.name: panel.script().read_text("utf-8") for panel in PANELS}).encode()
    if name == "styles":
        return styles().encode()
    return (Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js").read_bytes()


def packed(name: str) -> bytes:
    """An asset, compressed."""
    return _bokeh() if name == "bokeh" else gzip.compress(read(name), 6)


@cache
def _bokeh() -> bytes:
    return gzip.compress(read("bokeh"), 6)


@cache
def styles() -> str:
    """The style sheet. Colours come from the palette, which Python uses too."""
    colors = {"fetch", "collate", "reorder", "upload"}
    variables = "".join(f"--nbl-{name}: {palette.STAGES[name]}; " for name in sorted(colors))
    return f".nbl {{ {variables}--nbl-wait: {palette.WAIT}; }}\n" + (HERE / "dashboard.css").read_text("utf-8")


def stub() -> str:
    """The module in the widget's state. Its version changes with the assets, so that pages do not mix them."""
    digest = hashlib.sha256(b"".join(read(name) for name in ("code", "panels", "styles"))).hexdigest()[:12]
    return (HERE / "stub.js").read_text("utf-8").replace("__VERSION__", f"{digest}-{bokeh.__version__}")
