"""Run a dataset on this thread as a worker would, without changing the state of the process's random generators."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import getitem
from typing import Any, NamedTuple

from nbloader._util import rng
from nbloader._util.rng import PreservedRandomState, mix
from nbloader.batch.task import ChunkedBatch
from nbloader.errors import ReplayError
from nbloader.workers.fetcher import MapFetcher, OnError, fetch_each, innermost, shallow_copy
from nbloader.workers.seeding import Seeding
from nbloader.workers.status import LocalStatus
from nbloader.workers.thread_context import ThreadContext
from nbloader.workers.worker_info import ProcessContext, WorkerContext, WorkerInfo, get_worker_info

OWN_GENERATORS = (
    "Such batches cannot be reproduced alone, because they go to workers in turn, and what a worker draws depends on "
    "all the batches that it had before. Draw from `random`, `numpy.random` or torch's global generator in "
    "__getitem__, which nbloader seeds for each batch, or see nbloader.register_seeder()"
)
"""Why a batch cannot be reproduced if the generators are not seeded for each batch."""


class SampleDelivery(NamedTuple):
    """How a sample was delivered, so that it can be reproduced.

    To reproduce the sample, seed the generators, fetch the samples before it, and fetch the sample itself.
    """

    epoch: int
    """Number of the epoch, as in `BatchRecord.epoch`."""
    batch: int
    """Number of the batch, as in `BatchRecord.index`."""
    position: int
    """Position of the sample in the batch, from 0."""
    seed: int
    """The seed of the random generators."""
    before: tuple[Any, ...]
    """Dataset indices of the earlier samples that drew from the same generators."""


class FailedSample(NamedTuple):
    """A placeholder for a sample that raised."""

    error: Exception


def fetches_whole_batches(dataset: Any) -> bool:
    """Whether one call of the user's code fetches several samples.

    This examines the datasets inside a `Subset`, which itself has `__getitems__` whatever dataset it wraps.
    """
    return any(hasattr(part, "__getitems__") for part in innermost(dataset))


def fetch_samples(
    dataset: Any, indices: Any, *, on_error: OnError, batched: bool, output: str, count: int | None = None
) -> Sequence[Any]:
    """Fetch samples as a worker does once the generators are seeded. A sample that raises becomes a `FailedSample`.

    Args:
        dataset: The dataset.
        indices: The indices that are fetched under one seed.
        on_error: What the loader does with a sample that raises. If this is a function, it is called, since it may
            draw random numbers, too.
        batched: Whether the samples are collated into a batch.
        output: "torch" or "numpy".
        count: If samples are fetched one by one, fetch only this many; None for all.

    Raises:
        Exception: Whatever `__getitems__` raises, if `on_error` is "raise".
    """
    handler: Any = on_error

    def note(index: Any, error: Exception) -> FailedSample:
        if callable(handler):
            handler(index, error)
        return FailedSample(error)

    status = LocalStatus(os.getpid())
    if batched and hasattr(dataset, "__getitems__") and (fetches_whole_batches(dataset) or on_error != "raise"):
        fetcher = MapFetcher(
            dataset, batched=True, collates=False, output=output, status=status,
            on_error="raise" if on_error == "raise" else note,
        )  # fmt: skip
        return fetcher.fetch(indices).samples  # type: ignore[no-any-return]
    return fetch_each(  # type: ignore[no-any-return]
        partial(getitem, dataset), indices[:count], batched=True, status=status,
        on_error=lambda position, error: note(indices[position], error),
    ).samples  # fmt: skip


@contextlib.contextmanager
def private_generators() -> Iterator[WorkerContext]:
    """Context manager in which this thread can seed and use generators without affecting the rest of the process.

    The state of the generators is restored afterwards. On a worker thread these are its own generators, otherwise the
    global ones. If another thread draws from the global ones meanwhile, the numbers of both may differ.

    Yields:
        The context of the thread.
    """
    with PreservedRandomState():
        yield ProcessContext()


def seeded_collate(collate_fn: Callable[[list[Any]], Any], batch: ChunkedBatch[Any]) -> Callable[[list[Any]], Any]:
    """Return a function that collates the samples of all chunks of a batch in the process of the training loop.

    As in workers, the seed of the batch determines the numbers that the function draws. The state of the process's
    generators does not change.

    Args:
        collate_fn: The user's function.
        batch: The batch.
    """
    seed = mix(batch.task.seed, len(batch.chunks))  # smaller numbers are mixed into the seeds of the chunks

    def collate(samples: list[Any]) -> Any:
        with private_generators():
            Seeding(None, collate_fn).after(rng.seed_everything)(seed)
            return collate_fn(samples)

    return collate


@contextlib.contextmanager
def as_in_worker(
    dataset: Any,
    worker_init_fn: Callable[[int], object] | None,
    *,
    num_workers: int,
    base_seed: int,
    process: bool,
) -> Iterator[Any]:
    """Context manager in which the user's code runs as it did, or would, in a worker.

    `worker_init_fn` is called for worker 0, and `get_worker_info()` returns the same as in that worker. If there is no
    `worker_init_fn` and workers are processes, `get_worker_info()` returns None, as in a loader without workers.

    Args:
        dataset: The dataset. If `worker_init_fn` is called, a shallow copy of the dataset is used, so that the function
            can set attributes on it.
        worker_init_fn: The function, or None.
        num_workers: Number of workers.
        base_seed: Base seed of the epoch.
        process: Whether the worker is a process. If so, torch computes with one thread, so that sums are rounded as in
            the worker. Otherwise the generators of a worker thread are seeded.

    Yields:
        The dataset to use.

    Raises:
        ReplayError: `worker_init_fn` has seeded a generator.
        Exception: Whatever `worker_init_fn` raises.
    """
    threaded = num_workers > 0 and not process
    generators: contextlib.AbstractContextManager[WorkerContext]
    generators = ThreadContext(None) if threaded else private_generators()
    with generators as context, _one_thread() if process else contextlib.nullcontext():
        if worker_init_fn is None and not threaded:
            yield dataset
            return
        dataset = shallow_copy(dataset) if worker_init_fn is not None else dataset
        before = get_worker_info()
        context.set_worker_info(WorkerInfo(0, num_workers, base_seed, dataset))
        try:
            if worker_init_fn is not None:
                context.seed(base_seed)
                worker_init_fn(0)
                if context.was_seeded():
                    raise ReplayError(f"worker_init_fn seeds a random generator. {OWN_GENERATORS}")
            yield dataset
        finally:
            context.set_worker_info(before)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Context manager in which torch computes with one thread, as in worker processes."""
    torch = sys.modules.get("torch")
    if torch is None or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
