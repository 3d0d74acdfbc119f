"""CPU time, waits for a core, page faults and lock waits of workers and the loop over a span. Pure: no clock, no I/O.

`usage_probe.UsageProbe` reads the counters when an epoch begins and ends, with each snapshot, and at most about ten
times a second while the consumer is inside `__next__`.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nbloader._platform import ContextSwitches, CpuTimes
from nbloader.metrics.rates import RATE_NS

MARKS = 128
"""Number of readings that are kept. At ten readings per second, they cover the last 12 s."""


class WorkerCounters(NamedTuple):
    """Counters of one worker since it started."""

    main: CpuTimes
    """Statistics of the thread that loads batches."""
    cpu: int
    """CPU time of all its threads, ns."""
    major_faults: int
    """Number of page faults that read from disk or swap."""
    threads: int
    """Present number of threads."""
    busy: bool
    """Whether the worker was processing a batch."""
    locked: bool
    """Whether the worker was waiting for a lock in the kernel."""
    minor_faults: int = 0
    """Number of page faults that read nothing: memory was used for the first time, or again after it was released."""
    switches: ContextSwitches | None = None
    """Context switches of the thread that loads batches; None if they were not read."""


class LoopCounters(NamedTuple):
    """Counters of the process that iterates."""

    cpu: int
    """CPU time of all its threads, ns."""
    consumer: CpuTimes | None
    """Statistics of the thread that iterates; None if the system does not report them."""
    idle: int | None = None
    """Time for which the machine's CPUs had nothing to do, ns; None if unknown, or if it may not use all of them."""


class _Totals(NamedTuple):
    """Sums over all readings. Times are in ns."""

    elapsed: int = 0
    worker_time: int = 0
    running: int = 0
    waiting: int = 0
    cpu: int = 0
    major_faults: int = 0
    busy_looks: int = 0
    locked_looks: int = 0
    loop_cpu: int = 0
    consumer_running: int = 0
    consumer_waiting: int = 0
    minor_faults: int = 0
    switched_time: int = 0
    voluntary: int = 0
    involuntary: int = 0
    idle: int = 0
    idle_elapsed: int = 0


class _Switched(NamedTuple):
    time: int
    switches: ContextSwitches


class _Mark(NamedTuple):
    time: int
    totals: _Totals


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource usage of workers and the loop over a span. Covers only the workers and times that were measured."""

    seconds: float
    """Time that the readings cover."""
    core_wait: float
    """Share of a worker's time during which it was runnable but had no core, 0 to 1."""
    worker_cores: float
    """CPU time per second of one worker, summed over its threads."""
    other_threads: float
    """Share of the workers' CPU time that threads other than the loading thread used, 0 to 1."""
    threads: int
    """Number of threads of the worker that has the most."""
    major_faults: float
    """Major page faults per second of one worker."""
    locked: float
    """Share of the observations of busy workers in which the worker was waiting for a lock, 0 to 1."""
    looks: int
    """Number of observations of busy workers."""
    loop_cores: float
    """CPU time per second of the process that iterates, summed over its threads."""
    consumer_cpu: float
    """CPU time per second of the thread that iterates."""
    consumer_core_wait: float
    """Share of the time during which that thread was runnable but had no core."""
    minor_faults: float = 0.0
    """Page faults that read nothing, per second of one worker."""
    yielded: float | None = None
    """How often the loading thread of a worker gives up its core to wait for something, per second (voluntary context
    switches). None if it was not measured."""
    preempted: float | None = None
    """How often the scheduler gives that core to another thread, per second (involuntary context switches).
    None if it was not measured."""
    idle_cores: float | None = None
    """Number of the machine's cores on which nothing ran, on average; None if it is unknown."""
    workers_unread: bool = False
    """Whether no worker's counters were read twice, so that all figures of workers are 0."""


