"""The consumer's side of an iteration: it takes batches that are ready, and waits for them.

    engine's thread --ready--> Receiver.take() --> __next__
                  --ring---> Receiver.bell

Everything here runs on the consumer's thread, apart from `close`, the bell, and what is read for gauges.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from nbloader._util.bell import Bell
from nbloader.batch.payload import BatchPayload, JoinedPayload
from nbloader.batch.task import Task
from nbloader.engine.timeouts import WaitTimer
from nbloader.engine.wait_hooks import WaitCallbacks
from nbloader.errors import LoaderClosedError
from nbloader.sampling.epoch_plan import EpochPlan, PlannedBatch
from nbloader.scheduler.gate import Gate
from nbloader.scheduler.iteration import Delivery, IterationState
from nbloader.scheduler.prefetch import Window

_clock = time.perf_counter_ns


class Awaited(NamedTuple):
    """The batch that the consumer waits for."""

    number: int
    since: int
    """When the wait began, perf_counter ns."""


class Iteration(Protocol):
    """What an iterator asks of its iteration, with workers (`Receiver`) or without (`LocalIteration`)."""

    bell: Bell
    """Wakes the consumer."""

    @property
    def outstanding(self) -> int:
        """Number of batches that were added and not taken."""

    @property
    def room(self) -> int:
        """Number of batches to request from the sampler now; at least one if none is outstanding."""

    def add(self, batches: list[PlannedBatch]) -> None:
        """Add batches that were drawn from the sampler."""

    def next(self, refill: Callable[[], bool]) -> Delivery | None:
        """Wait for the next batch and return it; None if no batch is outstanding.

        Args:
            refill: Requests as many batches from the sampler as there is room for; returns whether there were any.
        """

    def peek_payloads(self, count: int) -> list[tuple[Task, BatchPayload]]:
        """Return at most `count` of the next batches that are ready, without taking them."""

    def check_open(self) -> None:
        """Raise a LoaderClosedError if the iteration has ended."""

    def is_complete(self, *, drawn: int, held: int) -> bool:
        """Return whether an interrupt has lost no batch. One is lost if only local variables refer to it.

        Args:
            drawn: Number of the next batch to draw from the plan.
            held: Number of the last batch that the consumer or its iterator has; -1 if there is none.
        """


class ReceiverEngine(Protocol):
    """What a receiver needs from its engine."""

    callbacks: WaitCallbacks

    @property
    def closed(self) -> bool:
        """Whether the loader is closed."""

    def request(self, epoch: int, batches: list[PlannedBatch]) -> None:
        """Request batches. They are assigned to workers soon. Never waits."""

    def unpark(self, epoch: int) -> None:
        """Assign batches of an iteration again, because its consumer requests one. Never waits."""

    def needs_consumer(self) -> bool:
        """Whether workers have failed, or must be started from the consumer's thread."""

    def serve(self) -> None:
        """Raise the error that ended the workers, or start workers."""

    def new_timer(self, *, first: bool) -> WaitTimer:
        """Return a timer for a wait that begins now. For `first`, see `WaitTimer`."""

    def look_after(self, timer: WaitTimer, epoch: int) -> float | None:
        """Act on what is due in a wait. Return the seconds until something is due again; None for never."""

    def publish_failures(self, task: Task) -> None:
        """Publish the failures in a batch that is being delivered."""


