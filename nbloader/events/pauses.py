"""The intervals during which a loader was paused, for excluding them from durations.

This module performs no I/O and reads no clock.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nbloader.events.records import Event, LoaderPaused, LoaderResumed

KEPT = 4096
"""Maximum number of pauses to keep."""


class Interval(NamedTuple):
    """A time interval, in ns of `time.perf_counter_ns()`."""

    begin: int
    end: int


class Pauses:
    """The pauses of one loader. Times are values of `time.perf_counter_ns()`."""

    def __init__(self) -> None:
        self.since: int | None = None
        """When the current pause began; None while the loader is not paused."""
        self.recorded = False
        """Whether the loader was ever paused."""
        self._past: collections.deque[Interval] = collections.deque(maxlen=KEPT)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Pauses:
        """Create an object from the pauses that the events report."""
        pauses = cls()
        for event in events:
            pauses.note(event)
        return pauses

    def note(self, event: Event) -> None:
        """Record an event if it is the beginning or the end of a pause; ignore it otherwise."""
        if isinstance(event, LoaderPaused):
            self.begin(event.time)
        elif isinstance(event, LoaderResumed):
            self.end(event.time)

    def begin(self, time: int) -> None:
        """Record that the loader was paused."""
        self.recorded = True
        if self.since is None:
            self.since = time

    def end(self, time: int) -> None:
        """Record that the loader was resumed."""
        if self.since is not None and time > self.since:
            self._past.append(Interval(self.since, time))
        self.since = None

    def __bool__(self) -> bool:
        """Whether the loader was ever paused."""
        return self.recorded

    def after(self, time: int) -> bool:
        """Whether the loader is paused now, or was paused at any moment after `time`."""
        return self.since is not None or (bool(self._past) and self._past[-1].end > time)

    def within(self, begin: int, end: int) -> int:
        """Return how long the loader was paused during an interval, ns."""
        paused = 0 if self.since is None else max(0, end - max(begin, self.since))
        for a, b in reversed(self._past):  # newest first: a batch overlaps only the most recent pauses
            if b <= begin:
                break
            paused += max(0, min(end, b) - max(begin, a))
        return paused

    def active(self, begin: int, end: int) -> int:
        """Return how long the loader was not paused during an interval, ns."""
        return max(0, end - begin - self.within(begin, end)) if end > begin else 0

    def between(self, begin: int, end: int) -> list[Interval]:
        """Return the pauses within an interval, clipped to the interval, oldest first."""
        found = [] if self.since is None else [Interval(max(begin, self.since), end)]
        for a, b in reversed(self._past):
            if b <= begin:
                break
            found.append(Interval(max(begin, a), min(end, b)))
        return [pause for pause in reversed(found) if pause.begin < pause.end]

    def outside(self, begin: int, end: int) -> Iterator[Interval]:
        """Yield the parts of an interval during which the loader was not paused, oldest first."""
        for a, b in self.between(begin, end) if self else ():
            if begin < a:
                yield Interval(begin, a)
            begin = b
        if begin < end:
            yield Interval(begin, end)
