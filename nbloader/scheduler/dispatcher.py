"""The dispatcher: which worker produces which batch, in which order batches are delivered. A pure state machine.

    add() ->  waiting  -> assignments() ->  held by a worker  -> result() ->  reorder buffer  -> take()
                 ^                                 |
                 +----- worker_gone(), revoked() --+

It has no I/O, no threads and no clock: times are passed in. Methods are events (a worker is ready, a result arrived),
and what they return are actions for the caller: `Assign` a job to a worker, `Revoke` jobs that an idle worker or
another iteration needs first, `Cancel` jobs of a closed iteration, put an error in the place of a poisoned batch. How
far ahead batches are requested and when they move between workers is up to the `PrefetchPolicy`.

A job is a batch, or a chunk of one where batches are cut. Every job is in exactly one of the places above, known by
(iteration, job number). A result for a job that has arrived before, or for an iteration that is closed, is rejected, so
that a late message never duplicates a batch.
"""

from __future__ import annotations

import collections
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from nbloader.batch.task import ChunkedBatch, Task
from nbloader.sampling.shard_plan import ShardPlan
from nbloader.scheduler.prefetch import PrefetchPolicy
from nbloader.scheduler.reorder_buffer import ReorderBuffer
from nbloader.scheduler.run_state import Delivery, IterationState

R = TypeVar("R")

MAX_DEATHS = 3
"""Workers that may die while processing a batch before it is poisoned: it gets an error in its place."""


class Assign(NamedTuple):
    """Action: send jobs to a worker."""

    worker: int
    """Unique number of the worker."""
    tasks: list[Task]


class Revoke(NamedTuple):
    """Action: take jobs back from a worker, then tell `revoked()` which of them it had not begun."""

    worker: int
    """Unique number of the worker."""
    tasks: list[Task]


class Cancel(NamedTuple):
    """Action: have a worker forget jobs of a closed iteration."""

    worker: int
    """Unique number of the worker."""
    run: int
    """Their iteration."""
    jobs: tuple[int, ...] | None
    """Their numbers; None for the whole iteration, including the worker's iterators over its shards."""


class WorkerLoss(NamedTuple):
    """What a worker held when it ended."""

    held: list[Task]
    """Its jobs, which wait for other workers now."""
    poisoned: Task | None
    """The job among them that has ended `MAX_DEATHS` workers and is not produced again. Action: `fail()` it."""


class Closed(NamedTuple):
    """What remains of a closed iteration."""

    unclaimed: list[Any]
    """Outcomes that nobody took. Action: discard them."""
    cancels: list[Cancel]


class Delay(NamedTuple):
    """The batch that delays an iteration."""

    number: int
    worker: int | None
    """The worker that holds the batch or a chunk of it, or that must produce it and has other jobs to finish first;
    None if there is no such worker."""


class WaitPlan(NamedTuple):
    """What a consumer waits for, and what it does meanwhile."""

    number: int
    """The batch that it gets next."""
    first: bool
    """Whether that is the first batch of the iteration."""
    refill: bool
    """Whether the sampler may be asked for more batches before the consumer sleeps."""
    paused: bool
    blocked: bool
    """Whether nothing is delivered, since the loader is paused and no step is left."""
    producer: int | None
    """The only worker that the consumer needs to wait for; None for all."""
    recheck: float | None
    """Seconds after which it looks again though nothing happened; None for never."""
    group: int
    """Batches for which it may wait together, if it looks again after `GROUP_WAIT` seconds."""
    unwatched: float
    """Seconds for which it need not be woken by batches."""


_Key: TypeAlias = "tuple[int, int]"
"""(iteration, job number)"""


