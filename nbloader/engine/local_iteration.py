"""An iteration of a loader without workers: the consumer's own thread produces each batch when it asks for it.

    EpochIterator.__next__ -> LocalIteration.next() -> LocalProducer.produce() -> delivered

An iteration holds at most one batch that was drawn from the plan and not delivered: an interrupted one is produced
again by the next call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from nbloader._util.bell import Bell
from nbloader.batch import chunking
from nbloader.batch.payload import BatchOutcome, BatchPayload
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.engine import timeouts
from nbloader.engine.receiver import Awaited, why_ended
from nbloader.engine.timeouts import WaitTimer
from nbloader.engine.wait_hooks import WaitCallbacks
from nbloader.errors import LoaderClosedError
from nbloader.events.failures import EmptyBatch, samples_failed
from nbloader.sampling.epoch_plan import ChunkSpec, EpochPlan, PlannedBatch
from nbloader.scheduler.gate import Gate
from nbloader.scheduler.iteration import Delivery
from nbloader.workers.in_process import seeded_collate
from nbloader.workers.local_producer import NO_WORKER, LocalProducer
from nbloader.workers.status import WorkerAbandonedError

_clock = time.perf_counter_ns


class IterationEngine(Protocol):
    """What an iteration needs from its engine."""

    closed: bool
    callbacks: WaitCallbacks
    gate: Gate

    def create_producer(self, plan: EpochPlan) -> LocalProducer:
        """Create a producer with the dataset that was loaded last.

        Raises:
            LoaderClosedError: The loader was closed.
        """

    def publish_failures(self, task: Task) -> None:
        """Publish the failures in a batch that is being delivered."""

    def notice(self, text: str) -> None:
        """Print a notice in the cell."""


class LocalIteration:
    """One iteration. See `Iteration`.

    Args:
        engine: The engine.
        epoch: Number of the epoch.
        plan: The plan of its batches.
        batched: Whether samples are collated into batches.
    """

    def __init__(self, engine: IterationEngine, epoch: int, plan: EpochPlan, *, batched: bool) -> None:
        self.epoch = epoch
        self.plan = plan
        self.bell = Bell()
        """Wakes the consumer while it waits for a command or for its source."""
        self.closed = False
        """Whether the iteration has ended."""
        self.awaited: Awaited | None = None
        """The batch that is being produced."""
        self.last: Task | None = None
        """The last batch that was taken."""
        self.taken = 0
        """Number of batches that were taken."""
        self.taken_at = 0
        """When the last one was taken, perf_counter ns."""
        self.task: Task | None = None
        """The batch that was drawn and not delivered."""
        self.producer: LocalProducer | None = None
        """None before the first batch, and after the dataset was replaced."""
        self.running = False
        """Whether a batch is being produced."""
        self._engine = engine
        self._batched = batched
        self._added = plan.first  # number of the next batch to draw from the plan
        self._produced: Delivery | None = None  # the batch `task`, if it was produced while the loader was paused
        self._jobs = 0  # job number of the next chunk
        self._producers = 0  # number of producers that the iteration has had

    # ---- from any thread ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the iteration, and wake the consumer, which gets an error."""
        self.closed = True
        self.bell.ring()
        if self.producer is not None and not self.running:
            self.producer.close()

    def check_open(self) -> None:
        """Raise if the iteration has ended.

        Raises:
            LoaderClosedError: The loader was closed, or an interrupt has ended the iteration.
        """
        if self.closed:
            raise LoaderClosedError(why_ended(closed=self._engine.closed))

    def replace_dataset(self, *, keep: bool) -> None:
        """Use what was loaded last from the next batch on.

        Args:
            keep: Whether a batch that was produced and not delivered yet, because the loader is paused, is delivered.
                If false, it is produced again.
        """
        self.producer = None
        if not keep:
            self._produced = None

    # ---- requesting -----------------------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Number of batches that were drawn and not delivered: 0 or 1."""
        return int(self.task is not None)

    @property
    def room(self) -> int:
        """Number of batches to draw from the plan now: 1 if none is drawn, otherwise 0."""
        return int(self.task is None and not self.closed)

    def add(self, batches: list[PlannedBatch]) -> None:
        """Add the batch that was drawn.

        Args:
            batches: The batch.
        """
        for indices, seed in batches:
            self.task = Task(self.epoch, self._added, indices, seed, job=self._added)
            self._added += 1

    # ---- producing ------------------------------------------------------------------------------------------------

    def next(self, refill: Callable[[], bool]) -> Delivery | None:
        """Produce the next batch on this thread and return it.

        Args:
            refill: Draws a batch from the plan and adds it; returns whether there was one.

        Returns:
            The delivery; None if the plan has no more batches.

        Raises:
            LoaderClosedError: The loader was closed meanwhile.
            BaseException: Whatever the user's code raises, if it is not an `Exception`: the next call produces the
                batch again, unless the dataset is iterable.
        """
        self._engine.callbacks.call(waiting=True)
        self.check_open()
        self.running = True
        try:
            return self._next(refill)
        finally:
            self.running = False
            self.awaited = None

    def _next(self, refill: Callable[[], bool]) -> Delivery | None:
        gate = self._engine.gate
        while True:
            task = self.task
            if task is None:
                if not refill():
                    return None
                self.check_open()
                continue
            self.awaited = Awaited(task.number, _clock())
            if gate.closed:
                self._wait_for_resume(task)
            delivery = self._produced
            if delivery is None:
                delivery = self._produce(task)
                if gate.closed:  # the user's code, or another thread, has paused the loader meanwhile
                    self._produced = delivery
                    continue
            self.check_open()
            self._engine.publish_failures(task)
            taken = delivery is not None and self._take(delivery)
            self.task = self._produced = None  # after an interrupt before this, the batch is produced again
            if taken:
                return delivery

    def _take(self, delivery: Delivery) -> bool:
        """Count a batch that is ready as taken from the plan. Returns whether it has samples to deliver."""
        task = delivery.task
        if self.plan.shards is not None:
            self.plan.shards.received(task.indices)
        if delivery.outcome.empty:
            self.plan.delivered(task.number, task.indices, 0)
            return False
        self._engine.gate.delivered()
        self.taken += 1
        self.taken_at = _clock()
        self.last = task  # after an interrupt from here on, `is_complete` is false
        return True

    def _produce(self, task: Task) -> Delivery | None:
        """Produce a batch. Return None if it does not exist, because the dataset is exhausted."""
        task.failures.clear()
        task.dispatched = _clock()
        task.attempt += 1
        chunks = self.plan.chunk_spec
        try:
            outcome = self._run(task) if chunks is None else self._join(task, chunks)
        except WorkerAbandonedError:
            raise LoaderClosedError(why_ended(closed=self._engine.closed)) from None
        if outcome is None:
            return None
        if outcome.failed:
            event = outcome.to_event(_clock(), task.epoch, task.number, task.indices)
            if event is not None:
                task.failures.append(event)
        task.in_order = _clock()
        return Delivery(task, outcome)

    def _run(self, task: Task) -> Any:
        """Run the user's code for a batch or a chunk. Returns the outcome; None if there is no such batch."""
        shards, producer = self.plan.shards, self.producer
        if producer is None:
            producer = self.producer = self._engine.create_producer(self.plan)
            self._producers += 1
        if shards is not None:
            shards.assign(task.indices, self._producers)
        try:
            outcome = producer.produce(task)
        except BaseException as error:
            if not producer.reads_stream or isinstance(error, WorkerAbandonedError):
                raise
            self._produced = Delivery(task, EmptyBatch())  # its iterator may have advanced: the next batch continues
            raise
        if outcome is None and shards is not None:
            shards.mark_exhausted(task.indices)
        if producer.failed_samples:
            whole = task if task.parent is None else task.parent.task
            whole.failures += samples_failed(
                producer.failed_samples, task.epoch, task.number, task.indices, NO_WORKER, batched=self._batched
            )
        return outcome

    def _join(self, task: Task, chunks: ChunkSpec) -> Any:
        """Produce a batch in chunks, which have the same seeds as with workers, and join them."""
        batch: ChunkedBatch[BatchOutcome] = ChunkedBatch(task, chunks.size)
        for chunk in batch.split(self._jobs):
            batch.add(chunk, self._run(chunk))
        collate_fn = None if chunks.collate_fn is None else seeded_collate(chunks.collate_fn, batch)
        outcome: Any = chunking.join_chunks(batch, collate_fn)
        self._jobs += len(batch.chunks)
        batch.release()
        batch.chunks.clear()  # breaks the cycle: chunks refer to the batch
        return outcome

    def is_complete(self, *, drawn: int, held: int) -> bool:
        """Return whether an interrupt has lost no batch. For the arguments, see `Iteration`."""
        return self._added == drawn and (self.last is None or self.last.number == held)

    def peek_payloads(self, count: int) -> list[tuple[Task, BatchPayload]]:  # noqa: ARG002
        """Return []: no batch is ready before the consumer asks for it."""
        return []

    # ---- waiting --------------------------------------------------------------------------------------------------

    def _wait_for_resume(self, task: Task) -> None:
        """Block while the loader is paused.

        Raises:
            LoaderClosedError: The loader was closed meanwhile.
        """
        timer = WaitTimer(_clock(), timeout=0, first=task.number == self.plan.first)
        self.bell.listening = True
        try:
            while self._engine.gate.closed:
                self.check_open()
                check = timer.check(_clock(), paused=True)
                if check.due is not None:
                    self._engine.notice(timeouts.PAUSE_NOTICE_TEXT)
                    continue
                self._engine.callbacks.wait(self.bell, check.left)
        finally:
            self.bell.listening = False
