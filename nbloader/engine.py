"""The engine behind a loader with workers: one state, one lock, whoever is there drives it.

    consumer in __next__ --+
                           +--> with the lock: hear workers, carry out commands, dispatch --> deliver
    supervisor thread -----+

The consumer receives for itself while it waits: handing each batch over from a receiver thread costs a switch of the
interpreter lock, up to 5 ms. When the consumer is away, working on a batch, the supervisor thread drives: it replaces
dead workers and carries out commands, so that a restart works while a cell is busy. Commands (restart, pause, the end
of a dropped iterator) may come from any thread, even from a finalizer: they are queued and wake the supervisor.

The engine never refers to the `DataLoader` that owns it, so that a loader nobody refers to is closed.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import cloudpickle

from nbloader import events as ev
from nbloader.callbacks import WaitCallbacks
from nbloader.crew import Crew
from nbloader.dispatch import Cancel, Dispatcher, Task
from nbloader.errors import DatasetTransferError, LoaderClosedError, LoaderTimeoutError, NbloaderError
from nbloader.faults import Failure, Given, shown
from nbloader.output import Outlet
from nbloader.reports import Output, Parcel, Report, Result
from nbloader.stats import Gauges
from nbloader.waker import Waker
from nbloader.wire import Kind

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

LINGER = 0.02
"""Seconds that the supervisor leaves a message to a consumer who was there a moment ago."""
IDLE = 300.0
"""Seconds without a request after which a loader gives up its workers (until it is asked again)."""
IDLE_SUPERSEDED = 2.0
"""The same for a loader whose cell was run again and made another one."""

Payload: TypeAlias = "Parcel | Failure | Given"
Taken: TypeAlias = "tuple[Task, Payload, tuple[int, int, int]]"
"""A batch, and the depths (in flight, reordering, ready) at its delivery."""

_PLAIN = {int, str, bool, float, bytes}


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
        idle: Seconds without a request after which workers are given up; None for never.
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
        self.callbacks = WaitCallbacks()
        self.ahead = window > 0
        """Whether batches are asked for before they are wanted."""
        self.closed = False
        self._num_workers = num_workers
        self._window = window
        self._in_order = in_order
        self._timeout = timeout
        self._idle = idle
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher[Payload] = Dispatcher(max(1, -(-window // num_workers)))
        self._events: collections.deque[ev.Event] = collections.deque()  # to be published without the lock
        self._crew = Crew(
            self._events.append,
            self._dispatcher,
            num_workers=num_workers,
            options=options,
            start_method=start_method,
            max_restarts=max_restarts,
            hear=self._handle,
            failed=self._wake_all,
        )
        self.load = self._crew.load
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._commanded = Waker()
        self._supervisor: threading.Thread | None = None
        self._waiting: dict[int, Waker] = {}  # runs whose consumer waits
        self._waiting_for: tuple[int, int] | None = None  # (batch number, since)
        self._driving = -1  # the run whose consumer drives now
        self._outlet = Outlet()
        self._asked = time.monotonic()
        self._superseded = False

    @property
    def loaded(self) -> bool:
        """Whether workers have been given a dataset."""
        return self._crew.loaded

    # ---- the consumer's side ------------------------------------------------------------------------------------

    def open_run(self, run: int, seed: int) -> None:
        """Begin an iterator. The others lose their window until they are asked again.

        Args:
            run: Its number.
            seed: Base seed of workers that are started from now on.
        """
        self._exclusively(self._open_run, run, seed)

    def _open_run(self, run: int, seed: int) -> None:
        self._crew.options["seed"] = seed
        self._outlet.belongs_here()
        self._asked = time.monotonic()
        self._get_going()
        self._cancel(self._dispatcher.open_run(run, window=self._window, in_order=self._in_order))

    def room(self, run: int) -> int:
        """How many batches the sampler may be asked for now."""
        return self._dispatcher.room(run) if run in self._dispatcher.runs else 0

    def add(self, run: int, batches: Iterable[tuple[Any, int]]) -> None:
        """Dispatch batches, as (indices, seed)."""
        self._exclusively(self._add, run, batches)

    def _add(self, run: int, batches: Iterable[tuple[Any, int]]) -> None:
        if run in self._dispatcher.runs:
            for indices, seed in batches:
                self._dispatcher.add(run, indices, seed)
            self._dispatch()

    def next_batch(self, run: int, waker: Waker) -> Taken | None:
        """The next batch of a run; waits for it.

        Returns:
            The batch and the depths (in flight, reordering, ready) at its delivery; None when none is outstanding.

        Raises:
            LoaderTimeoutError: It did not come within `timeout`.
            LoaderClosedError: The loader was closed meanwhile.
            WorkerStartError: The workers cannot be started.
        """
        self.callbacks.call()
        since = 0
        try:
            while True:
                got: Taken | None
                got, number = self._exclusively(self._take, run)
                if got is not None or number is None:
                    return got
                if not since:
                    since = _clock()
                    self._waiting_for = number, since
                    self._waiting[run] = waker
                    continue  # look once more: from now on whoever receives it wakes us
                self._outlet.show()
                if self._dispatcher.paused:
                    since = _clock()  # a pause does not count as the workers' delay
                self._wait(waker, since)
        finally:
            if since:
                self._waiting.pop(run, None)
                self._waiting_for = None
            self._outlet.show()

    def _take(self, run: int) -> tuple[Taken | None, int | None]:
        """What is ready. Else None, and the number of the batch to wait for, or None when none is outstanding."""
        state = self._dispatcher.runs.get(run)
        if state is None:
            raise LoaderClosedError("this iterator was ended: its loader was closed or interrupted; iterate again")
        if state.parked:
            self._dispatcher.unpark(run)
        self._driving = run
        item = self._dispatcher.take(run)
        if item is None:
            self._raise_fatal()
            self._get_going()
            self._work()
            item = self._dispatcher.take(run)
            if item is None:
                self._raise_fatal()
        self._driving = -1
        self._asked = time.monotonic()
        if item is not None:
            return (*item, (state.assigned, state.reorder.reordering, state.reorder.ready)), None
        return None, state.taken if self._dispatcher.outstanding(run) else None

    def _raise_fatal(self) -> None:
        if self._crew.fatal is not None:
            error, self._crew.fatal = self._crew.fatal, None
            raise error

    def _wait(self, waker: Waker, since: int) -> None:
        """Block until a worker, another thread or the clock wants something. Without the lock."""
        timeout = self.callbacks.interval
        if self._timeout:
            left = self._timeout - (_clock() - since) / 1e9
            if left <= 0:
                self._raise_timeout(since)
            timeout = left if timeout is None else min(left, timeout)
        pool = self._crew.pool
        waker.wait(pool.fileno() if pool is not None else None, timeout)
        self.callbacks.call()

    def _raise_timeout(self, since: int) -> None:
        with self._lock:
            at_work = [g for g in self._crew.gauges() if g.batch is not None]
        number = self._waiting_for[0] if self._waiting_for else -1
        now = _clock()
        doing = "; ".join(
            f"worker {g.worker} (pid {g.pid}) has been {g.state} batch {g.batch} for {(now - g.since) / 1e9:.1f} s"
            + (f", at sample {g.sample!r}" if g.sample is not None else "")
            for g in at_work
        )
        raise LoaderTimeoutError(
            f"DataLoader timed out after {self._timeout:g} seconds: batch {number} did not come (waited "
            f"{(now - since) / 1e9:.1f} s). {doing or 'No worker has begun it'}. A slow sample or a hung call in the "
            "dataset is the usual cause: restart the worker, raise timeout, or look at loader.stats()."
        )

    def drain_output(self) -> None:
        """Show what workers have printed until now: at the end of an epoch, before the cell ends."""
        self._exclusively(self._drain_output)
        self._outlet.show()

    def _drain_output(self) -> None:
        self._work()
        if self._crew.pool is not None:
            for stream, text in self._crew.pool.partial_output():
                self._outlet.add(stream, text)

    # ---- driving: with the lock, by whoever is there --------------------------------------------------------------

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
                    self._crew.kill()
                    self._crew.stop(0)
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

    def _work(self) -> None:
        """One round: hear the workers, do what was commanded, hand out batches."""
        if self._crew.pool is not None:
            for report in self._crew.pool.poll(0):
                self._handle(report)
        while self._commands:
            self._commands.popleft()()
        self._dispatch()

    def _dispatch(self) -> None:
        pool = self._crew.pool
        if pool is None:
            return
        now = _clock()
        for uid, task in self._dispatcher.assignments():
            task.dispatched = now
            handle = pool.handles[uid]
            try:
                message = _dump_task(task, handle.maps.take_returned())
            except Exception as error:  # noqa: BLE001 - pickling runs the user's code, which may raise anything
                why = f"the indices {shown(task.indices)} of batch {task.number} cannot be pickled: {error}"
                self._dispatcher.result(uid, task.run, task.number, Given(DatasetTransferError(why)))
            else:
                pool.send(handle, Kind.TASK, message)

    def _cancel(self, cancels: list[Cancel]) -> None:
        pool = self._crew.pool
        for uid, run, numbers in cancels:
            if pool is not None and uid in pool.handles:
                pool.send(pool.handles[uid], Kind.CANCEL, pickle.dumps((run, numbers)))

    def _handle(self, report: Report) -> None:
        if isinstance(report, Result):
            self._take_result(report)
        elif isinstance(report, Output):
            self._outlet.add(report.stream, report.text)
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
        if report.run != self._driving and report.run in self._waiting:
            self._waiting[report.run].set()
        if isinstance(result, Failure):
            sample = failed.indices[result.position] if result.position >= 0 else None
            text = f"{result.error[1]}: {result.error[2]}"
            self._events.append(ev.BatchFailed(now, report.run, report.number, result.worker, sample, text))

    def _wake_all(self) -> None:
        for run, waker in list(self._waiting.items()):
            if run != self._driving:
                waker.set()

    # ---- commands: from any thread ----------------------------------------------------------------------------------

    def _command(self, action: Callable[[], None]) -> None:
        """Have the supervisor do this, now. Never waits, takes no lock."""
        if not self.closed:
            self._commands.append(action)
            self._commanded.set()

    def restart_workers(self, ids: list[int]) -> None:
        """Replace workers; what they held is made again by others."""
        self._command(lambda: self._crew.restart(ids))

    def replace_all(self) -> None:
        """Give all workers what was loaded last; batches made already are kept."""
        self.restart_workers(list(range(self._num_workers)))

    def pause(self) -> None:
        """Deliver and dispatch nothing until `resume`."""
        self._command(lambda: self._set_paused(paused=True))

    def resume(self) -> None:
        """Go on after `pause`."""
        self._command(lambda: self._set_paused(paused=False))

    def _set_paused(self, *, paused: bool) -> None:
        if self._dispatcher.paused != paused:
            self._dispatcher.paused = paused
            self._events.append(ev.LoaderPaused(_clock()) if paused else ev.LoaderResumed(_clock()))
            self._wake_all()

    def close_run(self, run: int) -> None:
        """End an iterator."""
        self._command(lambda: self._close_run(run))

    def _close_run(self, run: int) -> None:
        unwanted, cancels = self._dispatcher.close_run(run)
        for payload in unwanted:
            payload.discard()
        self._cancel(cancels)

    def supersede(self) -> None:
        """The cell that made this loader was run again: give up the workers soon, at once if no epoch is under way."""
        self._superseded = True
        self._command(lambda: None if self._dispatcher.runs else self._crew.stop())

    # ---- the supervisor ---------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Drive while the consumer is away. Ends with the workers."""
        while not self.closed:
            with self._lock:
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

    # ---- watching, closing ------------------------------------------------------------------------------------------

    def gauges(self, state: str) -> Gauges:
        """The state now.

        Args:
            state: What to call it while there are no workers.
        """
        gauges: Gauges = self._exclusively(self._gauges, state)
        self._outlet.show_from_elsewhere()
        return gauges

    def _gauges(self, state: str) -> Gauges:
        self._work()  # what has come is shown as received, though the consumer is away
        runs = self._dispatcher.runs.values()
        waiting = self._waiting_for
        return Gauges(
            now=_clock(),
            state=self._state(state),
            window=self._window,
            in_flight=sum(run.assigned for run in runs),
            reordering=sum(run.reorder.reordering for run in runs),
            ready=sum(run.reorder.ready for run in runs),
            waiting_since=waiting[1] if waiting else None,
            waiting_for=waiting[0] if waiting else None,
            workers=tuple(self._crew.gauges()),
        )

    def _state(self, state: str) -> str:
        if self.closed:
            return "closed"
        if self._dispatcher.paused:
            return "paused"
        if self._crew.pool is None:
            return state
        if not self._crew.ready:
            return "starting"
        return "running" if self._dispatcher.runs else "idle"

    def close(self) -> None:
        """End the workers and every iterator. Closing twice is harmless."""
        if self.closed or self._owner != os.getpid():
            return
        self._exclusively(self._close)
        self._outlet.show_from_elsewhere()
        self._commanded.set()
        supervisor = self._supervisor
        if supervisor is not None and supervisor is not threading.current_thread():
            supervisor.join(1)
        self._commanded.close()

    def close_soon(self) -> None:
        """The loader is gone: have the supervisor end the workers. For a finalizer, which may run at any moment."""
        if self._owner != os.getpid():
            return
        if self._crew.pool is not None:
            self._command(self._close)
        else:
            self.closed = True
            self._commanded.set()
            if self._supervisor is None:
                self._commanded.close()

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for run in list(self._dispatcher.runs):
            self._close_run(run)
        self._crew.stop()
        self._wake_all()


def _dump_task(task: Task, returned: list[int]) -> bytes:
    """A task for a worker. Indices of the notebook's own types go by value."""
    message = (task.run, task.number, task.indices, task.seed, returned)
    indices = task.indices
    kinds = set(map(type, indices)) if type(indices) is list else {type(indices)}
    return pickle.dumps(message, 5) if kinds <= _PLAIN else bytes(cloudpickle.dumps(message, 5))
