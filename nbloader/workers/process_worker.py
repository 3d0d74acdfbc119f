"""The code of a worker process: receive a task, fetch its samples, collate them into shared memory, send the header.

    main() -> _initialize(): environment, dataset -> WorkerLoop.run(): next task -> Producer.produce() -> send

A worker ends when its connection closes, after the batch that it is producing; after the sample, if it was abandoned
(`WorkerStatus.abandoned`). It is killed only if it does not end by itself, since it may hold a lock that others need,
such as a `multiprocessing.Lock` of the dataset. It ignores SIGINT, which the children of a notebook kernel would
otherwise receive together with the kernel.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import mmap
import os
import pickle
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from nbloader._platform import exit_at_end_of
from nbloader._util import rng
from nbloader._util.output import flush
from nbloader.batch.payload import pack_header
from nbloader.batch.pickling import pickle_by_name
from nbloader.batch.task import PickledIndices, TaskMessage, read_task
from nbloader.events.failures import EmptyBatch
from nbloader.events.remote_errors import describe
from nbloader.shm.segment import NO_SEGMENT, SegmentWriter
from nbloader.transport import stack_probe
from nbloader.transport.channel import ROUND_ROBIN, Bytes, Channel, Kind
from nbloader.transport.dataset_payload import load_shared
from nbloader.transport.mp_objects import run_finalizers
from nbloader.workers.bootstrap import InitMessage, WorkerStart
from nbloader.workers.fetcher import is_async
from nbloader.workers.line_sampler import LineSampler
from nbloader.workers.parts import WorkerParts, copied
from nbloader.workers.producer import ProducedBatch, Producer, SegmentStore
from nbloader.workers.seeders import load_seeders
from nbloader.workers.seeding import Seed, Seeding, keep_state
from nbloader.workers.spec import Parts
from nbloader.workers.status import SHARED_STATUS_SIZE, SharedStatus, WorkerState, WorkerStatus, is_abandoned
from nbloader.workers.worker_info import ProcessContext, forget_use

if TYPE_CHECKING:
    import asyncio

    from nbloader.events.silent_faults import FaultSign
    from nbloader.workers.fault_signs import DrawWatch
    from nbloader.workers.iterable_fetcher import IterableFetcher
    from nbloader.workers.sample_loop import QueuedBatch, SampleLoop

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns
_cpu_clock = time.process_time_ns


def main(fd: int, parent: int | None = None) -> None:
    """Run a worker on its connection until the connection closes.

    Args:
        fd: Descriptor of the connected socket.
        parent: Descriptor of a pipe that closes when the notebook's process ends, for a spawned worker: it must end
            then, even if it hangs. None if a zygote ends the worker.
    """
    if parent is not None:
        exit_at_end_of(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = line_writer(1)
    sys.stderr = line_writer(2)
    _work(fd, _receive_assets)


def main_forked(fd: int, status: int, stack: int, start: WorkerStart, parts: Parts) -> None:
    """Run a worker that was forked from the notebook's process, with its streams set up, until its connection closes.

    Args:
        fd: Descriptor of the connected socket.
        status: Descriptor of the file for the worker's `SharedStatus`.
        stack: Descriptor of the pipe for the worker's stack.
        start: Which worker this is.
        parts: The dataset and functions themselves.
    """
    pickle_by_name()
    _work(fd, lambda _channel: Assets(start, status, stack, lambda: (parts, partial(copied, parts)), []))


def _work(fd: int, get_assets: Callable[[Channel], Assets]) -> None:
    faulthandler.enable(sys.stderr)
    connection = socket.socket(fileno=fd)
    stack_probe.let_signals_interrupt(connection)
    with (
        contextlib.closing(Channel(connection, blocking=True)) as channel,
        contextlib.suppress(EOFError, ConnectionError, HungUpError),
    ):
        worker_loop = _initialize(channel, get_assets(channel))
        if worker_loop is not None:
            worker_loop.run()
    run_finalizers()


def line_writer(fd: int) -> TextIO:
    """Open a worker's standard output or error as a line-buffered text stream."""
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


class Assets(NamedTuple):
    """What a worker is given when it starts."""

    start: WorkerStart
    status: int
    """Descriptor of the file for the worker's `SharedStatus`."""
    stack: int
    """Descriptor of the pipe for the worker's stack."""
    load: Callable[[], tuple[Parts, Callable[[], Parts]]]
    """Returns the dataset and functions, and a function that makes another copy of them. Raises OSError if their files
    could not be received, and whatever the user's code raises."""
    frames: list[tuple[int, Bytes]]
    """Frames that were received already."""


