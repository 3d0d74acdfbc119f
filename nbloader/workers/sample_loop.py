"""The event loop of a worker: fetch samples of an asynchronous dataset concurrently, within and across batches.

    source.next_batch() -> begun batches -> a task per sample -> complete batches -> source.produce(): collate, send
            ^                                    |                       |
            |                                    |                       +-- one after the other, by `_main`
            |                                    +-- at most `concurrency`; one that ends starts the next one
            +-- the worker's connection or inbox, which wakes `_main`

A worker holds several batches at once. It begins a batch when fewer than `concurrency` samples are running, so that the
first sample can start. Samples start in the order of the batches and of their
positions in the batch. A batch is handed over when all of its samples are complete, so batches may overtake each other.
The consumer puts them in order.

Between the end of a sample and the start of the next one, one sample fewer is in flight. Many samples often end in the
same turn of the loop, for example all samples that were started together. The task of a sample that ends therefore
creates the task of the next sample directly, and `_main` lets new tasks run before it collates a batch.

If a worker died while it was processing a certain batch, that batch is produced alone, to show whether it is the cause.

Each sample draws from its own random generators. They are seeded with the seed of the batch and the position of the
sample (`rng.seed_task`), so a sample draws the same numbers in whatever order the samples run. `collate_fn` and
`__getitems__` draw from generators that are seeded with the seed of the batch.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

from nbloader._util.rng import seed_task
from nbloader.batch.task import load_indices
from nbloader.errors import DatasetTransferError
from nbloader.events.remote_errors import SampleFailure
from nbloader.sampling.index_arrays import IndexArray, as_drawn, part_of
from nbloader.workers.fetcher import (
    FetchedBatch,
    OnError,
    awaits_whole_batches,
    failed_sample,
    innermost,
    number_of,
    only_one,
)
from nbloader.workers.status import WorkerState, WorkerStatus

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

CLOSE_TIMEOUT = 5.0
"""Seconds that a dataset's `aclose()` may take."""
AT_ONCE = -1
"""Stands for the position of a sample if one call fetches all samples of a batch."""


class QueuedBatch(NamedTuple):
    """A batch, or a chunk of one, that the worker may begin."""

    task: Any
    """The task object of the source, which is passed back to it."""
    epoch: int
    job: int
    indices: Any
    """A list of indices; a single index if batching is off. As they were sent to the worker (`load_indices`)."""
    seed: int
    alone: bool
    """Whether no other batch may be processed at the same time."""


