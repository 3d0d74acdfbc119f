"""torch's own habits, kept for programs that count on them: start methods, attributes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import sys
import warnings
from typing import Any

from nbloader._util.system import cores

CROWD = 16
"""Workers per core from which on torch's warning about too many is given; fewer are right for work that waits."""


def check_context(context: Any, num_workers: int) -> Any:
    """The `multiprocessing_context` as torch keeps it: a context object, or None.

    Raises:
        ValueError: A name that is no start method here, or there are no workers.
        TypeError: Neither a name nor a context.
    """
    if context is None:
        return None
    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}"
        )
    if isinstance(context, str):
        valid = multiprocessing.get_all_start_methods()
        if context not in valid:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {valid!r}, but got "
                f"multiprocessing_context={context!r}"
            )
        return multiprocessing.get_context(context)
    if not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start method, "
            f"but got multiprocessing_context={context!r}"
        )
    return context


def start_method(context: Any) -> str:
    """How workers start: "forkserver" or "spawn"; "fork" is taken for the first, with a warning.

    A kernel has several threads, and a fork of it can stand still for ever in a lock that one of them held.

    Args:
        context: What `check_context` gave.
    """
    name = context.get_start_method() if context is not None else None
    if name == "fork":
        warnings.warn(
            "multiprocessing_context names fork: a process with threads (a notebook's kernel has about nine) cannot be "
            'forked safely, so workers start by "forkserver", which takes about 10 ms each. Name that, or leave the '
            "argument out.",
            stacklevel=3,  # the line that made the loader
        )
    return "spawn" if name == "spawn" or sys.platform == "win32" else "forkserver"


def warn_of_a_crowd(num_workers: int) -> None:
    """Warn as torch does when there are very many workers for the cores of this machine."""
    if num_workers > CROWD * cores():
        warnings.warn(
            f"This DataLoader will create {num_workers} worker processes in total, on {cores()} cores. Please be aware "
            "that excessive worker creation might get DataLoader running slow or even freeze, lower the worker number "
            "to avoid potential slowness/freeze if necessary.",
            stacklevel=3,
        )


# ---- loaders of others --------------------------------------------------------------------------------------------

_SAME = (
    "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order", "collate_fn",
)  # fmt: skip


_OURS = (
    "num_workers", "prefetch_factor", "prefetch", "workers", "output", "transport", "device", "last_batch",
    "auto_reload", "names", "chunk_size", "on_error", "on_timeout", "max_restarts", "dispatch",
)  # fmt: skip


def arguments_of(loader: Any) -> dict[str, Any]:
    """The arguments that make a loader like this one of torch's, or of ours.

    Samplers are taken over as they are: whoever calls their `set_epoch` goes on doing so.
    """
    from torch.utils.data import BatchSampler, IterableDataset

    from nbloader.sampling.samplers import FullBatches

    out: dict[str, Any] = {name: getattr(loader, name) for name in _SAME if hasattr(loader, name)}
    if "_engine" in vars(loader):  # one of ours
        out |= {name: vars(loader)[name] for name in _OURS if vars(loader)[name] is not None}
    out["dataset"] = loader.dataset
    batch_sampler = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or getattr(loader, "_iterable", False):
        out.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
    elif batch_sampler is None:
        out.update(batch_size=None, sampler=loader.sampler)
    elif type(batch_sampler) in {BatchSampler, FullBatches} and loader.batch_size is not None:
        out.update(batch_size=loader.batch_size, sampler=loader.sampler, drop_last=loader.drop_last)
    else:
        out["batch_sampler"] = batch_sampler
    return out


def make(cls: type[Any], arguments: dict[str, Any]) -> Any:
    """A loader of ours, or of a subclass whose `__init__` may take other arguments."""
    from nbloader.loader.dataloader import DataLoader

    loader: Any = object.__new__(cls)
    DataLoader.__init__(loader, **arguments)
    return loader
