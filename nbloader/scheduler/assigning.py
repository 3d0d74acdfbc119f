"""Which worker makes which batch: what waits is given out, and what is not begun may move to a worker without work.

Part of the dispatcher's state machine (dispatch.py).
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Generic, TypeAlias, TypeVar

from nbloader.batch.task import Task
from nbloader.scheduler.run_state import Run

R = TypeVar("R")
Cancel: TypeAlias = "tuple[int, int, tuple[int, ...] | None]"
"""For a worker to forget: (worker, run, batch numbers); None for the whole run, with the iterators over its shards."""


class Assigning(Generic[R]):
    """The workers and what each of them holds; the base of `dispatch.Dispatcher`.

    Args:
        depth: Batches that one worker may hold, the one it works on included.
        in_turn: Whether batch i is made by worker i modulo their number, as in torch, and not by the least loaded.
    """

    def __init__(self, depth: int, *, in_turn: bool = False) -> None:
        self.depth = depth
        self.in_turn = in_turn
        self.paused = False
        self.steps = 0
        """Batches that the consumer may have though the loader is paused."""
        self._owed = 0  # batches that may be sent though it is paused: as many as were taken by steps
        self.runs: dict[int, Run[R]] = {}
        self.slots = 1
        """Worker ids: how many workers there shall be."""
        self._by_slot: dict[int, int] = {}  # worker id -> the process that was ready last
        self._held: dict[int, dict[tuple[int, int], Task]] = {}  # worker -> its batches, in the order it got them

    def worker_ready(self, worker: int, slot: int = 0) -> None:
        """A worker (by the unique number of its process; its id is `slot`) can be given batches."""
        self._held.setdefault(worker, {})
        self._by_slot[slot] = worker

    def held_by(self, worker: int) -> list[Task]:
        """The batches that a worker holds, the one it works on first."""
        return list(self._held.get(worker, {}).values())

    # ---- giving out -------------------------------------------------------------------------------------------

    def assignments(self) -> list[tuple[int, Task]]:
        """Give waiting batches to the least loaded workers; of equals, to the one that was given none the longest.

        Returns:
            (worker, task) pairs to send, in order.
        """
        free = not self.paused or self.steps > 0
        if not (free or self._owed) or not self._held:
            return []
        out: list[tuple[int, Task]] = []
        for run in self.runs.values():
            if run.parked:
                continue
            if run.shards is not None or self.in_turn:
                self._assign_to_slots(run, out, free=free)
                continue
            while run.waiting:
                worker, held = min(self._held.items(), key=_load)
                if len(held) >= self.depth or not (free or self._owed):
                    return out
                _number, task = heapq.heappop(run.waiting)
                if run.has(task):  # it came, late, from a worker that was thought lost
                    continue
                self._owed -= not free
                task.attempt += 1
                run.assigned += 1
                held[task.run, task.job] = task
                self._held[worker] = self._held.pop(worker)  # to the end of the line
                out.append((worker, task))
        return out

    def _assign_to_slots(self, run: Run[R], out: list[tuple[int, Task]], *, free: bool) -> None:
        """Give each waiting batch to the worker whose shard or turn it is, if that is there and can take one more."""
        kept = []
        absent: Counter[int] = Counter()  # worker id -> batches that wait for it to be there
        for job, task in sorted(run.waiting, key=_job):
            worker = self._worker_for(run, task, absent)
            if run.has(task):
                continue
            if worker is None or not (free or self._owed):
                kept.append((job, task))
                continue
            self._owed -= not free
            if run.shards is not None:
                run.shards.place(task.indices, worker)
            task.attempt += 1
            run.assigned += 1
            self._held[worker][task.run, job] = task
            out.append((worker, task))
        run.waiting = kept  # sorted, thus a heap

    def _worker_for(self, run: Run[R], task: Task, absent: Counter[int]) -> int | None:
        slot = self._slot(run, task)
        worker = self._by_slot.get(slot, -1)
        held = self._held.get(worker)
        load = len(held) if held is not None else absent[slot]
        if load >= self.depth and run.shards is None and not run.reorder.in_order:
            worker, held = min(self._held.items(), key=_load)  # as in torch, where no other batch waits for this one
        if held is None:
            absent[slot] += 1
            return None
        return worker if len(held) < self.depth else None

    def _slot(self, run: Run[R], task: Task) -> int:
        turn: int = task.job if run.shards is None else task.indices.shard
        return turn % self.slots

    def maker(self, run: int, enough: int) -> int | None:
        """The worker that makes the next batch, where the others have `enough` to do.

        None also where nobody does, where it is made by several, where another batch may come first and while paused.
        """
        state = self.runs[run]
        key, maker = (run, state.reorder.missing), None
        if state.chunk or not state.reorder.in_order or self.paused:
            return None
        for worker, held in self._held.items():
            if key in held:
                maker = worker
            elif len(held) < enough:
                return None
        return maker

    # ---- taking back ------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether every worker has a batch, of those that are ready."""
        return all(self._held.values())

    def uneven(self) -> bool:
        """Whether a worker has nothing to do while another has a batch that it has not begun."""
        return any(self._unbegun())

    def rebalance(self, least: int = 1, stuck: Collection[int] = ()) -> list[Cancel]:
        """While a worker has nothing to do: take back for it half of what another has not begun, the later half.

        So it is at the end of an epoch, when one works at a slow batch and has another behind it. By simulation of 160
        batches with stragglers, workers are at work 97 % of the time with this, and 92 % without.

        Args:
            least: Batches that are worth the messages.
            stuck: Workers from which one batch is.

        Returns:
            What to cancel; then `assignments()` gives it to the one that has nothing. A worker that has begun a batch
            after all makes it too, and one of the two is refused.
        """
        halves = [(worker, keys[len(keys) // 2 :]) for worker, keys in self._unbegun()]
        worthy = [half for half in halves if len(half[1]) >= least or half[0] in stuck]
        if not worthy:
            return []
        worker, keys = max(worthy, key=_load)
        numbers: dict[int, list[int]] = {}
        for run, job in keys:
            task = self._held[worker].pop((run, job))
            task.attempt -= 1
            self.runs[run].return_all([task])
            numbers.setdefault(run, []).append(job)
        return [(worker, run, tuple(jobs)) for run, jobs in numbers.items()]

    def _unbegun(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """What may be taken from each worker; nothing where all have work, or what waits will be given out."""
        if self.busy or self.paused or any(run.waiting and not run.parked for run in self.runs.values()):
            return
        for worker, held in self._held.items():
            keys = [key for key in itertools.islice(held, 1, None) if self._moves(key)]
            if keys:
                yield worker, keys

    def _moves(self, key: tuple[int, int]) -> bool:
        run = self.runs.get(key[0])
        return run is not None and run.shards is None and not run.parked and not self.in_turn

    def _take_back(self, run: int) -> tuple[list[Cancel], list[Task]]:
        """Take this run's batches back from the workers, but for the one that each may be at."""
        cancels: list[Cancel] = []
        tasks: list[Task] = []
        for worker, held in self._held.items():
            unbegun = [key for position, key in enumerate(held) if position and key[0] == run]
            if unbegun:
                tasks += [held.pop(key) for key in unbegun]
                cancels.append((worker, run, tuple(number for _run, number in unbegun)))
        return cancels, tasks


def _job(item: tuple[int, Task]) -> int:
    return item[0]


def _load(item: tuple[int, Collection[tuple[int, int]]]) -> int:
    return len(item[1])
