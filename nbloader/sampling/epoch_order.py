"""Reproduces the indices of any batch of an epoch that has begun, for `DataLoader.replay`.

    epoch begins -> order_of() -> EpochOrder.planned(number): the indices and the seed of any batch, at any later time

As in a resumed epoch, the order is drawn again from copies of the samplers and from the states that the generators had
when the epoch began. That works for samplers whose order depends only on a length and a generator. For other samplers,
which may depend on anything, the indices are logged when they are drawn.
"""

from __future__ import annotations

import array
import collections
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.utils.data

from nbloader._util.rng import PreservedRandomState, mix
from nbloader.sampling import samplers
from nbloader.sampling.index_arrays import BLOCK, IndexArray
from nbloader.sampling.resumable_sampler import ResumableSampler, generators

MAX_LOGGED = 1 << 20
"""Maximum number of indices that the log of an epoch keeps, which are those of the newest batches: 8 MB of integers."""


class NotKeptError(LookupError):
    """The indices of a batch are not known. The message says why."""


class Numbering(NamedTuple):
    """How the batches of an epoch are numbered: without gaps, even if the epoch was resumed from a state."""

    position: int = 0
    """Number of batches that were delivered in order before the epoch was resumed."""
    beyond: tuple[int, ...] = ()
    """Numbers, in the order of the sampler, of the later batches that were also delivered before the epoch was resumed.

    Ascending. These batches were delivered out of order, and are not delivered again.
    """
    skipped: tuple[int, ...] = ()
    """Numbers, as they would be if none was skipped, of the batches that a program has skipped. Ascending."""

    def drawn(self, number: int) -> int:
        """Return the number of a batch in the order in which the sampler yields batches.

        Args:
            number: Number of the batch, as in `BatchRecord.index`.

        Raises:
            NotKeptError: The batch was delivered out of order before the epoch was resumed.
        """
        for other in self.skipped:
            number += other <= number
        if number < self.position:
            return number
        drawn = number - len(self.beyond)
        if drawn < self.position:
            raise NotKeptError("it was delivered before the state was saved with which this epoch was resumed")
        for other in self.beyond:
            drawn += other <= drawn
        return drawn

    def number(self, drawn: int) -> int | None:
        """Apply the inverse of `drawn()`. Returns None for a batch that is not delivered again."""
        if drawn < self.position:
            return drawn
        if drawn in self.beyond:
            return None
        number = drawn + sum(other > drawn for other in self.beyond)
        return None if number in self.skipped else number - sum(other < number for other in self.skipped)

    def without(self, drawn: int) -> Numbering:
        """Return the numbering after a batch was skipped.

        Args:
            drawn: Number of the batch in the order of the sampler. All batches after it are skipped, or have no number
                yet.
        """
        return self._replace(skipped=(*self.skipped, drawn + sum(other > drawn for other in self.beyond)))


class Planned(NamedTuple):
    """A batch as it was planned."""

    indices: Any
    """A list or a tuple of dataset indices; a single index if automatic batching is off."""
    seed: int


class EpochOrder(ABC):
    """The order of the batches of one epoch.

    Args:
        seed: Base seed of the epoch.
        total: Number of batches of the whole epoch; None if unknown.
        numbering: How the batches are numbered.
    """

    kept = 0
    """Number of indices that are kept in memory."""

    def __init__(self, seed: int, total: int | None, numbering: Numbering) -> None:
        self.seed = seed
        self.total = total
        self._numbering = numbering
        self._mixed_seed = mix(seed)

    def planned(self, number: int) -> Planned:
        """Return the indices and the seed of a batch.

        Args:
            number: Number of the batch, as in `BatchRecord.index`.

        Raises:
            NotKeptError: There is no such batch, or its indices are no longer known.
            Exception: Whatever the sampler raises.
        """
        if number < 0 or (self.total is not None and number >= self.total):
            batches = "an unknown number of batches" if self.total is None else f"{self.total} batches, numbered from 0"
            raise NotKeptError(f"the epoch has {batches}")
        drawn = self._numbering.drawn(number)
        return Planned(as_list(self._indices(drawn)), mix(drawn, after=self._mixed_seed))

    def skip(self, drawn: int) -> None:
        """Give no number to a batch that a program has skipped; see `Numbering.without`."""
        self._numbering = self._numbering.without(drawn)

    def find(self, index: Any, *, batched: bool) -> int | None:
        """Return the number of the first batch that contains a sample; None if no such batch is known.

        Args:
            index: The dataset index.
            batched: Whether the sampler yields batches of indices.
        """
        for drawn, indices in self._batches():
            if index in indices if batched else index == indices:
                number = self._numbering.number(drawn)
                if number is not None:
                    return number
        return None

    @abstractmethod
    def _indices(self, drawn: int) -> Any:
        """Return the indices of a batch.

        Raises:
            NotKeptError: There is no such batch, or its indices are no longer known.
        """

    @abstractmethod
    def _batches(self) -> Iterator[tuple[int, Any]]:
        """Iterate over the known batches, with their numbers in the order of the sampler."""


