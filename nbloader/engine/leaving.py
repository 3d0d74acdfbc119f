"""Workers that leave: they were removed or replaced, and finish their present sample before they end.

    dismiss(handle) -> handle.leave() -> ... -> WorkerGone    most end within one sample
            patient -> never killed, except by close()          if nobody has asked for the end of this worker
                    -> handle.kill()                          at once if the worker is stuck, or as soon as it is
    retire(pool)    -> the same for all workers of a pool, which is polled until the last of them has ended

A worker that is killed in the middle of a sample releases nothing that it holds. If that is a `multiprocessing.Lock` of
the dataset, no other worker gets past it. So only a stuck worker is killed. Its tasks go to other workers as soon as it
is dismissed, what it still sends is rejected, and its replacement does not wait for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from nbloader.metrics.stuck import STUCK_S, STUCK_TIMES
from nbloader.workers.api import WorkerHandle, WorkerPool
from nbloader.workers.messages import WorkerMessage

START_LIMIT = 30.0
"""Seconds that a worker may take to start, or to produce the first batch of a loader, after it was told to leave. With
`on_timeout='restart'` (see `timeouts`) any worker may take as long to start, even if `timeout` is shorter: a restart
would only make the worker start over."""

_clock = time.perf_counter_ns


class Leaver(NamedTuple):
    """A worker that was told to leave."""

    handle: WorkerHandle
    stuck_at: float
    """When it counts as stuck, `time.perf_counter_ns()`."""


class LeavingWorkers:
    """The workers that were told to leave and have not ended, and the pools that have no other workers.

    Args:
        usual_ns: Returns the usual time to produce a batch, ns; 0 if it is unknown.
        on_leave: Called with each worker that is in the middle of a batch and may finish the sample.
    """

    def __init__(
        self,
        usual_ns: Callable[[], int],
        on_leave: Callable[[WorkerHandle], object] = lambda _handle: None,
    ) -> None:
        self._usual_ns = usual_ns
        self._on_leave = on_leave
        self._leavers: list[Leaver] = []
        self.pools: list[WorkerPool] = []
        """Pools that have no other workers. This object owns them."""

    @property
    def filenos(self) -> list[int]:
        """Descriptors that are readable while `poll` has something to report."""
        return [fd for pool in self.pools if (fd := pool.fileno()) is not None]

    def dismiss(self, handle: WorkerHandle, *, patient: bool = False) -> None:
        """Make a worker end after its present sample, or at once if it is stuck.

        A worker that is leaving already, when its pool is retired at the end of an epoch, keeps the time that it has.

        Args:
            handle: The worker.
            patient: Whether it may take any time for its sample: a long sample may hold a lock.
        """
        if any(leaver.handle is handle for leaver in self._leavers):
            return
        now = _clock()
        stuck_at = math.inf if patient else self._stuck_at(handle, now)
        if stuck_at <= now:
            handle.kill()
            return
        if handle.busy_since() < math.inf:
            self._on_leave(handle)
        handle.leave()
        self._leavers.append(Leaver(handle, stuck_at))

    def _stuck_at(self, handle: WorkerHandle, now: int) -> float:
        """Return when a worker counts as stuck, on the dashboard too: if a batch takes far longer than usual.

        Where nothing is known about how long a batch takes, it may take as long as a start. A worker that is neither
        starting nor producing a batch has nothing to finish.
        """
        if not handle.ready:
            return handle.requested + START_LIMIT * 1e9
        busy_since = handle.busy_since()
        if busy_since == math.inf:
            return now + STUCK_S * 1e9
        usual = self._usual_ns()
        return busy_since + (max(STUCK_S * 1e9, STUCK_TIMES * usual) if usual else START_LIMIT * 1e9)

    def retire(self, pool: WorkerPool, grace: float, *, patient: bool = False) -> list[WorkerMessage]:
        """Let all workers of a pool leave.

        Args:
            pool: One of `pools`. Nothing is sent to its workers from now on.
            grace: Seconds to wait for their end.
            patient: See `dismiss`.

        Returns:
            The messages that arrived in the meantime.
        """
        messages = pool.let_leave(grace)
        for handle in list(pool.handles.values()):
            self.dismiss(handle, patient=patient)
        self._dispose_empty()
        return messages

    def poll(self) -> list[WorkerMessage]:
        """Return what the workers of retired pools have reported. Never waits."""
        messages = [message for pool in self.pools for message in pool.poll(0)]
        self._dispose_empty()
        return messages

    def kill_stuck(self) -> None:
        """Kill the workers that have become stuck."""
        now = _clock()
        self._leavers = [leaver for leaver in self._leavers if not leaver.handle.gone]
        for leaver in self._leavers:
            if leaver.stuck_at <= now:
                leaver.handle.kill()
        self._leavers = [leaver for leaver in self._leavers if leaver.stuck_at > now]

    def seconds_left(self) -> float | None:
        """Return the seconds until `kill_stuck` must be called; None if no worker that may be killed is leaving."""
        ends = [one.stuck_at for one in self._leavers if not one.handle.gone and one.stuck_at < math.inf]
        return (min(ends) - _clock()) / 1e9 if ends else None

    def close(self, grace: float) -> list[WorkerMessage]:
        """End all workers of retired pools, and kill those that have not ended after `grace` seconds.

        Returns:
            The messages that arrived in the meantime.
        """
        messages = [message for pool in self.pools for message in pool.close(grace)]
        self._dispose_empty()
        self._leavers.clear()
        return messages

    def forget(self) -> None:
        """Forget all workers without ending them. In a forked child, they belong to the parent."""
        self.pools, self._leavers = [], []

    def _dispose_empty(self) -> None:
        for pool in [pool for pool in self.pools if not pool.handles]:
            self.pools.remove(pool)
            pool.dispose()
