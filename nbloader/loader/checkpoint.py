"""Where a loader is, told so that another process can go on from there: `state_dict()` and `load_state_dict()`."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from nbloader._util import rng
from nbloader._util.rng import PreservedRandomState, mix
from nbloader._util.state_dict import is_stateful
from nbloader.sampling import samplers
from nbloader.sampling.epoch_plan import EpochContext, EpochPlan, plan_epoch
from nbloader.sampling.resumable_sampler import draw_seed, generators, parts
from nbloader.sampling.source import Source

if TYPE_CHECKING:
    from nbloader.engine.iterator import EpochIterator

VERSION = 1
State = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "nbloader": (int,), "kind": (str,), "length": (int, type(None)), "batch_size": (int, type(None)),
    "chunk_size": (int, type(None)),
    "last_batch": (str,), "sampler": (str,), "next_epoch": (int,), "own_seed": (int,),
    "draws_once": (bool,), "first_seed": (int, type(None)), "generators": (list,),
    "sampler_state": (dict, type(None)), "epoch": (dict, type(None)),
}  # fmt: skip
_EPOCH_TYPES: dict[str, dict[str, tuple[type, ...]]] = {
    "map": {
        "number": (int,), "seed": (int,), "position": (int,), "beyond": (list,), "order": (int, dict, type(None)),
        "generators": (list,),
    },
    "iterable": {
        "number": (int,), "seed": (int,), "samples": (int,), "count": (int,), "shards": (list,), "generators": (list,),
    },
}  # fmt: skip
_SHARD_TYPES: dict[str, tuple[type, ...]] = {
    "position": (int,), "beyond": (list,), "over": (bool,), "state": (list, type(None)),
}  # fmt: skip


class Resuming:
    """The part of `DataLoader` that tells where it is, and goes on from there."""

    dataset: Any
    batch_size: int | None
    last_batch: str | None
    drop_last: bool
    generator: Any
    persistent_workers: bool
    _iterable: bool
    _chunk: int | None
    _ahead: EpochIterator[Any] | None
    _index_sampler: Any
    _draw: EpochPlan | None = None
    """Of the epoch that a consumer began last."""
    _own_seed: int | None = None
    """What is drawn from instead of global generators, once somebody asked for the state."""
    _first_seed: int | None = None
    """What later epochs' seeds are made of, if only the first one draws its seed."""
    _drew_once: bool | None = None
    """Whether only the first epoch drew its seed in the process that a loaded state is of."""
    _loaded: State | None = None
    """A state that no epoch has gone on from yet."""
    _next_epoch = 0
    """Number of the next epoch."""

    def state_dict(self) -> State:
        """Where the loader is: which batches of which epoch have been delivered, and how the rest is to be drawn.

        The batch that the loop is at counts as delivered. At any moment; the state is JSON-able and a few kB, however
        large the dataset is. The names are those of torchdata's StatefulDataLoader.

        From the first call on, what would be drawn from torch's global generator (the order with `shuffle=True` and no
        `generator=`, and the seeds) is drawn from a seed of the loader's own, here and in the process that resumes:
        both then give the same later epochs, which `torch.manual_seed` no longer changes.

        Raises:
            TypeError: The state of a sampler of yours cannot be kept as JSON, or the loader is over a source.
        """
        if isinstance(self._index_sampler, Source):
            raise TypeError("a loader over a source has no state: only the source could tell what it gives next")
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        draw = self._draw
        if (draw is None or draw.over) and self._ahead is not None:
            draw = self._ahead.plan
        if self._own_seed is None:
            self._own_seed = draw_seed(None) if draw is None else mix(draw.seed, VERSION)
        current = None if draw is None or draw.over else {"number": draw.number, **draw.state()}
        stateful = next((part for part in parts(self._index_sampler) if is_stateful(part)), None)
        sources = generators(self._index_sampler, self.generator)
        return {
            **self._fitting(),
            "next_epoch": self._next_epoch if current is None else current["number"] + 1,
            "own_seed": self._own_seed,
            "draws_once": self._draws_once,
            "first_seed": self._first_seed,
            "generators": [rng.dump_generator(g) for g in sources] if current is None else [],
            "sampler_state": None if stateful is None or current is not None else stateful.state_dict(),
            "epoch": current,
        }

    def load_state_dict(self, state_dict: State) -> None:
        """Go on, with the next `iter(loader)`, where `state_dict()` was called, in this process or another one.

        The rest of that epoch and all later ones are the same to the byte, whatever the number of workers. With an
        iterable dataset the rest of the epoch is given in as many shards as there were; later epochs are sharded by the
        number of workers here.

        Args:
            state_dict: What `state_dict()` gave, maybe written and read as JSON in between.

        Raises:
            ValueError: It is of another dataset or of other arguments, or cannot be read; the loader stays as it is.
            TypeError: It is no dict.
        """
        _check(state_dict, self._fitting())
        sources = generators(self._index_sampler, self.generator)
        total = None if self._iterable else samplers.length(self._index_sampler)
        _check_epoch(state_dict, len(sources), total)
        state = copy.deepcopy(state_dict)
        if state["epoch"] is None:
            for generator, kept in zip(sources, state["generators"], strict=True):
                rng.load_generator(generator, kept)
            stateful = next((part for part in parts(self._index_sampler) if is_stateful(part)), None)
            if stateful is not None and state["sampler_state"] is not None:
                stateful.load_state_dict(state["sampler_state"])
        self.clean()
        self._own_seed = state["own_seed"]
        self._drew_once, self._first_seed = state["draws_once"], state["first_seed"]
        self._next_epoch = state["next_epoch"]
        self._draw = None
        self._loaded = state

    @property
    def _draws_once(self) -> bool:
        """Whether only the first epoch draws its seed: with persistent workers torch's iterator stays, too."""
        return self.persistent_workers if self._drew_once is None else self._drew_once

    def _begin_draw(self) -> EpochPlan:
        """Begin an epoch, or go on with the one that was loaded."""
        state, self._loaded = self._loaded, None
        begun = (state or {}).get("epoch") or {}
        number = begun.get("number", self._next_epoch)
        own = None if self._own_seed is None else mix(self._own_seed, number)
        seed = None if self._first_seed is None else mix(self._first_seed, number)
        if state is not None and begun:  # it drew its seed if it was the first one
            seed = begun["seed"] if state["first_seed"] not in (None, begun["seed"]) else None
        try:
            draw = plan_epoch(self._epoch_context(), loader_seed=own, base_seed=seed, resume_from=begun)
        except BaseException:
            self._loaded = state
            raise
        if self._draws_once and self._first_seed is None:
            self._first_seed = draw.seed
        draw.number = number
        self._next_epoch = number + 1
        return draw

    def _fitting(self) -> State:
        """What must be the same in the loader that goes on."""
        return {
            "nbloader": VERSION,
            "kind": "iterable" if self._iterable else "map",
            "length": None if self._iterable else samplers.length(self.dataset),
            "batch_size": self.batch_size,
            "chunk_size": self._chunk,
            "last_batch": self.last_batch or ("discard" if self.drop_last else "keep"),
            "sampler": "/".join(type(part).__name__ for part in parts(self._index_sampler)),
        }

    def clean(self) -> None:
        """See `Turns`."""
        raise NotImplementedError

    def _epoch_context(self) -> EpochContext:
        """See `DataLoader`."""
        raise NotImplementedError


