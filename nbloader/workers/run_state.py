"""Read what a worker process does at one moment: compute, wait for a core, or wait for anything else.

Used in the notebook's process, for the samples of `line_sampler.py`.
"""

from __future__ import annotations

import time
from enum import Enum

from nbloader._platform import UNKNOWN, Activity, CpuTimes, activity, cpu_times, state_of


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
    moment before. Where the system reports no states, all moments are divided in the proportion of the CPU time that
    the process has used since the moment before: this is right for the process, and not for each of its lines.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._before = CpuTimes(0, 0)
        self._used = Activity(UNKNOWN, 0)
        self._used_at = 0
        self._owed = 0.0
        """Number of moments that should have been `QUEUED`, according to the times, and were not; `COMPUTING` where the
        system reports no states."""

    def read(self, pid: int) -> RunState:
        """Return the present state.

        Args:
            pid: The process.
        """
        state = state_of(pid, pid)
        if state == UNKNOWN:
            return self._by_cpu_time(pid)
        if state != "R":
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

    def _by_cpu_time(self, pid: int) -> RunState:
        """Divide moments by CPU time. The first one of a process is `COMPUTING`."""
        used, now = activity(pid) or Activity(UNKNOWN, 0), time.perf_counter_ns()
        if pid != self._pid:
            self._owed = 1.0
        else:
            self._owed += min(1.0, max(0, used.cpu - self._used.cpu) / max(1, now - self._used_at))
        self._pid, self._used, self._used_at = pid, used, now
        if 2 * self._owed < 1:
            return RunState.WAITING
        self._owed -= 1
        return RunState.COMPUTING
