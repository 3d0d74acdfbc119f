"""Which indices make which batch. torch's samplers do the work; any sampler that torch takes is taken here."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any


def make_samplers(
    dataset: Any,
    *,
    batch_size: int | None,
    shuffle: bool,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    drop_last: bool,
    generator: Any,
) -> tuple[Any, Any]:
    """The sampler and the batch sampler, as torch's DataLoader makes them.

    Returns:
        (sampler, batch_sampler); the second is None where batching is off.
    """
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    if sampler is None:
        sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
    if batch_size is not None and batch_sampler is None:
        batch_sampler = BatchSampler(sampler, batch_size, drop_last)
    return sampler, batch_sampler


def length(sampler: Any) -> int | None:
    """`len()` of a sampler, or None where it has none."""
    if not isinstance(sampler, Sized):
        return None
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None
