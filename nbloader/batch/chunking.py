"""Chunking: a batch is split into chunks that several workers produce concurrently (`chunk_size`, as in DI-engine).

    batch -> ChunkedBatch.split() -> chunks: dispatched, produced, retried like batches -> join_chunks() -> one batch

Chunks travel like batches. They are copied into one batch when the consumer takes it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

from nbloader.batch.payload import BatchOutcome, ChunkPart, JoinedPayload
from nbloader.batch.pytree import merge
from nbloader.batch.task import ChunkedBatch
from nbloader.events.failures import EmptyBatch, WorkerFailure


def check_chunk(chunk_size: Any, *, batch_size: int | None, batch_sampler: Any, iterable: bool) -> int | None:
    """Validate `chunk_size`. Returns the number of samples in a chunk; None if batches are not split.

    Raises:
        TypeError: `chunk_size` is not an int.
        ValueError: `chunk_size` is not positive or does not divide the batch size, the dataset is iterable, or there
            are no batches to split.
    """
    if chunk_size is None:
        return None
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
        raise TypeError(f"chunk_size must be an int or None, not {type(chunk_size).__name__}: {chunk_size!r}")
    if iterable:
        raise ValueError(
            f"chunk_size={chunk_size} requires a map-style dataset: an iterable dataset has no indices to split"
        )
    if batch_size is None and batch_sampler is None:
        raise ValueError(f"chunk_size={chunk_size} requires batches, which batch_size=None turns off")
    if chunk_size <= 0:
        raise ValueError(f"chunk_size must be a positive number of samples, not {chunk_size}")
    if batch_size is not None and batch_size % chunk_size:
        raise ValueError(f"chunk_size must divide batch_size={batch_size}, and chunk_size={chunk_size} does not")
    return chunk_size if chunk_size != batch_size else None


def join_chunks(batch: ChunkedBatch[BatchOutcome], collate_fn: Callable[[list[Any]], Any] | None) -> BatchOutcome:
    """Join the outcomes of the chunks of a batch.

    Args:
        batch: The batch, whose chunks have all arrived.
        collate_fn: Collates the samples of all chunks if chunks are lists of samples; None if the chunks are already
            collated.

    Returns:
        The first failure if there is one; `EmptyBatch` if no chunk has samples; otherwise the payload of the batch.
    """
    chunks: list[tuple[int, Any]] = [
        (batch.start(chunk), outcome) for chunk, outcome in zip(batch.chunks, batch.outcomes(), strict=True)
    ]
    for start, outcome in chunks:
        if outcome.failed:
            for _start, other in chunks:
                other.discard()
            if not isinstance(outcome, WorkerFailure) or outcome.position < 0:
                return outcome  # type: ignore[no-any-return]
            return dataclasses.replace(outcome, position=start + outcome.position)
    filled = [ChunkPart(start, outcome) for start, outcome in chunks if not outcome.empty]
    if filled:
        join = merge if collate_fn is None else functools.partial(_collate_all, collate_fn)
        return JoinedPayload(filled, join, calls_user_code=collate_fn is not None)
    return EmptyBatch()


def _collate_all(collate_fn: Callable[[list[Any]], Any], chunks: list[list[Any]]) -> Any:
    return collate_fn(list(itertools.chain.from_iterable(chunks)))
