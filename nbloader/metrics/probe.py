"""Measures processes and threads: CPU and memory use of workers for a snapshot, counters of workers and the loop."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from nbloader._util.descriptors import open_into
from nbloader.events.gauges import Gauges, WorkerGauge
from nbloader.metrics.usage import ContextSwitches, CpuTimes, LoopCounters, Usage, UsageLog, WorkerCounters

AT_ONCE = 4
"""Workers measured per snapshot, least recently measured first: each takes 0.1 ms."""
MEMORY_SHARE = 0.003
"""Share of a core spent on measuring shared and private memory: the kernel walks all pages of the process, which takes
8 ms for a process that has imported torch."""
IDLE = 0.05
"""A process that runs, or could run, for less than this share of the time is idle."""
WATCHED = 8
"""Workers whose counters are read, those with the lowest ids: 20 us each."""
READ_NS = 90_000_000
"""Time between two readings of counters, ns."""
REREAD_NS = 1_000_000
"""Age up to which the reading at the end of an epoch serves for the beginning of the next one, ns."""
PROCESSES = ("process", "ray")
"""Kinds of workers that are processes of their own."""
LOCK_WAITS = ("futex", "lock", "semaphore", "mutex")
"""Parts of the names of the kernel's functions in which a thread waits for a lock (of a file, too)."""
_TICK = 1_000_000_000 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
"""Unit of the CPU times in /proc/PID/stat, ns."""
_clock = time.perf_counter_ns


class MemoryUse(NamedTuple):
    """Resident memory of a process, bytes."""

    private: int
    """Memory that no other process shares."""
    shared: int
    """Memory that several processes map (segments, the dataset, libraries)."""


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
        pids = {w.pid for w in gauges.workers if w.pid and w.kind in PROCESSES and w.machine is None}
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
        self._memory_due = now + (now - began) / MEMORY_SHARE


def _with_usage(w: WorkerGauge, usage: _Usage, memory: _Memory | None) -> WorkerGauge:
    """A copy; `dataclasses.replace` takes three times as long, for each worker of each snapshot."""
    private, shared = (None, None) if memory is None else memory.use
    return WorkerGauge(
        w.worker, w.pid, w.state, w.batch, w.since, w.sample, w.queued, w.exit_reason, w.stderr_tail,
        usage.cpu_percent, usage.rss, w.held, w.left, private, shared, w.made, usage.core_wait, w.kind,
        w.node, w.machine,
    )  # fmt: skip


def cpu_times(pid: int, thread: int | None = None) -> CpuTimes | None:
    """Scheduler statistics of a thread, None if the system does not report it.

    Args:
        pid: Its process.
        thread: Its native id; None for the main thread.
    """
    try:
        running, waiting, _ = _contents(f"/proc/{pid}/task/{thread or pid}/schedstat").split()
        return CpuTimes(int(running), int(waiting))
    except (OSError, ValueError):
        return None


