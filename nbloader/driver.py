"""One state, one lock, whoever is there drives it.

    consumer in __next__ --+
                           +--> with the lock: hear workers, carry out commands, dispatch
    supervisor thread -----+

The consumer receives for itself while it waits: handing each batch over from a receiver thread costs a switch of the
interpreter lock, up to 5 ms. When the consumer is away, working on a batch, the supervisor thread drives: it replaces
dead workers and carries out commands, so that a restart works while a cell is busy. Commands (restart, pause, the end
of a dropped iterator) may come from any thread, even from a finalizer: they are queued and wake the supervisor.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from nbloader import events as ev
from nbloader import tolerant
from nbloader.crew import Crew
from nbloader.dispatch import Cancel, Dispatcher, Task
from nbloader.errors import DatasetTransferError, LoaderClosedError, NbloaderError
from nbloader.faults import Failure, Given, Nothing, shown
from nbloader.handle import PoolKind
from nbloader.making import LocalParcel
from nbloader.output import Outlet
from nbloader.reports import Advanced, Ended, Output, Parcel, Report, Result
from nbloader.waker import Waker

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

LINGER = 0.02
"""Seconds that the supervisor leaves a message to a consumer who was there a moment ago."""
IDLE_SUPERSEDED = 2.0
"""Seconds without a request after which a loader whose cell was run again gives up its workers."""

Outcome: TypeAlias = "Parcel | LocalParcel | Failure | Given"


class Driver:
    """The workers, the dispatcher and the lock around them; the base of `engine.Engine`.

    Args:
        bus: Where events go, always without the lock: a subscriber may call the loader.
        num_workers: How many workers.
        options: What every worker is told (fields of `worker.Start`).
        kind: Processes or threads.
        max_restarts: Workers that may die unasked, over the life of the loader.
        idle: Seconds without a request after which workers are given up; None for never.
    """

    def __init__(
        self,
        bus: ev.EventBus,
        *,
        num_workers: int,
        options: dict[str, Any],
        kind: PoolKind,
        max_restarts: int,
        idle: float | None,
    ) -> None:
        self.bus = bus
        self.closed = False
        self._idle = idle
        self._superseded = False
        self._asked = time.monotonic()
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher[Outcome | Nothing] = Dispatcher(1)
        self._events: collections.deque[ev.Event] = collections.deque()  # to be published without the lock
        self._crew = Crew(
            self._events.append,
            self._dispatcher,
            num_workers=num_workers,
            options=options,
            kind=kind,
            max_restarts=max_restarts,
            hear=self._handle,
            failed=self._wake_all,
        )
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._commanded = Waker()
        self._supervisor: threading.Thread | None = None
        self._waiting: dict[int, Waker] = {}  # runs whose consumer waits
        self._driving = -1  # the run whose consumer drives now
        self._batch_bytes = 0  # of the last batch that came
        self._batch_ns = 0  # what a worker needs for one, a running mean
        self._outlet = Outlet()

    # ---- the lock ---------------------------------------------------------------------------------------------------

    def _exclusively(self, action: Callable[..., Any], *args: Any) -> Any:
        """Change the state, on the consumer's thread.

        An interrupt between any two instructions may leave it half changed: then all runs and workers are ended, and
        the next epoch begins anew.
        """
        self._mind_fork()
        try:
            with self._lock:
                try:
                    return action(*args)
                except Exception:
                    self._driving = -1
                    raise
                except BaseException:
                    self._driving = -1
                    self._dispatcher.clear()
                    self._crew.abandon()
                    if self._supervisor is not None and not self._supervisor.is_alive():
                        self._supervisor = None  # interrupted before it was started
                    raise
        finally:
            self._tell()

    def _tell(self) -> None:
        """Publish what happened under the lock, now that it is free: a subscriber may call the loader."""
        while self._events:
            with contextlib.suppress(IndexError):  # another thread took it
                self.bus.publish(self._events.popleft())

    def _mind_fork(self) -> None:
        """In a forked child: the workers are the parent's, and its lock may be held by a thread that is not here."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._lock = threading.Lock()
            self._supervisor = None
            self._waiting.clear()
            self._commands.clear()
            self._commanded.close()
            self._commanded = Waker()
            self._dispatcher.clear()
            self._crew.forget()

    def _get_going(self) -> None:
        """See to it that there are workers and a supervisor."""
        if self.closed:
            raise LoaderClosedError("this loader is closed: make a new one")
        if self._crew.start():
            self._commanded.set()  # a supervisor that waits for the pool before this one
        if self._supervisor is None:
            self._supervisor = threading.Thread(target=self._supervise, name="nbloader-supervisor", daemon=True)
            self._supervisor.start()

    # ---- one round ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """One round: hear the workers, do what was commanded, hand out batches."""
        if self._crew.pool is not None:
            for report in self._crew.pool.poll(0):
                self._handle(report)
        self._carry_out()
        self._dispatch()

    def _carry_out(self) -> None:
        """Do what was commanded until now."""
        while self._commands:
            self._commands.popleft()()

    def _dispatch(self) -> None:
        pool = self._crew.pool
        if pool is None:
            return
        given: dict[int, list[Task]] = {}
        now = _clock()
        for uid, task in self._dispatcher.assignments():
            task.dispatched = now
            given.setdefault(uid, []).append(task)
        for uid, tasks in given.items():
            for task, error in pool.give(uid, tasks):
                why = f"the indices {shown(task.indices)} of batch {task.number} cannot be pickled: {error}"
                self._dispatcher.result(uid, task.run, task.number, Given(DatasetTransferError(why)))

    def _cancel(self, cancels: list[Cancel]) -> None:
        pool = self._crew.pool
        if pool is not None:
            for uid, run, numbers in cancels:
                pool.cancel(uid, run, numbers)

    def _handle(self, report: Report) -> None:
        if isinstance(report, Result):
            self._take_result(report)
        elif isinstance(report, Output):
            self._outlet.add(report.stream, report.text)
        elif isinstance(report, Ended):
            self._end_shard(report)
        elif isinstance(report, Advanced):
            run = self._dispatcher.runs.get(report.run)
            if run is not None and run.shards is not None:
                run.shards.advance(report.shard, report.position, report.state, report.problem)
        else:
            self._crew.handle(report)
            self._wake_all()

    def _take_result(self, report: Result) -> None:
        result = report.result
        accepted = self._dispatcher.result(report.handle.uid, report.run, report.number, result)
        if accepted is None:
            result.discard()
            return
        now = _clock()
        failed, freed = accepted
        for task, _payload in freed:
            task.in_order = now
        self._events.extend(
            tolerant.events(report.spared, failed, report.handle.worker, batched=self._crew.options["batched"])
        )
        if not isinstance(result, (Failure, Nothing)):
            self._batch_bytes = result.header[4]
            self._batch_ns += (result.header[9] - result.header[7] - self._batch_ns) // 8
        if report.run != self._driving and report.run in self._waiting:
            self._waiting[report.run].set()
        if isinstance(result, Failure):
            sample = failed.indices[result.position] if result.position >= 0 else None
            text = f"{result.error[1]}: {result.error[2]}"
            self._events.append(ev.BatchFailed(now, report.run, report.number, result.worker, sample, text))

    def _end_shard(self, report: Ended) -> None:
        now = _clock()
        for task, _payload in self._dispatcher.end(report.handle.uid, report.run, report.number):
            task.in_order = now
        if report.run != self._driving and report.run in self._waiting:
            self._waiting[report.run].set()  # there may be nothing to wait for any more

    def _wake_all(self) -> None:
        for run, waker in list(self._waiting.items()):
            if run != self._driving:
                waker.set()

    # ---- commands: from any thread --------------------------------------------------------------------------------

    def _command(self, action: Callable[[], None]) -> None:
        """Have the supervisor do this, now. Never waits, takes no lock."""
        if not self.closed:
            self._commands.append(action)
            self._commanded.set()

    def _close_run(self, run: int) -> None:
        unwanted, cancels = self._dispatcher.close_run(run)
        for payload in unwanted:
            payload.discard()
        self._cancel(cancels)

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for run in list(self._dispatcher.runs):
            self._close_run(run)
        self._crew.stop()
        self._crew.unload()
        self._wake_all()

    # ---- the supervisor -------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Drive while the consumer is away. Ends with the workers."""
        while not self.closed:
            with self._lock:
                if self._supervisor is not threading.current_thread():
                    return  # an interrupt came while this one was started, and another took its place
                pool = self._crew.pool
                if pool is None and not self._commands:
                    self._supervisor = None  # decided under the lock: whoever starts workers starts another
                    return
            with contextlib.suppress(OSError, ValueError):  # the pool may be disposed of meanwhile
                self._commanded.wait(pool.fileno() if pool is not None else None, self._idle_left())
            if not self._commands and (self._waiting or time.monotonic() - self._asked < LINGER):
                self._commanded.wait(None, LINGER)
            with self._lock:
                try:
                    self._supervise_once()
                except Exception as error:  # a fault of our own must reach the consumer, not hang it
                    log.exception("the supervisor failed")
                    self._crew.fatal = NbloaderError(f"the supervisor failed: {type(error).__name__}: {error}")
                    self._crew.kill()
                    self._wake_all()
            self._tell()
            self._outlet.show_from_elsewhere()
        if self.closed:
            self._commanded.close()

    def _supervise_once(self) -> None:
        if self.closed:
            return
        self._work()
        left = self._idle_left()
        if left is not None and left <= 0:
            for run in self._dispatcher.runs:
                self._dispatcher.park(run)
            self._crew.stop()

    def _idle_left(self) -> float | None:
        """Seconds until the workers are given up, since nobody asks; None for never."""
        if self._waiting:
            return None
        limit = IDLE_SUPERSEDED if self._superseded else self._idle
        return None if limit is None else limit - (time.monotonic() - self._asked)
