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

    If a process is terminated through this view, it is replaced, like a process that dies for any other reason.

    Args:
        handle: The handle of the worker.
    """

    daemon = True

    def __init__(self, handle: WorkerHandle) -> None:
        self._handle = handle
        self.name = f"nbloader-worker-{handle.worker}"

    @property
    def pid(self) -> int | None:
        """The process id. For a worker thread, this is the id of the current process.

        Workers start in the background, so this may wait for a few milliseconds. None if there is no process because it
        could not be started, or was not started within 10 s.
        """
        self._handle.pid_known.wait(PID_TIMEOUT)
        return self._handle.pid or None

    ident = pid

    @property
    def exitcode(self) -> int | None:
        """The exit code, as in `multiprocessing`; None while the worker runs, or if the exit code is unknown."""
        return self._handle.exitcode

    def is_alive(self) -> bool:
        """Whether the worker is running, as far as its loader knows."""
        return not self._handle.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the worker ends.

        Args:
            timeout: Seconds; None waits without limit.
        """
        self._handle.ended.wait(timeout)

    def terminate(self) -> None:
        """Send SIGTERM to the worker process. No-op for workers that are not local processes."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the worker process. No-op for workers that are not local processes."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid and self._handle.takes_signals and self.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)

    def __repr__(self) -> str:
        """Return a one-line description of the worker."""
        state = "alive" if self.is_alive() else f"exitcode={self.exitcode}"
        return f"<{self.name} pid={self._handle.pid or None} {state}>"
