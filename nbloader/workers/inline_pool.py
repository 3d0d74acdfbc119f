"""The inline worker pool (`num_workers=0`): batches are produced on the consumer's own thread, when it waits for them.

    engine, lock held         submit() -> queue of the iteration      poll() <- messages
    consumer, lock not held                  |                                    ^
                                             +---> run_next(): fetch, collate ----+

The engine uses this pool like a pool of processes or threads, except that a consumer calls `run_next` to produce
batches where it would otherwise block. Only `run_next` and `produce_first` run the user's code. They are called without
holding the engine's lock, so that code may call `loader.stats()`, and `loader.stats()` on another thread never runs it.
A debugger works in `__getitem__`, and the random generators of the notebook keep their state.
"""

from __future__ import annotations

import collections
import os
import threading
from _thread import get_ident
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from nbloader._util import rng
from nbloader.batch.pickling import pickled_copy
from nbloader.batch.task import Task
from nbloader.events.failures import EmptyBatch
from nbloader.events.stack_samples import StackCount
from nbloader.transport import stack_probe
from nbloader.workers.api import LocalSetup, WorkerHandle, WorkerKind, WorkerOptions, WorkerPool
from nbloader.workers.iterable_fetcher import IterableFetcher
from nbloader.workers.messages import (
    BatchDone,
    ShardAdvanced,
    ShardExhausted,
    WorkerGone,
    WorkerInitialized,
    WorkerMessage,
)
from nbloader.workers.producer import Producer
from nbloader.workers.seeding import Seeding
from nbloader.workers.status import LocalStatus, WorkerAbandonedError, WorkerState
from nbloader.workers.thread_sampler import ThreadSampler
from nbloader.workers.worker_info import ProcessContext, WorkerInfo

_new = tuple.__new__  # takes half as long as calling the class

INLINE = "inline"
"""Name of this kind of worker."""
NO_WORKER = -1
"""Worker id in payloads and failures of batches that were produced on the consumer's thread."""


@dataclass(frozen=True)
class InlineKind(WorkerKind):
    """The kind of the inline worker."""

    inline: ClassVar[bool] = True
    options: WorkerOptions

    def create_pool(self) -> InlinePool:
        """See `WorkerKind`."""
        return InlinePool()


class InlineContext(ProcessContext):
    """The context of the notebook's process, which may itself be a worker of another loader."""

    def __init__(self) -> None:
        self._changed = False

    def set_worker_info(self, info: WorkerInfo | None) -> None:
        """Set the result of `get_worker_info()`; None leaves it unchanged, for datasets without shards."""
        if info is not None:
            self._changed = True
            super().set_worker_info(info)

    def restore(self) -> None:
        """After a batch, let `get_worker_info()` return None again, if this context has changed it."""
        if self._changed:
            self._changed = False
            super().set_worker_info(None)


class ConsumerThread(NamedTuple):
    """The thread that produced the last batch."""

    ident: int
    native_id: int
    """The system's id of the thread."""


