"""A sampler whose order can be reproduced, so that an interrupted epoch can be resumed in another process.

Before an order is drawn, everything that it depends on is saved: the states of the generators that the sampler draws
from, or of the global generators if the sampler has none. To resume, these states are restored, the sampler is iterated
again, and the batches that were delivered are skipped. They are skipped without iteration if the order can be computed
or if the sampler has a `load_state_dict()`; otherwise, by iterating over them.

torch draws a shuffled order from its global generator, and so does an epoch here until the user requests the state.
But in later epochs, another process cannot have the same global generator. So after the first `state_dict()` or
`load_state_dict()`, a seed that belongs to the loader replaces the global generators.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from nbloader._util import rng
from nbloader._util.rng import PreservedRandomState
from nbloader._util.signals import raised_by_handler
from nbloader._util.state_dict import as_json, is_stateful
from nbloader.sampling.index_arrays import array_batches
from nbloader.sampling.samplers import (
    FilterSampler,
    FullBatches,
    IntervalSampler,
    LargeRandomSampler,
    RemainingPermutation,
)
from nbloader.sampling.source import SourceReader

BEFORE_EPOCH = -1
"""Position of a `SavedState` that was taken before the epoch began."""


class SavedState(NamedTuple):
    """The state of a stateful sampler at a position of the epoch."""

    position: int
    """Number of batches drawn before, or `BEFORE_EPOCH`."""
    state: Any


class ResumableSampler:
    """Iterates over a sampler, and can return to any position of that iteration.

    Args:
        index_sampler: The batch sampler, or the sampler if automatic batching is off.
        generator: The generator from which the epoch's base seed is drawn; None for torch's default generator.
        loader_seed: Seed that replaces the global generators; None to draw from them, as torch does.
        base_seed: The epoch's base seed; None to draw it.
        resume_from: A result of `state()`, to resume from; empty to start the epoch.
        position: Number of batches to skip.
        arrays: Whether batches may be drawn as arrays of indices.

    Raises:
        Exception: Whatever the sampler's `__iter__` raises.
    """

    def __init__(
        self,
        index_sampler: Any,
        generator: Any,
        *,
        loader_seed: int | None,
        base_seed: int | None,
        resume_from: dict[str, Any],
        position: int,
        arrays: bool,
    ) -> None:
        self._arrays = arrays
        self._parts = parts(index_sampler)
        self._stateful = next((part for part in self._parts if is_stateful(part)), None)
        self._states: collections.deque[SavedState] = collections.deque()
        self.keeps_states = self._stateful is not None and not isinstance(self._stateful, FullBatches)
        """Whether the sampler's own state is saved for each batch until the batch is delivered."""
        self._problem = ""  # why the sampler's own state cannot be saved
        self._drawn = position
        self._restore(resume_from)
        sources = generators(index_sampler, generator)
        for source, kept in zip(sources, resume_from.get("generators", ()), strict=False):
            rng.load_generator(source, kept)
        self._generators = [source.get_state() for source in sources]
        self._order = (
            resume_from["order"] if resume_from else self._global_state() if loader_seed is None else loader_seed
        )
        again = self._order is not None and (bool(resume_from) or loader_seed is not None)
        with PreservedRandomState() if again else contextlib.nullcontext():
            if again:
                rng.load_globals(self._order)
            begin = time.perf_counter_ns()
            self._begin(index_sampler, generator, position, base_seed, at_once=again)
            self.opened_in = time.perf_counter_ns() - begin
            """How long the sampler's `__iter__` and skipping batches took, ns. Many samplers draw their order there."""
        if resume_from:
            self.seed = resume_from["seed"]

    def _restore(self, resume_from: dict[str, Any]) -> None:
        if self._stateful is not None and "sampler" in resume_from:
            self._stateful.load_state_dict(resume_from["sampler"])
        for part in self._parts:
            if "sampler_epoch" in resume_from and hasattr(part, "set_epoch"):
                part.set_epoch(resume_from["sampler_epoch"])
        self._sampler_epoch = next(
            (part.epoch for part in self._parts if type(getattr(part, "epoch", None)) is int), None
        )

    def _global_state(self) -> Any:
        """Return the state of the global generators; None if it is not needed to reproduce the order.

        It is not needed if the sampler does not draw from these generators, or if its own states are saved.
        """
        strange = not {*map(type, self._parts)} <= _known()
        if self.keeps_states:
            return None
        draws = any(type(part) in _drawing() and part.generator is None for part in self._parts)
        return rng.dump_globals(orders_only=not strange) if strange or draws else None

    def _begin(self, sampler: Any, generator: Any, position: int, base_seed: int | None, *, at_once: bool) -> None:
        """Start iterating over the sampler, then draw the base seed: in this order, as torch's loader does.

        Args:
            sampler: The index sampler.
            generator: The generator of the base seed.
            position: Number of batches to skip.
            base_seed: The base seed; None to draw it.
            at_once: Whether to draw the first batch now. The global generators have the right state only during this
                call, and a sampler draws its order together with its first batch.
        """
        remaining = None
        if isinstance(self._stateful, FullBatches):
            self._states.append(SavedState(BEFORE_EPOCH, self._stateful.state_dict()))  # the rest is drawn again
        elif self.keeps_states:
            position = 0
        elif position:
            remaining = _remaining(sampler, position)
        source = sampler if remaining is None else remaining
        indices = (array_batches(source) if self._arrays else None) or iter(source)
        self.seed = rng.draw_seed(generator) if base_seed is None else base_seed
        if remaining is None:
            collections.deque(itertools.islice(indices, position), maxlen=0)  # in C: 30 ns per index
        self.reader = indices if isinstance(indices, SourceReader) else None
        """The reader of a source; it must not be read before something is buffered."""
        drawn = at_once and not self.keeps_states and self.reader is None
        self._indices = itertools.chain(_first(indices), indices) if drawn else indices
        self._save()

    def _save(self) -> None:
        if not self.keeps_states or self._stateful is None:
            return
        try:
            state = copy.deepcopy(self._stateful.state_dict())
        except Exception as error:  # noqa: BLE001 - the user's code; nobody has asked for a state yet
            what = f"{type(self._stateful).__name__}.state_dict()"
            self._problem = f"{what} raised {type(error).__name__}: {error}. It is called without arguments"
            self.keeps_states = False
            self._states.clear()
        else:
            self._states.append(SavedState(self._drawn, state))

    def __iter__(self) -> Iterator[Any]:
        """The iterator itself."""
        return self

    def __next__(self) -> Any:
        """The indices of the next batch.

        Raises:
            StopIteration: The epoch is over.
            Exception: Whatever the sampler raises.
        """
        indices = next(self._indices)
        if self.keeps_states:
            self._drawn += 1
            self._save()
        return indices

    def end(self) -> None:
        """Release the sampler's iterator: nothing is drawn any more. A generator executes its `finally` clauses."""
        self._indices = iter(())

    def forget_before(self, position: int) -> None:
        """Drop the saved states that are no longer needed once this many batches were delivered."""
        while len(self._states) > 1 and self._states[1].position <= position:
            self._states.popleft()

    def state(self) -> dict[str, Any]:
        """Return what is needed to resume here; JSON-serializable.

        Raises:
            TypeError: The sampler's own state cannot be saved, or is not JSON-serializable.
        """
        if self._problem:
            raise TypeError(self._problem)
        state: dict[str, Any] = {
            "seed": self.seed,
            "order": self._order,
            "generators": [rng.pack(kept.numpy()) for kept in self._generators],
        }
        if self._states:
            text, problem = as_json(self._states[0].state, f"{type(self._stateful).__name__}.state_dict()")
            if text is None:
                raise TypeError(problem)
            state["sampler"] = json.loads(text)
        if self._sampler_epoch is not None:
            state["sampler_epoch"] = self._sampler_epoch
        return state


