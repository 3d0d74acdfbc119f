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
from typing import Any

from nbloader import events as ev
from nbloader._util.wakeup import Wakeup
from nbloader.batch import chunking
from nbloader.batch.payload import BatchOutcome
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.engine.config import EngineConfig
from nbloader.engine.worker_group import Crew
from nbloader.engine.worker_output import Outlet
from nbloader.errors import DatasetTransferError, LoaderClosedError, NbloaderError
from nbloader.events.failures import Failure, Given, samples_failed, shown
from nbloader.sampling.epoch_plan import ChunkSpec
from nbloader.scheduler.dispatcher import Cancel, Dispatcher
from nbloader.transport.messages import BatchDone, OutputText, ShardAdvanced, ShardExhausted, WorkerMessage

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

LINGER = 0.02
"""Seconds that the supervisor leaves a message to a consumer who was there a moment ago."""
WORTH_MOVING = 1_000_000
"""What batches take a worker together at least, ns, that are taken from one and given to another without work."""
REST = 30.0
"""Seconds without an epoch after which workers give back the memory that the next one can begin without. That one makes
it anew: with 2 s, epochs of 40 batches of 38 MB with pauses between ran at 12 % of one thread's memcpy, not 50 %."""
STRAGGLING = 5_000_000
"""From when on a batch among quick ones is a slow one, ns: those behind it are given to workers without work."""
IDLE_SUPERSEDED = 2.0
"""Seconds without a request after which a loader whose cell was run again gives up its workers."""
RESTART_DELAY = 0.1
"""Seconds between a failure of the supervisor thread and its restart, so that a lasting fault does not spin."""


