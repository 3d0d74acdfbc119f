"""The live dashboard: one widget per loader, fed from a background thread.

    events -> wake the publisher -> loader.stats(), loader.points() -> one small message per tick -> all views
    click -> message -> LoaderControl.restart_workers, pause, resume

The widget's saved state is a stub of a few lines. It asks the kernel for its code, its styles and BokehJS when it is
shown, so that a saved notebook stays small whatever a front end keeps of its widgets, and nothing comes from a CDN.

Below the widget stands a second output, a picture of the last state. It is hidden while the widget lives, and is what
a notebook without its kernel shows.
"""

from __future__ import annotations

import atexit
import bisect
import contextlib
import gzip
import hashlib
import logging
import threading
import time
import uuid
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import bokeh
from IPython import get_ipython
from IPython.display import publish_display_data

from nbloader.dashboard import comm, picture, plots
from nbloader.dashboard.payload import WORKER_COLUMNS, columns_of, view_of
from nbloader.events import BatchRecord, EpochEnded, EpochStarted, Event, LoaderClosed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbloader.control import LoaderControl
    from nbloader.stats import Point

log = logging.getLogger(__name__)

TICK = 0.25
"""Seconds between two messages, at least."""
QUIET_TICKS = 8
"""After so many ticks without news from an idle loader the publisher sleeps until something wakes it."""
PICTURE_INTERVALS = (5.0, 60.0)
"""Seconds to the first picture of a running epoch, and from one to the next: for kernels that die in the middle."""
TEXT = "nbloader dashboard"
"""The text form, the same whatever the loader does, so that notebooks can be compared."""

_HERE = Path(__file__).parent
_ASSETS = {
    "code": _HERE / "dashboard.js",
    "styles": _HERE / "dashboard.css",
    "bokeh": Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js",
}


@cache
def _asset(name: str) -> bytes:
    return gzip.compress(_ASSETS[name].read_bytes(), 6)


@cache
def _stub() -> str:
    digest = hashlib.sha256(_ASSETS["code"].read_bytes() + _ASSETS["styles"].read_bytes()).hexdigest()[:12]
    return (_HERE / "stub.js").read_text("utf-8").replace("__VERSION__", f"{digest}-{bokeh.__version__}")


class DashboardWidget(anywidget.AnyWidget):
    """What the browser shows. It has no state: everything travels in custom messages."""

    def __init__(self) -> None:
        self._esm = _stub()
        super().__init__()
        comm.adopt(self.comm)

    def __repr__(self) -> str:
        """Give the constant text."""
        return TEXT


