"""Produces batches: fetches the samples, collates them, and measures both, for every kind of worker.

    Producer.produce(task): fetcher -> samples -> collation -> BatchStore -> ProducedBatch
                                                               LocalStore: the batch, in this process
                                                               SegmentStore: its skeleton, and a segment with its arrays

A worker process sends what it has produced (process_worker.py). Worker threads and the consumer's thread deliver the
batch itself, as a `LocalPayload`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from nbloader._util.signals import raised_by_handler
from nbloader.batch.collate import (
    ArrayTarget,
    LocalArrays,
    NotPlannedError,
    collate_object,
    collate_samples,
    convert,
)
from nbloader.batch.payload import BatchHeader, LocalPayload
from nbloader.batch.rows import Selection
from nbloader.batch.serialize import ArrayToBeTensor, EncodedBatch, PlannedArrays, encode_object, tensor_of
from nbloader.batch.task import Task
from nbloader.events.failures import EmptyBatch, WorkerFailure
from nbloader.events.remote_errors import SampleFailure, describe, user_traceback
from nbloader.shm.segment import NO_SEGMENT, SegmentWriter
from nbloader.workers.fetcher import MapFetcher, OnError, raise_if_none
from nbloader.workers.seeding import Seed, keep_state
from nbloader.workers.spec import WorkerSpec
from nbloader.workers.status import WorkerState, WorkerStatus, is_abandoned

if TYPE_CHECKING:
    from nbloader.workers.iterable_fetcher import IterableFetcher
    from nbloader.workers.sample_loop import SampleLoop

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns


# ---- where batches go -----------------------------------------------------------------------------------------------


class StoredBatch(NamedTuple):
    """A collated batch, where it is kept until it is delivered."""

    batch: Any
    """The batch; None if it is in a segment."""
    nbytes: int
    """Size of its arrays, bytes; 0 if unknown."""
    skeleton: bytes = b""
    """See `serialize.py`."""
    segment: int = NO_SEGMENT
    """Number of the segment with its arrays."""
    memory: Any = None
    """The memory with its arrays."""


class BatchStore(Protocol):
    """Where a producer puts batches."""

    def as_tensor(self, array: Any) -> Any:
        """Convert an array of a sample that is not batched; see `convert`."""

    def stack(self, collate: Callable[[ArrayTarget], Any]) -> StoredBatch:
        """Collate a batch, with its arrays written straight to where they belong.

        Args:
            collate: Collates the batch with a target for its arrays.

        Raises:
            NotPlannedError: The batch must be collated otherwise.
            Exception: Whatever `collate` raises.
        """

    def keep(self, batch: Any) -> StoredBatch:
        """Store a batch that is an object of any type."""


class LocalStore:
    """Keeps batches in this process.

    Args:
        output: "torch" or "numpy": what the arrays of a batch become.
    """

    def __init__(self, output: str) -> None:
        self._output = output

    def as_tensor(self, array: Any) -> Any:
        """See `BatchStore`."""
        array = np.asarray(array)
        return tensor_of(array) if self._output == "torch" else array

    def stack(self, collate: Callable[[ArrayTarget], Any]) -> StoredBatch:
        """See `BatchStore`."""
        target = LocalArrays(self._output)
        return StoredBatch(collate(target), target.nbytes)

    def keep(self, batch: Any) -> StoredBatch:
        """See `BatchStore`."""
        return StoredBatch(batch, 0)


class SegmentStore:
    """Writes batches to segments of shared memory; to a buffer if they are small.

    Args:
        output: "torch" or "numpy": what the arrays of a batch become.
        segments: The segments of this worker process.
    """

    def __init__(self, output: str, segments: SegmentWriter) -> None:
        self._output = output
        self._segments = segments

    def as_tensor(self, array: Any) -> Any:
        """See `BatchStore`. torch is not imported here: the array becomes a tensor in the notebook's process."""
        return ArrayToBeTensor(array) if self._output == "torch" else np.asarray(array)

    def stack(self, collate: Callable[[ArrayTarget], Any]) -> StoredBatch:
        """See `BatchStore`."""
        target = PlannedArrays(self._output)
        return self._write(target.encode(collate(target)))

    def keep(self, batch: Any) -> StoredBatch:
        """See `BatchStore`."""
        return self._write(encode_object(batch))

    def _write(self, encoded: EncodedBatch) -> StoredBatch:
        block = self._segments.begin(encoded.nbytes)
        try:
            encoded.write(block.memory)
        except BaseException:
            self._segments.abort(block)
            raise
        return StoredBatch(None, encoded.nbytes, encoded.skeleton, block.number, block.memory)


# ---- producing ------------------------------------------------------------------------------------------------------


class ProducedBatch(NamedTuple):
    """A batch, and what its production took."""

    header: BatchHeader
    stored: StoredBatch


