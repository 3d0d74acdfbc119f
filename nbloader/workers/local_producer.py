"""Produce batches on the consumer's own thread (`num_workers=0`).

The user's code runs with the same seeds as in workers. Afterwards the random generators of the notebook have the state
that they had before, and `get_worker_info()` returns None again.
"""

from __future__ import annotations

import os
import threading
from _thread import get_ident
from collections.abc import Sequence
from typing import NamedTuple

from nbloader._util import rng
from nbloader.batch.payload import LocalPayload
from nbloader.batch.pickling import pickled_copy
from nbloader.batch.task import Task
from nbloader.events.failures import EmptyBatch, WorkerFailure
from nbloader.events.gauges import FetchProgress
from nbloader.events.remote_errors import SampleFailure
from nbloader.events.stack_samples import StackCount
from nbloader.sampling.shard_plan import ShardPlan
from nbloader.workers.api import fetch_progress
from nbloader.workers.iterable_fetcher import IterableFetcher
from nbloader.workers.producer import Producer
from nbloader.workers.seeding import Seeding
from nbloader.workers.spec import Parts, WorkerSpec
from nbloader.workers.status import LocalStatus, WorkerState
from nbloader.workers.thread_sampler import ThreadSampler
from nbloader.workers.worker_info import NotebookContext

NO_WORKER = -1
"""Worker id in payloads and failures of batches that were produced on the consumer's thread."""


class _Thread(NamedTuple):
    """The thread that produced the last batch."""

    ident: int
    native_id: int
    """The system's id of the thread."""


class LocalProducer:
    """Produces the batches of one iteration, without a worker.

    `abandon`, `busy`, `progress` and `sample_stack` may be called from any thread, the others only on the consumer's.

    Args:
        setup: The dataset and functions, which are used as they are.
        spec: The configuration that workers would receive.
        shards: Receives the states of an iterable dataset's iterators; None if the dataset is map-style.
    """

    def __init__(self, setup: Parts, spec: WorkerSpec, shards: ShardPlan | None) -> None:
        self._context = NotebookContext()
        self._status = LocalStatus(os.getpid(), WorkerState.IDLE)
        self._roots = setup.dataset, setup.collate_fn, setup.on_error
        self._seeding: Seeding | None = None
        self._thread: _Thread | None = None
        self._lines = ThreadSampler(Producer.produce.__code__)
        self._stream: IterableFetcher | None = None
        if spec.iterable is not None and shards is not None:
            self._stream = IterableFetcher(
                lambda: pickled_copy((setup.dataset, setup.worker_init_fn)), setup.dataset, (0, 0),
                spec.iterable, self._status, setup.on_error, context=self._context,
                report_state=lambda _epoch, *state: shards.advance(*state), seeded=False,
            )  # fmt: skip
        self._producer = Producer(
            setup.dataset, setup.collate_fn, self._status, spec,
            on_error=setup.on_error, worker=NO_WORKER, iterable_fetcher=self._stream,
        )  # fmt: skip

    @property
    def failed_samples(self) -> Sequence[SampleFailure]:
        """Samples of the last batch that were skipped or replaced."""
        return self._producer.failed_samples

    @property
    def reads_stream(self) -> bool:
        """Whether the dataset is iterable. A batch that was interrupted may then have lost samples."""
        return self._stream is not None

    def produce(self, task: Task) -> LocalPayload | EmptyBatch | WorkerFailure | None:
        """Produce a batch or a chunk.

        Returns:
            The outcome; None if the shard of an iterable dataset has no such batch.

        Raises:
            WorkerAbandonedError: `abandon` was called.
            BaseException: Whatever the user's code raises, if it is not an `Exception`.
        """
        status = self._status
        if self._thread is None or self._thread.ident != get_ident():
            self._thread = _Thread(get_ident(), threading.get_native_id())
        status.epoch, status.job = task.epoch, task.job
        generators = rng.LazyRandomState()
        try:
            if self._seeding is None:
                self._seeding = Seeding(*self._roots)
            return self._producer.produce_outcome(task, self._seeding.after(generators.seed))
        finally:
            generators.restore()
            status.state, status.job = WorkerState.IDLE, -1
            self._context.restore()

    def close(self) -> None:
        """Drop the iterators of an iterable dataset."""
        if self._stream is not None:
            self._stream.close()

    def abandon(self) -> None:
        """Stop before the next sample, even if another thread is producing a batch."""
        self._status.abandon()

    def progress(self, task: Task) -> FetchProgress | None:
        """Return the progress with a batch whose samples are being fetched; None if they are not."""
        return fetch_progress(self._status, [task])

    def sample_stack(self) -> StackCount | None:
        """Sample the stack of the thread that produces; None if no batch is being produced."""
        thread = self._thread
        return None if thread is None else self._lines.sample(thread.ident, thread.native_id, self._status)
