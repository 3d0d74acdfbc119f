"""One batch in pieces that several workers make at once (`chunk_size`, as DI-engine's).

    batch -> ChunkedBatch.cut() -> pieces: dispatched, made, retried as batches are -> join() -> one batch, in order

The workers write their pieces side by side into one segment where they know how the batch is laid out (placing.py);
else the loop joins them with a copy when it takes the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

from nbloader.batch.payload import BatchOutcome, JoinedPayload
from nbloader.batch.pytree import merge
from nbloader.batch.task import ChunkedBatch
from nbloader.events.failures import EmptyBatch, WorkerFailure


def check_chunk(chunk_size: Any, *, batch_size: int | None, batch_sampler: Any, iterable: bool) -> int | None:
    """The samples of a piece; None where batches are not cut.

    Raises:
        TypeError: It is no int.
        ValueError: It does not divide the batch size, or there are no batches to cut.
    """
    if chunk_size is None:
        return None
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
        raise TypeError(f"chunk_size must be an int or None, not {type(chunk_size).__name__}: {chunk_size!r}")
    if iterable:
        raise ValueError(f"chunk_size={chunk_size} and an iterable dataset are mutually exclusive: it has no indices")
    if batch_size is None and batch_sampler is None:
        raise ValueError(f"chunk_size={chunk_size} needs a batch to cut: batch_size=None makes none")
    if chunk_size <= 0:
        raise ValueError(f"chunk_size must be a positive number of samples, not {chunk_size}")
    if batch_size is not None and batch_size % chunk_size:
        raise ValueError(f"chunk_size must divide batch_size={batch_size}, and chunk_size={chunk_size} does not")
    return chunk_size if chunk_size != batch_size else None


def join(whole: ChunkedBatch[Any], collate_fn: Callable[[list[Any]], Any] | None) -> BatchOutcome:
    """One outcome of those of all pieces: the first error where there is one, and nothing where all are."""
    parts: list[BatchOutcome] = whole.results()
    for piece, part in zip(whole.pieces, parts, strict=True):
        if part.failed:
            for other in parts:
                other.discard()
            if whole.place is not None:
                whole.place.give_back()
            if not isinstance(part, WorkerFailure) or part.position < 0:
                return part
            return dataclasses.replace(part, position=whole.start(piece) + part.position)
    left: list[Any] = [
        (whole.start(piece), part) for piece, part in zip(whole.pieces, parts, strict=True) if not part.empty
    ]
    if left:
        make = merge if collate_fn is None else functools.partial(_collate_all, collate_fn)
        return JoinedPayload(left, make, whole.place, complete=len(left) == len(parts))
    if whole.place is not None:
        whole.place.give_back()
    return EmptyBatch()


def _collate_all(collate_fn: Callable[[list[Any]], Any], parts: list[list[Any]]) -> Any:
    return collate_fn(list(itertools.chain.from_iterable(parts)))
