"""The order of one epoch: what the sampler gives, in such a way that it can be drawn again from where it was.

What an order depends on is kept when it is drawn: the states of the generators that the sampler draws from, or of the
global ones where it has none of its own. To go on in another process the states are put back, the sampler is asked
anew, and what was delivered is passed over: at once where the order can be computed, by a sampler's own
`load_state_dict()` where it has one, else by asking for it.

torch draws a shuffled order from its global generator, and so does an epoch here, as long as nobody has asked for the
state: another process cannot have the same global generator for later epochs. So from the first `state_dict()` or
`load_state_dict()` on, what would be drawn from global generators is drawn from a seed that belongs to the loader.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from nbloader._util import rng
from nbloader._util.rng import PreservedRandomState
from nbloader._util.state_dict import as_json, is_stateful
from nbloader.sampling.batching import LargeRandomSampler
from nbloader.sampling.samplers import FilterSampler, FullBatches, IntervalSampler
from nbloader.sampling.source import Reader


class Course:
    """Gives what the sampler gives, and knows how to get there again.

    Args:
        index_sampler: The batch sampler, or the sampler where batching is off.
        generator: What the epoch's base seed is drawn from; torch's default one when None.
        own: Seed for what would be drawn from global generators; None to draw it from them, as torch does.
        seed: The epoch's base seed; None to draw it.
        begun: What `state()` gave, to go on from there; empty to begin.
        position: How many batches to pass over.

    Raises:
        Exception: Whatever the sampler raises when it is asked to begin.
    """

    def __init__(
        self,
        index_sampler: Any,
        generator: Any,
        *,
        own: int | None,
        seed: int | None,
        begun: dict[str, Any],
        position: int,
    ) -> None:
        self._parts = parts(index_sampler)
        self._stateful = next((part for part in self._parts if is_stateful(part)), None)
        self._states: collections.deque[tuple[int, Any]] = collections.deque()  # (batches drawn, the sampler's state)
        self.keeps_states = self._stateful is not None and not isinstance(self._stateful, FullBatches)
        """Whether the sampler's own state is kept for each batch until that is delivered."""
        self._drawn = position
        self._restore(begun)
        sources = generators(index_sampler, generator)
        for source, kept in zip(sources, begun.get("generators", ()), strict=False):
            rng.load_generator(source, kept)
        self._generators = [source.get_state() for source in sources]
        self._order = begun["order"] if begun else self._order_now() if own is None else own
        again = self._order is not None and (bool(begun) or own is not None)
        with PreservedRandomState() if again else contextlib.nullcontext():
            if again:
                rng.load_globals(self._order)
            self._begin(index_sampler, generator, position, seed, at_once=again)
        if begun:
            self.seed = begun["seed"]

    def _restore(self, begun: dict[str, Any]) -> None:
        if self._stateful is not None and "sampler" in begun:
            self._stateful.load_state_dict(begun["sampler"])
        for part in self._parts:
            if "sampler_epoch" in begun and hasattr(part, "set_epoch"):
                part.set_epoch(begun["sampler_epoch"])
        self._sampler_epoch = next(
            (part.epoch for part in self._parts if type(getattr(part, "epoch", None)) is int), None
        )

    def _order_now(self) -> Any:
        """What the global generators are before they are drawn from; None where the sampler draws nothing from them."""
        strange = not {*map(type, self._parts)} <= _known()
        if self.keeps_states:
            return None
        draws = any(type(part) in _drawing() and part.generator is None for part in self._parts)
        return rng.dump_globals(torch_only=not strange) if strange or draws else None

    def _begin(self, sampler: Any, generator: Any, position: int, seed: int | None, *, at_once: bool) -> None:
        """Ask the sampler to begin, and draw the base seed: in this order, as torch's loader does.

        With the first batch a sampler draws its order: now, if the generators are what they must be only now.
        """
        later = None
        if isinstance(self._stateful, FullBatches):
            self._states.append((-1, self._stateful.state_dict()))  # what it opened with: the rest is asked for again
        elif self.keeps_states:
            position = 0
        elif position:
            later = _from(sampler, position)
        indices = iter(sampler if later is None else later)
        self.seed = draw_seed(generator) if seed is None else seed
        if later is None:
            collections.deque(itertools.islice(indices, position), maxlen=0)  # in C: 30 ns an index
        self.reader = indices if isinstance(indices, Reader) else None
        """Of a source, which is read when it has something."""
        drawn = at_once and not self.keeps_states and self.reader is None
        self._indices = itertools.chain(_first(indices), indices) if drawn else indices
        self._remember()

    def _remember(self) -> None:
        if self.keeps_states and self._stateful is not None:
            self._states.append((self._drawn, copy.deepcopy(self._stateful.state_dict())))

    def __iter__(self) -> Iterator[Any]:
        """Give itself."""
        return self

    def __next__(self) -> Any:
        """What the next batch is made of.

        Raises:
            StopIteration: The epoch is over.
            Exception: Whatever the sampler raises.
        """
        indices = next(self._indices)
        if self.keeps_states:
            self._drawn += 1
            self._remember()
        return indices

    def passed(self, position: int) -> None:
        """So many batches were delivered: nobody will go back behind them."""
        while len(self._states) > 1 and self._states[1][0] <= position:
            self._states.popleft()

    def state(self) -> dict[str, Any]:
        """How to come here again; JSON-able.

        Raises:
            TypeError: The sampler's own state is not.
        """
        state: dict[str, Any] = {
            "seed": self.seed,
            "order": self._order,
            "generators": [rng.pack(kept.numpy()) for kept in self._generators],
        }
        if self._states:
            text, problem = as_json(self._states[0][1], f"{type(self._stateful).__name__}.state_dict()")
            if text is None:
                raise TypeError(problem)
            state["sampler"] = json.loads(text)
        if self._sampler_epoch is not None:
            state["sampler_epoch"] = self._sampler_epoch
        return state