class InlineHandle(WorkerHandle):
    """The inline worker.

    Args:
        worker: Worker id.
        setup: The dataset and functions.
        options: The configuration of the worker.
        report: Takes the messages of the worker.
        on_kill: Called when the worker is killed.
    """

    status: LocalStatus

    def __init__(
        self,
        worker: int,
        setup: LocalSetup,
        options: WorkerOptions,
        report: Callable[[WorkerMessage], None],
        on_kill: Callable[[InlineHandle], None],
    ) -> None:
        super().__init__(worker, INLINE, LocalStatus(os.getpid(), WorkerState.IDLE))
        self.mark_launched(os.getpid())
        self.ready = True
        self._on_kill = on_kill
        self._context = InlineContext()
        self._roots = setup.dataset, setup.collate_fn, setup.on_error
        self._epoch = -1
        self._seeding = Seeding()
        self._thread: ConsumerThread | None = None
        self._lines = ThreadSampler(Producer.produce.__code__)
        self.iterable_fetcher: IterableFetcher | None = None
        if options.iterable is not None:
            self.iterable_fetcher = IterableFetcher(
                lambda: pickled_copy((setup.dataset, setup.worker_init_fn)), setup.dataset, (0, 0),
                options.iterable, self.status, setup.on_error, context=self._context,
                report_state=lambda *state: report(ShardAdvanced(self.uid, *state)), seeded=False,
            )  # fmt: skip
        self._producer = Producer(
            setup.dataset, setup.collate_fn, self.status, batched=options.batched, output=options.output,
            on_error=setup.on_error, worker=NO_WORKER, iterable_fetcher=self.iterable_fetcher,
        )  # fmt: skip

    def stack_request(self) -> Callable[[], str]:
        """See `WorkerHandle`. Requests the stack of the main thread."""
        return stack_probe.of_main_thread

    def sample_stack(self) -> StackCount | None:
        """See `WorkerHandle`."""
        thread = self._thread
        return None if thread is None else self._lines.sample(thread.ident, thread.native_id, self.status)

    def kill(self) -> None:
        """Stop before the next sample, even if another thread is processing a batch."""
        self.status.abandon()
        self._on_kill(self)

    def produce(self, task: Task) -> WorkerMessage | None:
        """Produce a batch or a chunk. Return None if the worker was killed in the meantime.

        Raises:
            BaseException: Whatever the user's code raises, if it is not an `Exception`.
        """
        status = self.status
        if self._thread is None or self._thread.ident != get_ident():
            self._thread = ConsumerThread(get_ident(), threading.get_native_id())
        status.epoch, status.number = task.epoch, task.job
        generators = rng.LazyRandomState()
        try:
            if task.epoch != self._epoch:
                self._epoch, self._seeding = task.epoch, Seeding(*self._roots)
            outcome = self._producer.produce_outcome(task, self._seeding.after(generators.seed))
        except WorkerAbandonedError:
            return None
        finally:
            generators.restore()
            status.state, status.number = WorkerState.IDLE, -1
            self._context.restore()
        if outcome is None:
            return ShardExhausted(self.uid, task.epoch, task.job)
        return BatchDone(self.uid, task.epoch, task.job, outcome, self._producer.failed_samples)


class Job(NamedTuple):
    """A batch or chunk in a queue."""

    worker: InlineHandle
    task: Task


class ProducedJob(NamedTuple):
    """The outcome of a job. The job stays in its queue until it is released."""

    task: Task
    """See `Produced`."""
    message: WorkerMessage | None
    """See `Produced`."""
    job: Job
    queue: collections.deque[Job]
    """The queue that contains the job."""
    messages: collections.deque[WorkerMessage]
    """The queue to which the report is added."""

    def report(self) -> None:
        """See `Produced`."""
        if self.message is not None:
            self.messages.append(self.message)

    def release(self) -> None:
        """See `Produced`."""
        _remove(self.queue, self.job)