def parts(index_sampler: Any) -> list[Any]:
    """Return the sampler and, for a batch sampler, also the sampler that it wraps."""
    inner = getattr(index_sampler, "sampler", None)
    return [index_sampler] if inner is None else [index_sampler, inner]


def generators(index_sampler: Any, generator: Any) -> list[Any]:
    """Return the generators that an epoch draws from, except the global ones."""
    found = [generator, *(getattr(part, "generator", None) for part in parts(index_sampler))]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _first(indices: Iterator[Any]) -> Iterator[Any]:
    """Draw the first item now, and a random order with it. An error is raised when the item is requested."""
    try:
        item = next(indices)
    except StopIteration:
        return iter(())
    except Exception as error:  # code of the user's sampler
        if raised_by_handler(error):
            raise
        return map(_raise, (error,))
    return iter((item,))


def _raise(error: Exception) -> Any:
    raise error


def _remaining(sampler: Any, position: int) -> Iterable[Any] | None:
    """Return the order after `position` if it can be computed without the part before it; None for other samplers."""
    from torch.utils.data import BatchSampler, SequentialSampler

    if type(sampler) is BatchSampler:
        rest = _remaining(sampler.sampler, position * sampler.batch_size)
        return None if rest is None else BatchSampler(rest, sampler.batch_size, sampler.drop_last)
    if type(sampler) is SequentialSampler:
        return range(position, len(sampler))
    return RemainingPermutation(sampler, position) if type(sampler) is LargeRandomSampler else None


def _drawing() -> set[type]:
    """Return the types of samplers that draw from `generator`, or from the global generator if that is None."""
    from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    return {RandomSampler, SubsetRandomSampler, WeightedRandomSampler, LargeRandomSampler}


def _known() -> set[type]:
    """Return the types of samplers for which it is known whether they draw from global generators."""
    from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

    plain = {BatchSampler, SequentialSampler, DistributedSampler, FullBatches, IntervalSampler, FilterSampler}
    return {*plain, *_drawing(), list, tuple, range}
