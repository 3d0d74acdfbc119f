"""The live dashboard: one widget per loader, fed by a background thread.

    events -> wake the publisher -> Feed -> one small message per tick -> all views
    click -> message -> commands.py -> LoaderControl
    request from a panel's JavaScript half -> Panel.respond -> reply to that view
    click on a sample or a batch -> loader.explore() or replay() -> id of an explorer, which that view shows

The saved state of the widget is a stub of a few lines. When the widget is displayed, the stub requests the code, the
styles and BokehJS from the kernel, so that a saved notebook stays small and nothing comes from a CDN.

Below the widget is a second output with a static form of the last state. It is hidden while the widget is alive. A
notebook without a kernel shows it. A page that does not answer shows it, too: then it says so, and the loop's own
thread writes it every two seconds, because some front ends ignore what other threads display.
"""

from __future__ import annotations

import atexit
import threading
import time
import uuid
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

from IPython import get_ipython

from nbloader._util.format import clean
from nbloader._util.threads import daemon
from nbloader.dashboard import static
from nbloader.dashboard.assets import ASSETS
from nbloader.dashboard.commands import execute
from nbloader.dashboard.feed import Feed
from nbloader.dashboard.publisher import Publisher
from nbloader.events import BatchRecord, EpochEnded, EpochStarted, Event, LoaderClosed
from nbloader.frontend import comm
from nbloader.frontend.live import LiveWidget
from nbloader.frontend.outputs import display, display_widget, html_for_marimo, running_cell
from nbloader.frontend.silence import Silence, advice
from nbloader.metrics.snapshot import ENDED

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl, SampleView

TEXT = "nbloader dashboard"
"""The plain-text form. It is constant, so that executed notebooks can be compared."""
STATIC_INTERVALS = (5.0, 60.0)
"""Seconds until the first static form of a running epoch, and between later ones, in case the kernel dies."""
SILENT_INTERVAL = 2.0
"""Seconds between two static forms while a loop takes batches and the page does not answer."""
CLOSING_SECONDS = 2.0
"""Maximum time, in seconds, that a cell that closes a loader waits for the static form to replace the live view."""

CALLS = (
    "Until then, this view is refreshed every 2 s while a loop takes batches. These calls do in a cell what the"
    " buttons would do (interrupt the running cell first): <code>loader.restart_workers()</code>,"
    " <code>loader.pause()</code>, <code>loader.step()</code>, <code>loader.resume()</code>,"
    ' <code>loader.num_workers = 4</code>. With <code>DataLoader(..., timeout=60, on_timeout="restart")</code>,'
    " workers that hang are restarted without a click."
)
"""What to use in place of the live view, as HTML."""