def memory_of(pid: int) -> MemoryUse | None:
    """Private and shared memory of a process; None if the system does not report it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
        kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
        return MemoryUse(private * 1024, (kilobytes["Rss"] - private) * 1024)
    except (OSError, ValueError, KeyError, IndexError):
        return None


class WorkerThread(NamedTuple):
    """The thread of a worker that loads."""

    pid: int
    """Its process."""
    native_id: int
    """Its own id; of a process with one thread the same."""
    busy: bool
    """Whether it is processing a batch."""


class UsageProbe:
    """Reads the counters of workers and of the loop. Thread-safe."""

    def __init__(self) -> None:
        self._log = UsageLog()
        self._lock = threading.Lock()
        self._read_at = 0
        self._consumer = 0
        self._workers: tuple[WorkerThread, ...] = ()

    def due(self) -> bool:
        """Whether the last reading is old enough."""
        return _clock() - self._read_at >= READ_NS

    def read(
        self, workers: tuple[WorkerThread, ...] | None = None, *, consumer: bool = False, switches: bool = False
    ) -> None:
        """Read all counters, unless another thread does so.

        Args:
            workers: The workers; None for those of the last reading.
            consumer: Whether it is the consumer's thread that calls.
            switches: Whether to read context switches, too, which takes 13 us more for each worker.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._read(workers, consumer=consumer, switches=switches)
        finally:
            self._lock.release()

    def _read(self, workers: tuple[WorkerThread, ...] | None, *, consumer: bool, switches: bool) -> None:
        if workers is not None:
            self._workers = workers[:WATCHED]
        if consumer:
            self._consumer = threading.get_native_id()
        own = os.getpid()
        self._read_at = now = _clock()
        found = {w.native_id: worker_counters(w, switches=switches) for w in self._workers}
        times = cpu_times(own, self._consumer) if self._consumer else None
        known = {key: counters for key, counters in found.items() if counters is not None}
        self._log.add(now, known, LoopCounters(time.process_time_ns(), times))

    def begin_epoch(self) -> None:
        """An epoch begins; on the consumer's thread."""
        if _clock() - self._read_at >= REREAD_NS or self._consumer != threading.get_native_id():
            self.read(consumer=True)
        self._log.begin_epoch()

    def end_epoch(self) -> None:
        """The newest epoch has ended; on any thread."""
        self.read()
        self._log.end_epoch()

    def epoch(self) -> Usage | None:
        """Use during the newest epoch."""
        return self._log.epoch()

    def since(self, time: int) -> Usage | None:
        """Use since a time, perf_counter ns."""
        return self._log.since(time)


class _Stat(NamedTuple):
    """What is read of /proc/PID/stat, see proc(5). The figures of a process are those of all its threads together."""

    minor_faults: int
    major_faults: int
    user_ticks: int
    system_ticks: int
    threads: int

    @classmethod
    def parse(cls, text: str) -> _Stat:
        """Parse the file.

        Raises:
            ValueError: It does not have the expected format.
        """
        (
            _state, _parent, _group, _session, _terminal, _foreground, _flags, minor_faults, _children_minor,
            major_faults, _children_major, user, system, _children_user, _children_system, _priority, _nice, threads,
            *_rest,
        ) = text.rpartition(") ")[2].split()  # the name before it may contain spaces  # fmt: skip
        return cls(int(minor_faults), int(major_faults), int(user), int(system), int(threads))


def worker_counters(worker: WorkerThread, *, switches: bool = False) -> WorkerCounters | None:
    """The counters of a worker; None if it has ended, or the system does not report them.

    Args:
        worker: The worker.
        switches: Whether to read context switches, too.
    """
    main = cpu_times(worker.pid, worker.native_id)
    if main is None:
        return None
    task = f"/proc/{worker.pid}/task/{worker.native_id}"
    is_thread = worker.native_id != worker.pid
    try:
        stat = _Stat.parse(_contents(f"{task if is_thread else f'/proc/{worker.pid}'}/stat"))
        switched = _switches(_contents(f"{task}/status")) if switches else None
        waits_in = _contents(f"{task}/wchan") if worker.busy else ""
    except (OSError, ValueError, IndexError):
        return None
    return WorkerCounters(
        main,
        cpu=main.running if is_thread else (stat.user_ticks + stat.system_ticks) * _TICK,
        major_faults=stat.major_faults,
        threads=1 if is_thread else stat.threads,
        busy=worker.busy,
        locked=any(name in waits_in for name in LOCK_WAITS),
        minor_faults=stat.minor_faults,
        switches=switched,
    )


def _switches(status: str) -> ContextSwitches | None:
    """The context switches in a thread's status, which ends with them."""
    counts = status.rpartition("\nvoluntary_ctxt_switches:")[2].split("nonvoluntary_ctxt_switches:")
    return ContextSwitches(int(counts[0]), int(counts[1])) if len(counts) == 2 else None  # noqa: PLR2004 - both


def _contents(path: str) -> str:
    """The first 4 kB of a file; a third of the time of `Path.read_text`."""
    file: list[int] = []
    try:
        open_into(file, os.open, path, os.O_RDONLY)
        return os.read(file[0], 4096).decode("ascii", "replace")
    finally:
        if file:
            os.close(file[0])
