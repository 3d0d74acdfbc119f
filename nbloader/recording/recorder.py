"""Record a loader to a file while it runs."""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from nbloader._util.format import clean, duration, megabytes
from nbloader._util.user_warning import warn
from nbloader._util.version import __version__
from nbloader.dashboard.feed import Feed, Message
from nbloader.dashboard.publisher import TICK, Publisher
from nbloader.events import BatchRecord, EpochEnded, Event, LoaderClosed
from nbloader.metrics.snapshot import ENDED
from nbloader.recording import codec
from nbloader.recording.file import (
    CLOSED,
    FAILED,
    FORMAT,
    FULL,
    LARGEST_FILE,
    VERSION,
    End,
    Header,
    Mark,
    PanelSpec,
    Writer,
)

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl

log = logging.getLogger(__name__)

LEAST = 20_000
"""Smallest accepted limit, bytes."""
FLUSH_SECONDS, FLUSH_CHARACTERS = 2.0, 200_000
"""Observations are written after at most this many seconds, or once there are more than this many characters."""
SNAPSHOT_SECONDS = 15.0
"""Seconds between two snapshots in the file. A snapshot is also written at the end of each epoch."""
BATCHES, EVENTS = 2000, 3000
"""Largest number of batches per epoch in the file, the first ones, and of other events in total."""
FAILED_SAMPLES = 20
"""Number of failed samples kept in a snapshot. Their tracebacks are left out, because their events contain them."""
NAME = 100
"""Largest number of characters of a mark."""
PATIENCE = 10.0
"""Seconds for which `close()` waits for the recorder's thread, for example if the file system is slow."""