def _receive_assets(channel: Channel) -> Assets:
    """Receive the assets from the notebook's process, and take over its environment."""
    frames: list[tuple[int, Bytes]] = []
    while not frames:
        frames = [(kind, body) for kind, body in channel.receive() if kind != Kind.HANDED]
    (_kind, body), *later = frames
    message: InitMessage = pickle.loads(body)
    message.inherited.install([channel.take_fd() for _ in range(message.inherited.fds)])
    status, stack = channel.take_fd(), channel.take_fd()
    message.environment.install()

    def load() -> tuple[Parts, Callable[[], Parts]]:
        files = message.files._replace(fds=tuple(channel.take_fd() for _ in message.files.private))

        def unpickled() -> Parts:
            return Parts(*load_shared(files))

        return unpickled(), unpickled

    return Assets(message.start, status, stack, load, later)


def _initialize(channel: Channel, assets: Assets) -> WorkerLoop | ConcurrentWorkerLoop | None:
    """Set up the process and rebuild the dataset.

    Returns:
        None if that failed, which has then been reported, or if the worker was abandoned in the meantime.
    """
    start = assets.start
    memory = mmap.mmap(assets.status, SHARED_STATUS_SIZE)
    status = SharedStatus.at(memory)
    stack_probe.answer(assets.stack)
    lines = LineSampler(status, Producer.produce.__code__)
    lines.install()
    status.since, status.pid = _clock(), os.getpid()
    if status.abandoned:
        return None
    forget_use()
    try:
        load_seeders(start.spec.seeders)
        parts = WorkerParts(start, *assets.load())
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises goes to the notebook
        channel.send(Kind.INIT_ERROR, pickle.dumps(describe(error)))
        return None
    channel.send(Kind.READY, ROUND_ROBIN if parts.round_robin else b"")
    worker_loop = WorkerLoop(channel, start, parts, status, lines, assets.frames)
    if start.spec.iterable is None and is_async(parts.dataset):
        status.begun = -1
        return ConcurrentWorkerLoop(worker_loop, status, start.spec.concurrency)
    return worker_loop


# ---- the worker loop ----------------------------------------------------------------------------------------------


class HungUpError(Exception):
    """The notebook's process has closed the connection.

    This is a separate type, because datasets may raise EOFError and similar exceptions, too.
    """