class UsageLog:
    """Accumulates readings of counters."""

    def __init__(self) -> None:
        self._totals = _Totals()
        self._time: int | None = None
        self._workers: dict[int, WorkerCounters] = {}
        self._switches: dict[int, _Switched] = {}
        self._loop: LoopCounters | None = None
        self._marks: collections.deque[_Mark] = collections.deque(maxlen=MARKS)
        self._epoch_begin = self._totals
        self._epoch_end: _Totals | None = None
        self._threads = 0
        self._recent_begin: _Totals | None = None  # the start of the last seconds of the ended epoch

    def add(self, now: int, workers: Mapping[int, WorkerCounters], loop: LoopCounters) -> None:
        """Add a reading. The first reading of a worker only sets the baseline of its counters.

        Args:
            now: When the counters were read, perf_counter ns.
            workers: Counters of the workers, by the id of the thread that loads batches.
            loop: Counters of this process.
        """
        before, loop_before = self._time, self._loop
        if before is not None:
            elapsed, measured = now - before, 0
            running = waiting = cpu = major_faults = minor_faults = busy_looks = locked_looks = 0
            for key, counters in workers.items():
                old = self._workers.get(key)
                if old is not None:
                    measured += 1
                    running += counters.main.running - old.main.running
                    waiting += counters.main.waiting - old.main.waiting
                    cpu += counters.cpu - old.cpu
                    major_faults += counters.major_faults - old.major_faults
                    minor_faults += counters.minor_faults - old.minor_faults
                    busy_looks += counters.busy
                    locked_looks += counters.busy and counters.locked
            consumer = _gain(None if loop_before is None else loop_before.consumer, loop.consumer)
            gains = (
                elapsed, measured * elapsed, running, waiting, cpu, major_faults, busy_looks, locked_looks,
                0 if loop_before is None else loop.cpu - loop_before.cpu, consumer.running, consumer.waiting,
                minor_faults, *self._switched(now, workers), *_idle(loop_before, loop, elapsed),
            )  # fmt: skip
            self._totals = _Totals._make(map(operator.add, self._totals, gains))
        else:
            self._switched(now, workers)
        self._time, self._workers, self._loop = now, dict(workers), loop
        self._threads = max((w.threads for w in workers.values()), default=self._threads)
        self._marks.append(_Mark(now, self._totals))

    def _switched(self, now: int, workers: Mapping[int, WorkerCounters]) -> tuple[int, int, int]:
        """Return the time since each worker's context switches were last read and the switches since then, summed up.

        Returns:
            The time, ns, and the numbers of voluntary and involuntary switches.
        """
        elapsed = voluntary = involuntary = 0
        for key, counters in workers.items():
            switches, before = counters.switches, self._switches.get(key)
            if switches is None:
                continue
            if before is not None:
                elapsed += now - before.time
                voluntary += switches.voluntary - before.switches.voluntary
                involuntary += switches.involuntary - before.switches.involuntary
            self._switches[key] = _Switched(now, switches)
        return elapsed, voluntary, involuntary

    def begin_epoch(self) -> None:
        """Mark the beginning of an epoch."""
        self._epoch_begin, self._epoch_end = self._totals, None
        self._marks.clear()
        self._switches.clear()
        if self._time is not None:
            self._marks.append(_Mark(self._time, self._totals))

    def end_epoch(self) -> None:
        """Mark the end of the epoch."""
        self._recent_begin = None if self._time is None else self._totals_at(self._time - RATE_NS)
        self._epoch_end = self._totals

    def epoch(self) -> Usage | None:
        """Return the usage during the newest epoch; None if nothing was measured."""
        return self._between(self._epoch_begin, self._epoch_end or self._totals)

    def since(self, time: int) -> Usage | None:
        """Return the usage since the last reading before a time; after an epoch, the usage during its last seconds.

        Args:
            time: perf_counter ns.

        Returns:
            The usage; None if nothing was measured.
        """
        end = self._epoch_end
        begin = self._totals_at(time) if end is None else self._recent_begin
        return None if begin is None else self._between(begin, end or self._totals)

    def _totals_at(self, time: int) -> _Totals | None:
        """Return the totals at the last reading before a time, or at the oldest one kept; None if there is none."""
        marks = list(self._marks)  # the consumer's thread may append concurrently
        if not marks:
            return None
        begin = marks[0].totals
        for mark in marks:
            if mark.time > time:
                break
            begin = mark.totals
        return begin

    def _between(self, begin: _Totals, end: _Totals) -> Usage | None:
        t = _Totals(*(b - a for a, b in zip(begin, end, strict=True)))
        if t.elapsed <= 0:
            return None
        worker_time = max(1, t.worker_time)
        return Usage(
            seconds=t.elapsed / 1e9,
            core_wait=min(1.0, t.waiting / worker_time),
            worker_cores=t.cpu / worker_time,
            other_threads=max(0.0, 1 - t.running / t.cpu) if t.cpu > 0 else 0.0,
            threads=self._threads,
            major_faults=t.major_faults * 1e9 / worker_time,
            locked=t.locked_looks / max(1, t.busy_looks),
            looks=t.busy_looks,
            loop_cores=t.loop_cpu / t.elapsed,
            consumer_cpu=t.consumer_running / t.elapsed,
            consumer_core_wait=t.consumer_waiting / t.elapsed,
            minor_faults=t.minor_faults * 1e9 / worker_time,
            yielded=t.voluntary * 1e9 / t.switched_time if t.switched_time else None,
            preempted=t.involuntary * 1e9 / t.switched_time if t.switched_time else None,
            idle_cores=t.idle / t.idle_elapsed if t.idle_elapsed else None,
            workers_unread=not t.worker_time,
        )


def _idle(old: LoopCounters | None, new: LoopCounters, elapsed: int) -> tuple[int, int]:
    """Return the time for which CPUs had nothing to do, and the time in which that was measured, ns."""
    if old is None or old.idle is None or new.idle is None:
        return 0, 0
    return new.idle - old.idle, elapsed


def _gain(old: CpuTimes | None, new: CpuTimes | None) -> CpuTimes:
    if old is None or new is None or new.running < old.running:  # another thread iterates now
        return CpuTimes(0, 0)
    return CpuTimes(new.running - old.running, new.waiting - old.waiting)