class Producer:
    """Fetches samples and collates them.

    Args:
        dataset: The dataset itself, not a copy.
        collate_fn: The user's function, or None for the default.
        status: Where the worker publishes what it is doing.
        spec: The configuration of the worker.
        on_error: What to do with a sample that raises.
        worker: Worker id; -1 if the consumer's thread produces the batches.
        iterable_fetcher: Reads an iterable dataset; None for a map-style dataset.
        samples: Has already fetched the samples of an asynchronous dataset; None for other datasets.
        store: Where batches go; None to keep them in this process.
        cpu_clock: Returns the CPU time of the worker, ns.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None,
        status: WorkerStatus,
        spec: WorkerSpec,
        *,
        on_error: OnError,
        worker: int,
        iterable_fetcher: IterableFetcher | None = None,
        samples: SampleLoop | None = None,
        store: BatchStore | None = None,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._status = status
        self._batched = batched = spec.batched
        self._output = output = spec.output
        self._worker = worker
        self._store = store or LocalStore(output)
        self._cpu_clock = cpu_clock
        self.iterable_fetcher = iterable_fetcher
        self.failed_samples: Sequence[SampleFailure] = ()
        """Samples of the last batch that were skipped or replaced, even if its collation raised."""
        self._collate_fn = collate_fn
        self._fetcher: MapFetcher | SampleLoop = samples or MapFetcher(
            dataset, batched=batched, collates=collate_fn is None, output=output, status=status, on_error=on_error
        )
        self._in_memory = iterable_fetcher is None and self._fetcher.in_memory

    def fetch_from(self, samples: SampleLoop) -> None:
        """Take the samples of an asynchronous dataset from the event loop that fetches them."""
        self._fetcher, self._in_memory = samples, False

    def produce(
        self, epoch: int, job: int, indices: Any, seed: Callable[[], object]
    ) -> ProducedBatch | EmptyBatch | None:
        """Produce a batch or a chunk.

        Args:
            epoch: Number of the epoch.
            job: Job number of the batch or chunk.
            indices: The value that the batch sampler yielded; see `Task`.
            seed: Seeds the random generators. Called before any user code runs; not called if the batch runs no user
                code.

        Returns:
            The batch; `EmptyBatch` if all its samples were skipped; None if the shard of an iterable dataset has no
            such batch.

        Raises:
            Exception: Whatever the dataset or the collate function raises. No memory is lost.
        """
        status, cpu_clock = self._status, self._cpu_clock
        self.failed_samples = ()
        cpu_begin = cpu_clock()
        fetched = self._fetcher.from_memory(epoch, indices) if self._in_memory else None
        from_memory = fetched is not None
        if fetched is None:
            seed()
            cpu_begin = cpu_clock()
            if self.iterable_fetcher is not None:
                fetched = self.iterable_fetcher.fetch(epoch, indices)
            else:
                fetched = self._fetcher.fetch(indices)
        if fetched is None:
            return None
        self.failed_samples = fetched.failed
        if fetched.nothing_left:
            return EmptyBatch()
        cpu_fetched = cpu_clock()
        status.state, status.since = WorkerState.COLLATING, fetched.end
        try:
            stored = self._collate(fetched.samples, seed if from_memory else None)
        except Exception:  # the samples cannot be collated: the type of the error depends on the samples
            if self._batched and self._collate_fn is None:
                raise_if_none(fetched, indices)
            raise
        fetch_cpu, collate_cpu = cpu_fetched - cpu_begin + fetched.cpu, cpu_clock() - cpu_fetched
        end = _clock()
        header = tuple.__new__(BatchHeader, (  # takes half as long as calling the class
            epoch, job, stored.segment, stored.nbytes, len(stored.skeleton), fetched.size, fetched.begin,
            fetched.end, end, fetch_cpu, collate_cpu, fetched.slowest, fetched.slowest_ns,
        ))  # fmt: skip
        return ProducedBatch(header, stored)

    def produce_outcome(self, task: Task, seed: Seed = keep_state) -> LocalPayload | EmptyBatch | WorkerFailure | None:
        """Produce a batch that stays in this process.

        Args:
            task: The batch or chunk.
            seed: Called with the seed of the task; see `produce`. Not needed if the generators are already seeded.

        Returns:
            As `produce`; a `WorkerFailure` if that raises an exception.

        Raises:
            WorkerAbandonedError: The worker must end.
        """
        try:
            produced = self.produce(task.epoch, task.job, task.indices, partial(seed, task.seed))
        except Exception as error:  # whatever the user's dataset or collate_fn raises
            if is_abandoned(error, self._status) or raised_by_handler(error):
                raise
            fetching = self._status.state == WorkerState.FETCHING
            position = self._status.position if fetching and self._batched else -1
            described = describe(error, by_value=False)
            raised = error.with_traceback(user_traceback(error))
            stage = "fetch" if fetching else "collate"
            return WorkerFailure(self._worker, self._status.pid, stage, position, described, raised)
        if isinstance(produced, ProducedBatch):
            return LocalPayload(produced.stored.batch, produced.header, self._worker)
        return produced

    def _collate(self, samples: Any, seed: Callable[[], object] | None) -> StoredBatch:
        """Collate a batch.

        Args:
            samples: The samples of the batch.
            seed: Seeds the random generators; None if they are already seeded.
        """
        store = self._store
        own = self._collate_fn is None and self._batched
        if own:
            if type(samples) is Selection:
                return store.stack(samples.collate)
            samples = samples if isinstance(samples, list) else list(samples)
            try:
                return store.stack(partial(collate_samples, samples))
            except NotPlannedError:
                log.debug("%d samples are collated by torch", len(samples))
        if seed is not None:
            seed()
        if own:
            return store.keep(collate_object(samples, self._output))
        if self._collate_fn is not None:
            return store.keep(self._collate_fn(samples))
        return store.keep(convert(samples, store.as_tensor))
