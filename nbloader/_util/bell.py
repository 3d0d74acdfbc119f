"""Wakes a thread that waits for something to change, from any thread, signal handlers and finalizers."""

from __future__ import annotations

import queue


class Bell:
    """Wakes one thread.

    The thread listens first, then looks whether there is anything to wait for, and only then waits: what changes after
    its look wakes it.
    """

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.listening = False
        """Whether a thread waits, or is about to."""

    def ring(self) -> None:
        """Wake the thread that listens, if there is one. Takes no lock."""
        if self.listening:
            self._rings.put(None)

    def wait(self, timeout: float | None) -> None:
        """Block until the bell rings. It may also have rung before.

        Args:
            timeout: Maximum time to wait, in seconds; None to wait indefinitely.
        """
        try:
            self._rings.get(timeout=None if timeout is None else max(0.0, timeout))
            while True:  # one wake-up for many rings
                self._rings.get_nowait()
        except queue.Empty:
            pass
