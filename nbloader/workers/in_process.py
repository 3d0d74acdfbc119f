"""Run a dataset on this thread as a worker would, and leave the random generators of the process as they were."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from nbloader._util import rng
from nbloader._util.rng import PreservedRandomState, mix
from nbloader.batch.task import ChunkedBatch
from nbloader.errors import ReplayError
from nbloader.workers import thread_rng
from nbloader.workers.fetcher import MapFetcher, OnError, fetch_each, innermost, shallow_copy
from nbloader.workers.status import LocalStatus
from nbloader.workers.worker_info import ProcessContext, WorkerContext, WorkerInfo, get_worker_info

OWN_GENERATORS = (
    "Such batches go to workers in turn, and what a worker draws depends on all the batches that it had before: they "
    "cannot be made again alone. Draw from `random`, `numpy.random` or torch's global generator in __getitem__, which "
    "nbloader seeds for each batch"
)
"""Why a batch cannot be made again, if the generators are not seeded for each batch."""


class Delivery(NamedTuple):
    """How a sample was delivered, and how it is made again: seed the generators, fetch those before it, fetch it."""

    epoch: int
    """Number of the epoch, as in `BatchRecord.epoch`."""
    batch: int
    """Number of the batch, as in `BatchRecord.index`."""
    position: int
    """Its position in the batch, from 0."""
    seed: int
    """What the random generators are seeded with."""
    before: tuple[Any, ...]
    """Dataset indices of the samples that drew from the same generators before."""


class FailedSample(NamedTuple):
    """In the place of a sample that raised."""

    error: Exception


def fetches_together(dataset: Any) -> bool:
    """Whether one call of the user's code fetches several samples. A `Subset` has `__getitems__` for any dataset."""
    return any(hasattr(part, "__getitems__") for part in innermost(dataset))


def fetch_samples(
    dataset: Any, indices: Any, *, on_error: OnError, batched: bool, output: str, count: int | None = None
) -> Sequence[Any]:
    """Fetch samples as a worker does, after the generators were seeded. Those that raise are a `FailedSample`.

    Args:
        dataset: The dataset.
        indices: Those that are fetched under one seed.
        on_error: What the loader does with a sample that raises. A function is called, since it may draw, too.
        batched: Whether the samples make a batch.
        output: "torch" or "numpy".
        count: Fetch only the first samples, if they are fetched one by one; None for all.

    Raises:
        Exception: What `__getitems__` raises, if `on_error` is "raise".
    """
    handler: Any = on_error

    def note(index: Any, error: Exception) -> FailedSample:
        if callable(handler):
            handler(index, error)
        return FailedSample(error)

    status = LocalStatus(os.getpid())
    if batched and hasattr(dataset, "__getitems__") and (fetches_together(dataset) or on_error != "raise"):
        fetcher = MapFetcher(
            dataset, batched=True, collates=False, output=output, status=status,
            on_error="raise" if on_error == "raise" else note,
        )  # fmt: skip
        return fetcher.fetch(indices).samples  # type: ignore[no-any-return]
    return fetch_each(  # type: ignore[no-any-return]
        dataset, indices[:count], batched=True, status=status,
        on_error=lambda position, error: note(indices[position], error),
    ).samples  # fmt: skip


@contextlib.contextmanager
def private_generators() -> Iterator[WorkerContext]:
    """Context manager in which this thread can seed and draw, and nothing else in the process notices.

    The main thread uses the global generators, and restores them. Another thread may run while the main thread draws
    from these in a loop: ipykernel handles clicks on threads of their own (subshells). Such a thread gets generators of
    its own, as worker threads do (`thread_rng` says what is not covered), unless these are turned off.

    Yields:
        The context of the thread.
    """
    on_main = threading.current_thread() is threading.main_thread()
    if on_main or rng.thread_local.generators is not None or not thread_rng.enabled():
        with PreservedRandomState():
            yield ProcessContext()
    else:
        with thread_rng.ThreadContext(None) as context:
            yield context


def seeded_collate(collate_fn: Callable[[list[Any]], Any], batch: ChunkedBatch[Any]) -> Callable[[list[Any]], Any]:
    """The function that collates the samples of all chunks of a batch, in the process of the loop.

    What it draws follows from the seed of the batch, as in workers, and the generators of the process stay as they are.

    Args:
        collate_fn: Of the user.
        batch: The batch.
    """
    seed = mix(batch.task.seed, len(batch.chunks))  # the chunks have those before it

    def collate(samples: list[Any]) -> Any:
        with private_generators():
            rng.seed_everything(seed)
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
    """Context manager for code of the user that a worker has run, or would run.

    `worker_init_fn` is called for worker 0, and `get_worker_info()` answers as there. Without that function
    `get_worker_info()` returns None, as without workers.

    Args:
        dataset: The dataset. Where `worker_init_fn` is called, a shallow copy of it is used, on which that function can
            set attributes.
        worker_init_fn: The function, or None.
        num_workers: Number of workers.
        base_seed: Base seed of the epoch.
        process: Whether the worker is a process, in which torch computes with one thread, so that sums are rounded as
            there.

    Yields:
        The dataset to use.

    Raises:
        ReplayError: `worker_init_fn` has seeded a generator.
        Exception: Whatever `worker_init_fn` raises.
    """
    with private_generators() as context, _one_thread() if process else contextlib.nullcontext():
        if worker_init_fn is None:
            yield dataset
            return
        dataset = shallow_copy(dataset)
        before = get_worker_info()
        context.set_worker_info(WorkerInfo(0, num_workers, base_seed, dataset))
        try:
            rng.seed_everything(base_seed)
            worker_init_fn(0)
            if rng.was_seeded():
                raise ReplayError(f"worker_init_fn seeds a random generator. {OWN_GENERATORS}")
            yield dataset
        finally:
            context.set_worker_info(before)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute with one thread, as in worker processes."""
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
