"""The report of a recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader.dashboard.page import Report
from nbloader.recording.file import readable

if TYPE_CHECKING:
    from nbloader.metrics.snapshot import Snapshot
    from nbloader.report.trace import Trace


class RecordedReport(Report):
    """A report whose content came from a file, which may have been changed.

    Args:
        name: Name of the file.
        snapshot: The last statistics.
        trace: All recorded events.
        epoch: Number of the epoch; None for the newest.

    Raises:
        RecordingError: The statistics cannot be shown.
    """

    def __init__(self, name: str, snapshot: Snapshot, trace: Trace, epoch: int | None) -> None:
        self._name = name
        with readable(name):
            super().__init__(snapshot, trace.epoch(epoch))
            super()._repr_html_()

    def html(self) -> str:
        """Return the page as text.

        Raises:
            RecordingError: The statistics or the events cannot be shown.
        """
        with readable(self._name):
            return super().html()
