"""The dispatcher: which worker produces which batch, and in which order batches are delivered.

    add() ->  waiting  -> assignments() ->  held by a worker  -> result() ->  reorder buffer  -> take()
                 ^                                 |
                 +----- worker_gone(), revoked() --+

It is a pure state machine without I/O, threads or a clock: times are passed in. Methods are events (a worker is ready,
a result arrived), and what they return are actions for the caller: `Assign` a job to a worker, `Revoke` jobs that an
idle worker or another iteration needs first, `Cancel` jobs of a closed iteration, put an error in the place of a
poisoned batch. How far ahead batches are requested and when they move between workers is up to the `PrefetchPolicy`.

A job is a batch, or a chunk of a batch if batches are chunked. Every job is in exactly one of the places above and is
identified by (epoch, job number). A result for a job that has arrived before, or for an iteration that is closed,
is rejected, so that a late message never duplicates a batch.
"""

from __future__ import annotations

import collections
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from nbloader.batch.task import ChunkedBatch, Task
from nbloader.sampling.shard_plan import ShardPlan
from nbloader.scheduler.iteration import Delivery, IterationState
from nbloader.scheduler.prefetch import PrefetchPolicy
from nbloader.scheduler.reorder_buffer import ReorderBuffer

R = TypeVar("R")

MAX_DEATHS = 3
"""Number of worker deaths after which the batch being processed is poisoned: an error is delivered in its place."""


class Assign(NamedTuple):
    """Action: send jobs to a worker."""

    worker: int
    """Unique number of the worker."""
    tasks: list[Task]


class Revoke(NamedTuple):
    """Action: take jobs back from a worker, then pass those that it had not begun to `revoked()`."""

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


class WaitPlan(NamedTuple):
    """What a consumer waits for, and what it does in the meantime."""

    number: int
    """Number of the batch that the consumer gets next."""
    first: bool
    """Whether that is the first batch of the iteration."""
    refill: bool
    """Whether the sampler may be asked for more batches before the consumer sleeps."""
    paused: bool
    blocked: bool
    """Whether nothing is delivered because the loader is paused and no step is left."""
    producer: int | None
    """The only worker that the consumer needs to wait for; None for all."""
    recheck: float | None
    """Seconds after which the consumer checks again even if nothing happened; None for never."""
    group: int
    """Number of batches that the consumer may wait for at once, if it checks again after `GROUP_WAIT` seconds."""
    unwatched: float
    """Seconds for which arriving batches need not wake the consumer."""


_Key: TypeAlias = "tuple[int, int]"
"""(epoch, job number)"""


