"""Functions that a front end wants called while the consumer's thread is inside `__next__`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

INTERVAL = 0.1
"""Seconds between two calls."""


class WaitCallbacks:
    """Calls them at most every `INTERVAL`; one that raises is removed and logged."""

    def __init__(self) -> None:
        self._callbacks: tuple[Callable[[], object], ...] = ()
        self._called = 0.0

    @property
    def interval(self) -> float | None:
        """How long a wait may last before `call` is due again, in seconds; None when there is nobody to call."""
        return INTERVAL if self._callbacks else None

    def add(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Register; gives a function that unregisters."""
        self._callbacks = (*self._callbacks, callback)
        return lambda: self._remove(callback)

    def call(self) -> None:
        """Call all, if it is time."""
        if not self._callbacks:
            return
        now = time.monotonic()
        if now - self._called < INTERVAL:
            return
        self._called = now
        for callback in self._callbacks:
            try:
                callback()
            except Exception:
                log.exception("an on_wait callback raised and was removed")
                self._remove(callback)

    def _remove(self, callback: Callable[[], object]) -> None:
        self._callbacks = tuple(c for c in self._callbacks if c is not callback)
