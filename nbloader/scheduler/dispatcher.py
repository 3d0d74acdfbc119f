"""The dispatcher: which worker produces which batch, and in which order batches are delivered.

    add() ->  waiting  -> assignments() ->  held by a worker  -> result() ->  reorder buffer  -> ready
                 ^                                 |
                 +-------- worker_gone() ----------+

It is a pure state machine without I/O, threads or a clock: times are passed in. Methods are events (a worker is ready,
a result arrived), and what they return are actions for the caller: `Assign` a job to a worker, `Cancel` jobs of a
closed iteration, put an error in the place of a poisoned batch. How far ahead batches are requested and how many of
them a worker holds is up to the `Window`.

A job is a batch, or a chunk of a batch if batches are chunked. Every job is in exactly one of the places above and is
identified by (epoch, job number). A result for a job that has arrived before, or for an iteration that is closed,
is rejected, so that a late message never duplicates a batch. The consumer takes what is ready (`IterationState.ready`).
"""

from __future__ import annotations

import collections
import itertools
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

from nbloader.batch.payload import BatchOutcome
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.sampling.shard_plan import ShardPlan
from nbloader.scheduler.gate import Gate
from nbloader.scheduler.iteration import Delivery, IterationState, ReorderBuffer
from nbloader.scheduler.prefetch import Window

MAX_DEATHS = 3
"""Number of worker deaths after which the batch being processed is poisoned: an error is delivered in its place."""


class Assign(NamedTuple):
    """Action: send jobs to a worker."""

    worker: int
    """Unique number of the worker."""
    tasks: list[Task]


class Cancel(NamedTuple):
    """Action: make a worker drop the jobs of a closed iteration."""

    worker: int
    """Unique number of the worker."""
    epoch: int
    """Number of the epoch."""
    jobs: tuple[int, ...] | None
    """Job numbers; None for the whole iteration, including the worker's iterators over its shards."""


class WorkerLoss(NamedTuple):
    """What a worker held when it ended."""

    held: list[Task]
    """Jobs that the worker held, which now wait for other workers."""
    poisoned: Task | None
    """The held job that has killed `MAX_DEATHS` workers and is not produced again; None if there is none. Action:
    `fail()` it."""


class Closed(NamedTuple):
    """What remains of a closed iteration."""

    unclaimed: list[Any]
    """Outcomes that were not delivered. Action: discard them."""
    cancels: list[Cancel]


class Delay(NamedTuple):
    """The batch that delays an iteration."""

    number: int
    worker: int | None
    """The worker that holds the batch or a chunk of it, or that must produce it and has other jobs to finish first;
    None if there is no such worker."""


_Key: TypeAlias = "tuple[int, int]"
"""(epoch, job number)"""


