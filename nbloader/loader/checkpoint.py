"""Checkpoints of a loader's position: `state_dict()` and `load_state_dict()`.

A state is JSON-serializable. Its keys are a file format: states written by earlier versions must still load.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from nbloader._util import rng
from nbloader._util.rng import PreservedRandomState, mix
from nbloader._util.state_dict import is_stateful
from nbloader.loader.config import LoaderConfig
from nbloader.sampling import samplers
from nbloader.sampling.epoch_plan import EpochContext, EpochPlan, plan_epoch
from nbloader.sampling.resumable_sampler import draw_seed, generators, parts
from nbloader.sampling.source import SourceSampler

VERSION = 1
State = dict[str, Any]
_Types = dict[str, tuple[type, ...]]

_NONE = type(None)
_STATE_TYPES: _Types = {
    "nbloader": (int,),
    "kind": (str,),
    "length": (int, _NONE),
    "batch_size": (int, _NONE),
    "chunk_size": (int, _NONE),
    "last_batch": (str,),
    "sampler": (str,),
    "next_epoch": (int,),
    "own_seed": (int,),
    "draws_once": (bool,),
    "first_seed": (int, _NONE),
    "generators": (list,),
    "sampler_state": (dict, _NONE),
    "epoch": (dict, _NONE),
}
_EPOCH_TYPES: dict[str, _Types] = {
    "map": {
        "number": (int,),
        "seed": (int,),
        "position": (int,),
        "beyond": (list,),
        "order": (int, dict, _NONE),
        "generators": (list,),
    },
    "iterable": {
        "number": (int,),
        "seed": (int,),
        "samples": (int,),
        "count": (int,),
        "shards": (list,),
        "generators": (list,),
    },
}
_SHARD_TYPES: _Types = {"position": (int,), "beyond": (list,), "over": (bool,), "state": (list, _NONE)}


class Checkpoint:
    """Numbers and seeds the epochs of a loader, saves its position and resumes from a saved one.

    Args:
        config: The loader's configuration.
    """

    def __init__(self, config: LoaderConfig[Any]) -> None:
        self._config = config
        self.plan: EpochPlan | None = None
        """The plan of the epoch that a consumer started last."""
        self._own_seed: int | None = None
        """Replaces the global generators, from the first `state_dict()` on."""
        self._first_seed: int | None = None
        """What the seeds of later epochs are derived from, if only the first epoch draws its seed."""
        self._draws_once = config.persistent_workers
        """Whether only the first epoch draws its seed, as in torch, where the iterator stays with its workers."""
        self._loaded: State | None = None
        """A state that was loaded, and from which no epoch has resumed yet."""
        self._next_epoch = 0

    def state_dict(self, context: EpochContext, prefetched: EpochPlan | None) -> State:
        """See `DataLoader.state_dict`.

        Args:
            context: What the next epoch would depend on.
            prefetched: The plan of an epoch that was started before a consumer asked for it.
        """
        if isinstance(context.index_sampler, SourceSampler):
            raise TypeError("a loader over a source has no state: only the source knows what it yields next")
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        plan = self.plan
        if (plan is None or plan.over) and prefetched is not None:
            plan = prefetched
        if self._own_seed is None:
            self._own_seed = draw_seed(None) if plan is None else mix(plan.seed, VERSION)
        epoch = None if plan is None or plan.over else {"number": plan.number, **plan.state()}
        between_epochs = epoch is None
        stateful = _stateful_part(context)
        sources = generators(context.index_sampler, context.generator)
        return {
            **self._identity(context),
            "next_epoch": self._next_epoch if epoch is None else epoch["number"] + 1,
            "own_seed": self._own_seed,
            "draws_once": self._draws_once,
            "first_seed": self._first_seed,
            "generators": [rng.dump_generator(source) for source in sources] if between_epochs else [],
            "sampler_state": stateful.state_dict() if between_epochs and stateful is not None else None,
            "epoch": epoch,
        }

    def check(self, state: Any, context: EpochContext) -> None:
        """Check a state before anything is changed.

        Args:
            state: What `state_dict()` returned, possibly via JSON.
            context: What the next epoch would depend on.

        Raises:
            ValueError: It belongs to another dataset or configuration, or is malformed.
            TypeError: It is not a dict.
        """
        _check_state(state, self._identity(context))
        sources = generators(context.index_sampler, context.generator)
        total = None if context.iterable else samplers.length(context.index_sampler)
        _check_epoch(state, len(sources), total)

    def load(self, state: State, context: EpochContext) -> None:
        """Resume from a state that `check` accepted, with the next epoch.

        Args:
            state: The state.
            context: What the next epoch would depend on.
        """
        state = copy.deepcopy(state)
        if state["epoch"] is None:
            sources = generators(context.index_sampler, context.generator)
            for source, saved in zip(sources, state["generators"], strict=True):
                rng.load_generator(source, saved)
            stateful = _stateful_part(context)
            if stateful is not None and state["sampler_state"] is not None:
                stateful.load_state_dict(state["sampler_state"])
        self._own_seed = state["own_seed"]
        self._draws_once, self._first_seed = state["draws_once"], state["first_seed"]
        self._next_epoch = state["next_epoch"]
        self.plan = None
        self._loaded = state

    def plan_epoch(self, context: EpochContext) -> EpochPlan:
        """Plan the next epoch, or the rest of the one that was loaded.

        Args:
            context: What it depends on.
        """
        state, self._loaded = self._loaded, None
        resume_from = (state or {}).get("epoch") or {}
        number = resume_from.get("number", self._next_epoch)
        loader_seed = None if self._own_seed is None else mix(self._own_seed, number)
        base_seed = None if self._first_seed is None else mix(self._first_seed, number)
        if state is not None and resume_from:  # it drew its seed if it was the first one
            base_seed = resume_from["seed"] if state["first_seed"] not in (None, resume_from["seed"]) else None
        try:
            plan = plan_epoch(context, loader_seed=loader_seed, base_seed=base_seed, resume_from=resume_from)
        except BaseException:
            self._loaded = state
            raise
        if self._draws_once and self._first_seed is None:
            self._first_seed = plan.seed
        plan.number = number
        self._next_epoch = number + 1
        return plan

    def _identity(self, context: EpochContext) -> State:
        """What must be equal in the loader that resumes."""
        return {
            "nbloader": VERSION,
            "kind": "iterable" if context.iterable else "map",
            "length": None if context.iterable else samplers.length(context.dataset),
            "batch_size": context.batch_size,
            "chunk_size": self._config.chunk,
            "last_batch": self._config.incomplete_batch,
            "sampler": "/".join(type(part).__name__ for part in parts(context.index_sampler)),
        }


def _stateful_part(context: EpochContext) -> Any:
    return next((part for part in parts(context.index_sampler) if is_stateful(part)), None)


def _check_state(state: Any, identity: State) -> None:
    if not isinstance(state, dict):
        raise TypeError(
            f"load_state_dict takes what state_dict() returned, a dict, not {type(state).__name__}: {state!r}"
        )
    if state.get("nbloader") != VERSION:
        raise ValueError(
            f"this state has version {state.get('nbloader')!r}; this nbloader reads version {VERSION}, which "
            "DataLoader.state_dict() writes"
        )
    _check_types(state, _STATE_TYPES, "the state")
    for name, value in identity.items():
        if state[name] != value:
            what = "len(dataset)" if name == "length" else name
            raise ValueError(f"this state does not fit: it was saved with {what}={state[name]!r}, here it is {value!r}")


def _check_epoch(state: State, sources: int, total: int | None) -> None:
    """Check what a state says about the epoch in progress, and about generators.

    Args:
        state: The state.
        sources: Number of generators that this loader draws from, other than the global ones.
        total: Batches of an epoch; None where unknown.
    """
    epoch = state["epoch"]
    if epoch is not None:
        _check_types(epoch, _EPOCH_TYPES[state["kind"]], "the epoch of the state")
        if state["kind"] == "map":
            _check_position(epoch, None if state["last_batch"] == "rollover" else total)
        else:
            _check_shards(epoch)
    saved = state["generators"] if epoch is None else epoch["generators"]
    if len(saved) != sources:
        raise ValueError(
            f"this state does not fit: it was saved with {len(saved)} generators, here there are {sources}"
        )
    with PreservedRandomState():  # decode all of it now, so that errors show before anything is changed
        for text in saved:
            rng.load_generator(torch.Generator(), text)
        if epoch is not None and epoch.get("order") is not None:
            rng.load_globals(epoch["order"])


def _check_position(epoch: State, total: int | None) -> None:
    position = epoch["position"]
    if total is not None and position > total:
        raise ValueError(
            f"this state does not fit: position {position} lies beyond the end of an epoch with {total} batches"
        )
    if not all(type(number) is int and number > position for number in epoch["beyond"]):
        raise ValueError(
            f"this state cannot be read: 'beyond' must hold batch numbers above {position}, not {epoch['beyond']}"
        )


def _check_shards(epoch: State) -> None:
    for shard in epoch["shards"]:
        _check_types(shard, _SHARD_TYPES, "a shard of the state")
        _check_position(shard, None)
        _check_iterator_state(shard["state"], shard["position"])
    if len(epoch["shards"]) != max(1, epoch["count"]):
        raise ValueError(f"this state cannot be read: it has {len(epoch['shards'])} shards instead of {epoch['count']}")


def _check_iterator_state(saved: list[Any] | None, shard_position: int) -> None:
    if saved is None:
        return
    match saved:
        case [int() as position, _state] if not isinstance(position, bool) and 0 <= position <= shard_position:
            return
    raise ValueError(
        "this state cannot be read: 'state' of a shard must be a position up to that of the shard, and a state"
    )


def _check_types(state: Any, types: _Types, where: str) -> None:
    for name, allowed in types.items():
        if not isinstance(state, dict) or name not in state:
            raise ValueError(f"this state cannot be read: {where} has no {name!r}")
        value = state[name]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            names = " or ".join(t.__name__ for t in allowed)
            raise ValueError(f"this state cannot be read: {name!r} of {where} must be {names}, not {value!r}")
        if isinstance(value, int) and name != "own_seed" and value < 0:
            raise ValueError(f"this state cannot be read: {name!r} of {where} must not be negative, not {value!r}")
