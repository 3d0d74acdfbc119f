"""Workers as torch's iterator shows them: for programs that look at `iterator._workers`, to end one or to await it."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbloader.workers.api import WorkerHandle

PATIENCE = 10.0
"""Seconds that somebody who asks for a process's id waits for it."""


class WorkerView:
    """One worker, in the shape of `multiprocessing.Process`. A process that is ended so is replaced, as by any death.

    Args:
        handle: Of the worker.
    """

    daemon = True

    def __init__(self, handle: WorkerHandle) -> None:
        self._handle = handle
        self.name = f"nbloader-worker-{handle.worker}"

    @property
    def pid(self) -> int | None:
        """Of its process; that of this process for a worker thread.

        Workers are started while the program goes on: this waits until it is known, a few milliseconds. None where it
        never will be: the worker could not be started, or is not there after 10 s.
        """
        self._handle.pid_known.wait(PATIENCE)
        return self._handle.pid or None

    ident = pid

    @property
    def exitcode(self) -> int | None:
        """How it ended, as `multiprocessing` says it; None while it runs, or where nobody knows."""
        return self._handle.exitcode

    def is_alive(self) -> bool:
        """Whether it has not ended, as far as its loader has heard."""
        return not self._handle.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end.

        Args:
            timeout: Seconds; None waits for ever.
        """
        self._handle.ended.wait(timeout)

    def terminate(self) -> None:
        """Send its process SIGTERM; nothing for a thread, which cannot be ended."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send its process SIGKILL; nothing for a thread."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid and pid != os.getpid() and self.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)

    def __repr__(self) -> str:
        """One line."""
        state = "alive" if self.is_alive() else f"exitcode={self.exitcode}"
        return f"<{self.name} pid={self._handle.pid or None} {state}>"