def _check(state: Any, fitting: State) -> None:
    if not isinstance(state, dict):
        raise TypeError(f"load_state_dict takes what state_dict() gave, a dict, not {type(state).__name__}: {state!r}")
    if state.get("nbloader") != VERSION:
        raise ValueError(
            f"this state is of version {state.get('nbloader')!r}; this nbloader reads version {VERSION}, which "
            "DataLoader.state_dict() gives"
        )
    _check_types(state, _TYPES, "the state")
    for name, value in fitting.items():
        if state[name] != value:
            what = "len(dataset)" if name == "length" else name
            raise ValueError(f"this state does not fit: it was made with {what}={state[name]!r}, here it is {value!r}")


def _check_epoch(state: State, sources: int, total: int | None) -> None:
    """Check what the state says of an epoch under way, and of generators.

    Args:
        state: The state.
        sources: Generators that this loader draws from, other than the global ones.
        total: Batches of an epoch; None where that is not known.
    """
    epoch = state["epoch"]
    if epoch is not None:
        _check_types(epoch, _EPOCH_TYPES[state["kind"]], "the epoch of the state")
        if state["kind"] == "map":
            _check_position(epoch, None if state["last_batch"] == "rollover" else total)
        else:
            _check_shards(epoch)
    kept = state["generators"] if epoch is None else epoch["generators"]
    if len(kept) != sources:
        raise ValueError(f"this state does not fit: it was made with {len(kept)} generators, here there are {sources}")
    with PreservedRandomState():  # read once, so that what cannot be read is told now
        for text in kept:
            rng.load_generator(torch.Generator(), text)
        if epoch is not None and epoch.get("order") is not None:
            rng.load_globals(epoch["order"])


def _check_position(epoch: State, total: int | None) -> None:
    position = epoch["position"]
    if total is not None and position > total:
        raise ValueError(f"this state does not fit: position {position} lies beyond an epoch that has {total} batches")
    if not all(type(number) is int and number > position for number in epoch["beyond"]):
        raise ValueError(
            f"this state cannot be read: 'beyond' must hold batch numbers above {position}, not {epoch['beyond']}"
        )


def _check_shards(epoch: State) -> None:
    for shard in epoch["shards"]:
        _check_types(shard, _SHARD_TYPES, "a shard of the state")
        _check_position(shard, None)
        known = shard["state"]
        if known is not None and not (
            type(known[0]) is int and 0 <= known[0] <= shard["position"] and len(known[1:]) == 1
        ):
            raise ValueError(
                "this state cannot be read: 'state' of a shard must be a position up to its own, and a state"
            )
    if len(epoch["shards"]) != max(1, epoch["count"]):
        raise ValueError(f"this state cannot be read: {epoch['count']} shards, but {len(epoch['shards'])} are there")


def _check_types(state: Any, types: dict[str, tuple[type, ...]], where: str) -> None:
    for name, allowed in types.items():
        if not isinstance(state, dict) or name not in state:
            raise ValueError(f"this state cannot be read: {where} has no {name!r}")
        value = state[name]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            names = " or ".join(t.__name__ for t in allowed)
            raise ValueError(f"this state cannot be read: {name!r} of {where} must be {names}, not {value!r}")
        if isinstance(value, int) and name != "own_seed" and value < 0:
            raise ValueError(f"this state cannot be read: {name!r} of {where} must not be negative, not {value!r}")
