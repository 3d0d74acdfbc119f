"""Which indices make which batch. torch's samplers do the work; any sampler that torch takes is taken here."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from nbloader.sampling.samplers import FullBatches

LARGE = 1 << 20
"""From this many samples on a shuffled order is computed and not stored; below it is the one that torch draws."""


class LargeRandomSampler:
    """Every index once, in a random order that is computed as it goes: for `shuffle=True` on a large dataset.

    Args:
        data_source: The dataset.
        generator: The `torch.Generator` that each epoch's order is drawn from; torch's default one when None.
    """

    def __init__(self, data_source: Sized, generator: Any = None) -> None:
        self.data_source = data_source
        self.generator = generator

    def __len__(self) -> int:
        """Samples an epoch."""
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        """One epoch's order."""
        return self.later(0)

    def later(self, position: int) -> Iterator[int]:
        """One epoch's order without its first `position` indices, which are not computed."""
        import torch

        from nbloader.sampling.permutation import Permutation

        seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        return Permutation(len(self.data_source), seed).later(position)


def make_samplers(
    dataset: Any,
    *,
    batch_size: int | None,
    shuffle: bool,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    last_batch: str,
    group: int,
    generator: Any,
) -> tuple[Any, Any]:
    """The sampler and the batch sampler, as torch's DataLoader makes them.

    Returns:
        (sampler, batch_sampler); the second is None where batching is off.
    """
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    chosen: Any = sampler
    if sampler is None:
        if not shuffle:
            chosen = SequentialSampler(dataset)
        elif len(dataset) >= LARGE:
            chosen = LargeRandomSampler(dataset, generator)
        else:
            chosen = RandomSampler(dataset, generator=generator)
    if batch_size is not None and batch_sampler is None:
        if last_batch == "rollover" or (last_batch == "discard" and group > 1):
            batch_sampler = FullBatches(chosen, batch_size, group=group, rollover=last_batch == "rollover")
        else:
            batch_sampler = BatchSampler(chosen, batch_size, last_batch == "discard")
    return chosen, batch_sampler


class Endless:
    """In the place of a sampler where an iterable dataset gives the samples itself: None, for ever, as in torch."""

    def __iter__(self) -> Iterator[None]:
        """An iterator without end."""
        return itertools.repeat(None)


def make_endless(*, batch_size: int | None, drop_last: bool) -> tuple[Any, Any]:
    """(sampler, batch_sampler) of a loader over an iterable dataset, as torch's DataLoader has them."""
    from torch.utils.data import BatchSampler

    endless: Any = Endless()
    return endless, BatchSampler(endless, batch_size, drop_last) if batch_size is not None else None


def warn_if_used_up(*, stacklevel: int, **sources: Any) -> None:
    """After an epoch without a batch: say so where something that can be iterated only once is the likely cause.

    Args:
        stacklevel: As for `warnings.warn`, called from the caller of this function's.
        sources: By the name of the loader's argument: the dataset and the samplers.
    """
    for name, source in sources.items():
        builtin = type(source).__module__ in {"builtins", "itertools", "_io"}
        if builtin and hasattr(source, "__next__"):
            warnings.warn(
                f"this epoch had no batch: {name} is a {type(source).__name__}, which gives its items once, and they "
                f"are used up. Give a list, or an object whose __iter__ begins anew, as {name}",
                stacklevel=stacklevel,
            )


def length(sampler: Any) -> int | None:
    """`len()` of a sampler, or None where it has none."""
    if not isinstance(sampler, Sized):
        return None
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None
