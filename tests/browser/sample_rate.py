"""A worked example: a panel of the dashboard, here one that shows how many samples per second each epoch reached.

A panel consists of two modules with the same name: this one and sample_rate.js.

This half turns frames of the loader into JSON values. The dashboard calls `payload()` about four times a second and
sends the result if it has changed. It has no access to the loader's workers, and it needs none: a frame has a
`Snapshot` (what `loader.stats()` returns) and the events since the frame before.

To make it a panel of nbloader itself, move both modules to nbloader/dashboard/panels and add the class to `PANELS`
there. To use it from outside, register it before the dashboard is shown, as in the last line.
"""

from __future__ import annotations

from html import escape
from typing import Any

from nbloader._util.format import number
from nbloader.dashboard.panels import Frame, Panel, register
from nbloader.events import EpochEnded


class SampleRate(Panel):
    """Samples per second: now, and in the epochs that have ended."""

    name = "sample_rate"
    title = "Samples per second"

    def __init__(self) -> None:
        self._epochs: list[str] = []

    def payload(self, frame: Frame) -> dict[str, Any]:
        """What sample_rate.js draws. Texts are made here, so that the browser does not need to format numbers."""
        s = frame.snapshot
        for event in frame.events:
            if isinstance(event, EpochEnded) and s.elapsed:
                self._epochs.append(f"epoch {event.epoch}: {number(s.samples_done / s.elapsed)}")
        return {"now": number(s.samples_per_second), "epochs": self._epochs[-5:]}

    def html(self, payload: dict[str, Any]) -> str:
        """The static form, for a notebook without a kernel. Optional; without it the panel is only live."""
        return f"<p>{escape(self.title)}: {escape(' · '.join(payload['epochs']))}</p>"


register(SampleRate)
