"""The state of an engine, which the engine's thread owns: dispatcher, workers, consumers, window.

The dispatcher is pure and makes the decisions; this module carries them out.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

from nbloader import events as ev
from nbloader.batch import chunking
from nbloader.batch.payload import BatchOutcome
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.engine import inspect
from nbloader.engine.config import EngineConfig
from nbloader.engine.idle import IdleWatch
from nbloader.engine.memory import MemoryWatch
from nbloader.engine.memory import notice as memory_notice
from nbloader.engine.receiver import Receiver, ReceiverEngine
from nbloader.engine.silent_faults import SilentFaults
from nbloader.engine.skipped_samples import SkippedSamples
from nbloader.engine.worker_group import WorkerGroup, late_error_notice
from nbloader.engine.worker_output import WorkerOutput
from nbloader.errors import DatasetTransferError, LoaderClosedError, NbloaderError
from nbloader.events.failures import LoaderFailure, abbreviated, samples_failed
from nbloader.events.gauges import Gauges
from nbloader.events.stack_samples import StackCount
from nbloader.sampling.epoch_plan import ChunkSpec, EpochPlan, PlannedBatch
from nbloader.scheduler.dispatcher import Cancel, Dispatcher
from nbloader.scheduler.gate import Gate
from nbloader.scheduler.prefetch import Load, Window
from nbloader.workers.api import WorkerKind, WorkerSetup
from nbloader.workers.in_process import seeded_collate
from nbloader.workers.messages import (
    BatchDone,
    DescriptorsExhausted,
    OutputText,
    PoolFailed,
    ShardAdvanced,
    ShardExhausted,
    SignSeen,
    StacksSampled,
    WorkerGone,
    WorkerInitFailed,
    WorkerInitialized,
    WorkerLaunched,
    WorkerMessage,
)

_clock = time.perf_counter_ns

CLOSED = "this loader is closed: create a new one"


class Supervisor:
    """Moves batches between the workers and the consumers of one loader.

    The engine's thread runs all methods but `ring`. While it does not run, the thread that makes a request does (see
    `Loop`). `forget` runs in a forked child.

    Args:
        bus: The bus on which events are published.
        config: The configuration, which the loader derives from its arguments.
        gate: Whether the loader is paused.
    """

    def __init__(self, bus: ev.EventBus, config: EngineConfig, gate: Gate) -> None:
        self.closed = False
        self.retired = False
        """Whether to close when the last iteration has ended. Any thread may set it."""
        self.config = config
        self.on_stacks: Callable[[Iterable[StackCount]], object] = ignore_stacks
        """Receives the stack samples that workers send."""
        self.silent_faults = SilentFaults()
        """Warnings that are due to the consumer."""
        self.skipped = SkippedSamples()
        self.output = WorkerOutput()
        self.events: collections.deque[ev.Event] = collections.deque()
        """Events to publish at the end of the turn."""
        self.window = window = Window(
            Load(
                num_workers=config.num_workers,
                prefetch_factor=config.prefetch_factor,
                prefetch=config.prefetch,
                adaptive=config.adaptive_window,
                strict=config.strict_window,
                concurrency=config.concurrency,
            )
        )
        if config.batch_size is not None:
            window.expect(config.batch_size)
        self.dispatcher = Dispatcher(window, gate, round_robin=config.round_robin, cancels_begun=config.concurrency > 0)
        self.group = WorkerGroup(
            self.events.append, self.dispatcher, config, on_message=self._handle, notify=self.output.notify,
            wake_consumers=self.wake_consumers, production_ns=lambda: window.load.produce_ns,
        )  # fmt: skip
        self.receivers: dict[int, Receiver] = {}
        """The consumers of open iterations, by epoch."""
        self.idle = IdleWatch(config.idle_timeout, self.receivers)
        self.memory = MemoryWatch()
        self._bus = bus
        self._gate = gate
        self._due: dict[int, Receiver] = {}  # consumers to wake at the end of this turn
        self._memory_noticed = False

    def forget(self) -> None:
        """Forget the workers and iterations in a forked child: they belong to the parent."""
        for receiver in self.receivers.values():
            receiver.close()
        self.receivers.clear()
        self._due.clear()
        self.dispatcher.clear()
        self.group.forget()
        self.events.clear()

    # ---- for the loop: see `Driven` -------------------------------------------------------------------------------

    def filenos(self) -> tuple[int, ...]:
        """See `Driven`."""
        pool = self.group.pool
        fileno = None if pool is None else pool.fileno()
        return (*self.group.leaving.filenos, *(() if fileno is None else (fileno,)))

    def seconds_to_maintenance(self) -> float | None:
        """See `Driven`."""
        due = [self.group.leaving.seconds_left()]
        if self.group.pool is not None:
            due += [self.idle.seconds_to_memory_release(), self.idle.seconds_to_stop()]
        return min((left for left in due if left is not None), default=None)

    def receive(self) -> None:
        """See `Driven`."""
        group = self.group
        if group.pool is not None:
            for message in group.pool.poll(0):
                self._handle(message)
        if group.leaving.pools:
            for message in group.leaving.poll():
                self._handle(message)

    def act(self) -> None:
        """See `Driven`."""
        self._assign()
        if self._due:
            due, self._due = self._due, {}
            for receiver in due.values():
                receiver.bell.ring()
        self._maintain()

    def publish(self) -> None:
        """See `Driven`."""
        while self.events:
            with contextlib.suppress(IndexError):  # another thread took it
                self._bus.publish(self.events.popleft())

    def show_output(self) -> None:
        """See `Driven`."""
        self.output.show_in_context()

    def report_failure(self, error: Exception) -> None:
        """See `Driven`."""
        self.events.append(ev.SupervisorFailed(_clock(), f"{type(error).__name__}: {error}"))

    def fail(self, error: Exception) -> None:
        """See `Driven`."""
        self.group.fatal = NbloaderError(f"the thread of the loader failed: {type(error).__name__}: {error}")
        self.group.kill()
        self.ring()

    def _assign(self) -> None:
        pool = self.group.pool
        if pool is None:
            return
        assigned = self.dispatcher.assignments()
        if not assigned:
            return
        now = _clock()
        for uid, tasks in assigned:
            for task in tasks:
                task.dispatched = now
            for task, error in pool.submit(uid, tasks):
                why = f"the indices {abbreviated(task.indices)} of batch {task.number} cannot be pickled: {error}"
                self.dispatcher.result(uid, task.epoch, task.job, LoaderFailure(DatasetTransferError(why)), now)
                self._wake_consumer(task.epoch)

    def _cancel(self, cancels: list[Cancel]) -> None:
        pool = self.group.pool
        if pool is not None:
            for cancel in cancels:
                pool.cancel(cancel.worker, cancel.epoch, cancel.jobs)

    def _wake_consumer(self, epoch: int) -> None:
        receiver = self.receivers.get(epoch)
        if receiver is not None:
            self._due[epoch] = receiver

    def wake_consumers(self) -> None:
        """Wake all consumers at the end of this turn."""
        self._due.update(self.receivers)

    def ring(self) -> None:
        """Wake all consumers. Called on any thread."""
        for receiver in list(self.receivers.values()):
            receiver.bell.ring()

    # ---- maintenance --------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Release memory or stop the workers if the loader is idle, and kill workers that do not leave."""
        self.group.leaving.kill_stuck()
        if self.group.pool is None:
            return
        release, stop = self.idle.seconds_to_memory_release(), self.idle.seconds_to_stop()
        if release is not None and release <= 0:
            self.idle.memory_released = True  # in any case: it is not due again
            self.release_memory()
        if stop is not None and stop <= 0:
            for epoch in self.dispatcher.iterations:
                self.dispatcher.park(epoch)
            self.group.retire()

    def release_memory(self) -> None:
        """Let idle workers release unused memory."""
        if self.group.pool is not None and not self.dispatcher.iterations:
            self.idle.memory_released = True
            self.group.pool.release_memory()

    # ---- messages of workers --------------------------------------------------------------------------------------

    def _handle(self, message: WorkerMessage) -> None:
        match message:
            case BatchDone():
                self._on_batch_done(message)
            case ShardExhausted():
                self._on_shard_exhausted(message)
            case ShardAdvanced():
                self._on_shard_advanced(message)
            case OutputText():
                self.output.add(message.stream, message.text)
            case StacksSampled():
                self.on_stacks(message.stacks)
            case SignSeen():
                self.silent_faults.add(message.sign)
            case _:
                self._on_worker(message)
                self.wake_consumers()

    def _on_worker(
        self,
        message: WorkerLaunched | WorkerInitialized | WorkerInitFailed | DescriptorsExhausted | PoolFailed | WorkerGone,
    ) -> None:
        """Handle a message about a worker's state."""
        group = self.group
        match message:
            case WorkerLaunched():
                group.on_launched(message)
            case WorkerInitialized():
                group.on_initialized(message)
            case WorkerInitFailed():
                group.on_init_failed(message)
                self._notice_late_error()
            case DescriptorsExhausted():
                group.on_descriptors_exhausted(message)
            case PoolFailed():
                group.on_pool_failed(message)
            case WorkerGone():
                group.on_gone(message)

    def _on_batch_done(self, message: BatchDone) -> None:
        outcome = message.outcome
        task = self.dispatcher.result(message.uid, message.epoch, message.job, outcome, _clock())
        if task is None:
            outcome.discard()
            return
        if message.failed_samples:
            whole = task if task.parent is None else task.parent.task
            whole.failures += samples_failed(
                message.failed_samples, task.epoch, task.number, task.indices, self.group.reported_id(message.uid),
                batched=self.config.spec.batched,
            )  # fmt: skip
        if not (outcome.failed or outcome.empty):
            self.group.count_produced(message.uid)
            chunks = 1 if task.parent is None else len(task.parent.chunks)
            self.window.observe(outcome.nbytes, outcome.produce_ns, chunks)
            if self.memory.due(outcome.nbytes):
                self._limit_window()
        if task.parent is None:
            _note_failure(task, outcome)
        self._wake_consumer(message.epoch)

    def _limit_window(self) -> None:
        """Limit the prefetch window to the available memory. The first time, print a notice in the cell."""
        window, memory = self.window, self.memory
        iterations = self.dispatcher.iterations.values()
        arrived = sum(state.reorder.reordering + len(state.ready) for state in iterations)
        nbytes = window.load.nbytes
        if window.limit(memory.affordable(nbytes, arrived)) and not self._memory_noticed:
            self._memory_noticed = True
            self.output.notify(memory_notice(nbytes, memory.measured, window.plan.size, window.plan.planned))

    def _join(self, chunks: ChunkSpec, batch: ChunkedBatch[BatchOutcome]) -> BatchOutcome:
        """Join the chunks of a batch, all of which have arrived."""
        collate_fn = None if chunks.collate_fn is None else seeded_collate(chunks.collate_fn, batch)
        outcome = chunking.join_chunks(batch, collate_fn)
        _note_failure(batch.task, outcome)
        return outcome

    def _on_shard_exhausted(self, message: ShardExhausted) -> None:
        self.dispatcher.exhausted(message.uid, message.epoch, message.job, _clock())
        self._wake_consumer(message.epoch)  # there may be nothing left to wait for

    def _on_shard_advanced(self, message: ShardAdvanced) -> None:
        state = self.dispatcher.iterations.get(message.epoch)
        if state is not None and state.shards is not None:
            state.shards.advance(message.shard, message.position, message.state, message.problem)

    def _notice_late_error(self) -> None:
        """Print the error of a worker's set-up in the cell if no consumer is left that would get it."""
        error = self.group.init_error
        if error is not None and all(state.parked for state in self.dispatcher.iterations.values()):
            self.output.notify(late_error_notice(error))

    # ---- requests -------------------------------------------------------------------------------------------------

    def load(self, kind: WorkerKind, setup: WorkerSetup) -> bool | None:
        """Load a setup that was packed for a kind of workers; return None if the kind has changed in the meantime."""
        if self.closed:
            raise LoaderClosedError(CLOSED)
        return self.group.use_setup(setup) if kind is self.group.kind else None

    def is_open(self) -> bool:
        """Return whether workers belong to an open iteration."""
        return self.group.pool is not None and bool(self.dispatcher.iterations)

    def open_iteration(self, epoch: int, plan: EpochPlan, engine: ReceiverEngine) -> Receiver | Exception:
        """Open an iteration. Others are parked until their consumers request a batch again.

        Args:
            epoch: Number of the epoch.
            plan: Plan of its batches.
            engine: What its consumer needs.

        Returns:
            The consumer's side; or an exception that user code raised while a worker was set up, after the last epoch.

        Raises:
            LoaderClosedError: The loader was closed.
        """
        if self.closed:
            raise LoaderClosedError(CLOSED)
        self.group.seed = plan.seed
        self.idle.epoch_began()
        if self.group.ends_with_epoch:
            self.group.restart_all()
        error = self.group.take_init_error()
        if error is not None:
            return error
        chunks = plan.chunk_spec
        state = self.dispatcher.open_iteration(
            epoch,
            in_order=self.config.in_order,
            first=plan.first,
            shards=plan.shards,
            chunk_size=0 if chunks is None else chunks.size,
            join=None if chunks is None else functools.partial(self._join, chunks),
        )
        receiver = self.receivers[epoch] = Receiver(engine, state, plan, self.window, self._gate)
        self.wake_consumers()  # those of the iterations that were parked just now
        return receiver

    def unpark(self, epoch: int) -> None:
        """Assign batches of an iteration again."""
        if epoch in self.dispatcher.iterations:
            self.dispatcher.unpark(epoch)

    def add(self, epoch: int, batches: list[PlannedBatch]) -> None:
        """Add batches that were drawn from the sampler."""
        state = self.dispatcher.iterations.get(epoch)
        if state is None:
            return
        if self.window.load.concurrency:  # before the policy decides how many of them a worker may hold
            for indices, _seed in batches:
                self.window.expect(len(indices) if self.config.spec.batched else 1, state.chunk_size)
        for indices, seed in batches:
            self.dispatcher.add(epoch, indices, seed)

    def drain_output(self) -> Exception | None:
        """Read what workers have printed so far.

        Returns:
            An exception that user code raised while a worker was set up, if no consumer has received it.
        """
        if self.group.pool is not None:
            for stream, text in self.group.pool.partial_output():
                self.output.add(stream, text)
        return self.group.take_init_error()

    def close_iteration(self, epoch: int) -> None:
        """End an iteration."""
        receiver = self.receivers.pop(epoch, None)
        if receiver is not None:
            self.idle.epoch_ended(receiver)
            receiver.close()
        state = self.dispatcher.iterations.get(epoch)
        closed = self.dispatcher.close_iteration(epoch)
        if state is not None and not state.parked:  # the error came before this request, and after the last batch
            self._notice_late_error()
        self.skipped.closed(epoch)
        for outcome in closed.unclaimed:
            outcome.discard()
        self._cancel(closed.cancels)
        if self.retired and not self.dispatcher.iterations:
            self.close()
        elif self.group.ends_with_epoch and not self.dispatcher.iterations:
            self.group.end_epoch()

    def replace_all(self, *, keep: bool) -> None:
        """Restart all workers. For `keep`, see `Engine.replace_all`."""
        if not keep:
            for outcome in self.dispatcher.redo():
                outcome.discard()
        self.group.restart_all()

    def resize(self, num_workers: int, *, patient: bool) -> None:
        """Change the number of workers. For the arguments, see `Engine.resize`."""
        self.events.append(ev.WorkersResized(_clock(), self.group.num_workers, num_workers))
        self.window.resize(num_workers)
        self.group.resize(num_workers, patient=patient)
        self.wake_consumers()  # the window may be larger

    def use_kind(self, config: EngineConfig, kind: WorkerKind, setup: WorkerSetup) -> None:
        """Switch to another kind of workers. See `Engine.use_kind`."""
        self.config = config
        self.group.use_kind(config, kind, setup)
        self.wake_consumers()  # a waiting consumer starts the new workers

    def stop_idle(self) -> None:
        """Stop the workers, unless an iteration is open."""
        if not self.dispatcher.iterations:
            self.group.retire()

    def set_window(self, prefetch_factor: int, prefetch: int | None, *, adaptive: bool) -> None:
        """Change the prefetch window. For the arguments, see `EngineConfig`."""
        self.window.set_size(prefetch_factor, prefetch=prefetch, adaptive=adaptive)
        self.wake_consumers()

    def gauges(self, state: str) -> Gauges:
        """Return the current state of the loader and its workers. See `Engine.gauges`."""
        self._assign()  # what was requested before counts as in flight
        return inspect.gauges(
            self.dispatcher, self.group, self.receivers, state=self._state(state), window=self.window.plan.size
        )

    def _state(self, state: str) -> str:
        if self.closed:
            return "closed"
        if self._gate.paused:
            return "paused"
        if self.group.pool is None or (self.group.ends_with_epoch and not self.dispatcher.iterations):
            return state
        if not self.group.ready:
            return "starting"
        return "running" if self.dispatcher.iterations else "idle"

    def close(self) -> bool:
        """Stop the workers and end every iteration. Return False if that was done before."""
        if self.closed:
            return False
        self.closed = True
        for epoch in list(self.dispatcher.iterations):
            self.close_iteration(epoch)
        self.group.stop()
        self.group.drop_setup()
        return True


def _note_failure(task: Task, outcome: Any) -> None:
    """Note the event about a batch that has failed, if it has, to be published when it is delivered."""
    event = outcome.to_event(_clock(), task.epoch, task.number, task.indices) if outcome.failed else None
    if event is not None:
        task.failures.append(event)


def ignore_stacks(_stacks: object) -> None:
    """Take stack samples that nobody asked for."""