class Driver:
    """The workers, the dispatcher and the lock around them; the base of `engine.Engine`.

    Args:
        bus: Where events go, always without the lock: a subscriber may call the loader.
        settings: What the loader asks for.
    """

    def __init__(self, bus: ev.EventBus, settings: EngineConfig) -> None:
        self.bus = bus
        self.closed = False
        self._idle = settings.idle
        self._superseded = False
        self._asked = time.monotonic()
        self._rested = False  # since the last epoch
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher[BatchOutcome] = Dispatcher(1, in_turn=settings.in_turn)
        self._events: collections.deque[ev.Event] = collections.deque()  # to be published without the lock
        self._crew = Crew(self._events.append, self._dispatcher, settings, hear=self._handle, failed=self._wake_all)
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._commanded = Wakeup()
        self._supervisor: threading.Thread | None = None
        self._waiting: dict[int, Wakeup] = {}  # runs whose consumer waits
        self._driving = -1  # the run whose consumer drives now
        self._raised: Exception | None = None  # an error that the consumer is given
        self._batch_bytes = 0  # of the last batch that came
        self._batch_ns = 0  # what a worker needs for one, a running mean
        self._untold: dict[tuple[int, int], list[ev.Event]] = {}  # what failed in a batch (run, number): told with it
        self._outlet = Outlet()

    # ---- the lock ---------------------------------------------------------------------------------------------------

    def _exclusively(self, action: Callable[..., Any], *args: Any) -> Any:
        """Change the state, on the consumer's thread.

        An interrupt, or what a signal's handler raises, between any two instructions may leave it half changed: then
        all runs and workers are ended, and the next epoch begins anew.
        """
        self._mind_fork()
        try:
            with self._lock:
                try:
                    return action(*args)
                except BaseException as error:
                    self._driving = -1
                    meant, self._raised = self._raised, None
                    if error is meant or isinstance(error, NbloaderError):
                        raise
                    self._forget()
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
            self._commanded = Wakeup()
            self._forget()
            self._crew.forget()

    def _forget(self) -> None:
        """All runs are over."""
        self._dispatcher.clear()
        self._untold.clear()

    def _get_going(self) -> None:
        """See to it that there are workers and a supervisor."""
        if self.closed:
            raise LoaderClosedError("this loader is closed: make a new one")
        if self._crew.start():
            self._commanded.set()  # a supervisor that waits for the pool before this one
        if self._supervisor is None or not self._supervisor.is_alive():
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
        if not self._dispatcher.uneven():
            return
        least = -(-WORTH_MOVING // self._batch_ns) if self._batch_ns else 1
        stuck = self._crew.long_busy(STRAGGLING) if least > 1 else ()
        while cancels := self._dispatcher.rebalance(least, stuck):
            self._cancel(cancels)
            self._dispatch()

    def _carry_out(self) -> None:
        """Do what was commanded until now."""
        while self._commands:
            self._commands.popleft()()

    def _dispatch(self) -> None:
        pool = self._crew.pool
        if pool is None:
            return
        assigned = self._dispatcher.assignments()
        if not assigned:
            return
        given: dict[int, list[Task]] = {}
        now = _clock()
        for uid, task in assigned:
            task.dispatched = now
            given.setdefault(uid, []).append(task)
        for uid, tasks in given.items():
            for task, error in pool.give(uid, tasks):
                why = f"the indices {shown(task.indices)} of batch {task.number} cannot be pickled: {error}"
                self._dispatcher.result(uid, task.run, task.job, Given(DatasetTransferError(why)))

    def _cancel(self, cancels: list[Cancel]) -> None:
        pool = self._crew.pool
        if pool is not None:
            for uid, run, numbers in cancels:
                pool.cancel(uid, run, numbers)

    def _handle(self, report: WorkerMessage) -> None:
        if isinstance(report, BatchDone):
            self._take_result(report)
        elif isinstance(report, OutputText):
            self._outlet.add(report.stream, report.text)
        elif isinstance(report, ShardExhausted):
            self._end_shard(report)
        elif isinstance(report, ShardAdvanced):
            run = self._dispatcher.runs.get(report.run)
            if run is not None and run.shards is not None:
                run.shards.advance(report.shard, report.position, report.state, report.problem)
        else:
            self._crew.handle(report)
            self._wake_all()

    def _take_result(self, report: BatchDone) -> None:
        result = report.outcome
        accepted = self._dispatcher.result(report.uid, report.run, report.number, result)
        if accepted is None:
            result.discard()
            return
        now = _clock()
        failed, freed = accepted
        for task, _payload in freed:
            task.in_order = now
        if report.spared:
            told = samples_failed(
                report.spared, failed.run, failed.number, failed.indices, self._crew.handles[report.uid].worker,
                batched=self._crew.options["batched"],
            )  # fmt: skip
            self._untold.setdefault((failed.run, failed.number), []).extend(told)
        if not (result.failed or result.empty):
            self._crew.handles[report.uid].made += 1
            if failed.whole is not None and self._crew.pool is not None:
                self._crew.pool.learn(result)
            self._batch_bytes = result.nbytes * (1 if failed.whole is None else len(failed.whole.pieces))
            self._batch_ns += (result.produce_ns - self._batch_ns) // (8 if self._batch_ns else 1)
        if report.run != self._driving and report.run in self._waiting:
            self._waiting[report.run].set()
        if isinstance(result, Failure) and failed.whole is None:
            self._tell_failure(failed, result)

    def _tell_failure(self, task: Task, failure: Failure) -> None:
        sample = task.indices[failure.position] if failure.position >= 0 else None
        text = f"{failure.error[1]}: {failure.error[2]}"
        told = ev.BatchFailed(_clock(), task.run, task.number, failure.worker, sample, text)
        self._untold.setdefault((task.run, task.number), []).append(told)

    def _join(self, cut: ChunkSpec, whole: ChunkedBatch[Any]) -> Any:
        """All pieces of a batch have come."""
        outcome = chunking.join(whole, cut.collate_fn)
        if isinstance(outcome, Failure):
            self._tell_failure(whole.task, outcome)
        return outcome

    def _end_shard(self, report: ShardExhausted) -> None:
        now = _clock()
        for task, _payload in self._dispatcher.end(report.uid, report.run, report.number):
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
        for key in [key for key in self._untold if key[0] == run]:
            del self._untold[key]
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
        """Run the supervisor thread. It ends with the workers; a failure of its own restarts it."""
        while True:
            try:
                self._drive_while_away()
            except Exception as error:
                log.exception("the supervisor thread failed and is restarted")
                self._events.append(ev.SupervisorFailed(_clock(), f"{type(error).__name__}: {error}"))
                threading.Event().wait(RESTART_DELAY)
            else:
                return

    def _drive_while_away(self) -> None:
        """Drive while the consumer is away, until the workers end."""
        while not self.closed:
            with self._lock:
                if self._supervisor is not threading.current_thread():
                    return  # an interrupt came while this one was started, and another took its place
                pool = self._crew.pool
                if pool is None and not self._commands:
                    self._supervisor = None  # decided under the lock: whoever starts workers starts another
                    return
            with contextlib.suppress(OSError, ValueError):  # the pool may be disposed of meanwhile
                self._commanded.wait(pool.fileno() if pool is not None else None, self._next_look())
            if not self._commands and (self._waiting or time.monotonic() - self._asked < LINGER):
                self._commanded.wait(None, LINGER)
            with self._lock:
                try:
                    self._supervise_once()
                except Exception as error:  # a fault of our own must reach the consumer, not hang it
                    log.exception("the supervisor thread failed")
                    self._events.append(ev.SupervisorFailed(_clock(), f"{type(error).__name__}: {error}"))
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
        rest = self._rest_left()
        if rest is not None and rest <= 0 and self._crew.pool is not None:
            self._rested = True
            self._crew.pool.rest()
        left = self._idle_left()
        if left is not None and left <= 0:
            for run in self._dispatcher.runs:
                self._dispatcher.park(run)
            self._crew.stop()

    def _next_look(self) -> float | None:
        """Seconds until the supervisor has something to do though nothing happens; None for never."""
        return min((left for left in (self._rest_left(), self._idle_left()) if left is not None), default=None)

    def _rest_left(self) -> float | None:
        """Seconds until the workers give memory back, since no epoch is begun; None where they need not."""
        if self._rested or self._dispatcher.runs:
            return None
        return REST - (time.monotonic() - self._asked)

    def _idle_left(self) -> float | None:
        """Seconds until the workers are given up, since nobody asks; None for never."""
        if self._waiting:
            return None
        limit = IDLE_SUPERSEDED if self._superseded else self._idle
        return None if limit is None else limit - (time.monotonic() - self._asked)
