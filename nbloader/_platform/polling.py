"""Waits until descriptors can be read, with what the system has: `select.poll`, or `select.select` on Windows."""

from __future__ import annotations

import selectors
from collections.abc import Iterable
from typing import Any

Poll: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


def poll_for(files: Iterable[Any]) -> selectors.BaseSelector:
    """Return a selector of files that can be read, or have been closed by the other end. It needs no `close()`.

    Args:
        files: Descriptors, or objects with one.
    """
    poll = Poll()
    for file in files:
        poll.register(file, selectors.EVENT_READ)
    return poll


def readable(files: Iterable[Any], timeout: float) -> list[int]:
    """Wait until a file can be read or has been closed by the other end, and return the descriptors of all that can.

    Args:
        files: Descriptors, or objects with one.
        timeout: Maximum time to wait, in seconds.
    """
    return [key.fd for key, _events in poll_for(files).select(max(0.0, timeout))]
