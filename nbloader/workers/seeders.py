"""The registry of objects with random generators of their own that nbloader seeds for each batch.

Some libraries draw from generators that belong to a transform, not from the global ones. A registered function seeds
such a transform with the seed of the batch, so that it draws the same numbers in whatever worker. albumentations is
registered here.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nbloader.batch.pickling import CodePickler, dump
from nbloader.errors import DatasetTransferError

Seeder: TypeAlias = "Callable[[Any, int], object]"
"""Seeds an object: called with the object and an integer of 32 bits."""


class Seedable(NamedTuple):
    """An object and the function that seeds it."""

    obj: Any
    seed: Seeder


def register_seeder(cls: type | str, seed: Seeder) -> None:
    """Let objects that have random generators of their own be seeded for each batch, like the global generators.

    ::

        nbloader.register_seeder("monai.transforms.transform.Randomizable",
                                 lambda transform, seed: transform.set_random_state(seed))

    The loader looks for objects of the class in the attributes of the dataset and its functions, in the objects that
    these refer to, and in the globals that their methods use. Before each batch it calls `seed` for each of these
    objects. So their random numbers belong to the batch: they do not depend on the worker or on the number of workers,
    and batches can be resumed, replayed and explored. Objects within such an object are left to its function.

    Compositions and transforms of albumentations are registered already; a seed that was given to `Compose` is
    replaced. Workers that are running keep the functions that were registered when they started. An asynchronous
    dataset is an exception, since its samples draw from one object at the same time: its objects are not seeded.

    Args:
        cls: The class. Its subclasses are included. To avoid an import, pass the full name of the class, with the
            module that defines it.
        seed: Called with the object and the seed, an integer from 0 to 2**32 - 1. Each object gets a different seed. It
            is called in the workers, so it must be possible to pickle it; a function from a cell is.

    Raises:
        TypeError: `cls` is neither a class nor the full name of one, or `seed` is not callable.
    """
    name = _name(cls) if isinstance(cls, type) else str(cls)
    module, _, rest = name.partition(".")
    if not (module.isidentifier() and rest):
        raise TypeError(f"register_seeder() takes a class, or its name such as 'package.module.Class', not {cls!r}")
    if not callable(seed):
        raise TypeError(f"the second argument must be a function of an object and a seed, not {seed!r}")
    _registered[name] = seed


def seeder_of(cls: type) -> Seeder | None:
    """Return the function that seeds objects of a class; None if there is none."""
    for base in cls.__mro__:
        name = _name(base)
        found = _registered.get(name) or _BUILT_IN.get(name)
        if found is not None:
            return found
    return None


def may_apply() -> bool:
    """Whether this process can have objects of a registered class. If not, nobody needs to look for them."""
    return bool(_registered) or any(name.partition(".")[0] in sys.modules for name in _BUILT_IN)


def dump_seeders() -> bytes:
    """Return what worker processes need for `load_seeders`.

    Raises:
        DatasetTransferError: A function cannot be pickled.
    """
    if not _registered:
        return b""
    try:
        return dump(_registered, None, CodePickler)
    except Exception as error:  # pickling runs the user's code, which may raise anything
        raise DatasetTransferError(
            f"a function that was given to register_seeder() for {', '.join(_registered)} cannot be sent to worker "
            f"processes: {type(error).__name__}: {error}. Let it refer only to what can be pickled"
        ) from error


def load_seeders(dumped: bytes) -> None:
    """Register in a worker process what was registered in the notebook's process."""
    if dumped:
        _registered.update(pickle.loads(dumped))


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _seed_albumentations(transform: Any, seed: int) -> None:
    """Seed a composition or a transform of albumentations 2.

    `set_random_seed` would give the same seed to each transform of a composition: flips in two directions would then
    always coincide. With `set_random_state` they share generators. Version 1 draws from the global generators.
    """
    set_state = getattr(transform, "set_random_state", None)
    if set_state is not None:
        set_state(np.random.default_rng(seed), random.Random(seed))  # noqa: S311 - augmentation, not cryptography


_registered: dict[str, Seeder] = {}
"""What the user has registered, by the full name of the class."""
_BUILT_IN: dict[str, Seeder] = {
    "albumentations.core.composition.BaseCompose": _seed_albumentations,
    "albumentations.core.transforms_interface.BasicTransform": _seed_albumentations,
}
