"""Wakes a thread that blocks in `poll`, from any thread and from finalizers."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from nbloader._platform.polling import POLLIN, Poll


class Wakeup:
    """An event for one waiting thread, implemented as a socket pair. `set` takes no lock, so finalizers may call it.

    It uses sockets rather than a pipe because a socket that another thread has just closed raises an exception, while
    the descriptor number of a closed pipe could already belong to another file.
    """

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._polls: dict[int | tuple[int, ...] | None, Any] = {}  # keyed by the other descriptors
        self._waiting = False

    def set(self) -> None:
        """Wake the waiting thread. If no thread is waiting, the next `wait` returns immediately."""
        with contextlib.suppress(OSError):  # the buffer is full of wake-ups, or the socket is closed
            self._write.send(b"w")

    def wait(self, other: int | tuple[int, ...] | None, timeout: float | None) -> None:
        """Block until the event is set or another descriptor becomes readable.

        Args:
            other: The other descriptor, several of them, or None.
            timeout: Maximum time to wait, in seconds; None to wait indefinitely.

        Raises:
            RuntimeError: Another thread is waiting.
        """
        poll = self._polls.get(other)
        if poll is None:
            poll = Poll()
            poll.register(self._read, POLLIN)
            for fd in (other,) if isinstance(other, int) else other or ():
                poll.register(fd, POLLIN)
            self._polls[other] = poll
        if self._waiting:
            raise RuntimeError("another thread waits for this event")
        try:
            self._waiting = True
            ready = poll.poll(None if timeout is None else max(0.0, timeout * 1000))
        finally:
            self._waiting = False
        for fd, _events in ready:
            if fd == self._read.fileno():
                self.clear()

    def fileno(self) -> int:
        """Return a descriptor that is readable while a wake-up is pending."""
        return self._read.fileno()

    def clear(self) -> None:
        """Discard pending wake-ups."""
        with contextlib.suppress(OSError):  # nothing to read, or the socket is closed
            self._read.recv(4096)

    def close(self) -> None:
        """Close the sockets. Afterwards, `set` has no effect."""
        self._read.close()
        self._write.close()
