"""Turns a loader into messages for the browser. The dashboard sends them, and a recording keeps them.

    events, loader.stats() -> Frame -> panels -> one small message per observation

A message holds what is new: payloads of panels that changed, and news that was not in a message before. The browser
keeps the history; a view that is opened later gets all of it once.
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
"""JSON values: `kind` ("full" or "tick"), `now` (ms since the feed was created), `payloads` and `news` by panel; a full
one also `panels`, from top to bottom. `core.js` draws it."""

LINES_INTERVAL = 1.0
"""Seconds for which the lines of code are not computed again."""
WAITING_EVENTS = 20_000
"""Events that wait for the next observation at most; the oldest are dropped from the timeline and the log."""


class Feed:
    """What the panels show of one loader. It does not hold the loader. Only `note()` is thread-safe.

    Args:
        loader: The loader. It is observed once.
    """

    def __init__(self, loader: LoaderControl) -> None:
        self.panels: list[Panel] = [panel() for panel in PANELS]
        self.origin = time.perf_counter_ns()
        """Zero of the times in messages, perf_counter ns."""
        self.payloads: dict[str, Any] = {}
        """By panel, of the last observation."""
        self.news: dict[str, list[Any]] = {}
        """By panel; what is in no message yet."""
        self.events: list[Event] = []
        """What happened between the last two observations."""
        self._fresh: collections.deque[Event] = collections.deque(loader.events.recent(), maxlen=WAITING_EVENTS)
        self._sent: dict[str, Any] = {}
        self._lines, self._lines_due = HotLines(), 0.0
        self.snapshot: Snapshot
        """Of the last observation."""
        self.now: float
        """When that was, ms since the origin."""
        self.observe(loader)

    def note(self, event: Event) -> None:
        """Keep an event for the next observation."""
        self._fresh.append(event)

    def observe(self, loader: LoaderControl) -> None:
        """Give all panels a new frame."""
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
        """A message with everything, for a view that knows nothing yet."""
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
        """A message with what is in no message yet; None if that is nothing."""
        news, self.news = self.news, {}
        payloads = changes(self._sent, self.payloads)
        if not (payloads or news):
            return None
        self._sent = self.payloads
        return {"kind": "tick", "now": self.now, "payloads": payloads, "news": news}

    def _hot_lines(self, loader: LoaderControl) -> HotLines:
        """The lines that workers execute, as they were at most a second ago."""
        now = time.monotonic()
        if now >= self._lines_due:
            self._lines, self._lines_due = loader.hot_lines(), now + LINES_INTERVAL
        return self._lines


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The payloads that differ."""
    return {name: payload for name, payload in after.items() if name not in before or before[name] != payload}
