"""The engine of one loader: it moves batches from the sampler through the workers to the consumer.

    consumer's thread                    the loop's thread (loop.py)              workers
    -----------------                    ---------------------------              -------
    EpochIterator draws --add-->         Dispatcher: who produces what  --task-->
    Receiver.next()     <--ready--       Dispatcher: in order           <-batch--
    commands            --request-->     WorkerGroup: start, replace, end

The loop's thread owns all state here. Public methods may be called on any thread: they put a request into the loop's
queue, and those that return something wait for the answer. Private methods and those in the section "for the loop" run
on the loop's thread, unless their docstring says otherwise. The dispatcher is pure and makes the decisions; this module
carries them out. What the consumer does while it waits is in receiver.py and long_wait.py.

A loader without workers (`num_workers=0`) has another engine (local_engine.py).

Commands (pause, restart, closing a dropped iterator) may come from any thread, even from a finalizer. Events are
published between two turns of the loop because a subscriber may call the loader.

The engine holds no reference to the `DataLoader` that owns it, so that an unreferenced loader is garbage-collected and
closed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from nbloader import events as ev
from nbloader._platform import when_forked
from nbloader._platform.descriptors import TOO_MANY_FILES
from nbloader._util.signals import raised_by_handler
from nbloader.batch import chunking
from nbloader.batch.payload import BatchOutcome
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.engine import inspect
from nbloader.engine.config import EngineConfig
from nbloader.engine.long_wait import LongWaits
from nbloader.engine.loop import Loop
from nbloader.engine.memory import MemoryWatch
from nbloader.engine.memory import notice as memory_notice
from nbloader.engine.receiver import Receiver
from nbloader.engine.silent_faults import SilentFaults
from nbloader.engine.skipped_samples import SkippedSamples
from nbloader.engine.wait_hooks import WaitCallbacks
from nbloader.engine.worker_group import Inherited, WorkerGroup, late_error_notice
from nbloader.engine.worker_output import WorkerOutput
from nbloader.errors import DatasetTransferError, LoaderClosedError, NbloaderError, WorkerStartError
from nbloader.events.failures import LoaderFailure, abbreviated, samples_failed, start_message
from nbloader.events.gauges import Gauges
from nbloader.events.stack_samples import StackCount
from nbloader.metrics.usage_probe import WorkerThread
from nbloader.sampling.epoch_plan import ChunkSpec, EpochPlan, PlannedBatch
from nbloader.scheduler.dispatcher import Cancel, Dispatcher
from nbloader.scheduler.gate import Gate
from nbloader.scheduler.prefetch import Load, Window
from nbloader.transport.zygote import ZygoteHungError
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
from nbloader.workers.registry import create_kind
from nbloader.workers.worker_view import WorkerView

_clock = time.perf_counter_ns

IDLE_TIMEOUT = 300.0
"""Seconds without a request after which a loader stops its workers. The next request starts them again."""
SUPERSEDED_TIMEOUT = 2.0
"""Seconds without a request after which a loader stops its workers if the cell that created it was run again."""
MEMORY_RELEASE_DELAY = 5.0
"""Seconds without a request, between epochs, after which idle workers release unused memory. The next epoch must
allocate it again: with 2 s, epochs of 40 batches of 38 MB separated by pauses reached 12 % of the memcpy bandwidth of
one thread instead of 50 %."""

CLOSED = "this loader is closed: create a new one"


class Engine:
    """Runs the workers of one loader, dispatches batches to them and delivers the results.

    Args:
        bus: The bus on which events are published.
        config: The configuration, which the loader derives from its arguments.
        gate: Whether the loader is paused.
    """

    def __init__(self, bus: ev.EventBus, config: EngineConfig, gate: Gate) -> None:
        self.bus = bus
        self.closed = False
        self.callbacks = WaitCallbacks()
        self.on_stacks: Callable[[Iterable[StackCount]], object] = ignore_stacks
        """Receives the stack samples that workers send. Called on the loop's thread."""
        self.silent_faults = SilentFaults()
        """Warnings that are due to the consumer."""
        self._config = config
        self._window = window = Window(
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
            self._window.expect(config.batch_size)
        self.gate = gate
        """Whether the loader is paused. The engine that replaces this one has the same gate."""
        gate.subscribe(self._on_gate)
        self._dispatcher = Dispatcher(
            window, self.gate, round_robin=config.round_robin, cancels_begun=config.concurrency > 0
        )
        self._events: collections.deque[ev.Event] = collections.deque()  # published after the turn
        self._output = WorkerOutput()
        self._loop = Loop(self)
        self._group = WorkerGroup(
            self._events.append, self._dispatcher, config, on_message=self._handle, notify=self._output.notify,
            wake_consumers=self._wake_consumers, production_ns=lambda: window.load.produce_ns,
        )  # fmt: skip
        self._waits = LongWaits(
            self._loop, self._group, self._dispatcher, self.gate, self._output,
            dataset=lambda: None if self._dataset is None else self._dataset(),
            timeout=config.timeout, restarts=config.on_timeout == "restart",
        )  # fmt: skip
        self.new_timer = self._waits.new_timer
        self.look_after = self._waits.look_after
        self._receivers: dict[int, Receiver] = {}
        """The consumers of open iterations, by epoch."""
        self._due: dict[int, Receiver] = {}  # consumers to wake at the end of this turn
        self._memory = MemoryWatch()
        self._memory_noticed = False
        self._skipped = SkippedSamples()
        self._num_workers = config.num_workers
        self._used_in = os.getpid()  # the process that has loaded a dataset last
        self._last_request = time.monotonic()
        self._memory_released = False  # whether workers have released memory since the last epoch
        self._superseded = False
        self._retired = False
        self._dataset: weakref.ref[Any] | None = None  # the dataset that was loaded last, for messages
        _engines.add(self)

    @property
    def loaded(self) -> bool:
        """Whether a dataset has been loaded that can be sent to workers."""
        return self._group.has_setup

    @property
    def in_process(self) -> bool:
        """Whether the workers are threads of this process."""
        return self._group.in_process

    @property
    def prefetches(self) -> bool:
        """Whether batches are requested before the consumer asks for them."""
        return self._window.prefetches

    def after_fork(self) -> None:
        """Forget the workers in a forked child: they belong to the parent, like the thread of the loop."""
        self._loop.after_fork()
        for receiver in self._receivers.values():
            receiver.close()
        self._receivers.clear()
        self._due.clear()
        self._dispatcher.clear()
        self._group.forget()
        self._events.clear()

    def load(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> bool:
        """Pack a dataset and functions, for new workers to receive. See `WorkerGroup.use_setup`.

        User code runs on the calling thread.

        Returns:
            Whether they differ from what was loaded before (False the first time).

        Raises:
            DatasetTransferError: The dataset or a function cannot be sent to workers.
            LoaderClosedError: The loader was closed meanwhile.
        """
        self._used_in = os.getpid()
        try:
            self._dataset = weakref.ref(dataset)
        except TypeError:  # it is a list, for example
            self._dataset = None
        while True:
            kind = self._group.kind
            setup = self._group.pack(kind, dataset, collate_fn, worker_init_fn, on_error)
            differs = self._loop.ask(self._load, kind, setup)
            if differs is not None:
                return differs

    def _load(self, kind: WorkerKind, setup: WorkerSetup) -> bool | None:
        """Load a setup that was packed for a kind of workers; return None if the kind has changed in the meantime."""
        if self.closed:
            raise LoaderClosedError(CLOSED)
        return self._group.use_setup(setup) if kind is self._group.kind else None

    # ---- for the loop -------------------------------------------------------------------------------------------

    def filenos(self) -> tuple[int, ...]:
        """See `Driven`."""
        pool = self._group.pool
        fileno = None if pool is None else pool.fileno()
        return (*self._group.leaving.filenos, *(() if fileno is None else (fileno,)))

    def seconds_to_maintenance(self) -> float | None:
        """See `Driven`."""
        due = self._seconds_to_memory_release(), self._seconds_to_stop(), self._group.leaving.seconds_left()
        return min((left for left in due if left is not None), default=None)

    def receive(self) -> None:
        """See `Driven`."""
        group = self._group
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
        while self._events:
            with contextlib.suppress(IndexError):  # another thread took it
                self.bus.publish(self._events.popleft())

    def show_output(self) -> None:
        """See `Driven`."""
        self._output.show_in_context()

    def report_failure(self, error: Exception) -> None:
        """See `Driven`."""
        self._events.append(ev.SupervisorFailed(_clock(), f"{type(error).__name__}: {error}"))

    def fail(self, error: Exception) -> None:
        """See `Driven`."""
        self._group.fatal = NbloaderError(f"the thread of the loader failed: {type(error).__name__}: {error}")
        self._group.kill()
        self._ring()

    def _assign(self) -> None:
        pool = self._group.pool
        if pool is None:
            return
        assigned = self._dispatcher.assignments()
        if not assigned:
            return
        now = _clock()
        for uid, tasks in assigned:
            for task in tasks:
                task.dispatched = now
            for task, error in pool.submit(uid, tasks):
                why = f"the indices {abbreviated(task.indices)} of batch {task.number} cannot be pickled: {error}"
                self._dispatcher.result(uid, task.epoch, task.job, LoaderFailure(DatasetTransferError(why)), now)
                self._wake_consumer(task.epoch)

    def _cancel(self, cancels: list[Cancel]) -> None:
        pool = self._group.pool
        if pool is not None:
            for cancel in cancels:
                pool.cancel(cancel.worker, cancel.epoch, cancel.jobs)

    def _wake_consumer(self, epoch: int) -> None:
        receiver = self._receivers.get(epoch)
        if receiver is not None:
            self._due[epoch] = receiver

    def _wake_consumers(self) -> None:
        self._due.update(self._receivers)

    # ---- maintenance --------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Release memory or stop the workers if the loader is idle, and kill workers that do not leave."""
        self._group.leaving.kill_stuck()
        rest = self._seconds_to_memory_release()
        if rest is not None and rest <= 0:
            self._release_memory()
        stop = self._seconds_to_stop()
        if stop is not None and stop <= 0:
            for epoch in self._dispatcher.iterations:
                self._dispatcher.park(epoch)
            self._group.retire()

    def _release_memory(self) -> None:
        if self._group.pool is not None and not self._dispatcher.iterations:
            self._memory_released = True
            self._group.pool.release_memory()

    def _seconds_to_memory_release(self) -> float | None:
        """Return the seconds until idle workers release memory; None if they have, or if an iteration is open."""
        if self._memory_released or self._dispatcher.iterations or self._group.pool is None:
            return None
        return MEMORY_RELEASE_DELAY - (time.monotonic() - self._requested())

    def _seconds_to_stop(self) -> float | None:
        """Return the seconds until the workers are stopped for lack of requests; None for never."""
        limit = SUPERSEDED_TIMEOUT if self._superseded else self._config.idle_timeout
        if limit is None or self._group.pool is None or self._waiting():
            return None
        return limit - (time.monotonic() - self._requested())

    def _requested(self) -> float:
        """Return when a consumer requested something last, `time.monotonic()`."""
        open_ones = list(self._receivers.values())
        return max(self._last_request, *(max(each.requested_at, each.taken_at) for each in open_ones), 0.0)

    def _waiting(self) -> bool:
        """Whether a consumer waits for a batch."""
        return any(receiver.awaited is not None for receiver in list(self._receivers.values()))

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
                self._output.add(message.stream, message.text)
            case StacksSampled():
                self.on_stacks(message.stacks)
            case SignSeen():
                self.silent_faults.add(message.sign)
            case _:
                self._on_worker(message)
                self._wake_consumers()

    def _on_worker(
        self,
        message: WorkerLaunched | WorkerInitialized | WorkerInitFailed | DescriptorsExhausted | PoolFailed | WorkerGone,
    ) -> None:
        """Handle a message about a worker's state."""
        group = self._group
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
        task = self._dispatcher.result(message.uid, message.epoch, message.job, outcome, _clock())
        if task is None:
            outcome.discard()
            return
        if message.failed_samples:
            whole = task if task.parent is None else task.parent.task
            whole.failures += samples_failed(
                message.failed_samples, task.epoch, task.number, task.indices, self._group.reported_id(message.uid),
                batched=self._config.spec.batched,
            )  # fmt: skip
        if not (outcome.failed or outcome.empty):
            self._group.count_produced(message.uid)
            chunks = 1 if task.parent is None else len(task.parent.chunks)
            self._window.observe(outcome.nbytes, outcome.produce_ns, chunks)
            if self._memory.due(outcome.nbytes):
                self._limit_window()
        if task.parent is None:
            _note_failure(task, outcome)
        self._wake_consumer(message.epoch)

    def _limit_window(self) -> None:
        """Limit the prefetch window to the available memory. The first time, print a notice in the cell."""
        window, memory = self._window, self._memory
        iterations = self._dispatcher.iterations.values()
        arrived = sum(state.reorder.reordering + len(state.ready) for state in iterations)
        nbytes = window.load.nbytes
        if window.limit(memory.affordable(nbytes, arrived)) and not self._memory_noticed:
            self._memory_noticed = True
            self._output.notify(memory_notice(nbytes, memory.measured, window.plan.size, window.plan.planned))

    def _join(self, chunks: ChunkSpec, batch: ChunkedBatch[BatchOutcome]) -> BatchOutcome:
        """Join the chunks of a batch, all of which have arrived."""
        collate_fn = None if chunks.collate_fn is None else seeded_collate(chunks.collate_fn, batch)
        outcome = chunking.join_chunks(batch, collate_fn)
        _note_failure(batch.task, outcome)
        return outcome

    def _on_shard_exhausted(self, message: ShardExhausted) -> None:
        self._dispatcher.exhausted(message.uid, message.epoch, message.job, _clock())
        self._wake_consumer(message.epoch)  # there may be nothing left to wait for

    def _on_shard_advanced(self, message: ShardAdvanced) -> None:
        state = self._dispatcher.iterations.get(message.epoch)
        if state is not None and state.shards is not None:
            state.shards.advance(message.shard, message.position, message.state, message.problem)

    def _notice_late_error(self) -> None:
        """Print the error of a worker's set-up in the cell if no consumer is left that would get it."""
        error = self._group.init_error
        if error is not None and all(state.parked for state in self._dispatcher.iterations.values()):
            self._output.notify(late_error_notice(error))

    # ---- the consumer: these methods run on its thread ----------------------------------------------------------

    def is_taken(self) -> bool:
        """Whether the workers belong to an open iteration: they have the notebook's state from when it began."""
        return self._group.ends_with_epoch and self._loop.ask(self._is_open)

    def _is_open(self) -> bool:
        return self._group.pool is not None and bool(self._dispatcher.iterations)

    def open_iteration(self, epoch: int, plan: EpochPlan) -> Receiver:
        """Open an iteration and return it. Other iterations are parked until their consumers request a batch again.

        Args:
            epoch: Number of the epoch.
            plan: Plan of its batches.

        Raises:
            LoaderClosedError: The loader was closed.
            WorkerStartError: The workers cannot be started.
            Exception: A worker could not be set up. The error arrived after the previous epoch had ended.
        """
        if self.closed:
            raise LoaderClosedError(CLOSED)
        self._loop.start()
        self._output.use_this_context()
        opened = self._loop.ask(self._open_iteration, epoch, plan)
        if isinstance(opened, Exception):
            raise opened
        try:
            self._start_workers()
        except BaseException:
            self.close_iteration(epoch)
            raise
        for other in _engines - {self}:
            other.yield_memory()
        return opened

    def _open_iteration(self, epoch: int, plan: EpochPlan) -> Receiver | Exception:
        if self.closed:
            raise LoaderClosedError(CLOSED)
        self._group.seed = plan.seed
        self._last_request = time.monotonic()
        self._superseded = self._memory_released = False
        if self._group.ends_with_epoch:
            self._group.restart_all()
        error = self._group.take_init_error()
        if error is not None:
            return error
        chunks = plan.chunk_spec
        state = self._dispatcher.open_iteration(
            epoch,
            in_order=self._config.in_order,
            first=plan.first,
            shards=plan.shards,
            chunk_size=0 if chunks is None else chunks.size,
            join=None if chunks is None else functools.partial(self._join, chunks),
        )
        receiver = self._receivers[epoch] = Receiver(self, state, plan, self._window, self.gate)
        self._wake_consumers()  # those of the iterations that were parked just now
        return receiver

    def _start_workers(self) -> None:
        """Start the workers that are missing, and let them inherit what they must from the calling thread.

        Raises:
            WorkerStartError: The system does not provide what they need.
        """
        inherited: Inherited | None = None
        while (request := self._loop.ask(self._group.start, inherited)) is not None:
            inherited = None
            try:
                inherited = Inherited(request.pool, request.take())
            except ZygoteHungError as error:
                setup = self._group.clean_setup()
                if setup is None:
                    raise self._start_failed(error) from error
                self._loop.ask(self._group.start_clean, setup)
            except OSError as error:
                if raised_by_handler(error):
                    raise
                if error.errno not in TOO_MANY_FILES or not self._loop.ask(self._group.end_leaving):
                    raise self._start_failed(error) from error

    def _start_failed(self, error: OSError) -> WorkerStartError:
        self._loop.ask(self._group.retire, 0)
        return WorkerStartError(start_message(0, self._num_workers, error))

    def needs_consumer(self) -> bool:
        """See `ReceiverEngine`."""
        group = self._group
        return group.pool is None or group.awaits_consumer or group.fatal is not None or group.init_error is not None

    def serve(self) -> None:
        """See `ReceiverEngine`."""
        error = self._loop.ask(self._group.take_error)
        if error is not None:
            raise error
        self._start_workers()

    def publish_failures(self, task: Task) -> None:
        """See `ReceiverEngine`."""
        for event in task.failures:
            self.bus.publish(event)
            self._output.notify(self._skipped.add(event))
        self._output.show()

    def unpark(self, epoch: int) -> None:
        """See `ReceiverEngine`."""
        self._loop.post(lambda: self._unpark(epoch))

    def _unpark(self, epoch: int) -> None:
        if epoch in self._dispatcher.iterations:
            self._dispatcher.unpark(epoch)

    def request(self, epoch: int, batches: list[PlannedBatch]) -> None:
        """See `ReceiverEngine`."""
        self._command(lambda: self._add(epoch, batches))

    def _add(self, epoch: int, batches: list[PlannedBatch]) -> None:
        state = self._dispatcher.iterations.get(epoch)
        if state is None:
            return
        if self._window.load.concurrency:  # before the policy decides how many of them a worker may hold
            for indices, _seed in batches:
                self._window.expect(len(indices) if self._config.spec.batched else 1, state.chunk_size)
        for indices, seed in batches:
            self._dispatcher.add(epoch, indices, seed)

    def drain_output(self, epoch: int) -> None:
        """Show what workers have printed so far. Called at the end of an epoch, before the cell ends.

        Args:
            epoch: Number of the epoch; all of its batches have been delivered.

        Raises:
            Exception: The exception that user code raised while a worker was set up. Other workers have produced all
                batches.
        """
        self._output.notify(self._skipped.exhausted(epoch))
        try:
            error = self._loop.ask(self._drain_output)
        finally:
            self._output.show()
        if error is not None:
            raise error

    def _drain_output(self) -> Exception | None:
        if self._group.pool is not None:
            for stream, text in self._group.pool.partial_output():
                self._output.add(stream, text)
        return self._group.take_init_error()

    # ---- commands: thread-safe ------------------------------------------------------------------------------------

    def _command(self, action: Callable[[], object]) -> None:
        """Request an action. Never waits."""
        if not self.closed:
            self._loop.post(action)

    def close_iteration(self, epoch: int) -> None:
        """End an iteration."""
        receiver = self._receivers.get(epoch)
        if receiver is not None:
            receiver.close()
        self._command(lambda: self._close_iteration(epoch))

    def _close_iteration(self, epoch: int) -> None:
        receiver = self._receivers.pop(epoch, None)
        if receiver is not None:
            self._last_request = max(self._last_request, receiver.requested_at, receiver.taken_at)
            receiver.close()
        state = self._dispatcher.iterations.get(epoch)
        closed = self._dispatcher.close_iteration(epoch)
        if state is not None and not state.parked:  # the error came before this request, and after the last batch
            self._notice_late_error()
        self._skipped.closed(epoch)
        for outcome in closed.unclaimed:
            outcome.discard()
        self._cancel(closed.cancels)
        if self._retired and not self._dispatcher.iterations:
            self._close()
        elif self._group.ends_with_epoch and not self._dispatcher.iterations:
            self._group.end_epoch()

    def restart_workers(self, ids: list[int]) -> None:
        """Restart workers. Other workers produce the batches that they held."""
        self._command(lambda: self._group.restart(ids))

    def replace_all(self, *, keep: bool = True) -> None:
        """Restart all workers with the dataset and functions that were loaded last.

        Args:
            keep: Whether to deliver the batches that have already been produced. If false, they are produced again.
        """
        if keep or self._loop.is_current:
            self._command(lambda: self._replace_all(keep=keep))
        else:  # the next batch that the consumer takes must be a new one
            self._loop.ask(self._replace_all, keep=keep)

    def _replace_all(self, *, keep: bool) -> None:
        if not keep:
            for outcome in self._dispatcher.redo():
                outcome.discard()
        self._group.restart_all()

    def announce(self, event: ev.Event) -> None:
        """Publish an event after what was requested before."""
        self._command(lambda: self._events.append(event))

    def _on_gate(self) -> None:
        self._command(lambda: None)  # a job may be assigned
        self._ring()

    def _ring(self) -> None:
        """Wake all consumers. Called on any thread."""
        for receiver in list(self._receivers.values()):
            receiver.bell.ring()

    @property
    def draws_by_worker(self) -> bool:
        """Whether random numbers may depend on the number of workers, because batches are assigned round-robin."""
        return self._dispatcher.round_robin

    def resize(self, num_workers: int, *, patient: bool = False) -> None:
        """Change the number of workers.

        Args:
            num_workers: The new number.
            patient: Whether workers that are removed may take any time for their present sample.
        """
        self._command(lambda: self._resize(num_workers, patient=patient))

    def _resize(self, num_workers: int, *, patient: bool) -> None:
        before, self._num_workers = self._num_workers, num_workers
        self._events.append(ev.WorkersResized(_clock(), before, num_workers))
        self._window.resize(num_workers)
        self._group.resize(num_workers, patient=patient)
        self._wake_consumers()  # the window may be larger

    def use_kind(self, name: str, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> None:
        """Switch to another kind of workers, even in mid-epoch.

        Batches that have been produced are delivered. The new workers produce the batches that the old workers held,
        from the same seeds. The next consumer that waits starts the new workers. User code runs on the calling thread.

        Args:
            name: Name of the new kind.
            dataset: See `WorkerKind.pack`.
            collate_fn: See `WorkerKind.pack`.
            worker_init_fn: See `WorkerKind.pack`.
            on_error: See `WorkerKind.pack`.

        Raises:
            DatasetTransferError: The dataset or a function cannot be sent to workers of this kind.
        """
        spec = dataclasses.replace(self._config.spec, kind=name)
        kind = create_kind(spec)
        setup = kind.pack(dataset, collate_fn, worker_init_fn, on_error)
        self._command(lambda: self._use_kind(dataclasses.replace(self._config, spec=spec), kind, setup))

    def _use_kind(self, config: EngineConfig, kind: WorkerKind, setup: WorkerSetup) -> None:
        self._config = config
        self._group.use_kind(config, kind, setup)
        self._wake_consumers()  # a waiting consumer starts the new workers

    def set_window(self, prefetch_factor: int, *, prefetch: int | None, adaptive: bool) -> None:
        """Change the prefetch window. For the arguments, see `EngineConfig`."""
        self._command(lambda: self._set_window(prefetch_factor, prefetch, adaptive=adaptive))

    def _set_window(self, prefetch_factor: int, prefetch: int | None, *, adaptive: bool) -> None:
        self._window.set_size(prefetch_factor, prefetch=prefetch, adaptive=adaptive)
        self._wake_consumers()

    def supersede(self) -> None:
        """Stop the workers soon, because the loader's cell was run again; immediately if no epoch is in progress."""
        self._superseded = True
        self.stop_idle_workers()

    def yield_memory(self) -> None:
        """Release memory of idle workers, because another loader begins an epoch. Never waits."""
        if self._group.pool is not None and not self._memory_released:
            self._command(self._release_memory)

    def stop_idle_workers(self) -> None:
        """Stop the workers, unless an iteration is in progress. The next iteration starts them again."""
        self._command(lambda: None if self._dispatcher.iterations else self._group.retire())

    # ---- watching -----------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerView]:
        """Return the workers in the form in which torch's `DataLoader` iterator exposes its workers."""
        return self._loop.ask(self._group.views)

    def worker_threads(self) -> tuple[WorkerThread, ...]:
        """Return the threads that load samples, in the order of worker ids."""
        return self._loop.ask(self._group.threads)

    def sample_stacks(self, first: int, count: int) -> list[StackCount]:
        """Sample the stacks of some workers. Runs on the calling thread.

        Args:
            first: Position of the first worker to sample, modulo the number of workers.
            count: Maximum number of workers to sample.

        Returns:
            The samples that are available immediately. Worker processes send theirs later, as messages.
        """
        pool = self._group.pool
        handles = [] if pool is None else list(pool.handles.values())  # copied atomically, under the GIL
        handles = [handle for handle in handles if not handle.expected]  # what those that leave produce is discarded
        chosen = [handles[(first + i) % len(handles)] for i in range(min(count, len(handles)))]
        return [sample for handle in chosen if (sample := handle.sample_stack()) is not None]

    def stack(self, worker: int) -> str:
        """Return the current Python stack of a worker.

        Raises:
            NbloaderError: The worker is not running, does not respond, or is of a kind that does not report its stack.
        """
        return self._waits.stack(worker)

    def gauges(self, state: str) -> Gauges:
        """Return the current state of the loader and its workers. Never runs user code.

        Args:
            state: Name of the state to report if there are no workers.
        """
        return self._loop.ask(self._gauges, state)

    def _gauges(self, state: str) -> Gauges:
        self._assign()  # what was requested before counts as in flight
        iterations = self._dispatcher.iterations.values()
        awaited = next(filter(None, [receiver.awaited for receiver in list(self._receivers.values())]), None)
        return Gauges(
            now=_clock(),
            state=self._state(state),
            window=self._window.plan.size,
            in_flight=sum(iteration.in_flight for iteration in iterations),
            reordering=sum(iteration.reorder.reordering for iteration in iterations),
            ready=sum(len(iteration.ready) for iteration in iterations),
            waiting_since=None if awaited is None else awaited.since,
            waiting_for=None if awaited is None else awaited.number,
            workers=tuple(self._group.gauges()),
            **self._newest_iteration(),
        )

    def _newest_iteration(self) -> dict[str, Any]:
        """Return the fields of `Gauges` that describe the newest iteration."""
        fields = inspect.newest_iteration(self._dispatcher)
        receiver = self._receivers.get(fields.get("epoch", -1))
        if receiver is not None and receiver.last is not None:
            fields["delivered"] = receiver.state.taken
            if receiver.awaited is None:
                fields["at"] = receiver.last.number
                fields["at_since"] = _clock() - round((time.monotonic() - receiver.taken_at) * 1e9)
        if fields and not fields.get("delivered"):
            fields["fetching"] = self._group.fetching()
        return fields

    def _state(self, state: str) -> str:
        if self.closed:
            return "closed"
        if self.gate.paused:
            return "paused"
        if self._group.pool is None or (self._group.ends_with_epoch and not self._dispatcher.iterations):
            return state
        if not self._group.ready:
            return "starting"
        return "running" if self._dispatcher.iterations else "idle"

    # ---- closing ------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Stop the workers and end every iteration, or wait until another thread has done so.

        On the loop's thread, in a finalizer that has interrupted a change, the close is only requested. In a forked
        child that has not used the loader yet, this is a no-op.

        Returns:
            Whether this call closed the loader or requested its close.
        """
        if self._used_in != os.getpid():
            return False
        if self._loop.in_turn:
            open_before = not self.closed
            self._command(self._close)
            return open_before
        closed = self._loop.ask(self._close)
        self._loop.close()
        return closed

    def close_soon(self) -> None:
        """Close the engine soon, since its loader was garbage-collected or uses another one. Never waits.

        A finalizer calls this, at any moment.
        """
        if self._used_in != os.getpid():
            return
        if self._loop.started:
            self._command(self._close)
        else:
            self.closed = True
            self._loop.close()

    def retire(self) -> None:
        """Close the engine when its last iteration has ended, because another engine has replaced it."""
        self._retired = True  # first: an iteration that ends meanwhile closes the engine
        if not self._dispatcher.iterations:
            self.close_soon()

    def _close(self) -> bool:
        if self.closed:
            return False
        self.closed = True
        for epoch in list(self._dispatcher.iterations):
            self._close_iteration(epoch)
        self._group.stop()
        self._group.drop_setup()
        return True


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_engines):
        engine.after_fork()


when_forked(after_in_child=_after_fork)


def _note_failure(task: Task, outcome: Any) -> None:
    """Note the event about a batch that has failed, if it has, to be published when it is delivered."""
    event = outcome.to_event(_clock(), task.epoch, task.number, task.indices) if outcome.failed else None
    if event is not None:
        task.failures.append(event)


def ignore_stacks(_stacks: object) -> None:
    """Take stack samples that nobody asked for."""
