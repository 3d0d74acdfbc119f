"""Checkpoints of a loader's position: `state_dict()` and `load_state_dict()`.

A state is JSON-serializable. Its keys are a file format: states written by earlier versions must still load.
"""

from __future__ import annotations

import copy
from typing import Any

from nbloader._util import rng, torch_api
from nbloader._util.rng import mix
from nbloader._util.signals import raised_by_handler
from nbloader._util.state_dict import is_stateful
from nbloader.loader.config import LoaderConfig
from nbloader.loader.saved_state import checked_state, refusal
from nbloader.sampling import samplers
from nbloader.sampling.epoch_plan import EpochContext, EpochPlan, plan_epoch
from nbloader.sampling.resumable_sampler import generators, parts
from nbloader.sampling.source import SourceSampler

VERSION = 1
State = dict[str, Any]


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
        """Whether only the first epoch draws its seed, as in torch, where the iterator persists with its workers."""
        self._loaded: State | None = None
        """A loaded state from which no epoch has resumed yet."""
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
            self._own_seed = rng.draw_seed() if plan is None else mix(plan.seed, VERSION)
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

    def load(self, state: Any, context: EpochContext) -> None:
        """Resume from a state in the next epoch. The whole state is checked before anything is changed.

        Args:
            state: What `state_dict()` returned, possibly via JSON.
            context: What the next epoch would depend on.

        Raises:
            ValueError: The state belongs to another dataset or configuration, or is malformed.
            TypeError: It is not a dict.
        """
        state = checked_state(state, self._identity(context), context)
        if state["epoch"] is None:
            stateful = _stateful_part(context)
            if stateful is not None and state["sampler_state"] is not None:
                saved = copy.deepcopy(state["sampler_state"])
                try:
                    stateful.load_state_dict(saved)
                except ValueError:
                    raise
                except Exception as error:  # although its copy has accepted the state
                    if raised_by_handler(error):
                        raise
                    raise ValueError(refusal("state_dict['sampler_state']", stateful, error)) from error
            sources = generators(context.index_sampler, context.generator)
            for source, saved in zip(sources, state["generators"], strict=True):
                rng.load_generator(source, saved)
        self._own_seed = state["own_seed"]
        self._draws_once, self._first_seed = state["draws_once"], state["first_seed"]
        self._next_epoch = state["next_epoch"]
        self.plan = None
        self._loaded = state

    def plan_epoch(self, context: EpochContext) -> EpochPlan:
        """Plan the next epoch, or the rest of the one that was loaded.

        Args:
            context: What the epoch depends on.
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
        """Return the fields that must be equal in the loader that resumes."""
        return {
            "nbloader": VERSION,
            **({} if torch_api.INSTALLED else {"torch": False}),  # states of earlier versions have no such field
            "kind": "iterable" if context.iterable else "map",
            "length": None if context.iterable else samplers.length(context.dataset),
            "batch_size": context.batch_size,
            "chunk_size": self._config.chunk,
            "last_batch": self._config.incomplete_batch,
            "sampler": "/".join(_name(part) for part in parts(context.index_sampler)),
        }


def _name(sampler: Any) -> str:
    """The name of a sampler's class in states."""
    name = type(sampler).__name__
    return "Endless" if name == "_InfiniteConstantSampler" else name  # torch's class is private


def _stateful_part(context: EpochContext) -> Any:
    return next((part for part in parts(context.index_sampler) if is_stateful(part)), None)
