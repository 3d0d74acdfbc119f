"""Wakes a thread that blocks in `poll`, from any thread and from finalizers."""

from __future__ import annotations

import contextlib
import socket

from nbloader._platform.polling import poll_for


class Wakeup:
    """An event for one waiting thread, implemented as a socket pair. `set` takes no lock, so finalizers may call it.

    It uses sockets rather than a pipe because a socket that another thread has just closed raises an exception, while
    the descriptor number of a closed pipe could already belong to another file.
    """

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._others: tuple[int, ...] = ()
        self._poll = poll_for([self._read])

    def set(self) -> None:
        """Wake the waiting thread. If no thread is waiting, the next `wait` returns immediately."""
        with contextlib.suppress(OSError):  # the buffer is full of wake-ups, or the socket is closed
            self._write.send(b"w")

    def wait(self, others: tuple[int, ...], timeout: float | None) -> None:
        """Block until the event is set or another descriptor becomes readable. Called on one thread.

        Args:
            others: The other descriptors.
            timeout: Maximum time to wait, in seconds; None to wait indefinitely.
        """
        if others != self._others:
            self._others, self._poll = others, poll_for([self._read, *others])
        if any(key.fileobj is self._read for key, _events in self._poll.select(timeout)):
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
