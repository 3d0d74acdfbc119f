"""A queue of messages from threads of this process, with a file descriptor that becomes readable."""

from __future__ import annotations

import collections

from nbloader._platform import Wakeup
from nbloader.workers.messages import WorkerMessage


class MessageQueue:
    """A queue of messages from workers. `fileno()` is readable while it is not empty."""

    def __init__(self) -> None:
        self._messages: collections.deque[WorkerMessage] = collections.deque()
        self._wakeup = Wakeup()
        self.fileno = self._wakeup.fileno

    def put(self, message: WorkerMessage) -> None:
        """Add a message. This method is thread-safe."""
        self._messages.append(message)
        self._wakeup.set()

    def take(self, timeout: float | None) -> list[WorkerMessage]:
        """Take all messages. There may be none.

        Args:
            timeout: Seconds to wait for a message; 0 does not wait, None waits without limit.
        """
        if timeout != 0 and not self._messages:
            self._wakeup.wait((), timeout)
        self._wakeup.clear()  # first, so that what is added meanwhile wakes again
        taken = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken

    def close(self) -> None:
        """Close the descriptor."""
        self._wakeup.close()
