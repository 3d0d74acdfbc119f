"""The engine of a loader without workers (`num_workers=0`): the consumer's own thread produces each batch.

    EpochIterator.__next__ -> next batch of the plan -> LocalProducer.produce() -> delivered

There is no window, no thread and nothing to assign. An iteration holds at most one batch that was drawn from the plan
and not delivered: an interrupted one is produced again by the next call. A debugger works in `__getitem__`, and the
user's code may call `loader.stats()` and the controls, from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from nbloader import events as ev
from nbloader._util.bell import CONCURRENT_NEXT, Bell
from nbloader.batch import chunking
from nbloader.batch.payload import BatchPayload
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.engine import timeouts
from nbloader.engine.engine import CLOSED, Engine, StackSamples, ignore_stacks
from nbloader.engine.receiver import why_ended
from nbloader.engine.silent_faults import SilentFaults
from nbloader.engine.skipped_samples import SkippedSamples
from nbloader.engine.timeouts import WaitTimer
from nbloader.engine.wait_hooks import WaitCallbacks
from nbloader.engine.worker_output import WorkerOutput
from nbloader.errors import LoaderClosedError
from nbloader.events.failures import EmptyBatch, samples_failed
from nbloader.events.gauges import Gauges
from nbloader.events.stack_samples import StackCount
from nbloader.metrics.usage_probe import WorkerThread
from nbloader.sampling.epoch_plan import ChunkSpec, EpochPlan, PlannedBatch
from nbloader.scheduler.gate import Gate
from nbloader.scheduler.iteration import Delivery
from nbloader.transport import stack_probe
from nbloader.workers.api import LocalSetup
from nbloader.workers.in_process import seeded_collate
from nbloader.workers.local_producer import NO_WORKER, LocalProducer
from nbloader.workers.spec import WorkerSpec
from nbloader.workers.status import WorkerAbandonedError

_clock = time.perf_counter_ns


@dataclass(slots=True)
class LocalIteration:
    """The state of one iteration."""

    epoch: int
    """Number of the epoch."""
    plan: EpochPlan
    added: int
    """Number of the next batch to draw from the plan."""
    delivered: int = 0
    """Number of batches that were delivered."""
    task: Task | None = None
    """The batch that was drawn and not delivered."""
    produced: Delivery | None = None
    """The same batch, if it was produced while the loader was paused."""
    jobs: int = 0
    """Job number of the next chunk."""
    producer: LocalProducer | None = None
    """None before the first batch, and after the dataset was replaced."""
    producers: int = 0
    """Number of producers that the iteration has had."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while a batch is drawn and produced: threads that share an iterator take turns."""
    running: bool = False
    """Whether a batch is being produced."""
    bell: Bell = field(default_factory=Bell)
    """Wakes the consumer while it waits for a command or for its source."""


