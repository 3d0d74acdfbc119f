"""The live dashboard: one widget per loader, fed from a background thread.

    events -> wake the publisher -> loader.stats(), loader.points() -> one small message per tick -> all views
    click -> message -> commands.py -> LoaderControl

A message holds what is new: sections of the view that changed, rows of workers that changed, points, spans of the
timeline and lines of the log that were not sent before. The browser keeps the history; a view that comes later, as
after a reload of the page, gets all of it once.

The widget's saved state is a stub of a few lines. It asks the kernel for its code, its styles and BokehJS when it is
shown, so that a saved notebook stays small whatever a front end keeps of its widgets, and nothing comes from a CDN.

Below the widget stands a second output, a picture of the last state. It is hidden while the widget lives, and is what
a notebook without its kernel shows.
"""

from __future__ import annotations

import atexit
import bisect
import collections
import gzip
import itertools
import logging
import statistics
import threading
import time
import uuid
import weakref
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import anywidget
from IPython import get_ipython

from nbloader._util.format import clean
from nbloader._util.system import cores
from nbloader.dashboard import comm, picture, plots
from nbloader.dashboard.assets import ASSETS, packed, stub
from nbloader.dashboard.commands import carry_out
from nbloader.dashboard.outputs import TEXT, cell, display
from nbloader.dashboard.payload import WORKER_COLUMNS, columns_of, view_of
from nbloader.dashboard.spans import SECONDS, Spans
from nbloader.events import BatchRecord, EpochEnded, EpochStarted, Event, LoaderClosed
from nbloader.events.pauses import Pauses
from nbloader.metrics.stage_times import back
from nbloader.report.eventlog import line_of
from nbloader.report.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from nbloader.metrics.control import LoaderControl
    from nbloader.metrics.snapshot import Point

log = logging.getLogger(__name__)

TICK, SLOWEST_TICK = 0.25, 1.0
"""Seconds between two messages, at least; and at most, whatever they cost."""
SHARE = 0.0175
"""Share of a core that looking and telling may take: where a look at many workers costs more, looks are rarer."""
COSTS = 20
"""Looks whose mean cost counts: a single one that is slow changes little, and what comes now and then is in it."""
QUIET_TICKS = 8
"""After so many ticks without news from an idle loader the publisher sleeps until something wakes it."""
PICTURE_INTERVALS = (5.0, 60.0)
"""Seconds to the first picture of a running epoch, and from one to the next: for kernels that die in the middle."""
MOST_WORKERS = max(8, 2 * cores())
"""Where the slider for workers ends, at least."""
STACK_LINES = 200
LINES = 300
"""Lines of the log that are kept."""
WAITING_EVENTS = 20_000
"""Events that wait for the next message at most; the oldest are left out of the timeline and the log."""


