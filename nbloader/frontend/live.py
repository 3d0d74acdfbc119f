"""A widget whose saved state is only a stub, which requests everything else from the kernel.

    stub.js -> {"kind": "asset", "name": ...} -> LiveWidget -> the asset, gzipped, as a binary buffer
    view.js: helpers that all views share; prepended to the code of each view, in the same module

The page requests the assets as soon as the widget exists, which may be before it is shown. A saved notebook stays
small, nothing comes from a CDN, and no port is opened.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import anywidget

from nbloader.frontend import comm

HERE = Path(__file__).parent


def with_helpers(*code: Path) -> bytes:
    """Return the JavaScript module of a view: `view.js`, followed by the code of the view.

    Args:
        code: The files of the view. The last one exports `mount`.
    """
    return b"".join(path.read_bytes() for path in (HERE / "view.js", *code))


def with_base(styles: str) -> str:
    """Return the style sheet of a view: the styles that all views share, followed by those of the view."""
    return (HERE / "base.css").read_text("utf-8") + styles


class Assets:
    """The files that the browser may request for one kind of widget.

    Args:
        sources: Functions that return the content of an asset, keyed by its name. "code" and "styles" are required.
        large: Names of assets to compress once and keep. The others are read for each request, since a developer may
            edit their files.
        version: A string that changes whenever an asset in `large` changes.
    """

    def __init__(
        self, sources: Mapping[str, Callable[[], bytes]], *, large: frozenset[str] = frozenset(), version: str = ""
    ) -> None:
        self._sources = sources
        self._large = large
        self._version = version
        self._kept: dict[str, bytes] = {}

    def packed(self, name: str) -> bytes | None:
        """Return a compressed asset; None if there is no asset of this name."""
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
        """Return the module in the widget's state. Its version changes with the assets, so pages never mix them."""
        small = [read() for name, read in self._sources.items() if name not in self._large]
        digest = hashlib.sha256(b"".join(small)).hexdigest()[:12]
        names = [name for name in self._sources if name not in self._large]
        return self._stub.replace("__VERSION__", f"{digest}-{self._version}").replace("__FILES__", json.dumps(names))


class LiveWidget(anywidget.AnyWidget):
    """The widget that the browser displays. It has no state but the stub: all data is sent in custom messages.

    Args:
        assets: The assets that the browser may request.
        text: The constant text to show as the widget's `repr`.
    """

    def __init__(self, assets: Assets, text: str) -> None:
        self._esm = assets.stub()
        self._assets = assets
        self._text = text
        super().__init__()
        self.on_msg(_serve)
        comm.adopt(self.comm)

    def __repr__(self) -> str:
        """Return the constant text."""
        return self._text

    @property
    def closed(self) -> bool:
        """Whether the comm was closed: here, by a page that has no widgets, or by marimo when the cell runs again."""
        opened: Any = self.comm
        return opened is None or bool(getattr(opened, "_closed", False))

    def reopen(self) -> None:
        """Open the comm again if something else has closed it. The id of the model stays the same."""
        if self.closed:
            self.comm = None
            self.open()
            comm.adopt(self.comm)

    def serve(self, name: str) -> None:
        """Send an asset to the browser, if there is one of this name."""
        packed = self._assets.packed(name)
        if packed is not None:
            self.send({"kind": "asset", "name": name}, buffers=[packed])


def _serve(widget: LiveWidget, message: Mapping[str, Any], _buffers: object) -> None:
    if message.get("kind") == "asset":
        widget.serve(str(message.get("name")))
