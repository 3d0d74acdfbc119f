"""The event log: workers that started or died, failed samples, epochs, commands."""

from __future__ import annotations

import collections
from html import escape
from typing import Any

from nbloader.dashboard.panels.base import Frame, Panel, section
from nbloader.events import BatchRecord
from nbloader.report.eventlog import line_of

LINES, STATIC_LINES = 300, 24
"""Number of lines that are kept, and number of lines in the static form."""


class Events(Panel):
    """A log that can be filtered. Its lines are sent as news."""

    name = "events"
    title = "Events"
    unfolded = False

    def __init__(self) -> None:
        self._lines: collections.deque[dict[str, Any]] = collections.deque(maxlen=LINES)

    def payload(self, frame: Frame) -> dict[str, Any]:  # noqa: ARG002 - everything is news
        """Return how many lines the browser keeps."""
        return {"lines": LINES}

    def news(self, frame: Frame) -> list[Any]:
        """Return lines for the events of this frame."""
        lines = []
        for event in frame.events:
            if not isinstance(event, BatchRecord):
                time, kind, text = line_of(event)
                lines.append({"ms": frame.ms(time), "kind": kind, "text": text})
        self._lines.extend(lines)
        return lines[-LINES:]

    def history(self) -> list[Any]:
        """Return the lines that are kept."""
        return list(self._lines)

    def html(self, payload: Any) -> str:  # noqa: ARG002 - everything is news
        """Return the last lines, newest first."""
        lines = list(self._lines)[-STATIC_LINES:]
        if not lines:
            return ""
        zero = lines[0]["ms"]
        entries = "".join(
            f'<li class="nbl-line-{line["kind"]}"><span class="nbl-note">{(line["ms"] - zero) / 1e3:.2f} s</span>'
            f'<span class="nbl-kind">{line["kind"]}</span><span>{escape(line["text"])}</span></li>'
            for line in reversed(lines)
        )
        return section(self.title, f'<ol class="nbl-log">{entries}</ol>', unfolded=False)
