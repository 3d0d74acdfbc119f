"""Wakes a thread that blocks in `poll`, from any thread and from finalizers."""

from __future__ import annotations

import contextlib
import select
import socket

CONCURRENT_NEXT = (
    "two threads call next() on one iterator at the same time: use an iterator per thread, iter(loader), or a lock"
)


class Wakeup:
    """An event for one waiting thread, made of a socket pair. `set` takes no lock, so a finalizer can call it anywhere.

    Sockets, not a pipe: a socket that another thread has just closed raises, while a pipe's number could already belong
    to another file.
    """

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._polls: dict[int | None, select.poll] = {}  # by the other descriptor
        self._waiting = False

    def set(self) -> None:
        """Wake the waiting thread; without one, the next `wait` returns at once."""
        with contextlib.suppress(OSError):  # the buffer is full of wake-ups, or closed
            self._write.send(b"w")

    def wait(self, other: int | None, timeout: float | None) -> None:
        """Block until it is set, or another descriptor is readable.

        Args:
            other: The other descriptor; None for none.
            timeout: Seconds; None waits without limit.

        Raises:
            RuntimeError: Another thread is waiting.
        """
        poll = self._polls.get(other)
        if poll is None:
            poll = select.poll()
            poll.register(self._read, select.POLLIN)
            if other is not None:
                poll.register(other, select.POLLIN)
            self._polls[other] = poll
        if self._waiting:
            raise RuntimeError(CONCURRENT_NEXT)
        try:
            self._waiting = True
            ready = poll.poll(None if timeout is None else max(0.0, timeout * 1000))
        finally:
            self._waiting = False
        for fd, _events in ready:
            if fd != other:
                self.clear()

    def pause(self, seconds: float) -> None:
        """Block until it is set, at most for a short time, which is kept to the microsecond: `poll` rounds up to 1 ms.

        Args:
            seconds: The time.

        Raises:
            RuntimeError: Another thread is waiting.
        """
        if self._waiting:
            raise RuntimeError(CONCURRENT_NEXT)
        try:
            self._waiting = True
            ready = select.select((self._read,), (), (), max(0.0, seconds))[0]
        except (ValueError, OSError):  # `select` takes descriptors up to 1023 only, and none of a closed socket
            ready = []
        finally:
            self._waiting = False
        if ready:
            self.clear()

    def fileno(self) -> int:
        """A descriptor that is readable while a wake-up is pending."""
        return self._read.fileno()

    def clear(self) -> None:
        """Discard pending wake-ups."""
        with contextlib.suppress(OSError):  # nothing to read, or closed
            self._read.recv(4096)

    def close(self) -> None:
        """Close it; `set` has no effect from now on."""
        self._read.close()
        self._write.close()
