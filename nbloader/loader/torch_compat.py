"""Compatibility with torch's loader: start methods, and loaders created from other loaders."""

from __future__ import annotations

import inspect
import multiprocessing
import sys
from typing import Any

import torch

from nbloader._util.user_warning import warn
from nbloader.loader.config import ARGUMENTS, LoaderConfig
from nbloader.sampling.samplers import FullBatches
from nbloader.transport import forker

_SELECTS_SAMPLES = frozenset({
    "self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last",
})  # fmt: skip
"""Parameters of torch's loader that `arguments_of` derives from its samplers."""


def start_method(context: Any) -> str:
    """Return how workers start: "forkserver", "spawn" or "fork".

    "fork" must be requested explicitly. Before Python 3.14, it is the default of `multiprocessing` on Linux, where the
    default cannot be distinguished from `multiprocessing.set_start_method("fork")`, since any lock or queue of
    `multiprocessing`, even tqdm's, fixes it.

    Args:
        context: A context object, or None.
    """
    if context is not None:
        name = context.get_start_method()
    else:
        name = multiprocessing.get_start_method(allow_none=True)
        if name != "fork" or name == multiprocessing.get_all_start_methods()[0]:
            name = "forkserver"
    if name == "fork" and not forker.SUPPORTED:
        warn(
            'multiprocessing_context="fork" is supported on Linux only, with Python\'s `os.pidfd_open`: workers are '
            'started with "forkserver". Pass that, or omit the argument.'
        )
        name = "forkserver"
    return "spawn" if sys.platform == "win32" else str(name)


def may_fork(context: Any) -> bool:
    """Whether workers may be forked if something cannot be pickled, since no other start method was requested.

    "forkserver" counts as requested even where it is the default (since Python 3.14): there,
    `multiprocessing.set_start_method("forkserver")` cannot be distinguished from a default that a lock has fixed.

    Args:
        context: A context object, or None.
    """
    return forker.SUPPORTED and context is None and multiprocessing.get_start_method(allow_none=True) in {None, "fork"}


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
