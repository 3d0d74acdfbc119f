"""Workers as torch's iterator shows them in `iterator._workers`, for programs that end or join them."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbloader.workers.api import WorkerHandle

PID_TIMEOUT = 10.0
"""Seconds to wait for the id of a process that is being started."""


class WorkerView:
    """One worker, with the interface of `multiprocessing.Process`.

    A process that is ended through it is replaced, like one that dies for any other reason.

    Args:
        handle: The handle of the worker.
    """

    daemon = True

    def __init__(self, handle: WorkerHandle) -> None:
        self._handle = handle
        self.name = f"nbloader-worker-{handle.worker}"

    @property
    def pid(self) -> int | None:
        """The process id; that of this process for a worker thread.

        Workers are started while the program continues, so this waits for a few milliseconds. None if there is no
        process: it could not be started, or has not been after 10 s.
        """
        self._handle.pid_known.wait(PID_TIMEOUT)
        return self._handle.pid or None

    ident = pid

    @property
    def exitcode(self) -> int | None:
        """The exit code, as in `multiprocessing`; None while it runs, or if it is unknown."""
        return self._handle.exitcode

    def is_alive(self) -> bool:
        """Whether it is running, as far as its loader knows."""
        return not self._handle.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it ends.

        Args:
            timeout: Seconds; None waits without limit.
        """
        self._handle.ended.wait(timeout)

    def terminate(self) -> None:
        """Send SIGTERM to its process. Does nothing for workers that are not processes."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to its process. Does nothing for workers that are not processes."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid and self._handle.kind == "process" and self.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)

    def __repr__(self) -> str:
        """One line."""
        state = "alive" if self.is_alive() else f"exitcode={self.exitcode}"
        return f"<{self.name} pid={self._handle.pid or None} {state}>"