class InlinePool(WorkerPool):
    """A pool with one worker, which runs on the consumer's thread.

    `run_next` and `produce_first` are called without holding the engine's lock, all other methods with the lock held.
    The two sides share deques. No task needs to be revoked: each iteration has its own queue, and its consumer
    processes that queue.
    """

    def __init__(self) -> None:
        self._messages: collections.deque[WorkerMessage] = collections.deque()
        self._queues: dict[int, collections.deque[Job]] = {}  # by iteration, since each iteration has its own consumer
        self._handles: dict[int, InlineHandle] = {}

    @property
    def handles(self) -> dict[int, InlineHandle]:
        """See `WorkerPool`."""
        return self._handles

    def fileno(self, uid: int | None = None) -> int | None:  # noqa: ARG002
        """Return None: no message arrives while the consumer blocks."""
        return None

    def start(self, worker: int, options: WorkerOptions, setup: LocalSetup) -> InlineHandle:
        """See `WorkerPool`."""
        handle = InlineHandle(worker, setup, options, self._messages.append, self._remove)
        self._handles[handle.uid] = handle
        self._messages.append(WorkerInitialized(handle.uid))
        return handle

    def submit(self, uid: int, tasks: Sequence[Task]) -> list[tuple[Task, Exception]]:
        """Queue batches for `run_next`. No task is refused."""
        handle = self._handles[uid]
        for task in tasks:
            queue = self._queues.get(task.epoch)
            if queue is None:
                for epoch in [epoch for epoch, old in self._queues.items() if not old]:
                    del self._queues[epoch]
                queue = self._queues[task.epoch] = collections.deque()
            queue.append(_new(Job, (handle, task)))
        return []

    def next_task(self, epoch: int) -> Task | None:
        """See `WorkerPool`."""
        queue = self._queues.get(epoch)
        try:
            return queue[0].task if queue else None
        except IndexError:  # cancelled just now
            return None

    def run_next(self, epoch: int) -> bool:
        """Produce the queued batches of an iteration on this thread. Called without holding the engine's lock.

        Each message is reported before its job leaves the queue, so an interrupt at any moment loses no batch. At worst
        a batch is produced again, and the second result is rejected.

        Returns:
            Whether `poll` has something to report.
        """
        while (produced := self.produce_first(epoch)) is not None:
            produced.report()
            produced.release()
        return bool(self._messages)

    def produce_first(self, epoch: int) -> ProducedJob | None:
        """See `WorkerPool`."""
        queue = self._queues.get(epoch)
        try:
            job = queue[0] if queue else None
        except IndexError:  # cancelled just now
            job = None
        if queue is None or job is None:
            return None
        worker, task = job
        try:
            message = worker.produce(task)
        except BaseException:
            if worker.iterable_fetcher is not None:  # the iterator may have advanced: the next batch continues there
                self._messages.append(BatchDone(worker.uid, task.epoch, task.job, EmptyBatch()))
            raise
        return _new(ProducedJob, (task, message, job, queue, self._messages))

    def cancel(self, uid: int, epoch: int, jobs: tuple[int, ...] | None) -> None:
        """See `WorkerPool`. If `jobs` is None, this also drops the iterators over the shards of the iteration."""
        queue = self._queues.get(epoch)
        for job in list(queue or ()):
            if queue is not None and job.worker.uid == uid and (jobs is None or job.task.job in jobs):
                _remove(queue, job)
        handle = self._handles.get(uid)
        if jobs is None and handle is not None and handle.iterable_fetcher is not None:
            handle.iterable_fetcher.forget(epoch)

    def poll(self, timeout: float | None) -> list[WorkerMessage]:  # noqa: ARG002
        """Return the messages. Never waits, and never runs the user's code."""
        messages: list[WorkerMessage] = []
        while self._messages:
            message = self._messages.popleft()
            if message.uid in self._handles or type(message) is WorkerGone:  # skip messages of a killed worker
                messages.append(message)
        return messages

    def _remove(self, handle: InlineHandle) -> None:
        """Remove a worker that was killed, and its jobs."""
        if self._handles.pop(handle.uid, None) is None:
            return
        handle.mark_ended(None)
        for queue in self._queues.values():
            for job in list(queue):
                if job.worker is handle:
                    _remove(queue, job)
        self._messages.append(WorkerGone(handle.uid, None))

    def close(self, grace: float) -> list[WorkerMessage]:  # noqa: ARG002
        """Stop the worker. If it is processing a batch, it stops before the next sample.

        Returns:
            The last messages.
        """
        for handle in list(self._handles.values()):
            handle.kill()
        return self.poll(0)

    def abandon(self, grace: float = 0.0) -> None:  # noqa: ARG002 - nothing that others wait for
        """Stop the worker at once, and forget all messages."""
        self.close(0)
        self._messages.clear()


def _remove(queue: collections.deque[Job], job: Job) -> None:
    """Remove a job, unless another thread has just done so."""
    try:  # noqa: SIM105 - `suppress` takes longer than the rest
        queue.remove(job)
    except (ValueError, IndexError):
        pass
