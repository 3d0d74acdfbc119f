"""Worker threads: the same reports as of worker processes (pool.py), from threads of the notebook's own process.

Nothing is pickled or copied: workers use the dataset itself, and a batch is handed over as it is. The interpreter lets
one thread at a time run Python code, so they are for datasets that wait (files, networks) or that spend their time in
native code which lets other threads run (image decoding, decompression, NumPy on large arrays).

A thread cannot be ended from outside. One that is to be replaced is left alone: it is a daemon, whatever it makes is
refused, and it ends as soon as the call returns that it is in.
"""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nbloader._util.wakeup import Wakeup
from nbloader.batch.chunk_arena import Together
from nbloader.batch.payload import LocalPayload
from nbloader.batch.task import Task
from nbloader.errors import DatasetTransferError
from nbloader.events.failures import EmptyBatch, WorkerFailure
from nbloader.events.remote_errors import describe, user_traceback
from nbloader.sampling.shard_plan import IterableOptions
from nbloader.transport import stack_probe
from nbloader.transport.messages import (
    BatchDone,
    OutputText,
    ShardAdvanced,
    ShardExhausted,
    WorkerGone,
    WorkerInitFailed,
    WorkerInitialized,
    WorkerLaunched,
    WorkerMessage,
)
from nbloader.workers.api import Handle
from nbloader.workers.batch_builder import BatchBuilder
from nbloader.workers.iterable_fetcher import ExhaustedError, IterableFetcher
from nbloader.workers.status import LocalStatus, WorkerAbandonedError, WorkerState
from nbloader.workers.thread_rng import ThreadContext, WorkerInfo

_clock = time.perf_counter_ns

JOIN = 1.0
"""Seconds to wait for a thread that has said that it ends: it has nothing left to do."""


class Shared(NamedTuple):
    """What worker threads are given: the things themselves."""

    dataset: Any
    collate_fn: Any
    worker_init_fn: Any
    on_error: Any

    @property
    def identity(self) -> tuple[int, ...]:
        """Equal where workers have what they would be given."""
        return tuple(map(id, self))

    def holds(self, *parts: Any) -> bool:
        """Whether these are the same things."""
        return self.identity == tuple(map(id, parts))


