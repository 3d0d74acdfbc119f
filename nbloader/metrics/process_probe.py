"""Measures the CPU and memory use of worker processes for a snapshot."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from nbloader._platform import CpuTimes, MemoryUse, cpu_times, memory_of
from nbloader.events.gauges import Gauges, WorkerGauge

AT_ONCE = 4
"""Number of workers that are measured or sampled at a time, in turn: each takes 0.1 ms."""
MEASURING_SHARE = 0.003
"""Share of a core spent on a measurement that takes long. For shared and private memory, the kernel walks all pages of
a process, which takes 8 ms if it has imported torch."""
IDLE = 0.05
"""A process that runs, or could run, for less than this share of the time is idle."""


class _Usage(NamedTuple):
    """One measurement of a process."""

    time: float
    """Seconds, monotonic."""
    cpu_percent: float
    rss: int
    cpu: CpuTimes | None
    """None if the system does not report it."""
    core_wait: float | None
    """`CpuTimes.waiting` as a share of both, over the last interval in which the process was not idle."""


class _Memory(NamedTuple):
    """One measurement of a process's memory."""

    time: float
    """Seconds, monotonic."""
    use: MemoryUse


class ProcessProbe:
    """Measures worker processes. Keeps the previous measurements, to compute CPU use over the time between."""

    def __init__(self) -> None:
        self._processes: dict[int, Any] = {}  # by pid, as all that follow
        self._usage: dict[int, _Usage] = {}
        self._memory: dict[int, _Memory] = {}
        self._memory_due = 0.0

    def fill(self, gauges: Gauges) -> Gauges:
        """The gauges with CPU and memory use of each worker. Only processes of this machine have either."""
        pids = {w.pid for w in gauges.workers if w.pid and not w.in_process and w.machine is None}
        if not pids:
            return gauges
        for table in (self._processes, self._usage, self._memory):
            for pid in table.keys() - pids:
                del table[pid]
        for pid in sorted(pids, key=self._measured)[:AT_ONCE]:
            self._measure(pid)
        self._measure_memory(w.pid for w in gauges.workers if w.pid in pids and w.state != "starting")
        workers = []
        for worker in gauges.workers:
            usage, memory = self._usage.get(worker.pid), self._memory.get(worker.pid)
            workers.append(worker if usage is None else _with_usage(worker, usage, memory))
        return dataclasses.replace(gauges, workers=tuple(workers))

    def _measured(self, pid: int) -> float:
        """When a process was measured last, seconds, monotonic."""
        usage = self._usage.get(pid)
        return 0.0 if usage is None else usage.time

    def _measure(self, pid: int) -> None:
        import psutil

        try:
            process = self._processes.get(pid)
            if process is None:
                process = self._processes[pid] = psutil.Process(pid)
            with process.oneshot():
                used, rss = process.cpu_percent(None), process.memory_info().rss
        except psutil.Error:  # it has ended
            self._usage.pop(pid, None)
            return
        before, now, cpu = self._usage.get(pid), time.monotonic(), cpu_times(pid)
        share = None if before is None else before.core_wait
        if before is not None and before.cpu is not None and cpu is not None:
            running, waiting = cpu.running - before.cpu.running, cpu.waiting - before.cpu.waiting
            if running + waiting > IDLE * 1e9 * (now - before.time):
                share = waiting / (running + waiting)
        self._usage[pid] = _Usage(now, used, rss, cpu, share)

    def _measure_memory(self, pids: Iterable[int]) -> None:
        """Measure the least recently measured process, unless the last measurement was too recent for its cost."""
        began = time.monotonic()
        if began < self._memory_due:
            return
        pid = min(pids, key=lambda pid: self._memory[pid].time if pid in self._memory else 0.0, default=None)
        if pid is None:
            return
        use = memory_of(pid)
        now = time.monotonic()
        if use is not None:
            self._memory[pid] = _Memory(now, use)
        self._memory_due = now + (now - began) / MEASURING_SHARE


def _with_usage(w: WorkerGauge, usage: _Usage, memory: _Memory | None) -> WorkerGauge:
    """A copy; `dataclasses.replace` takes three times as long, for each worker of each snapshot."""
    private, shared = (None, None) if memory is None else memory.use
    return WorkerGauge(
        w.worker, w.pid, w.state, w.batch, w.since, w.sample, w.queued, w.exit_reason, w.stderr_tail,
        usage.cpu_percent, usage.rss, w.held, w.left, private, shared, w.made, usage.core_wait, w.kind,
        w.node, w.machine, w.in_process,
    )  # fmt: skip
