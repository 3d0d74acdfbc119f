"""Callbacks that run on the consumer's thread inside `__next__`, for front ends that need this thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from nbloader._util.bell import Bell
from nbloader._util.signals import raised_by_handler

log = logging.getLogger(__name__)

INTERVAL = 0.1
"""Minimum number of seconds between two calls of the callbacks."""


class WaitCallbacks:
    """Calls each callback at most once per `INTERVAL`. A callback that raises an exception is logged and removed."""

    def __init__(self) -> None:
        self._callbacks: tuple[Callable[[], object], ...] = ()
        self._while_waiting: tuple[Callable[[], object], ...] = ()
        self._called = 0.0

    def add(self, callback: Callable[[], object], *, each_batch: bool = True) -> Callable[[], None]:
        """Register a callback.

        Args:
            callback: The function.
            each_batch: Whether to call it even if `__next__` returns without waiting. If false, it is called while
                `__next__` waits, and otherwise only together with callbacks for which this is true.

        Returns:
            A function that unregisters the callback.
        """
        if each_batch:
            self._callbacks = (*self._callbacks, callback)
        else:
            self._while_waiting = (*self._while_waiting, callback)
        return lambda: self._remove(callback)

    def call(self, *, waiting: bool = False) -> None:
        """Call all callbacks, unless the last call was less than `INTERVAL` ago.

        Args:
            waiting: Whether the consumer is waiting for a batch.
        """
        if not (self._callbacks or waiting):
            return
        now = time.monotonic()
        if now - self._called < INTERVAL:
            return
        self._called = now
        for callback in (*self._callbacks, *self._while_waiting):
            try:
                callback()
            except Exception as error:
                if raised_by_handler(error):
                    raise
                log.exception("an on_wait callback raised and was removed")
                self._remove(callback)

    def wait(self, bell: Bell, seconds: float | None) -> None:
        """Block until a bell rings, time is up, or callbacks are due, and call those that are due.

        Args:
            bell: The consumer's bell.
            seconds: Maximum time to wait; None to wait indefinitely.
        """
        if self._callbacks or self._while_waiting:
            seconds = INTERVAL if seconds is None else min(seconds, INTERVAL)
        bell.wait(seconds)
        self.call(waiting=True)

    def _remove(self, callback: Callable[[], object]) -> None:
        self._callbacks = tuple(c for c in self._callbacks if c is not callback)
        self._while_waiting = tuple(c for c in self._while_waiting if c is not callback)
