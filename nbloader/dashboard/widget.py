"""The live dashboard: one widget per loader, fed by a background thread.

    events -> wake the publisher -> Frame -> panels -> one small message per tick -> all views
    click -> message -> commands.py -> LoaderControl
    request of a panel's JavaScript half -> Panel.respond -> reply to that view

A message holds what is new: payloads of panels that changed, and news that was not sent before. The browser keeps the
history; a view that is opened later, as after a reload of the page, gets all of it once.

The saved state of the widget is a stub of a few lines. It requests its code, its styles and BokehJS from the kernel
when it is displayed, so that a saved notebook stays small, and nothing comes from a CDN.

Below the widget is a second output, a static form of the last state. It is hidden while the widget is alive, and it is
what a notebook without a kernel shows.
"""

from __future__ import annotations

import atexit
import collections
import logging
import statistics
import threading
import time
import uuid
import weakref
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, Any

from IPython import get_ipython

from nbloader._util.format import clean
from nbloader.dashboard import static
from nbloader.dashboard.assets import ASSETS
from nbloader.dashboard.commands import execute
from nbloader.dashboard.panels import PANELS, Frame, Panel
from nbloader.events import BatchRecord, EpochEnded, EpochStarted, Event, LoaderClosed
from nbloader.frontend import comm
from nbloader.frontend.live import LiveWidget
from nbloader.frontend.outputs import display, running_cell
from nbloader.metrics.hot_lines import HotLines

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl

log = logging.getLogger(__name__)

TEXT = "nbloader dashboard"
"""The plain-text form. It is constant, so that executed notebooks can be compared."""
TICK, SLOWEST_TICK = 0.25, 1.0
"""Seconds between two messages: at least, and at most, whatever they cost."""
SHARE = 0.0175
"""Share of one core that the publisher may use. If ticks cost more, as with many workers, they become rarer."""
LINES_INTERVAL = 1.0
"""Seconds for which the lines of code are not computed again."""
COSTS = 20
"""Ticks whose mean cost counts, so that a single slow one changes little."""
QUIET_TICKS = 8
"""After so many ticks without news from an idle loader the publisher sleeps until an event wakes it."""
STATIC_INTERVALS = (5.0, 60.0)
"""Seconds to the first static form of a running epoch, and between two: for kernels that die during it."""
WAITING_EVENTS = 20_000
"""Events that wait for the next tick at most; the oldest are dropped from the timeline and the log."""


