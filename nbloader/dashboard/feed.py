"""Convert the state of a loader to messages for the browser. The dashboard sends them, and a recording stores them.

    events, loader.stats() -> Frame -> panels -> one small message per observation

A message contains what is new: the payloads of panels that changed, and news that no earlier message contained. The
browser keeps the history. A view that is opened later receives the whole history once.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from nbloader.dashboard.panels import PANELS, Frame, Panel
from nbloader.metrics.hot_lines import HotLines

if TYPE_CHECKING:
    from nbloader.events import Event
    from nbloader.metrics.control import LoaderControl
    from nbloader.metrics.snapshot import Snapshot

Message: TypeAlias = dict[str, Any]
"""JSON values: `kind` ("full" or "tick"), `now` (ms since the feed was created), `payloads` and `news` by panel. A full
message also has `panels`, from top to bottom. `core.js` draws messages."""

LINES_INTERVAL = 1.0
"""Minimum time between two computations of the lines of code, seconds."""
WAITING_EVENTS = 20_000
"""Largest number of events that wait for the next observation. If there are more, the timeline and the log lack the
oldest ones."""


class Feed:
    """Feeds the panels with the state of one loader, to which it keeps no reference. Only `note()` is thread-safe.

    Args:
        loader: The loader. It is observed once.
    """

    def __init__(self, loader: LoaderControl) -> None:
        self.panels: list[Panel] = [panel() for panel in PANELS]
        self.origin = time.perf_counter_ns()
        """Origin of the times in messages, perf_counter ns."""
        self.payloads: dict[str, Any] = {}
        """Payloads of the last observation, by panel."""
        self.news: dict[str, list[Any]] = {}
        """News that no message contains yet, by panel."""
        self.events: list[Event] = []
        """Events between the last two observations."""
        self._fresh: collections.deque[Event] = collections.deque(loader.events.recent(), maxlen=WAITING_EVENTS)
        self._sent: dict[str, Any] = {}
        self._lines, self._lines_due = HotLines(), 0.0
        self.snapshot: Snapshot
        """Snapshot of the last observation."""
        self.now: float
        """Time of the last observation, ms since the origin."""
        self.observe(loader)

    def note(self, event: Event) -> None:
        """Keep an event for the next observation."""
        self._fresh.append(event)

    def observe(self, loader: LoaderControl) -> None:
        """Observe the loader, and pass the new frame to all panels."""
        events = []
        while self._fresh:
            events.append(self._fresh.popleft())
        snapshot = loader.stats()
        frame = Frame(
            snapshot=snapshot,
            points=loader.points(),
            events=events,
            origin=self.origin,
            now=snapshot.now or time.perf_counter_ns(),
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            lines=self._hot_lines(loader),
        )
        self.events, self.snapshot, self.now = events, snapshot, frame.ms(frame.now)
        payloads = {}
        for panel in self.panels:
            news = panel.news(frame)
            if news:
                self.news.setdefault(panel.name, []).extend(news)
            payloads[panel.name] = panel.payload(frame)
        self.payloads = payloads

    def expect_lines(self) -> None:
        """Compute the lines of code at the next observation: a command may have changed what is sampled."""
        self._lines_due = 0.0

    def full(self) -> Message:
        """Create a message with the complete state, for a new view."""
        self.news = {}
        self._sent = self.payloads
        return {
            "kind": "full",
            "now": self.now,
            "payloads": self.payloads,
            "news": {panel.name: panel.history() for panel in self.panels},
            "panels": [{"name": p.name, "title": p.title, "unfolded": p.unfolded} for p in self.panels],
        }

    def tick(self) -> Message | None:
        """Create a message with everything that no message contains yet; None if there is nothing new."""
        news, self.news = self.news, {}
        payloads = changes(self._sent, self.payloads)
        if not (payloads or news):
            return None
        self._sent = self.payloads
        return {"kind": "tick", "now": self.now, "payloads": payloads, "news": news}

    def _hot_lines(self, loader: LoaderControl) -> HotLines:
        """The lines of code that workers execute; the result is at most one second old."""
        now = time.monotonic()
        if now >= self._lines_due:
            self._lines, self._lines_due = loader.hot_lines(), now + LINES_INTERVAL
        return self._lines


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the payloads that differ from those before."""
    return {name: payload for name, payload in after.items() if name not in before or before[name] != payload}
