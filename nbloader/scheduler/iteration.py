"""The state of one iteration over the loader: its waiting batches, its reorder buffer and its counters."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from nbloader.batch.task import ChunkedBatch, Task
from nbloader.sampling.shard_plan import ShardPlan
from nbloader.scheduler.reorder_buffer import ReorderBuffer

R = TypeVar("R")


class Delivery:
    """A batch for the consumer. The three queue depths are set when it is delivered."""

    __slots__ = ("in_flight", "outcome", "ready", "reordering", "task")

    def __init__(self, task: Task, outcome: Any) -> None:
        self.task = task
        self.outcome = outcome
        """The payload, or the error in its place (a `BatchOutcome`)."""
        self.in_flight = 0
        """Number of batches that workers hold."""
        self.reordering = 0
        """Number of batches that have arrived and wait for an earlier one."""
        self.ready = 0
        """Number of batches that can be delivered right after this one."""


@dataclass(slots=True)
class IterationState(Generic[R]):
    """The batches of one iteration."""

    epoch: int
    """Number of the epoch."""
    reorder: ReorderBuffer[Delivery]
    added: int = 0
    """Number of the next batch to add. In a resumed epoch it does not start at 0: the earlier batches count."""
    taken: int = 0
    """Number of batches that were taken, or skipped because they do not exist. Starts at the same value as `added`."""
    shards: ShardPlan | None = None
    """Shards of an iterable dataset; None for a map-style one."""
    chunk_size: int = 0
    """Samples per chunk if several workers produce one batch; 0 if batches are not chunked."""
    join: Callable[[ChunkedBatch[R]], R] | None = None
    """Joins the outcomes of the chunks of a batch."""
    on_empty: Callable[[Task, int], None] | None = None
    """Called as `on_empty(task, 0)` for a batch that has no samples left, which the consumer does not see."""
    waiting: collections.deque[Task] = field(default_factory=collections.deque, init=False)
    """Jobs that no worker holds, ordered by job number: new ones, and those that a lost worker held."""
    assigned: int = field(default=0, init=False)
    """Number of jobs that workers hold."""
    parked: bool = field(default=False, init=False)
    """Whether no jobs are dispatched, because another iteration began and this one's consumer has not requested a batch
    since."""
    jobs: int = field(default=0, init=False)
    """Job number of the next chunk."""
    chunked: dict[int, ChunkedBatch[R]] = field(default_factory=dict, init=False)
    """Chunked batches that were added and have not been taken, by batch number."""

    @property
    def outstanding(self) -> int:
        """Number of batches added and not yet taken."""
        return self.added - self.taken

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

    def put(self, task: Task, outcome: R, now: int) -> None:
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
            delivery = Delivery(task, self.join(batch))
            batch.release()
        for ready in self.reorder.put(task.number, delivery):
            ready.task.in_order = now

    def skip(self, number: int, now: int) -> None:
        """Skip a batch that does not exist, so that later ones do not wait for it."""
        self.taken += 1
        for ready in self.reorder.skip(number):
            ready.task.in_order = now

    def take(self) -> Delivery | None:
        """Take the next batch for the consumer; None if it has not arrived."""
        delivery = self.reorder.take()
        if delivery is not None:
            self.taken += 1
            if self.chunked:
                self.chunked.pop(delivery.task.number).chunks.clear()  # breaks the cycle: chunks refer to the batch
        return delivery

    def redo(self) -> list[R]:
        """Requeue all batches that have arrived but have not been taken.

        Returns:
            The dropped outcomes.
        """
        deliveries = self.reorder.drain()
        self.reorder.forget(delivery.task.number for delivery in deliveries)
        dropped = [delivery.outcome for delivery in deliveries]
        for delivery in deliveries:
            if delivery.task.number not in self.chunked:
                self.enqueue(delivery.task)
        for batch in self.chunked.values():
            incomplete = batch.missing > 0
            again, outcomes = batch.reset()
            dropped += outcomes if incomplete else []  # otherwise they are part of the batch's outcome
            for chunk in again:
                self.enqueue(chunk)
        return dropped

    def drain(self) -> list[R]:
        """End the iteration: remove and return the outcomes of batches and chunks, so that they can be discarded."""
        out = [delivery.outcome for delivery in self.reorder.drain()]
        for batch in self.chunked.values():
            if batch.missing:
                out += batch.outcomes()
            batch.discard()
        return out
