"""The event loop that runs the samples of asynchronous datasets. Imports asyncio, which other workers do not need."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys

FD_SETSIZE = 1024
"""`select.select` accepts only file descriptors below this number."""

if sys.platform == "linux":

    class PreciseSelector(selectors.EpollSelector):
        """A selector with timeouts precise to the microsecond; `epoll_wait` rounds timeouts up to a millisecond."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """See `selectors.BaseSelector`. This waits with `select.select` for the epoll descriptor itself."""
            if timeout is not None and timeout > 0 and self.fileno() < FD_SETSIZE:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create the event loop of a worker: asyncio's with a `PreciseSelector`, or the loop of the user's policy."""
    loop = asyncio.new_event_loop()
    if sys.platform != "linux" or type(loop) is not asyncio.SelectorEventLoop:
        return loop
    loop.close()
    return asyncio.SelectorEventLoop(PreciseSelector())