def parts(index_sampler: Any) -> list[Any]:
    """A sampler, and the one inside it if it is one of batches."""
    inner = getattr(index_sampler, "sampler", None)
    return [index_sampler] if inner is None else [index_sampler, inner]


def generators(index_sampler: Any, generator: Any) -> list[Any]:
    """The generators that an epoch draws from, other than the global ones."""
    import torch

    found = [generator, *(getattr(part, "generator", None) for part in parts(index_sampler))]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def draw_seed(generator: Any) -> int:
    """A base seed, drawn as torch draws it, so that `torch.manual_seed` makes epochs repeatable."""
    import torch

    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _first(indices: Iterator[Any]) -> Iterator[Any]:
    """The first item, drawn now: a random order is drawn with it. An error is raised when it is asked for."""
    try:
        item = next(indices)
    except StopIteration:
        return iter(())
    except Exception as error:  # noqa: BLE001 - the user's sampler
        return map(_raise, (error,))
    return iter((item,))


def _raise(error: Exception) -> Any:
    raise error


def _from(sampler: Any, position: int) -> Iterable[Any] | None:
    """The rest of an order that can be computed, without asking for what comes before; None for another sampler."""
    from torch.utils.data import BatchSampler, SequentialSampler

    if type(sampler) is BatchSampler:
        rest = _from(sampler.sampler, position * sampler.batch_size)
        return None if rest is None else BatchSampler(rest, sampler.batch_size, sampler.drop_last)
    if type(sampler) is SequentialSampler:
        return range(position, len(sampler))
    return _Later(sampler, position) if type(sampler) is LargeRandomSampler else None


class _Later:
    """The rest of a computed order, which is drawn when it is iterated."""

    def __init__(self, sampler: LargeRandomSampler, position: int) -> None:
        self._sampler = sampler
        self._position = position

    def __iter__(self) -> Iterator[int]:
        return self._sampler.later(self._position)


def _drawing() -> set[type]:
    from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    return {RandomSampler, SubsetRandomSampler, WeightedRandomSampler, LargeRandomSampler}


def _known() -> set[type]:
    """Samplers of which it is known whether they draw from global generators."""
    from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

    plain = {BatchSampler, SequentialSampler, DistributedSampler, FullBatches, IntervalSampler, FilterSampler}
    return {*plain, *_drawing(), list, tuple, range}