@dataclass(frozen=True, slots=True)
class Threads:
    """Makes pools of threads.

    Args:
        output: "torch" or "numpy": what the arrays of a batch become.
        sharded: Whether each thread reads a copy of the dataset, which is an iterable one.
    """

    output: str
    sharded: bool

    def pack(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> Shared:
        """Take what workers need.

        Raises:
            DatasetTransferError: Each needs a copy of the dataset, and it cannot be copied.
        """
        if self.sharded:
            try:
                copy.copy(dataset)
            except Exception as error:
                raise DatasetTransferError(
                    f"dataset ({type(dataset).__name__}) cannot be given to worker threads: each iterates a copy of "
                    f"its own, and copy.copy(dataset) raises {type(error).__name__}: {error}. Give an object whose "
                    "__iter__ begins anew, or use num_workers=0 (with prefetch=2 one thread reads ahead)"
                ) from error
        return Shared(dataset, collate_fn, worker_init_fn, on_error)

    def make(self) -> ThreadPool:
        """A pool without threads."""
        return ThreadPool(self.output)


class ThreadHandle(Handle):
    """One worker thread."""

    def __init__(self, worker: int, outbox: Outbox) -> None:
        self.progress = LocalStatus(os.getpid())
        super().__init__(worker, self.progress)
        self.exists(os.getpid())
        self.killed = False
        self.thread: threading.Thread
        self.tasks: queue.SimpleQueue[Task | int | None] = queue.SimpleQueue()
        """What to do: a task, a run whose iterators to forget, or None for the end."""
        self.unbegun: set[tuple[int, int]] = set()
        """(run, number) of the tasks that it was given and has not begun; one that is not in here was cancelled."""
        self.tail = ""
        self._outbox = outbox

    @property
    def stderr_tail(self) -> str:
        """The traceback of what ended it."""
        return self.tail

    def asker(self) -> Callable[[], str]:
        """See `Handle.asker`."""
        return lambda: stack_probe.of_thread(self.thread.ident)

    def leave(self) -> None:
        """Have it end when it has finished what it is at."""
        self.unbegun.clear()
        self.tasks.put(None)

    def kill(self) -> None:
        """Hear no more of it, and have it end with the sample it is at."""
        if self.killed:
            return
        self.killed = True
        self.leave()
        self.progress.abandon()
        self._outbox.put(WorkerGone(self.uid, None))


class Outbox:
    """What threads have to report, and a descriptor that is readable while there is something."""

    def __init__(self) -> None:
        self._reports: list[WorkerMessage] = []
        self._waker = Wakeup()
        self._woken = False
        self._lock = threading.Lock()
        """Held while `_woken` and whether the descriptor is readable may differ."""
        self.fileno = self._waker.fileno

    def put(self, report: WorkerMessage) -> None:
        """Add a report, from any thread."""
        with self._lock:
            self._reports.append(report)
            if not self._woken:  # one system call for many reports
                self._woken = True
                self._waker.set()

    def take(self, timeout: float | None) -> list[WorkerMessage]:
        """Take all reports; waits for one."""
        if timeout != 0 and not self._woken:
            self._waker.wait(None, timeout)
        with self._lock:
            if not self._woken:
                return []
            self._woken = False
            self._waker.clear()
            reports, self._reports = self._reports, []
        return reports

    def close(self) -> None:
        """Nobody listens any more."""
        self._waker.close()


class ThreadPool:
    """The worker threads of one loader.

    Args:
        output: "torch" or "numpy": what the arrays of a batch become.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self._outbox = Outbox()
        self.handles: dict[int, ThreadHandle] = {}
        """Threads that have not ended, by their unique number."""

    def fileno(self, uid: int | None = None) -> int:  # noqa: ARG002
        """See `WorkerPool`: there is one for all."""
        return self._outbox.fileno()

    def start(self, worker: int, options: dict[str, Any], payload: Shared) -> ThreadHandle:
        """Start a worker thread.

        Args:
            worker: Its id.
            options: Fields of `bootstrap.InitMessage`.
            payload: The dataset and functions.

        Raises:
            OSError: No thread could be had.
        """
        handle = ThreadHandle(worker, self._outbox)
        handle.thread = threading.Thread(
            target=_live, args=(handle, options, payload, self._outbox), name=f"nbloader-worker-{worker}", daemon=True
        )
        self.handles[handle.uid] = handle
        self._outbox.put(WorkerLaunched(handle.uid))
        try:
            handle.thread.start()
        except RuntimeError as error:
            del self.handles[handle.uid]
            handle.end(None)
            raise OSError(f"no thread could be started beside {threading.active_count()}: {error}") from error
        return handle

    def give(self, uid: int, tasks: Sequence[Task]) -> list[tuple[Task, Exception]]:
        """Have a worker make batches, one after the other. Nothing is pickled, so none is refused."""
        handle = self.handles[uid]
        for task in tasks:
            whole = task.whole
            if whole is not None and not whole.begun:
                whole.begun = True
                whole.place = Together(len(whole.task.indices), whole.size, whole.pieces[0].job, self._output)
            handle.unbegun.add((task.run, task.job))
            handle.tasks.put(task)
        return []

    def learn(self, parcel: Any) -> None:
        """Nothing to learn: threads share all memory."""

    def rest(self) -> None:
        """Nothing to give back: what threads make is used once."""

    def cancel(self, uid: int, run: int, numbers: tuple[int, ...] | None) -> None:
        """Have a worker forget batches that it was given and has not begun; None: the whole run."""
        if uid in self.handles:
            handle = self.handles[uid]
            if numbers is None:
                numbers = tuple(number for of_run, number in list(handle.unbegun) if of_run == run)
                handle.tasks.put(run)
                for number in numbers:  # one of them counts as begun and is waited for
                    self._outbox.put(ShardExhausted(handle.uid, run, number))
            handle.unbegun.difference_update((run, number) for number in numbers)

    def poll(self, timeout: float | None) -> list[WorkerMessage]:
        """Wait until something happens, and tell what.

        Args:
            timeout: Seconds; 0 does not wait, None waits for ever.
        """
        reports = []
        waiting = self._outbox.take(timeout)
        received = _clock()
        for report in waiting:
            handle = self.handles.get(report.uid)
            if handle is None or (handle.killed and not isinstance(report, WorkerGone)):
                continue  # it was given up
            if isinstance(report, WorkerInitialized):
                handle.ready = True
            elif isinstance(report, BatchDone) and isinstance(report.outcome, LocalPayload):
                report.outcome.received = received
            elif isinstance(report, WorkerGone):
                handle.end(report.exitcode)
                del self.handles[handle.uid]
            reports.append(report)
        return reports

    def partial_output(self) -> list[tuple[str, str]]:
        """None: what threads write is in the notebook at once."""
        return []

    def close(self, grace: float) -> list[WorkerMessage]:
        """End all workers: those that do not within `grace` seconds are given up.

        Returns:
            What there was to report meanwhile.
        """
        reports: list[WorkerMessage] = []
        leaving = list(self.handles.values())
        for handle in leaving:
            handle.leave()
        deadline = time.monotonic() + grace
        while self.handles:
            left = deadline - time.monotonic()
            if left <= 0:
                for handle in self.handles.values():
                    handle.kill()
            reports += self.poll(max(0.0, left))
        for handle in leaving:
            if not handle.killed:
                handle.thread.join(JOIN)
        return reports

    def abandon(self) -> None:
        """Give up all workers, in whatever state an interrupt has left them."""
        for handle in self.handles.values():
            handle.end(None)
            handle.kill()
        self.handles.clear()
        self.dispose()

    def dispose(self) -> None:
        """Close what is left when no worker is."""
        self._outbox.close()


# ---- in the thread ------------------------------------------------------------------------------------------------


def _live(handle: ThreadHandle, options: dict[str, Any], shared: Shared, outbox: Outbox) -> None:
    """The life of a worker thread. As a process it ends by `sys.exit()` and by what is no `Exception`."""
    code = 0
    try:
        streaming: IterableOptions | None = options["streaming"]
        own = shared
        if streaming is not None and not streaming.alone:  # `worker_init_fn` may set up its shard in it
            own = shared._replace(dataset=copy.copy(shared.dataset))
        seed = options["seed"] + handle.worker
        with ThreadContext(WorkerInfo(handle.worker, options["num_workers"], seed, own.dataset)) as context:
            context.seed(seed)
            if _settle(handle, own, context, outbox):
                maker = _make_ready(handle, options, own, shared.dataset, context, outbox)
                _work(handle, maker, context, outbox)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # noqa: BLE001 - the end of this worker, as it would be of a process
        code = 1
        handle.tail = describe(error, by_value=False).traceback
        outbox.put(OutputText(handle.uid, "stderr", handle.tail))
    outbox.put(WorkerGone(handle.uid, code))


def _settle(handle: ThreadHandle, own: Shared, context: ThreadContext, outbox: Outbox) -> bool:
    """Get ready. False when that failed, which has been reported."""
    if own.worker_init_fn is not None:
        try:
            with context.torch_mode():
                own.worker_init_fn(handle.worker)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises goes to the consumer
            raised = error.with_traceback(user_traceback(error))
            outbox.put(WorkerInitFailed(handle.uid, describe(error, by_value=False), raised))
            return False
    outbox.put(WorkerInitialized(handle.uid))
    return True


def _make_ready(
    handle: ThreadHandle, options: dict[str, Any], own: Shared, dataset: Any, context: ThreadContext, outbox: Outbox
) -> BatchBuilder:
    """What makes the batches. An iterable dataset is read from shallow copies: its iterators share nothing else."""
    streaming: IterableOptions | None = options["streaming"]
    streams = None
    if streaming is not None:
        streams = IterableFetcher(
            lambda: (copy.copy(dataset), own.worker_init_fn), own.dataset,
            (0, 0) if streaming.alone else (handle.worker, options["num_workers"]), streaming, handle.progress,
            own.on_error, context=context, report_state=lambda *state: outbox.put(ShardAdvanced(handle.uid, *state)),
            seeded=context.torch_was_seeded(),
        )  # fmt: skip
    return BatchBuilder(
        own.dataset, own.collate_fn, handle.progress, batched=options["batched"], output=options["output"],
        on_error=own.on_error, worker=handle.worker, iterable_fetcher=streams,
    )  # fmt: skip


def _work(handle: ThreadHandle, maker: BatchBuilder, context: ThreadContext, outbox: Outbox) -> None:
    """Make batches until it is told to leave."""
    status = handle.progress
    seeded = context.torch_was_seeded()  # then `worker_init_fn` looks after the seeds itself
    while True:
        task = _next_task(handle, maker.iterable_fetcher)
        if task is None:
            return
        result: LocalPayload | EmptyBatch | WorkerFailure
        try:
            status.run, status.number = task.run, task.job
            if not seeded:
                context.seed(task.seed)
            with context.torch_mode():
                result = maker.build(task)
            status.state, status.since = WorkerState.SENDING, _clock()
        except ExhaustedError:
            outbox.put(ShardExhausted(handle.uid, task.run, task.job))
            continue
        except WorkerAbandonedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever the user's dataset or collate raises goes to the consumer
            result = _failure(handle, error, batched=maker.batched)
        outbox.put(BatchDone(handle.uid, task.run, task.job, result, maker.failed_samples))


def _next_task(handle: ThreadHandle, streams: IterableFetcher | None) -> Task | None:
    """The next task that was not cancelled; None to leave."""
    status = handle.progress
    status.state, status.number, status.since = WorkerState.IDLE, -1, _clock()
    while True:
        task = handle.tasks.get()
        if task is None or handle.killed:
            return None
        if isinstance(task, int):
            if streams is not None:
                streams.forget(task)
            continue
        with contextlib.suppress(KeyError):
            handle.unbegun.remove((task.run, task.job))
            return task


def _failure(handle: ThreadHandle, error: Exception, *, batched: bool) -> WorkerFailure:
    fetching = handle.progress.state == WorkerState.FETCHING
    position = handle.progress.position if fetching and batched else -1
    stage = "fetch" if fetching else "collate"
    said = describe(error, by_value=False)
    return WorkerFailure(handle.worker, handle.pid, stage, position, said, error.with_traceback(user_traceback(error)))
