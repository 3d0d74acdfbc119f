"""What cells that show an explorer have below them: the widget, and a static form that needs no kernel.

    show -> a view of the widget, and the static form
    the samples on screen change -> no more samples for `STATIC_PAUSE` seconds, or the cell ends -> the form is replaced
    close -> the static form replaces the view

The page hides the static form while its view is live. If no page answers, the form says so.
"""

from __future__ import annotations

import atexit
import threading
import time
import uuid
import weakref
from collections.abc import Iterable
from functools import cache

from IPython import get_ipython

from nbloader._util.threads import in_this_context
from nbloader._util.weak import weakly
from nbloader.explorer import static
from nbloader.explorer.assets import TEXT, styles
from nbloader.explorer.fetcher import SampleFetcher
from nbloader.frontend.live import LiveWidget
from nbloader.frontend.outputs import display, display_widget, running_cell
from nbloader.frontend.silence import Silence, advice

STATIC_PAUSE = 1.0
"""Seconds without new samples after which the static form is written."""
FIRST = 24
"""Number of samples that are read when a view is opened, before it has requested any."""
CALLS = (
    "In place of the view, with <code>view = nbloader.explore(...)</code>: <code>view.rows()</code>,"
    ' <code>view.costs("label")</code>, <code>view.scan()</code> and <code>view.problems()</code>;'
    " <code>dataset[i]</code> is a sample. Below are the first ones."
)
"""What to use in place of the live view, as HTML."""


class CellOutput:
    """The outputs of the cells that show an explorer. Thread-safe.

    Args:
        title: Title of the dataset.
        total: Number of samples.
        fetcher: Has the samples that were read.
    """

    def __init__(self, title: str, total: int, fetcher: SampleFetcher) -> None:
        self.name = uuid.uuid4().hex[:12]
        """Identifies the explorer, so that its live views can hide the static form."""
        self.total = total
        """Number of samples."""
        self.shown = False
        """Whether a cell shows the explorer, so that its static form is written."""
        self._title = title
        self._fetcher = fetcher
        self._shown_in: str | None = None
        self._on_screen: list[int] = []
        self._silence = Silence()
        self._due, self._due_at = False, 0.0  # whether and when to write the static form
        self._timing = False  # whether the timer that checks this is running
        self._timer: threading.Timer | None = None
        self._closed = False
        self._lock = threading.RLock()
        _outputs.add(self)
        _write_static_in_time()

    @property
    def closed(self) -> bool:
        """Whether only the static form is left."""
        return self._closed

    @property
    def in_running_cell(self) -> bool:
        """Whether the running cell has shown the explorer already."""
        return self._shown_in is not None and self._shown_in == running_cell()

    def show(self, widget: LiveWidget) -> None:
        """Show a view below the running cell, with the static form; only the latter after `close()`.

        Args:
            widget: The widget of the explorer.
        """
        self._shown_in = running_cell()
        if self._closed:
            display(f"{self.name}-view", TEXT, {"text/html": self.html()})
            return
        display_widget(f"{self.name}-view", TEXT, widget)
        self._silence.shown(weakly(self._on_silence))
        display(f"{self.name}-static", TEXT, {"text/html": self.html()})

    # ---- whether a page answers -------------------------------------------------------------------------------------

    def heard(self) -> None:
        """A message came from a page."""
        if self._silence.heard():
            self.plan()

    def looked(self, *, closed: bool) -> None:
        """The kernel has handled all messages. If the page does not answer, say so once.

        Args:
            closed: Whether a page has closed the comm of the widget.
        """
        before = self._silence.noticed
        self._silence.looked(closed=closed)
        if self._silence.noticed and not before:
            self._on_silence()

    def _on_silence(self) -> None:
        """Show the first samples in the static form: no view will ask for any."""
        self._on_screen = self._on_screen or list(range(min(FIRST, self.total)))
        self._due = True
        self.write()

    # ---- the static form --------------------------------------------------------------------------------------------

    def scrolled(self, indices: Iterable[int]) -> None:
        """Set which samples are on screen."""
        with self._lock:
            self._on_screen = sorted(indices)

    def plan(self) -> None:
        """Schedule writing the static form for when no more samples arrive."""
        with self._lock:
            self._due = True
            self._due_at = time.monotonic() + STATIC_PAUSE
            if self.shown and not (self._closed or self._timing):
                self._start_timer(STATIC_PAUSE)

    def _start_timer(self, seconds: float) -> None:
        self._timing = True
        self._timer = threading.Timer(seconds, in_this_context(weakly(self._on_timer)))
        self._timer.daemon = True
        self._timer.name = "nbloader-explorer-static"
        self._timer.start()

    def _on_timer(self) -> None:
        """Write the static form, or wait longer if samples have arrived since. Only one timer runs at a time."""
        with self._lock:
            rest = self._due_at - time.monotonic()
            if rest > 0 and self._due and not self._closed:
                self._start_timer(rest)
                return
            self._timing = False
        self.write()

    def write(self) -> None:
        """Save what is on screen in the notebook, so that it is visible without the kernel. A no-op if nothing is new.

        After `close()` nothing is written.
        """
        with self._lock:
            if self._closed or not (self._due and self.shown):
                return
            self._due = False
        display(f"{self.name}-static", TEXT, {"text/html": self.html()}, update=True)

    def html(self) -> str:
        """Return the static form."""
        with self._lock:
            indices, total = self._on_screen, self.total
        cards = [(request.index, sample) for request, sample in self._fetcher.there(indices)]
        notice = advice("explorer", "nbloader.explore(...)", CALLS) if self._silence.noticed else ""
        return static.html(self.name, styles(), self._title, total, cards, notice)

    def close(self) -> None:
        """Replace the view by the static form. Closing twice is a no-op."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join()
        if self.shown:
            display(f"{self.name}-view", TEXT, {"text/html": self.html()}, update=True)
            display(f"{self.name}-static", TEXT, {"text/html": ""}, update=True)


_outputs: weakref.WeakSet[CellOutput] = weakref.WeakSet()


@cache
def _write_static_in_time() -> None:
    """Write static forms that are due before a cell ends, and before the kernel exits."""
    shell = get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", _write_static)
    atexit.register(_write_static)


def _write_static(_result: object = None) -> None:
    for output in list(_outputs):
        output.write()
