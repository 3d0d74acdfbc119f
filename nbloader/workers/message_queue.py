"""A queue of messages from threads of this process, with a file descriptor that becomes readable."""

from __future__ import annotations

import threading

from nbloader._platform import Wakeup
from nbloader.workers.messages import WorkerMessage


class MessageQueue:
    """A queue of messages from workers. `fileno()` is readable while it is not empty."""

    def __init__(self) -> None:
        self._messages: list[WorkerMessage] = []
        self._wakeup = Wakeup()
        self._awake = False
        self._lock = threading.Lock()
        """Held while the queue is changed, and while `_awake` may differ from the state of the descriptor."""
        self.fileno = self._wakeup.fileno

    def put(self, message: WorkerMessage) -> None:
        """Add a message. This method is thread-safe."""
        with self._lock:
            self._messages.append(message)
            if not self._awake:  # one system call for many messages
                self._awake = True
                self._wakeup.set()

    def take(self, timeout: float | None) -> list[WorkerMessage]:
        """Take all messages.

        Args:
            timeout: Seconds to wait for a message; 0 does not wait, None waits without limit.
        """
        if timeout != 0 and not self._messages:
            self._wakeup.wait((), timeout)
        if not self._messages:
            return []
        with self._lock:
            if self._awake:
                self._awake = False
                self._wakeup.clear()
            messages, self._messages = self._messages, []
        return messages

    def close(self) -> None:
        """Close the descriptor."""
        self._wakeup.close()