class Dashboard:
    """The dashboard of one loader; `loader.dashboard()` creates and shows it.

    It holds a weak reference to the loader. When the loader is closed or garbage-collected, the static form replaces
    the live view.

    Args:
        loader: The loader to watch.
    """

    def __init__(self, loader: LoaderControl) -> None:
        self.widget = LiveWidget(ASSETS, TEXT)
        self.widget.on_msg(self._on_message)
        self._name = uuid.uuid4().hex[:12]
        self._shown_in: str | None = None
        self._views: set[str] = set()
        self._explorers: dict[str, SampleView] = {}
        """The explorer that each view opened last."""

        self._feed = Feed(loader)
        self._full_due = False
        self._static_due = True
        self._next_static = float("inf")
        self._silence = Silence()
        self._next_silent = 0.0
        self._lock = threading.Lock()
        """Held from an observation of the loader until the result has been sent or drawn."""

        # A strong reference would keep the loader alive while the publisher waits.
        self._loader = weakref.ref(loader, lambda _ref: self._publisher.end())
        self._publisher = Publisher(
            f"nbloader-dashboard-{self._name}",
            tick=self._tick,
            idle=lambda: self._feed.snapshot.state in ("new", *ENDED),
            afterwards=self._write_static_if_due,
            finish=self._finish,
        )
        for panel in self._feed.panels:
            panel.changed = self._publisher.wake
        # The return values are not kept, because they may hold the loader. Both registrations end with the loader.
        loader.events.subscribe(self._on_event)
        loader.on_wait(self._in_the_loop)
        self._publisher.start()

    def __repr__(self) -> str:
        """Return the constant text."""
        return TEXT

    def _ipython_display_(self) -> None:
        if self._shown_in is None or self._shown_in != running_cell():
            self.show()

    def _display_(self) -> Any:
        """Return what marimo shows for the last line of a cell."""
        if self._publisher.ended:
            with self._lock:
                return html_for_marimo(self._static_html())
        self.widget.reopen()
        return self.widget

    def show(self) -> None:
        """Show a view of the dashboard below the running cell."""
        self._shown_in = running_cell()
        if self._publisher.ended:
            with self._lock:
                self._show_static("view")
            return
        self.widget.reopen()
        display_widget(f"{self._name}-view", TEXT, self.widget)
        self._silence.shown(self.write_static)
        with self._lock:
            self._show_static("static")

    # On the thread that takes batches.

    def _in_the_loop(self) -> None:
        """Handle clicks while the cell is busy. If the page does not answer, write the static form now and then."""
        comm.pump()
        self._silence.looked(closed=self.widget.closed)
        if self._silence.noticed and time.monotonic() >= self._next_silent and not self._publisher.ended:
            self.write_static()
            self._next_silent = time.monotonic() + SILENT_INTERVAL

    # Incoming: on the thread that publishes the event, and on the main thread or a subshell of the kernel.

    def _on_event(self, event: Event) -> None:
        self._feed.note(event)
        if type(event) is BatchRecord:
            return
        if isinstance(event, EpochStarted):
            self._next_static = time.monotonic() + STATIC_INTERVALS[0]
        elif isinstance(event, EpochEnded):
            self._static_due, self._next_static = True, float("inf")
        elif isinstance(event, LoaderClosed):
            self._publisher.end()
        self._publisher.wake()

    def _on_message(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        kind, view = message.get("kind"), message.get("view")
        if self._silence.heard():
            self._static_due = True
            self._publisher.wake()
        if kind == "ready":
            self._views.add(str(view))
            self._full_due = True
            self._publisher.wake()
        elif kind == "gone":
            self._views.discard(str(view))
            self._close_explorer(str(view))
        elif kind == "explore":
            self._explore(message)
        elif kind == "close_explorer":
            self._close_explorer(str(view))
        elif kind == "request":  # on a thread, because it may be slow: a stack, a trace, the import of Bokeh
            daemon(self._respond, message, name="nbloader-dashboard-request").start()
        elif kind == "command":
            self._command(message)

    def _command(self, message: dict[str, Any]) -> None:
        loader = self._loader()
        if loader is None or self._publisher.ended:
            return
        try:
            execute(loader, message)
            self._feed.expect_lines()
        except Exception as error:  # noqa: BLE001 - whatever the loader raises is shown to the user who clicked
            text = clean(f"{type(error).__name__}: {error}", 300)
            self.widget.send({"kind": "reply", "to": message.get("view"), "panel": "controls", "said": text})
        self._publisher.wake()

    def _respond(self, message: dict[str, Any]) -> None:
        loader = self._loader()
        panel = next((panel for panel in self._feed.panels if panel.name == message.get("panel")), None)
        if loader is None or panel is None:
            return
        reply = panel.respond(message, loader)
        if reply is not None and not self._publisher.ended:
            content = {**reply.content, "kind": "reply", "to": message.get("view"), "panel": panel.name}
            self.widget.send(content, buffers=reply.buffers)

    def _explore(self, message: dict[str, Any]) -> None:
        """Open a sample or a batch in an explorer, which the view shows below the panels."""
        loader, view = self._loader(), str(message.get("view"))
        if loader is None or self._publisher.ended:
            return
        reply: dict[str, Any] = {"kind": "explorer", "to": view}
        try:
            if "batch" in message:
                explorer = loader.replay(int(message["epoch"]), int(message["batch"])).explore()
            else:
                explorer = loader.explore()
                explorer.open(int(message["index"]))
        except Exception as error:  # noqa: BLE001 - as with commands: whatever the loader or a dataset raises
            self.widget.send({**reply, "said": clean(f"{type(error).__name__}: {error}", 400)})
            return
        self._close_explorer(view)
        self._explorers[view] = explorer
        self.widget.send({**reply, "model": explorer.widget.model_id})

    def _close_explorer(self, view: str) -> None:
        explorer = self._explorers.pop(view, None)
        if explorer is not None:  # on a thread, because its workers get half a second to end
            daemon(explorer.close, name="nbloader-dashboard-explorer").start()

    # Outgoing: on the publisher's thread.

    def _tick(self) -> bool:
        """Send what is new.

        Returns:
            Whether there was anything to send.
        """
        with self._lock:  # the main thread may be writing the static form and observing the loader
            self._observe_if_alive()  # even without views: the plots need the observations
            if self._views:
                return self._send()
            self._feed.news.clear()  # a view that is opened later receives the history
            return False

    def _write_static_if_due(self) -> None:
        if time.monotonic() > self._next_static:
            self._static_due, self._next_static = True, time.monotonic() + STATIC_INTERVALS[1]
        if self._static_due and not self._silence.noticed:  # else the loop or the end of the cell writes it
            self.write_static()

    def _observe_if_alive(self) -> None:
        loader = self._loader()
        if loader is not None:
            self._feed.observe(loader)

    def _send(self) -> bool:
        full, self._full_due = self._full_due, False
        message = self._feed.full() | {"id": self._name} if full else self._feed.tick()
        if message is None:
            return False
        self.widget.send(message)
        return True

    def write_static(self) -> None:
        """Write the static form of the latest state into the notebook, for when the kernel is gone."""
        with self._lock:
            self._static_due = False
            self._observe_if_alive()
            self._show_static("static", update=True)

    def _show_static(self, slot: str, *, update: bool = False) -> None:
        display(f"{self._name}-{slot}", TEXT, {"text/html": self._static_html()}, update=update)

    def _static_html(self) -> str:
        silent = self._silence.noticed and not self._publisher.ended
        notice = advice("dashboard", "loader.dashboard()", CALLS) if silent else ""
        panels = (panel.html(self._feed.payloads[panel.name]) for panel in self._feed.panels)
        return static.html(self._name, panels, notice)

    def _finish(self) -> None:
        """Replace the live view with the static form: the live view would show an error once the kernel is gone."""
        with self._lock:
            self._static_due = False
            self._show_static("view", update=True)
            display(f"{self._name}-static", TEXT, {"text/html": ""}, update=True)
        for view in list(self._explorers):
            self._close_explorer(view)
        self.widget.close()


_dashboards: weakref.WeakKeyDictionary[LoaderControl, Dashboard] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def dashboard_of(loader: LoaderControl) -> Dashboard:
    """Return the dashboard of a loader, which the first call creates."""
    with _lock:
        if loader not in _dashboards:
            _dashboards[loader] = Dashboard(loader)
            _write_static_in_time()
        return _dashboards[loader]


@cache
def _write_static_in_time() -> None:
    """Register hooks that write pending static forms at the end of each cell and before the kernel exits.

    A program that executes notebooks (nbconvert, papermill) records only what is displayed while a cell runs. A cell
    that closes a loader therefore waits until the static form has replaced the live view.
    """
    shell = get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", _write_static)
    atexit.register(_write_static)


def _write_static(_result: object = None) -> None:
    for dashboard in list(_dashboards.values()):
        if dashboard._publisher.ended:
            dashboard._publisher.thread.join(CLOSING_SECONDS)
        elif dashboard._static_due or dashboard._silence.noticed:
            dashboard.write_static()
