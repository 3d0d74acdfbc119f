"""Samplers determine which dataset indices make up each batch.

torch's samplers are used where they exist, and any sampler that torch accepts is accepted. This module defines Gluon's
samplers (`IntervalSampler`, `FilterSampler`, batches that roll over), a shuffle that needs no memory, and the
placeholder for iterable datasets.

The names of these classes are part of `DataLoader.state_dict()`, so that the samplers of both loaders can be compared.
Renaming a class makes older states unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

from nbloader._util import rng
from nbloader._util.user_warning import warn

if TYPE_CHECKING:
    from nbloader.sampling.permutation import Permutation

LARGE = 1 << 20
"""Dataset size from which a shuffled order is computed by index. Smaller datasets use the order that torch draws."""


class Samplers(NamedTuple):
    """The samplers of a loader, as torch's DataLoader has them."""

    sampler: Any
    batch_sampler: Any
    """None if automatic batching is off."""


class IntervalSampler:
    """Yields indices at fixed intervals, like Gluon's sampler: 0, 3, 6, ..., 1, 4, 7, ...

    Args:
        length: Number of samples.
        interval: Step from one index to the next.
        rollover: Whether to start again at 1, 2, ... until every index was drawn; False stops after the first pass.

    Raises:
        ValueError: `interval` is not in the range from 1 to `length`.
    """

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        if not 1 <= interval <= length:
            raise ValueError(f"interval must be from 1 to length={length}, not {interval!r}")
        self._length = length
        self._interval = interval
        self._rollover = rollover

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices of one epoch."""
        for first in range(self._interval if self._rollover else 1):
            yield from range(first, self._length, self._interval)

    def __len__(self) -> int:
        """Number of indices per epoch."""
        return self._length if self._rollover else -(-self._length // self._interval)


class FilterSampler:
    """Yields the indices of the samples that a predicate selects, in order, like Gluon's sampler.

    The constructor reads every sample once.

    Args:
        fn: Called with each sample; samples for which it returns a true value are selected.
        dataset: Anything with `__len__` and `__getitem__`.
    """

    def __init__(self, fn: Callable[[Any], Any], dataset: Any) -> None:
        self._indices = [i for i in range(len(dataset)) if fn(dataset[i])]

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices of one epoch."""
        return iter(self._indices)

    def __len__(self) -> int:
        """Number of indices per epoch."""
        return len(self._indices)


class FullBatches:
    """A batch sampler without incomplete batches: the remaining samples are dropped or start the next epoch.

    An abandoned epoch does not change which samples the next epoch starts with.

    Args:
        sampler: Yields the indices.
        batch_size: Samples per batch.
        group: Number of batches that are delivered together, one per device; only whole groups are yielded.
        rollover: Whether the remaining samples start the next epoch (Gluon's `last_batch="rollover"`).
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, *, group: int, rollover: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = not rollover
        self._group = group
        self._carried: list[Any] = []
        self._left: list[Any] = []

    def __iter__(self) -> Iterator[list[Any]]:
        """Iterate over the batches of one epoch."""
        waiting = list(self._carried)
        whole = self.batch_size * self._group
        for index in self.sampler:
            waiting.append(index)
            if len(waiting) == whole:
                for start in range(0, whole, self.batch_size):
                    yield waiting[start : start + self.batch_size]
                waiting = []
        if not self.drop_last:
            self._left = waiting

    def __len__(self) -> int:
        """Number of batches of the current epoch, or of the next one."""
        return (len(self.sampler) + len(self._carried)) // self.samples_at_once * self._group  # type: ignore[arg-type]

    @property
    def samples_at_once(self) -> int:
        """Number of samples in a group of batches; fewer are dropped or carried over to the next epoch."""
        return self.batch_size * self._group

    def batches_with(self, carried: int) -> int | None:
        """Number of batches of an epoch that starts with this many samples of the previous one; None if unknown."""
        samples = length(self.sampler)
        return None if samples is None else (samples + carried) // self.samples_at_once * self._group

    def epoch_over(self) -> None:
        """Carry the remaining samples over to the next epoch. Called when the consumer reaches the end of the epoch."""
        self._carried, self._left = self._left, []

    def state_dict(self) -> dict[str, Any]:
        """Return the samples of the previous epoch with which the current epoch started."""
        return {"carried": list(self._carried)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next epoch like the one in which `state_dict` was called."""
        self._carried = list(state["carried"])