class Receiver:
    """The consumer's side of one iteration. See `Iteration`.

    Args:
        engine: The engine.
        state: The state of the iteration. The thread of the loop owns it, apart from `ready` and `taken`.
        plan: The plan of its batches.
        window: How far ahead to request.
        gate: Whether batches may be delivered.
    """

    def __init__(
        self,
        engine: ReceiverEngine,
        state: IterationState,
        plan: EpochPlan,
        window: Window,
        gate: Gate,
    ) -> None:
        self.state = state
        self.bell = Bell()
        """Wakes the consumer."""
        self.awaited: Awaited | None = None
        self.closed = False
        """Whether the iteration has ended."""
        self.added = state.added
        """Number of the next batch to add."""
        self.last: Task | None = None
        """The last batch that was taken."""
        self.taken_at = 0.0
        """When it was taken, `time.monotonic()`; 0 before the first one."""
        self.requested_at = time.monotonic()
        """When the consumer last asked for a batch, `time.monotonic()`."""
        self._engine = engine
        self._plan = plan
        self._window = window
        self._gate = gate

    # ---- from any thread ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the iteration, and wake the consumer, which gets an error."""
        self.closed = True
        self.bell.ring()

    def check_open(self) -> None:
        """Raise if the iteration has ended.

        Raises:
            LoaderClosedError: The loader was closed, or an interrupt has ended the iteration.
        """
        if self.closed:
            raise LoaderClosedError(why_ended(closed=self._engine.closed))

    # ---- requesting -----------------------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Number of batches that were added and not taken."""
        return self.added - self.state.taken - self.state.skipped

    @property
    def room(self) -> int:
        """Number of batches to request from the sampler now; at least one if none is outstanding."""
        return 0 if self.closed else self._window.room(self.outstanding, self.state.reorder.reordering)

    def add(self, batches: list[PlannedBatch]) -> None:
        """Request batches. They are assigned to workers soon.

        Args:
            batches: Batches drawn from the sampler.
        """
        self._engine.request(self.state.epoch, batches)
        self.added += len(batches)  # after an interrupt before this, `is_complete` is false

    # ---- receiving ------------------------------------------------------------------------------------------------

    def next(self, refill: Callable[[], bool]) -> Delivery | None:
        """Wait for the next batch and return it.

        Args:
            refill: Requests as many batches from the sampler as there is room for; returns whether there were any.

        Returns:
            The delivery; None if no batch is outstanding.

        Raises:
            LoaderTimeoutError: The batch did not arrive within `timeout`.
            LoaderClosedError: The loader was closed meanwhile, or an interrupt has ended the iteration.
            WorkerStartError: The workers cannot be started.
            Exception: The workers have failed.
        """
        engine, bell = self._engine, self.bell
        self.requested_at = time.monotonic()
        engine.callbacks.call()
        self.check_open()
        if self.state.parked:
            engine.unpark(self.state.epoch)
        delivery = self.take()
        if delivery is not None:
            return delivery
        timer: WaitTimer | None = None
        since = _clock()
        try:
            while True:
                bell.listening = True  # before the look: what changes later wakes this thread
                delivery = self.take()
                if delivery is not None:
                    return delivery
                self.check_open()
                if engine.needs_consumer():
                    engine.serve()
                    continue
                if not self.outstanding:
                    if refill():  # the previous batches were empty
                        continue
                    return None
                if timer is None:
                    timer = engine.new_timer(first=self.state.taken == self._plan.first)
                self.awaited = Awaited(self._upcoming(), since)
                if not (self.room and refill()):
                    engine.callbacks.wait(bell, engine.look_after(timer, self.state.epoch))
        finally:
            bell.listening = False
            self.awaited = None

    def _upcoming(self) -> int:
        """Return the number of the batch that is delivered next."""
        ready = self.peek(1)  # while the loader is paused, ready batches are not taken
        return ready[0].task.number if ready else self.state.reorder.missing

    def take(self) -> Delivery | None:
        """Take the next batch; None if it is not ready, or must not be delivered while the loader is paused."""
        state, gate = self.state, self._gate
        while (ready := self.peek(1)) and not gate.closed:
            self.last = ready[0].task  # after an interrupt from here on, `is_complete` is false
            delivery = state.take()
            if delivery is None:  # it was taken back, to be produced again
                break
            task = self.last = delivery.task
            if task.failures:
                self._engine.publish_failures(task)
            if delivery.outcome.empty:
                self._plan.delivered(task.number, task.indices, 0)
                continue
            gate.delivered()
            self.taken_at = time.monotonic()
            return delivery
        return None

    def is_complete(self, *, drawn: int, held: int) -> bool:
        """Return whether an interrupt has lost no batch. For the arguments, see `Iteration`."""
        return self.added == drawn and (self.last is None or self.last.number == held)

    def peek(self, count: int) -> list[Delivery]:
        """Return at most `count` of the next batches that are ready, without taking them."""
        ready, found = self.state.ready, []
        with contextlib.suppress(IndexError):
            for position in range(count):
                found.append(ready[position])  # noqa: PERF401 - the thread of the loop appends meanwhile
        return found

    def peek_payloads(self, count: int) -> list[tuple[Task, BatchPayload]]:
        """Return at most `count` of the next batches that are ready, without taking them.

        The list ends before a batch whose chunks are joined by a `collate_fn` of the user.
        """
        ready = itertools.takewhile(_opens_without_user_code, self.peek(count))
        return [(item.task, item.outcome) for item in ready if not (item.outcome.failed or item.outcome.empty)]


def why_ended(*, closed: bool) -> str:
    """Return why an iteration has ended, for `LoaderClosedError`.

    Args:
        closed: Whether its loader was closed.
    """
    if closed:
        return "this loader was closed during the iteration: create a new one"
    return "this iterator was ended by an interrupt: iterate over the loader again"


def _opens_without_user_code(ready: Delivery) -> bool:
    """Return whether `open` builds the batch without calling a function of the user."""
    return not (isinstance(ready.outcome, JoinedPayload) and ready.outcome.calls_user_code)
