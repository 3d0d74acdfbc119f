"""The state of one iteration over the loader: its waiting batches, the buffer that puts them in order, its counters.

The thread that owns the dispatcher changes it, with two exceptions: the consumer takes batches from `ready`, and counts
them in `taken`.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from nbloader.batch.payload import BatchOutcome
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.sampling.shard_plan import ShardPlan

T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """Holds numbered items until every earlier one has arrived. Then `put` or `skip` returns them.

    Args:
        in_order: False lets items leave in the order of their arrival (torch's `in_order=False`).
        first: Number of the first item.
    """

    __slots__ = ("_early", "_gone", "_next", "in_order")

    def __init__(self, *, in_order: bool = True, first: int = 0) -> None:
        self.in_order = in_order
        self._next = first
        self._early: dict[int, T] = {}
        self._gone: set[int] = set()  # numbers above `_next` that have no item, or whose item has left

    @property
    def missing(self) -> int:
        """The lowest number that has not arrived."""
        return self._next

    @property
    def reordering(self) -> int:
        """Items that have arrived and wait for an earlier one."""
        return len(self._early)

    def has(self, number: int) -> bool:
        """Whether the item of this number has arrived or was skipped, even if it has left since."""
        return number < self._next or number in self._early or number in self._gone

    def put(self, number: int, item: T) -> list[T]:
        """Accept an item.

        Returns:
            The items that leave, in order; empty while an earlier one is missing.

        Raises:
            ValueError: This number has arrived before.
        """
        if self.has(number):
            raise ValueError(f"item {number} has arrived before; the first missing one is {self._next}")
        if not self.in_order:
            self._gone.add(number)
            return [item, *self._advance()]
        if number != self._next:
            self._early[number] = item
            return []
        self._next += 1
        return [item, *self._advance()]

    def skip(self, number: int) -> list[T]:
        """Skip a number for which there is no item, so that later items do not wait for it.

        Returns:
            The items that leave, in order.

        Raises:
            ValueError: This number has arrived before.
        """
        if self.has(number):
            raise ValueError(f"item {number} has arrived before; the first missing one is {self._next}")
        self._gone.add(number)
        return self._advance()

    def _advance(self) -> list[T]:
        """Pass all numbers up to the first that has not arrived, and return their items."""
        freed = []
        while self._next in self._early or self._next in self._gone:
            if self._next in self._early:
                freed.append(self._early.pop(self._next))
            self._gone.discard(self._next)
            self._next += 1
        return freed

    def peek_early(self, count: int) -> list[T]:
        """Return at most `count` of the items that wait for an earlier one, without taking them."""
        return list(itertools.islice(self._early.values(), count))

    def drain(self) -> list[T]:
        """Remove and return the items that wait for an earlier one, so that their memory can be released."""
        out = list(self._early.values())
        self._early.clear()
        return out

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget that these items have arrived: they were discarded and will arrive again."""
        again = set(numbers)
        first = min(again, default=self._next)
        if first < self._next:
            self._gone.update(range(first, self._next))
            self._next = first
        self._gone -= again


class Delivery:
    """A batch for the consumer. The three queue depths are set when it is taken."""

    __slots__ = ("chunked", "in_flight", "outcome", "ready", "reordering", "task")

    def __init__(self, task: Task, outcome: BatchOutcome, chunked: ChunkedBatch[BatchOutcome] | None = None) -> None:
        self.task = task
        self.outcome = outcome
        """The payload, or the error in its place (a `BatchOutcome`)."""
        self.chunked = chunked
        """Its chunks, if it was produced in chunks, until it is taken."""
        self.in_flight = 0
        """Number of batches that workers hold."""
        self.reordering = 0
        """Number of batches that have arrived and wait for an earlier one."""
        self.ready = 0
        """Number of batches that can be delivered right after this one."""


@dataclass(slots=True)
class IterationState:
    """The batches of one iteration."""

    epoch: int
    """Number of the epoch."""
    reorder: ReorderBuffer[Delivery]
    added: int = 0
    """Number of the next batch to add. In a resumed epoch it does not start at 0: the earlier batches count."""
    taken: int = 0
    """Number of batches that the consumer has taken. Starts at the same value as `added`."""
    shards: ShardPlan | None = None
    """Shards of an iterable dataset; None for a map-style one."""
    chunk_size: int = 0
    """Samples per chunk if several workers produce one batch; 0 if batches are not chunked."""
    join: Callable[[ChunkedBatch[BatchOutcome]], BatchOutcome] | None = None
    """Joins the outcomes of the chunks of a batch."""
    ready: collections.deque[Delivery] = field(default_factory=collections.deque, init=False)
    """Batches that can be delivered, in order. The consumer takes them from the left."""
    skipped: int = field(default=0, init=False)
    """Number of batches that were skipped because they do not exist."""
    waiting: collections.deque[Task] = field(default_factory=collections.deque, init=False)
    """Jobs that no worker holds, ordered by job number: new ones, and those that a lost worker held."""
    assigned: int = field(default=0, init=False)
    """Number of jobs that workers hold."""
    _begun: dict[int, int] = field(default_factory=dict, init=False)
    """Number of chunks that workers hold, by batch number."""
    parked: bool = field(default=False, init=False)
    """Whether no jobs are dispatched, because another iteration began and this one's consumer has not requested a batch
    since."""
    jobs: int = field(default=0, init=False)
    """Job number of the next chunk."""
    chunked: dict[int, ChunkedBatch[BatchOutcome]] = field(default_factory=dict, init=False)
    """Batches that are produced in chunks and have not arrived as a whole, by batch number."""

    @property
    def outstanding(self) -> int:
        """Number of batches added and not yet taken."""
        return self.added - self.taken - self.skipped

    @property
    def in_flight(self) -> int:
        """Number of batches that workers hold, whole or in chunks."""
        return len(self._begun) if self.chunk_size else self.assigned

    def hold(self, task: Task) -> None:
        """Count a job that is given to a worker."""
        self.assigned += 1
        if self.chunk_size:
            self._begun[task.number] = self._begun.get(task.number, 0) + 1

    def release(self, task: Task) -> None:
        """Count a job that no worker holds any more."""
        self.assigned -= 1
        if self.chunk_size:
            self._begun[task.number] -= 1
            if not self._begun[task.number]:
                del self._begun[task.number]

    def add(self, indices: Any, seed: int) -> Task:
        """Add a batch from the sampler: it waits for a worker, whole or in chunks."""
        number = self.added
        self.added += 1
        task = Task(self.epoch, number, indices, seed, job=number)
        if not self.chunk_size:
            self.enqueue(task)
            return task
        batch = self.chunked[number] = ChunkedBatch(task, self.chunk_size)
        for chunk in batch.split(self.jobs):
            self.enqueue(chunk)
        self.jobs += len(batch.chunks)
        return task

    def enqueue(self, task: Task) -> None:
        """Queue a batch or chunk for a worker, possibly again, in the order of job numbers."""
        waiting = self.waiting
        if not waiting or waiting[-1].job < task.job:  # a new one
            waiting.append(task)
        else:
            later = (position for position, other in enumerate(waiting) if other.job > task.job)
            waiting.insert(next(later, len(waiting)), task)

    def reclaim(self, job: int) -> Task | None:
        """Remove and return a queued job whose outcome has arrived from a lost worker; None if it is not queued."""
        for position, task in enumerate(self.waiting):
            if task.job == job:
                del self.waiting[position]
                return task
        return None  # another worker is processing it by now, and its outcome will be used

    def has(self, task: Task) -> bool:
        """Whether the outcome of this batch or chunk has arrived."""
        return self.reorder.has(task.number) if task.parent is None else task.parent.has(task)

    def put(self, task: Task, outcome: BatchOutcome, now: int) -> None:
        """Accept the outcome of a batch or chunk, and timestamp the batches that can be delivered in order now."""
        batch = task.parent
        if batch is None:
            delivery = Delivery(task, outcome)
        elif not batch.add(task, outcome) or self.join is None:
            return
        else:
            task = batch.task
            task.dispatched = min(chunk.dispatched for chunk in batch.chunks)
            task.attempt = max(chunk.attempt for chunk in batch.chunks)
            lost = [chunk.lost_sample for chunk in batch.chunks if chunk.lost_sample is not None]
            task.lost_sample = lost[-1] if lost else None
            delivery = Delivery(task, self.join(batch), self.chunked.pop(task.number))
            batch.release()
        self._hand_over(self.reorder.put(task.number, delivery), now)

    def skip(self, number: int, now: int) -> None:
        """Skip a batch that does not exist, so that later ones do not wait for it."""
        self.skipped += 1
        self._hand_over(self.reorder.skip(number), now)

    def _hand_over(self, deliveries: list[Delivery], now: int) -> None:
        """Let the consumer have batches that are in order."""
        for delivery in deliveries:
            delivery.task.in_order = now
            self.ready.append(delivery)

    def peek_ready(self, count: int) -> list[Delivery]:
        """Return at most `count` of the batches that are ready. The consumer may take some of them at the same time."""
        while True:
            try:
                return list(itertools.islice(self.ready, count))
            except RuntimeError:  # it took one during the copy, in a Python without the GIL
                continue

    def take(self) -> Delivery | None:
        """Take the next batch, on the consumer's thread; None if it is not ready."""
        try:
            delivery = self.ready.popleft()
        except IndexError:
            return None
        self.taken += 1
        if delivery.chunked is not None:
            delivery.chunked.chunks.clear()  # breaks the cycle: chunks refer to the batch
            delivery.chunked = None
        if self.shards is not None:
            self.shards.received(delivery.task.indices)
        delivery.in_flight, delivery.reordering, delivery.ready = (
            self.in_flight, self.reorder.reordering, len(self.ready)
        )  # fmt: skip
        return delivery

    def redo(self) -> list[BatchOutcome]:
        """Requeue all batches that have arrived but have not been taken.

        Returns:
            The dropped outcomes.
        """
        deliveries = [*self._take_ready(), *self.reorder.drain()]
        self.reorder.forget(delivery.task.number for delivery in deliveries)
        dropped = [delivery.outcome for delivery in deliveries]
        for batch in self.chunked.values():
            batch.task.failures.clear()
            again, outcomes = batch.reset()
            dropped += outcomes
            self._enqueue_all(again)
        for delivery in deliveries:
            delivery.task.failures.clear()
            if delivery.chunked is None:
                self.enqueue(delivery.task)
            else:
                self.chunked[delivery.task.number] = delivery.chunked
                self._enqueue_all(delivery.chunked.reset()[0])
        return dropped

    def _enqueue_all(self, tasks: list[Task]) -> None:
        for task in tasks:
            self.enqueue(task)

    def drain(self) -> list[BatchOutcome]:
        """End the iteration: remove and return the outcomes of batches and chunks, so that they can be discarded."""
        deliveries = [*self._take_ready(), *self.reorder.drain()]
        out = [delivery.outcome for delivery in deliveries]
        for batch in self.chunked.values():
            out += batch.outcomes()
        self.discard_chunks()
        for delivery in deliveries:
            if delivery.chunked is not None:
                delivery.chunked.discard()
        return out

    def discard_chunks(self) -> None:
        """Free the memory of chunks whose batch has not arrived as a whole."""
        for batch in self.chunked.values():
            batch.discard()
        self.chunked.clear()

    def _take_ready(self) -> list[Delivery]:
        """Take back what is ready and was not taken. The consumer may take some of it at the same time."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.ready.popleft())
        return taken
