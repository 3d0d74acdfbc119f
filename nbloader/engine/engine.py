"""The engine behind a loader with workers: what the iterator asks, and what the user commands.

It never refers to the `DataLoader` that owns it, so that a loader nobody refers to is closed. Who changes its state,
and when, is in driver.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from nbloader import events as ev
from nbloader._util.wakeup import Wakeup
from nbloader.batch.payload import BatchOutcome, BatchPayload
from nbloader.batch.task import Task
from nbloader.engine import timeouts as waiting
from nbloader.engine.commands import Commands
from nbloader.engine.config import EngineConfig
from nbloader.engine.inspect import batches_of
from nbloader.engine.supervisor import STRAGGLING
from nbloader.engine.timeouts import Wait
from nbloader.engine.wait_hooks import WaitCallbacks
from nbloader.errors import LoaderClosedError, LoaderTimeoutError, NbloaderError
from nbloader.events.gauges import Gauges
from nbloader.sampling.epoch_plan import EpochPlan
from nbloader.transport import stack_probe
from nbloader.workers.worker_view import WorkerView

_clock = time.perf_counter_ns

EXTRA_BATCHES = 16
"""Batches per worker that may be asked for beyond the window while the head of the line is late."""
EXTRA_BYTES = 128 << 20
"""Memory that they may take, bytes. A worker that is slow since cores are few is late, too, and more batches ahead only
cost memory then: with 1 GB allowed, batches of 8 MB and four workers on two cores took up to 350 MB of segments."""
AT_HAND = 2_000_000
"""Work that a worker does not run out of soon, ns."""
IDLE = 300.0
"""Seconds without a request after which a loader gives up its workers (until it is asked again)."""

Taken: TypeAlias = "tuple[Task, BatchOutcome, tuple[int, int, int]]"
"""A batch, and the depths (in flight, reordering, ready) at its delivery."""


class Awaited(NamedTuple):
    """What a consumer waits for."""

    number: int
    """Of the batch."""
    room: bool
    """Whether the sampler may be asked for more meanwhile."""
    uneven: bool
    """Whether a worker has nothing to do while another has more than one batch."""
    maker: int | None
    """The worker that makes it, where for `AT_HAND` nothing is to be done for the others. Of two workers at quick
    batches one is always some ahead of the other, and for each second batch the loop would wake in vain."""


class Engine(Commands):
    """Workers, dispatch and delivery for one loader.

    Args:
        bus: Where events go.
        settings: What the loader asks for.
    """

    def __init__(self, bus: ev.EventBus, settings: EngineConfig) -> None:
        super().__init__(bus, settings)
        self.callbacks = WaitCallbacks()
        self.load = self._crew.load
        self._in_order = settings.in_order
        self._timeout = settings.timeout
        self._on_timeout = settings.on_timeout
        self._waiting_for: tuple[int, int] | None = None  # (batch number, since)
        self._last: Task | None = None  # the batch that was delivered last

    @property
    def loaded(self) -> bool:
        """Whether workers have been given a dataset."""
        return self._crew.loaded

    # ---- the consumer's side ------------------------------------------------------------------------------------

    def open_run(self, run: int, draw: EpochPlan) -> None:
        """Begin an iterator. The others lose their window until they are asked again.

        Args:
            run: Its number.
            draw: What it draws its batches from.
        """
        self._exclusively(self._open_run, run, draw)

    def _open_run(self, run: int, draw: EpochPlan) -> None:
        self._crew.options["seed"] = draw.seed
        self._outlet.belongs_here()
        self._asked = time.monotonic()
        self._superseded = self._rested = False  # it is wanted after all
        self._carry_out()  # a restart that was asked for before holds for this epoch
        self._get_going()
        cut = draw.chunk_spec
        cancels = self._dispatcher.open_run(
            run, window=self._window, in_order=self._in_order, first=draw.first, shards=draw.shards,
            chunk=0 if cut is None else cut.size, join=None if cut is None else functools.partial(self._join, cut),
        )  # fmt: skip
        self._dispatcher.runs[run].passed = draw.delivered
        self._cancel(cancels)

    def room(self, run: int) -> int:
        """How many batches the sampler may be asked for now: none until some can be sent together, or one was lent."""
        if run not in self._dispatcher.runs:
            return 0
        room, state = self._dispatcher.room(run), self._dispatcher.runs[run]
        inside = room - state.extra
        together = state.window // (4 if self._deep else 8)
        return max(0, room) if inside <= 0 or inside >= together else 0

    def add(self, run: int, batches: Iterable[tuple[Any, int]], *, soon: bool = False) -> None:
        """Dispatch batches.

        Args:
            run: Their run.
            batches: As (indices, seed).
            soon: Whether the supervisor does it: to wake a worker takes the loop 0.25 ms.
        """
        self._exclusively(self._add, run, batches, soon)

    def _add(self, run: int, batches: Iterable[tuple[Any, int]], soon: bool) -> None:
        if run not in self._dispatcher.runs:
            return
        for indices, seed in batches:
            self._dispatcher.add(run, indices, seed)
        if soon:
            self._command(self._dispatch)
        else:
            self._dispatch()

    def next_batch(self, run: int, waker: Wakeup, refill: Callable[[], bool]) -> Taken | None:
        """The next batch of a run; waits for it.

        Args:
            run: Which run.
            waker: Wakes the consumer.
            refill: Asks the sampler for as many batches as there is room; whether it gave any.

        Returns:
            The batch and the depths (in flight, reordering, ready) at its delivery; None when none is outstanding.

        Raises:
            LoaderTimeoutError: It did not come within `timeout`.
            LoaderClosedError: The loader was closed meanwhile.
            WorkerStartError: The workers cannot be started.
        """
        self.callbacks.call()
        wait: Wait | None = None
        since = 0
        try:
            while True:
                got: Taken | Awaited | None = self._exclusively(self._take, run, waker)
                if got is None:
                    if refill():  # those before had no sample left
                        continue
                    return None
                if not isinstance(got, Awaited):
                    return got
                if wait is None:
                    since = _clock()
                    wait = Wait(since, timeout=self._timeout, first=not self._dispatcher.runs[run].taken)
                self._waiting_for = got.number, since
                self._outlet.show()
                if not (got.room and refill()):
                    self._wait(waker, wait, run, got)
        finally:
            self._waiting.pop(run, None)
            self._waiting_for = None
            self._outlet.show()

    def outstanding(self, run: int) -> bool:
        """Whether batches of a run are asked for and were not taken."""
        return run in self._dispatcher.runs and self._dispatcher.outstanding(run) > 0

    def wait_for_source(self, run: int, waker: Wakeup) -> None:
        """Block until the waker is set or the clock wants something.

        Raises:
            LoaderClosedError: The loader was closed meanwhile.
        """
        self._waiting[run] = waker
        try:
            if self.closed:
                raise LoaderClosedError(self._why_ended())
            waker.wait(None, self.callbacks.interval)
            self.callbacks.call()
        finally:
            self._waiting.pop(run, None)

    def upcoming(self, run: int, count: int) -> list[tuple[Task, BatchPayload]]:
        """The next batches of a run that are ready, among the next `count`; they are not taken. Never waits."""
        ready: list[tuple[Task, BatchPayload]] = self._exclusively(self._upcoming, run, count)
        return ready

    def _upcoming(self, run: int, count: int) -> list[tuple[Task, BatchPayload]]:
        self._work()
        state = self._dispatcher.runs.get(run)
        ready: list[Any] = [] if state is None else state.reorder.peek(count)
        return [(task, outcome) for task, outcome in ready if not (outcome.failed or outcome.empty)]

    def _take(self, run: int, waker: Wakeup) -> Taken | Awaited | None:
        """What is ready, or what to wait for: from then on whoever receives it wakes the consumer.

        None when nothing is outstanding.
        """
        state = self._dispatcher.runs.get(run)
        if state is None:
            raise LoaderClosedError(self._why_ended())
        if state.parked:
            self._dispatcher.unpark(run)
        if self._commands:  # what was asked for before this batch holds for it
            self._carry_out()
        self._driving = run
        item = self._next(run)
        if item is None:
            self._raise_fatal()
            self._get_going()
            self._work()
            item = self._next(run)
            if item is None:
                self._raise_fatal()
        self._driving = -1
        self._asked = time.monotonic()
        if item is not None:
            if self._adapts:
                self._adapt()
            self._last = item[0]
            depths = self._dispatcher.in_flight(run), state.reorder.reordering, state.reorder.ready
            return (*item, depths)
        if not self._dispatcher.outstanding(run):
            return None
        self._waiting[run] = waker
        return self._awaited(run)

    def _awaited(self, run: int) -> Awaited:
        enough = 2 + AT_HAND // max(1, self._batch_ns)  # the one that it is at may be done, and another is on its way
        return Awaited(
            number=self._dispatcher.upcoming(run),
            room=self.ahead and self._more_room(run, enough),
            uneven=self._dispatcher.uneven(),
            maker=self._dispatcher.maker(run, enough) if self._quick else None,
        )

    def _next(self, run: int) -> tuple[Task, BatchOutcome] | None:
        """The next batch that is ready and has samples."""
        while (item := self._dispatcher.take(run)) is not None:
            task, outcome = item
            if self._untold:
                self._events.extend(self._untold.pop((run, task.number), ()))
            if not outcome.empty:
                return task, outcome
            passed = self._dispatcher.runs[run].passed
            if passed is not None:
                passed(task, 0)
            if self._dispatcher.paused:
                self._dispatcher.step()  # the one that let this go lets another go
        return None

    def _why_ended(self) -> str:
        if self.closed:
            return "this loader was closed while it was iterated: make a new one"
        return "this iterator was ended by an interrupt: iterate the loader again"

    def _more_room(self, run: int, enough: int) -> bool:
        """Whether the sampler may be asked for more while the consumer waits."""
        if self.room(run) > 0:  # there are more workers than when it was asked last
            return True
        fits = EXTRA_BYTES // max(1, self._batch_bytes)
        limit = self._window + min(EXTRA_BATCHES * self._num_workers, fits)
        return self._dispatcher.lend_credit(run, limit, enough)

    def _raise_fatal(self) -> None:
        if self._crew.fatal is not None:
            error, self._crew.fatal = self._crew.fatal, None
            self._raised = error
            raise error

    def _wait(self, waker: Wakeup, wait: Wait, run: int, awaited: Awaited) -> None:
        """Block until a worker, another thread or the clock wants something. Without the lock."""
        due, left = wait.look(_clock(), paused=self._dispatcher.paused)
        if due:
            self._see_to(due, wait, run)
            return
        maker = awaited.maker if wait.fresh else None
        wait.fresh = False
        look = None
        if maker is not None:
            look = AT_HAND / 1e9
        elif awaited.uneven:  # somebody may be given work that waits elsewhere
            look = STRAGGLING / 1e9
        timeouts = [seconds for seconds in (left, self.callbacks.interval, look) if seconds is not None]
        pool = self._crew.pool
        waker.wait(pool.fileno(maker) if pool is not None else None, min(timeouts, default=None))
        self.callbacks.call()

    def _see_to(self, due: str, wait: Wait, run: int) -> None:
        """The wait has become long."""
        if due == "paused":
            self._outlet.add("stderr", waiting.PAUSED)
            return
        with self._lock:
            number, holder = self._dispatcher.late(run) if run in self._dispatcher.runs else (-1, None)
            worker = self._crew.worker_of(holder)
            gauges = sorted(self._crew.gauges(), key=lambda g: (g.worker != worker, g.state != "starting"))
        culprit = gauges[0] if worker is not None else None
        stack = ""
        with contextlib.suppress(NbloaderError):
            stack = self.stack(gauges[0].worker)
        place = stack_probe.place(stack) if stack else ""
        now = _clock()
        waited = (now - wait.since) / 1e9
        if due == "late":
            self._outlet.add("stderr", waiting.late_notice(number, waited, gauges[0], now, place))
            return
        if culprit is None and self._on_timeout == "restart" and waiting.still_starting(gauges[0], now):
            wait.since = now
            return
        message = waiting.timeout_message(self._timeout, number, waited, gauges, now, stack)
        if self._on_timeout == "raise" or culprit is None:
            raise LoaderTimeoutError(message)
        reason = f"batch {number} took longer than timeout={self._timeout:g} s"
        if self._exclusively(self._restart_late, run, number, holder, reason, LoaderTimeoutError(message)):
            self._outlet.add("stderr", waiting.restart_notice(self._timeout, number, culprit, now, place))
        wait.since = _clock()

    def _restart_late(self, run: int, number: int, holder: int, reason: str, error: Exception) -> bool:
        self._work()
        if run not in self._dispatcher.runs or self._dispatcher.late(run) != (number, holder):
            return False  # it came in the very last moment
        return self._crew.restart_late(holder, reason, error)

    def drain_output(self) -> None:
        """Show what workers have printed until now: at the end of an epoch, before the cell ends."""
        self._exclusively(self._drain_output)
        self._outlet.show()

    def _drain_output(self) -> None:
        self._work()
        if self._crew.pool is not None:
            for stream, text in self._crew.pool.partial_output():
                self._outlet.add(stream, text)

    def workers(self) -> list[WorkerView]:
        """The workers that are there, as torch's iterator shows its own."""
        with self._lock:
            return self._crew.views()

    # ---- watching, closing ------------------------------------------------------------------------------------------

    def stack(self, worker: int) -> str:
        """The Python stack of a worker now.

        Raises:
            NbloaderError: It does not run, or does not answer.
        """
        with self._lock:
            ask = self._crew.asker(worker)
        return ask()

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
        awaited = self._waiting_for
        return Gauges(
            now=_clock(),
            state=self._state(state),
            window=max((run.window for run in runs), default=self._window),
            in_flight=sum(map(self._dispatcher.in_flight, self._dispatcher.runs)),
            reordering=sum(run.reorder.reordering for run in runs),
            ready=sum(run.reorder.ready for run in runs),
            waiting_since=awaited[1] if awaited else None,
            waiting_for=awaited[0] if awaited else None,
            workers=tuple(self._crew.gauges()),
            **self._batches(),
        )

    def _batches(self) -> dict[str, Any]:
        """Which batch is where, of the newest iterator."""
        told = batches_of(self._dispatcher)
        last = self._last
        if last is not None and last.run == told.get("run"):
            told["delivered"] = self._dispatcher.runs[last.run].taken
            if last.run not in self._waiting:
                told["at"] = last.number
                told["at_since"] = _clock() - round((time.monotonic() - self._asked) * 1e9)
        return told

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
