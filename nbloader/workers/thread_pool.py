"""Worker threads in the notebook's own process.

    ThreadPool.submit() -> ThreadHandle.tasks -> ThreadWorker.run(): fetch, collate -> MessageQueue -> ThreadPool.poll()

Nothing is pickled or copied: workers use the dataset itself, and a batch is handed over as it is. The interpreter runs
the Python code of one thread at a time. Threads therefore suit datasets that wait for I/O (files, networks) or that
spend their time in native code that releases the interpreter lock (image decoding, decompression, NumPy on large
arrays).

A thread cannot be killed. A thread that must be replaced is abandoned instead: it is a daemon thread, whatever it
produces is discarded, and it ends before its next sample.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from nbloader._util.format import plural
from nbloader._util.signals import raised_by_handler
from nbloader.batch.payload import LocalPayload
from nbloader.batch.task import Task
from nbloader.errors import DatasetTransferError
from nbloader.events.remote_errors import describe, user_traceback
from nbloader.events.stack_samples import StackCount
from nbloader.transport import stack_probe
from nbloader.workers.api import JOIN_TIMEOUT, WorkerHandle, WorkerKind, WorkerPool
from nbloader.workers.fetcher import is_async, shallow_copy
from nbloader.workers.iterable_fetcher import IterableFetcher
from nbloader.workers.message_queue import MessageQueue
from nbloader.workers.messages import (
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
from nbloader.workers.producer import Producer
from nbloader.workers.reachable import holds_generator
from nbloader.workers.seeding import Seeding, private
from nbloader.workers.spec import Parts, WorkerSpec
from nbloader.workers.status import LocalStatus, WorkerAbandonedError, WorkerState
from nbloader.workers.thread_context import ThreadContext
from nbloader.workers.thread_sampler import ThreadSampler
from nbloader.workers.worker_info import WorkerInfo

if TYPE_CHECKING:
    import asyncio

    from nbloader.workers.sample_loop import QueuedBatch, SampleLoop

_clock = time.perf_counter_ns


class ThreadKind(WorkerKind):
    """Worker threads."""

    reads_iterables: ClassVar[bool] = True

    def pack(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> Parts:
        """See `WorkerKind`.

        Raises:
            DatasetTransferError: Each thread needs a copy of the dataset, and the dataset cannot be copied.
        """
        if self.spec.iterable is not None and not self.spec.iterable.alone:
            try:
                copy.copy(dataset)
            except Exception as error:  # copying runs the user's code, which may raise anything
                if raised_by_handler(error):
                    raise
                raise DatasetTransferError(
                    f"dataset ({type(dataset).__name__}) cannot be given to worker threads: each of them iterates a "
                    f"copy, and copy.copy(dataset) raises {type(error).__name__}: {error}. Pass an object whose "
                    "__iter__ returns a fresh iterator, or use num_workers=0 (with prefetch=2 one thread reads ahead)"
                ) from error
        return Parts(dataset, collate_fn, worker_init_fn, on_error)

    def create_pool(self) -> ThreadPool:
        """See `WorkerKind`."""
        return ThreadPool()


class Cancel(NamedTuple):
    """Tell a worker thread that jobs of an iteration that has ended are cancelled."""

    epoch: int
    jobs: tuple[int, ...] | None
    """None for the whole iteration."""


Item: TypeAlias = "Task | Cancel | None"
"""A message to a worker thread; None tells it to end."""


class LoopInbox:
    """The inbox of a worker thread that runs an event loop. It takes the place of a `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: collections.deque[Item] = collections.deque()
        self._lock = threading.Lock()
        self._wake: Callable[[], object] | None = None

    def put(self, item: Item) -> None:
        """Add an item. This method is thread-safe."""
        with self._lock:
            self._items.append(item)
            if self._wake is not None:
                self._wake()

    def attach(self, wake: Callable[[], object] | None) -> None:
        """Set the function that is called for each added item, on the thread that adds it; None for no function."""
        with self._lock:
            self._wake = wake

    def take(self) -> Item:
        """Take the oldest item.

        Raises:
            IndexError: There is no item.
        """
        return self._items.popleft()


class ThreadHandle(WorkerHandle):
    """One worker thread.

    Args:
        worker: Worker id.
        messages: The queue to which the thread reports.
        inbox: The queue of messages to the thread.
    """

    status: LocalStatus

    def __init__(self, worker: int, messages: MessageQueue, inbox: LoopInbox | queue.SimpleQueue[Item]) -> None:
        super().__init__(worker, "thread", LocalStatus(os.getpid()))
        self.mark_launched(os.getpid())
        self.killed = False
        self.thread: threading.Thread
        self.tasks = inbox
        """The queue of messages to the thread; None tells it to end."""
        self.awaited: Callable[[], Any] | None = None
        """See `SampleLoop.awaited`."""
        self.pending: set[tuple[int, int]] = set()
        """(epoch, job) of the tasks that the thread has not begun. A queued task that is not in this set was
        cancelled."""
        self.traceback = ""
        self._lines = ThreadSampler(Producer.produce.__code__)
        self._messages = messages

    @property
    def native_id(self) -> int:
        """See `WorkerHandle`."""
        return self.thread.native_id or 0

    @property
    def stderr_tail(self) -> str:
        """The traceback of the exception that ended the thread."""
        return self.traceback

    def stack_request(self) -> Callable[[], str]:
        """See `WorkerHandle`."""
        return lambda: stack_probe.of_thread(self.thread.ident, self.awaited)

    def sample_stack(self) -> StackCount | None:
        """See `WorkerHandle`."""
        ident = self.thread.ident
        return None if ident is None else self._lines.sample(ident, self.native_id, self.status)

    def begun(self, held: list[Task]) -> list[Task]:
        """See `WorkerHandle`."""
        if not isinstance(self.tasks, LoopInbox):
            return super().begun(held)
        return [task for task in held if (task.epoch, task.job) not in self.pending]

    def stop(self) -> None:
        """Tell the thread to end after the batch that it is producing."""
        self.pending.clear()
        self.tasks.put(None)

    def kill(self) -> None:
        """Abandon the thread: it ends before its next sample, and what it reports is ignored."""
        if self.killed:
            return
        self.killed = True
        self.stop()
        self.status.abandon()
        self._messages.put(WorkerGone(self.uid, None))


class ThreadPool(WorkerPool):
    """The worker threads of one loader."""

    def __init__(self) -> None:
        self._messages = MessageQueue()
        self._handles: dict[int, ThreadHandle] = {}

    @property
    def handles(self) -> dict[int, ThreadHandle]:
        """See `WorkerPool`."""
        return self._handles

    def fileno(self) -> int:
        """See `WorkerPool`."""
        return self._messages.fileno()

    def start(self, worker: int, spec: WorkerSpec, setup: Parts) -> ThreadHandle:
        """See `WorkerPool`.

        Raises:
            OSError: No thread can be started.
        """
        concurrent = spec.iterable is None and is_async(setup.dataset)
        handle = ThreadHandle(worker, self._messages, LoopInbox() if concurrent else queue.SimpleQueue())
        thread_worker = ThreadWorker(handle, spec, setup, self._messages)
        handle.thread = threading.Thread(target=thread_worker.run, name=f"nbloader-worker-{worker}", daemon=True)
        self._handles[handle.uid] = handle
        self._messages.put(WorkerLaunched(handle.uid))
        try:
            handle.thread.start()
        except RuntimeError as error:
            del self._handles[handle.uid]
            handle.mark_ended(None)
            threads = plural(threading.active_count(), "thread")
            text = f"no thread could be started while this process had {threads}: {error}"
            raise OSError(errno.EAGAIN, text) from error
        return handle

    def submit(self, uid: int, tasks: Sequence[Task]) -> list[tuple[Task, Exception]]:
        """See `WorkerPool`. Nothing is pickled, so no task is refused."""
        handle = self._handles[uid]
        for task in tasks:
            handle.pending.add((task.epoch, task.job))
            handle.tasks.put(task)
        return []

    def cancel(self, uid: int, epoch: int, jobs: tuple[int, ...] | None) -> None:
        """See `WorkerPool`."""
        handle = self._handles.get(uid)
        if handle is None:
            return
        handle.tasks.put(Cancel(epoch, jobs))
        if jobs is None:
            jobs = tuple(job for of_epoch, job in list(handle.pending) if of_epoch == epoch)
            for job in jobs:  # the scheduler counts one of the jobs as begun and waits for its report
                self._messages.put(ShardExhausted(uid, epoch, job))
        handle.pending.difference_update((epoch, job) for job in jobs)

    def poll(self, timeout: float | None) -> list[WorkerMessage]:
        """See `WorkerPool`."""
        messages: list[WorkerMessage] = []
        waiting = self._messages.take(timeout)
        received = _clock()
        for message in waiting:
            handle = self._handles.get(message.uid)
            if handle is None or (handle.killed and not isinstance(message, WorkerGone)):
                continue  # the worker was abandoned
            if isinstance(message, WorkerInitialized):
                handle.ready = True
            elif isinstance(message, BatchDone) and isinstance(message.outcome, LocalPayload):
                message.outcome.received = received
            elif isinstance(message, WorkerGone):
                handle.mark_ended(message.exitcode)
                del self._handles[handle.uid]
            messages.append(message)
        return messages

    def close(self, grace: float) -> list[WorkerMessage]:
        """See `WorkerPool`. Workers that have not ended after `grace` seconds are abandoned."""
        messages: list[WorkerMessage] = []
        stopped = list(self._handles.values())
        for handle in stopped:
            handle.stop()
        deadline = time.monotonic() + grace
        while self._handles:
            left = deadline - time.monotonic()
            if left <= 0:
                for handle in self._handles.values():
                    handle.kill()
            messages += self.poll(max(0.0, left))
        for handle in stopped:
            if not handle.killed:
                handle.thread.join(JOIN_TIMEOUT)
        return messages

    def dispose(self) -> None:
        """See `WorkerPool`."""
        self._messages.close()


class ThreadWorker:
    """The code of a worker thread.

    Args:
        handle: The handle of the worker.
        spec: The configuration of the worker.
        setup: The dataset and functions.
        messages: The queue to which the worker reports.
    """

    def __init__(
        self,
        handle: ThreadHandle,
        spec: WorkerSpec,
        setup: Parts,
        messages: MessageQueue,
    ) -> None:
        self._handle = handle
        self._spec = spec
        self._shared = setup
        self._setup = setup
        self._messages = messages
        self._status = handle.status
        self._shares_objects = isinstance(handle.tasks, LoopInbox)
        """Whether this thread or its samples share the objects that would be seeded for each batch."""

    def run(self) -> None:
        """Run the thread.

        As in a process, `sys.exit()` or an exception that is not derived from `Exception` ends the worker.
        """
        handle, spec = self._handle, self._spec
        code = 0
        try:
            self._setup = self._own_setup()
            with ThreadContext(self._info(spec.seed), by_task=isinstance(handle.tasks, LoopInbox)) as context:
                if self._initialize(context, spec.seed):
                    self._messages.put(WorkerInitialized(handle.uid, round_robin=self._needs_round_robin()))
                    if isinstance(handle.tasks, LoopInbox):
                        self._run_event_loop(context, handle.tasks)
                    else:
                        self._produce_batches(context, handle.tasks)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException as error:  # noqa: BLE001 - it ends this worker as it would end a process
            code = 1
            handle.traceback = describe(error, by_value=False).traceback
            self._messages.put(OutputText(handle.uid, "stderr", handle.traceback))
        self._messages.put(WorkerGone(handle.uid, code))

    def _own_setup(self) -> Parts:
        """Return the setup of this thread, with copies of what threads must not share.

        Objects that are seeded for each batch are copied (`seeding.private`). Threads need shallow copies of an
        iterable dataset because `worker_init_fn` may configure the shard on it. They need such copies of an
        asynchronous dataset because what its samples store on it, such as the session of an HTTP client, belongs to the
        event loop of one thread.
        """
        shared, spec = self._shared, self._spec
        if spec.iterable is not None and not spec.iterable.alone:
            shared = shared._replace(dataset=copy.copy(shared.dataset))
        if isinstance(self._handle.tasks, LoopInbox):
            return shared._replace(dataset=shallow_copy(shared.dataset)) if spec.num_workers > 1 else shared
        own = private(shared)
        self._shares_objects = own is None
        return shared if own is None else own

    def _copy_dataset(self) -> tuple[Any, Any]:
        """Return a copy of an iterable dataset for another shard, and `worker_init_fn`."""
        dataset = copy.copy(self._shared.dataset)
        own = private((dataset,))
        return dataset if own is None else own[0], self._setup.worker_init_fn

    def _seeding(self) -> Seeding:
        """Return the objects to be seeded for each batch."""
        setup = self._setup
        return Seeding() if self._shares_objects else Seeding(setup.dataset, setup.collate_fn, setup.on_error)

    def _info(self, base_seed: int) -> WorkerInfo:
        worker = self._handle.worker
        return WorkerInfo(worker, self._spec.num_workers, base_seed + worker, self._setup.dataset)

    def _initialize(self, context: ThreadContext, base_seed: int) -> bool:
        """Seed the generators and call `worker_init_fn`. Return False if it raised; the error has been reported."""
        uid, init_fn = self._handle.uid, self._setup.worker_init_fn
        context.seed(base_seed + self._handle.worker)
        if init_fn is not None:
            try:
                init_fn(self._handle.worker)
            except Exception as error:  # noqa: BLE001 - whatever the user's code raises goes to the consumer
                raised = error.with_traceback(user_traceback(error))
                self._messages.put(WorkerInitFailed(uid, describe(error, by_value=False), raised))
                return False
        return True

    def _needs_round_robin(self) -> bool:
        """Whether the worker draws from generators that are not seeded for each batch."""
        parts = self._setup
        return self._spec.iterable is None and (
            holds_generator(*parts, seeded=not self._shares_objects) or (self._shares_objects and bool(Seeding(*parts)))
        )

    def _create_producer(self, context: ThreadContext, samples: SampleLoop | None = None) -> Producer:
        """Create the batch producer. Iterable datasets are read from shallow copies, each with its own attributes."""
        spec, setup, uid = self._spec, self._setup, self._handle.uid
        iterable_fetcher = None
        if spec.iterable is not None:
            shard = (0, 0) if spec.iterable.alone else (self._handle.worker, spec.num_workers)
            iterable_fetcher = IterableFetcher(
                self._copy_dataset, setup.dataset, shard, spec.iterable, self._status, setup.on_error,
                context=context, report_state=lambda *state: self._messages.put(ShardAdvanced(uid, *state)),
                seeded=False,
            )  # fmt: skip
        return Producer(
            setup.dataset, setup.collate_fn, self._status, spec,
            on_error=setup.on_error, worker=self._handle.worker, iterable_fetcher=iterable_fetcher, samples=samples,
        )  # fmt: skip

    def _run_event_loop(self, context: ThreadContext, inbox: LoopInbox) -> None:
        """Produce batches of an asynchronous dataset until the worker is stopped."""
        source = ConcurrentThreadWorker(self, context, inbox)
        self._handle.awaited = source.samples.awaited
        try:
            source.samples.run()
        finally:
            self._handle.awaited = None

    def _produce_batches(self, context: ThreadContext, tasks: queue.SimpleQueue[Item]) -> None:
        """Produce batches until the worker is stopped."""
        status, uid = self._status, self._handle.uid
        seed = self._seeding().after(context.seed)
        producer = self._create_producer(context)
        while True:
            task = self._next_task(producer.iterable_fetcher, tasks)
            if task is None:
                return
            status.epoch, status.job = task.epoch, task.job
            try:
                outcome = producer.produce_outcome(task, seed)
            except WorkerAbandonedError:
                return
            if outcome is None:
                self._messages.put(ShardExhausted(uid, task.epoch, task.job))
                continue
            status.state, status.since = WorkerState.SENDING, _clock()
            done = BatchDone(uid, task.epoch, task.job, outcome, producer.failed_samples)
            self._messages.put(done)

    def _next_task(self, iterable_fetcher: IterableFetcher | None, tasks: queue.SimpleQueue[Item]) -> Task | None:
        """Wait for the next task that was not cancelled. Return None if the worker must end."""
        handle, status = self._handle, self._status
        status.state, status.job, status.since = WorkerState.IDLE, -1, _clock()
        while True:
            task = tasks.get()
            if task is None or handle.killed:
                return None
            if not isinstance(task, Task):
                if task.jobs is None and iterable_fetcher is not None:
                    iterable_fetcher.forget(task.epoch)
                continue
            with contextlib.suppress(KeyError):  # raised if the task was cancelled
                handle.pending.remove((task.epoch, task.job))
                return task


class ConcurrentThreadWorker:
    """The code of a worker thread whose dataset is asynchronous: the `BatchSource` of a `SampleLoop`.

    Args:
        worker: The worker thread.
        context: The context of the thread.
        inbox: The messages to the thread.
    """

    def __init__(self, worker: ThreadWorker, context: ThreadContext, inbox: LoopInbox) -> None:
        from nbloader.workers.sample_loop import SampleLoop  # imports asyncio, which other workers do not need

        self._worker = worker
        self._context = context
        self._inbox = inbox
        self._handle = worker._handle
        self._tasks: collections.deque[Task] = collections.deque()
        spec = worker._spec
        self.samples = SampleLoop(
            self,
            worker._setup.dataset,
            worker._setup.on_error,
            worker._status,
            concurrency=spec.concurrency,
            batched=spec.batched,
            cpu_clock=time.thread_time_ns,
        )
        self._producer = worker._create_producer(context, self.samples)

    def attach(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `BatchSource`."""
        self._inbox.attach(lambda: loop.call_soon_threadsafe(wake))

    def detach(self) -> None:
        """See `BatchSource`."""
        self._inbox.attach(None)

    def receive(self) -> bool:
        """See `BatchSource`."""
        with contextlib.suppress(IndexError):
            while not self._handle.killed:
                item = self._inbox.take()
                if item is None:
                    return False
                if isinstance(item, Task):
                    self._tasks.append(item)
                else:
                    self.samples.cancel(item.epoch, item.jobs)
        return not self._handle.killed

    def next_batch(self) -> QueuedBatch | None:
        """See `BatchSource`."""
        from nbloader.workers.sample_loop import QueuedBatch

        if not self._tasks:
            return None
        task = self._tasks.popleft()
        return QueuedBatch(task, task.epoch, task.job, task.indices, task.seed, task.deaths > 0)

    def begin(self, task: Task) -> bool:
        """See `BatchSource`."""
        try:
            self._handle.pending.remove((task.epoch, task.job))
        except KeyError:  # it was cancelled
            return False
        return True

    def produce(self, task: Task) -> None:
        """See `BatchSource`."""
        handle, status, messages = self._handle, self._worker._status, self._worker._messages
        outcome = self._producer.produce_outcome(task)
        status.state, status.since = WorkerState.SENDING, _clock()
        if outcome is not None:  # always true, since the dataset has no shards
            messages.put(BatchDone(handle.uid, task.epoch, task.job, outcome, self._producer.failed_samples))