class LargeRandomSampler:
    """A random permutation, computed during iteration: for `shuffle=True` on a large dataset.

    Args:
        data_source: The dataset.
        generator: The `torch.Generator` from which each epoch's permutation is drawn; None for torch's default.
    """

    def __init__(self, data_source: Sized, generator: Any) -> None:
        self.data_source = data_source
        self.generator = generator

    def __len__(self) -> int:
        """Number of indices per epoch."""
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices of one epoch."""
        return self.iterate_from(0)

    def iterate_from(self, position: int) -> Iterator[int]:
        """Skip the first `position` indices of one epoch, without computing them, and iterate over the rest."""
        return self._permutation().iterate_from(position)

    def blocks(self, position: int = 0) -> Iterator[Any]:
        """Yield the indices of one epoch after the first `position`, as arrays.

        The permutation is drawn when the first array is requested.
        """
        yield from self._permutation().blocks_from(position)

    def _permutation(self) -> Permutation:
        """Draw the permutation of one epoch."""
        from nbloader.sampling.permutation import Permutation

        return Permutation(len(self.data_source), rng.draw_seed(self.generator))


class PositionInOrder(LargeRandomSampler):
    """Yields one number: the position of an index in the epoch that the sampler would draw.

    Args:
        sampler: The sampler.
        index: The dataset index.
    """

    def __init__(self, sampler: LargeRandomSampler, index: int) -> None:
        super().__init__(sampler.data_source, sampler.generator)
        self._index = index

    def __iter__(self) -> Iterator[int]:
        """Yield the position; nothing for an index that is not in the dataset."""
        permutation = self._permutation()
        if 0 <= self._index < len(permutation):
            yield permutation.position(self._index)


class RemainingPermutation:
    """The rest of a computed permutation. The permutation is drawn when iteration starts.

    Args:
        sampler: The sampler of the whole permutation.
        position: Number of indices to skip.
    """

    def __init__(self, sampler: LargeRandomSampler, position: int) -> None:
        self._sampler = sampler
        self._position = position

    def __iter__(self) -> Iterator[int]:
        """Iterate over the remaining indices."""
        return self._sampler.iterate_from(self._position)

    def blocks(self) -> Iterator[Any]:
        """Yield the remaining indices as arrays."""
        return self._sampler.blocks(self._position)


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
) -> Samplers:
    """Choose the sampler and the batch sampler as torch's DataLoader does.

    Args:
        dataset: The dataset.
        batch_size: Samples per batch; None if automatic batching is off or `batch_sampler` is given.
        shuffle: Whether the order is random.
        sampler: The user's sampler, or None.
        batch_sampler: The user's batch sampler, or None.
        last_batch: "keep", "discard" or "rollover".
        group: Number of batches that are delivered together.
        generator: The `torch.Generator` for random orders; None for torch's default generator.
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
    return Samplers(chosen, batch_sampler)


def make_endless(*, batch_size: int | None, drop_last: bool) -> Samplers:
    """Create the samplers of a loader over an iterable dataset, as torch's DataLoader does."""
    from torch.utils.data import BatchSampler
    from torch.utils.data.dataloader import _InfiniteConstantSampler

    endless: Any = _InfiniteConstantSampler()
    return Samplers(endless, BatchSampler(endless, batch_size, drop_last) if batch_size is not None else None)


def warn_if_no_samples(**sources: Any) -> None:
    """After an epoch without batches, warn if the dataset is empty or if a source can be iterated only once.

    Args:
        sources: The dataset and the samplers, by the name of the loader's argument.
    """
    for name, source in sources.items():
        builtin = type(source).__module__ in {"builtins", "itertools", "_io"}
        if builtin and hasattr(source, "__next__"):
            warn(
                f"this epoch had no batches: {name} is a {type(source).__name__}, which can be iterated once and is "
                f"exhausted. Pass a list, or an object whose __iter__ returns a fresh iterator, as {name}"
            )
    dataset = sources["dataset"]
    if length(dataset) == 0:
        warn(
            f"this epoch had no batches: the dataset ({type(dataset).__name__}) is empty, its len() is 0. Check the "
            "path or the filter that it was created from"
        )


def by_position() -> set[type]:
    """Return the types of samplers that yield only positions in the dataset, from 0."""
    from torch.utils.data import RandomSampler, SequentialSampler

    return {SequentialSampler, RandomSampler, LargeRandomSampler, IntervalSampler, FilterSampler}


def may_learn(sampler: Any) -> bool:
    """Whether what a sampler draws may depend on the loop: it is of a class that others than these libraries define.

    Args:
        sampler: A sampler or batch sampler, which may wrap another sampler; or None.
    """
    if sampler is None:
        return False
    known = type(sampler).__module__.partition(".")[0] in {"builtins", "numpy", "torch", "nbloader"}
    return not known or may_learn(getattr(sampler, "sampler", None))


def length(sampler: Any) -> int | None:
    """Return `len()` of a sampler or a dataset, or None if it has no length.

    Any exception from `__len__` means that there is no length. torch calls `len()` only when the user does, so there
    are samplers whose `__len__` fails (PyG's DynamicBatchSampler raises ValueError).
    """
    if not isinstance(sampler, Sized):
        return None
    try:
        return len(sampler)
    except Exception:  # noqa: BLE001 - the user's code; the user sees the error in `len(loader)`
        return None
