"""Batches of indices as arrays, for datasets whose batches are gathered by indexing (`batch/rows.py`).

For 1,024 indices, drawing and converting a list takes 60 us longer than gathering the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nbloader._util import rng

BLOCK = 1 << 16
"""Number of consecutive indices that are created at a time."""


class IndexArray(Sequence[int]):
    """The indices of a batch as an array. It behaves like a list of Python integers.

    Args:
        array: One-dimensional int64 array.
    """

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        """Number of indices."""
        return len(self.array)

    def __getitem__(self, key: Any) -> Any:
        """Return the index at a position; for a slice, a list of indices."""
        return self.array[key].tolist()

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices as Python integers."""
        return iter(self.array.tolist())

    def __eq__(self, other: object) -> bool:
        """Whether `other` is a list or an `IndexArray` with the same indices."""
        return list(self) == list(other) if isinstance(other, (list, IndexArray)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # not hashable, like a list

    def __repr__(self) -> str:
        """Return the same text as a list."""
        return repr(self.array.tolist())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the memory of the array."""
        return _unpickled, (self.array.tobytes(),)


def _unpickled(memory: bytes) -> IndexArray:
    return IndexArray(np.frombuffer(memory, np.int64))


def array_batches(batch_sampler: Any) -> Iterator[IndexArray] | None:
    """Return the batches of torch's `BatchSampler` over a sampler whose order is known.

    The batches are drawn on demand, from the same generators and in the same order as the samplers themselves would
    draw them.

    Returns:
        The batches; None for other samplers, which may do anything.
    """
    from torch.utils.data import BatchSampler

    if type(batch_sampler) is not BatchSampler:
        return None
    blocks = _blocks(batch_sampler.sampler)
    return None if blocks is None else _cut(blocks, batch_sampler.batch_size, drop_last=batch_sampler.drop_last)


def _blocks(sampler: Any) -> Iterator[Any] | None:
    """Return the indices of a sampler as arrays of any length; None if its order is not known."""
    from torch.utils.data import RandomSampler, SequentialSampler

    from nbloader.sampling.samplers import LargeRandomSampler, RemainingPermutation  # lazy: not needed by workers

    kind = type(sampler)
    if kind is range:
        return _consecutive(sampler)
    if kind is SequentialSampler:
        return _consecutive(range(len(sampler)))
    if kind is RandomSampler and not sampler.replacement:
        return _permutations(sampler)
    return sampler.blocks() if kind in (LargeRandomSampler, RemainingPermutation) else None


def _consecutive(positions: range) -> Iterator[Any]:
    for start in range(0, len(positions), BLOCK):
        part = positions[start : start + BLOCK]
        yield np.arange(part.start, part.stop, part.step)


def _permutations(sampler: Any) -> Iterator[Any]:
    """Yield the indices of torch's `RandomSampler` without replacement."""
    import torch

    n, generator = len(sampler.data_source), sampler.generator
    if generator is None:
        seed = rng.draw_seed()
        generator = torch.Generator()
        generator.manual_seed(seed)
    passes, rest = divmod(sampler.num_samples, n)
    for _ in range(passes):
        yield torch.randperm(n, generator=generator).numpy()
    if rest or sampler.generator is not None:  # torch always draws one more permutation
        yield torch.randperm(n, generator=generator).numpy()[:rest]


def _cut(blocks: Iterator[Any], size: int, *, drop_last: bool) -> Iterator[IndexArray]:
    """Cut blocks of indices into batches."""
    rest = np.empty(0, np.int64)
    for block in blocks:
        joined = np.concatenate((rest, block)) if len(rest) else block
        whole = len(joined) - len(joined) % size
        for start in range(0, whole, size):
            yield IndexArray(joined[start : start + size])
        rest = joined[whole:]
    if len(rest) and not drop_last:
        yield IndexArray(rest)