class Dashboard:
    """The dashboard of one loader; `loader.dashboard()` makes and shows it.

    It holds the loader weakly. When the loader is closed or collected, the live view gives way to a static picture.

    Args:
        loader: What to watch.
    """

    def __init__(self, loader: LoaderControl) -> None:
        self.widget = DashboardWidget()
        self.widget.on_msg(self._on_message)
        self._name = uuid.uuid4().hex[:12]
        self._shown_in: str | None = None
        self._views: set[str] = set()

        self._view: dict[str, Any] = view_of(loader.stats())
        self._points: Sequence[Point] = loader.points()
        self._sent_view: dict[str, Any] | None = None
        self._sent_until = float("-inf")
        self._full_due = False
        self._picture_due = True
        self._next_picture = float("inf")
        self._lock = threading.Lock()

        self._wake = threading.Event()
        self._ended = threading.Event()
        self._loader = weakref.ref(loader, lambda _ref: self._end())
        # Neither result is kept: they may hold the loader. Both end with it.
        loader.events.subscribe(self._on_event)
        loader.on_wait(comm.pump)
        self._thread = threading.Thread(target=self._publish, name=f"nbloader-dashboard-{self._name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        """Give the constant text."""
        return TEXT

    def _ipython_display_(self) -> None:
        if self._shown_in is None or self._shown_in != _cell():
            self.show()

    def show(self) -> None:
        """Show the dashboard below the running cell, as one more view of it."""
        self._shown_in = _cell()
        if self._ended.is_set():
            self._show_picture("view")
            return
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        _display(f"{self._name}-view", {"application/vnd.jupyter.widget-view+json": view})
        self._show_picture("picture")

    # What comes in: on the thread that publishes the event, and on the main thread or one of the kernel's subshells.

    def _on_event(self, event: Event) -> None:
        if type(event) is BatchRecord:
            return
        if isinstance(event, EpochStarted):
            self._next_picture = time.monotonic() + PICTURE_INTERVALS[0]
        elif isinstance(event, EpochEnded):
            self._picture_due, self._next_picture = True, float("inf")
        elif isinstance(event, LoaderClosed):
            self._end()
        self._wake.set()

    def _end(self) -> None:
        self._ended.set()
        self._wake.set()

    def _on_message(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        kind = message.get("kind")
        if kind == "asset" and message.get("name") in _ASSETS:
            name = message["name"]
            self.widget.send({"kind": "asset", "name": name}, buffers=[_asset(name)])
        elif kind == "ready":
            self._views.add(str(message.get("view")))
            self._full_due = True
            self._wake.set()
        elif kind == "gone":
            self._views.discard(str(message.get("view")))
        elif kind == "command":
            self._command(message)

    def _command(self, message: dict[str, Any]) -> None:
        loader = self._loader()
        if loader is None or self._ended.is_set():
            return
        name, worker = message.get("name"), message.get("worker")
        if name == "restart":
            loader.restart_workers(None if worker is None else [int(worker)])
        elif name == "pause":
            loader.pause()
        elif name == "resume":
            loader.resume()
        self._wake.set()

    # What goes out: on the publisher's thread.

    def _publish(self) -> None:
        quiet = 0
        while True:
            self._wake.clear()
            ended = self._ended.is_set()
            began = time.monotonic()
            try:
                quiet = 0 if self._tick() else quiet + 1
            except Exception:  # a dashboard that fails must say so in the log, once, and leave the loader alone
                log.exception("the dashboard failed and was stopped")
                return
            if ended:
                break
            # The loader must not be held here, or waiting for it would keep it alive.
            if quiet >= QUIET_TICKS and self._view["state"] in ("new", "idle", "closed"):
                self._wake.wait()
            self._ended.wait(max(0.0, began + TICK - time.monotonic()))
        self._finish()

    def _tick(self) -> bool:
        """Send what is new.

        Returns:
            Whether there was anything to send.
        """
        self._look()  # also when nobody looks: the plots are made of what was seen
        news = bool(self._views) and self._send()
        if time.monotonic() > self._next_picture:
            self._picture_due, self._next_picture = True, time.monotonic() + PICTURE_INTERVALS[1]
        if self._picture_due:
            self.write_picture()
        return news

    def _look(self) -> None:
        loader = self._loader()
        if loader is not None:
            self._view, self._points = view_of(loader.stats()), loader.points()

    def _send(self) -> bool:
        full, self._full_due = self._full_due, False
        start = 0 if full else bisect.bisect_right(self._points, self._sent_until, key=lambda p: p.time)
        if not full and start == len(self._points) and self._view == self._sent_view:
            return False
        message: dict[str, Any] = {
            "kind": "full" if full else "tick",
            "view": self._view,
            "points": columns_of(self._points[start:]),
        }
        if full:
            message.update(id=self._name, plots=plots.describe(), columns=WORKER_COLUMNS)
        self.widget.send(message)
        self._sent_view = self._view
        if self._points:
            self._sent_until = self._points[-1].time
        return True

    def write_picture(self) -> None:
        """Put a picture of the last state into the notebook, for the time when the kernel is gone."""
        with self._lock:
            self._picture_due = False
            self._look()
            self._show_picture("picture", update=True)

    def _show_picture(self, slot: str, *, update: bool = False) -> None:
        html = picture.html(self._name, self._view, columns_of(self._points))
        _display(f"{self._name}-{slot}", {"text/html": html}, update=update)

    def _finish(self) -> None:
        """Replace the live view by the picture: it would show an error once the kernel is gone."""
        with self._lock:
            self._picture_due = False
            self._show_picture("view", update=True)
            _display(f"{self._name}-picture", {"text/html": ""}, update=True)
        self.widget.close()


def _display(display_id: str, data: dict[str, Any], *, update: bool = False) -> None:
    with contextlib.suppress(ValueError, OSError):  # the kernel's channels are closed: nobody would see it
        publish_display_data(  # type: ignore[no-untyped-call]
            {**data, "text/plain": TEXT}, transient={"display_id": display_id}, update=update
        )


_dashboards: weakref.WeakKeyDictionary[LoaderControl, Dashboard] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def dashboard_of(loader: LoaderControl) -> Dashboard:
    """Give the dashboard of a loader; the first call makes it."""
    with _lock:
        if loader not in _dashboards:
            _dashboards[loader] = Dashboard(loader)
            _write_pictures_in_time()
        return _dashboards[loader]


@cache
def _write_pictures_in_time() -> None:
    """Write pictures that are due before a cell ends, and before the kernel does.

    A program that runs notebooks (nbconvert, papermill) takes only what is displayed while a cell runs.
    """
    get_ipython().events.register("post_run_cell", _write_pictures)
    atexit.register(_write_pictures)


def _write_pictures(_result: object = None) -> None:
    for dashboard in list(_dashboards.values()):
        if dashboard._picture_due and not dashboard._ended.is_set():
            dashboard.write_picture()


def _cell() -> str | None:
    """Give the id of the message that runs the current cell."""
    kernel = getattr(get_ipython(), "kernel", None)
    header = kernel.get_parent("shell").get("header", {}) if kernel is not None else {}
    message_id: str | None = header.get("msg_id")
    return message_id