class WorkerLoop:
    """The loop of a worker process.

    Args:
        channel: The connection to the notebook's process.
        start: Which worker this is.
        parts: The dataset and functions.
        status: Where the worker publishes what it is doing.
        lines: Samples what this process executes, on request.
        frames: Frames that were received already.
    """

    def __init__(
        self,
        channel: Channel,
        start: WorkerStart,
        parts: WorkerParts,
        status: WorkerStatus,
        lines: LineSampler,
        frames: list[tuple[int, Bytes]],
    ) -> None:
        self._channel = channel
        self._lines = lines
        spec = start.spec
        self._batched = spec.batched
        self._status = status
        self._parts = parts
        dataset, collate_fn, on_error = parts.dataset, parts.collate_fn, parts.on_error
        self._iterable_fetcher: IterableFetcher | None = None
        self._segments = SegmentWriter(self._announce, self._retire)
        self.samples: SampleLoop | None = None
        """Fetches the samples of an asynchronous dataset; None for other datasets."""
        self._draws: DrawWatch | None = None
        """Looks whether batches draw from generators of the dataset; None if there are none."""
        several = spec.num_workers > 1
        if several and spec.iterable is None and parts.round_robin:
            from nbloader.workers.fault_signs import DrawWatch  # not imported by other workers

            self._draws = DrawWatch(dataset, start.worker, self._report_sign)
        if spec.iterable is not None:
            from nbloader.workers.fault_signs import ShardWatch  # not imported by other workers
            from nbloader.workers.iterable_fetcher import IterableFetcher

            self._iterable_fetcher = IterableFetcher(
                parts.copy_dataset, dataset, (start.worker, spec.num_workers), spec.iterable, status, on_error,
                context=ProcessContext(), report_state=self._report_state, seeded=parts.seeded,
                watch=ShardWatch(self._report_sign) if several else None,
            )  # fmt: skip
        self._producer = Producer(
            dataset, collate_fn, status, spec, on_error=on_error, worker=start.worker,
            iterable_fetcher=self._iterable_fetcher, store=SegmentStore(spec.output, self._segments),
            cpu_clock=_cpu_clock,
        )  # fmt: skip
        self._seed: Seed = keep_state
        if not parts.seeded:
            self._seed = Seeding(dataset, collate_fn, on_error).after(rng.seed_everything)
        self._pending = deque(frames)
        """Frames that were received and have not been processed."""
        self._hung_up = False
        """Whether the notebook's process has closed the connection."""

    def run(self) -> None:
        """Produce batches until the connection closes.

        Raises:
            EOFError: The connection was closed while the worker waited.
            HungUpError: The connection was closed while the worker was busy.
        """
        try:
            self._produce_batches()
        finally:
            if self._iterable_fetcher is not None:
                self._iterable_fetcher.close()

    def _produce_batches(self) -> None:
        self._process_cancels()
        while True:
            task = self._next_task()
            try:
                self._produce(task)
            except Exception as error:  # whatever the dataset or collate_fn raises goes to the notebook
                if self._hung_up:
                    raise
                if is_abandoned(error, self._status):
                    return
                self._report_error(task, error)
            if self._draws is not None:
                self._look_for_faults()

    def _next_task(self) -> TaskMessage:
        status = self._status
        status.state, status.job, status.since = WorkerState.IDLE, -1, _clock()
        self._receive(wait=False)  # an unread CANCEL takes effect before the next task
        while True:
            while not self._pending:
                self._receive(wait=True)
            kind, body = self._pending.popleft()
            if kind != Kind.TASK:
                self._process_note(kind, body)
                continue
            if status.abandoned:
                raise HungUpError
            task = read_task(body)
            self._segments.give_back(task.returned)
            status.epoch, status.job = task.epoch, task.job
            return task

    def _receive(self, *, wait: bool) -> None:
        frames = self._channel.receive(wait=wait)
        self._pending.extend(frames)
        if any(kind == Kind.CANCEL for kind, _body in frames):
            self._process_cancels()

    def _process_cancels(self) -> None:
        """Drop cancelled tasks. A CANCEL only covers earlier tasks, because the same batch may be requested again."""
        kept: list[tuple[Bytes, TaskMessage]] = []
        for kind, body in self._pending:
            if kind == Kind.TASK:
                kept.append((body, read_task(body)))
                continue
            if kind != Kind.CANCEL:
                self._process_note(kind, body)
                continue
            epoch, jobs = pickle.loads(body)
            if jobs is None and self._iterable_fetcher is not None:
                self._iterable_fetcher.forget(epoch)
            if self.samples is not None:
                self.samples.cancel(epoch, jobs)
            dropped = [task for _body, task in kept if task.epoch == epoch and (jobs is None or task.job in jobs)]
            for task in dropped:
                self._segments.give_back(task.returned)
                if jobs is None:  # the scheduler counts one of them as begun, and waits for its report
                    self._send(Kind.END, pickle.dumps((task.epoch, task.job)))
            kept = [(body, task) for body, task in kept if task not in dropped]
        self._pending = deque((Kind.TASK, body) for body, _task in kept)

    def _process_note(self, kind: int, body: Bytes) -> None:
        """Process a frame about segments."""
        if kind == Kind.DISCARD:
            self._segments.discard(pickle.loads(body))
        elif kind == Kind.REST:
            self._segments.give_back(pickle.loads(body))
            self._segments.rest()

    def _produce(self, task: TaskMessage) -> None:
        """Produce and send a batch or a chunk."""
        indices = task.indices
        if type(indices) is PickledIndices:
            indices = self._load(indices)
        producer, status = self._producer, self._status
        produced: ProducedBatch | EmptyBatch | None = None
        try:
            produced = producer.produce(task.epoch, task.job, indices, partial(self._seed, task.seed))
        finally:
            if (failed := producer.failed_samples) and not self._hung_up:
                outcome_follows = not isinstance(produced, EmptyBatch)
                self._send(Kind.SAMPLE_FAILURES, pickle.dumps((task.epoch, task.job, outcome_follows, failed)))
        if produced is None:
            self._send(Kind.END, pickle.dumps((task.epoch, task.job)))
        if not isinstance(produced, ProducedBatch):
            return
        header, stored = produced
        status.state, status.since = WorkerState.SENDING, header.collated
        if stacks := self._lines.take():
            self._send(Kind.STACKS, pickle.dumps(stacks, 5))
        flush(sys.stdout)
        if stored.segment == NO_SEGMENT:
            self._send(Kind.BATCH, pack_header(*header), stored.skeleton, stored.memory)
        else:
            self._send(Kind.BATCH, pack_header(*header), stored.skeleton)

    def _look_for_faults(self) -> None:
        """Look, after a batch, whether it has drawn from a generator of the dataset."""
        if self._draws is not None:
            self._draws.look()
            if self._draws.over:
                self._draws = None

    def _report_sign(self, sign: FaultSign) -> None:
        self._send(Kind.SIGN, pickle.dumps(sign))

    def _load(self, indices: PickledIndices) -> Any:
        """Unpickle the indices of a batch. This counts as fetching, since it may take long, raise or end the worker."""
        status = self._status
        status.state, status.since, status.position = WorkerState.FETCHING, _clock(), -1
        return indices.load()

    def _send(self, kind: Kind, *parts: Bytes, fds: tuple[int, ...] = ()) -> None:
        try:
            self._channel.send(kind, *parts, fds=fds)
        except ConnectionError as error:
            self._hung_up = True
            raise HungUpError from error

    def _announce(self, number: int, fd: int) -> None:
        """Send a new segment to the notebook's process."""
        self._send(Kind.SEGMENT, number.to_bytes(8, "little"), fds=(fd,))

    def _retire(self, numbers: list[int]) -> None:
        """Tell the notebook's process to forget these segments."""
        self._send(Kind.DROP, pickle.dumps(numbers))

    def _report_state(self, epoch: int, shard: int, position: int, state: str | None, problem: str) -> None:
        self._send(Kind.STATE, pickle.dumps((epoch, shard, position, state, problem)))

    def _report_error(self, task: TaskMessage, error: Exception) -> None:
        fetching = self._status.state == WorkerState.FETCHING
        position = self._status.position if fetching and self._batched else -1
        flush(sys.stdout)
        stage = "fetch" if fetching else "collate"
        self._send(Kind.ERROR, pickle.dumps((task.epoch, task.job, stage, position, describe(error))))


