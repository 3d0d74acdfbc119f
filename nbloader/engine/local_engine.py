"""The engine of a loader without workers (`num_workers=0`): the consumer's own thread produces each batch.

There is no window, no thread and nothing to assign: see `local_iteration.py` for how batches are produced. A debugger
works in `__getitem__`, and the user's code may call `loader.stats()` and the controls, from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from nbloader import events as ev
from nbloader.batch.task import Task
from nbloader.engine.engine import Engine
from nbloader.engine.local_iteration import LocalIteration
from nbloader.engine.receiver import why_ended
from nbloader.engine.silent_faults import SilentFaults
from nbloader.engine.skipped_samples import SkippedSamples
from nbloader.engine.supervisor import CLOSED
from nbloader.engine.wait_hooks import WaitCallbacks
from nbloader.engine.worker_output import WorkerOutput
from nbloader.errors import LoaderClosedError
from nbloader.events.gauges import Gauges
from nbloader.events.stack_samples import StackCount
from nbloader.metrics.usage_probe import WorkerThread
from nbloader.sampling.epoch_plan import EpochPlan
from nbloader.scheduler.gate import Gate
from nbloader.transport import stack_probe
from nbloader.workers.local_producer import LocalProducer
from nbloader.workers.spec import Parts, WorkerSpec

_clock = time.perf_counter_ns


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
        self.silent_faults = SilentFaults()
        """Stays empty: the faults that it looks for need several workers."""
        self.draws_by_worker = draws_by_worker
        self._spec = spec
        self._setup: Parts | None = None
        self._iterations: dict[int, LocalIteration] = {}
        self.gate = gate
        """See `Engine.gate`."""
        gate.subscribe(self._ring)
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
        old, self._setup = self._setup, Parts(dataset, collate_fn, worker_init_fn, on_error)
        return old is not None and old.identity != self._setup.identity

    def replace_all(self, *, keep: bool = True) -> None:
        """Use what was loaded last from the next batch on.

        Args:
            keep: Whether a batch that was produced and not delivered yet, because the loader is paused, is delivered.
                If false, it is produced again.
        """
        for iteration in list(self._iterations.values()):
            iteration.replace_dataset(keep=keep)

    # ---- the consumer -------------------------------------------------------------------------------------------

    def is_taken(self) -> bool:
        """Return False: any number of iterations can be open at the same time."""
        return False

    def open_iteration(self, epoch: int, plan: EpochPlan) -> LocalIteration:
        """Open an iteration and return it.

        Args:
            epoch: Number of the epoch.
            plan: Plan of its batches.

        Raises:
            LoaderClosedError: The loader was closed.
        """
        if self.closed:
            raise LoaderClosedError(CLOSED)
        iteration = self._iterations[epoch] = LocalIteration(self, epoch, plan, batched=self._spec.batched)
        return iteration

    def create_producer(self, plan: EpochPlan) -> LocalProducer:
        """See `IterationEngine`."""
        setup = self._setup
        if setup is None:
            raise LoaderClosedError(why_ended(closed=self.closed))
        return LocalProducer(setup, self._spec, plan.shards)

    def publish_failures(self, task: Task) -> None:
        """See `IterationEngine`."""
        for event in task.failures:
            self.bus.publish(event)
            self._output.notify(self._skipped.add(event))
        self._output.show()
        task.failures.clear()

    def notice(self, text: str) -> None:
        """See `IterationEngine`."""
        self._output.notify(text)
        self._output.show()

    def drain_output(self, epoch: int) -> None:
        """Print a notice if the epoch has skipped samples. Called at its end."""
        self._output.notify(self._skipped.exhausted(epoch))
        self._output.show()

    def close_iteration(self, epoch: int) -> None:
        """End an iteration."""
        iteration = self._iterations.pop(epoch, None)
        self._skipped.closed(epoch)
        if iteration is not None:
            iteration.close()
        if not self._iterations:
            self.gate.forget_steps()
            if self._retired:
                self.close()

    def announce(self, event: ev.Event) -> None:
        """Publish an event."""
        self.bus.publish(event)

    def _ring(self) -> None:
        for iteration in list(self._iterations.values()):
            iteration.bell.ring()

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

    def watch_stacks(self, on_stacks: Callable[[Iterable[StackCount]], object]) -> None:
        """Do nothing: `sample_stacks` returns all samples."""

    # ---- watching -----------------------------------------------------------------------------------------------

    def sample_stacks(self, first: int, count: int) -> list[StackCount]:  # noqa: ARG002
        """Sample the stack of the thread that produces a batch. For the arguments, see `Engine`."""
        running = (iteration.producer for iteration in list(self._iterations.values()) if iteration.running)
        producer = next(running, None)
        sample = None if producer is None else producer.sample_stack()
        return [] if sample is None else [sample]

    def stack(self, worker: int) -> str:  # noqa: ARG002 - the only one
        """Return the Python stack of the main thread."""
        return stack_probe.of_main_thread()

    def gauges(self, state: str) -> Gauges:
        """Return the current state of the loader. Never runs user code.

        Args:
            state: Name of the state to report if no iteration is open.
        """
        iterations = list(self._iterations.values())  # copied atomically, under the GIL
        awaited = next(filter(None, [iteration.awaited for iteration in iterations]), None)
        return Gauges(
            now=_clock(),
            state=self._state(state),
            window=0,
            in_flight=0,
            reordering=0,
            ready=0,
            waiting_since=None if awaited is None else awaited.since,
            waiting_for=None if awaited is None else awaited.number,
            workers=(),
            **_newest(iterations),
        )

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
        for epoch, iteration in list(self._iterations.items()):
            if iteration.producer is not None:
                iteration.producer.abandon()
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


def _newest(iterations: list[LocalIteration]) -> dict[str, Any]:
    """Return the fields of `Gauges` that describe the newest iteration."""
    if not iterations:
        return {}
    newest = max(iterations, key=lambda iteration: iteration.epoch)
    fields: dict[str, Any] = {"epoch": newest.epoch, "iterators": len(iterations), "delivered": newest.taken}
    if newest.last is not None and newest.awaited is None:
        fields.update(at=newest.last.number, at_since=newest.taken_at)
    if not newest.taken:
        task, producer = newest.task, newest.producer
        progress = None if task is None or producer is None else producer.progress(task)
        fields["fetching"] = () if progress is None else (progress,)
    return fields


AnyEngine = Engine | LocalEngine
"""The engine of a loader, with or without workers."""