class LocalEngine:
    """Produces the batches of a loader without workers. Has the interface of `Engine`, as far as it makes sense here.

    All methods may be called from any thread, signal handlers and finalizers.

    Args:
        bus: The bus on which events are published.
        spec: The configuration that workers would receive.
        gate: Whether the loader is paused.
        draws_by_worker: See `Engine.draws_by_worker`: with workers, it would be so.
    """

    prefetches = False
    """No batch is requested before the consumer asks for it."""
    in_process = True
    """The user's code runs in this process."""

    def __init__(self, bus: ev.EventBus, spec: WorkerSpec, gate: Gate, *, draws_by_worker: bool) -> None:
        self.bus = bus
        self.closed = False
        self.callbacks = WaitCallbacks()
        self.on_stacks: Callable[[Iterable[StackCount]], object] = ignore_stacks
        """Not called: `sample_stacks` returns all samples."""
        self.silent_faults = SilentFaults()
        """Stays empty: the faults that it looks for need several workers."""
        self.draws_by_worker = draws_by_worker
        self._spec = spec
        self._setup: LocalSetup | None = None
        self._iterations: dict[int, LocalIteration] = {}
        self.gate = gate
        """See `Engine.gate`."""
        gate.subscribe(self._ring)
        self._running: LocalIteration | None = None  # the one that is producing
        self._awaited: tuple[int, int] | None = None  # number of the batch in production, and when that began
        self._last: Task | None = None  # the last batch that was delivered
        self._last_at = 0
        self._retired = False
        self._output = WorkerOutput()
        self._skipped = SkippedSamples()
        self._closing = threading.RLock()

    @property
    def loaded(self) -> bool:
        """Whether a dataset has been loaded."""
        return self._setup is not None

    def load(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> bool:
        """Use a dataset and functions for the iterations that begin from now on.

        Returns:
            Whether they differ from what was loaded before (False the first time).

        Raises:
            LoaderClosedError: The loader was closed.
        """
        if self.closed:
            raise LoaderClosedError(CLOSED)
        old, self._setup = self._setup, LocalSetup(dataset, collate_fn, worker_init_fn, on_error)
        return old is not None and old.identity != self._setup.identity

    def replace_all(self, *, keep: bool = True) -> None:
        """Use what was loaded last from the next batch on.

        Args:
            keep: Whether a batch that was produced and not delivered yet, because the loader is paused, is delivered.
                If false, it is produced again.
        """
        for state in list(self._iterations.values()):
            state.producer = None
            if not keep:
                state.produced = None

    # ---- the consumer -------------------------------------------------------------------------------------------

    def is_taken(self) -> bool:
        """Return False: any number of iterations can be open at the same time."""
        return False

    def open_iteration(self, epoch: int, plan: EpochPlan) -> None:
        """Open an iteration.

        Args:
            epoch: Number of the epoch.
            plan: Plan of its batches.

        Raises:
            LoaderClosedError: The loader was closed.
        """
        if self.closed:
            raise LoaderClosedError(CLOSED)
        self._iterations[epoch] = LocalIteration(epoch, plan, plan.first)

    def refill_size(self, epoch: int) -> int:
        """Return how many batches to draw from the plan now: 1 if none is drawn, otherwise 0."""
        state = self._iterations.get(epoch)
        return 1 if state is not None and state.task is None else 0

    def outstanding(self, epoch: int) -> bool:
        """Return whether a batch was drawn and not delivered yet."""
        state = self._iterations.get(epoch)
        return state is not None and state.task is not None

    def add(self, epoch: int, batches: list[PlannedBatch]) -> None:
        """Add the batch that was drawn.

        Args:
            epoch: Number of the epoch.
            batches: The batch.
        """
        state = self._iterations.get(epoch)
        if state is not None:
            for indices, seed in batches:
                state.task = Task(epoch, state.added, indices, seed, job=state.added)
                state.added += 1

    def next_batch(self, epoch: int, refill: Callable[[], bool]) -> Delivery | None:
        """Produce the next batch of an iteration on this thread and return it.

        Args:
            epoch: Number of the epoch.
            refill: Draws a batch from the plan and adds it; returns whether there was one.

        Returns:
            The delivery; None if the plan has no more batches.

        Raises:
            LoaderClosedError: The loader was closed meanwhile.
            RuntimeError: The user's code calls `next` on the iterator that is producing its batch.
            BaseException: Whatever the user's code raises, if it is not an `Exception`: the next call produces the
                batch again, unless the dataset is iterable.
        """
        self.callbacks.call()
        state = self._iteration(epoch)
        with state.lock:
            if state.running:
                raise RuntimeError(CONCURRENT_NEXT)
            state.running = True
            try:
                return self._next(state, refill)
            finally:
                state.running = False
                self._running = self._awaited = None

    def _next(self, state: LocalIteration, refill: Callable[[], bool]) -> Delivery | None:
        while True:
            task = state.task
            if task is None:
                if not refill():
                    return None
                self.check_open(state.epoch)
                continue
            self._awaited = task.number, _clock()
            if self.gate.closed:
                self._wait_for_resume(state, task)
            delivery = state.produced
            if delivery is None:
                delivery = self._produce(state, task)
                if self.gate.closed:  # the user's code, or another thread, has paused the loader meanwhile
                    state.produced = delivery
                    continue
            self.check_open(state.epoch)
            self._publish_failures(task)
            taken = delivery is not None and self._take(state, delivery)
            state.task = state.produced = None  # after an interrupt before this, the batch is produced again
            if taken:
                return delivery

    def _take(self, state: LocalIteration, delivery: Delivery) -> bool:
        """Count a batch that is ready as taken from the plan. Returns whether it has samples to deliver."""
        task = delivery.task
        if state.plan.shards is not None:
            state.plan.shards.received(task.indices)
        if delivery.outcome.empty:
            state.plan.delivered(task, 0)
            return False
        self.gate.delivered()
        state.delivered += 1
        self._last_at = _clock()
        self._last = task  # after an interrupt from here on, `check_complete` ends the iteration
        return True

    def _produce(self, state: LocalIteration, task: Task) -> Delivery | None:
        """Produce a batch. Return None if it does not exist, because the dataset is exhausted."""
        self._running = state
        task.failures.clear()
        task.dispatched = _clock()
        task.attempt += 1
        chunks = state.plan.chunk_spec
        try:
            outcome = self._run(state, task) if chunks is None else self._join(state, task, chunks)
        except WorkerAbandonedError:
            raise LoaderClosedError(why_ended(closed=self.closed)) from None
        if outcome is None:
            return None
        if outcome.failed:
            event = outcome.to_event(_clock(), task.epoch, task.number, task.indices)
            if event is not None:
                task.failures.append(event)
        task.in_order = _clock()
        return Delivery(task, outcome)

    def _run(self, state: LocalIteration, task: Task) -> Any:
        """Run the user's code for a batch or a chunk. Returns the outcome; None if there is no such batch."""
        producer, shards = self._producer(state), state.plan.shards
        if shards is not None:
            shards.assign(task.indices, state.producers)
        try:
            outcome = producer.produce(task)
        except BaseException as error:
            if not producer.reads_stream or isinstance(error, WorkerAbandonedError):
                raise
            state.produced = Delivery(task, EmptyBatch())  # its iterator may have advanced: the next batch continues
            raise
        if outcome is None and shards is not None:
            shards.mark_exhausted(task.indices)
        if producer.failed_samples:
            whole = task if task.parent is None else task.parent.task
            whole.failures += samples_failed(
                producer.failed_samples, task.epoch, task.number, task.indices, NO_WORKER,
                batched=self._spec.batched,
            )  # fmt: skip
        return outcome

    def _join(self, state: LocalIteration, task: Task, chunks: ChunkSpec) -> Any:
        """Produce a batch in chunks, which have the same seeds as with workers, and join them."""
        batch: ChunkedBatch[Any] = ChunkedBatch(task, chunks.size)
        for chunk in batch.split(state.jobs):
            batch.add(chunk, self._run(state, chunk))
        collate_fn = None if chunks.collate_fn is None else seeded_collate(chunks.collate_fn, batch)
        outcome: Any = chunking.join_chunks(batch, collate_fn)
        state.jobs += len(batch.chunks)
        batch.release()
        batch.chunks.clear()  # breaks the cycle: chunks refer to the batch
        return outcome

    def _producer(self, state: LocalIteration) -> LocalProducer:
        producer = state.producer
        if producer is None:
            setup = self._setup
            if setup is None:
                raise LoaderClosedError(why_ended(closed=self.closed))
            producer = state.producer = LocalProducer(setup, self._spec, state.plan.shards)
            state.producers += 1
        return producer

    def _publish_failures(self, task: Task) -> None:
        """Publish the failures in a batch that is being delivered."""
        for event in task.failures:
            self.bus.publish(event)
            line = self._skipped.add(event) if isinstance(event, ev.SampleFailed) else ""
            if line:
                self._output.notify(line)
        if task.failures:
            task.failures.clear()
            self._output.show()

    def _iteration(self, epoch: int) -> LocalIteration:
        state = self._iterations.get(epoch)
        if state is None:
            raise LoaderClosedError(why_ended(closed=self.closed))
        return state

    def check_open(self, epoch: int) -> None:
        """Raise if an iteration has ended.

        Raises:
            LoaderClosedError: The loader was closed, or an interrupt has ended the iteration.
        """
        self._iteration(epoch)

    def check_complete(self, epoch: int, *, drawn: int, held: int) -> None:
        """End an iteration if an interrupt has lost one of its batches. For the arguments, see `Engine`."""
        state, last = self._iterations.get(epoch), self._last
        taken = held if last is None or last.epoch != epoch else last.number
        if state is not None and (state.added != drawn or taken != held):
            self.close_iteration(epoch)

    def peek(self, epoch: int, count: int) -> list[tuple[Task, BatchPayload]]:  # noqa: ARG002
        """Return []: no batch is ready before the consumer asks for it."""
        return []

    def drain_output(self, epoch: int) -> None:
        """Print a notice if the epoch has skipped samples. Called at its end."""
        line = self._skipped.exhausted(epoch)
        if line:
            self._output.notify(line)
            self._output.show()

    def wait_for_source(self, epoch: int, is_ready: Callable[[], object]) -> None:
        """Block until a source has something to read, or a callback is due.

        Args:
            epoch: Number of the epoch.
            is_ready: Returns whether the source has something.

        Raises:
            LoaderClosedError: The loader was closed, or an interrupt has ended the iteration.
        """
        bell = self._iteration(epoch).bell
        bell.listening = True
        try:
            self.check_open(epoch)
            if not is_ready():
                bell.wait(self.callbacks.interval)
                self.callbacks.call(waiting=True)
        finally:
            bell.listening = False

    def bell(self, epoch: int) -> Bell:
        """Return what wakes the consumer of an iteration."""
        return self._iteration(epoch).bell

    def close_iteration(self, epoch: int) -> None:
        """End an iteration."""
        state = self._iterations.pop(epoch, None)
        self._skipped.closed(epoch)
        if state is not None:
            state.bell.ring()
        if state is not None and state.producer is not None and not state.running:
            state.producer.close()
        if not self._iterations:
            self.gate.forget_steps()
            if self._retired:
                self.close()

    # ---- pause, resume, step ------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Deliver nothing until `resume` is called."""
        if not self.closed and self.gate.pause():
            self.bus.publish(ev.LoaderPaused(_clock()))
            self.gate.announce()

    def resume(self) -> None:
        """Continue after `pause`."""
        if self.gate.resume():
            self.bus.publish(ev.LoaderResumed(_clock()))
            self.gate.announce()

    def step(self) -> None:
        """Pause the loader, and deliver one batch."""
        self.pause()
        self.gate.step()
        self.gate.announce()

    def _ring(self) -> None:
        for state in list(self._iterations.values()):
            state.bell.ring()

    def _wait_for_resume(self, state: LocalIteration, task: Task) -> None:
        """Block while the loader is paused.

        Raises:
            LoaderClosedError: The loader was closed meanwhile.
        """
        timer = WaitTimer(_clock(), timeout=0, first=task.number == state.plan.first)
        state.bell.listening = True
        try:
            while self.gate.closed:
                self.check_open(state.epoch)
                check = timer.check(_clock(), paused=True)
                if check.due is not None:
                    self._output.notify(timeouts.PAUSE_NOTICE_TEXT)
                    self._output.show()
                    continue
                limits = [seconds for seconds in (check.left, self.callbacks.interval) if seconds is not None]
                state.bell.wait(min(limits, default=None))
                self.callbacks.call(waiting=True)
        finally:
            state.bell.listening = False

    # ---- workers: there are none ----------------------------------------------------------------------------------

    def restart_workers(self, ids: list[int]) -> None:
        """Do nothing: there are no workers."""

    def stop_idle_workers(self) -> None:
        """Do nothing: there are no workers."""

    def supersede(self) -> None:
        """Do nothing: there are no workers to stop when the loader's cell was run again."""

    def worker_threads(self) -> tuple[WorkerThread, ...]:
        """Return (): the consumer's thread loads samples."""
        return ()

    # ---- watching -----------------------------------------------------------------------------------------------

    def sample_stacks(self, first: int, count: int) -> StackSamples:  # noqa: ARG002
        """Sample the stack of the thread that produces a batch. For the arguments, see `Engine`."""
        running = self._running
        producer = None if running is None else running.producer
        sample = None if producer is None else producer.sample_stack()
        return StackSamples(producer is not None and producer.busy, [] if sample is None else [sample])

    def stack(self, worker: int) -> str:  # noqa: ARG002 - the only one
        """Return the Python stack of the main thread."""
        return stack_probe.of_main_thread()

    def gauges(self, state: str) -> Gauges:
        """Return the current state of the loader. Never runs user code.

        Args:
            state: Name of the state to report if no iteration is open.
        """
        awaited = self._awaited
        number, since = (None, None) if awaited is None else awaited
        return Gauges(
            now=_clock(),
            state=self._state(state),
            window=0,
            in_flight=0,
            reordering=0,
            ready=0,
            waiting_since=since,
            waiting_for=number,
            workers=(),
            **self._newest_iteration(),
        )

    def _newest_iteration(self) -> dict[str, Any]:
        """Return the fields of `Gauges` that describe the newest iteration."""
        iterations = list(self._iterations.values())  # copied atomically, under the GIL
        if not iterations:
            return {}
        newest, last = max(iterations, key=lambda state: state.epoch), self._last
        fields: dict[str, Any] = {"epoch": newest.epoch, "iterators": len(iterations), "delivered": newest.delivered}
        if last is not None and last.epoch == newest.epoch and self._awaited is None:
            fields.update(at=last.number, at_since=self._last_at)
        if not newest.delivered:
            task, producer = newest.task, newest.producer
            progress = None if task is None or producer is None else producer.progress(task)
            fields["fetching"] = () if progress is None else (progress,)
        return fields

    def _state(self, state: str) -> str:
        if self.closed:
            return "closed"
        if self.gate.paused:
            return "paused"
        return "running" if self._iterations else state

    # ---- closing ------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """End every iteration. A batch that another thread is producing stops before the next sample.

        Returns:
            Whether this call closed the loader.
        """
        with self._closing:
            if self.closed:
                return False
            self.closed = True
        for epoch, state in list(self._iterations.items()):
            if state.producer is not None:
                state.producer.abandon()
            self.close_iteration(epoch)
        self._setup = None
        return True

    def close_soon(self) -> None:
        """Close the engine, since its loader was garbage-collected."""
        self.close()

    def retire(self) -> None:
        """Close the engine when its last iteration has ended, because another engine has replaced it."""
        self._retired = True
        if not self._iterations:
            self.close()


AnyEngine = Engine | LocalEngine
"""The engine of a loader, with or without workers."""