class Dispatcher:
    """Assigns batches to workers and puts their outcomes in order.

    Args:
        window: How far ahead to request, and how many jobs a worker may hold.
        gate: Whether jobs may be assigned.
        round_robin: Whether batch i waits for worker i modulo the number of workers, as in torch. Otherwise that worker
            is preferred, and another one produces the batch if it would soon be idle.
        cancels_begun: Whether workers can drop jobs that they are processing.
    """

    def __init__(self, window: Window, gate: Gate, *, round_robin: bool = False, cancels_begun: bool = False) -> None:
        self.window = window
        self._gate = gate
        self._cancels_begun = cancels_begun
        self.iterations: dict[int, IterationState] = {}
        """Open iterations by number."""
        self.slots = 1
        """Number of worker ids."""
        self.round_robin = round_robin
        """See above; it may change while the loader runs."""
        self._by_slot: dict[int, int] = {}  # worker id -> the worker that became ready last
        self._held: dict[int, dict[_Key, Task]] = {}  # worker -> its jobs, in the order it was given them
        self._outdated: set[int] = set()  # workers whose results are rejected; they may already hold no jobs

    # ---- workers ------------------------------------------------------------------------------------------------

    def worker_ready(self, worker: int, slot: int = 0) -> None:
        """Register a worker that is ready for jobs.

        Args:
            worker: Unique number of the worker.
            slot: Worker id.
        """
        self._held.setdefault(worker, {})
        self._by_slot[slot] = worker

    def worker_gone(self, worker: int, *, blame: bool, suspects: list[Task] | None = None) -> WorkerLoss:
        """Remove a worker that has ended; its jobs wait for other workers.

        Args:
            worker: Unique number of the worker.
            blame: Whether the worker died unexpectedly: then the jobs that it was processing are suspects. If there are
                several suspects, none of them is poisoned; instead, each is produced alone (`Task.deaths`).
            suspects: The jobs that the worker was processing; None for the first one that it held.
        """
        held = list(self._held.pop(worker, {}).values())
        poisoned = None
        if blame:
            suspects = held[:1] if suspects is None else suspects
            for task in suspects:
                task.deaths += 1
            if len(suspects) == 1 and suspects[0].deaths >= MAX_DEATHS:
                (poisoned,) = suspects
        for task in held:
            state = self.iterations.get(task.epoch)
            if state is not None:
                state.release(task)
                if task is not poisoned:
                    state.enqueue(task)
        return WorkerLoss(held, poisoned)

    def dismiss(self, worker: int, *, blame: bool = False, suspects: list[Task] | None = None) -> WorkerLoss:
        """Remove a worker that is about to end, like `worker_gone`, and reject its later results until `forget`."""
        self._outdated.add(worker)
        return self.worker_gone(worker, blame=blame, suspects=suspects)

    def forget(self, worker: int) -> None:
        """Forget a dismissed worker, after its last result was passed to `result`."""
        self._outdated.discard(worker)

    def held_by(self, worker: int) -> list[Task]:
        """The jobs that a worker holds, in the order in which it processes them."""
        return list(self._held.get(worker, {}).values())

    def delay(self, epoch: int) -> Delay:
        """Return the batch that an iteration waits for, and the worker that delays it."""
        state = self.iterations[epoch]
        number = state.reorder.missing
        for worker, held in self._held.items():
            if any((task.epoch, task.number) == (epoch, number) for task in held.values()):
                return Delay(number, worker)
        for task in state.waiting:
            if task.number == number and (self.round_robin or state.shards is not None):
                worker = self._by_slot.get(self._slot(state, task), -1)
                return Delay(number, worker if self._held.get(worker) else None)
        return Delay(number, None)

    # ---- iterations ---------------------------------------------------------------------------------------------

    def open_iteration(
        self,
        epoch: int,
        *,
        in_order: bool = True,
        first: int = 0,
        shards: ShardPlan | None = None,
        chunk_size: int = 0,
        join: Callable[[ChunkedBatch[BatchOutcome]], BatchOutcome] | None = None,
    ) -> IterationState:
        """Open an iteration; the others are parked until their consumers request batches again.

        Args:
            epoch: Number of the epoch.
            in_order: False delivers batches in the order of their arrival.
            first: Number of the first batch.
            shards: Shards of an iterable dataset; None for a map-style one.
            chunk_size: Samples per chunk; 0 if batches are not chunked.
            join: Joins the outcomes of the chunks of a batch.
        """
        for other in self.iterations:
            self.park(other)
        buffer: ReorderBuffer[Delivery] = ReorderBuffer(in_order=in_order, first=first)
        state = self.iterations[epoch] = IterationState(epoch, buffer, first, first, shards, chunk_size, join)
        return state

    def close_iteration(self, epoch: int) -> Closed:
        """Forget an iteration."""
        state = self.iterations.pop(epoch, None)
        if state is None:
            return Closed([], [])
        cancels = []
        begun = 0 if self._cancels_begun else 1  # how many jobs of each worker cannot be dropped
        for worker, held in self._held.items():
            jobs = tuple(task.job for task in itertools.islice(held.values(), begun, None) if task.epoch == epoch)
            if jobs:
                cancels.append(Cancel(worker, epoch, jobs))
            for job in jobs:
                del held[epoch, job]
        if not self.iterations:
            self._gate.forget_steps()
        if state.shards is not None:
            cancels = [
                Cancel(worker, epoch, None) for worker in set(state.shards.worker_of.values()) if worker in self._held
            ]
        return Closed(state.drain(), cancels)

    def clear(self) -> None:
        """Forget all iterations and workers."""
        for state in self.iterations.values():
            state.discard_chunks()
        self.iterations.clear()
        self._held.clear()
        self._outdated.clear()

    def park(self, epoch: int) -> None:
        """Assign no more jobs of an iteration, so that another iteration goes first."""
        self.iterations[epoch].parked = True

    def unpark(self, epoch: int) -> None:
        """Unpark an iteration whose consumer requests batches again."""
        self.iterations[epoch].parked = False

    def add(self, epoch: int, indices: Any, seed: int) -> Task:
        """Add a batch from the sampler."""
        return self.iterations[epoch].add(indices, seed)

    # ---- assigning ------------------------------------------------------------------------------------------------

    def assignments(self) -> list[Assign]:
        """Assign waiting jobs to workers: batch i to worker i modulo the number of workers, if that worker has room.

        What a worker has built up, such as a cache of samples, is of use in the next epoch only if it is given the same
        batches again.

        Returns:
            The jobs to send to each worker, in order.
        """
        if not self._held or not self._gate.assigns:
            return []
        assigned: dict[int, list[Task]] = {}
        for state in self.iterations.values():
            if state.waiting and not state.parked:
                self._assign_jobs(state, assigned)
        return [Assign(worker, tasks) for worker, tasks in assigned.items()]

    def _assign_jobs(self, state: IterationState, assigned: dict[int, list[Task]]) -> None:
        """Assign what waits to the workers whose turn it is; then what still waits to others that are soon idle."""
        depth = self.window.depth(state.reorder.reordering)
        self._assign_to(lambda task: self._in_turn(state, task, depth), state, assigned)
        if state.waiting and state.shards is None and not (self.round_robin and state.reorder.in_order):
            absent: Counter[int] = Counter()  # worker id -> jobs that wait for it to become ready
            self._assign_to(lambda task: self._soon_idle(state, task, depth, absent), state, assigned)

    def _assign_to(
        self,
        choose: Callable[[Task], int | None],
        state: IterationState,
        assigned: dict[int, list[Task]],
    ) -> None:
        """Assign each waiting job to the worker that `choose` returns, if any, and if there is memory."""
        kept: collections.deque[Task] = collections.deque()
        affordable = self.window.affords(state.outstanding)
        waiting = state.waiting
        while waiting:
            task = waiting.popleft()
            if task.attempt and state.has(task):  # it arrived, late, from a worker that was considered lost
                continue
            worker = None
            if self._gate.assigns and (affordable or self._affords(state, task, kept)):
                worker = choose(task)
            if worker is None:
                kept.append(task)
                continue
            self._gate.assigned()
            if state.shards is not None:
                state.shards.assign(task.indices, worker)
            task.attempt += 1
            state.hold(task)
            self._held[worker][task.epoch, task.job] = task
            assigned.setdefault(worker, []).append(task)
        state.waiting = kept

    def _affords(self, state: IterationState, task: Task, kept: Collection[Task]) -> bool:
        """Whether there is memory for a job that was taken from the queue. The next batch to deliver is always allowed.

        Args:
            state: The iteration.
            task: The job.
            kept: Jobs that remain in the queue.
        """
        unbegun = {other.number for other in (task, *kept, *state.waiting)}
        return task.number == state.reorder.missing or self.window.affords(state.outstanding - len(unbegun))

    def _in_turn(self, state: IterationState, task: Task, depth: int) -> int | None:
        """Return the worker whose turn a job is; None if it is not ready or has no room."""
        worker = self._by_slot.get(self._slot(state, task), -1)
        held = self._held.get(worker)
        return worker if held is not None and len(held) < depth else None

    def _soon_idle(self, state: IterationState, task: Task, depth: int, absent: Counter[int]) -> int | None:
        """Return the worker with the fewest jobs, if it may take over a job whose turn is another worker's.

        It may if it holds fewer jobs than this:

            whose turn it is     any worker may        round-robin, delivered out of order
            a worker with jobs   3/4 of `depth`        `depth`
            one that starts      1: it is idle         0 until `depth` jobs wait for that worker, then `depth`

        An idle worker need not wait for a start. A busy one leaves the job to the worker that is soon ready: behind
        a slow batch, it would wait longer.
        """
        slot = self._slot(state, task)
        starting = self._by_slot.get(slot, -1) not in self._held
        if self.round_robin:
            limit = depth
            if starting and absent[slot] < depth:
                absent[slot] += 1
                limit = 0
        elif starting:
            limit = 1
        else:
            limit = depth - max(depth // 4, min(1, depth - 1))
        worker = min(self._held, key=lambda each: len(self._held[each]))
        return worker if len(self._held[worker]) < limit else None

    def _slot(self, state: IterationState, task: Task) -> int:
        turn: int = task.job if state.shards is None else task.indices.shard
        return turn % self.slots

    # ---- results --------------------------------------------------------------------------------------------------

    def result(self, worker: int, epoch: int, job: int, outcome: BatchOutcome, now: int) -> Task | None:
        """Accept or reject the outcome of a job.

        Args:
            worker: Worker that sent the outcome.
            epoch: Epoch of the job.
            job: Number of the job.
            outcome: A payload or a failure.
            now: perf_counter ns.

        Returns:
            The job; None if the outcome is rejected, since the iteration is closed or the job has arrived before. Then
            the caller discards the outcome.
        """
        held = self._held.get(worker)
        task = None if held is None else held.pop((epoch, job), None)
        state = self.iterations.get(epoch)
        if state is None:
            return None
        if task is None:
            task = state.reclaim(job) if worker not in self._outdated else None
        else:
            state.release(task)
        if task is None or state.has(task):
            return None
        state.put(task, outcome, now)
        return task

    def exhausted(self, worker: int, epoch: int, job: int, now: int) -> None:
        """Skip a batch that does not exist, since its worker found the shard exhausted."""
        task = self._held.get(worker, {}).pop((epoch, job), None)
        state = self.iterations.get(epoch)
        if state is None or state.shards is None:
            return
        if task is None:
            task = state.reclaim(job)
        else:
            state.release(task)
        if task is None or state.reorder.has(job):
            return
        state.shards.mark_exhausted(task.indices)
        state.skip(job, now)

    def fail(self, task: Task, outcome: BatchOutcome, now: int) -> None:
        """Put an error in the place of a job that no worker holds."""
        state = self.iterations.get(task.epoch)
        if state is not None:
            state.put(task, outcome, now)

    def redo(self) -> list[BatchOutcome]:
        """Requeue all batches that have arrived and were not taken, since the workers are about to be replaced.

        Returns:
            The dropped outcomes. Action: discard them.
        """
        self._outdated |= set(self._held)
        return [outcome for state in self.iterations.values() for outcome in state.redo()]
