"""Recognizes forked workers that hang because a lock or a thread did not survive the fork.

A forked worker has no copy of the threads of the notebook's process. If a library has threads of its own there, or a
thread held a lock at the moment of the fork, the worker waits for it forever. While a loop waits for a batch, the
workers are therefore looked at: if each worker that should be working is in its first batch, has used no CPU time to
speak of since the last look, and all its threads wait for locks, it hangs. A worker that waits for a lock of another
worker, for a disk or for the network does not count: some process is working then, or waits for something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nbloader._platform import stat_of, waits_for_locks
from nbloader.workers.api import WorkerHandle
from nbloader.workers.status import PRODUCING

FIRST_LOOK = 2.0
"""Seconds of waiting after which the CPU time of the workers is first read."""
HANG = 5.0
"""Seconds between two looks. A worker that waits for a lock, and has used at most `IDLE` between them, hangs."""
IDLE = 0.05
"""Seconds of CPU time that a worker that hangs may use between two looks: its lines may be sampled."""


class ForkWatch:
    """Looks at forked workers while one batch is awaited."""

    def __init__(self) -> None:
        self._cpu: dict[int, int] = {}
        self._next = FIRST_LOOK

    def left(self, waited: float) -> float:
        """Return the seconds until the next look, which is due if they are not positive.

        Args:
            waited: Seconds since the wait began.
        """
        return self._next - waited

    def look(self, waited: float, workers: Iterable[WorkerHandle]) -> WorkerHandle | None:
        """Return a worker that hangs, if all workers that should be working do.

        Args:
            waited: Seconds since the wait began.
            workers: The workers, all of them forked.
        """
        self._next = waited + HANG
        busy = [w for w in workers if not w.ready or w.status.state in PRODUCING]
        threads = {worker.uid: _Threads.of(worker.pid) for worker in busy}
        before, self._cpu = self._cpu, {uid: of_worker.cpu for uid, of_worker in threads.items()}
        for worker in busy:
            now = threads[worker.uid]
            worked = worker.uid not in before or now.cpu - before[worker.uid] > IDLE * 1e9
            if worker.produced or not now.wait_for_locks or worked:
                return None
        return busy[0] if busy else None


class _Threads(NamedTuple):
    """What the threads of a process do."""

    wait_for_locks: bool
    """Whether there are threads, and all of them wait for a lock."""
    cpu: int
    """CPU time of the process, ns."""

    @classmethod
    def of(cls, pid: int) -> _Threads:
        wait_for_locks, stat = waits_for_locks(pid), stat_of(pid)
        return cls(wait_for_locks=False, cpu=0) if stat is None else cls(wait_for_locks, stat.cpu)
