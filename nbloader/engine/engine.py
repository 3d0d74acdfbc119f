"""The engine of one loader: it moves batches from the sampler through the workers to the consumer.

    consumer's thread                    the engine's thread (loop.py)            workers
    -----------------                    ---------------------------              -------
    EpochIterator draws --add-->         Dispatcher: who produces what  --task-->
    Receiver.next()     <--ready--       Dispatcher: in order           <-batch--
    commands            --request-->     WorkerGroup: start, replace, end

The engine's thread owns the state (supervisor.py). Methods here put a request into its queue, and may be called on any
thread; those that return something wait for the answer. Commands (pause, restart, closing a dropped iterator) do not
wait, so that even a finalizer may give them. What the consumer does while it waits is in receiver.py and long_wait.py.

A loader without workers (`num_workers=0`) has another engine (local_engine.py).

Events are published between two turns of the loop because a subscriber may call the loader.

The engine holds no reference to the `DataLoader` that owns it, so that an unreferenced loader is garbage-collected and
closed.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from nbloader import events as ev
from nbloader._platform import when_forked
from nbloader.batch.task import Task
from nbloader.engine.config import EngineConfig
from nbloader.engine.long_wait import LongWaits
from nbloader.engine.loop import Loop
from nbloader.engine.receiver import Receiver
from nbloader.engine.starting import pack, start_workers
from nbloader.engine.supervisor import CLOSED, Supervisor
from nbloader.engine.wait_hooks import WaitCallbacks
from nbloader.errors import LoaderClosedError
from nbloader.events.gauges import Gauges
from nbloader.events.stack_samples import StackCount
from nbloader.metrics.usage_probe import WorkerThread
from nbloader.sampling.epoch_plan import EpochPlan, PlannedBatch
from nbloader.scheduler.gate import Gate
from nbloader.workers.registry import create_kind
from nbloader.workers.worker_view import WorkerView


class Engine:
    """What any thread may ask of the workers of one loader: batches, commands, and what they are doing.

    Args:
        bus: The bus on which events are published.
        config: The configuration, which the loader derives from its arguments.
        gate: Whether the loader is paused.
    """

    def __init__(self, bus: ev.EventBus, config: EngineConfig, gate: Gate) -> None:
        self.bus = bus
        self.callbacks = WaitCallbacks()
        self.gate = gate
        """Whether the loader is paused. The engine that replaces this one has the same gate."""
        self._supervisor = supervisor = Supervisor(bus, config, gate)
        self.silent_faults = supervisor.silent_faults
        """Warnings that are due to the consumer."""
        self._loop = Loop(supervisor)
        self._group = supervisor.group
        self._output = supervisor.output
        self._waits = LongWaits(
            self._loop, self._group, supervisor.dispatcher, gate, self._output,
            dataset=lambda: None if self._dataset is None else self._dataset(),
            timeout=config.timeout, restarts=config.on_timeout == "restart",
        )  # fmt: skip
        self.new_timer = self._waits.new_timer
        self.look_after = self._waits.look_after
        self._used_in = os.getpid()  # the process that has loaded a dataset last
        self._dataset: weakref.ref[Any] | None = None  # the dataset that was loaded last, for messages
        gate.subscribe(self._on_gate)
        _engines.add(self)
        _loops.add(self._loop)

    @property
    def closed(self) -> bool:
        """Whether the loader is closed."""
        return self._supervisor.closed

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
        return self._supervisor.window.prefetches

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
            setup = pack(kind, self._group.num_workers, dataset, collate_fn, worker_init_fn, on_error)
            differs = self._loop.ask(self._supervisor.load, kind, setup)
            if differs is not None:
                return differs

    # ---- the consumer: these methods run on its thread ----------------------------------------------------------

    def is_taken(self) -> bool:
        """Whether the workers belong to an open iteration: they have the notebook's state from when it began."""
        return self._group.ends_with_epoch and self._loop.ask(self._supervisor.is_open)

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
        opened = self._loop.ask(self._supervisor.open_iteration, epoch, plan, self)
        if isinstance(opened, Exception):
            raise opened
        try:
            start_workers(self._loop, self._group)
        except BaseException:
            self.close_iteration(epoch)
            raise
        for other in _engines - {self}:
            other.yield_memory()
        return opened

    def needs_consumer(self) -> bool:
        """See `ReceiverEngine`."""
        group = self._group
        return group.pool is None or group.awaits_consumer or group.fatal is not None or group.init_error is not None

    def serve(self) -> None:
        """See `ReceiverEngine`."""
        error = self._loop.ask(self._group.take_error)
        if error is not None:
            raise error
        start_workers(self._loop, self._group)

    def publish_failures(self, task: Task) -> None:
        """See `ReceiverEngine`."""
        for event in task.failures:
            self.bus.publish(event)
            self._output.notify(self._supervisor.skipped.add(event))
        self._output.show()

    def unpark(self, epoch: int) -> None:
        """See `ReceiverEngine`."""
        self._loop.post(lambda: self._supervisor.unpark(epoch))

    def request(self, epoch: int, batches: list[PlannedBatch]) -> None:
        """See `ReceiverEngine`."""
        self._command(lambda: self._supervisor.add(epoch, batches))

    def drain_output(self, epoch: int) -> None:
        """Show what workers have printed so far. Called at the end of an epoch, before the cell ends.

        Args:
            epoch: Number of the epoch; all of its batches have been delivered.

        Raises:
            Exception: The exception that user code raised while a worker was set up. Other workers have produced all
                batches.
        """
        self._output.notify(self._supervisor.skipped.exhausted(epoch))
        try:
            error = self._loop.ask(self._supervisor.drain_output)
        finally:
            self._output.show()
        if error is not None:
            raise error

    # ---- commands: thread-safe ------------------------------------------------------------------------------------

    def _command(self, action: Callable[[], object]) -> None:
        """Request an action. Never waits."""
        if not self.closed:
            self._loop.post(action)

    def close_iteration(self, epoch: int) -> None:
        """End an iteration."""
        receiver = self._supervisor.receivers.get(epoch)
        if receiver is not None:
            receiver.close()
        self._command(lambda: self._supervisor.close_iteration(epoch))

    def restart_workers(self, ids: list[int]) -> None:
        """Restart workers. Other workers produce the batches that they held."""
        self._command(lambda: self._group.restart(ids))

    def replace_all(self, *, keep: bool = True) -> None:
        """Restart all workers with the dataset and functions that were loaded last.

        Args:
            keep: Whether to deliver the batches that have already been produced. If false, they are produced again.
        """
        if keep or self._loop.is_current:
            self._command(lambda: self._supervisor.replace_all(keep=keep))
        else:  # the next batch that the consumer takes must be a new one
            self._loop.ask(self._supervisor.replace_all, keep=keep)

    def announce(self, event: ev.Event) -> None:
        """Publish an event after what was requested before."""
        self._command(lambda: self._supervisor.events.append(event))

    def _on_gate(self) -> None:
        self._command(lambda: None)  # a job may be assigned
        self._supervisor.ring()

    @property
    def draws_by_worker(self) -> bool:
        """Whether random numbers may depend on the number of workers, because batches are assigned round-robin."""
        return self._supervisor.dispatcher.round_robin

    def resize(self, num_workers: int, *, patient: bool = False) -> None:
        """Change the number of workers.

        Args:
            num_workers: The new number.
            patient: Whether workers that are removed may take any time for their present sample.
        """
        self._command(lambda: self._supervisor.resize(num_workers, patient=patient))

    def use_kind(self, name: str, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> None:
        """Switch to another kind of workers, even in the middle of an epoch.

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
        spec = dataclasses.replace(self._supervisor.config.spec, kind=name)
        kind = create_kind(spec)
        setup = kind.pack(dataset, collate_fn, worker_init_fn, on_error)
        config = dataclasses.replace(self._supervisor.config, spec=spec)
        self._command(lambda: self._supervisor.use_kind(config, kind, setup))

    def set_window(self, prefetch_factor: int, *, prefetch: int | None, adaptive: bool) -> None:
        """Change the prefetch window. For the arguments, see `EngineConfig`."""
        self._command(lambda: self._supervisor.set_window(prefetch_factor, prefetch, adaptive=adaptive))

    def supersede(self) -> None:
        """Stop the workers soon, because the loader's cell was run again; immediately if no epoch is in progress."""
        self._supervisor.idle.superseded = True
        self.stop_idle_workers()

    def yield_memory(self) -> None:
        """Release memory of idle workers, because another loader begins an epoch. Never waits."""
        if self._group.pool is not None and not self._supervisor.idle.memory_released:
            self._command(self._supervisor.release_memory)

    def stop_idle_workers(self) -> None:
        """Stop the workers, unless an iteration is in progress. The next iteration starts them again."""
        self._command(self._supervisor.stop_idle)

    def watch_stacks(self, on_stacks: Callable[[Iterable[StackCount]], object]) -> None:
        """Choose what receives the stack samples that workers send. It is called on the engine's thread."""
        self._supervisor.on_stacks = on_stacks

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
        return self._loop.ask(self._supervisor.gauges, state)

    # ---- closing ------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Stop the workers and end every iteration, or wait until another thread has done so.

        On the engine's thread, in a finalizer that has interrupted a change, the close is only requested. In a forked
        child that has not used the loader yet, this is a no-op.

        Returns:
            Whether this call closed the loader or requested its close.
        """
        if self._used_in != os.getpid():
            return False
        if self._loop.in_turn:
            open_before = not self.closed
            self._command(self._supervisor.close)
            return open_before
        closed = self._loop.ask(self._supervisor.close)
        self._loop.close()
        return closed

    def close_soon(self) -> None:
        """Close the engine soon, since its loader was garbage-collected or uses another one. Never waits.

        A finalizer calls this, at any moment.
        """
        if self._used_in != os.getpid():
            return
        if self._loop.started:
            self._command(self._supervisor.close)
        else:
            self._supervisor.closed = True
            self._loop.close()

    def retire(self) -> None:
        """Close the engine when its last iteration has ended, because another engine has replaced it."""
        self._supervisor.retired = True  # first: an iteration that ends meanwhile closes the engine
        if not self._supervisor.dispatcher.iterations:
            self.close_soon()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_loops: weakref.WeakSet[Loop] = weakref.WeakSet()
"""Each of them is alive while its thread runs, also after its engine was collected."""


def _after_fork() -> None:
    for loop in list(_loops):
        loop.after_fork()


when_forked(after_in_child=_after_fork)  # after what the pools do, which this module imports