class RedrawnOrder(EpochOrder):
    """An order that is reproduced by drawing it again.

    Args:
        total: See `EpochOrder`.
        numbering: See `EpochOrder`.
        index_sampler: A copy of the batch sampler, or of the sampler if automatic batching is off (see `frozen`).
        generator: The generator from which the epoch's base seed was drawn; None for torch's default generator.
        base_seed: The epoch's base seed if it was not drawn, else None.
        state: The state of the `ResumableSampler` at the beginning of the epoch.
        arrays: Whether batches were drawn as arrays of indices.
    """

    def __init__(
        self,
        total: int | None,
        numbering: Numbering,
        *,
        index_sampler: Any,
        generator: Any,
        base_seed: int | None,
        state: dict[str, Any],
        arrays: bool,
    ) -> None:
        super().__init__(state["seed"], total, numbering)
        self._sampler = index_sampler
        self._generator = generator
        self._base_seed = base_seed
        self._state = state
        self._arrays = arrays

    def find(self, index: Any, *, batched: bool) -> int | None:
        """See `EpochOrder`. Inverts a computed order; searches any other order many batches at a time."""
        sampler = self._sampler
        if type(sampler) is not torch.utils.data.BatchSampler or type(index) is not int:
            return super().find(index, batched=batched)
        position = self._position(sampler, index)
        if position is None:
            return None
        drawn = position // sampler.batch_size
        if self.total is not None and drawn >= self.total:  # dropped with the incomplete last batch
            return None
        return self._numbering.number(drawn)

    def _position(self, sampler: Any, index: int) -> int | None:
        """Return the position of an index in the order of the samples; None if it is not there.

        Args:
            sampler: torch's `BatchSampler`.
            index: The dataset index.
        """
        changed = copy.copy(sampler)
        if type(sampler.sampler) is samplers.LargeRandomSampler:
            changed.sampler = samplers.PositionInOrder(sampler.sampler, index)
            changed.batch_size, changed.drop_last = 1, False
            batch = next(self._draw(0, arrays=False, sampler=changed), None)
            return None if batch is None else int(batch[0])
        changed.batch_size, changed.drop_last = sampler.batch_size * max(1, BLOCK // sampler.batch_size), False
        for block, indices in enumerate(self._draw(0, arrays=True, sampler=changed)):
            found = _position(indices, index)
            if found is not None:
                return int(block * changed.batch_size + found)
        return None

    def _draw(self, position: int, *, arrays: bool, sampler: Any = None) -> Iterator[Any]:
        """Draw the batches after the first `position` again. The user's objects do not change.

        Args:
            position: Number of batches to skip.
            arrays: Whether batches may be drawn as arrays of indices.
            sampler: Sampler to use in place of the frozen one.
        """
        sources = generators(self._sampler, self._generator)
        own = {id(source): torch.Generator(device=source.device) for source in sources}  # their states are set below
        generator = own.get(id(self._generator), self._generator)
        drawn_from = self._sampler if sampler is None else sampler
        with PreservedRandomState():
            return ResumableSampler(
                _copy(drawn_from, own), generator, loader_seed=None, base_seed=self._base_seed,
                resume_from=self._state, position=position, arrays=arrays,
            )  # fmt: skip

    def _indices(self, drawn: int) -> Any:
        for indices in self._draw(drawn, arrays=self._arrays):
            return indices
        raise NotKeptError("the epoch has fewer batches")

    def _batches(self) -> Iterator[tuple[int, Any]]:
        return enumerate(self._draw(0, arrays=True))  # arrays are faster


class LoggedOrder(EpochOrder):
    """An order that is logged, because its sampler may depend on anything."""

    def __init__(self, seed: int, total: int | None, numbering: Numbering) -> None:
        super().__init__(seed, total, numbering)
        self._log: collections.OrderedDict[int, Any] = collections.OrderedDict()

    def add(self, drawn: int, indices: Any) -> None:
        """Log the indices of a batch. A list is copied, because the sampler may change it later.

        Args:
            drawn: Number of the batch in the order in which the sampler yields batches.
            indices: The indices; a single index if automatic batching is off.
        """
        if type(indices) is list:
            indices = _packed(indices)
        self._log[drawn] = indices
        self.kept += _size(indices)
        while self.kept > MAX_LOGGED and len(self._log) > 1:
            self.kept -= _size(self._log.popitem(last=False)[1])

    def _indices(self, drawn: int) -> Any:
        try:
            indices = self._log[drawn]
        except KeyError:
            first = next(iter(self._log), None)
            kept = "none" if first is None else f"batches {first} to {next(reversed(self._log))}"
            raise NotKeptError(
                "its indices came from a custom sampler, which cannot draw them again. nbloader keeps the last "
                f"{MAX_LOGGED:,} indices (of this epoch: {kept})"
            ) from None
        return indices.tolist() if isinstance(indices, array.array) else indices

    def _batches(self) -> Iterator[tuple[int, Any]]:
        return iter(list(self._log.items()))


def order_of(
    sampler: ResumableSampler,
    total: int | None,
    numbering: Numbering,
    *,
    index_sampler: Any,
    generator: Any,
    base_seed: int | None,
    arrays: bool,
) -> RedrawnOrder | LoggedOrder:
    """Create the order of an epoch that begins now.

    Args:
        sampler: The iteration over the samplers.
        total: See `EpochOrder`.
        numbering: See `EpochOrder`.
        index_sampler: The batch sampler, or the sampler if automatic batching is off.
        generator: The generator from which the epoch's base seed is drawn; None for torch's default generator.
        base_seed: The epoch's base seed if it is not drawn, else None.
        arrays: Whether batches are drawn as arrays of indices.
    """
    copied = frozen(index_sampler)
    if copied is None:
        return LoggedOrder(sampler.seed, total, numbering)
    return RedrawnOrder(
        total, numbering, index_sampler=copied, generator=generator, base_seed=base_seed, state=sampler.state(),
        arrays=arrays,
    )  # fmt: skip


def frozen(sampler: Any) -> Any:
    """Copy a sampler. The copy yields what the sampler would yield now, and refers to no dataset.

    Returns:
        The copy; None if the order depends on more than a length and a generator, for example on weights or on a list
        of indices, which the user may change.
    """
    if type(sampler) is range:
        return sampler
    if type(sampler) not in _redrawable():
        return None
    copied = copy.copy(sampler)
    for name in ("data_source", "dataset"):
        source = vars(copied).get(name)
        if source is not None:
            length = samplers.length(source)
            if length is None:
                return None
            setattr(copied, name, range(length))
    inner = vars(copied).get("sampler")
    if inner is not None:
        copied.sampler = frozen(inner)
        if copied.sampler is None:
            return None
    return copied


def _redrawable() -> set[type]:
    """Return the types of samplers whose order depends only on their parameters, a dataset's length and a generator."""
    from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

    ours = {samplers.FullBatches, samplers.IntervalSampler, samplers.FilterSampler, samplers.LargeRandomSampler}
    return {BatchSampler, SequentialSampler, RandomSampler, DistributedSampler, *ours}


def _copy(sampler: Any, own: dict[int, Any]) -> Any:
    """Copy a frozen sampler. The copy draws from other generators.

    Args:
        sampler: The sampler.
        own: The other generators, each by the id of the generator that it replaces.
    """
    if type(sampler) is range:
        return sampler
    copied = copy.copy(sampler)
    if "sampler" in vars(copied):
        copied.sampler = _copy(copied.sampler, own)
    if "generator" in vars(copied):
        copied.generator = own.get(id(copied.generator), copied.generator)
    return copied


def _position(indices: Any, index: int) -> int | None:
    """Return the position of an index in a batch; None if it is not there."""
    if isinstance(indices, IndexArray):
        found = (indices.array == index).nonzero()[0]
        return int(found[0]) if len(found) else None
    return indices.index(index) if index in indices else None


def as_list(indices: Any) -> Any:
    """Convert an array of indices to a list; return other indices as they are."""
    return indices.array.tolist() if isinstance(indices, IndexArray) else indices


def _packed(indices: list[Any]) -> Any:
    """Copy a list: to an array if all items are Python integers; other items, such as NumPy's, are kept as they are."""
    if set(map(type, indices)) <= {int}:
        try:
            return array.array("q", indices)
        except OverflowError:
            pass
    return list(indices)


def _size(indices: Any) -> int:
    return len(indices) if isinstance(indices, (list, tuple, array.array)) else 1
