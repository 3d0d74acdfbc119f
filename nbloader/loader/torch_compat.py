"""Compatibility with torch's loader: start methods, and loaders created from other loaders."""

from __future__ import annotations

import inspect
import multiprocessing
from typing import Any

import torch

from nbloader._platform import CAN_FORK, START_METHODS
from nbloader._util.user_warning import warn
from nbloader.frontend.host import in_marimo
from nbloader.loader.config import ARGUMENTS, LoaderConfig
from nbloader.sampling.samplers import FullBatches

_SELECTS_SAMPLES = frozenset({
    "self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last",
})  # fmt: skip
"""Parameters of torch's loader that `arguments_of` derives from its samplers."""


def start_method(context: Any) -> str:
    """Return how workers start: "fork", "forkserver" or "spawn".

    "fork" is the default, for each version of Python, where processes can be forked safely enough: on Linux.
    `multiprocessing`'s own default counts only if it was changed: any lock or queue of `multiprocessing`, even tqdm's,
    fixes it. So `set_start_method("forkserver")` has no effect since Python 3.14, where it is the default. Without
    zygotes, "forkserver" starts new interpreters: its workers are clean ones, too.

    Args:
        context: A context object, or None.
    """
    name = _requested(context)
    return name if name in START_METHODS else START_METHODS[0]


def _requested(context: Any) -> str | None:
    """Return the start method that the user has chosen, by a context or for all of `multiprocessing`; None if none."""
    if context is not None:
        return str(context.get_start_method())
    if in_marimo():  # it starts its process for the notebook with "spawn", which the notebook inherits
        return None
    name = multiprocessing.get_start_method(allow_none=True)
    return None if name == multiprocessing.get_all_start_methods()[0] else name


def warn_of_start_method(context: Any) -> None:
    """Warn if workers start by another method than the user has chosen.

    Args:
        context: A context object, or None.
    """
    if _requested(context) == "fork" and not CAN_FORK:
        warn(
            'multiprocessing_context="fork" is supported on Linux only, with Python\'s `os.pidfd_open`: workers are '
            f'started with "{START_METHODS[0]}". Pass that, or omit the argument.'
        )


def may_heal(context: Any) -> bool:
    """Whether no start method was requested, so that workers need not be forks of this process.

    Args:
        context: A context object, or None.
    """
    return _requested(context) is None


def arguments_of(loader: Any) -> dict[str, Any]:
    """Return the arguments with which a loader of torch or nbloader can be recreated.

    Samplers are reused, not copied: their owner may call `set_epoch` on them.
    """
    config = getattr(loader, "_config", None)
    ours = isinstance(config, LoaderConfig)
    iterable = (
        config.iterable
        if isinstance(config, LoaderConfig)
        else isinstance(loader.dataset, torch.utils.data.IterableDataset)
    )
    names = (
        ARGUMENTS if ours else frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
    ) - _SELECTS_SAMPLES
    given = vars(loader)  # what the user gave, where a property shows what is in effect
    arguments = {name: given.get(name, getattr(loader, name)) for name in names if hasattr(loader, name)}
    arguments["dataset"] = loader.dataset
    batch_sampler = loader.batch_sampler
    if iterable:
        arguments.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
    elif batch_sampler is None:
        arguments.update(batch_size=None, sampler=loader.sampler)
    elif type(batch_sampler) in {torch.utils.data.BatchSampler, FullBatches} and loader.batch_size is not None:
        arguments.update(batch_size=loader.batch_size, sampler=loader.sampler, drop_last=loader.drop_last)
    else:
        arguments["batch_sampler"] = batch_sampler
    return arguments
