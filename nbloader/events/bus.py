"""The event bus: hands each event to subscribers and keeps the last ones.

Events flow one way, out of the loader. Publishing never raises and never waits: a callback that raises is removed and
logged; a full buffer drops its oldest event and counts it.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Callable, Iterator

from nbloader._util.signals import raised_by_handler
from nbloader.events.records import BatchRecord, Event

log = logging.getLogger(__name__)


class Subscription:
    """A bounded buffer of events, or a callback, attached to a bus. Close it, or use it as a context manager.

    Args:
        bus: The bus.
        callback: Called with each event on the publishing thread; None to buffer events instead.
        maxlen: Maximum number of buffered events. The oldest are dropped first, and counted in `dropped`.
    """

    __slots__ = ("__weakref__", "_buffer", "_bus", "_callback", "dropped")

    def __init__(self, bus: EventBus, callback: Callable[[Event], object] | None, maxlen: int) -> None:
        self._bus = bus
        self._callback = callback
        self._buffer: collections.deque[Event] = collections.deque(maxlen=maxlen)
        self.dropped = 0
        """Number of events lost because the buffer was full."""

    def drain(self) -> list[Event]:
        """Remove and return all buffered events, oldest first."""
        out: list[Event] = []
        try:
            while True:
                out.append(self._buffer.popleft())
        except IndexError:
            return out

    def close(self) -> None:
        """Detach from the bus. Can be called more than once."""
        self._bus._remove(self)

    def __enter__(self) -> Subscription:
        """The subscription itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Detach from the bus."""
        self.close()

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events that are buffered now, and remove them."""
        return iter(self.drain())

    def _keep(self, event: Event) -> None:
        if len(self._buffer) == self._buffer.maxlen:
            self.dropped += 1
        self._buffer.append(event)


class EventBus:
    """Hands events from the loader to subscribers, and keeps the last ones.

    Args:
        history: Maximum number of events that are kept. The default of 10,000 takes about 4 MB.
    """

    def __init__(self, history: int = 10_000) -> None:
        self.history: collections.deque[Event] = collections.deque(maxlen=history)
        """The last events, oldest first. Other threads append to it: iterate over the copy that `recent()` returns."""
        # No lock: the garbage collector may end an iterator, which publishes, in the middle of any call on the same
        # thread. Appending, removing and copying a list are atomic.
        self._subscribers: list[Subscription] = []

    def subscribe(self, callback: Callable[[Event], object] | None = None, *, maxlen: int = 10_000) -> Subscription:
        """Subscribe to all events from now on.

        Args:
            callback: Called with each event on the publishing thread (usually the one that runs the loop), so it must
                be fast. A callback that raises is removed and logged. Without one, events are buffered for `drain()`.
            maxlen: Maximum number of buffered events.

        Returns:
            The subscription; `close()` ends it.

        Raises:
            TypeError: `callback` is not callable.
            ValueError: `maxlen` is less than 1.
        """
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable or None, not {type(callback).__name__}: {callback!r}")
        if maxlen < 1:
            raise ValueError(f"maxlen must be at least 1, not {maxlen}")
        subscription = Subscription(self, callback, maxlen)
        self._subscribers.append(subscription)
        return subscription

    def publish(self, event: Event) -> None:
        """Add an event to the history and hand it to every subscriber. Never raises, never blocks on a subscriber."""
        self.history.append(event)
        for subscription in self._subscribers.copy():
            try:
                callback = subscription._callback
                if callback is None:
                    subscription._keep(event)
                else:
                    callback(event)
            except Exception as error:
                if raised_by_handler(error):
                    raise
                log.exception("an event subscriber raised and was removed")
                self._remove(subscription)

    def batches(self) -> list[BatchRecord]:
        """The batch records in the history, oldest first."""
        return [event for event in self.recent() if isinstance(event, BatchRecord)]

    def recent(self) -> list[Event]:
        """A copy of the history, oldest first."""
        while True:
            try:
                return list(self.history)
            except RuntimeError:  # another thread published while it was copied
                continue

    def _remove(self, subscription: Subscription) -> None:
        with contextlib.suppress(ValueError):  # closed before
            self._subscribers.remove(subscription)
