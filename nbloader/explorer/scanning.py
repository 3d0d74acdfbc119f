"""The scan of an explorer: reads many samples in the background, for the facts about them.

    begin -> feed -> (a sample was read: finish -> feed) ... -> suspects are read under other seeds -> the scan ends

`Scan` decides what is read next. This module requests it, on whichever thread reports progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from nbloader.explorer.fetcher import SampleFetcher
from nbloader.explorer.scan import Scan
from nbloader.explorer.table import SampleTable
from nbloader.frontend import comm

PUMP_INTERVAL = 0.1
"""Interval, in seconds, at which messages of views are handled during a scan, which blocks the main thread."""
SCAN_INTERVAL = 0.25
"""Seconds between two messages about the progress of a scan."""


class Scanning:
    """The scan that is running, if any. Thread-safe.

    Args:
        table: Facts about the samples that were read.
        fetcher: Reads the samples.
    """

    def __init__(self, table: SampleTable, fetcher: SampleFetcher) -> None:
        self._table = table
        self._fetcher = fetcher
        self._scan: Scan | None = None
        self._shown = 0.0  # when progress was last shown
        self._closed = False
        self._ended = threading.Condition()

    def begin(self, indices: Iterable[int]) -> None:
        """Begin a scan of those of the samples that were not scanned yet. It replaces one that is running."""
        missing = [index for index in indices if not self._table.checked(index)]
        with self._ended:
            self._scan = Scan(missing)

    def feed(self) -> bool:
        """Request the next samples.

        Returns:
            Whether the views should get the progress now.
        """
        with self._ended:
            scan = self._scan
            if scan is None:
                return False
            requested = scan.request()
            suspects = self._table.suspects() if scan.ended else {}
            if scan.ended and not suspects:
                self._scan = None
                self._ended.notify_all()
        if requested:
            self._fetcher.scan(requested)
        if suspects:  # the scan ends when they were read, too
            self._fetcher.probe(suspects)
        now = time.monotonic()
        if scan.ended or scan.paused or not scan.left or now - self._shown > SCAN_INTERVAL:
            self._shown = now
            return True
        return False

    def finish(self, index: int) -> None:
        """Count a sample that was read, or that could not be read."""
        with self._ended:
            if self._scan is not None:
                self._scan.finish(index)

    def pause(self, *, paused: bool) -> None:
        """Pause or resume the scan. `feed` requests the samples after a pause."""
        with self._ended:
            if self._scan is not None:
                self._scan.pause(paused=paused)
        if paused:
            self._fetcher.stop_scan()

    def abandon(self) -> bool:
        """End the scan, without telling the fetcher.

        Returns:
            Whether one was running.
        """
        with self._ended:
            scan, self._scan = self._scan, None
            self._ended.notify_all()
        return scan is not None

    def stop(self) -> bool:
        """End the scan after the samples that are being read.

        Returns:
            Whether one was running.
        """
        was_running = self.abandon()
        if was_running:
            self._fetcher.stop_scan()
        return was_running

    def progress(self) -> dict[str, Any] | None:
        """Return the progress, as JSON values; None if no scan is running."""
        with self._ended:
            return None if self._scan is None else self._scan.to_json()

    def wait(self) -> None:
        """Block until no scan is running, and handle messages of views meanwhile."""
        while True:
            with self._ended:
                if self._scan is None or self._closed:
                    return
                self._ended.wait(PUMP_INTERVAL)
            comm.pump()

    def close(self) -> None:
        """End the scan. Another one that is begun later reads nothing."""
        with self._ended:
            self._closed = True
            self._ended.notify_all()
