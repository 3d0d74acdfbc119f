"""Which workers there shall be, and what is done when one ends. Called with the engine's lock."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from nbloader import events as ev
from nbloader.batch.task import Task
from nbloader.engine.config import EngineConfig
from nbloader.errors import NbloaderError, WorkerDiedError, WorkerStartError
from nbloader.events.failures import Given, died_message, rebuild, start_message
from nbloader.events.gauges import WorkerGauge
from nbloader.scheduler.dispatcher import MAX_DEATHS, Dispatcher
from nbloader.transport.messages import WorkerGone, WorkerInitFailed, WorkerInitialized, WorkerLaunched, WorkerMessage
from nbloader.workers.api import Handle, Payload, WorkerPool
from nbloader.workers.worker_view import WorkerView

_clock = time.perf_counter_ns

GRACE = 0.5
"""Seconds that workers get to leave by themselves at the end."""
MAX_FAILED_STARTS = 3
"""Workers in a row that may die before they are ready."""
BY_REQUEST = "restarted by request"


class Slot:
    """One worker id and the process or thread behind it."""

    def __init__(self) -> None:
        self._handle: Handle | None = None
        self._made_before = 0
        self.exit_reason = ""
        self.failed_starts = 0

    @property
    def handle(self) -> Handle | None:
        """The process or thread that is there now."""
        return self._handle

    @handle.setter
    def handle(self, handle: Handle | None) -> None:
        self._made_before = self.made
        self._handle = handle

    @property
    def made(self) -> int:
        """Batches made by all that were there."""
        return self._made_before + (self._handle.made if self._handle is not None else 0)


class Crew:
    """The workers of one loader: started on demand, replaced when they end, ended together.

    Args:
        publish: Takes lifecycle events.
        dispatcher: Is told which workers can be given batches.
        settings: What the loader asks for.
        hear: Takes the reports of workers that are being ended.
        failed: Called when the crew cannot work any more; `fatal` says why.
    """

    def __init__(
        self,
        publish: Callable[[ev.Event], None],
        dispatcher: Dispatcher[Any],
        settings: EngineConfig,
        *,
        hear: Callable[[WorkerMessage], None],
        failed: Callable[[], None],
    ) -> None:
        self.pool: WorkerPool | None = None
        """The workers; None before the first iteration, after a long idle time and after a failure."""
        self.fatal: Exception | None = None
        """Why the last pool ended, where it failed."""
        self.handles: dict[int, Handle] = {}
        """Workers whose end was not reported yet, by their unique number."""
        self.options = settings.options
        self._publish = publish
        self._dispatcher = dispatcher
        self._slots = [Slot() for _ in range(settings.num_workers)]
        dispatcher.slots = settings.num_workers
        self._kind = settings.kind
        self._max_restarts = settings.max_restarts
        self._hear = hear
        self._failed = failed
        self._payload: Payload | None = None
        self._deaths = 0

    # ---- start --------------------------------------------------------------------------------------------------

    def load(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> bool:
        """Take what workers need. Those that run have what was loaded before until they are restarted.

        Returns:
            Whether it differs from what was loaded before (False the first time).

        Raises:
            DatasetTransferError: It cannot be given to them.
        """
        old = self._payload
        if old is not None and old.holds(dataset, collate_fn, worker_init_fn, on_error):
            return False
        payload = self._payload = self._kind.pack(dataset, collate_fn, worker_init_fn, on_error)
        return old is not None and old.identity != payload.identity

    def unload(self) -> None:
        """Let the dataset's shared memory go."""
        self._payload = None

    @property
    def loaded(self) -> bool:
        """Whether there is a dataset to send."""
        return self._payload is not None

    def start(self) -> bool:
        """Start the workers if there are none. Returns whether there were none.

        Raises:
            WorkerStartError: No process or pipe could be had.
        """
        if self.pool is not None:
            for worker, slot in enumerate(self._slots):
                if slot.handle is None and self.pool is not None:  # it died when nobody needed it
                    self._replace(worker, slot.exit_reason)
            return False
        self.fatal = None
        worker = 0
        try:
            self.pool = self._kind.make()
            for worker in range(len(self._slots)):
                self._start_worker(worker)
        except OSError as error:
            self.stop(0)
            raise WorkerStartError(start_message(worker, len(self._slots), error)) from error
        except BaseException:
            self.stop(0)
            raise
        return True

    def _start_worker(self, worker: int) -> None:
        if self.pool is None or self._payload is None:
            raise RuntimeError("a worker can be started only in a pool, and when a dataset is loaded")
        options = {**self.options, "num_workers": len(self._slots)}
        handle = self._slots[worker].handle = self.pool.start(worker, options, self._payload)
        self.handles[handle.uid] = handle

    # ---- reports ------------------------------------------------------------------------------------------------

    def handle(self, report: WorkerLaunched | WorkerInitialized | WorkerInitFailed | WorkerGone) -> None:
        """Something happened to a worker."""
        handle = self.handles.get(report.uid)
        if handle is None:
            return  # an interrupt came between its start and this
        if isinstance(report, WorkerLaunched):
            self._publish(ev.WorkerStarted(_clock(), handle.worker, handle.pid))
        elif isinstance(report, WorkerInitialized):
            if handle.expected or self.pool is None or handle.uid not in self.pool.handles:
                return  # it was ended meanwhile
            self._dispatcher.worker_ready(handle.uid, handle.worker)
            slot = self._slots[handle.worker]  # there is one: a worker that loses its place is ended by request
            slot.failed_starts = 0
            now = _clock()
            self._publish(ev.WorkerReady(now, handle.worker, handle.pid, now - handle.requested))
        elif isinstance(report, WorkerInitFailed):
            where = f"raised in worker {handle.worker} while it rebuilt the dataset or ran worker_init_fn"
            self._fail(rebuild(report.error, where, report.raised))
        else:
            del self.handles[report.uid]
            self._bury(handle, report.exitcode)

    def _bury(self, handle: Handle, exitcode: int | None) -> None:
        """A worker has ended: tell, give its batches back, put another in its place."""
        reason = BY_REQUEST if handle.expected else exit_phrase(exitcode)
        held, fatal = self._dispatcher.worker_gone(handle.uid, blame=not handle.expected)
        numbers = tuple(dict.fromkeys(task.number for task in held)) or handle.held
        tail = handle.stderr_tail
        now = _clock()
        self._publish(ev.WorkerDied(now, handle.worker, handle.pid, exitcode, reason, handle.expected, numbers, tail))
        slot = self._slots[handle.worker] if handle.worker < len(self._slots) else Slot()  # its place is gone, too
        if not handle.expected:
            slot.exit_reason = reason
            self._deaths += 1
        if fatal is not None:
            message = died_message(fatal.number, fatal.indices, MAX_DEATHS, handle.pid, exitcode, reason, tail)
            self._give_up(fatal, WorkerDiedError(message))
        if slot.handle is not handle or self.pool is None:
            return  # replaced already, or all are being ended
        slot.handle = None
        if not self._dispatcher.runs:
            return  # nobody needs it now; a kernel that shuts down ends its children, too
        slot.failed_starts += not handle.ready
        said = f"Its standard error ended with:\n{tail or '(nothing)'}"
        if slot.failed_starts >= MAX_FAILED_STARTS:
            times = f"{slot.failed_starts} times before it was ready"
            self._fail(WorkerStartError(f"worker {handle.worker} ended {times}; the last time it {reason}. {said}"))
        elif self._deaths > self._max_restarts:
            allowed = f"more than max_restarts={self._max_restarts}"
            self._fail(WorkerDiedError(f"{self._deaths} workers died, {allowed}; the last one {reason}. {said}"))
        else:
            self._replace(handle.worker, reason)

    def _replace(self, worker: int, reason: str) -> None:
        if self._start_another(worker):
            self._publish(ev.WorkerRestarted(_clock(), worker, reason))

    def _start_another(self, worker: int) -> bool:
        """Start a worker in a pool that runs. False when that failed, and the pool was ended."""
        try:
            self._start_worker(worker)
        except (OSError, MemoryError) as error:
            self._fail(WorkerStartError(start_message(worker, len(self._slots), error)))
            return False
        return True

    def _fail(self, error: Exception) -> None:
        """The pool cannot work: end it. Who waits for a batch gets the error; who asks again starts another pool."""
        self.kill()
        self.stop(0)
        self.fatal = error
        self._failed()

    # ---- restart, end -------------------------------------------------------------------------------------------

    def restart(self, ids: list[int]) -> None:
        """Replace workers at once, whatever they do; what they held is made again by others."""
        for worker in ids:
            slot = self._slots[worker] if worker < len(self._slots) else None  # or it has left meanwhile
            if slot is not None and slot.handle is not None and self.pool is not None:
                self._dismiss(slot.handle)
                slot.exit_reason = BY_REQUEST
                self._replace(worker, "request")

    def restart_late(self, uid: int, reason: str, error: Exception) -> bool:
        """Replace a worker whose batch takes too long.

        Args:
            uid: The unique number of its process.
            reason: Why, for the events.
            error: Takes the place of the batch if it was the undoing of `MAX_DEATHS` workers.

        Returns:
            Whether the batch is made again.
        """
        handle = self.pool.handles.get(uid) if self.pool is not None else None
        if handle is None or handle.expected:
            return False  # it has ended meanwhile
        fatal = self._dismiss(handle, blame=True)
        if fatal is not None:
            self._give_up(fatal, error)
        self._slots[handle.worker].exit_reason = reason
        self._replace(handle.worker, reason)
        return fatal is None

    def _give_up(self, task: Task, error: Exception) -> None:
        now = _clock()
        for freed, _outcome in self._dispatcher.fail(task, Given(error)):
            freed.in_order = now

    def _dismiss(self, handle: Handle, *, blame: bool = False) -> Task | None:
        """End a worker at once; what it held is made again by others, but for a batch that is to blame too often."""
        handle.expected = True
        held, fatal = self._dispatcher.worker_gone(handle.uid, blame=blame)
        handle.held = tuple(dict.fromkeys(task.number for task in held))
        handle.kill()
        return fatal

    def resize(self, num_workers: int) -> None:
        """Have so many workers from now on: the last ones leave, or new ones come."""
        for slot in self._slots[num_workers:]:
            if slot.handle is not None:
                self._dismiss(slot.handle)
        del self._slots[num_workers:]
        self._dispatcher.slots = num_workers
        new = range(len(self._slots), num_workers)
        self._slots += [Slot() for _ in new]
        for worker in new:
            if self.pool is not None:
                self._start_another(worker)

    def kill(self) -> None:
        """Kill all workers; `stop` clears up behind them."""
        if self.pool is not None:
            for handle in self.pool.handles.values():
                handle.expected = True
                handle.kill()

    def stop(self, grace: float = GRACE) -> None:
        """End all workers. What they held waits until the crew is started again.

        Args:
            grace: Seconds that they get to leave by themselves.
        """
        pool, self.pool = self.pool, None
        if pool is None:
            return
        for slot in self._slots:
            slot.handle = None
        for handle in list(pool.handles.values()):
            handle.expected = True
            self._dispatcher.worker_gone(handle.uid, blame=False)
        for report in pool.close(grace):
            if not isinstance(report, (WorkerInitialized, WorkerInitFailed)):
                self._hear(report)
        pool.dispose()

    def abandon(self) -> None:
        """End all workers at once, in whatever state an interrupt has left them."""
        pool, self.pool = self.pool, None
        self.handles.clear()
        for slot in self._slots:
            slot.handle = None
        if pool is not None:
            pool.abandon()

    def forget(self) -> None:
        """In a forked child: the workers are the parent's."""
        self.pool = None
        self.handles.clear()
        for slot in self._slots:
            slot.handle = None

    # ---- watching -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a worker can be given batches."""
        return any(slot.handle is not None and slot.handle.ready for slot in self._slots)

    def views(self) -> list[WorkerView]:
        """The workers that are there, as torch's iterator shows its own."""
        return [WorkerView(slot.handle) for slot in self._slots if slot.handle is not None]

    def asker(self, worker: int) -> Callable[[], str]:
        """A function that asks a worker for its stack, to be called without the lock.

        Raises:
            NbloaderError: It does not run.
        """
        slot = self._slots[worker] if worker < len(self._slots) else Slot()
        if slot.handle is None:
            raise NbloaderError(f"worker {worker} does not run now")
        return slot.handle.asker()

    def worker_of(self, uid: int | None) -> int | None:
        """The id of the worker with this unique number; None if there is none any more."""
        handle = self.pool.handles.get(uid) if self.pool is not None and uid is not None else None
        return None if handle is None else handle.worker

    def long_busy(self, limit: int) -> set[int]:
        """The unique numbers of workers that have been at one batch for more than `limit` ns."""
        since = _clock() - limit
        handles = [slot.handle for slot in self._slots if slot.handle is not None]
        return {handle.uid for handle in handles if handle.at_work_since() < since}

    def gauges(self) -> Iterator[WorkerGauge]:
        """What is known of each worker now."""
        for worker, slot in enumerate(self._slots):
            if slot.handle is None or self.pool is None:
                yield WorkerGauge(
                    worker, 0, "dead", None, _clock(), None, 0, slot.exit_reason, "", None, None, made=slot.made
                )
            else:
                held = self._dispatcher.held_by(slot.handle.uid)
                yield slot.handle.gauge(held, self._dispatcher.runs, slot.exit_reason, slot.made)


def exit_phrase(exitcode: int | None) -> str:
    """An exit code in words that can follow "it"."""
    if exitcode is None:
        return "ended for an unknown reason"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (often: out of memory)" if -exitcode == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
