"""A wake-up for one thread that blocks in a poll, from any thread and from finalizers."""

from __future__ import annotations

import contextlib
import select
import socket

TWO_THREADS = (
    "two threads call next() on one iterator at once: give each its own, iter(loader), or let one wait for "
    "the other by a lock"
)


class Wakeup:
    """A pair of sockets. Setting it takes no lock, so that a finalizer may do it whatever its thread was at.

    Sockets and not a pipe: one that another thread has just closed raises, and never writes into a descriptor that was
    opened since under the same number.
    """

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._polls: dict[int | None, select.poll] = {}  # with another descriptor each
        self._asleep = False

    def set(self) -> None:
        """Wake."""
        with contextlib.suppress(OSError):  # full of wake-ups already, or closed
            self._write.send(b"w")

    def wait(self, other: int | None, timeout: float | None) -> None:
        """Block until it is set, or something happens on another descriptor.

        Args:
            other: A descriptor to wait for too.
            timeout: Seconds; None waits for ever.

        Raises:
            RuntimeError: Another thread waits.
        """
        poll = self._polls.get(other)
        if poll is None:
            poll = select.poll()
            poll.register(self._read, select.POLLIN)
            if other is not None:
                poll.register(other, select.POLLIN)
            self._polls[other] = poll
        if self._asleep:
            raise RuntimeError(TWO_THREADS)
        try:
            self._asleep = True
            ready = poll.poll(None if timeout is None else max(0.0, timeout * 1000))
        finally:
            self._asleep = False
        for fd, _events in ready:
            if fd != other:
                self.clear()

    def fileno(self) -> int:
        """A descriptor that is readable while it is set."""
        return self._read.fileno()

    def clear(self) -> None:
        """Take the wake-ups until now back."""
        with contextlib.suppress(OSError):  # nothing to read, or closed
            self._read.recv(4096)

    def close(self) -> None:
        """Close it; waking it does nothing from now on."""
        self._read.close()
        self._write.close()
