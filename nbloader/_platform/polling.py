"""Waits until descriptors can be read."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Any

POLLIN: int = getattr(select, "POLLIN", 1)


class SelectPoll:
    """`select.poll` for reading, on systems that have only `select.select` (Windows)."""

    def __init__(self) -> None:
        self._fds: set[int] = set()

    def register(self, file: Any, _events: int) -> None:
        """Watch a descriptor, or an object with one."""
        self._fds.add(file if isinstance(file, int) else file.fileno())

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Return the descriptors that can be read, each with `POLLIN`.

        Args:
            timeout: Maximum time to wait, in milliseconds; None to wait indefinitely.
        """
        ready, _, _ = select.select(list(self._fds), [], [], None if timeout is None else timeout / 1000)
        return [(fd, POLLIN) for fd in ready]


Poll: Any = getattr(select, "poll", SelectPoll)


def readable(files: Iterable[Any], timeout: float) -> list[int]:
    """Wait until a file can be read or has been closed by the other end, and return the descriptors of all that can.

    Args:
        files: Descriptors, or objects with one.
        timeout: Maximum time to wait, in seconds.
    """
    poll = Poll()
    for file in files:
        poll.register(file, POLLIN)
    return [fd for fd, _events in poll.poll(max(0.0, timeout) * 1000)]
