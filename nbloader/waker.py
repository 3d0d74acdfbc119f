"""A wake-up for one thread that blocks in a poll, from any thread and from finalizers."""

from __future__ import annotations

import contextlib
import os
import select


class Waker:
    """A pipe. Setting it takes no lock, so that a finalizer may do it whatever its thread was at."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._polls: tuple[int, select.poll] | None = None
        self.closed = False

    def set(self) -> None:
        """Wake."""
        if not self.closed:
            with contextlib.suppress(BlockingIOError):  # full of wake-ups already
                os.write(self._write, b"w")

    def wait(self, other: int | None, timeout: float | None) -> None:
        """Block until it is set, or something happens on another descriptor.

        Args:
            other: A descriptor to wait for too.
            timeout: Seconds; None waits for ever.
        """
        if self._polls is None or self._polls[0] != other:
            poll = select.poll()
            poll.register(self._read, select.POLLIN)
            if other is not None:
                poll.register(other, select.POLLIN)
            self._polls = -1 if other is None else other, poll
        for fd, _event in self._polls[1].poll(None if timeout is None else max(0.0, timeout * 1000)):
            if fd == self._read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read, 4096)

    def close(self) -> None:
        """Close the pipe; waking it does nothing from now on."""
        if not self.closed:
            self.closed = True
            os.close(self._read)
            os.close(self._write)