class Dispatcher(Generic[R]):
    """Assigns batches to workers and puts the outcomes in order.

    Args:
        policy: How far ahead to request, and when to steal work.
        round_robin: Whether worker i modulo their number produces batch i, as in torch, instead of the least loaded.
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
        self._outdated: set[int] = set()  # workers whose results are rejected

    # ---- workers ------------------------------------------------------------------------------------------------

    def worker_ready(self, worker: int, slot: int = 0) -> None:
        """A worker can be given jobs.

        Args:
            worker: Its unique number.
            slot: Its id.
        """
        self._held.setdefault(worker, {})
        self._by_slot[slot] = worker

    def worker_gone(self, worker: int, *, blame: bool, suspects: list[Task] | None = None) -> WorkerLoss:
        """A worker has ended: its jobs wait for other workers.

        Args:
            worker: Its unique number.
            blame: Whether it died unexpectedly: then the jobs that it was processing are suspected. If there are
                several, none of them is poisoned: they are produced alone before long (`task.ALONE_AFTER`).
            suspects: These jobs; None for the first one.
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
            state = self.iterations.get(task.run)
            if state is not None:
                state.assigned -= 1
                if task is not poisoned:
                    state.enqueue(task)
        return WorkerLoss(held, poisoned)

    def held_by(self, worker: int) -> list[Task]:
        """The jobs that a worker holds, in the order in which it processes them."""
        return list(self._held.get(worker, {}).values())

    def delay(self, run: int) -> Delay:
        """What an iteration waits for."""
        state = self.iterations[run]
        number = state.reorder.missing
        for worker, held in self._held.items():
            if any((task.run, task.number) == (run, number) for task in held.values()):
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
        """While paused: deliver one batch, and assign as many jobs as that makes room for."""
        self.steps += 1

    # ---- iterations ---------------------------------------------------------------------------------------------

    def open_iteration(
        self,
        run: int,
        *,
        in_order: bool = True,
        first: int = 0,
        shards: ShardPlan | None = None,
        chunk_size: int = 0,
        join: Callable[[ChunkedBatch[R]], R] | None = None,
        on_empty: Callable[[Task, int], None] | None = None,
    ) -> list[Revoke]:
        """Begin an iteration; the others are parked until their consumers ask again.

        Args:
            run: Its number.
            in_order: False delivers batches in the order of their arrival.
            first: Number of the first batch.
            shards: Of an iterable dataset.
            chunk_size: Samples of a chunk; 0 if batches are not cut.
            join: Joins the outcomes of the chunks of a batch.
            on_empty: See `IterationState`.
        """
        revokes = [revoke for other in self.iterations for revoke in self.park(other)]
        buffer: ReorderBuffer[Delivery] = ReorderBuffer(in_order=in_order, first=first)
        self.iterations[run] = IterationState(run, buffer, first, first, shards, chunk_size, join, on_empty)
        return revokes

    def close_iteration(self, run: int) -> Closed:
        """Forget an iteration."""
        state = self.iterations.pop(run, None)
        if state is None:
            return Closed([], [])
        cancels = []
        for worker, tasks in self._held_of(run, 0 if self.policy.cancels_begun else 1):
            jobs = tuple(task.job for task in tasks)
            cancels.append(Cancel(worker, run, jobs))
            for job in jobs:
                del self._held[worker][run, job]
        if not self.iterations:
            self.steps = self._owed = 0  # steps beyond the last batch of an epoch do not count for the next one
        if state.shards is not None:
            cancels = [
                Cancel(worker, run, None) for worker in set(state.shards.worker_of.values()) if worker in self._held
            ]
        return Closed(state.drain(), cancels)

    def clear(self) -> None:
        """Forget all iterations and workers."""
        for state in self.iterations.values():
            for batch in state.chunked.values():
                batch.discard()
        self.iterations.clear()
        self._held.clear()

    def park(self, run: int) -> list[Revoke]:
        """Let the jobs of an iteration wait that no worker has begun, so that another iteration goes first."""
        state = self.iterations[run]
        state.parked = True
        if state.shards is not None:
            return []  # taking a batch back and requesting it again later could cost its worker a new iterator
        return self._unbegun_of(run)

    def take_back(self) -> list[Revoke]:
        """There is less memory than expected: what workers have not begun waits until there is some."""
        return [revoke for run in self.iterations if self._movable(run) for revoke in self._unbegun_of(run)]

    def unpark(self, run: int) -> None:
        """The consumer of an iteration asks again."""
        self.iterations[run].parked = False

    # ---- requesting -----------------------------------------------------------------------------------------------

    def room(self, run: int) -> int:
        """How many more batches fit into the window and its extension; at least one while none is outstanding."""
        state = self.iterations[run]
        return max(self.policy.window + state.extension, 1) - state.outstanding

    def refill_size(self, run: int) -> int:
        """How many batches to request from the sampler now."""
        state = self.iterations.get(run)
        if state is None:
            return 0
        extension, policy = state.extension, self.policy
        room = max(policy.window + extension, 1) - (state.added - state.taken)
        return room if state.fill else policy.refill_size(room, extension)

    def extend_window(self, run: int) -> bool:
        """The next batch to deliver is delayed: let workers that exhaust their queues go on, also beyond the window.

        With two batches a worker and an occasional slow one, the other workers would soon be idle behind it: by
        simulation workers are busy 79 % of the time, and 97 % with four batches each. While the window is not full it
        is filled instead, with one message: each batch beyond the window is requested with a message of its own.

        Returns:
            Whether more batches may be added now.
        """
        state = self.iterations.get(run)
        if state is None or self.paused or state.waiting or not state.reorder.reordering or not self._held:
            return False
        policy = self.policy
        if min(map(len, self._held.values())) >= min(policy.extended_depth, policy.sufficient_queue):
            return False  # of two workers one is always somewhat ahead: extended for it, each batch would be a message
        if state.outstanding < policy.window:
            state.fill = True
            return True
        room = policy.extended_window - state.outstanding
        if room <= 0:
            return False
        state.extension += min(room, policy.extension_step)
        return True

    def add(self, run: int, indices: Any, seed: int) -> Task:
        """Add a batch from the sampler."""
        state = self.iterations[run]
        state.fill = False
        return state.add(indices, seed)

    def free_worker(self, run: int) -> int | None:
        """The only worker, if it can be given a new batch of an iteration at once by `add_to`; else None.

        That is the case if no batch is outstanding, batches are whole, and the dataset is not an iterable one.
        """
        state = self.iterations.get(run)
        if state is None or state.added != state.taken or state.parked or state.chunk_size or state.shards is not None:
            return None
        if self.paused or len(self._held) != 1:
            return None
        (worker,) = self._held
        return worker

    def add_to(self, worker: int, run: int, indices: Any, seed: int) -> Task:
        """Add a batch from the sampler and assign it to the free worker."""
        task = self.iterations[run].add_assigned(indices, seed)
        self._held[worker][run, task.job] = task
        return task

    def deliver(self, worker: int, task: Task, outcome: R, now: int) -> Delivery | None:
        """Accept the outcome of a batch that was added by `add_to`, and take it at once.

        Returns:
            None where `result` and `take` are needed: the loader is paused, or the batch was taken from the worker.
        """
        state = self.iterations.get(task.run)
        held = self._held.get(worker)
        if state is None or held is None or self.paused or held.get((task.run, task.job)) is not task:
            return None
        if not state.reorder.pass_on(task.number):
            return None
        del held[task.run, task.job]
        state.assigned -= 1
        state.taken += 1
        task.in_order = now
        return Delivery(task, outcome)

    # ---- assigning ------------------------------------------------------------------------------------------------

    def assignments(self) -> list[Assign]:
        """Assign waiting jobs to the least loaded workers; among equals, to the one that waits for a job the longest.

        Returns:
            What to send, for each worker in order.
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
                held[task.run, task.job] = task
                assigned.setdefault(worker, []).append(task)
        return [Assign(worker, tasks) for worker, tasks in assigned.items()]

    def _depth(self, state: IterationState[R]) -> int:
        """Jobs that one worker may hold."""
        return self.policy.extended_depth if state.extension else self.policy.queue_depth

    def _affords(self, state: IterationState[R]) -> bool:
        """Whether there is memory for the next job of an iteration. There always is for the batch to deliver next."""
        numbers = {task.number for task in state.waiting}
        next_one = state.waiting[0].number
        begun = state.outstanding - len(numbers)
        return begun < (self.policy.affordable or 1) or next_one == state.reorder.missing

    def _assign_to_slots(self, state: IterationState[R], assigned: dict[int, list[Task]], *, free: bool) -> None:
        """Assign each waiting job to the worker whose shard or turn it is, if that is ready and has room."""
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
            self._held[worker][task.run, task.job] = task
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
        """While a worker is idle, or could begin more: take half of what another has not begun, the later half.

        This happens at the end of an epoch, when one worker processes a slow batch and has others queued behind it. By
        simulation of 160 batches with stragglers, workers are busy 97 % of the time with this, and 92 % without.

        Args:
            now: perf_counter ns.
            busy_since: When workers began with what they are processing, by their unique numbers.

        Returns:
            What to take back; None if nothing is worth it. After `revoked()`, `assignments()` assigns it to the idle
            worker.
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
        """A worker will not begin these jobs: they wait for other workers.

        Args:
            worker: Its unique number.
            tasks: What it was given, and has not begun.
        """
        held = self._held.get(worker, {})
        for task in tasks:
            state = self.iterations.get(task.run)  # None: it was closed before the answer of another machine came
            if held.pop((task.run, task.job), None) is not None and state is not None:
                task.attempt -= 1
                state.return_all([task])

    def _unbegun(self) -> Iterator[tuple[int, list[Task]]]:
        """What may be stolen from each worker; nothing while all are busy, or jobs wait that will be assigned."""
        if len(self._held) <= 1 or self.busy or self.paused:
            return
        if any(state.waiting and not state.parked for state in self.iterations.values()):
            return
        begun = self.policy.begun
        for worker, held in self._held.items():
            tasks = [task for task in itertools.islice(held.values(), begun, None) if self._movable(task.run)]
            if tasks:
                yield worker, tasks

    def _movable(self, run: int) -> bool:
        state = self.iterations.get(run)
        return state is not None and state.shards is None and not state.parked and not self.round_robin

    def _unbegun_of(self, run: int) -> list[Revoke]:
        """The jobs of an iteration that workers hold, except for those that they may have begun."""
        return self._held_of(run, self.policy.begun)

    def _held_of(self, run: int, begun: int) -> list[Revoke]:
        """The jobs of an iteration that workers hold, except for the first ones of each worker."""
        found = [
            Revoke(worker, [task for task in itertools.islice(held.values(), begun, None) if task.run == run])
            for worker, held in self._held.items()
        ]
        return [revoke for revoke in found if revoke.tasks]

    # ---- results --------------------------------------------------------------------------------------------------

    def result(self, worker: int, run: int, job: int, outcome: R, now: int) -> Task | None:
        """The outcome of a job arrived.

        Args:
            worker: Who sent it.
            run: Its iteration.
            job: Its number.
            outcome: A payload or a failure.
            now: perf_counter ns.

        Returns:
            The job; None if the outcome is rejected, since the iteration is closed or the job has arrived before. Then
            the caller discards the outcome.
        """
        held = self._held.get(worker)
        task = None if held is None else held.pop((run, job), None)
        state = self.iterations.get(run)
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

    def exhausted(self, worker: int, run: int, job: int, now: int) -> None:
        """A worker found the shard of this batch exhausted: the batch does not exist."""
        task = self._held.get(worker, {}).pop((run, job), None)
        state = self.iterations.get(run)
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
        state = self.iterations.get(task.run)
        if state is not None:
            state.put(task, outcome, now)

    def redo(self) -> list[R]:
        """Have all batches produced again that have arrived and were not taken. The workers are about to be replaced.

        Returns:
            The outcomes that are dropped. Action: discard them.
        """
        self._outdated = set(self._held)
        return [outcome for state in self.iterations.values() for outcome in state.redo()]

    # ---- delivering -----------------------------------------------------------------------------------------------

    def take(self, run: int) -> Delivery | None:
        """The next batch for the consumer; None if it has not arrived or the loader is paused."""
        state = self.iterations[run]
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

    def upcoming(self, run: int) -> int:
        """Number of the batch that the consumer gets next; if not in order, the lowest one that has not arrived."""
        reorder = self.iterations[run].reorder
        ready = reorder.peek(1)  # while the loader is paused, ready batches are not taken
        return ready[0].task.number if ready else reorder.missing

    def outstanding(self, run: int) -> int:
        """Batches added and not yet taken."""
        return self.iterations[run].outstanding

    def in_flight(self, run: int) -> int:
        """Batches that workers hold, entirely or in chunks."""
        state = self.iterations[run]
        if not state.chunk_size:
            return state.assigned
        return len({task.number for held in self._held.values() for task in held.values() if task.run == run})

    def plan_wait(self, run: int, *, first: bool) -> WaitPlan:
        """The consumer of an iteration has to wait.

        Args:
            run: The iteration.
            first: Whether it has not slept for this batch yet.
        """
        policy, state = self.policy, self.iterations[run]
        producer = recheck = None
        if first and policy.fast:
            producer = self.producer(run)
        if producer is not None or self.can_steal():
            recheck = policy.recheck_after(one_producer=producer is not None)
        grouped = first and state.taken > 0 and not self.paused
        return WaitPlan(
            number=self.upcoming(run),
            first=not state.taken,
            refill=policy.prefetches and (self.refill_size(run) > 0 or self.extend_window(run)),
            paused=self.paused,
            blocked=self.paused and not self.steps,
            producer=producer,
            recheck=recheck,
            group=policy.group(state.assigned) if grouped else 1,
            unwatched=policy.unwatched(state.assigned) if grouped else 0.0,
        )

    def producer(self, run: int) -> int | None:
        """The worker that produces the next batch to deliver, if all others have a sufficient queue.

        Of two workers at fast batches one is always somewhat ahead; a consumer that waited for both would wake in vain
        for every second batch. None also if no worker or several workers produce it, if another batch may be delivered
        first, and while paused.
        """
        state = self.iterations[run]
        key, producer = (run, state.reorder.missing), None
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
