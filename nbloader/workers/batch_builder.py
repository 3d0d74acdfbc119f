"""Build batches in the notebook's own process, for worker threads and the inline pool."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nbloader._util.signals import raised_by_handler
from nbloader.batch.collate import NotPlannedError, collate_object, convert, plan_batch
from nbloader.batch.header import MEASURE_CPU_EVERY, MEASURE_NS, NOT_MEASURED, BatchHeader
from nbloader.batch.layout_cache import LayoutCache
from nbloader.batch.payload import LocalPayload
from nbloader.batch.rebuild import delivered_builder
from nbloader.batch.rows import Selection
from nbloader.batch.serialize import tensor_of
from nbloader.batch.task import Task
from nbloader.events.failures import EmptyBatch, WorkerFailure
from nbloader.events.remote_errors import SampleFailure, describe, user_traceback
from nbloader.shm.segment import NO_SEGMENT
from nbloader.workers.fetcher import FetchedBatch, MapFetcher, OnError, raise_if_none
from nbloader.workers.iterable_fetcher import IterableFetcher
from nbloader.workers.seeding import Seed, keep_state
from nbloader.workers.status import WorkerState, WorkerStatus, is_abandoned

if TYPE_CHECKING:
    from nbloader.workers.sample_loop import SampleLoop

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns
_cpu_clock = time.thread_time_ns
_COLLATING = WorkerState.COLLATING  # before Python 3.12, each access to an enum member takes 0.1 us


class BatchBuilder:
    """Fetch samples and collate them.

    Args:
        dataset: The dataset itself, not a copy.
        collate_fn: The user's function, or None for the default.
        status: Where the worker publishes what it is doing.
        batched: Whether samples are collated into batches.
        output: "torch" or "numpy": what the arrays of a batch become.
        on_error: What to do with a sample that raises.
        worker: Worker id; -1 if the consumer's thread produces the batches.
        iterable_fetcher: Reads an iterable dataset; None for a map-style dataset.
        samples: Has already fetched the samples of an asynchronous dataset; None for other datasets.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None,
        status: WorkerStatus,
        *,
        batched: bool,
        output: str,
        on_error: OnError,
        worker: int = -1,
        iterable_fetcher: IterableFetcher | None = None,
        samples: SampleLoop | None = None,
    ) -> None:
        self._fetcher: MapFetcher | SampleLoop = samples or MapFetcher(
            dataset, batched=batched, collates=collate_fn is None, output=output, status=status, on_error=on_error
        )
        self._in_memory = iterable_fetcher is None and self._fetcher.in_memory
        self._collate_fn = collate_fn
        self._status = status
        self._batched = batched
        self._output = output
        self._stack_tensors: Callable[[Sequence[Any]], tuple[Any, int]] | None = None
        if output == "torch":
            from nbloader.batch.stack import collate_to_tensors  # imports torch

            self._stack_tensors = collate_to_tensors
        self._worker = worker
        self._slow = True  # whether the last batch took long enough for the CPU time of the next batch to be measured
        self._known = LayoutCache()
        self.iterable_fetcher = iterable_fetcher
        self.failed_samples: Sequence[SampleFailure] = ()
        """Samples of the last batch that were skipped or replaced, even if its collation raised."""

    def build(self, task: Task, seed: Seed = keep_state) -> LocalPayload | EmptyBatch | None:
        """Build a batch or a chunk.

        Args:
            task: The batch or chunk.
            seed: Called with the seed of the task before any user code runs; not called if the batch runs no user code.
                Not needed if the generators are already seeded.

        Returns:
            The batch; `EmptyBatch` if all its samples were skipped; None if the shard of an iterable dataset has no
            such batch.

        Raises:
            Exception: Whatever the dataset or the collate function raises.
        """
        status = self._status
        self.failed_samples = ()
        measured = self._slow or not task.number % MEASURE_CPU_EVERY
        cpu_begin = 0
        fetched: FetchedBatch | None = None
        from_memory = False
        if self._in_memory and task.parent is None:
            cpu_begin = _cpu_clock() if measured else 0
            fetched = self._fetcher.from_memory(task.epoch, task.indices)
            from_memory = fetched is not None
        if fetched is None:
            seed(task.seed)
            cpu_begin = _cpu_clock() if measured else 0
            if self.iterable_fetcher is not None:
                fetched = self.iterable_fetcher.fetch(task.epoch, task.indices)
            else:
                fetched = self._fetcher.fetch(task.indices)
        if fetched is None:
            return None
        self.failed_samples = fetched.failed
        if fetched.nothing_left:
            return EmptyBatch()
        cpu_fetched = _cpu_clock() if measured else 0
        status.state, status.since = _COLLATING, fetched.end
        try:
            batch, nbytes = self._collate(fetched.samples, partial(seed, task.seed) if from_memory else None)
        except Exception:  # the samples cannot be collated: the type of the error depends on the samples
            if self._batched and self._collate_fn is None:
                raise_if_none(fetched, task.indices)
            raise
        fetch_cpu = collate_cpu = NOT_MEASURED
        if measured:
            fetch_cpu, collate_cpu = cpu_fetched - cpu_begin + fetched.cpu, _cpu_clock() - cpu_fetched
        end = _clock()
        self._slow = end - fetched.begin >= MEASURE_NS
        header = tuple.__new__(BatchHeader, (  # takes half as long as calling the class
            task.epoch, task.number, 0, NO_SEGMENT, nbytes, 0, fetched.size, fetched.begin, fetched.end, end,
            fetch_cpu, collate_cpu, fetched.slowest, fetched.slowest_ns,
        ))  # fmt: skip
        return LocalPayload(batch, header, self._worker)

    def build_outcome(self, task: Task, seed: Seed = keep_state) -> LocalPayload | EmptyBatch | WorkerFailure | None:
        """Build a batch like `build`, but return a `WorkerFailure` if that raises an exception.

        Raises:
            WorkerAbandonedError: The worker must end.
        """
        try:
            return self.build(task, seed)
        except Exception as error:  # whatever the user's dataset or collate_fn raises
            if is_abandoned(error, self._status) or raised_by_handler(error):
                raise
            fetching = self._status.state == WorkerState.FETCHING
            position = self._status.position if fetching and self._batched else -1
            described = describe(error, by_value=False)
            raised = error.with_traceback(user_traceback(error))
            stage = "fetch" if fetching else "collate"
            return WorkerFailure(self._worker, self._status.pid, stage, position, described, raised)

    def _collate(self, samples: Any, seed: Callable[[], object] | None) -> tuple[Any, int]:
        """Collate a batch.

        Args:
            samples: The samples of the batch.
            seed: Seeds the random generators; None if they are already seeded.

        Returns:
            The batch and its size in bytes, or 0 if the size is unknown.
        """
        if self._collate_fn is None and self._batched and (stacked := self._collate_quickly(samples)) is not None:
            return stacked
        if seed is not None:
            seed()
        if self._collate_fn is not None:
            return self._collate_fn(samples), 0
        if not self._batched:
            return convert(samples, _as_tensor if self._output == "torch" else np.asarray), 0
        samples = samples if isinstance(samples, list) else list(samples)
        stacked = self._stack(samples)
        return (collate_object(samples, self._output), 0) if stacked is None else stacked

    def _collate_quickly(self, samples: Any) -> tuple[Any, int] | None:
        """Collate a batch without running user code. Return None if that is not possible."""
        selected = type(samples) is Selection
        stack = self._stack_tensors
        if not selected and (stack is None or type(samples) is not list):
            return None
        try:
            return samples.to_batch(self._output) if selected or stack is None else stack(samples)
        except NotPlannedError:
            return None
        except Exception as error:  # samples may differ in any way; planning the batch raises the right error
            if selected or raised_by_handler(error):
                raise
            log.debug("%d samples could not be stacked", len(samples), exc_info=True)
            return None

    def _stack(self, samples: list[Any]) -> tuple[Any, int] | None:
        """Return the batch and its size in bytes; None if the batch must be collated by `collate_object`."""
        known = self._known.get(len(samples))
        if known is not None:
            fill, nbytes, build = known
            memory = np.empty(nbytes, np.uint8)
            extras: list[Any] = []
            try:
                fill(samples, memory, extras)
            except Exception:  # samples may differ in any way; planning the batch raises the right error
                log.debug("a batch of %d samples differs from the layout of the last one", len(samples), exc_info=True)
                self._known.forget(len(samples))
            else:
                return build(memory, extras), nbytes
        plan = plan_batch(samples)
        if plan is None:
            return None
        memory = np.empty(plan.nbytes, np.uint8)
        plan.fill(memory)
        build = delivered_builder(plan.tree, self._output, bytearray)
        self._known.learn(plan, samples, build)
        return build(memory, plan.extras), plan.nbytes


def _as_tensor(array: Any) -> Any:
    return tensor_of(np.asarray(array))
