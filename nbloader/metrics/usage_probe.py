"""Reads the counters of workers and of the loop: CPU time, page faults, waits for locks, context switches."""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple

from nbloader._platform import cores, cpu_times, idle_time, stat_of, switches_of, waits_in
from nbloader.metrics.usage import LoopCounters, Usage, UsageLog, WorkerCounters

WATCHED = 8
"""Workers whose counters are read, those with the lowest ids: 20 us each."""
READ_NS = 90_000_000
"""Time between two readings of counters, ns."""
LOCK_WAITS = ("futex", "lock", "semaphore", "mutex")
"""Parts of the names of the kernel's functions in which a thread waits for a lock (of a file, too)."""
_clock = time.perf_counter_ns


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
        self._has_all_cores = cores() == os.cpu_count()

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
        idle = idle_time() if self._has_all_cores else None
        self._log.add(now, known, LoopCounters(time.process_time_ns(), times, idle))

    def begin_epoch(self) -> None:
        """An epoch begins; on the consumer's thread."""
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


def worker_counters(worker: WorkerThread, *, switches: bool = False) -> WorkerCounters | None:
    """The counters of a worker; None if it has ended, or the system does not report them.

    Args:
        worker: The worker.
        switches: Whether to read context switches, too.
    """
    main = cpu_times(worker.pid, worker.native_id)
    if main is None:
        return None
    is_thread = worker.native_id != worker.pid
    stat = stat_of(worker.pid, worker.native_id if is_thread else None)
    if stat is None:
        return None
    switched = switches_of(worker.pid, worker.native_id) if switches else None
    where = waits_in(worker.pid, worker.native_id) if worker.busy else ""
    return WorkerCounters(
        main,
        cpu=main.running if is_thread else stat.cpu,
        major_faults=stat.major_faults,
        threads=1 if is_thread else stat.threads,
        busy=worker.busy,
        locked=any(name in where for name in LOCK_WAITS),
        minor_faults=stat.minor_faults,
        switches=switched,
    )
