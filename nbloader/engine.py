"""The engine behind a loader with workers: one state, one lock, whoever is there drives it.

    consumer in __next__ --+
                           +--> with lock: take reports, carry out commands, dispatch --> deliver
    supervisor thread -----+

The consumer receives for itself while it waits: handing each batch over from a receiver thread costs a switch of the
interpreter lock, up to 5 ms. When the consumer is away, working on a batch, the supervisor thread drives: it replaces
dead workers and carries out commands, so that a restart works while a cell is busy. Commands (restart, pause, a
dropped iterator) may come from any thread, even from a finalizer: they are queued and wake the supervisor.

The engine never refers to the `DataLoader` that owns it, so that a loader nobody refers to is closed.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import logging
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from nbloader import events as ev
from nbloader.callbacks import WaitCallbacks
from nbloader.dispatch import MAX_DEATHS, Dispatcher, Task
from nbloader.errors import (
    DatasetTransferError,
    LoaderClosedError,
    LoaderTimeoutError,
    NbloaderError,
    WorkerDiedError,
    WorkerStartError,
)
from nbloader.faults import died_message, raise_described
from nbloader.pool import Failure, Gone, Handle, InitFailed, Output, Parcel, Pool, Ready, Report, Result, Started
from nbloader.pool import modules_to_preload
from nbloader.shm import SharedPickle
from nbloader.stats import Gauges, WorkerGauge
from nbloader.wire import Kind

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

LINGER = 0.02
"""Seconds that the supervisor leaves a message to a consumer who was there a moment ago."""
IDLE = 300.0
"""Seconds without a request after which a loader gives up its workers (until it is asked again)."""
IDLE_SUPERSEDED = 2.0
"""The same for a loader whose cell was run again and made another one."""
GRACE = 0.5
"""Seconds that workers get to leave by themselves at the end."""
MAX_FAILED_STARTS = 3
"""Workers in a row that may die before they are ready."""


@dataclass(frozen=True)
class Given:
    """An error to raise in the place of a batch."""

    error: Exception

    def discard(self) -> None:
        """Nothing to give back."""


Payload: TypeAlias = "Parcel | Failure | Given"


class Waker:
    """Wakes one waiting consumer: a pipe that it polls beside the pool."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """For a poll."""
        return self._read

    def set(self) -> None:
        """Wake."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"w")

    def clear(self) -> None:
        """Forget all wake-ups until now."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._read)
        os.close(self._write)


class Slot:
    """One worker id and the process behind it."""

    def __init__(self) -> None:
        self.handle: Handle | None = None
        self.exit_reason = ""
        self.failed_starts = 0


class Engine:
    """Workers, dispatch and delivery for one loader.

    Args:
        bus: Where events go.
        num_workers: Worker processes.
        window: Batches asked for ahead.
        options: What every worker is told (fields of `worker.Start`).
        start_method: "forkserver" or "spawn".
        in_order: False delivers batches as they come.
        timeout: Seconds that a consumer may wait for one batch; 0 for no limit.
        max_restarts: Workers that may die unasked, over the life of the loader.
    """

    def __init__(
        self,
        bus: ev.EventBus,
        *,
        num_workers: int,
        window: int,
        options: dict[str, Any],
        start_method: str,
        in_order: bool,
        timeout: float,
        max_restarts: int,
        idle: float | None,
    ) -> None:
        self.bus = bus
        self._num_workers = num_workers
        self._window = window
        self._options = options
        self._start_method = start_method
        self._in_order = in_order
        self._timeout = timeout
        self._max_restarts = max_restarts
        self._idle = idle
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._dispatcher: Dispatcher[Payload] = Dispatcher(max(1, -(-window // num_workers)))
        self._pool: Pool | None = None
        self._slots = [Slot() for _ in range(num_workers)]
        self._payload: SharedPickle | None = None
        self._preload: list[str] = []
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._commanded = Waker()
        self._supervisor: threading.Thread | None = None
        self._waiting: dict[int, Waker] = {}  # runs whose consumer waits
        self._waiting_for: tuple[int, int] | None = None  # (batch number, since)
        self.callbacks = WaitCallbacks()
        self._fatal: Exception | None = None
        self._deaths = 0
        self._texts: list[tuple[str, str]] = []
        self._context = contextvars.copy_context()
        self._asked = time.monotonic()
        self._superseded = False
        self.ahead = window > 0
        """Whether batches are asked for before they are wanted."""
        self.closed = False

    # ---- the pool -----------------------------------------------------------------------------------------------

    def load(self, dataset: Any, collate_fn: Any, worker_init_fn: Any) -> bool:
        """Pickle what the workers need. Workers that have something else are replaced when next asked.

        Returns:
            Whether it differs from what was loaded before (False the first time).

        Raises:
            DatasetTransferError: It cannot be pickled.
        """
        try:
            payload = SharedPickle((dataset, collate_fn, worker_init_fn))
        except Exception as error:  # pickling runs the user's code, which may raise anything
            raise DatasetTransferError(
                f"the dataset ({type(dataset).__name__}), collate_fn or worker_init_fn cannot be sent to worker "
                f"processes: {type(error).__name__}: {error}. Open files, connections, locks and generators cannot be "
                "pickled: open them on first use inside __getitem__, or use num_workers=0."
            ) from error
        old, self._payload = self._payload, payload
        self._preload = modules_to_preload(payload.data, dataset)
        return old is not None and old.identity != payload.identity

    def _ensure_pool(self) -> None:
        """Start the workers and the supervisor if there are none. Called with the lock."""
        if self.closed:
            raise LoaderClosedError("this loader is closed: make a new one")
        if self._owner != os.getpid():
            self._forget_after_fork()
        if self._pool is None:
            self._pool = Pool(self._start_method, self._options["output"])
            self._fatal = None
            for worker in range(self._num_workers):
                self._start_worker(worker)
        if self._supervisor is None or not self._supervisor.is_alive():
            self._supervisor = threading.Thread(target=self._supervise, name="nbloader-supervisor", daemon=True)
            self._supervisor.start()

    def _start_worker(self, worker: int) -> None:
        assert self._pool is not None  # noqa: S101 - for the type checker
        assert self._payload is not None  # noqa: S101
        options = {**self._options, "num_workers": self._num_workers}
        self._slots[worker].handle = self._pool.start(worker, options, self._payload, self._preload)

    def _drop_pool(self, grace: float) -> None:
        """End all workers; what they held waits until the pool is started again. Called with the lock."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for handle in list(pool.handles.values()):
            self._dispatcher.worker_gone(handle.uid, blame=False)
            handle.expected = True
        for report in pool.close(grace):
            if isinstance(report, (Gone, Output)):
                self._handle(report)
            elif isinstance(report, Result):
                self._take_result(report)
        pool.dispose()
        for slot in self._slots:
            slot.handle = None

    def _forget_after_fork(self) -> None:
        """In a forked child the workers belong to the parent: begin without any."""
        self._owner = os.getpid()
        self._pool = None
        self._supervisor = None
        self._dispatcher = Dispatcher(self._dispatcher.depth)
        self._slots = [Slot() for _ in range(self._num_workers)]
        self._lock = threading.Lock()

    # ---- runs: the consumer's side ------------------------------------------------------------------------------

    def open_run(self, run: int, seed: int) -> None:
        """Begin an iterator. The others lose their window until they are asked again.

        Args:
            run: Its number.
            seed: Base seed of workers that are started from now on.
        """
        with self._locked():
            self._options["seed"] = seed
            self._asked = time.monotonic()
            self._ensure_pool()
            self._context = contextvars.copy_context()
            self._dispatcher.open_run(run, window=self._window, in_order=self._in_order)
            self._cancel_parked()

    def room(self, run: int) -> int:
        """How many batches the sampler may be asked for now."""
        state = self._dispatcher.runs.get(run)
        return self._dispatcher.room(run) if state is not None else 0

    def add(self, run: int, batches: Iterable[tuple[Any, int]]) -> None:
        """Dispatch batches, as (indices, seed)."""
        with self._locked():
            for indices, seed in batches:
                self._dispatcher.add(run, indices, seed)
            self._dispatch()

    def next_batch(self, run: int, waker: Waker) -> tuple[Task, Payload, tuple[int, int, int]] | None:
        """The next batch of a run; waits for it.

        Returns:
            The batch and the depths (in flight, reordering, ready) at its delivery; None when none is outstanding.

        Raises:
            TimeoutError: It did not come within `timeout` (a RuntimeError, as torch's).
            WorkerStartError: The workers cannot be started.
        """
        self.callbacks.call()
        deadline = time.monotonic() + self._timeout if self._timeout else None
        since = 0
        try:
            while True:
                with self._locked():
                    item = self._try_take(run)
                    if item is not None or run not in self._dispatcher.runs or not self._dispatcher.outstanding(run):
                        break
                    if not since:
                        since = _clock()
                        self._waiting[run] = waker
                        self._waiting_for = self._dispatcher.runs[run].taken, since
                    poller = select.poll()
                    poller.register(self._pool, select.POLLIN)  # type: ignore[arg-type]
                    poller.register(waker, select.POLLIN)
                self._print()
                self._wait(poller, deadline, since)
                waker.clear()
        finally:
            if since:
                self._waiting.pop(run, None)
                self._waiting_for = None
        self._print()
        if item is None:
            return None
        self._asked = time.monotonic()
        state = self._dispatcher.runs[run]
        return *item, (state.assigned, state.reorder.reordering, state.reorder.ready)

    def _try_take(self, run: int) -> tuple[Task, Payload] | None:
        state = self._dispatcher.runs.get(run)
        if state is None:
            raise LoaderClosedError("this iterator was ended: the loader was closed or interrupted; iterate again")
        if state.parked:
            self._dispatcher.unpark(run)
        self._ensure_pool()
        item = self._dispatcher.take(run)
        if item is None:
            self._work()
            item = self._dispatcher.take(run)
        if item is None and self._fatal is not None:
            raise self._fatal
        return item

    def _wait(self, poller: select.poll, deadline: float | None, since: int) -> None:
        """Block until a worker, another thread or the clock wants something. Without the lock."""
        timeouts = []
        if self.callbacks.interval is not None:
            timeouts.append(self.callbacks.interval)
        if deadline is not None:
            timeouts.append(deadline - time.monotonic())
        poller.poll(max(0.0, min(timeouts)) * 1000 if timeouts else None)
        self.callbacks.call()
        if deadline is not None and time.monotonic() >= deadline:
            self._raise_timeout(since)

    def _raise_timeout(self, since: int) -> None:
        with self._locked():
            self._work()
            stuck = [g for g in self._worker_gauges() if g.batch is not None]
            number = self._waiting_for[0] if self._waiting_for else -1
        doing = "; ".join(
            f"worker {g.worker} (pid {g.pid}) has been {g.state} batch {g.batch} for {(_clock() - g.since) / 1e9:.1f} s"
            + (f", at sample {g.sample!r}" if g.sample is not None else "")
            for g in stuck
        )
        raise LoaderTimeoutError(
            f"DataLoader timed out after {self._timeout:g} seconds: batch {number} did not come (waited "
            f"{(_clock() - since) / 1e9:.1f} s). {doing or 'No worker has begun it'}. A slow sample or a hung call in "
            "the dataset is the usual cause: restart the worker, raise timeout, or look at loader.stats()."
        )

    def close_run(self, run: int) -> None:
        """End an iterator. May be called from any thread, even from a finalizer."""
        self._command(lambda: self._close_run(run))

    def _close_run(self, run: int) -> None:
        for payload in self._dispatcher.close_run(run):
            payload.discard()
        self._cancel(run)

    def _cancel_parked(self) -> None:
        for run, state in self._dispatcher.runs.items():
            if state.parked:
                self._cancel(run)

    def _cancel(self, run: int) -> None:
        if self._pool is None:
            return
        for handle in self._pool.handles.values():
            if handle.ready:
                self._pool.send(handle, Kind.CANCEL, pickle.dumps(run))

    # ---- driving: with the lock, by whoever is there ------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock. An interrupt in here may have left the state half changed: then everything begins anew."""
        with self._lock:
            try:
                yield
            except Exception:
                raise
            except BaseException:  # KeyboardInterrupt between any two instructions
                self._begin_anew()
                raise

    def _begin_anew(self) -> None:
        """After an interrupt within a change of state: no run and no worker survives it; the next epoch works."""
        pool, self._pool = self._pool, None
        self._dispatcher = Dispatcher(self._dispatcher.depth)
        self._slots = [Slot() for _ in range(self._num_workers)]
        if pool is not None:
            for handle in pool.handles.values():
                handle.kill()
            pool.close(0)
            pool.dispose()

    def _work(self) -> None:
        """One round: hear the workers, do what was commanded, hand out batches."""
        if self._pool is not None:
            for report in self._pool.poll(0):
                self._handle(report)
        while self._commands:
            self._commands.popleft()()
        if self._pool is not None:
            self._dispatch()

    def _dispatch(self) -> None:
        if self._pool is None:
            return
        now = _clock()
        for uid, task in self._dispatcher.assignments():
            handle = self._pool.handles[uid]
            task.dispatched = now
            message = (task.run, task.number, task.indices, task.seed, handle.maps.take_returned())
            self._pool.send(handle, Kind.TASK, pickle.dumps(message, 5))

    def _handle(self, report: Report) -> None:
        if isinstance(report, Result):
            self._take_result(report)
        elif isinstance(report, Output):
            self._texts.append((report.stream, report.text))
        elif isinstance(report, Ready):
            handle = report.handle
            self._dispatcher.worker_ready(handle.uid)
            self._slots[handle.worker].failed_starts = 0
            now = _clock()
            self.bus.publish(ev.WorkerReady(now, handle.worker, handle.pid, now - handle.requested))
        elif isinstance(report, Started):
            self.bus.publish(ev.WorkerStarted(_clock(), report.handle.worker, report.handle.pid))
        elif isinstance(report, InitFailed):
            self._cannot_start(report)
        else:
            self._bury(report)

    def _take_result(self, report: Result) -> None:
        result = report.result
        freed = self._dispatcher.result(report.handle.uid, report.run, report.number, result)
        if freed is None:
            result.discard()
            return
        now = _clock()
        for task, _payload in freed:
            task.in_order = now
        if self._waiting:
            self._wake_others(report.run)
        if isinstance(result, Failure):
            self._publish_failure(report, result)

    def _wake_others(self, run: int) -> None:
        waker = self._waiting.get(run)
        if waker is not None:
            waker.set()

    def _publish_failure(self, report: Result, failure: Failure) -> None:
        _data, name, message, _trace = failure.error
        self.bus.publish(
            ev.BatchFailed(
                _clock(), report.run, report.number, failure.worker,
                failure.position if failure.position >= 0 else None, f"{name}: {message}",
            )
        )  # fmt: skip

    # ---- the ends of workers ------------------------------------------------------------------------------------

    def _bury(self, report: Gone) -> None:
        """A worker has ended: tell, give its batches back, put another in its place."""
        handle = report.handle
        slot = self._slots[handle.worker] if handle.worker < len(self._slots) else Slot()
        reason = "restarted by request" if handle.expected else exit_phrase(report.exitcode)
        held, fatal = self._dispatcher.worker_gone(handle.uid, blame=not handle.expected)
        numbers = tuple(task.number for task in held) or handle.held
        self.bus.publish(
            ev.WorkerDied(
                _clock(), handle.worker, handle.pid, report.exitcode, reason, handle.expected, numbers, handle.stderr_tail
            )
        )
        slot.exit_reason = reason
        if fatal is not None:
            error = WorkerDiedError(died_message(fatal.number, fatal.indices, MAX_DEATHS, reason, handle.stderr_tail))
            self._dispatcher.fail(fatal, Given(error))
        if slot.handle is not handle or self._pool is None:
            return
        slot.handle = None
        if not handle.expected:
            self._deaths += 1
        if not handle.ready:
            slot.failed_starts += 1
        if self._fatal is not None:
            return
        if slot.failed_starts >= MAX_FAILED_STARTS:
            self._fail_all(WorkerStartError(
                f"worker {handle.worker} ended {slot.failed_starts} times before it was ready ({reason}). "
                f"Its standard error ended with:\n{handle.stderr_tail or '(nothing)'}"
            ))  # fmt: skip
        elif self._deaths > self._max_restarts:
            self._fail_all(WorkerDiedError(
                f"{self._deaths} workers died, more than max_restarts={self._max_restarts}; the last one was {reason}. "
                f"Its standard error ended with:\n{handle.stderr_tail or '(nothing)'}"
            ))  # fmt: skip
        else:
            self._replace(handle.worker, reason)

    def _replace(self, worker: int, reason: str) -> None:
        try:
            self._start_worker(worker)
        except (OSError, MemoryError) as error:
            self._fail_all(WorkerStartError(f"worker {worker} could not be replaced: {error}"))
            return
        self.bus.publish(ev.WorkerRestarted(_clock(), worker, reason))

    def _cannot_start(self, report: InitFailed) -> None:
        try:
            raise_described(report.error, f"raised in worker {report.handle.worker} while it rebuilt the dataset")
        except Exception as error:  # any type: it is the user's
            self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        """The pool cannot work: every consumer that waits gets the error, and the next iterator starts another."""
        self._fatal = error
        if self._pool is not None:
            for handle in self._pool.handles.values():
                handle.expected = True
                handle.kill()
            self._drop_pool(GRACE)
        for waker in self._waiting.values():
            waker.set()

    # ---- commands -----------------------------------------------------------------------------------------------

    def _command(self, action: Callable[[], None]) -> None:
        """Have the supervisor do this, now. From any thread; never waits, takes no lock."""
        self._commands.append(action)
        self._commanded.set()
        pool = self._pool
        if pool is not None:
            pool.wake()

    def restart_workers(self, ids: list[int]) -> None:
        """Replace workers; what they held is made again by others."""
        self._command(lambda: self._restart(ids))

    def _restart(self, ids: list[int]) -> None:
        for worker in ids:
            handle = self._slots[worker].handle
            if handle is None or self._pool is None:
                continue
            handle.expected = True
            held, _fatal = self._dispatcher.worker_gone(handle.uid, blame=False)
            handle.held = tuple(task.number for task in held)
            handle.kill()
            self._slots[worker].exit_reason = "restarted by request"
            self._replace(worker, "request")

    def pause(self) -> None:
        """Deliver and dispatch nothing until `resume`."""
        self._command(self._pause)

    def _pause(self) -> None:
        if not self._dispatcher.paused:
            self._dispatcher.paused = True
            self.bus.publish(ev.LoaderPaused(_clock()))

    def resume(self) -> None:
        """Go on after `pause`."""
        self._command(self._resume)

    def _resume(self) -> None:
        if self._dispatcher.paused:
            self._dispatcher.paused = False
            self.bus.publish(ev.LoaderResumed(_clock()))
            for waker in self._waiting.values():
                waker.set()

    def replace_all(self) -> None:
        """Give all workers what was loaded last; batches made or asked for already are kept."""
        self.restart_workers(list(range(self._num_workers)))

    def supersede(self) -> None:
        """The cell that made this loader was run again: give up the workers unless they are in use."""
        self._superseded = True
        self._command(self._give_up_if_unused)

    def _give_up_if_unused(self) -> None:
        if not self._dispatcher.runs:
            self._drop_pool(GRACE)

    # ---- the supervisor -----------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Drive while the consumer is away. Ends with the pool."""
        while True:
            pool = self._pool
            if pool is None or self.closed or self._owner != os.getpid():
                return
            idle_left = self._idle_left()
            poller = select.poll()
            try:
                poller.register(pool, select.POLLIN)
                happened = poller.poll(None if idle_left is None else max(0.0, idle_left) * 1000)
            except (OSError, ValueError):  # the pool was disposed of meanwhile
                continue
            if happened and self._consumer_is_here():
                linger = select.poll()
                linger.register(self._commanded, select.POLLIN)
                linger.poll(LINGER * 1000)
            self._commanded.clear()
            with self._lock:
                if self._pool is not pool:
                    continue
                try:
                    self._work()
                    left = self._idle_left()
                    if left is not None and left <= 0 and not self._waiting:
                        self._give_up()
                except Exception as error:  # a fault in the engine itself must reach the consumer, not hang it
                    log.exception("the supervisor failed")
                    self._fail_all(NbloaderError(f"the supervisor failed: {type(error).__name__}: {error}"))
            self._context.run(self._print)

    def _consumer_is_here(self) -> bool:
        return not self._commands and (bool(self._waiting) or time.monotonic() - self._asked < LINGER)

    def _idle_left(self) -> float | None:
        limit = IDLE_SUPERSEDED if self._superseded else self._idle
        return None if limit is None else limit - (time.monotonic() - self._asked)

    def _give_up(self) -> None:
        """Nobody has asked for long: end the workers. They are started again when somebody asks."""
        for run in self._dispatcher.runs:
            self._dispatcher.park(run)
        self._drop_pool(GRACE)

    # ---- small things -------------------------------------------------------------------------------------------

    def _print(self) -> None:
        """Show what workers printed, in the cell that iterates."""
        while self._texts:
            stream, text = self._texts.pop(0)
            target = sys.stdout if stream == "stdout" else sys.stderr
            with contextlib.suppress(Exception):  # a closed or strange stream must not end the epoch
                target.write(text)
                target.flush()

    def drain_output(self) -> None:
        """Show what workers have printed until now: at the end of an epoch, before the cell ends."""
        with self._locked():
            self._work()
            if self._pool is not None:
                for handle in self._pool.handles.values():
                    self._texts.extend(self._pool.partial_output(handle))
        self._print()

    def gauges(self, state: str) -> Gauges:
        """The state now, without waiting for the lock for long."""
        with self._lock:
            if self._pool is not None and not self._waiting and not self.closed:
                self._work()  # what has come is shown as received, though the consumer is away
            dispatcher = self._dispatcher
            runs = list(dispatcher.runs.values())
            waiting = self._waiting_for
            gauges = Gauges(
                now=_clock(),
                state=self._state(state),
                window=self._window,
                in_flight=sum(run.assigned for run in runs),
                reordering=sum(run.reorder.reordering for run in runs),
                ready=sum(run.reorder.ready for run in runs),
                waiting_since=waiting[1] if waiting else None,
                waiting_for=waiting[0] if waiting else None,
                workers=tuple(self._worker_gauges()),
            )
        self._context.run(self._print)
        return gauges

    def _state(self, state: str) -> str:
        if self.closed:
            return "closed"
        if self._dispatcher.paused:
            return "paused"
        if self._pool is None:
            return state
        if not any(slot.handle is not None and slot.handle.ready for slot in self._slots):
            return "starting"
        return "running" if self._dispatcher.runs else "idle"

    def _worker_gauges(self) -> Iterator[WorkerGauge]:
        for worker, slot in enumerate(self._slots):
            handle = slot.handle
            if handle is None:
                yield WorkerGauge(worker, 0, "dead", None, _clock(), None, 0, slot.exit_reason, "", None, None)
                continue
            assert self._pool is not None  # noqa: S101 - a slot with a handle has a pool
            held = self._dispatcher.held_by(handle.uid)
            indices = next((t.indices for t in held if t.number == handle.status[2] and t.run == handle.status[1]), None)
            yield self._pool.gauge(handle, queued=max(0, len(held) - 1), exit_reason=slot.exit_reason, indices=indices)

    def close(self) -> None:
        """End the workers and every iterator. Closing twice is harmless."""
        if self.closed or self._owner != os.getpid():
            return
        with self._lock:
            self.closed = True
            for run in list(self._dispatcher.runs):
                self._close_run(run)
            self._drop_pool(GRACE)
            for waker in self._waiting.values():
                waker.set()
        self._context.run(self._print)
        supervisor = self._supervisor
        if supervisor is not None and supervisor is not threading.current_thread():
            self._commanded.set()
            supervisor.join(1)
        self._commanded.close()


def exit_phrase(exitcode: int | None) -> str:
    """An exit code in words."""
    if exitcode is None:
        return "ended for an unknown reason"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (often: out of memory)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"

