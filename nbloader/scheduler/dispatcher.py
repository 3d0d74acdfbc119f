"""Who makes which batch: dispatch, credit, retry. A state machine without I/O, clock or thread.

    add(indices) ->  waiting  -> assignments() ->  assigned to a worker  -> result() ->  reorder buffer  -> take()
                        ^                                   |
                        +---- worker_gone(), park() --------+

What waits is given out by the base (assigning.py). Every batch is in exactly one of these places. A batch is known by
(run, number): a run is one iterator over the loader. What a worker sends for a batch that has come already, or for a
run that is closed, is refused (`result()` returns None), so that a late message can never double a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from nbloader.batch.task import Task, Whole
from nbloader.sampling.shard_plan import Shards
from nbloader.scheduler.assigning import Assigning, Cancel
from nbloader.scheduler.reorder_buffer import ReorderBuffer
from nbloader.scheduler.run_state import Run

R = TypeVar("R")

MAX_DEATHS = 3
"""Workers that a batch may kill before it is given up."""


class Dispatcher(Assigning[R]):
    """Hands batches to workers and puts the results in order.

    Args:
        depth: Batches that one worker may hold, the one it works on included.
        in_turn: Whether batch i is made by worker i modulo their number, as in torch, and not by the least loaded.
    """

    def __init__(self, depth: int, *, in_turn: bool = False) -> None:
        super().__init__(depth, in_turn=in_turn)
        self._outdated: set[int] = set()  # workers whose results are not wanted any more

    # ---- workers ----------------------------------------------------------------------------------------------

    def worker_gone(self, worker: int, *, blame: bool) -> tuple[list[Task], Task | None]:
        """A worker is no more: what it held is made again by others.

        Args:
            worker: The unique number of its process.
            blame: True when it died unasked: the batch it was at is counted as a suspect.

        Returns:
            The batches it held; and the one of them that has now killed `MAX_DEATHS` workers and is not made
            again (the caller must put an error in its place by `fail`), or None.
        """
        held = list(self._held.pop(worker, {}).values())
        fatal = None
        for position, task in enumerate(held):
            if blame and position == 0:
                task.deaths += 1
                if task.deaths >= MAX_DEATHS:
                    fatal = task
            run = self.runs.get(task.run)
            if run is not None:
                run.assigned -= 1
                if task is not fatal:
                    run.wait(task)
        return held, fatal

    def late(self, run: int) -> tuple[int, int | None]:
        """The batch that a run waits for, and the worker that holds it (or a piece of it) or has to make room for it.

        None in place of the worker where there is no such.
        """
        state = self.runs[run]
        number = state.reorder.missing
        for worker, held in self._held.items():
            if any((task.run, task.number) == (run, number) for task in held.values()):
                return number, worker
        for _job, task in state.waiting:
            if task.number == number and (self.in_turn or state.shards is not None):
                worker = self._by_slot.get(self._slot(state, task), -1)
                return number, worker if self._held.get(worker) else None
        return number, None

    # ---- pace -------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Give out nothing and deliver nothing until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        self.paused = False
        self.steps = self._owed = 0

    def step(self) -> None:
        """While paused: let one batch go to the consumer, and as many be sent as that frees credit for."""
        self.steps += 1

    # ---- runs -------------------------------------------------------------------------------------------------

    def open_run(
        self,
        run: int,
        *,
        window: int,
        in_order: bool = True,
        first: int = 0,
        shards: Shards | None = None,
        chunk: int = 0,
        join: Callable[[Whole[R]], R] | None = None,
    ) -> list[Cancel]:
        """Begin a run; the other runs are parked until they are asked again.

        Args:
            run: Its number.
            window: Credit.
            in_order: False lets batches out as they come.
            first: Number of the first batch.
            shards: Of an iterable dataset.
            chunk: Samples of a piece; 0 where batches are not cut.
            join: Makes a batch's result of those of its pieces.

        Returns:
            What to cancel.
        """
        cancels = [cancel for other in self.runs for cancel in self.park(other)]
        buffer: ReorderBuffer[tuple[Task, R]] = ReorderBuffer(in_order=in_order, first=first)
        self.runs[run] = Run(run, window, buffer, first, first, shards, chunk, join)
        return cancels

    def clear(self) -> None:
        """Forget all runs and workers."""
        for run in self.runs.values():
            for whole in run.wholes.values():
                whole.dissolve()
        self.runs.clear()
        self._held.clear()

    def close_run(self, run: int) -> tuple[list[R], list[Cancel]]:
        """Forget a run.

        Returns:
            The results that nobody took, so that their memory can be given back; and what to cancel.
        """
        state = self.runs.pop(run, None)
        if state is None:
            return [], []
        cancels, _tasks = self._take_back(run)
        if not self.runs:
            self.steps = self._owed = 0  # steps beyond the last batch of an epoch are none of the next one
        if state.shards is not None:
            cancels = [(worker, run, None) for worker in set(state.shards.homes.values()) if worker in self._held]
        return state.drain(), cancels

    def park(self, run: int) -> list[Cancel]:
        """Take a run's window away: its batches that no worker has begun wait, so that another run goes first.

        Returns:
            What to cancel. A worker that has begun such a batch after all will send it, and it is taken.
        """
        state = self.runs[run]
        state.parked = True
        if state.shards is not None:
            return []  # a batch taken back and asked for again later could cost its worker a new iterator
        cancels, tasks = self._take_back(run)
        state.return_all(tasks)
        return cancels

    def unpark(self, run: int) -> None:
        """The run is asked again."""
        self.runs[run].parked = False

    # ---- batches ----------------------------------------------------------------------------------------------

    def room(self, run: int) -> int:
        """How many more batches the credit allows to add. At least one while nothing is outside."""
        return self.runs[run].room

    def lend_credit(self, run: int, limit: int, enough: int) -> bool:
        """The head of the line is late: let workers that run out of work go on beyond the window.

        With two batches a worker and an occasional slow one, the others would soon stand still behind it: by
        simulation they are at work 79 % of the time, and 97 % with four batches each.

        Args:
            run: The run whose consumer waits.
            limit: Batches that may be outside at most.
            enough: Batches that a worker does not run out of soon. Of two workers at quick batches one is always some
                ahead of the other: lent whenever it holds fewer than it may, each batch would be a message.

        Returns:
            Whether one more batch may be added now.
        """
        state = self.runs.get(run)
        if state is None or self.paused or state.waiting or not state.reorder.reordering or not self._held:
            return False
        if min(map(len, self._held.values())) >= min(self.depth, enough) or state.outstanding >= limit:
            return False
        state.extra += 1
        return True

    def add(self, run: int, indices: Any, seed: int) -> Task:
        """A batch from the sampler."""
        return self.runs[run].add(indices, seed)

    def result(self, worker: int, run: int, job: int, result: R) -> tuple[Task, list[tuple[Task, R]]] | None:
        """A worker has made a batch or a piece of one, or failed to.

        Returns:
            What it was to make, and the batches that are now in order (maybe none); None when the result is refused
            because its run is closed or it has come before: then the caller gives its memory back.
        """
        task = self._held.get(worker, {}).pop((run, job), None)
        state = self.runs.get(run)
        if state is None:
            return None
        if task is None:
            task = state.reclaim(job) if worker not in self._outdated else None
        else:
            state.assigned -= 1
        if task is None or state.has(task):
            return None
        return task, state.put(task, result)

    def redo(self) -> list[R]:
        """Have all batches made again that have come and were not taken. The workers are to be replaced.

        Returns:
            What came for them, so that its memory can be given back.
        """
        self._outdated = set(self._held)
        return [result for run in self.runs.values() for result in run.redo()]

    def end(self, worker: int, run: int, number: int) -> list[tuple[Task, R]]:
        """A worker found the shard of this batch exhausted: there is no such batch.

        Returns:
            The batches that are now in order.
        """
        task = self._held.get(worker, {}).pop((run, number), None)
        state = self.runs.get(run)
        if state is None or state.shards is None:
            return []
        if task is None:
            task = state.reclaim(number)
        else:
            state.assigned -= 1
        if task is None or state.reorder.has(number):
            return []
        state.shards.end(task.indices)
        state.taken += 1
        return state.reorder.skip(number)

    def fail(self, task: Task, result: R) -> list[tuple[Task, R]]:
        """Put an error in the place of a batch that no worker holds."""
        run = self.runs.get(task.run)
        return run.put(task, result) if run is not None else []

    def take(self, run: int) -> tuple[Task, R] | None:
        """The next batch for the consumer, or None when it has not come or the loader is paused."""
        state = self.runs[run]
        if self.paused and not self.steps:
            return None
        item = state.take()
        if item is not None and state.shards is not None:
            state.shards.take_back(item[0].indices)
        if item is not None and self.paused:
            self.steps -= 1
            self._owed += 1
        return item

    def upcoming(self, run: int) -> int:
        """The number of the batch that the consumer gets next; without order, the lowest that has not come."""
        reorder = self.runs[run].reorder
        ready = reorder.peek(1)  # while the loader is paused, what is ready is not taken
        return ready[0][0].number if ready else reorder.missing

    def outstanding(self, run: int) -> int:
        """Batches added and not yet taken."""
        return self.runs[run].outstanding

    def in_flight(self, run: int) -> int:
        """Batches that workers hold, or pieces of."""
        state = self.runs[run]
        if not state.chunk:
            return state.assigned
        return len({task.number for held in self._held.values() for task in held.values() if task.run == run})