class DashboardWidget(anywidget.AnyWidget):
    """What the browser shows. It has no state: everything travels in custom messages."""

    def __init__(self) -> None:
        self._esm = stub()
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

        self._spans = Spans(time.perf_counter_ns())
        self._lines: collections.deque[list[Any]] = collections.deque(maxlen=LINES)
        self._fresh: collections.deque[Event] = collections.deque(maxlen=WAITING_EVENTS)
        self._recall(loader)
        self._new_spans: list[Any] = []  # not sent yet
        self._new_lines: list[Any] = []
        self._view: dict[str, Any] = {}
        self._points: Sequence[Point] = ()
        self._now = 0.0
        self._see(loader)
        self._sent_view: dict[str, Any] = {}
        self._sent_until = float("-inf")
        self._full_due = False
        self._asked: collections.deque[Callable[[], None]] = collections.deque()  # that the publisher shall answer
        self._costs: collections.deque[float] = collections.deque([0.0] * COSTS, maxlen=COSTS)
        self._picture_due = True
        self._next_picture = float("inf")
        self._lock = threading.Lock()
        """Held by who looks, and until what was seen is sent or drawn."""

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
        if self._shown_in is None or self._shown_in != cell():
            self.show()

    def show(self) -> None:
        """Show the dashboard below the running cell, as one more view of it."""
        self._shown_in = cell()
        if self._ended.is_set():
            self._show_picture("view")
            return
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        display(f"{self._name}-view", {"application/vnd.jupyter.widget-view+json": view})
        self._show_picture("picture")

    # What comes in: on the thread that publishes the event, and on the main thread or one of the kernel's subshells.

    def _on_event(self, event: Event) -> None:
        self._fresh.append(event)
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
        if kind == "asset" and message.get("name") in ASSETS:
            name = message["name"]
            self.widget.send({"kind": "asset", "name": name}, buffers=[packed(name)])
        elif kind == "ready":
            self._views.add(str(message.get("view")))
            self._full_due = True
            self._wake.set()
        elif kind == "gone":
            self._views.discard(str(message.get("view")))
        elif kind in ("plots", "stack", "trace"):
            self._asked.append(partial(self._answer, message))
            self._wake.set()
        elif kind == "command":
            self._command(message)

    def _command(self, message: dict[str, Any]) -> None:
        loader = self._loader()
        if loader is None or self._ended.is_set():
            return
        try:
            carry_out(loader, message)
        except Exception as error:  # noqa: BLE001 - whatever a loader says against it is for the one who clicked
            self._say(message, f"{type(error).__name__}: {error}")
        self._wake.set()

    def _say(self, message: dict[str, Any], text: str) -> None:
        self.widget.send({"kind": "said", "to": message.get("view"), "text": clean(text, 300)})

    def _answer(self, message: dict[str, Any]) -> None:
        """What takes longer than a click may: on the publisher's thread."""
        kind, view, loader = message["kind"], message.get("view"), self._loader()
        if kind == "plots":
            placed = self._view["placed"]
            describe = threading.Thread(target=self._describe_plots, args=(view, placed), daemon=True)
            describe.start()
        elif kind == "trace" and loader is not None:
            data = gzip.compress(Trace(loader.events.recent()).to_json().encode(), 6)
            name = f"nbloader-epoch-{max(0, self._epoch)}.json"
            self.widget.send({"kind": "file", "to": view, "name": name}, buffers=[data])
        elif kind == "stack" and loader is not None:
            worker = message.get("worker")
            try:
                text = loader.stack(int(worker))  # type: ignore[arg-type]
            except Exception as error:  # noqa: BLE001 - it does not run, or does not answer: to be read in its place
                text = str(error)
            lines = [clean(line, 300) for line in text.splitlines()[:STACK_LINES]]
            self.widget.send({"kind": "stack", "to": view, "worker": worker, "text": "\n".join(lines)})

    def _describe_plots(self, view: object, placed: bool) -> None:
        """On a thread of its own: the first time Bokeh is imported, and the view shall not stand still for that."""
        described = plots.describe(placed=placed)
        self._asked.append(partial(self._send_plots, view, described))
        self._wake.set()

    def _send_plots(self, view: object, described: dict[str, Any]) -> None:
        points = columns_of(self._points)
        self.widget.send({"kind": "plots", "to": view, "plots": described, "points": points})

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
            self._ended.wait(max(0.0, began + _interval(self._costs) - time.monotonic()))
        self._finish()

    def _tick(self) -> bool:
        """Send what is new.

        Returns:
            Whether there was anything to send.
        """
        began = time.thread_time()
        with self._lock:  # a picture that the main thread writes looks, too
            self._look()  # also when nobody looks: the plots are made of what was seen
            if self._views:
                news = self._send()
            else:  # a view that comes is sent all that is kept
                news = False
                self._new_spans.clear()
                self._new_lines.clear()
        self._costs.append(time.thread_time() - began)
        while self._asked:
            self._asked.popleft()()
        if time.monotonic() > self._next_picture:
            self._picture_due, self._next_picture = True, time.monotonic() + PICTURE_INTERVALS[1]
        if self._picture_due:
            self.write_picture()
        return news

    def _look(self) -> None:
        loader = self._loader()
        if loader is not None:
            self._see(loader)

    def _recall(self, loader: LoaderControl) -> None:
        """What happened before there was a dashboard."""
        events = loader.events.recent()
        self._spans.pauses = Pauses.of(events)
        begin = time.perf_counter_ns() - SECONDS * 10**9
        records = [e for e in events if isinstance(e, BatchRecord) and back(e) > begin]
        for _, chunk in itertools.groupby(records, key=lambda r: back(r) // int(TICK * 1e9)):
            self._spans.take(list(chunk))
        self._lines.extend(self._line(e) for e in events if not isinstance(e, BatchRecord))

    def _line(self, event: Event) -> list[Any]:
        line = line_of(event)
        return [self._spans.ms(line.time), line.kind, line.text]

    def _see(self, loader: LoaderControl) -> None:
        fresh = []
        while self._fresh:
            fresh.append(self._fresh.popleft())
        records = [e for e in fresh if isinstance(e, BatchRecord)]
        others = [e for e in fresh if not isinstance(e, BatchRecord)]
        for event in others:
            self._spans.pauses.note(event)
        snapshot = loader.stats()
        self._epoch = snapshot.epoch
        self._now = self._spans.ms(snapshot.now or time.perf_counter_ns())
        self._view, self._points = view_of(snapshot), loader.points()
        self._view["pauses"] = self._spans.paused(snapshot.now or time.perf_counter_ns())
        self._view["settings"] = {
            "workers": loader.num_workers,
            "prefetch": loader.prefetch_factor,
            "most": max(MOST_WORKERS, loader.num_workers),
        }
        self._new_spans += self._spans.take(records, snapshot.made)
        lines = [self._line(e) for e in others]
        self._lines.extend(lines)
        self._new_lines += lines

    def _send(self) -> bool:
        full, self._full_due = self._full_due, False
        start = 0 if full else bisect.bisect_right(self._points, self._sent_until, key=lambda p: p.time)
        spans, self._new_spans = self._new_spans, []
        lines, self._new_lines = self._new_lines, []
        news = _changes({} if full else self._sent_view, self._view)
        if not (full or news or spans or lines or start < len(self._points)):
            return False
        message: dict[str, Any] = {
            "kind": "full" if full else "tick",
            "now": self._now,
            "view": news,
            "points": columns_of(self._points[start:]),
            "spans": list(self._spans.rows) if full else spans,
            "lines": list(self._lines) if full else lines,
        }
        if full:
            message.update(id=self._name, columns=WORKER_COLUMNS)
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
        html = picture.html(self._name, self._view, columns_of(self._points), self._spans.rows, self._lines)
        display(f"{self._name}-{slot}", {"text/html": html}, update=update)

    def _finish(self) -> None:
        """Replace the live view by the picture: it would show an error once the kernel is gone."""
        with self._lock:
            self._picture_due = False
            self._show_picture("view", update=True)
            display(f"{self._name}-picture", {"text/html": ""}, update=True)
        self.widget.close()


def _interval(costs: Collection[float]) -> float:
    """Seconds from one message to the next.

    Args:
        costs: CPU time of the last looks, seconds.
    """
    return min(max(TICK, statistics.fmean(costs) / SHARE), SLOWEST_TICK)


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Give the sections that differ; of the workers those that differ, and how many there are."""
    changed = {name: section for name, section in after.items() if before.get(name) != section}
    if "workers" in changed:
        old = before.get("workers", [])
        rows = [row for i, row in enumerate(after["workers"]) if i >= len(old) or old[i] != row]
        changed["workers"] = {"count": len(after["workers"]), "rows": rows}
    return changed


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
