"""The worker group: the workers of one loader, and what happens when one ends. Called on the engine's thread."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nbloader import events as ev
from nbloader._platform.descriptors import TOO_MANY_FILES
from nbloader.batch.task import Task
from nbloader.engine.config import EngineConfig
from nbloader.engine.leaving import LeavingWorkers
from nbloader.errors import NbloaderError, WorkerDiedError, WorkerStartError
from nbloader.events.failures import LoaderFailure, descriptors_message, died_message, start_message
from nbloader.events.gauges import FetchProgress, WorkerGauge
from nbloader.events.remote_errors import rebuild
from nbloader.metrics.usage_probe import WorkerThread
from nbloader.scheduler.dispatcher import MAX_DEATHS, Dispatcher
from nbloader.workers.api import WorkerHandle, WorkerKind, WorkerPool, WorkerSetup
from nbloader.workers.messages import (
    DescriptorsExhausted,
    PoolFailed,
    WorkerGone,
    WorkerInitFailed,
    WorkerInitialized,
    WorkerLaunched,
    WorkerMessage,
)
from nbloader.workers.registry import create_kind
from nbloader.workers.status import PRODUCING
from nbloader.workers.worker_view import WorkerView

_clock = time.perf_counter_ns

GRACE = 0.5
"""Seconds for which stopped workers may exit by themselves before they are killed."""
MAX_FAILED_STARTS = 3
"""Number of consecutive workers with the same id that die before they are ready, after which the pool fails."""
BY_REQUEST = "restarted by request"
WITH_EPOCH = "ended with the epoch"
WITH_SERVER = "ended with the process that it was started by"


class WorkerSlot:
    """A worker id, and the worker that currently has this id."""

    def __init__(self) -> None:
        self._handle: WorkerHandle | None = None
        self._produced_before = 0
        self.exit_reason = ""
        """Why the previous worker with this id ended."""
        self.failed_starts = 0

    @property
    def handle(self) -> WorkerHandle | None:
        """The current worker; None if there is none."""
        return self._handle

    @handle.setter
    def handle(self, handle: WorkerHandle | None) -> None:
        self._produced_before = self.produced
        self._handle = handle

    @property
    def produced(self) -> int:
        """Number of batches produced by workers with this id."""
        return self._produced_before + (self._handle.produced if self._handle is not None else 0)

    def empty_gauge(self, worker: int, kind: str, *, in_process: bool) -> WorkerGauge:
        """Return the state to show while there is no worker.

        Args:
            worker: The worker id.
            kind: Name of the kind of the workers.
            in_process: Whether they are threads of this process.
        """
        return WorkerGauge(
            worker=worker,
            pid=0,
            state="dead",
            batch=None,
            since=_clock(),
            sample=None,
            queued=0,
            exit_reason=self.exit_reason,
            stderr_tail="",
            cpu_percent=None,
            rss=None,
            made=self.produced,
            kind=kind,
            in_process=in_process,
        )


class InheritRequest(NamedTuple):
    """Asks the consumer to take from this process what workers inherit from it, on its own thread."""

    pool: WorkerPool
    take: Callable[[], Any]


class Inherited(NamedTuple):
    """What the consumer has taken."""

    pool: WorkerPool
    what: Any


class WorkerGroup:
    """The workers of one loader. They are started on demand, replaced when they end, and stopped together.

    Args:
        publish: Called with each lifecycle event.
        dispatcher: Is notified when a worker is ready for batches or has ended.
        config: The configuration of the engine.
        on_message: Called with each of the last messages of workers that are being stopped.
        notify: Called with a notice for the cell.
        wake_consumers: Called when the pool has failed (`fatal` says why), and when a consumer must start a worker.
        production_ns: Returns how long a batch takes to produce, ns; 0 before the first batch.
    """

    def __init__(
        self,
        publish: Callable[[ev.Event], None],
        dispatcher: Dispatcher,
        config: EngineConfig,
        *,
        on_message: Callable[[WorkerMessage], None],
        notify: Callable[[str], None],
        wake_consumers: Callable[[], None],
        production_ns: Callable[[], int],
    ) -> None:
        self.pool: WorkerPool | None = None
        """The pool of workers; None before the first iteration, after a long idle time and after a failure."""
        self.fatal: Exception | None = None
        """Why the last pool failed."""
        self.init_error: Exception | None = None
        """The exception that user code raised while a worker was set up; None if the pool failed for another reason."""
        self.handles: dict[int, WorkerHandle] = {}
        """Workers whose end has not been reported yet, by unique number."""
        self._publish = publish
        self._dispatcher = dispatcher
        self._config = config
        self.kind = create_kind(config.spec)
        """The kind of the workers."""
        self._slots = [WorkerSlot() for _ in range(config.num_workers)]
        dispatcher.slots = config.num_workers
        self._on_message = on_message
        self._notify = notify
        self._wake_consumers = wake_consumers
        self.leaving = LeavingWorkers(production_ns, self._on_leave)
        """The workers that finish a sample before they end."""
        self._hang = ""
        """Where forked workers hung, while it is not known whether clean workers do, too."""
        self.awaits_consumer = False
        """Whether a worker is missing because only a consumer can start it (`WorkerPool.can_start`)."""
        self._setup: WorkerSetup | None = None
        self._deaths = 0
        self._ended_server = ""  # the zygote or node whose end was last counted
        self.seed = 0
        """The base seed of the current epoch."""

    # ---- start --------------------------------------------------------------------------------------------------

    def use_setup(self, setup: WorkerSetup) -> bool:
        """Choose the setup that new workers receive. Running workers keep the previous setup until they are restarted.

        Returns:
            Whether the setup holds other objects than the previous one (False the first time).
        """
        old, self._setup = self._setup, setup
        if old is None or old.identity == setup.identity:
            return False
        self.init_error = None  # it came from the previous setup
        self._dispatcher.round_robin = self._config.round_robin  # until the new workers are ready
        return True

    def drop_setup(self) -> None:
        """Drop the setup, which releases the shared memory of the dataset."""
        self._setup = None

    @property
    def ends_with_epoch(self) -> bool:
        """Whether the workers end with the iteration that they were started for, as in torch."""
        return not self._config.persistent

    @property
    def num_workers(self) -> int:
        """The number of workers that the loader should have."""
        return len(self._slots)

    @property
    def has_setup(self) -> bool:
        """Whether there is a setup that can be sent to workers."""
        return self._setup is not None and self.kind.connected

    @property
    def in_process(self) -> bool:
        """Whether the workers are threads of this process."""
        return self.kind.in_process

    def start(self, inherited: Inherited | None) -> InheritRequest | None:
        """Start the workers that are missing, for a consumer that asks for it.

        Args:
            inherited: What the consumer has taken; None if it was not asked.

        Returns:
            What the consumer must take first; then nothing was started. None if all workers were started.

        Raises:
            WorkerStartError: The system did not provide a process or a pipe.
        """
        self.awaits_consumer = False
        if inherited is not None:
            if inherited.pool is self.pool:
                self.pool.inherit(inherited.what)
            else:  # the workers were ended meanwhile
                inherited.pool.reject(inherited.what)
        if self._setup is None:
            return None  # the loader was closed meanwhile
        if self.pool is not None and not self.pool.usable:
            self.retire(0)
        if self.pool is None:
            self._create_pool()
        return self._start_missing()

    def _create_pool(self) -> None:
        self.fatal = None
        try:
            self.pool = self.kind.create_pool()
        except OSError as error:
            raise self._start_failed(0, error) from error
        for slot in self._slots:
            slot.exit_reason = ""

    def _start_missing(self) -> InheritRequest | None:
        for worker, slot in enumerate(self._slots):
            if slot.handle is not None or self.pool is None:  # none: starting another one has failed
                continue
            request = self._missing()
            if request is not None:
                return request
            if slot.exit_reason:  # it died between epochs, or see `_replace`
                self._replace_now(worker, slot.exit_reason)
                continue
            try:
                self._start_worker(worker)
            except OSError as error:
                if (request := self._missing()) is not None:  # the zygote was killed just now
                    return request
                raise self._start_failed(worker, error) from error
        return None

    def _missing(self) -> InheritRequest | None:
        if self.pool is None:
            return None
        take = self.pool.missing(self._setup, self.seed)
        return None if take is None else InheritRequest(self.pool, take)

    def _start_failed(self, worker: int, error: OSError) -> WorkerStartError:
        self.retire(0)
        return WorkerStartError(start_message(worker, len(self._slots), error))

    def start_clean(self, setup: WorkerSetup) -> None:
        """Use a setup for workers that inherit nothing: forks of this process did not become ready.

        Args:
            setup: What `clean_setup` returned.
        """
        self._setup, self._hang = setup, "before it was ready"

    def _start_worker(self, worker: int) -> None:
        if self.pool is None or self._setup is None:
            raise RuntimeError("a worker can be started only in a pool, and when a dataset is loaded")
        spec = dataclasses.replace(self._config.spec, num_workers=len(self._slots), seed=self.seed)
        try:
            handle = self.pool.start(worker, spec, self._setup)
        except OSError as error:
            if error.errno not in TOO_MANY_FILES or not self.end_leaving():
                raise
            handle = self.pool.start(worker, spec, self._setup)
        self._slots[worker].handle = handle
        self.handles[handle.uid] = handle

    def end_leaving(self) -> bool:
        """End the workers that are leaving, which have open files. Return whether there were any."""
        retired = bool(self.leaving.pools)
        for message in self.leaving.close(GRACE):
            self._on_message(message)
        return (self.pool is not None and self.pool.end_leaving(GRACE)) or retired

    # ---- messages -------------------------------------------------------------------------------------------------

    def on_launched(self, message: WorkerLaunched) -> None:
        """Publish that a worker's process or thread exists."""
        handle = self.handles.get(message.uid)
        if handle is not None:  # otherwise an interrupt came between the start and this message
            self._publish(ev.WorkerStarted(_clock(), handle.worker, handle.pid))

    def on_initialized(self, message: WorkerInitialized) -> None:
        """Make a worker available for batches."""
        handle = self.handles.get(message.uid)
        if handle is None or handle.expected or self.pool is None or handle.uid not in self.pool.handles:
            return  # the worker was ended meanwhile
        if message.round_robin:
            self._dispatcher.round_robin = True
        self._dispatcher.worker_ready(handle.uid, handle.worker)
        slot = self._slots[handle.worker]  # it exists: a worker that loses its slot is ended by request
        slot.failed_starts = 0
        now = _clock()
        self._publish(ev.WorkerReady(now, handle.worker, handle.pid, now - handle.requested, handle.machine))

    def on_init_failed(self, message: WorkerInitFailed) -> None:
        """End the pool because a worker failed to rebuild the dataset or to run `worker_init_fn`: all workers would."""
        handle = self.handles.get(message.uid)
        if handle is not None and not handle.expected:  # otherwise it is being ended
            handle.expected = True  # it ends by itself, maybe in the same poll
            where = f"raised in worker {handle.worker} while it rebuilt the dataset or ran worker_init_fn"
            self.init_error = rebuild(message.error, where, message.raised)
            self._fail(self.init_error)

    def take_error(self) -> Exception | None:
        """Return the error that ended the last pool, once; None if there is none."""
        error, self.fatal, self.init_error = self.fatal, None, None
        return error

    def take_init_error(self) -> Exception | None:
        """Return `init_error`, once; None if there is none, or if a consumer has already received it.

        No consumer has received it if other workers had produced all batches before the error arrived.
        """
        return None if self.init_error is None else self.take_error()

    def on_descriptors_exhausted(self, message: DescriptorsExhausted) -> None:
        """End the pool because this process has too many open files: replacement workers would fail in the same way."""
        handle = self.handles.get(message.uid)
        if handle is not None and not handle.expected:  # otherwise it is being ended
            handle.expected = True  # the batch is not to blame
            self._fail(NbloaderError(descriptors_message(handle.worker, len(self._slots))))

    def on_pool_failed(self, message: PoolFailed) -> None:
        """End the pool because it cannot run workers."""
        handle = self.handles.get(message.uid)
        if handle is not None and not handle.expected:  # otherwise it is being ended
            self._fail(message.error)

    def on_gone(self, message: WorkerGone) -> None:
        """Requeue the batches of a worker that has ended, and replace the worker."""
        handle = self.handles.pop(message.uid, None)
        if handle is None:
            return
        exitcode = message.exitcode
        ended = WITH_SERVER if message.server else exit_phrase(exitcode)
        reason = message.reason or handle.end_reason or (BY_REQUEST if handle.expected else ended)
        self._note_loss(handle)
        held, poisoned = self._dispatcher.worker_gone(
            handle.uid,
            blame=not (handle.expected or message.server),
            suspects=handle.begun(self._dispatcher.held_by(handle.uid)),
        )
        self._dispatcher.forget(handle.uid)
        numbers = tuple(dict.fromkeys(task.number for task in held)) or handle.held
        tail = handle.stderr_tail
        now, busy_since = _clock(), handle.busy_since()
        since = int(busy_since) if numbers and busy_since < now else 0
        self._publish(
            ev.WorkerDied(
                now,
                worker=handle.worker,
                pid=handle.pid,
                exitcode=exitcode,
                reason=reason,
                expected=handle.expected,
                batches=numbers,
                stderr_tail=tail,
                since=since,
            )
        )
        slot = self._slots[handle.worker] if handle.worker < len(self._slots) else WorkerSlot()  # the slot was removed
        counts = message.server != self._ended_server or not message.server  # the workers of a server count once
        if not handle.expected:
            slot.exit_reason = reason
            self._deaths += counts
            self._ended_server = message.server or self._ended_server
        if poisoned is not None:
            message_text = died_message(
                poisoned.number,
                poisoned.indices,
                poisoned.lost_sample,
                MAX_DEATHS,
                handle.pid,
                exitcode,
                reason,
                tail,
            )
            self._dispatcher.fail(poisoned, LoaderFailure(WorkerDiedError(message_text)), now)
        if slot.handle is not handle or self.pool is None:
            return  # it has been replaced already, or all workers are being stopped
        slot.handle = None
        if not self._dispatcher.iterations:
            return  # no worker is needed now: a kernel that shuts down also ends its children
        slot.failed_starts += counts and not handle.ready
        said = f"Its standard error ended with:\n{tail or '(nothing)'}"
        if slot.failed_starts >= MAX_FAILED_STARTS:
            times = f"{slot.failed_starts} times before it was ready"
            self._fail(WorkerStartError(f"worker {handle.worker} ended {times}. The last time, it {reason}. {said}"))
        elif self._deaths > self._config.max_restarts:
            allowed = f"more than max_restarts={self._config.max_restarts} allows"
            self._fail(WorkerDiedError(f"{self._deaths} workers died, {allowed}. The last one {reason}. {said}"))
        else:
            self._replace(handle.worker, reason)

    def _replace(self, worker: int, reason: str) -> None:
        """Start a replacement worker. If this thread cannot start it, the next consumer that waits does."""
        if self.pool is None or self.pool.can_start(self._setup):
            self._replace_now(worker, reason)
            return
        self._leave_to_consumer(worker, reason)

    def _leave_to_consumer(self, worker: int, reason: str) -> None:
        slot = self._slots[worker]
        slot.handle, slot.exit_reason, self.awaits_consumer = None, reason, True
        self._wake_consumers()

    def _replace_now(self, worker: int, reason: str) -> None:
        """Start a worker in a running pool. If that fails, the pool is ended."""
        try:
            self._start_worker(worker)
        except (OSError, MemoryError) as error:
            if self.pool is not None and not self.pool.can_start(self._setup):  # the zygote was killed just now
                self._leave_to_consumer(worker, self._slots[worker].exit_reason)
            else:
                self._fail(WorkerStartError(start_message(worker, len(self._slots), error)))
        else:
            if reason:
                self._publish(ev.WorkerRestarted(_clock(), worker, reason))

    def _fail(self, error: Exception) -> None:
        """End the pool after a failure. A waiting consumer gets the error; the next request starts another pool."""
        self.retire(0)
        self.fatal = error
        self._wake_consumers()

    # ---- restart, end -------------------------------------------------------------------------------------------

    def restart(self, ids: list[int]) -> None:
        """Replace workers at once. They finish their present sample; other workers produce the batches they held."""
        for worker in ids:
            slot = self._slots[worker] if worker < len(self._slots) else None  # None: it was removed meanwhile
            if slot is not None and slot.handle is not None and self.pool is not None:
                self._dismiss(slot.handle)
                slot.exit_reason = BY_REQUEST
                self._replace(worker, "request")

    def restart_all(self) -> None:
        """Replace all workers at once, by workers that have the present state of this process if they inherit any."""
        if self.pool is not None:
            self.pool.renew()
            self.restart(list(range(len(self._slots))))

    def restart_stalled(self, uid: int, epoch: int, number: int, reason: str, error: Exception) -> bool:
        """Kill and replace a worker whose batch takes too long.

        Args:
            uid: Unique number of the worker.
            epoch: Number of the epoch that the batch belongs to.
            number: Number of the batch.
            reason: The reason, for the events.
            error: The error that replaces the batch if the batch is poisoned.

        Returns:
            Whether the worker was replaced and the batch will be produced again.
        """
        handle = self.pool.handles.get(uid) if self.pool is not None else None
        if handle is None or handle.expected:
            return False  # the worker has ended meanwhile
        held = self._dispatcher.held_by(uid)
        begun = handle.begun(held)
        if len(begun) > 1:  # it is processing other batches, too
            begun = [task for task in begun if (task.epoch, task.number) == (epoch, number)]
        poisoned = self._requeue(handle, blame=True, suspects=begun)
        handle.kill()
        if poisoned is not None:
            self._dispatcher.fail(poisoned, LoaderFailure(error), _clock())
        self._slots[handle.worker].exit_reason = reason
        self._replace(handle.worker, reason)
        return poisoned is None

    def _dismiss(self, handle: WorkerHandle, *, patient: bool = False) -> None:
        """Make a worker leave after its present sample, and requeue the batches that it held."""
        self._requeue(handle)
        self.leaving.dismiss(handle, patient=patient)

    def _on_leave(self, handle: WorkerHandle) -> None:
        self._publish(ev.WorkerLeaving(_clock(), handle.worker, handle.pid))

    def _requeue(self, handle: WorkerHandle, *, blame: bool = False, suspects: list[Task] | None = None) -> Task | None:
        """Requeue the batches that a worker held which is about to be ended. Return the poisoned batch, if any."""
        handle.expected = True
        self._note_loss(handle)
        held, poisoned = self._dispatcher.dismiss(handle.uid, blame=blame, suspects=suspects)
        handle.held = tuple(dict.fromkeys(task.number for task in held))
        return poisoned

    def _note_loss(self, handle: WorkerHandle) -> None:
        """Note, in the batch that a lost worker was producing, the sample at which it was lost."""
        task, sample = handle.current(self._dispatcher.held_by(handle.uid))
        if task is not None and sample is not None:
            task.lost_sample = sample

    def resize(self, num_workers: int, *, patient: bool = False) -> None:
        """Change the number of workers: stop those with the highest ids, or start new ones.

        Args:
            num_workers: The new number.
            patient: See `LeavingWorkers.dismiss`.
        """
        for slot in self._slots[num_workers:]:
            if slot.handle is not None:
                self._dismiss(slot.handle, patient=patient)
        del self._slots[num_workers:]
        self._dispatcher.slots = num_workers
        new = range(len(self._slots), num_workers)
        self._slots += [WorkerSlot() for _ in new]
        for worker in new:
            if self.pool is not None:
                self._replace(worker, "")

    def use_kind(self, config: EngineConfig, kind: WorkerKind, setup: WorkerSetup) -> None:
        """Switch to another kind of worker: let the current workers leave, and requeue the batches that they held."""
        self.retire(0, patient=True)
        self._config, self.kind, self._setup = config, kind, setup

    def end_epoch(self) -> None:
        """End the workers at the end of the iteration that they were started for."""
        if self.pool is None:
            return
        for handle in list(self.pool.handles.values()):
            handle.end_reason = handle.end_reason or WITH_EPOCH
        if not self.kind.keeps_pool(self._setup):
            self.retire(GRACE if self.in_process else 0)  # the next epoch need not wait for the end of processes
            return
        for slot in self._slots:
            if slot.handle is not None:
                self._dismiss(slot.handle)
                slot.handle, slot.exit_reason = None, ""

    def kill(self) -> None:
        """Kill all workers. Call `stop` afterwards to clean up."""
        if self.pool is not None:
            for handle in list(self.pool.handles.values()):
                handle.expected = True
                handle.kill()

    def retire(self, grace: float = GRACE, *, patient: bool = False) -> None:
        """Let all workers leave after their present sample. The batches that they held wait until the next start.

        Args:
            grace: Seconds to wait for their end. After that, the group can be started again while they are leaving.
            patient: See `LeavingWorkers.dismiss`.
        """
        pool = self._drop_pool()
        for message in [] if pool is None else self.leaving.retire(pool, grace, patient=patient):
            self._on_message(message)

    def stop(self) -> None:
        """End all workers, also those that are leaving."""
        self._drop_pool()
        for message in self.leaving.close(GRACE):
            self._on_message(message)

    def _drop_pool(self) -> WorkerPool | None:
        """Pass the pool on to `leaving`, requeue the batches that its workers held, and return it."""
        pool = self.pool
        if pool is not None:
            self.leaving.pools.append(pool)  # first: an interrupt finds it there
            for slot in self._slots:
                slot.handle = None
            for handle in list(pool.handles.values()):
                handle.expected = True
                self._note_loss(handle)
                self._dispatcher.dismiss(handle.uid)
            self.pool = None
        return pool

    def forget(self) -> None:
        """Forget all workers without ending them. In a forked child, the workers belong to the parent."""
        self.pool = None
        self.leaving.forget()
        self.handles.clear()
        for slot in self._slots:
            slot.handle = None

    # ---- forked workers that hang -----------------------------------------------------------------------------------

    @property
    def forked(self) -> list[WorkerHandle]:
        """The workers, if they are forked from this process; otherwise an empty list. Any thread may ask."""
        inherits = self.pool is not None and self.kind.inherits(self._setup)
        return self._present if inherits else []

    def clean_setup(self) -> WorkerSetup | None:
        """Return the setup for workers that inherit nothing. Not called on the engine's thread: user code runs.

        Raises:
            DatasetTransferError: The dataset or a function cannot be sent to such workers.
        """
        return self.kind.clean(self._setup)

    def try_clean(self, setup: WorkerSetup, where: str) -> None:
        """Replace forked workers that hang by clean ones. If these deliver, the loader changes to them.

        Args:
            setup: What `clean_setup` returned.
            where: Where the workers hang.
        """
        hung = self.forked
        if self.pool is not None and hung:
            self._setup, self._hang = setup, where
            for handle in hung:
                self._requeue(handle)
                handle.kill()
                self._slots[handle.worker].exit_reason = f"hung {where}"
                self._replace(handle.worker, "a hang after a fork")

    def _change_to_clean(self) -> None:
        """Use clean workers from now on: one has delivered a batch where forked ones hung."""
        where, self._hang = self._hang, ""
        self.kind.stop_inheriting()
        self._notify(
            f"nbloader: a worker that was forked from this process hung {where}, because a lock or a thread that it "
            "waited for does not exist in a forked process. Workers started in new interpreters do deliver batches, so "
            'this loader uses them from now on. Pass multiprocessing_context="forkserver" to start with them.\n'
        )

    # ---- watching -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a worker can be given batches. Any thread may ask."""
        return any(handle.ready for handle in self._present)

    @property
    def _present(self) -> list[WorkerHandle]:
        """The workers that exist. Any thread may ask: each slot is read once."""
        return [handle for slot in self._slots if (handle := slot.handle) is not None]

    def views(self) -> list[WorkerView]:
        """Return the running workers in the form in which torch's `DataLoader` iterator exposes its workers."""
        return [WorkerView(handle) for handle in self._present]

    def stack_request(self, worker: int) -> Callable[[], str]:
        """Return a function that requests a worker's stack. It waits, and is not called on the engine's thread.

        Raises:
            NbloaderError: The worker is not running.
        """
        slot = self._slots[worker] if worker < len(self._slots) else WorkerSlot()
        if slot.handle is None:
            raise NbloaderError(f"worker {worker} is not running now")
        return slot.handle.stack_request()

    def reported_id(self, uid: int) -> int:
        """Return the worker id to use in events; -1 if the worker's end has been reported."""
        handle = self.handles.get(uid)
        return -1 if handle is None else handle.worker

    def count_produced(self, uid: int) -> None:
        """Count a batch from this worker, unless an earlier message of the same poll has stopped the group."""
        handle = self.handles.get(uid)
        if handle is not None:
            handle.produced += 1
            if self._hang:
                self._change_to_clean()

    def worker_of(self, uid: int | None) -> int | None:
        """Return the id of the worker with this unique number; None if it has ended, or if `uid` is None."""
        handle = self.pool.handles.get(uid) if self.pool is not None and uid is not None else None
        return None if handle is None else handle.worker

    def threads(self) -> tuple[WorkerThread, ...]:
        """Return the threads that load samples, in the order of worker ids."""
        return tuple(
            [WorkerThread(h.pid, h.native_id, h.status.state in PRODUCING) for h in self._present if h.native_id]
        )

    def fetching(self) -> tuple[FetchProgress, ...]:
        """Return the progress of each worker that is fetching samples."""
        handles = [] if self.pool is None else [handle for handle in self.pool.handles.values() if not handle.expected]
        found = [handle.fetch_progress(self._dispatcher.held_by(handle.uid)) for handle in handles]
        return tuple([progress for progress in found if progress is not None])

    def gauges(self) -> Iterator[WorkerGauge]:
        """Yield the current state of each worker."""
        for worker, slot in enumerate(self._slots):
            if slot.handle is None or self.pool is None:
                yield slot.empty_gauge(worker, self._config.spec.kind, in_process=self.in_process)
            else:
                held = self._dispatcher.held_by(slot.handle.uid)
                yield slot.handle.gauge(held, self._dispatcher.iterations, slot.exit_reason, slot.produced)


def late_error_notice(error: Exception) -> str:
    """Return the notice for a worker error that no consumer got: other workers produced all batches that it took."""
    return (
        f"nbloader: a worker failed while it rebuilt the dataset or ran worker_init_fn: {type(error).__name__}: "
        f"{error}. Other workers had produced all batches that were taken. The next epoch raises the error.\n"
    )


def exit_phrase(exitcode: int | None) -> str:
    """Describe an exit code as a phrase that can follow "it"."""
    if exitcode is None:
        return "ended for an unknown reason"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (often because memory ran out)" if -exitcode == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