class Dashboard:
    """The dashboard of one loader; `loader.dashboard()` creates and shows it.

    It holds the loader weakly. When the loader is closed or collected, the static form replaces the live view.

    Args:
        loader: The loader to watch.
    """

    def __init__(self, loader: LoaderControl) -> None:
        self.widget = LiveWidget(ASSETS, TEXT)
        self.widget.on_msg(self._on_message)
        self._name = uuid.uuid4().hex[:12]
        self._shown_in: str | None = None
        self._views: set[str] = set()

        self._panels: list[Panel] = [panel() for panel in PANELS]
        self._origin = time.perf_counter_ns()
        self._fresh: collections.deque[Event] = collections.deque(loader.events.recent(), maxlen=WAITING_EVENTS)
        self._state, self._now = "new", 0.0
        self._payloads: dict[str, Any] = {}
        self._news: dict[str, list[Any]] = {}  # not sent yet
        self._lines, self._lines_due = HotLines(), 0.0
        self._observe(loader)
        self._sent: dict[str, Any] = {}
        self._full_due = False
        self._costs: collections.deque[float] = collections.deque([0.0] * COSTS, maxlen=COSTS)
        self._static_due = True
        self._next_static = float("inf")
        self._lock = threading.Lock()
        """Held from observing the loader until what was observed is sent or drawn."""

        self._wake = threading.Event()
        self._ended = threading.Event()
        self._loader = weakref.ref(loader, lambda _ref: self._end())
        # Neither result is kept: they may hold the loader. Both end with it.
        loader.events.subscribe(self._on_event)
        loader.on_wait(comm.pump)
        self._thread = threading.Thread(target=self._publish, name=f"nbloader-dashboard-{self._name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        """The constant text."""
        return TEXT

    def _ipython_display_(self) -> None:
        if self._shown_in is None or self._shown_in != running_cell():
            self.show()

    def show(self) -> None:
        """Show the dashboard below the running cell, as one more view of it."""
        self._shown_in = running_cell()
        if self._ended.is_set():
            with self._lock:
                self._show_static("view")
            return
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        display(f"{self._name}-view", TEXT, {"application/vnd.jupyter.widget-view+json": view})
        with self._lock:
            self._show_static("static")

    # Incoming: on the thread that publishes the event, and on the main thread or a subshell of the kernel.

    def _on_event(self, event: Event) -> None:
        self._fresh.append(event)
        if type(event) is BatchRecord:
            return
        if isinstance(event, EpochStarted):
            self._next_static = time.monotonic() + STATIC_INTERVALS[0]
        elif isinstance(event, EpochEnded):
            self._static_due, self._next_static = True, float("inf")
        elif isinstance(event, LoaderClosed):
            self._end()
        self._wake.set()

    def _end(self) -> None:
        self._ended.set()
        self._wake.set()

    def _on_message(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        kind, view = message.get("kind"), message.get("view")
        if self.widget.serve(message):
            return
        if kind == "ready":
            self._views.add(str(view))
            self._full_due = True
            self._wake.set()
        elif kind == "gone":
            self._views.discard(str(view))
        elif kind == "request":  # may take longer than a click should: a stack, a trace, the import of Bokeh
            thread = threading.Thread(
                target=self._respond, args=(message,), daemon=True, name="nbloader-dashboard-request"
            )
            thread.start()
        elif kind == "command":
            self._command(message)

    def _command(self, message: dict[str, Any]) -> None:
        loader = self._loader()
        if loader is None or self._ended.is_set():
            return
        try:
            execute(loader, message)
            self._lines_due = 0.0
        except Exception as error:  # noqa: BLE001 - whatever the loader objects is shown to the user who clicked
            text = clean(f"{type(error).__name__}: {error}", 300)
            self.widget.send({"kind": "reply", "to": message.get("view"), "panel": "controls", "said": text})
        self._wake.set()

    def _respond(self, message: dict[str, Any]) -> None:
        loader = self._loader()
        panel = next((panel for panel in self._panels if panel.name == message.get("panel")), None)
        if loader is None or panel is None:
            return
        reply = panel.respond(message, loader)
        if reply is not None and not self._ended.is_set():
            content = {**reply.content, "kind": "reply", "to": message.get("view"), "panel": panel.name}
            self.widget.send(content, buffers=reply.buffers)

    # Outgoing: on the publisher's thread.

    def _publish(self) -> None:
        quiet = 0
        while True:
            self._wake.clear()
            ended = self._ended.is_set()
            began = time.monotonic()
            try:
                quiet = 0 if self._tick() else quiet + 1
            except Exception:  # a defect of the dashboard or of a panel: log it once, and leave the loader alone
                log.exception("the dashboard failed and was stopped")
                return
            if ended:
                break
            # The loader must not be held here, or waiting for it would keep it alive.
            if quiet >= QUIET_TICKS and self._state in ("new", "idle", "closed"):
                self._wake.wait()
            self._ended.wait(max(0.0, began + _interval(self._costs) - time.monotonic()))
        self._finish()

    def _tick(self) -> bool:
        """Send what is new.

        Returns:
            Whether there was anything to send.
        """
        began = time.thread_time()
        with self._lock:  # the main thread may be writing the static form, which observes too
            self._observe_if_alive()  # also without views: the plots are made of what was observed
            if self._views:
                sent = self._send()
            else:  # a view that is opened later gets the history
                sent = False
                self._news.clear()
        self._costs.append(time.thread_time() - began)
        if time.monotonic() > self._next_static:
            self._static_due, self._next_static = True, time.monotonic() + STATIC_INTERVALS[1]
        if self._static_due:
            self.write_static()
        return sent

    def _observe_if_alive(self) -> None:
        loader = self._loader()
        if loader is not None:
            self._observe(loader)

    def _observe(self, loader: LoaderControl) -> None:
        """Give all panels a new frame."""
        events = []
        while self._fresh:
            events.append(self._fresh.popleft())
        snapshot = loader.stats()
        frame = Frame(
            snapshot=snapshot,
            points=loader.points(),
            events=events,
            origin=self._origin,
            now=snapshot.now or time.perf_counter_ns(),
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            lines=self._hot_lines(loader),
        )
        self._state, self._now = snapshot.state, frame.ms(frame.now)
        payloads = {}
        for panel in self._panels:
            news = panel.news(frame)
            if news:
                self._news.setdefault(panel.name, []).extend(news)
            payloads[panel.name] = panel.payload(frame)
        self._payloads = payloads

    def _hot_lines(self, loader: LoaderControl) -> HotLines:
        """The lines that workers execute, as they were at most a second ago, and after the last command."""
        now = time.monotonic()
        if now >= self._lines_due:
            self._lines, self._lines_due = loader.hot_lines(), now + LINES_INTERVAL
        return self._lines

    def _send(self) -> bool:
        full, self._full_due = self._full_due, False
        news, self._news = self._news, {}
        if full:
            news = {panel.name: panel.history() for panel in self._panels}
        payloads = _changes({} if full else self._sent, self._payloads)
        if not (full or payloads or news):
            return False
        message: dict[str, Any] = {
            "kind": "full" if full else "tick",
            "now": self._now,
            "payloads": payloads,
            "news": news,
        }
        if full:
            panels = [{"name": p.name, "title": p.title, "unfolded": p.unfolded} for p in self._panels]
            message.update(id=self._name, panels=panels)
        self.widget.send(message)
        self._sent = self._payloads
        return True

    def write_static(self) -> None:
        """Put the static form of the last state into the notebook, for the time when the kernel is gone."""
        with self._lock:
            self._static_due = False
            self._observe_if_alive()
            self._show_static("static", update=True)

    def _show_static(self, slot: str, *, update: bool = False) -> None:
        html = static.html(self._name, (panel.html(self._payloads[panel.name]) for panel in self._panels))
        display(f"{self._name}-{slot}", TEXT, {"text/html": html}, update=update)

    def _finish(self) -> None:
        """Replace the live view by the static form: it would show an error once the kernel is gone."""
        with self._lock:
            self._static_due = False
            self._show_static("view", update=True)
            display(f"{self._name}-static", TEXT, {"text/html": ""}, update=True)
        self.widget.close()


def _interval(costs: Collection[float]) -> float:
    """Seconds from one message to the next.

    Args:
        costs: CPU time of the last ticks, seconds.
    """
    return min(max(TICK, statistics.fmean(costs) / SHARE), SLOWEST_TICK)


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The payloads that differ."""
    return {name: payload for name, payload in after.items() if name not in before or before[name] != payload}


_dashboards: weakref.WeakKeyDictionary[LoaderControl, Dashboard] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def dashboard_of(loader: LoaderControl) -> Dashboard:
    """The dashboard of a loader; the first call creates it."""
    with _lock:
        if loader not in _dashboards:
            _dashboards[loader] = Dashboard(loader)
            _write_static_in_time()
        return _dashboards[loader]


@cache
def _write_static_in_time() -> None:
    """Write static forms that are due before a cell ends, and before the kernel exits.

    A program that executes notebooks (nbconvert, papermill) records only what is displayed while a cell runs.
    """
    get_ipython().events.register("post_run_cell", _write_static)
    atexit.register(_write_static)


def _write_static(_result: object = None) -> None:
    for dashboard in list(_dashboards.values()):
        if dashboard._static_due and not dashboard._ended.is_set():
            dashboard.write_static()
