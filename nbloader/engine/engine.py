"""The engine of one loader: it moves batches from the sampler through the workers to the consumer.

    consumer in __next__ --+
                           +--> with the lock held: receive from workers, execute commands, assign batches
    supervisor thread -----+

One lock protects all state. The consumer drives the engine while it waits for a batch. The supervisor thread drives it
while the consumer is away (supervisor.py). The dispatcher is pure and makes the decisions; this module carries them
out.

A loader without workers (`num_workers=0`) has another engine (local_engine.py).

Commands (pause, restart, closing a dropped iterator) may come from any thread, even from a finalizer. They are queued,
and the next thread that drives the engine executes them with the lock held. Events are recorded with the lock held, and
published after it is released because a subscriber may call the loader.

The engine holds no reference to the `DataLoader` that owns it, so that an unreferenced loader is garbage-collected and
closed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import threading
import time
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from nbloader import events as ev
from nbloader._util.system import current_process
from nbloader._util.wakeup import Wakeup
from nbloader.batch import chunking
from nbloader.batch.payload import BatchOutcome, BatchPayload, JoinedPayload
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.engine import inspect, timeouts
from nbloader.engine.config import EngineConfig
from nbloader.engine.fork_watch import ForkWatch
from nbloader.engine.lost_locks import LostLock, held_locks, waits_for_lock, waits_in_multiprocessing
from nbloader.engine.memory import MemoryWatch
from nbloader.engine.memory import notice as memory_notice
from nbloader.engine.silent_faults import SilentFaults
from nbloader.engine.skipped_samples import SkippedSamples
from nbloader.engine.supervisor import Supervisor
from nbloader.engine.timeouts import Due, WaitTimer
from nbloader.engine.wait_hooks import WaitCallbacks
from nbloader.engine.worker_group import WorkerGroup, late_error_notice
from nbloader.engine.worker_output import WorkerOutput
from nbloader.errors import DatasetTransferError, LoaderClosedError, LoaderTimeoutError, NbloaderError
from nbloader.events.failures import LoaderFailure, abbreviated, samples_failed
from nbloader.events.gauges import Gauges, WorkerGauge
from nbloader.events.stack_samples import StackCount
from nbloader.metrics.usage_probe import WorkerThread
from nbloader.sampling.epoch_plan import ChunkSpec, EpochPlan, PlannedBatch
from nbloader.scheduler.dispatcher import Cancel, Delay, Dispatcher, WaitPlan
from nbloader.scheduler.iteration import Delivery
from nbloader.scheduler.prefetch import Window
from nbloader.transport import stack_probe
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
)
from nbloader.workers.registry import create_kind
from nbloader.workers.status import PRODUCING
from nbloader.workers.worker_view import WorkerView

P = ParamSpec("P")
R = TypeVar("R")

_clock = time.perf_counter_ns
_new = tuple.__new__  # takes half as long as calling the class

IDLE_TIMEOUT = 300.0
"""Seconds without a request after which a loader stops its workers. The next request starts them again."""
SUPERSEDED_TIMEOUT = 2.0
"""Seconds without a request after which a loader stops its workers if the cell that created it was run again."""
MEMORY_RELEASE_DELAY = 30.0
"""Seconds without a request, between epochs, after which idle workers release unused memory. The next epoch must
allocate it again: with 2 s, epochs of 40 batches of 38 MB separated by pauses reached 12 % of the memcpy bandwidth of
one thread instead of 50 %."""
NEARBY = 0.02
"""Seconds after a delivery during which the consumer is expected to request the next batch at any moment."""


CLOSED = "this loader is closed: create a new one"
INTERRUPTED = (
    "the loader was called by a signal handler or a finalizer (__del__) that has interrupted the loader itself on this "
    "thread. Only these methods may be called there: close(), restart_workers(), pause(), resume() and step()"
)


class Awaited(NamedTuple):
    """The batch that the consumer waits for."""

    number: int
    since: int
    """When the wait began, perf_counter ns."""


class StackSamples(NamedTuple):
    """Stack samples of workers."""

    busy: bool
    """Whether at least one of the sampled workers was producing a batch."""
    stacks: list[StackCount]
    """The samples that were available immediately. Worker processes send their samples later, as messages."""


class Wait(NamedTuple):
    """How a consumer waits; determined with the lock held.

    If the workers are stopped before the consumer sleeps, the descriptor may refer to another file by then. That is
    harmless: every consumer in `_waiting` is woken after a stop, and the descriptor is only polled, never read.
    """

    plan: WaitPlan
    fileno: int | None
    """A descriptor that becomes readable when a worker has sent a message; None if there is none."""


class DelayReport(NamedTuple):
    """What delays an iteration."""

    delay: Delay
    suspect: WorkerGauge
    """The worker that delays the batch (`Delay.worker`). If there is none, a starting worker, or else any worker."""
    workers: Sequence[WorkerGauge]
    """All workers, the suspect first."""
    holds_batch: bool
    """Whether the suspect delays the batch: it holds the batch, or must produce it after other jobs."""
    leaving: bool
    """Whether other workers finish a sample before they end."""


class Engine:
    """Runs the workers of one loader, dispatches batches to them and delivers the results.

    Args:
        bus: The bus on which events are published, never with the lock held.
        config: The configuration, which the loader derives from its arguments.
    """

    def __init__(self, bus: ev.EventBus, config: EngineConfig) -> None:
        self.bus = bus
        self.closed = False
        self.lock = threading.Lock()
        self.callbacks = WaitCallbacks()
        self.on_stacks: Callable[[Iterable[StackCount]], object] = ignore_stacks
        """Receives the stack samples that workers send. Called with the lock held."""
        self.silent_faults = SilentFaults()
        """Warnings that are due to the consumer."""
        self._config = config
        self._window = window = Window(
            config.num_workers,
            prefetch_factor=config.prefetch_factor,
            prefetch=config.prefetch,
            adaptive=config.adaptive_window,
            strict=config.strict_window,
            concurrency=config.concurrency,
        )
        if config.batch_size is not None:
            self._window.expect(config.batch_size)
        self._dispatcher: Dispatcher[BatchOutcome] = Dispatcher(
            self._window, round_robin=config.round_robin, cancels_begun=config.concurrency > 0
        )
        self._events: collections.deque[ev.Event] = collections.deque()  # published after the lock is released
        self._output = WorkerOutput()
        self._group = WorkerGroup(
            self._events.append, self._dispatcher, config, on_message=self._handle, notify=self._output.notify,
            wake_consumers=self._wake_consumers, wake_supervisor=self._wake_supervisor,
            production_ns=lambda: window.produce_ns,
        )  # fmt: skip
        # Read without holding the lock: only the consumer adds batches, and a stale count merely delays a request.
        self.refill_size = self._dispatcher.refill_size
        self._commands: collections.deque[Callable[[], object]] = collections.deque()
        self._supervisor = Supervisor(self)
        self._memory = MemoryWatch()
        self._memory_noticed = False
        self._skipped = SkippedSamples()
        self._num_workers = config.num_workers
        self._owner = current_process.pid
        self._holder = 0  # the thread that holds the lock, except for the supervisor
        self._waiting: dict[int, Wakeup] = {}  # by iteration: the wake-up of a waiting consumer
        self._driving = -1  # the epoch whose consumer holds the lock
        self._awaited: Awaited | None = None
        self._last: Task | None = None  # the last batch that was delivered
        self._last_request = time.monotonic()
        self._memory_released = False  # whether workers have released memory since the last epoch
        self._superseded = False
        self._retired = False
        self._dataset: weakref.ref[Any] | None = None  # the dataset that was loaded last, for messages
        self._raised: Exception | None = None  # an error that is being raised in the consumer, with the lock held
        # Failure events by (epoch, batch number); published when the batch is delivered.
        self._failures: dict[tuple[int, int], list[ev.Event]] = {}
        self._handlers: Mapping[type, Callable[[Any], None]] = {
            BatchDone: self._on_batch_done,
            ShardExhausted: self._on_shard_exhausted,
            ShardAdvanced: self._on_shard_advanced,
            OutputText: self._on_output,
            StacksSampled: self._on_stacks_sampled,
            SignSeen: self._on_sign_seen,
            WorkerLaunched: self._on_worker(self._group.on_launched),
            WorkerInitialized: self._on_worker(self._group.on_initialized),
            WorkerInitFailed: self._on_worker(self._on_init_failed),
            DescriptorsExhausted: self._on_worker(self._group.on_descriptors_exhausted),
            PoolFailed: self._on_worker(self._group.on_pool_failed),
            WorkerGone: self._on_worker(self._group.on_gone),
        }

    @property
    def loaded(self) -> bool:
        """Whether a dataset has been loaded that can be sent to workers."""
        return self._group.has_setup

    @property
    def in_process(self) -> bool:
        """Whether the workers are threads of this process."""
        return self._config.kind.in_process

    @property
    def prefetches(self) -> bool:
        """Whether batches are requested before the consumer asks for them."""
        return self._window.prefetches

    # ---- the lock -----------------------------------------------------------------------------------------------

    def _exclusively(self, action: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an action that changes the state, on the calling thread with the lock held.

        An interrupt or an exception from a signal handler can occur between any two instructions and leave the state
        inconsistent. After any unexpected exception, all iterations and workers are ended, and the next epoch starts
        new workers.

        Raises:
            NbloaderError: The caller is a signal handler or a finalizer that has interrupted the thread that holds the
                lock.
        """
        if self._owner != current_process.pid:
            self._after_fork()
        thread = get_ident()
        if self._holder == thread and self.lock.locked():  # see `_interrupted_here`
            raise NbloaderError(INTERRUPTED)
        try:
            with self.lock:
                self._holder = thread
                try:
                    return action(*args, **kwargs)
                except BaseException as error:
                    self._driving = -1
                    expected, self._raised = self._raised, None
                    if error is expected or isinstance(error, NbloaderError):
                        raise
                    self._forget_iterations()
                    self._group.abandon()
                    self._supervisor.forget_unstarted()
                    self._wake_consumers()  # those on other threads: their iterations have ended
                    raise
                finally:
                    self._holder = 0
        finally:
            if self._events:
                self.publish_events()

    def _interrupted_here(self) -> bool:
        """Whether the caller is a signal handler or finalizer that interrupted a state change on this thread."""
        return self._holder == get_ident() and self.lock.locked()

    def publish_events(self) -> None:
        """Publish the events that were recorded with the lock held. Called after the lock is released."""
        while self._events:
            with contextlib.suppress(IndexError):  # another thread took it
                self.bus.publish(self._events.popleft())

    def _after_fork(self) -> None:
        """Reset the engine in a forked child.

        The workers belong to the parent, and the lock may be held by a thread that does not exist in the child.
        """
        self._owner = current_process.pid
        self.lock = threading.Lock()
        self._waiting.clear()
        self._commands.clear()
        self._supervisor.after_fork()
        self._forget_iterations()
        self._group.forget()

    def _forget_iterations(self) -> None:
        self._dispatcher.clear()
        self._failures.clear()
        self._skipped.clear()

    def _ensure_running(self) -> None:
        """Start the workers and the supervisor if they are not running."""
        if self.closed:
            raise LoaderClosedError(CLOSED)
        self._supervisor.ensure_running()
        if self._group.start():
            self._supervisor.wake()  # it may still be waiting for the previous workers

    def load(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> bool:
        """Pack a dataset and functions, for new workers to receive. See `WorkerGroup.use_setup`.

        User code runs without holding the lock.

        Returns:
            Whether they differ from what was loaded before (False the first time).

        Raises:
            DatasetTransferError: The dataset or a function cannot be sent to workers.
            LoaderClosedError: The loader was closed meanwhile.
        """
        try:
            self._dataset = weakref.ref(dataset)
        except TypeError:  # it is a list, for example
            self._dataset = None
        while True:
            kind = self._config.kind
            setup = self._group.pack(kind, dataset, collate_fn, worker_init_fn, on_error)
            if setup is None:
                return False
            differs = self._exclusively(self._load, kind, setup)
            if differs is not None:
                return differs

    def _load(self, kind: WorkerKind, setup: WorkerSetup) -> bool | None:
        """Load a setup that was packed for a kind of workers; return None if the kind has changed in the meantime."""
        if self.closed:
            raise LoaderClosedError(CLOSED)
        return self._group.use_setup(setup) if kind is self._config.kind else None

    # ---- one round ----------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Run one round: receive from the workers, execute commands, assign batches."""
        self._receive()
        if self._commands:
            self._execute_commands()
        self._assign()

    def _receive(self) -> None:
        handlers, group = self._handlers, self._group
        if group.pool is not None:
            for message in group.pool.poll(0):
                handlers[type(message)](message)
        if group.leaving.pools:
            for message in group.leaving.poll():
                handlers[type(message)](message)

    def _handle(self, message: Any) -> None:
        self._handlers[type(message)](message)

    def _execute_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

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

    def _cancel(self, cancels: list[Cancel]) -> None:
        pool = self._group.pool
        if pool is not None:
            for cancel in cancels:
                pool.cancel(cancel.worker, cancel.epoch, cancel.jobs)

    # ---- messages of workers --------------------------------------------------------------------------------------

    def _on_batch_done(self, message: BatchDone) -> None:
        outcome = message.outcome
        task = self._dispatcher.result(message.uid, message.epoch, message.number, outcome, _clock())
        if task is None:
            outcome.discard()
            return
        if message.failed_samples:
            failed = samples_failed(
                message.failed_samples, task.epoch, task.number, task.indices, self._group.reported_id(message.uid),
                batched=self._config.options.batched,
            )  # fmt: skip
            self._failures.setdefault((task.epoch, task.number), []).extend(failed)
        if not (outcome.failed or outcome.empty):
            self._group.count_produced(message.uid)
            chunks = 1 if task.parent is None else len(task.parent.chunks)
            self._window.observe(outcome.nbytes, outcome.produce_ns, chunks)
            if self._memory.due(outcome.nbytes):
                self._limit_window()
        self._wake_consumer(message.epoch)
        if outcome.failed and task.parent is None:
            self._record_failure(task, outcome)

    def _limit_window(self) -> None:
        """Limit the prefetch window to the available memory. The first time, print a notice in the cell."""
        window, memory = self._window, self._memory
        iterations = self._dispatcher.iterations.values()
        arrived = sum(state.reorder.reordering + state.reorder.ready for state in iterations)
        if window.limit(memory.affordable(window.nbytes, arrived)) and not self._memory_noticed:
            self._memory_noticed = True
            self._output.notify(memory_notice(window.nbytes, memory.measured, window.size, window.planned))

    def _record_failure(self, task: Task, failure: Any) -> None:
        event = failure.to_event(_clock(), task.epoch, task.number, task.indices)
        if event is not None:
            self._failures.setdefault((task.epoch, task.number), []).append(event)

    def _join(self, chunks: ChunkSpec, batch: ChunkedBatch[Any]) -> BatchOutcome:
        """Join the chunks of a batch, all of which have arrived."""
        collate_fn = None if chunks.collate_fn is None else seeded_collate(chunks.collate_fn, batch)
        outcome = chunking.join_chunks(batch, collate_fn)
        if outcome.failed:
            self._record_failure(batch.task, outcome)
        return outcome

    def _on_shard_exhausted(self, message: ShardExhausted) -> None:
        self._dispatcher.exhausted(message.uid, message.epoch, message.number, _clock())
        self._wake_consumer(message.epoch)  # there may be nothing left to wait for

    def _on_shard_advanced(self, message: ShardAdvanced) -> None:
        state = self._dispatcher.iterations.get(message.epoch)
        if state is not None and state.shards is not None:
            state.shards.advance(message.shard, message.position, message.state, message.problem)

    def _on_output(self, message: OutputText) -> None:
        self._output.add(message.stream, message.text)

    def _on_stacks_sampled(self, message: StacksSampled) -> None:
        self.on_stacks(message.stacks)

    def _on_sign_seen(self, message: SignSeen) -> None:
        self.silent_faults.add(message.sign)

    def _on_worker(self, handle: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a handler for messages about a worker's state; it also wakes all waiting consumers."""

        def on_message(message: Any) -> None:
            handle(message)
            self._wake_consumers()

        return on_message

    def _on_init_failed(self, message: WorkerInitFailed) -> None:
        self._group.on_init_failed(message)
        error = self._group.init_error
        if error is not None and all(state.parked for state in self._dispatcher.iterations.values()):
            self._output.notify(late_error_notice(error))

    def _wake_consumer(self, epoch: int) -> None:
        wakeup = self._waiting.get(epoch)  # the consumer removes it without holding the lock
        if wakeup is not None and epoch != self._driving:
            wakeup.set()

    def _wake_supervisor(self) -> None:
        self._supervisor.wake()

    def _wake_consumers(self) -> None:
        for epoch in list(self._waiting):
            self._wake_consumer(epoch)

    # ---- the consumer -------------------------------------------------------------------------------------------

    def is_taken(self) -> bool:
        """Whether the workers belong to an open iteration: they have the notebook's state from when it began."""
        return self._group.ends_with_epoch and self._exclusively(self._is_open)

    def _is_open(self) -> bool:
        self._execute_commands()  # an iteration that has ended may not be closed yet
        return self._group.pool is not None and bool(self._dispatcher.iterations)

    def open_iteration(self, epoch: int, plan: EpochPlan) -> None:
        """Open an iteration. Other iterations are parked until their consumers request a batch again.

        Args:
            epoch: Number of the epoch.
            plan: Plan of its batches.
        """
        self._exclusively(self._open_iteration, epoch, plan)

    def _open_iteration(self, epoch: int, plan: EpochPlan) -> None:
        self._group.seed = plan.seed
        self._output.use_this_context()
        self._last_request = time.monotonic()
        self._superseded = self._memory_released = False
        self._execute_commands()  # a restart requested earlier applies to this epoch
        if self._group.ends_with_epoch:
            self._group.restart_all()
        self._raise(self._group.take_init_error())  # it arrived after the previous epoch had ended
        self._ensure_running()
        chunks = plan.chunk_spec
        self._dispatcher.open_iteration(
            epoch,
            in_order=self._config.in_order,
            first=plan.first,
            shards=plan.shards,
            chunk_size=0 if chunks is None else chunks.size,
            join=None if chunks is None else functools.partial(self._join, chunks),
            on_empty=plan.delivered,
        )
        self._wake_consumers()  # those of the iterations that were parked just now

    def add(self, epoch: int, batches: Iterable[PlannedBatch], *, soon: bool = False) -> None:
        """Add batches and assign them to workers.

        Args:
            epoch: Number of the epoch.
            batches: Batches drawn from the sampler.
            soon: Whether to leave the assignment to the supervisor thread, which is woken, so that the consumer does
                not spend 0.25 ms on waking a worker.
        """
        self._exclusively(self._add, epoch, batches, soon)

    def _add(self, epoch: int, batches: Iterable[PlannedBatch], soon: bool) -> None:
        if epoch not in self._dispatcher.iterations:
            return
        if self._window.concurrency:
            batches = self._expect(epoch, list(batches))
        for indices, seed in batches:
            self._dispatcher.add(epoch, indices, seed)
        if soon:
            self._command(self._assign)
        else:
            self._assign()

    def _expect(self, epoch: int, batches: list[PlannedBatch]) -> list[PlannedBatch]:
        """Tell the policy the sizes of batches before it decides how many of them a worker may hold."""
        chunk = self._dispatcher.iterations[epoch].chunk_size
        for indices, _seed in batches:
            self._window.expect(len(indices) if self._config.options.batched else 1, chunk)
        return batches

    def next_batch(self, epoch: int, wakeup: Wakeup, refill: Callable[[], bool]) -> Delivery | None:
        """Wait for the next batch of an iteration and return it.

        Args:
            epoch: Number of the epoch.
            wakeup: Wakes the consumer.
            refill: Requests as many batches from the sampler as fit into the window; returns whether there were any.

        Returns:
            The delivery; None if no batch is outstanding.

        Raises:
            LoaderTimeoutError: The batch did not arrive within `timeout`.
            LoaderClosedError: The loader was closed meanwhile.
            WorkerStartError: The workers cannot be started.
        """
        self.callbacks.call()
        timer: WaitTimer | None = None
        since = 0
        try:
            while True:
                delivery, wait = self._exclusively(self._take, epoch, wakeup, timer is None or timer.fresh)
                if delivery is not None:
                    return delivery
                if wait is None:
                    if refill():  # the previous batches were empty
                        continue
                    return None
                plan = wait.plan
                if timer is None:
                    since = _clock()
                    timer = WaitTimer(since, timeout=self._config.timeout, first=plan.first)
                self._awaited = Awaited(plan.number, since)
                self._output.show()
                if not (plan.refill and refill()):
                    self._wait(wakeup, timer, epoch, wait)
        finally:
            self._waiting.pop(epoch, None)
            self._awaited = None
            self._output.show()

    def _take(self, epoch: int, wakeup: Wakeup, first: bool) -> tuple[Delivery | None, Wait | None]:
        """Return the next batch if it is ready; otherwise return how to wait for it.

        While the consumer waits, the thread that receives the batch wakes it. Both values are None if no batch is
        outstanding.
        """
        dispatcher = self._dispatcher
        if self._commands:  # commands issued before this request apply to the batch
            self._execute_commands()
        self.check_open(epoch)
        state = dispatcher.iterations[epoch]
        if state.parked:
            dispatcher.unpark(epoch)
        self._driving = epoch
        delivery = self._next(epoch)
        if delivery is None:
            self._raise_group_error()
            if first or self._group.pool is None:  # otherwise what ran before the consumer slept still runs
                self._ensure_running()
            self._drive()
            self.check_open(epoch)
            delivery = self._next(epoch)
            if delivery is None:
                if self._group.awaits_consumer:
                    self._ensure_running()
                self._raise_group_error()
        self._driving = -1
        self._last_request = time.monotonic()
        if delivery is not None:
            self._last = delivery.task
            reorder = state.reorder
            delivery.in_flight = dispatcher.in_flight(epoch)
            delivery.reordering, delivery.ready = reorder.reordering, reorder.ready
            return delivery, None
        if not dispatcher.outstanding(epoch):
            return None, None
        self._waiting[epoch] = wakeup
        plan, pool = dispatcher.plan_wait(epoch), self._group.pool
        return None, Wait(plan, None if pool is None else pool.fileno())

    def _next(self, epoch: int) -> Delivery | None:
        """Return the next batch that is ready and has samples; None if there is none."""
        while (delivery := self._dispatcher.take(epoch)) is not None:
            task = delivery.task
            if self._failures:
                self._report_failures(self._failures.pop((epoch, task.number), ()))
            if not delivery.outcome.empty:
                return delivery
            on_empty = self._dispatcher.iterations[epoch].on_empty
            if on_empty is not None:
                on_empty(task, 0)
            if self._dispatcher.paused:
                self._dispatcher.step()  # the step counts only for a batch that reaches the consumer
        return None

    def _report_failures(self, failures: Iterable[ev.Event]) -> None:
        """Record the failures in a batch that is being delivered."""
        for event in failures:
            self._events.append(event)
            line = self._skipped.add(event) if isinstance(event, ev.SampleFailed) else ""
            if line:
                self._output.notify(line)

    def _raise_group_error(self) -> None:
        """Raise the error that ended the workers, if there is one."""
        group = self._group
        if group.fatal is not None or group.init_error is not None:
            self._raise(group.take_error())

    def _raise(self, error: Exception | None) -> None:
        """Raise an error, if there is one, in the consumer, with the lock held."""
        if error is not None:
            self._raised = error
            raise error

    def _wait(self, wakeup: Wakeup, timer: WaitTimer, epoch: int, wait: Wait) -> None:
        """Block until a message, a wake-up or a timeout, without holding the lock."""
        plan, fileno = wait
        check = timer.check(_clock(), paused=plan.paused)
        if check.due is not None:
            self._on_due(check.due, timer, epoch)
            return
        nap, timer.fresh = plan.nap if timer.fresh else 0.0, False
        limits = [check.left, self.callbacks.interval]
        if self._group.forked and not plan.paused:
            waited = (_clock() - timer.since) / 1e9
            if timer.forks.left(waited) <= 0:
                self._look_at_forked(timer.forks, waited)
            limits.append(timer.forks.left(waited))
        limit = min((seconds for seconds in limits if seconds is not None), default=None)
        if nap:
            wakeup.pause(nap if limit is None else min(nap, limit))
        else:
            wakeup.wait(fileno, limit)
        self.callbacks.call(waiting=True)

    def _look_at_forked(self, watch: ForkWatch, waited: float) -> None:
        """Replace forked workers by clean ones, if they hang because of a lock or a thread that they do not have."""
        hung = watch.look(waited, self._group.forked)
        if hung is None:
            return
        stack = ""
        with contextlib.suppress(NbloaderError):
            stack = self.stack(hung.worker)
        if waits_in_multiprocessing(stack):
            return  # such a lock is shared by processes: it survives a fork
        where = f"in {stack_probe.place(stack)}" if stack else "while it was being set up"
        try:
            setup = self._group.clean_setup()
        except DatasetTransferError as error:
            self._output.notify(
                f"nbloader: a worker that was forked from this process hangs {where}: a lock or a thread that it waits "
                f"for does not exist in a forked process. New interpreters cannot take over: {error}\n"
            )
            return
        if setup is not None:
            self._exclusively(self._group.try_clean, setup, where)

    def _on_due(self, due: Due, timer: WaitTimer, epoch: int) -> None:
        """Act on a notice or a timeout that is due."""
        if due is Due.PAUSE_NOTICE:
            self._output.notify(timeouts.PAUSE_NOTICE_TEXT)
            return
        report = self._exclusively(self._report_delay, epoch)
        if report is None:
            return  # the iteration has just ended
        delay, suspect = report.delay, report.suspect
        stack = ""
        with contextlib.suppress(NbloaderError):
            stack = self.stack(suspect.worker)
        place = stack_probe.place(stack) if stack else ""
        lost = self._lost_lock(report, stack)
        advice = "" if lost is None else lost.advice()
        now = _clock()
        waited = (now - timer.since) / 1e9
        if due is Due.DELAY_NOTICE:
            self._output.notify(timeouts.delay_notice(delay.number, waited, suspect, now, place, advice))
            return
        timeout = self._config.timeout
        restarts = self._config.on_timeout == "restart"
        if not report.holds_batch and restarts and timeouts.still_starting(suspect, now):
            timer.since = now
            return
        message = timeouts.timeout_message(timeout, delay.number, waited, suspect, report.workers, now, stack, advice)
        if not report.holds_batch or delay.worker is None or not restarts:
            raise LoaderTimeoutError(message)
        reason = f"batch {delay.number} took longer than timeout={timeout:g} s"
        if self._exclusively(self._restart_stalled, epoch, delay, reason, LoaderTimeoutError(message)):
            self._output.notify(timeouts.restart_notice(timeout, delay.number, suspect, now, place))
        timer.since = _clock()

    def _lost_lock(self, report: DelayReport, stack: str) -> LostLock | None:
        """Return the lock that all workers wait for, if a process that has ended holds it; None if there is none.

        Args:
            report: What delays the iteration.
            stack: The stack of the suspect.
        """
        if self._config.kind.in_process or not waits_for_lock(stack) or report.leaving:
            return None  # a thread is never killed, and a worker that leaves may still release the lock
        for worker in report.workers[1:]:
            try:
                other = self.stack(worker.worker) if worker.batch is not None else stack
            except NbloaderError:
                return None
            if not waits_for_lock(other):
                return None
        dataset = None if self._dataset is None else self._dataset()
        paths = held_locks(dataset)
        return LostLock(paths) if paths or waits_in_multiprocessing(stack) else None

    def _report_delay(self, epoch: int) -> DelayReport | None:
        """Return what delays an iteration; None if the iteration has ended."""
        if epoch not in self._dispatcher.iterations:
            return None
        delay = self._dispatcher.delay(epoch)
        holder = self._group.worker_of(delay.worker)
        workers = sorted(self._group.gauges(), key=lambda g: (g.worker != holder, g.state != "starting"))
        leaving = self._group.leaving.seconds_left() is not None
        return DelayReport(delay, workers[0], workers, holds_batch=holder is not None, leaving=leaving)

    def _restart_stalled(self, epoch: int, delay: Delay, reason: str, error: Exception) -> bool:
        self._drive()
        if delay.worker is None or epoch not in self._dispatcher.iterations or self._dispatcher.delay(epoch) != delay:
            return False  # the batch arrived at the last moment
        return self._group.restart_stalled(delay.worker, epoch, delay.number, reason, error)

    def outstanding(self, epoch: int) -> bool:
        """Return whether an iteration has batches that were requested but not taken yet."""
        return self._exclusively(self._outstanding, epoch)

    def _outstanding(self, epoch: int) -> bool:
        return epoch in self._dispatcher.iterations and self._dispatcher.outstanding(epoch) > 0

    def check_open(self, epoch: int) -> None:
        """Raise if an iteration has ended.

        Raises:
            LoaderClosedError: The loader was closed, or an interrupt has ended the iteration.
        """
        if epoch not in self._dispatcher.iterations:
            raise LoaderClosedError(why_ended(closed=self.closed))

    def wait_for_source(self, epoch: int, wakeup: Wakeup) -> None:
        """Block until the wake-up is set or a callback is due.

        Raises:
            LoaderClosedError: The loader was closed, or an interrupt has ended the iteration.
        """
        self._waiting[epoch] = wakeup  # before the check: a thread that ends the iteration later sets it
        try:
            self.check_open(epoch)
            wakeup.wait(None, self.callbacks.interval)
            self.callbacks.call(waiting=True)
        finally:
            self._waiting.pop(epoch, None)

    def peek(self, epoch: int, count: int) -> list[tuple[Task, BatchPayload]]:
        """Return up to `count` of the next batches that are ready, without taking them. Never waits for a batch.

        The list ends before a batch whose chunks are joined by a `collate_fn` of the user.
        """
        return self._exclusively(self._peek, epoch, count)

    def _peek(self, epoch: int, count: int) -> list[tuple[Task, BatchPayload]]:
        self._drive()
        state = self._dispatcher.iterations.get(epoch)
        if state is None:
            return []
        ready = itertools.takewhile(_opens_without_user_code, state.reorder.peek(count))
        return [(item.task, item.outcome) for item in ready if not (item.outcome.failed or item.outcome.empty)]

    def drain_output(self, epoch: int) -> None:
        """Show what workers have printed so far. Called at the end of an epoch, before the cell ends.

        Args:
            epoch: Number of the epoch; all of its batches have been delivered.

        Raises:
            Exception: The exception that user code raised while a worker was set up. Other workers have produced all
                batches.
        """
        try:
            self._exclusively(self._drain_output, epoch)
        finally:
            self._output.show_all()

    def _drain_output(self, epoch: int) -> None:
        self._drive()
        line = self._skipped.exhausted(epoch)
        if line:
            self._output.notify(line)
        if self._group.pool is not None:
            for stream, text in self._group.pool.partial_output():
                self._output.add(stream, text)
        self._raise(self._group.take_init_error())

    # ---- commands: thread-safe ------------------------------------------------------------------------------------

    def _command(self, action: Callable[[], object]) -> None:
        """Queue a command and wake the supervisor. Never waits."""
        if not self.closed:
            self._commands.append(action)
            self._supervisor.wake()

    def close_iteration(self, epoch: int) -> None:
        """End an iteration."""
        self._command(lambda: self._close_iteration(epoch))

    def _close_iteration(self, epoch: int) -> None:
        closed = self._dispatcher.close_iteration(epoch)
        self._skipped.closed(epoch)
        for outcome in closed.unclaimed:
            outcome.discard()
        for failed_epoch, number in list(self._failures):
            if failed_epoch == epoch:
                del self._failures[failed_epoch, number]
        self._cancel(closed.cancels)
        if self._retired and not self._dispatcher.iterations:
            self._close()
        elif self._group.ends_with_epoch and not self._dispatcher.iterations:
            self._group.end_epoch()

    def check_complete(self, epoch: int, *, drawn: int, held: int) -> None:
        """End an iteration if an interrupt has lost one of its batches.

        A batch is lost if the interrupt comes while only local variables refer to the batch.

        Args:
            epoch: Number of the epoch.
            drawn: Number of the next batch to draw from the plan.
            held: Number of the last batch that the consumer or its iterator has; -1 if there is none.
        """
        state, last = self._dispatcher.iterations.get(epoch), self._last
        taken = held if last is None or last.epoch != epoch else last.number
        if state is not None and (state.added != drawn or taken != held):
            self.close_iteration(epoch)

    def restart_workers(self, ids: list[int]) -> None:
        """Restart workers. Other workers produce the batches that they held."""
        self._command(lambda: self._group.restart(ids))

    def replace_all(self, *, keep: bool = True) -> None:
        """Restart all workers with the dataset and functions that were loaded last.

        Args:
            keep: Whether to deliver the batches that have already been produced. If false, they are produced again.
        """
        self._command(lambda: self._replace_all(keep=keep))

    def _replace_all(self, *, keep: bool) -> None:
        self._receive()  # batches already sent count as produced; later commands are executed after this one
        if not keep:
            for outcome in self._dispatcher.redo():
                outcome.discard()
            self._failures.clear()
        self._group.restart_all()

    def pause(self) -> None:
        """Stop delivering and assigning batches until `resume` is called."""
        self._command(self._pause)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._command(self._resume)

    def step(self) -> None:
        """Pause the loader, and deliver one batch."""
        self._command(self._step)

    def _pause(self) -> None:
        if not self._dispatcher.paused:
            self._dispatcher.pause()
            self._events.append(ev.LoaderPaused(_clock()))
            self._wake_consumers()

    def _resume(self) -> None:
        if self._dispatcher.paused:
            self._dispatcher.resume()
            self._events.append(ev.LoaderResumed(_clock()))
            self._wake_consumers()

    def _step(self) -> None:
        self._pause()
        self._dispatcher.step()
        self._wake_consumers()

    @property
    def draws_by_worker(self) -> bool:
        """Whether random numbers may depend on the number of workers, because batches are assigned round-robin."""
        return self._dispatcher.round_robin

    def resize(self, num_workers: int) -> None:
        """Change the number of workers."""
        self._command(lambda: self._resize(num_workers))

    def _resize(self, num_workers: int) -> None:
        before, self._num_workers = self._num_workers, num_workers
        self._events.append(ev.WorkersResized(_clock(), before, num_workers))
        self._window.resize(num_workers)
        self._group.resize(num_workers)
        self._wake_consumers()  # the window may be larger

    def use_kind(self, name: str, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> None:
        """Switch to another kind of workers, even in mid-epoch.

        Batches that have been produced are delivered. The new workers produce the batches that the old workers held,
        from the same seeds. The next consumer that waits starts the new workers. Called without holding the lock.

        Args:
            name: Name of the new kind.
            dataset: See `WorkerKind.pack`.
            collate_fn: See `WorkerKind.pack`.
            worker_init_fn: See `WorkerKind.pack`.
            on_error: See `WorkerKind.pack`.

        Raises:
            DatasetTransferError: The dataset or a function cannot be sent to workers of this kind.
        """
        options = dataclasses.replace(self._config.options, kind=name)
        kind = create_kind(options)
        setup = kind.pack(dataset, collate_fn, worker_init_fn, on_error)
        self._command(lambda: self._use_kind(dataclasses.replace(self._config, options=options, kind=kind), setup))

    def _use_kind(self, config: EngineConfig, setup: WorkerSetup) -> None:
        self._receive()  # batches already sent count as produced; later commands are executed after this one
        self._config = config
        self._group.use_kind(config, setup)
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

    def stop_idle_workers(self) -> None:
        """Stop the workers, unless an iteration is in progress. The next iteration starts them again."""
        self._command(lambda: None if self._dispatcher.iterations else self._group.retire())

    # ---- watching -----------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerView]:
        """Return the workers in the form in which torch's `DataLoader` iterator exposes its workers."""
        return self._exclusively(self._group.views)

    def worker_threads(self) -> tuple[WorkerThread, ...]:
        """Return the threads that load samples, in the order of worker ids."""
        return self._exclusively(self._group.threads)

    def sample_stacks(self, first: int, count: int) -> StackSamples:
        """Sample the stacks of some workers. Called without holding the lock.

        Args:
            first: Position of the first worker to sample, modulo the number of workers.
            count: Maximum number of workers to sample.
        """
        pool = self._group.pool
        handles = [] if pool is None else list(pool.handles.values())  # copied atomically, under the GIL
        handles = [handle for handle in handles if not handle.expected]  # what those that leave produce is discarded
        stacks, busy = [], False
        for i in range(min(count, len(handles))):
            handle = handles[(first + i) % len(handles)]
            busy = busy or handle.status.state in PRODUCING
            sample = handle.sample_stack()
            if sample is not None:
                stacks.append(sample)
        return StackSamples(busy, stacks)

    def stack(self, worker: int) -> str:
        """Return the current Python stack of a worker.

        Raises:
            NbloaderError: The worker is not running, does not respond, or is of a kind that does not report its stack.
        """
        return self._exclusively(self._group.stack_request, worker)()

    def gauges(self, state: str) -> Gauges:
        """Return the current state of the loader and its workers. Never runs user code.

        Args:
            state: Name of the state to report if there are no workers.
        """
        gauges = self._exclusively(self._gauges, state)
        self._output.show_in_context()
        return gauges

    def _gauges(self, state: str) -> Gauges:
        self._drive()  # so that arrived batches count as received even while the consumer is away
        dispatcher = self._dispatcher
        iterations = dispatcher.iterations.values()
        awaited = self._awaited
        return Gauges(
            now=_clock(),
            state=self._state(state),
            window=self._window.size,
            in_flight=sum(map(dispatcher.in_flight, dispatcher.iterations)),
            reordering=sum(iteration.reorder.reordering for iteration in iterations),
            ready=sum(iteration.reorder.ready for iteration in iterations),
            waiting_since=None if awaited is None else awaited.since,
            waiting_for=None if awaited is None else awaited.number,
            workers=tuple(self._group.gauges()),
            **self._newest_iteration(),
        )

    def _newest_iteration(self) -> dict[str, Any]:
        """Return the fields of `Gauges` that describe the newest iteration."""
        fields = inspect.newest_iteration(self._dispatcher)
        last = self._last
        if last is not None and last.epoch == fields.get("epoch"):
            fields["delivered"] = self._dispatcher.iterations[last.epoch].taken
            if last.epoch not in self._waiting:
                fields["at"] = last.number
                fields["at_since"] = _clock() - round((time.monotonic() - self._last_request) * 1e9)
        if fields and not fields.get("delivered"):
            fields["fetching"] = self._group.fetching()
        return fields

    def _state(self, state: str) -> str:
        if self.closed:
            return "closed"
        if self._dispatcher.paused:
            return "paused"
        if self._group.pool is None or (self._group.ends_with_epoch and not self._dispatcher.iterations):
            return state
        if not self._group.ready:
            return "starting"
        return "running" if self._dispatcher.iterations else "idle"

    # ---- for the supervisor -----------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """See `Supervised`."""
        return self._group.pool is not None or bool(self._group.leaving.pools) or bool(self._commands)

    def has_commands(self) -> bool:
        """See `Supervised`."""
        return bool(self._commands)

    def consumer_nearby(self) -> bool:
        """See `Supervised`."""
        return bool(self._waiting) or time.monotonic() - self._last_request < NEARBY

    def filenos(self) -> tuple[int, ...]:
        """See `Supervised`."""
        pool = self._group.pool
        fileno = None if pool is None else pool.fileno()
        return (*self._group.leaving.filenos, *(() if fileno is None else (fileno,)))

    def run_round(self) -> None:
        """See `Supervised`. Run a round, and release memory or stop the workers if the loader is idle."""
        if self.closed:
            return
        self._drive()
        self._group.leaving.kill_stuck()
        rest = self._seconds_to_memory_release()
        if rest is not None and rest <= 0 and self._group.pool is not None:
            self._memory_released = True
            self._group.pool.release_memory()
        stop = self._seconds_to_stop()
        if stop is not None and stop <= 0:
            for epoch in self._dispatcher.iterations:
                self._dispatcher.park(epoch)
            self._group.retire()

    def seconds_to_maintenance(self) -> float | None:
        """See `Supervised`."""
        due = self._seconds_to_memory_release(), self._seconds_to_stop(), self._group.leaving.seconds_left()
        return min((left for left in due if left is not None), default=None)

    def _seconds_to_memory_release(self) -> float | None:
        """Return the seconds until idle workers release memory; None if they have, or if an iteration is open."""
        if self._memory_released or self._dispatcher.iterations or self._group.pool is None:
            return None
        return MEMORY_RELEASE_DELAY - (time.monotonic() - self._last_request)

    def _seconds_to_stop(self) -> float | None:
        """Return the seconds until the workers are stopped for lack of requests; None for never."""
        if self._waiting or self._group.pool is None:
            return None
        limit = SUPERSEDED_TIMEOUT if self._superseded else self._config.idle_timeout
        return None if limit is None else limit - (time.monotonic() - self._last_request)

    def report_failure(self, error: Exception) -> None:
        """See `Supervised`."""
        self._events.append(ev.SupervisorFailed(_clock(), f"{type(error).__name__}: {error}"))

    def fail(self, error: Exception) -> None:
        """See `Supervised`."""
        self._group.fatal = NbloaderError(f"the supervisor failed: {type(error).__name__}: {error}")
        self._group.kill()
        self._wake_consumers()

    def show_output(self) -> None:
        """See `Supervised`."""
        self._output.show_in_context()

    # ---- closing ------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Stop the workers and end every iteration, or wait until another thread has done so.

        In a signal handler or finalizer that has interrupted the engine on this thread, the close is only queued. In a
        forked child that has not used the loader yet, this is a no-op.

        Returns:
            Whether this call closed the loader or queued its close.
        """
        if self._owner != current_process.pid:
            return False
        if self._interrupted_here():
            open_before = not self.closed
            self._command(self._close)
            return open_before
        try:
            closed = self._exclusively(self._close)
            self._output.show_in_context()
        finally:
            if self.closed:  # otherwise an interrupt came before anything was closed
                self._supervisor.close()
        return closed

    def close_soon(self) -> None:
        """Close the engine soon, since its loader was garbage-collected or uses another one. Never waits.

        A finalizer calls this, at any moment. If there are workers, the supervisor stops them.
        """
        if self._owner != current_process.pid:
            return
        if self._group.pool is not None or self._group.leaving.pools:
            self._command(self._close)
        else:
            self.closed = True
            self._supervisor.close_if_idle()

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
        self._wake_consumers()
        return True


def ignore_stacks(_stacks: object) -> None:
    """Take stack samples that nobody asked for."""


def why_ended(*, closed: bool) -> str:
    """Return why an iteration has ended, for `LoaderClosedError`.

    Args:
        closed: Whether its loader was closed.
    """
    if closed:
        return "this loader was closed during the iteration: create a new one"
    return "this iterator was ended by an interrupt: iterate the loader again"


def _opens_without_user_code(ready: Delivery) -> bool:
    """Return whether `open` builds the batch without calling a function of the user."""
    return not (isinstance(ready.outcome, JoinedPayload) and ready.outcome.calls_user_code)
