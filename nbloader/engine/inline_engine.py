"""The engine of a loader without workers: the same stages, in the notebook's process, when a batch is asked for."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import cloudpickle

from nbloader import events as ev
from nbloader._util import rng
from nbloader._util.wakeup import Wakeup
from nbloader.batch.chunk_arena import MemoryArena
from nbloader.batch.chunking import join_chunks
from nbloader.batch.payload import JoinedPayload, LocalPayload
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.engine.engine import Delivered
from nbloader.engine.timeouts import PAUSED, WaitTimer
from nbloader.engine.wait_hooks import WaitCallbacks
from nbloader.errors import LoaderClosedError
from nbloader.events.failures import EmptyBatch, samples_failed
from nbloader.events.gauges import Gauges
from nbloader.events.remote_errors import add_note
from nbloader.sampling.epoch_plan import ChunkSpec, EpochPlan
from nbloader.sampling.shard_plan import IterableOptions
from nbloader.transport import stack_probe
from nbloader.workers.batch_builder import BatchBuilder
from nbloader.workers.fetcher import OnError
from nbloader.workers.iterable_fetcher import ExhaustedError, IterableFetcher
from nbloader.workers.status import LocalStatus, WorkerState
from nbloader.workers.worker_info import ProcessContext, WorkerInfo

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns


class LocalEngine:
    """Makes batches in this process.

    Args:
        bus: Where events go.
        batched: Whether samples make batches.
        output: "torch" or "numpy".
        streaming: How an iterable dataset is read.
    """

    loaded = False
    """The dataset is taken anew for each epoch."""
    ahead = False
    """Nothing is asked for before it is wanted."""

    def __init__(
        self, bus: ev.EventBus, *, batched: bool, output: str, streaming: IterableOptions | None = None
    ) -> None:
        self.bus = bus
        self.callbacks = WaitCallbacks()
        self._batched = batched
        self._output = output
        self._dataset: Any = None
        self._runs: dict[int, deque[Task]] = {}
        self._made: dict[int, int] = {}
        self._draws: dict[int, EpochPlan] = {}
        self._streaming = streaming
        self._streams: IterableFetcher | None = None
        self._status = LocalStatus(os.getpid(), WorkerState.IDLE)
        self._pace = threading.Condition()
        self._paused = False
        self._steps = 0  # batches that the consumer may have though the loader is paused
        self._held_back: tuple[int, int, int] | None = None  # run, number, since when: it waits for the pause to end
        self._maker: BatchBuilder
        self._at: Task  # what it makes now: a batch, or a piece of one
        self.closed = False

    def load(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: OnError) -> bool:
        """Take the dataset; always False, since there is no worker to replace."""
        if self._streaming is not None and (dataset is not self._dataset or self._streams is None):
            self._streams = IterableFetcher(
                lambda: pickle.loads(cloudpickle.dumps((dataset, worker_init_fn))), dataset, (0, 0), self._streaming,
                self._status, on_error, context=_Notebook(), report_state=self._tell_state, seeded=False,
            )  # fmt: skip
        self._dataset = dataset
        self._maker = BatchBuilder(
            dataset, collate_fn, self._status, batched=self._batched, output=self._output, on_error=on_error,
            iterable_fetcher=self._streams,
        )  # fmt: skip
        return False

    def _tell_state(self, run: int, shard: int, position: int, state: str | None, problem: str) -> None:
        shards = self._draws[run].shards
        if shards is not None:
            shards.advance(shard, position, state, problem)

    def open_iteration(self, run: int, draw: EpochPlan) -> None:
        """Begin an iterator."""
        self._runs[run] = deque()
        self._made[run] = draw.first
        self._draws[run] = draw

    def close_iteration(self, run: int) -> None:
        """End an iterator."""
        self._runs.pop(run, None)
        self._made.pop(run, None)
        if not self._runs:
            self._steps = 0  # steps beyond the last batch of an epoch are none of the next one
        self._draws.pop(run, None)
        if self._streams is not None:
            self._streams.forget(run)

    def outstanding(self, run: int) -> bool:
        """Whether a batch of a run is asked for and was not made."""
        return bool(self._runs.get(run))

    def wait_for_source(self, _run: int, waker: Wakeup) -> None:
        """Block until the waker is set or the clock wants something.

        Raises:
            LoaderClosedError: The loader was closed meanwhile.
        """
        if self.closed:
            raise LoaderClosedError("this iterator was ended: its loader was closed")
        waker.wait(None, self.callbacks.interval)
        self.callbacks.call()

    def refill_size(self, run: int) -> int:
        """One batch at a time."""
        return 1 if run in self._runs and not self._runs[run] else 0

    def add(self, run: int, batches: Iterable[tuple[Any, int]], *, soon: bool = False) -> None:  # noqa: ARG002
        """Take batches to make, as (indices, seed)."""
        for indices, seed in batches:
            now = _clock()
            self._runs[run].append(Task(run, self._made[run], indices, seed, dispatched=now, attempt=1))
            self._made[run] += 1

    def next_batch(self, run: int, _waker: object, refill: Callable[[], bool]) -> Delivered | None:
        """Make the next batch; None when there is none.

        Args:
            run: Which run.
            refill: Asks the sampler for another batch; whether it gave any.
        """
        self.callbacks.call()
        if self._paused and (queue := self._runs.get(run)):
            now = _clock()
            self._held_back = run, queue[0].number, now
            try:
                self._wait_for_a_step(WaitTimer(now, timeout=0, first=not queue[0].number))
            finally:
                self._held_back = None
        if self.closed:
            raise LoaderClosedError("this iterator was ended: its loader was closed")
        queue = self._runs.get(run)
        while queue or (queue is not None and refill()):
            task = queue.popleft()
            parcel = self._make_alone(task)
            if parcel is not None:
                task.in_order = parcel.received
                return Delivered(task, parcel, 0, 0, 0)
        return None

    def _make_alone(self, task: Task) -> LocalPayload | JoinedPayload | None:
        """The batch; None if no sample of it is left. The notebook's random state stays as it is."""
        self._status.run, self._status.number = task.run, task.number
        try:
            with rng.PreservedRandomState():
                cut = self._draws[task.run].chunk_spec
                return self._make(task) if cut is None else self._make_pieces(task, cut)
        except Exception as error:
            self._draws[task.run].delivered(task, 0)
            self._explain(self._at, error)
            if isinstance(error, StopIteration):  # it would end the loop as if the epoch were over
                raise RuntimeError(f"StopIteration: {error}") from error  # noqa: TRY004
            raise
        finally:
            self._status.state, self._status.number = WorkerState.IDLE, -1

    def _make_pieces(self, task: Task, cut: ChunkSpec) -> JoinedPayload | None:
        """The batch in the pieces that workers would make of it: with the same seeds."""
        batch: ChunkedBatch[LocalPayload | EmptyBatch] = ChunkedBatch(task, cut.size)
        batch.arena = MemoryArena(len(task.indices), cut.size, 0, self._output)
        for chunk in batch.split(0):
            batch.add(chunk, self._make(chunk) or EmptyBatch())
        joined = join_chunks(batch, cut.collate_fn)
        if isinstance(joined, JoinedPayload):
            return joined
        self._draws[task.run].delivered(task, 0)
        return None

    def _wait_for_a_step(self, wait: WaitTimer) -> None:
        while True:
            due, left = wait.check(_clock(), paused=True)
            if due is not None:
                sys.stderr.write(PAUSED)
            timeouts = [seconds for seconds in (left, self.callbacks.interval) if seconds is not None]
            with self._pace:
                if not self._paused:
                    return
                if self._steps:
                    self._steps -= 1
                    return
                self._pace.wait(min(timeouts, default=None))
            self.callbacks.call()

    def peek(self, _run: int, _count: int) -> list[Any]:
        """Nothing is made before it is wanted."""
        return []

    def _make(self, task: Task) -> LocalPayload | None:
        shards = self._draws[task.run].shards
        if shards is not None:
            shards.assign(task.indices, 0)
        self._at = task
        rng.seed_everything(task.seed)
        try:
            made = self._maker.build(task)
        except ExhaustedError:
            if shards is not None:
                shards.mark_exhausted(task.indices)
            return None
        finally:
            if shards is not None and shards.count:
                ProcessContext().set_worker_info(None)
            spared = self._maker.failed_samples
            for event in samples_failed(spared, task.run, task.number, task.indices, -1, batched=self._batched):
                self.bus.publish(event)
        if isinstance(made, LocalPayload):
            return made
        if task.parent is None:
            self._draws[task.run].delivered(task, 0)
        return None

    def _explain(self, task: Task, error: Exception) -> None:
        fetching = self._status.state == WorkerState.FETCHING
        position = self._status.position
        sample = None
        if fetching and self._batched and position >= 0:
            sample = task.indices[position]
            add_note(error, f"raised in this process while fetching sample {sample!r} of batch {task.number}")
        elif not fetching:
            add_note(error, f"raised in this process while collating batch {task.number}")
        message = f"{type(error).__name__}: {error}"
        self.bus.publish(ev.BatchFailed(_clock(), task.run, task.number, -1, sample, message))

    def pause(self) -> None:
        """Make nothing until `resume`."""
        self._set_pace(paused=True, steps=0)

    def resume(self) -> None:
        """Go on."""
        self._set_pace(paused=False, steps=0)

    def step(self) -> None:
        """Pause, and make one batch."""
        self._set_pace(paused=True, steps=1)

    def _set_pace(self, *, paused: bool, steps: int) -> None:
        with self._pace:
            changed, self._paused = self._paused != paused, paused
            self._steps = self._steps + steps if paused else 0
            self._pace.notify_all()
        if changed:
            self.bus.publish(ev.LoaderPaused(_clock()) if paused else ev.LoaderResumed(_clock()))

    def restart_workers(self, _ids: list[int]) -> None:
        """There is none."""

    def replace_all(self, *, keep: bool = True) -> None:
        """There is none, and nothing is made ahead."""

    def resize(self, _num_workers: int) -> None:
        """There is none, and none can come."""

    def set_prefetch_factor(self, _prefetch_factor: int) -> None:
        """Nothing is made ahead."""

    def stack(self, _worker: int) -> str:
        """The stack of the main thread: the cell's."""
        return stack_probe.of_thread(threading.main_thread().ident)

    def supersede(self) -> None:
        """There is nothing to give up."""

    def drain_output(self) -> None:
        """What the dataset prints is in the cell already."""

    def gauges(self, state: str) -> Gauges:
        """The state now."""
        if self.closed:
            state = "closed"
        elif self._paused:
            state = "paused"
        elif self._runs:
            state = "running"
        now = _clock()
        runs = dict(self._runs)  # the consumer's thread goes on meanwhile
        if not runs:
            return Gauges(now, state, 0, 0, 0, 0, None, None, ())
        run = max(runs)
        of_run, number, since = self._status.run, self._status.number, self._status.since
        held_back = self._held_back
        if held_back is not None:
            of_run, number, since = held_back
        making = number if of_run == run and number >= 0 else None
        taken = making is not None and held_back is None  # it stands in no queue any more
        delivered = max(0, self._made.get(run, 0) - len(runs[run]) - taken)
        at = delivered - 1 if delivered and making is None else None
        return Gauges(
            now, state, 0, 0, 0, 0, None if making is None else since, making, (),
            run=run, iterators=len(runs), delivered=delivered, at=at,
        )  # fmt: skip

    def close_soon(self) -> None:
        """Nothing runs that would have to be ended."""

    def close(self) -> None:
        """End every iterator."""
        self.closed = True
        self._runs.clear()
        with self._pace:
            self._paused = False
            self._pace.notify_all()


class _Notebook(ProcessContext):
    """Without shards `get_worker_info()` stays what it is: this may be a worker of another loader."""

    def set_worker_info(self, info: WorkerInfo | None) -> None:
        """Tell the shard, if it is one."""
        if info is not None:
            super().set_worker_info(info)
