"""A queue of messages from threads of this process, with a file descriptor to wait for them."""

from __future__ import annotations

import threading

from nbloader._util.wakeup import Wakeup
from nbloader.transport.messages import WorkerMessage


class MessageQueue:
    """Messages of workers in this process. `fileno()` is readable while there are any, except as `group` says."""

    def __init__(self) -> None:
        self._messages: list[WorkerMessage] = []
        self._wakeup = Wakeup()
        self._awake = False
        self._group = 1
        self._lock = threading.Lock()
        """Held while `_awake` and the state of the descriptor may differ."""
        self.fileno = self._wakeup.fileno

    def put(self, message: WorkerMessage, *, urgent: bool = True) -> None:
        """Add a message. May be called from any thread.

        Args:
            message: The message.
            urgent: Whether it does not wait for others; see `group`.
        """
        with self._lock:
            self._messages.append(message)
            if not self._awake and (urgent or len(self._messages) >= self._group):  # one system call for many messages
                self._awake = True
                self._wakeup.set()

    def group(self, count: int) -> None:
        """Let the descriptor become readable for so many messages that are not urgent, until messages are taken."""
        with self._lock:
            self._group = count
            if not self._awake and len(self._messages) >= count:
                self._awake = True
                self._wakeup.set()

    def take(self, timeout: float | None) -> list[WorkerMessage]:
        """Take all messages.

        Args:
            timeout: Seconds to wait for one; 0 does not wait, None waits without limit.
        """
        if timeout != 0 and not self._messages:
            self._wakeup.wait(None, timeout)
        if not self._messages:
            return []
        with self._lock:
            if self._awake:
                self._awake = False
                self._wakeup.clear()
            self._group = 1
            messages, self._messages = self._messages, []
        return messages

    def close(self) -> None:
        """Close the descriptor."""
        self._wakeup.close()
