"""A batch made in the notebook's process, by its own thread (local.py) or by a worker thread (threads.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableSequence
from typing import Any

import numpy as np

from nbloader.batch.chunk_arena import Writer
from nbloader.batch.collate import NotPlannedError, Plan, collate_object, convert
from nbloader.batch.header import NO_SEGMENT, BatchHeader
from nbloader.batch.layout_cache import LayoutCache
from nbloader.batch.payload import LocalPayload
from nbloader.batch.pickles import tensor_of
from nbloader.batch.rebuild import builder
from nbloader.batch.task import Task
from nbloader.events.failures import Nothing, SpareSample
from nbloader.workers import fetcher as f
from nbloader.workers import tolerant
from nbloader.workers.iterable_fetcher import Streams
from nbloader.workers.thread_rng import without_mode

_clock = time.perf_counter_ns


class Maker:
    """Fetches and collates.

    Args:
        dataset: The dataset itself, not a copy.
        collate_fn: The user's, or None for the default.
        status: Where it tells what it is at.
        batched: Whether samples make batches.
        output: "torch" or "numpy".
        on_error: What to do with a sample that raises.
        worker: Id of the worker that this is; -1 for none.
        streams: Reads an iterable dataset.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None,
        status: MutableSequence[int],
        *,
        batched: bool,
        output: str,
        on_error: tolerant.OnError,
        worker: int = -1,
        streams: Streams | None = None,
    ) -> None:
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._status = status
        self.batched = batched
        self._output = output
        self._on_error = on_error
        self._worker = worker
        self._known = LayoutCache()
        self._writer = Writer()
        self.streams = streams
        self.spared: list[SpareSample] = []
        """Samples that were left out of the batch it was at last, or replaced; also where that batch raised."""

    def make(self, task: Task) -> LocalPayload | Nothing:
        """Make a batch.

        Returns:
            The batch, or that no sample of it is left.

        Raises:
            ExhaustedError: The shard of an iterable dataset has no such batch.
            Exception: Whatever the dataset or the collate function raises.
        """
        status = self._status
        self.spared = []
        cpu_0 = time.thread_time_ns()
        if self.streams is not None:
            got, self.spared = self.streams.fetch(task.run, task.indices)
        else:
            got, self.spared = tolerant.fetch(
                self._dataset, task.indices, batched=self.batched, status=status, on_error=self._on_error
            )
        if got is None:
            return Nothing()
        cpu_1 = time.thread_time_ns()
        status[f.STATE], status[f.SINCE] = f.COLLATING, got.end
        batch, nbytes, extras = None, 0, None
        written = self._write(got.samples, task)
        if written is None:
            batch, nbytes = self._collate(got.samples)
        else:
            extras, nbytes = written
        cpu_2, end = time.thread_time_ns(), _clock()
        size = len(got.samples) if self.batched else 1
        header = BatchHeader(
            task.run, task.number, 0, NO_SEGMENT, nbytes, 0, size, got.begin, got.end, end, cpu_1 - cpu_0,
            cpu_2 - cpu_1, got.slowest, got.slowest_ns,
        )  # fmt: skip
        return LocalPayload(batch, header, self._worker, in_arena=written is not None, extras=extras)

    def _write(self, samples: Any, task: Task) -> tuple[list[Any], int] | None:
        """Write a piece of a batch beside the others; None where it is none, or does not fit there."""
        place = None if task.whole is None else task.whole.place
        if place is None or self._collate_fn is not None:
            return None
        with without_mode():
            return self._writer.write(samples if isinstance(samples, list) else list(samples), task, place)

    def _collate(self, samples: Any) -> tuple[Any, int]:
        """The batch and its size in bytes, 0 where that is not known."""
        if self._collate_fn is not None:
            return self._collate_fn(samples), 0
        if not self.batched:
            return convert(samples, _as_tensor if self._output == "torch" else np.asarray), 0
        samples = samples if isinstance(samples, list) else list(samples)
        try:
            with without_mode():
                return self._stack(samples)
        except NotPlannedError:
            return collate_object(samples, self._output), 0

    def _stack(self, samples: list[Any]) -> tuple[Any, int]:
        known = self._known.get(len(samples))
        if known is not None:
            fill, nbytes, build = known
            memory = bytearray(nbytes)
            extras: list[Any] = []
            try:
                fill(samples, memory, extras)
            except Exception:  # noqa: BLE001 - whatever is wrong, the plan says it
                self._known.forget(len(samples))
            else:
                return build(memory, extras), nbytes
        plan = Plan(samples)
        memory = bytearray(plan.nbytes)
        plan.fill(memory)
        build = builder(plan.tree, self._output)
        self._known.learn(plan, samples, build)
        return build(memory, plan.extras), plan.nbytes


def _as_tensor(array: Any) -> Any:
    return tensor_of(np.asarray(array))