class BatchSource(Protocol):
    """The source of batches for a `SampleLoop`: the connection of a worker process, or the inbox of a worker thread."""

    def attach(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Start calling `wake` on the thread of this event loop whenever there is something to receive."""

    def detach(self) -> None:
        """Stop calling `wake`."""

    def receive(self) -> bool:
        """Process the messages that have arrived, without waiting. Return False if the worker must end."""

    def next_batch(self) -> QueuedBatch | None:
        """Take the next batch from the queue; None if there is none."""

    def begin(self, task: Any) -> bool:
        """Record that a batch begins that was taken from the queue. Return False if the batch was cancelled."""

    def produce(self, task: Any) -> None:
        """Collate and send a batch, whose samples `SampleLoop.fetch` returns."""


class BegunBatch:
    """A batch whose samples are being fetched.

    Args:
        queued: The batch.
        indices: Its indices, as a list.
    """

    __slots__ = (
        "begin", "closed", "error", "failed", "first", "indices", "position", "queued", "running", "samples",
        "slowest", "slowest_ns", "started", "tasks",
    )  # fmt: skip

    def __init__(self, queued: QueuedBatch, indices: list[Any]) -> None:
        self.queued = queued
        self.indices = indices
        self.samples: Any = [_MISSING] * len(indices)
        """The samples by position; or what `__getitems__` returned, if it has fetched them."""
        self.failed: list[SampleFailure] = []
        self.started = 0
        """Number of samples that were started."""
        self.running = 0
        """Number of samples that count as running."""
        self.tasks: dict[int, asyncio.Task[None]] = {}
        """The tasks that have not ended, by position in ascending order."""
        self.begin = _clock()
        self.slowest = AT_ONCE
        self.slowest_ns = 0
        self.error: Exception | None = None
        """The exception because of which the batch failed; None if it has not failed."""
        self.position = AT_ONCE
        """Position of the sample that raised `error`."""
        self.closed = False
        """Whether the outcome of samples that are still running is ignored."""

    @property
    def complete(self) -> bool:
        """Whether all samples have been started and have ended."""
        return not self.tasks and self.started == len(self.indices)


_MISSING = object()
"""Stands for a sample that was not fetched or was skipped."""


class SampleLoop:
    """Run the samples of several batches concurrently on an event loop of its own.

    The code that collates uses it like a `MapFetcher`: while `BatchSource.produce` runs for a batch, `fetch` returns
    the samples of that batch.

    Args:
        source: Where batches come from, and where they go.
        dataset: The dataset. It is closed at the end, if samples were fetched from it.
        on_error: What to do with a sample that raises.
        status: Where the worker publishes what it is doing. It shows the oldest batch that is being fetched.
        concurrency: Maximum number of samples in flight.
        batched: Whether samples are collated into batches.
        cpu_clock: Returns the CPU time that the worker has used, ns.
    """

    in_memory = False
    """See `MapFetcher`."""

    def __init__(
        self,
        source: BatchSource,
        dataset: Any,
        on_error: OnError,
        status: WorkerStatus,
        *,
        concurrency: int,
        batched: bool,
        cpu_clock: Callable[[], int],
    ) -> None:
        self._source = source
        self._status = status
        self._concurrency = concurrency
        self._batched = batched
        self._cpu_clock = cpu_clock
        self._cpu_used = cpu_clock()
        """CPU time that has already been attributed to batches, or was spent on collating them."""
        self._dataset = dataset
        self._used = False
        """Whether a sample was fetched."""
        self._on_error: OnError = on_error
        self._at_once = batched and awaits_whole_batches(dataset)
        self._running = 0
        """Number of samples that are running."""
        self._begun: dict[tuple[int, int], BegunBatch] = {}
        """The batches that are being fetched, by epoch and job, in the order in which they were begun."""
        self._starting: BegunBatch | None = None
        """The batch that has samples that were not started yet."""
        self._next: QueuedBatch | None = None
        """A batch that was taken from the queue and can only begin when all others are complete."""
        self._done: deque[BegunBatch] = deque()
        """The batches that wait to be handed over."""
        self._produced: BegunBatch | None = None
        """The batch that is being handed over."""
        self._shown: BegunBatch | None = None
        """The batch that `status` shows."""
        self._leaving: set[asyncio.Task[Any]] = set()
        """Tasks that were cancelled, or that close a dataset. The event loop holds only weak references to tasks."""
        self._fatal: BaseException | None = None
        """The exception that ends the worker."""
        self._loop: Any = None
        self._context: contextvars.Context
        """Each sample runs in a copy of this context, never in a copy of another sample's context."""
        self._wakeup: asyncio.Event
        """Wakes `_main` when something has arrived, or a batch is complete."""

    def run(self) -> None:
        """Produce batches until the worker must end.

        Raises:
            BaseException: Whatever `BatchSource` raises, or what a sample raises if it is not an `Exception`.
        """
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._wakeup = asyncio.Event()
        self._source.attach(self._loop, self._wakeup.set)
        try:
            while self._fatal is None and self._source.receive():
                self._context.run(self._start_samples)
                self._publish()
                if self._done:
                    await asyncio.sleep(0)  # let the samples that were just started run first
                    self._hand_over(self._done.popleft())
                else:
                    await self._wakeup.wait()
                self._wakeup.clear()
        finally:
            self._source.detach()
            for batch in tuple(self._begun.values()):
                self._close(batch)
            if self._used:
                await _close(self._dataset)
        if self._fatal is not None:
            raise self._fatal

    # ---- samples --------------------------------------------------------------------------------------------------

    def _start_samples(self) -> None:
        """Start samples in `_context`, up to `concurrency` at a time."""
        while self._running < self._concurrency:
            batch = self._starting
            if batch is None:
                queued = self._next or self._source.next_batch()
                self._next = queued
                if queued is None or not self._may_begin(queued):
                    return
                self._next = None
                if not self._source.begin(queued.task):
                    continue
                self._used = True
                batch = self._begin(queued)
                if batch is None:
                    continue
            self._start(batch)

    def _may_begin(self, queued: QueuedBatch) -> bool:
        first = next(itertools.chain(self._begun.values(), self._done), None)
        return first is None or not (queued.alone or first.queued.alone)

    def _begin(self, queued: QueuedBatch) -> BegunBatch | None:
        """Begin a batch. Return None if it is already complete: without samples, or with indices that are an error."""
        error: Exception | None = None
        try:
            indices = load_indices(queued.indices)
        except DatasetTransferError as raised:
            indices, error = [], raised
        if not self._batched:
            indices = [indices]
        elif type(indices) is IndexArray:
            indices = indices.array.tolist()
        elif not isinstance(indices, list):
            indices = list(indices)
        batch = self._begun[queued.epoch, queued.job] = BegunBatch(queued, indices)
        if error is not None or not indices:
            batch.error = error
            self._finish(batch)
            return None
        self._starting = batch
        return batch

    def _start(self, batch: BegunBatch) -> None:
        """Start the next sample of a batch, or all samples if one call fetches them."""
        if self._at_once:
            position, count = AT_ONCE, len(batch.indices)
            seed_task(batch.queued.seed)
            samples = self._fetch_at_once(batch)
        else:
            position, count = batch.started, 1
            seed_task(batch.queued.seed, position)
            samples = self._fetch_sample(batch, position)
        batch.started += count
        batch.running += count
        self._running += count
        if batch.started == len(batch.indices):
            self._starting = None
        batch.tasks[position] = self._loop.create_task(samples)

    async def _fetch_sample(self, batch: BegunBatch, position: int) -> None:
        begin = _clock()
        try:
            sample = self._dataset[batch.indices[position]]
            if hasattr(type(sample), "__await__"):  # not so if a `ConcatDataset` also contains synchronous datasets
                sample = await sample
        except Exception as error:  # noqa: BLE001 - whatever the dataset raises goes to the consumer, or to `on_error`
            self._replace(batch, position, error)
        except BaseException as error:  # noqa: BLE001 - it is raised in `_main`, unless this loop cancelled the task
            self._replace(batch, position, self._interrupted(batch, error))
        else:
            batch.samples[position] = sample
        self._ended(batch, position, 1, begin)

    async def _fetch_at_once(self, batch: BegunBatch) -> None:
        try:
            try:
                batch.samples = await _result(self._dataset.__getitems__(as_drawn(batch.indices)))
            except Exception as error:  # noqa: BLE001 - as above
                await self._fetch_again(batch, error)
        except BaseException as error:  # noqa: BLE001 - as above
            batch.error = self._interrupted(batch, error)
        self._ended(batch, AT_ONCE, len(batch.indices), 0)

    async def _fetch_again(self, batch: BegunBatch, error: Exception) -> None:
        """Find out which samples raise, after `__getitems__` has raised for the whole batch."""
        if self._on_error == "raise":
            batch.error = error
            return
        batch.failed.append(failed_sample(AT_ONCE, error, "retried"))

        async def fetch(position: int) -> None:
            try:
                one = as_drawn(part_of(batch.indices, position, position + 1))
                batch.samples[position] = only_one(await _result(self._dataset.__getitems__(one)))
            except Exception as raised:  # noqa: BLE001 - as above
                self._replace(batch, position, raised)

        await asyncio.gather(*map(fetch, range(len(batch.indices))))

    def _interrupted(self, batch: BegunBatch, error: BaseException) -> Exception:
        """Return the error of a sample that has raised something that is not an `Exception`.

        Raises:
            BaseException: The error itself, if this loop cancelled the task, or if the error ends the worker.
        """
        if isinstance(error, asyncio.CancelledError) and not batch.closed:
            cancelled = RuntimeError("the coroutine of the sample raised asyncio.CancelledError: it was cancelled")
            return cancelled.with_traceback(error.__traceback__)
        if not batch.closed:
            self._fatal = error
            self._wakeup.set()
        raise error

    def _replace(self, batch: BegunBatch, position: int, error: Exception) -> None:
        """Apply `on_error` to a sample that has raised."""
        if batch.closed:
            return
        on_error: Any = self._on_error
        if callable(on_error):
            try:
                batch.samples[position] = on_error(batch.indices[position], error)
            except Exception as raised:  # noqa: BLE001 - the user's code: it is raised in the consumer
                on_error, error = "raise", raised
            except BaseException as raised:  # noqa: BLE001 - as for samples
                on_error, error = "raise", self._interrupted(batch, raised)
        if on_error == "raise":
            if batch.error is None:
                batch.error, batch.position = error, position
        else:
            batch.failed.append(failed_sample(position, error, "replaced" if callable(on_error) else "skipped"))

    def _ended(self, batch: BegunBatch, position: int, count: int, begin: int) -> None:
        """Handle the end of one or more samples, and start others in their place."""
        if batch.closed:
            return
        self._running -= count
        batch.running -= count
        del batch.tasks[position]
        if begin and (took := _clock() - begin) > batch.slowest_ns:
            batch.slowest, batch.slowest_ns = position, took
        if batch.error is not None or batch.complete:
            self._finish(batch)
        try:
            self._context.run(self._start_samples)  # never switches iterations: this one has a batch begun or done
        except BaseException as error:  # noqa: BLE001 - it is raised in `_main`
            self._fatal = error
            self._wakeup.set()
        if batch is self._shown and position == self._status.position and not batch.closed:
            self._publish()

    # ---- batches --------------------------------------------------------------------------------------------------

    def _finish(self, batch: BegunBatch) -> None:
        """Let `_main` hand over a batch that is complete or has failed."""
        self._close(batch)
        self._done.append(batch)
        self._wakeup.set()

    def _close(self, batch: BegunBatch) -> None:
        """Close a batch, and cancel its samples that are still running."""
        batch.closed = True
        for task in batch.tasks.values():
            task.cancel()
            self._keep_until_done(task)
        batch.tasks.clear()
        self._running -= batch.running
        batch.running = 0
        self._begun.pop((batch.queued.epoch, batch.queued.job), None)
        if self._starting is batch:
            self._starting = None

    def _keep_until_done(self, task: asyncio.Task[Any]) -> None:
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def cancel(self, epoch: int, jobs: Collection[int] | None) -> None:
        """Drop batches of an iteration that has ended. Their samples are cancelled, and nothing is reported.

        Args:
            epoch: Number of the epoch.
            jobs: Job numbers of the batches; None for all batches of the iteration.
        """

        def dropped(queued: QueuedBatch) -> bool:
            return queued.epoch == epoch and (jobs is None or queued.job in jobs)

        for batch in [batch for batch in self._begun.values() if dropped(batch.queued)]:
            self._close(batch)
        self._done = deque(batch for batch in self._done if not dropped(batch.queued))
        if self._next is not None and dropped(self._next):
            self._next = None

    def _hand_over(self, batch: BegunBatch) -> None:
        """Collate and send a batch that is complete."""
        self._produced = batch
        self._status.epoch, self._status.job = batch.queued.epoch, batch.queued.job
        seed_task(batch.queued.seed)
        self._source.produce(batch.queued.task)
        self._produced = None
        self._cpu_used = self._cpu_clock()

    def from_memory(self, _epoch: int, _indices: Any) -> None:
        """See `MapFetcher`. Samples of an asynchronous dataset are never in memory."""

    def fetch(self, _indices: Any) -> FetchedBatch:
        """Return the samples of the batch that is being handed over.

        Raises:
            Exception: Whatever the dataset or `on_error` raised. The status then shows the position of the sample.
        """
        batch, status = self._produced, self._status
        if batch is None:
            raise RuntimeError("fetch() is for the batch that BatchSource.produce() is called for")
        status.position = batch.position
        status.state, status.since = WorkerState.FETCHING, batch.begin
        if batch.error is not None:
            raise batch.error
        samples: Any = batch.samples
        if batch.failed:
            samples = [sample for sample in samples if sample is not _MISSING]
            batch.failed.sort(key=lambda failure: failure.position)
        size = number_of(samples, batch.indices)
        if not self._batched:
            samples = samples[0] if size else None
        return FetchedBatch(
            samples, size, batch.begin, _clock(), batch.slowest, batch.slowest_ns, batch.failed,
            cpu=self._cpu_clock() - self._cpu_used,
        )  # fmt: skip

    # ---- what is shown --------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Publish the oldest batch that is being fetched, and its first sample that has not ended."""
        status = self._status
        batch = self._shown = next(iter(self._begun.values()), None)
        if batch is None:
            status.state, status.job, status.since = WorkerState.IDLE, -1, _clock()
            return
        status.position = next(iter(batch.tasks), AT_ONCE)
        status.epoch, status.job, status.since = batch.queued.epoch, batch.queued.job, batch.begin
        status.state = WorkerState.FETCHING

    def awaited(self) -> Any:
        """Return the coroutine of the sample that `status` shows, if it is suspended; otherwise None.

        This may be called in a signal handler or on another thread while the loop runs.
        """
        if self._loop is None or asyncio.current_task(self._loop) is not None:
            return None  # a task is running, so the stack of the thread shows where it is
        batch = next(iter(tuple(self._begun.values())), None)
        task = None if batch is None else next(iter(tuple(batch.tasks.values())), None)
        return None if task is None else task.get_coro()


async def _result(value: Any) -> Any:
    """Await an awaitable and return its result; return any other value unchanged."""
    return await value if hasattr(type(value), "__await__") else value


async def _close(dataset: Any) -> None:
    """Await the dataset's `aclose()` if it has one, so that it can close connections, for example."""
    for part in innermost(dataset):
        aclose = getattr(part, "aclose", None)
        if aclose is None:
            continue
        try:
            await asyncio.wait_for(_result(aclose()), CLOSE_TIMEOUT)
        except Exception:  # the user's code may raise anything
            log.warning("%s.aclose() failed", type(part).__name__, exc_info=True)
