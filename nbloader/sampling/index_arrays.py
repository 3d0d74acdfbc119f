"""Batches of indices that are not plain lists.

`IndexArray` is for datasets whose batches are gathered by indexing (`batch/rows.py`): for 1,024 indices, drawing and
converting a list takes 60 us longer than gathering the batch. `DrawnIndices` is for batch samplers that yield arrays,
tensors or other objects, which `__getitems__` gets as they are.
"""

from __future__ import annotations

import sys
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


class DrawnIndices(list[Any]):
    """The indices of a batch as a list, and the object that a batch sampler has yielded for them.

    Args:
        drawn: What the batch sampler has yielded. An object that cannot be iterated, such as a slice, counts as the
            only item. Arrays and tensors are copied, since the sampler may write the next batch into them.
    """

    __slots__ = ("drawn",)

    def __init__(self, drawn: Any) -> None:
        super().__init__(drawn if may_iterate(drawn) else (drawn,))
        if isinstance(drawn, np.ndarray):
            drawn = drawn.copy()
        elif _is_tensor(drawn):
            drawn = drawn.clone()
        self.drawn = self[:] if isinstance(drawn, Iterator) else drawn
        """What `__getitems__` gets. The items of an iterator as a list, because they can be consumed only once."""

    def part(self, start: int, stop: int) -> Any:
        """Return some of the indices: of an array, tensor or range as such, otherwise as a list."""
        if start <= 0 and stop >= len(self):
            return self
        sliceable = isinstance(self.drawn, np.ndarray | range) or _is_tensor(self.drawn)
        return DrawnIndices(self.drawn[start:stop]) if sliceable else self[start:stop]

    @property
    def standard(self) -> bool:
        """Whether the standard pickle can handle the indices."""
        drawn = self.drawn
        return type(drawn) is range or (type(drawn) is np.ndarray and drawn.dtype.kind in "biuf")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only what was drawn."""
        return DrawnIndices, (self.drawn,)


def may_iterate(drawn: Any) -> bool:
    """Whether what a batch sampler has yielded is several indices."""
    return hasattr(drawn, "__iter__") or hasattr(drawn, "__getitem__")


def _is_tensor(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def as_drawn(indices: Any) -> Any:
    """Return the indices of a batch as the batch sampler has yielded them: a list in place of an `IndexArray`."""
    if type(indices) is IndexArray:
        return indices.array.tolist()
    return indices.drawn if type(indices) is DrawnIndices else indices


def part_of(indices: Any, start: int, stop: int) -> Any:
    """Return some of the indices of a batch, in the type in which they were drawn where possible."""
    return indices.part(start, stop) if type(indices) is DrawnIndices else indices[start:stop]


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
