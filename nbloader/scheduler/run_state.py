"""One iterator's batches: what waits, what has come, and how much credit there is. Part of the dispatcher's state."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from nbloader.batch.task import ChunkedBatch, Task
from nbloader.sampling.shard_plan import ShardPlan
from nbloader.scheduler.reorder_buffer import ReorderBuffer

R = TypeVar("R")


@dataclass(slots=True)
class IterationState(Generic[R]):
    """One iterator's batches."""

    number: int
    window: int
    """Credit: batches that may be outside, sent or ready, beyond the one that the consumer holds."""
    reorder: ReorderBuffer[tuple[Task, R]]
    added: int = 0
    taken: int = 0
    shards: ShardPlan | None = None
    """Of an iterable dataset."""
    chunk: int = 0
    """Samples of a piece, where several workers make a batch at once; 0 where batches are not cut."""
    join: Callable[[ChunkedBatch[R]], R] | None = None
    """Makes a batch's result of those of its pieces."""
    extra: int = field(default=0, init=False)
    """Credit beyond the window, lent while the head of the line is late."""
    waiting: list[tuple[int, Task]] = field(default_factory=list, init=False)
    """Heap of batches not assigned to a worker: new ones, and those that came back from a dead worker."""
    assigned: int = field(default=0, init=False)
    parked: bool = field(default=False, init=False)
    """A parked run is given to no worker: nobody has asked it since another run began."""
    jobs: int = field(default=0, init=False)
    """Number of the next piece."""
    wholes: dict[int, ChunkedBatch[R]] = field(default_factory=dict, init=False)
    """Batches in pieces that were added and not taken, by number."""
    passed: Callable[[Task, int], None] | None = field(default=None, init=False)
    """Told of a batch that the consumer does not get to see, since no sample of it is left."""

    @property
    def outstanding(self) -> int:
        """Batches added and not yet taken."""
        return self.added - self.taken

    @property
    def room(self) -> int:
        """How many more batches the credit allows to add. At least one while nothing is outside."""
        return max(self.window + self.extra, 1) - (self.added - self.taken)

    def add(self, indices: Any, seed: int) -> Task:
        """A batch from the sampler: it waits, whole or in pieces."""
        number = self.added
        self.added += 1
        task = Task(self.number, number, indices, seed, job=number)
        if not self.chunk:
            heapq.heappush(self.waiting, (number, task))
            return task
        whole = self.wholes[number] = ChunkedBatch(task, self.chunk)
        for part, own_seed in whole.cut():
            piece = Task(self.number, number, part, own_seed, job=self.jobs, whole=whole)
            self.jobs += 1
            whole.pieces.append(piece)
            self.wait(piece)
        return task

    def wait(self, task: Task) -> None:
        """A batch or a piece waits for a worker, maybe again."""
        heapq.heappush(self.waiting, (task.job, task))

    def return_all(self, tasks: list[Task]) -> None:
        """Workers hold these no longer, and have not made them."""
        self.assigned -= len(tasks)
        for task in tasks:
            self.wait(task)

    def reclaim(self, job: int) -> Task | None:
        """A result came for what was taken back from its worker: it need not be made again."""
        for position, (waiting, task) in enumerate(self.waiting):
            if waiting == job:
                del self.waiting[position]
                heapq.heapify(self.waiting)
                return task
        return None  # another worker is at it by now, and that one's result will be taken

    def has(self, task: Task) -> bool:
        """Whether this batch or piece has come."""
        return self.reorder.has(task.number) if task.whole is None else task.whole.has(task)

    def put(self, task: Task, result: R) -> list[tuple[Task, R]]:
        """Take a result, of a batch or of a piece. Returns the batches that are now in order."""
        whole = task.whole
        if whole is None:
            return self.reorder.put(task.number, (task, result))
        if not whole.put(task, result) or self.join is None:
            return []
        batch = whole.task
        batch.dispatched = min(piece.dispatched for piece in whole.pieces)
        batch.attempt = max(piece.attempt for piece in whole.pieces)
        joined = self.join(whole)
        whole.let_go()
        return self.reorder.put(batch.number, (batch, joined))

    def take(self) -> tuple[Task, R] | None:
        """The next batch for the consumer, or None when it has not come."""
        item = self.reorder.take()
        if item is not None:
            self.taken += 1
            if self.wholes:
                self.wholes.pop(item[0].number).pieces.clear()  # they refer to it
            if not self.reorder.reordering:
                self.extra = 0
        return item

    def redo(self) -> list[R]:
        """Have all batches made again that have come and were not taken. Returns what came for them."""
        items = self.reorder.drain()
        self.reorder.forget(task.number for task, _result in items)
        dropped = [result for _task, result in items]
        for task, _result in items:
            if task.number not in self.wholes:
                self.wait(task)
        for whole in self.wholes.values():
            incomplete = whole.left > 0
            again, results = whole.redo()
            dropped += results if incomplete else []  # else they have gone into the batch's result
            for piece in again:
                self.wait(piece)
        return dropped

    def drain(self) -> list[R]:
        """The run is over: take out what has come, of batches and of pieces (to give its memory back)."""
        out = [result for _task, result in self.reorder.drain()]
        for whole in self.wholes.values():
            if whole.left:
                out += whole.results()
            whole.dissolve()
        return out