class Recorder:
    """Records a loader until `close()`; `loader.record("run.nbl")` starts one. Can be used as a context manager.

    It holds a weak reference to the loader, and ends when the loader is closed or garbage-collected.

    Args:
        loader: The loader to record.
        path: The file to write. An existing file is replaced.
        limit: Largest size of the file, bytes. The fuller the file is, the less often the state of the display is
            recorded; at the limit the recording ends.

    Raises:
        OSError: The file cannot be written.
        ValueError: The limit is too small or too large.
    """

    def __init__(self, loader: LoaderControl, path: str | os.PathLike[str], limit: int) -> None:
        if limit < LEAST:
            raise ValueError(f"limit must be at least {LEAST:,} bytes, not {limit:,}")
        if limit > LARGEST_FILE:
            raise ValueError(f"limit must be at most {LARGEST_FILE:,} bytes, which nbloader.play reads, not {limit:,}")
        self.path = Path(path)
        """The file."""
        self.error: Exception | None = None
        """The error that ended the recording early; None if there is none."""
        self._limit = limit
        self._marks: collections.deque[Mark] = collections.deque()
        key = self.path.resolve()
        older = _recorders.get(key)
        if older is not None:  # the cell was run again
            older.close()
        self._feed = Feed(loader)
        panels = tuple(PanelSpec(p.name, p.title, p.unfolded, p.version) for p in self._feed.panels)
        self._writer = Writer(self.path, Header(FORMAT, VERSION, __version__, self._feed.origin, panels), limit)
        self._reason = CLOSED
        self._due = 0.0
        self._flush_due = time.monotonic() + FLUSH_SECONDS
        self._snapshot_due = time.monotonic() + SNAPSHOT_SECONDS
        self._kept: collections.Counter[int | None] = collections.Counter()
        """Number of batches by epoch, and of other events (key None)."""
        self._left_out = 0

        self._writer.add("show", _shown(self._feed.full()))
        newest = max((event.epoch for event in self._feed.events if isinstance(event, BatchRecord)), default=0)
        self._add_events([e for e in self._feed.events if not isinstance(e, BatchRecord) or e.epoch == newest])
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._writer.close)
            if not self._writer.flush():
                raise ValueError(f"a limit of {limit:,} bytes is too small for what the dashboard shows of this loader")
            on_error.pop_all()
        # A strong reference would keep the loader alive while the publisher waits.
        self._loader = weakref.ref(loader, lambda _ref: self._publisher.end())
        self._publisher = Publisher(
            f"nbloader-recorder-{self.path.name}",
            tick=self._tick,
            idle=lambda: self._feed.snapshot.state in ("new", *ENDED),
            finish=self._finish,
        )
        self._subscription = weakref.ref(loader.events.subscribe(self._on_event))
        _recorders[key] = self
        _close_in_time()
        self._publisher.start()

    def __repr__(self) -> str:
        """Describe the recording in one line."""
        state = "recorded" if self._publisher.ended else "recording"
        return f"<Recorder of {self.path}: {state} {duration(self._feed.now / 1e3)}, {megabytes(self.size)}>"

    def __enter__(self) -> Recorder:
        """Return the recorder itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the recorder."""
        self.close()

    @property
    def size(self) -> int:
        """Size of the file, bytes."""
        return self._writer.size

    @property
    def active(self) -> bool:
        """Whether the recorder still records."""
        return not self._publisher.ended

    def mark(self, text: str) -> None:
        """Name this moment: the player shows it, and jumps to it.

        Args:
            text: The name, such as "worker 1 hangs"; it is cut to 100 characters.
        """
        now = (time.perf_counter_ns() - self._feed.origin) / 1e6
        self._marks.append(Mark(round(now, 2), clean(text, NAME)))
        self._publisher.wake()

    def close(self) -> None:
        """End the recording, and write the rest of it. A second call is a no-op.

        Warns:
            UserWarning: The recording could not be completed.
        """
        self._publisher.end()
        thread = self._publisher.thread
        if thread is not threading.current_thread():
            thread.join(PATIENCE)
        if self.error is not None:
            error, self.error = self.error, None
            warn(
                f"{self.path} could not be continued after {duration(self._feed.now / 1e3)}: "
                f"{type(error).__name__}: {clean(error)}. What was recorded until then can be played."
            )

    # On the thread that publishes the event.

    def _on_event(self, event: Event) -> None:
        self._feed.note(event)
        if type(event) is BatchRecord:
            return
        if isinstance(event, LoaderClosed):
            self._publisher.end()
        self._publisher.wake()

    # On the recorder's thread.

    def _tick(self) -> bool:
        """Write what is new. Returns whether there was anything, or True if the call was skipped."""
        if self._reason != CLOSED or (time.monotonic() < self._due and self.active):
            return True
        try:
            news = self._observe()
            if not news or time.monotonic() > self._flush_due or self._writer.waiting > FLUSH_CHARACTERS:
                self._flush_due = time.monotonic() + FLUSH_SECONDS
                if not self._writer.flush():
                    self._reason = FULL
                    self._publisher.end()
        except Exception as error:  # a full disk or a panel that raises ends the recording, but not the loop
            self.error, self._reason = error, FAILED
            log.warning("the recording of %s cannot be continued", self.path, exc_info=error)
            self._publisher.end()
            return False
        used = self._writer.size / self._limit
        self._due = time.monotonic() + 0.8 * TICK * used / (1 - min(used, 0.99))
        return news

    def _observe(self) -> bool:
        loader = self._loader()
        if loader is not None:
            self._feed.observe(loader)
            self._add_events(self._feed.events)
        message = self._feed.tick()
        if message is not None:
            self._writer.add("show", _shown(message))
        while self._marks:
            self._writer.add("mark", codec.encode(self._marks.popleft()))
        if time.monotonic() > self._snapshot_due or any(isinstance(event, EpochEnded) for event in self._feed.events):
            self._add_snapshot()
        return message is not None

    def _add_events(self, events: Sequence[Event]) -> None:
        kept: list[Event] = []
        for event in events:
            is_batch = isinstance(event, BatchRecord)
            key = event.epoch if isinstance(event, BatchRecord) else None
            self._kept[key] += 1
            if self._kept[key] <= (BATCHES if is_batch else EVENTS):
                kept.append(event)
            else:
                self._left_out += 1
        for entry in codec.encode_events(kept):
            for name, value in entry.items():
                self._writer.add(name, value)

    def _add_snapshot(self) -> None:
        self._snapshot_due = time.monotonic() + SNAPSHOT_SECONDS
        s = self._feed.snapshot
        failed = tuple(dataclasses.replace(sample, traceback="") for sample in s.failed_samples[-FAILED_SAMPLES:])
        self._writer.add("snapshot", codec.encode(dataclasses.replace(s, failed_samples=failed)))

    def _finish(self) -> None:
        subscription = self._subscription()
        if subscription is not None:
            subscription.close()
        try:
            if self._reason == CLOSED:
                self._add_snapshot()
                if not self._writer.flush():
                    self._reason = FULL
            self._writer.end(End(self._feed.now, self._reason, self._left_out))
        except OSError as error:
            self.error = self.error or error
        finally:
            self._writer.close()


def _shown(message: Message) -> Message:
    """The parts of a message that the file needs; the panels are in its header."""
    return {key: message[key] for key in ("kind", "now", "payloads", "news")}


_recorders: weakref.WeakValueDictionary[Path, Recorder] = weakref.WeakValueDictionary()
"""Recorders by file."""


@cache
def _close_in_time() -> None:
    """Complete the files before the process ends."""
    atexit.register(_close_all)


def _close_all() -> None:
    for recorder in list(_recorders.values()):
        recorder.close()
