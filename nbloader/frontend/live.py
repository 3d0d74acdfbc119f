"""The widget that a browser shows: its saved state is a stub that requests everything else from the kernel.

    stub.js -> {"kind": "asset", "name": ...} -> LiveWidget.serve -> the asset, gzipped, as a binary buffer
    view.js: the helpers of all views; it stands before the code of each of them, in one module

A saved notebook stays small, nothing comes from a CDN, and no port is opened.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import anywidget

from nbloader.frontend import comm

HERE = Path(__file__).parent


def with_helpers(*code: Path) -> bytes:
    """The module of a view: `view.js` and its own code.

    Args:
        code: Files, of which the last one exports `mount`.
    """
    return b"".join(path.read_bytes() for path in (HERE / "view.js", *code))


def with_base(styles: str) -> str:
    """The style sheet of a view, behind the styles that all views share."""
    return (HERE / "base.css").read_text("utf-8") + styles


class Assets:
    """What the browser may request of one kind of widget.

    Args:
        sources: By name; each returns the text of an asset. "code" and "styles" must be among them.
        large: Names of those that are compressed once and kept; the others are read anew, as their files may be edited.
        version: Changes with the assets in `large`.
    """

    def __init__(
        self, sources: Mapping[str, Callable[[], bytes]], *, large: frozenset[str] = frozenset(), version: str = ""
    ) -> None:
        self._sources = sources
        self._large = large
        self._version = version
        self._kept: dict[str, bytes] = {}

    def packed(self, name: str) -> bytes | None:
        """An asset, compressed; None if there is none of this name."""
        if name not in self._sources:
            return None
        if name not in self._large:
            return gzip.compress(self._sources[name](), 6)
        if name not in self._kept:
            self._kept[name] = gzip.compress(self._sources[name](), 6)
        return self._kept[name]

    @cached_property
    def _stub(self) -> str:
        return (HERE / "stub.js").read_text("utf-8")

    def stub(self) -> str:
        """The module in the widget's state. Its version changes with the assets, so that pages do not mix them."""
        small = [read() for name, read in self._sources.items() if name not in self._large]
        digest = hashlib.sha256(b"".join(small)).hexdigest()[:12]
        return self._stub.replace("__VERSION__", f"{digest}-{self._version}")


class LiveWidget(anywidget.AnyWidget):
    """What the browser displays. It has no state: everything travels in custom messages.

    Args:
        assets: What it may request.
        text: The constant text that stands for it.
    """

    def __init__(self, assets: Assets, text: str) -> None:
        self._esm = assets.stub()
        self._assets = assets
        self._text = text
        super().__init__()
        comm.adopt(self.comm)

    def __repr__(self) -> str:
        """The constant text."""
        return self._text

    def serve(self, message: Mapping[str, Any]) -> bool:
        """Send an asset, if the message requests one. Returns whether it does."""
        if message.get("kind") != "asset":
            return False
        packed = self._assets.packed(str(message.get("name")))
        if packed is not None:
            self.send({"kind": "asset", "name": message["name"]}, buffers=[packed])
        return True