class Dispatcher(Generic[R]):
    """Assigns batches to workers and puts their outcomes in order.

    Args:
        policy: How far ahead to request, and when to steal work.
        round_robin: Whether batch i goes to worker i modulo the number of workers, as in torch, instead of to the least
            loaded worker.
    """

    def __init__(self, policy: PrefetchPolicy, *, round_robin: bool = False) -> None:
        self.policy = policy
        self.paused = False
        self.steps = 0
        """Batches that may be delivered although the loader is paused."""
        self.iterations: dict[int, IterationState[R]] = {}
        """Open iterations by number."""
        self.slots = 1
        """Number of worker ids."""
        self.round_robin = round_robin
        """See above; it may change while the loader runs."""
        self._owed = 0  # jobs that may be assigned although the loader is paused: one for each step that was taken
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
                several suspects, none of them is poisoned; instead, each is soon produced alone (`task.ALONE_AFTER`).
            suspects: The jobs that the worker was processing; None for the first one that it held.
        """
        return self._remove(worker, blame=blame, suspects=suspects)

    def _remove(self, worker: int, *, blame: bool, suspects: list[Task] | None) -> WorkerLoss:
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
                state.assigned -= 1
                if task is not poisoned:
                    state.enqueue(task)
        return WorkerLoss(held, poisoned)

    def dismiss(self, worker: int, *, blame: bool = False, suspects: list[Task] | None = None) -> WorkerLoss:
        """Remove a worker that is about to end, like `worker_gone`, and reject its later results until `forget`."""
        self._outdated.add(worker)
        return self._remove(worker, blame=blame, suspects=suspects)

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

    # ---- pace ---------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Assign and deliver nothing until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Assign and deliver again."""
        self.paused = False
        self.steps = self._owed = 0

    def step(self) -> None:
        """While paused, deliver one batch and assign the jobs that this makes room for."""
        self.steps += 1

    # ---- iterations ---------------------------------------------------------------------------------------------

    def open_iteration(
        self,
        epoch: int,
        *,
        in_order: bool = True,
        first: int = 0,
        shards: ShardPlan | None = None,
        chunk_size: int = 0,
        join: Callable[[ChunkedBatch[R]], R] | None = None,
        on_empty: Callable[[Task, int], None] | None = None,
    ) -> list[Revoke]:
        """Open an iteration; the others are parked until their consumers request batches again.

        Args:
            epoch: Number of the epoch.
            in_order: False delivers batches in the order of their arrival.
            first: Number of the first batch.
            shards: Shards of an iterable dataset; None for a map-style one.
            chunk_size: Samples per chunk; 0 if batches are not chunked.
            join: Joins the outcomes of the chunks of a batch.
            on_empty: See `IterationState`.
        """
        revokes = [revoke for other in self.iterations for revoke in self.park(other)]
        buffer: ReorderBuffer[Delivery] = ReorderBuffer(in_order=in_order, first=first)
        self.iterations[epoch] = IterationState(epoch, buffer, first, first, shards, chunk_size, join, on_empty)
        return revokes

    def close_iteration(self, epoch: int) -> Closed:
        """Forget an iteration."""
        state = self.iterations.pop(epoch, None)
        if state is None:
            return Closed([], [])
        cancels = []
        for worker, tasks in self._held_of(epoch, 0 if self.policy.cancels_begun else 1):
            jobs = tuple(task.job for task in tasks)
            cancels.append(Cancel(worker, epoch, jobs))
            for job in jobs:
                del self._held[worker][epoch, job]
        if not self.iterations:
            self.steps = self._owed = 0  # steps beyond the last batch of an epoch do not count for the next one
        if state.shards is not None:
            cancels = [
                Cancel(worker, epoch, None) for worker in set(state.shards.worker_of.values()) if worker in self._held
            ]
        return Closed(state.drain(), cancels)

    def clear(self) -> None:
        """Forget all iterations and workers."""
        for state in self.iterations.values():
            for batch in state.chunked.values():
                batch.discard()
        self.iterations.clear()
        self._held.clear()
        self._outdated.clear()

    def park(self, epoch: int) -> list[Revoke]:
        """Park an iteration: take back jobs that no worker has begun, so that another iteration goes first."""
        state = self.iterations[epoch]
        state.parked = True
        if state.shards is not None:
            return []  # taking a batch back and requesting it again later could cost its worker a new iterator
        return self._unbegun_of(epoch)

    def take_back(self) -> list[Revoke]:
        """Take back jobs that workers have not begun, if there is less memory than expected."""
        return [revoke for epoch in self.iterations if self._movable(epoch) for revoke in self._unbegun_of(epoch)]

    def unpark(self, epoch: int) -> None:
        """Unpark an iteration whose consumer requests batches again."""
        self.iterations[epoch].parked = False

    # ---- requesting -----------------------------------------------------------------------------------------------

    def room(self, epoch: int) -> int:
        """Return how many more batches fit into the window and its extension; at least one if none is outstanding."""
        state = self.iterations[epoch]
        return max(self.policy.window + state.extension, 1) - state.outstanding

    def refill_size(self, epoch: int) -> int:
        """Return how many batches to request from the sampler now."""
        state = self.iterations.get(epoch)
        if state is None:
            return 0
        extension, policy = state.extension, self.policy
        room = max(policy.window + extension, 1) - (state.added - state.taken)
        return room if state.fill else policy.refill_size(room, extension)

    def extend_window(self, epoch: int) -> bool:
        """Let workers with short queues continue beyond the window while the next batch to deliver is delayed.

        With two batches per worker and an occasional slow batch, the other workers would soon be idle: in a simulation,
        workers are busy 79 % of the time, and 97 % with four batches each. A window that is not full is filled first,
        with one message, since each batch beyond the window takes a separate message.

        Returns:
            Whether more batches may be added now.
        """
        state = self.iterations.get(epoch)
        if state is None or self.paused or state.waiting or not state.reorder.reordering or not self._held:
            return False
        policy = self.policy
        if min(map(len, self._held.values())) >= min(policy.extended_depth, policy.sufficient_queue):
            return False  # of two workers, one is always slightly ahead: extending would cost a message per batch
        if state.outstanding < policy.window:
            state.fill = True
            return True
        room = policy.extended_window - state.outstanding
        if room <= 0:
            return False
        state.extension += min(room, policy.extension_step)
        return True

    def add(self, epoch: int, indices: Any, seed: int) -> Task:
        """Add a batch from the sampler."""
        state = self.iterations[epoch]
        state.fill = False
        return state.add(indices, seed)

    # ---- assigning ------------------------------------------------------------------------------------------------

    def assignments(self) -> list[Assign]:
        """Assign waiting jobs to the least loaded workers; among equals, to the one that has waited longest.

        Returns:
            The jobs to send to each worker, in order.
        """
        free = not self.paused or self.steps > 0
        if not (free or self._owed) or not self._held:
            return []
        assigned: dict[int, list[Task]] = {}
        for state in self.iterations.values():
            if state.parked or not state.waiting:
                continue
            depth = self._depth(state)
            if state.shards is not None or self.round_robin:
                self._assign_to_slots(state, assigned, free=free)
                continue
            load = {worker: len(held) for worker, held in self._held.items()}
            while state.waiting:
                worker = min(load, key=load.__getitem__)
                if load[worker] >= depth or not (free or self._owed):
                    return [Assign(worker, tasks) for worker, tasks in assigned.items()]
                if self.policy.affordable is not None and not self._affords(state):
                    break
                task = state.waiting.popleft()
                if task.attempt and state.has(task):  # it arrived, late, from a worker that was considered lost
                    continue
                self._owed -= not free
                task.attempt += 1
                state.assigned += 1
                load[worker] = load.pop(worker) + 1  # and to the end of the line
                held = self._held[worker] = self._held.pop(worker)
                held[task.epoch, task.job] = task
                assigned.setdefault(worker, []).append(task)
        return [Assign(worker, tasks) for worker, tasks in assigned.items()]

    def _depth(self, state: IterationState[R]) -> int:
        """Return how many jobs one worker may hold."""
        return self.policy.extended_depth if state.extension else self.policy.queue_depth

    def _affords(self, state: IterationState[R]) -> bool:
        """Whether there is memory for the next job of an iteration. The next batch to deliver is always allowed."""
        numbers = {task.number for task in state.waiting}
        next_one = state.waiting[0].number
        begun = state.outstanding - len(numbers)
        return begun < (self.policy.affordable or 1) or next_one == state.reorder.missing

    def _assign_to_slots(self, state: IterationState[R], assigned: dict[int, list[Task]], *, free: bool) -> None:
        """Assign each waiting job to the worker whose shard or turn it is, if it is ready and its queue is not full."""
        kept: collections.deque[Task] = collections.deque()
        absent: Counter[int] = Counter()  # worker id -> jobs that wait for it to become ready
        for task in state.waiting:
            worker = self._worker_for(state, task, absent)
            if state.has(task):
                continue
            if worker is None or not (free or self._owed):
                kept.append(task)
                continue
            self._owed -= not free
            if state.shards is not None:
                state.shards.assign(task.indices, worker)
            task.attempt += 1
            state.assigned += 1
            self._held[worker][task.epoch, task.job] = task
            assigned.setdefault(worker, []).append(task)
        state.waiting = kept

    def _worker_for(self, state: IterationState[R], task: Task, absent: Counter[int]) -> int | None:
        depth = self._depth(state)
        slot = self._slot(state, task)
        worker = self._by_slot.get(slot, -1)
        held = self._held.get(worker)
        load = len(held) if held is not None else absent[slot]
        if load >= depth and state.shards is None and not state.reorder.in_order:
            worker, held = min(self._held.items(), key=_load)  # as in torch: no other batch waits for this one
        if held is None:
            absent[slot] += 1
            return None
        return worker if len(held) < depth else None

    def _slot(self, state: IterationState[R], task: Task) -> int:
        turn: int = task.job if state.shards is None else task.indices.shard
        return turn % self.slots

    # ---- stealing -------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether every worker that is ready has enough jobs."""
        enough = self.policy.enough
        return all(self._held.values()) if enough == 1 else min(map(len, self._held.values()), default=enough) >= enough

    def can_steal(self) -> bool:
        """Whether a worker has too few jobs while another holds one that it has not begun."""
        return any(self._unbegun())

    def steal_work(self, now: int, busy_since: Mapping[int, float]) -> Revoke | None:
        """Steal the later half of another worker's unbegun jobs for a worker that is idle or could begin more.

        This happens at the end of an epoch, when one worker processes a slow batch and has others queued behind it. In
        a simulation of 160 batches with stragglers, workers are busy 97 % of the time with work stealing, and 92 %
        without.

        Args:
            now: perf_counter ns.
            busy_since: When each worker began what it is processing, by the worker's unique number.

        Returns:
            The jobs to take back; None if stealing is not worth it. After `revoked()`, `assignments()` assigns them to
            the idle worker.
        """
        halves = [Revoke(worker, tasks[len(tasks) // 2 :]) for worker, tasks in self._unbegun()]
        least = self.policy.min_steal
        if least > 1:
            limit = now - self.policy.stall_ns
            halves = [
                half for half in halves if len(half.tasks) >= least or busy_since.get(half.worker, now) < limit
            ]  # a stalled worker is relieved of any number
        return max(halves, key=_size, default=None)

    def revoked(self, worker: int, tasks: Collection[Task]) -> None:
        """Put jobs that a worker will not begin back among the waiting jobs.

        Args:
            worker: Unique number of the worker.
            tasks: Jobs that it was given and has not begun.
        """
        held = self._held.get(worker, {})
        for task in tasks:
            state = self.iterations.get(task.epoch)  # None: closed before the answer of another machine arrived
            if held.pop((task.epoch, task.job), None) is not None and state is not None:
                task.attempt -= 1
                state.return_all([task])

    def _unbegun(self) -> Iterator[tuple[int, list[Task]]]:
        """Yield what may be stolen from each worker; nothing while all are busy, or while jobs wait to be assigned."""
        if len(self._held) <= 1 or self.busy or self.paused:
            return
        if any(state.waiting and not state.parked for state in self.iterations.values()):
            return
        begun = self.policy.begun
        for worker, held in self._held.items():
            tasks = [task for task in itertools.islice(held.values(), begun, None) if self._movable(task.epoch)]
            if tasks:
                yield worker, tasks

    def _movable(self, epoch: int) -> bool:
        state = self.iterations.get(epoch)
        return state is not None and state.shards is None and not state.parked and not self.round_robin

    def _unbegun_of(self, epoch: int) -> list[Revoke]:
        """Return the jobs of an iteration that workers hold, except for those that they may have begun."""
        return self._held_of(epoch, self.policy.begun)

    def _held_of(self, epoch: int, begun: int) -> list[Revoke]:
        """Return the jobs of an iteration that workers hold, except for the first `begun` jobs of each worker."""
        found = [
            Revoke(worker, [task for task in itertools.islice(held.values(), begun, None) if task.epoch == epoch])
            for worker, held in self._held.items()
        ]
        return [revoke for revoke in found if revoke.tasks]

    # ---- results --------------------------------------------------------------------------------------------------

    def result(self, worker: int, epoch: int, job: int, outcome: R, now: int) -> Task | None:
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
            state.assigned -= 1
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
            state.assigned -= 1
        if task is None or state.reorder.has(job):
            return
        state.shards.mark_exhausted(task.indices)
        state.skip(job, now)

    def fail(self, task: Task, outcome: R, now: int) -> None:
        """Put an error in the place of a job that no worker holds."""
        state = self.iterations.get(task.epoch)
        if state is not None:
            state.put(task, outcome, now)

    def redo(self) -> list[R]:
        """Requeue all batches that have arrived and were not taken, since the workers are about to be replaced.

        Returns:
            The dropped outcomes. Action: discard them.
        """
        self._outdated |= set(self._held)
        return [outcome for state in self.iterations.values() for outcome in state.redo()]

    # ---- delivering -----------------------------------------------------------------------------------------------

    def take(self, epoch: int) -> Delivery | None:
        """Take the next batch for the consumer; None if it has not arrived or the loader is paused."""
        state = self.iterations[epoch]
        if self.paused and not self.steps:
            return None
        delivery = state.take()
        if delivery is None:
            return None
        if state.extension and self.policy.shrinks:
            state.extension -= 1
        if state.shards is not None:
            state.shards.received(delivery.task.indices)
        if self.paused:
            self.steps -= 1
            self._owed += 1
        return delivery

    def upcoming(self, epoch: int) -> int:
        """Return the number of the next batch to deliver or, if none is ready, the lowest that has not arrived."""
        reorder = self.iterations[epoch].reorder
        ready = reorder.peek(1)  # while the loader is paused, ready batches are not taken
        return ready[0].task.number if ready else reorder.missing

    def outstanding(self, epoch: int) -> int:
        """Return the number of batches added and not yet taken."""
        return self.iterations[epoch].outstanding

    def in_flight(self, epoch: int) -> int:
        """Return the number of batches that workers hold, whole or in chunks."""
        state = self.iterations[epoch]
        if not state.chunk_size:
            return state.assigned
        return len({task.number for held in self._held.values() for task in held.values() if task.epoch == epoch})

    def plan_wait(self, epoch: int, *, first: bool) -> WaitPlan:
        """Plan how the consumer of an iteration waits.

        Args:
            epoch: Number of the epoch.
            first: Whether the consumer has not slept for this batch yet.
        """
        policy, state = self.policy, self.iterations[epoch]
        producer = recheck = None
        if first and policy.fast:
            producer = self.producer(epoch)
        if producer is not None or self.can_steal():
            recheck = policy.recheck_after(one_producer=producer is not None)
        grouped = first and state.taken > 0 and not self.paused
        return WaitPlan(
            number=self.upcoming(epoch),
            first=not state.taken,
            refill=policy.prefetches and (self.refill_size(epoch) > 0 or self.extend_window(epoch)),
            paused=self.paused,
            blocked=self.paused and not self.steps,
            producer=producer,
            recheck=recheck,
            group=policy.group(state.assigned) if grouped else 1,
            unwatched=policy.unwatched(state.assigned) if grouped else 0.0,
        )

    def producer(self, epoch: int) -> int | None:
        """Return the worker that produces the next batch to deliver, if all others have a sufficient queue.

        With two workers and fast batches, one worker is always slightly ahead; a consumer that waited for both would
        wake up in vain for every second batch. The result is also None if no worker or several workers produce the
        batch, if another batch may be delivered first, and while the loader is paused.
        """
        state = self.iterations[epoch]
        key, producer = (epoch, state.reorder.missing), None
        if state.chunk_size or not state.reorder.in_order or self.paused:
            return None
        enough = self.policy.sufficient_queue
        for worker, held in self._held.items():
            if key in held:
                producer = worker
            elif len(held) < enough:
                return None
        return producer


def _load(worker_and_jobs: tuple[int, Collection[_Key]]) -> int:
    _worker, jobs = worker_and_jobs
    return len(jobs)


def _size(revoke: Revoke) -> int:
    return len(revoke.tasks)
