"""When a loader was paused, so that times can be told without it. Pure."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

from nbloader.events.records import Event, LoaderPaused, LoaderResumed

KEPT = 4096
"""Pauses that are kept, the last ones."""


class Pauses:
    """The pauses of one loader. Times are perf_counter ns."""

    def __init__(self) -> None:
        self.since: int | None = None
        """When the present pause began; None while the loader goes on."""
        self._past: collections.deque[tuple[int, int]] = collections.deque(maxlen=KEPT)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Pauses:
        """Those that events tell of."""
        pauses = cls()
        for event in events:
            pauses.note(event)
        return pauses

    def note(self, event: Event) -> None:
        """Take an event into account; most of them say nothing of pauses."""
        if isinstance(event, LoaderPaused):
            self.begin(event.time)
        elif isinstance(event, LoaderResumed):
            self.end(event.time)

    def begin(self, time: int) -> None:
        """The loader is paused."""
        if self.since is None:
            self.since = time

    def end(self, time: int) -> None:
        """The loader goes on."""
        if self.since is not None and time > self.since:
            self._past.append((self.since, time))
        self.since = None

    def __bool__(self) -> bool:
        """Whether there was any."""
        return self.since is not None or bool(self._past)

    def after(self, time: int) -> bool:
        """Whether the loader is paused, or was after this time."""
        return self.since is not None or (bool(self._past) and self._past[-1][1] > time)

    def within(self, begin: int, end: int) -> int:
        """How much of an interval the loader was paused, ns."""
        paused = 0 if self.since is None else max(0, end - max(begin, self.since))
        for a, b in reversed(self._past):  # newest first: a batch asks for the last ones only
            if b <= begin:
                break
            paused += max(0, min(end, b) - max(begin, a))
        return paused

    def active(self, begin: int, end: int) -> int:
        """How much of an interval it was not paused, ns."""
        return max(0, end - begin - self.within(begin, end)) if end > begin else 0

    def between(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The pauses in an interval, each as far as it lies in it, oldest first."""
        found = [] if self.since is None else [(max(begin, self.since), end)]
        for a, b in reversed(self._past):
            if b <= begin:
                break
            found.append((max(begin, a), min(end, b)))
        return [(a, b) for a, b in reversed(found) if a < b]

    def outside(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of an interval in which the loader was not paused, oldest first."""
        for a, b in self.between(begin, end) if self else ():
            if begin < a:
                yield begin, a
            begin = b
        if begin < end:
            yield begin, end
