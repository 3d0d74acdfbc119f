"""Read what a worker process does at one moment: compute, wait for a core, or wait for anything else.

Used in the notebook's process, for the samples of `line_sampler.py`.
"""

from __future__ import annotations

from enum import Enum

from nbloader._platform import UNKNOWN, CpuTimes, cpu_times, state_of


class RunState(Enum):
    """What the main thread of a worker process does at one moment."""

    COMPUTING = "computing"
    QUEUED = "queued"
    """It is ready to run but has no core."""
    WAITING = "waiting"
    """It waits for anything else."""


class RunStateReader:
    """Reads what the main thread of a process does. The system reports the same state with and without a core.

    Such moments are divided in the proportion of the times that the thread had a core and waited for one since the
    moment before.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._before = CpuTimes(0, 0)
        self._owed = 0.0
        """Number of moments that should have been `QUEUED`, according to the times, and were not."""

    def read(self, pid: int) -> RunState:
        """Return the present state; `COMPUTING` if the system does not report it.

        Args:
            pid: The process.
        """
        if state_of(pid, pid) not in ("R", UNKNOWN):
            return RunState.WAITING
        times = cpu_times(pid) or CpuTimes(0, 0)
        before = self._before if pid == self._pid else CpuTimes(0, 0)
        self._pid, self._before = pid, times
        running, waiting = times.running - before.running, times.waiting - before.waiting
        self._owed += waiting / (running + waiting) if running + waiting > 0 else 0.0
        if 2 * self._owed < 1:
            return RunState.COMPUTING
        self._owed -= 1
        return RunState.QUEUED
