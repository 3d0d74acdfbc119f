"""What the browser is given: the stub that a saved notebook keeps, and what the stub asks the kernel for."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

import bokeh

_HERE = Path(__file__).parent
ASSETS = {
    "code": [
        _HERE / f"{name}.js" for name in ("page", "head", "path", "timeline", "table", "charts", "lists", "dashboard")
    ],
    "styles": [_HERE / "dashboard.css"],
    "bokeh": [Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"],
}
"""What the browser asks for; several files are one after the other."""


def _read(name: str) -> bytes:
    return b"\n".join(path.read_bytes() for path in ASSETS[name])


@cache
def packed(name: str) -> bytes:
    """One of `ASSETS`, compressed."""
    return gzip.compress(_read(name), 6)


@cache
def stub() -> str:
    """The module that the widget's state holds."""
    digest = hashlib.sha256(_read("code") + _read("styles")).hexdigest()[:12]
    return (_HERE / "stub.js").read_text("utf-8").replace("__VERSION__", f"{digest}-{bokeh.__version__}")
