"""The event bus: passes each event to subscribers and keeps the most recent events.

Events flow in one direction, out of the loader. Errors in callbacks do not propagate to the publisher, and full buffers
do not block it. A callback that raises is removed, and the error is logged. A full buffer drops its oldest event and
counts it.
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
    """A callback or a bounded buffer that receives the events of a bus. Close it, or use it as a context manager.

    Args:
        bus: The bus.
        callback: Called with each event on the publishing thread; None to buffer events instead.
        maxlen: Maximum number of buffered events. If the buffer is full, the oldest event is dropped and counted in
            `dropped`.
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
        """Detach the subscription from the bus. Can be called more than once."""
        self._bus._remove(self)

    def __enter__(self) -> Subscription:
        """Return the subscription itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Detach the subscription from the bus."""
        self.close()

    def __iter__(self) -> Iterator[Event]:
        """Remove all currently buffered events, and iterate over them."""
        return iter(self.drain())

    def _keep(self, event: Event) -> None:
        if len(self._buffer) == self._buffer.maxlen:
            self.dropped += 1
        self._buffer.append(event)


class EventBus:
    """Passes events from the loader to subscribers, and keeps the most recent events.

    Args:
        history: Maximum number of events to keep. The default of 10,000 events takes about 4 MB.
    """

    def __init__(self, history: int = 10_000) -> None:
        self.history: collections.deque[Event] = collections.deque(maxlen=history)
        """The most recent events, oldest first. Other threads append to this deque, so iterate over the copy that
        `recent()` returns."""
        # There is no lock because it could deadlock: the garbage collector may end an iterator in the middle of any
        # call on the same thread, and the end of an iterator publishes an event. Appending to a list, removing from it
        # and copying it are atomic.
        self._subscribers: list[Subscription] = []

    def subscribe(self, callback: Callable[[Event], object] | None = None, *, maxlen: int = 10_000) -> Subscription:
        """Subscribe to all events that are published after this call.

        Args:
            callback: Called with each event on the publishing thread (usually the one that runs the loop), so it must
                be fast. If it raises, it is removed, and the error is logged. Without a callback, events are buffered
                for `drain()`.
            maxlen: Maximum number of buffered events.

        Returns:
            The subscription. Call `close()` to end it.

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
        """Add an event to the history and pass it to every subscriber.

        Callbacks run on this thread. An exception from a callback does not propagate, unless a signal handler raised
        it. Full buffers do not block.
        """
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
        """Return the batch records in the history, oldest first."""
        return [event for event in self.recent() if isinstance(event, BatchRecord)]

    def recent(self) -> list[Event]:
        """Return a copy of the history, oldest first."""
        while True:
            try:
                return list(self.history)
            except RuntimeError:  # another thread published an event during the copy
                continue

    def _remove(self, subscription: Subscription) -> None:
        with contextlib.suppress(ValueError):  # it was already removed
            self._subscribers.remove(subscription)
