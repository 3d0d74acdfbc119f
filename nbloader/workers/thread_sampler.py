"""Sample what a worker thread executes; see `line_sampler.py`."""

from __future__ import annotations

import os
import sys
import time
from types import CodeType

from nbloader._platform import UNKNOWN, cpu_times, state_of, waits_in
from nbloader.events.stack_samples import StackCount
from nbloader.workers.line_sampler import user_lines
from nbloader.workers.status import PRODUCING, WorkerStatus

_clock = time.perf_counter_ns


class ThreadSampler:
    """Sample the stack of a thread of this process.

    Args:
        root: See `user_lines`.
    """

    def __init__(self, root: CodeType) -> None:
        self._root = root
        self._before = (0, 0)
        """Time of the last call, and the CPU time that the thread had used (including waits for a core), ns."""
        self._queued = 0
        """The part of that time in which the thread waited for a core, ns."""

    def sample(self, ident: int, native_id: int, status: WorkerStatus) -> StackCount | None:
        """Return the current stack of the thread; None if the thread is not producing a batch.

        If the thread waits for the interpreter lock, it may be waiting only because of the sampling thread. It then
        counts as computing in proportion to its share of CPU time since the last call: that of the whole process where
        the system does not report a thread's.

        Args:
            ident: Identifier of the thread.
            native_id: The system's id of the thread.
            status: The status of the worker.
        """
        pid = os.getpid()
        now, times = _clock(), cpu_times(pid, native_id)
        used = time.process_time_ns() if times is None else times.running + times.waiting
        before, self._before = self._before, (now, used)
        queued_before, self._queued = self._queued, 0 if times is None else times.waiting
        stage = status.state
        stack = user_lines(sys._current_frames().get(ident), self._root, stage) if stage in PRODUCING else None
        if stack is None:
            return None
        share = min(1.0, (used - before[1]) / max(now - before[0], 1)) if before[0] else 0.5
        state = state_of(pid, native_id)
        if state == "R":
            share = 1.0
        elif (
            state != UNKNOWN
            and not any(part in (function := waits_in(pid, native_id)) for part in ("futex", UNKNOWN))
            and function != "0"
        ):
            share = 0.0
        queued = share * min(1.0, max(0.0, self._queued - queued_before) / max(1, used - before[1]))
        return StackCount(stack, share - queued, 1 - share + queued, queued)