class ConcurrentWorkerLoop:
    """The loop of a worker process whose dataset is asynchronous: the `BatchSource` of a `SampleLoop`.

    Args:
        worker: The worker loop that receives tasks, collates and sends.
        status: Where the worker publishes what it is doing.
        concurrency: Maximum number of samples in flight.
    """

    def __init__(self, worker: WorkerLoop, status: SharedStatus, concurrency: int) -> None:
        from nbloader.workers.sample_loop import SampleLoop  # imports asyncio, which other workers do not need

        self._worker = worker
        self._status = status
        parts = worker._parts
        self._samples = worker.samples = SampleLoop(
            self, parts.dataset, parts.on_error, worker._status, concurrency=concurrency, batched=worker._batched,
            cpu_clock=_cpu_clock,
        )  # fmt: skip
        worker._producer.fetch_from(self._samples)
        worker._seed = keep_state  # the event loop seeds before each sample, and before it calls `produce`
        self._readable = True
        """Whether the connection may have something to read."""
        self._loop: asyncio.AbstractEventLoop
        self._wake: Callable[[], None]

    def run(self) -> None:
        """See `WorkerLoop`."""
        self._worker._process_cancels()
        stack_probe.show_awaited(self._samples.awaited)
        rng.thread_local.generators = self._worker._parts.info.rng
        self._samples.run()

    def attach(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `BatchSource`."""
        self._loop, self._wake = loop, wake
        loop.add_reader(self._worker._channel.fileno(), self._on_readable)

    def detach(self) -> None:
        """See `BatchSource`."""
        self._loop.remove_reader(self._worker._channel.fileno())

    def _on_readable(self) -> None:
        self._readable = True
        self._wake()

    def receive(self) -> bool:
        """See `BatchSource`.

        Raises:
            EOFError: The connection was closed.
        """
        if self._readable:
            self._readable = False
            self._worker._receive(wait=False)
        return True

    def next_batch(self) -> QueuedBatch | None:
        """See `BatchSource`."""
        from nbloader.workers.sample_loop import QueuedBatch

        worker = self._worker
        while worker._pending:
            kind, body = worker._pending.popleft()
            if kind != Kind.TASK:
                worker._process_note(kind, body)
                continue
            task = read_task(body)
            worker._segments.give_back(task.returned)
            return QueuedBatch(task, task.epoch, task.job, task.indices, task.seed, task.deaths > 0)
        return None

    def begin(self, task: TaskMessage) -> bool:
        """See `BatchSource`. Cancelled tasks are not in the queue."""
        self._status.begun = task.sequence
        return True

    def produce(self, task: TaskMessage) -> None:
        """See `BatchSource`.

        Raises:
            HungUpError: The connection was closed.
        """
        worker = self._worker
        try:
            worker._produce(task)
        except Exception as error:  # whatever the dataset or collate_fn raises goes to the notebook
            if worker._hung_up:
                raise
            worker._report_error(task, error)
        worker._look_for_faults()
