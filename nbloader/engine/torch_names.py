"""The private names of torch's iterator, for programs that use them.

A program that reads or changes a private attribute of torch's iterator must never believe that it had an effect: what
nbloader's iterator does not have raises an `AttributeError` that names the alternative. A program may also replace
methods of torch's classes, to trace or change what they do. Those that nbloader can run are run (`hooked_iterator.py`),
and there is a warning for the others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NoReturn

from nbloader._util.user_warning import warn
from nbloader.sampling.epoch_plan import EpochPlan

HONORED = ("__init__", "__next__", "__iter__", "_next_index", "_reset")
"""Methods of torch's base iterator that are run if a program has replaced them."""
_NOT_RUN = ("__len__", "__getstate__", "_next_data")
"""Methods that torch's own iterators override or do not need while they iterate."""

_INSTEAD = {
    "_dataset": "use loader.dataset",
    "_dataset_fetcher": "use loader.dataset and loader.collate_fn",
    "_collate_fn": "use loader.collate_fn, and create a new loader to change it",
    "_worker_init_fn": "use loader.worker_init_fn",
    "_prefetch_factor": "use loader.prefetch_factor, which can be assigned while an epoch runs",
    "_timeout": "use loader.timeout",
    "_drop_last": "use loader.drop_last",
    "_auto_collation": "use loader._auto_collation",
    "_persistent_workers": "use loader.persistent_workers",
    "_in_order": "use loader.in_order",
    "_pin_memory": "use loader.pin_memory",
    "_pin_memory_device": "use the argument device of the loader",
    "_dataset_kind": "use loader._dataset_kind",
    "_IterableDataset_len_called": "use loader._IterableDataset_len_called",
    "_send_idx": "see loader.state_dict() for the batches that were delivered",
    "_rcvd_idx": "see loader.state_dict() for the batches that were delivered, and _num_yielded for their number",
    "_tasks_outstanding": "see loader.stats() for the number of batches that are requested and ready",
    "_task_info": "see loader.trace for the path of each batch",
    "_index_queues": "control workers with loader.restart_workers() and loader.num_workers",
    "_reset": "iterate over the loader again, because each epoch has an iterator of its own",
    "_mark_worker_as_unavailable": "use loader.restart_workers()",
}
_OTHERS = (
    "_clean_up_persistent_workers_atexit", "_data_queue", "_get_data", "_pg", "_pin_memory_thread",
    "_pin_memory_thread_done_event", "_process_data", "_profile_name", "_rank", "_register_persistent_workers_atexit",
    "_shared_seed", "_shutdown", "_try_get_data", "_try_put_index", "_worker_pids_set", "_worker_queue_idx_cycle",
    "_worker_result_queue", "_workers_done_event", "_workers_num_tasks", "_workers_status", "_world_size",
)  # fmt: skip
"""Names of torch's iterators that have no counterpart here."""
MISSING = (*_INSTEAD, *_OTHERS)
"""Attributes and methods of torch's iterators that nbloader's iterator does not have."""


class MissingAttribute:
    """An attribute of torch's iterator that raises `AttributeError` when it is read or set.

    While torch's `__init__` runs, it can be set, and torch's methods can read it afterwards (`HookedEpochIterator`).

    Args:
        name: The attribute's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, iterator: Any, _owner: type) -> Any:
        """Return what torch's `__init__` has set.

        Raises:
            AttributeError: It has set nothing.
        """
        if iterator is None:
            return self
        try:
            return vars(iterator)[self._name]
        except KeyError:
            self._refuse()

    def __set__(self, iterator: Any, value: Any) -> None:
        """Keep what torch's `__init__` sets.

        Raises:
            AttributeError: It is not running: setting the attribute would have no effect.
        """
        if not iterator._in_torchs_init:
            self._refuse()
        vars(iterator)[self._name] = value

    def _refuse(self) -> NoReturn:
        instead = _INSTEAD.get(self._name, "use torch.utils.data.DataLoader with a program that needs it")
        raise AttributeError(
            f"nbloader's iterator does not have {self._name!r}, which is a private attribute of torch's iterator. "
            f"Instead, {instead}."
        )


class PlannedBatches(Iterator[Any]):
    """The batches that have not been requested yet, as torch's `iterator._sampler_iter`.

    A batch that a program takes from here is skipped: it is neither produced nor delivered, and counts as delivered in
    the loader's state. As with torch's iterator, workers may have been given earlier batches already.

    Args:
        plan: The plan of the epoch.
    """

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan

    def __next__(self) -> Any:
        """Return the indices of the next batch, and skip it.

        Raises:
            StopIteration: There is none.
            AttributeError: The samples have no indices, so none can be skipped.
        """
        return self._plan.skip()


class IndexSampler:
    """The index sampler of an iterator. Its iterator is the one that the epoch is drawn from.

    Args:
        sampler: The loader's batch sampler, or its sampler if automatic batching is off.
        batches: The batches of the epoch.
    """

    def __init__(self, sampler: Any, batches: PlannedBatches) -> None:
        self._sampler = sampler
        self._batches = batches

    def __iter__(self) -> PlannedBatches:
        """Return the batches of this epoch."""
        return self._batches

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the sampler."""
        return getattr(self._sampler, name)


# ---- methods that a program has replaced ---------------------------------------------------------------------------


def has_hooks() -> bool:
    """Whether a program has replaced methods of torch's iterator that nbloader's iterator must run."""
    from torch.utils.data import dataloader as of_torch

    classes = (of_torch._SingleProcessDataLoaderIter, of_torch._MultiProcessingDataLoaderIter)
    return any(_is_replaced(of_torch._BaseDataLoaderIter, name) for name in HONORED) or any(
        _is_replaced(cls, "__next__") for cls in classes
    )


def torchs_next(num_workers: int) -> Any:
    """Return `__next__` of torch's iterator, or what a program has replaced it by."""
    from torch.utils.data import dataloader as of_torch

    workers = of_torch._MultiProcessingDataLoaderIter if num_workers else of_torch._SingleProcessDataLoaderIter
    return workers.__next__


_warned: set[str] = set()


def warn_of_unused_hooks() -> None:
    """Warn, once for each, if a program has replaced a function of torch's loader that nbloader does not call."""
    new = [name for name in _unused_hooks() if name not in _warned]
    if new:
        _warned.update(new)
        warn(
            f"A program has replaced {', '.join(new)}, which an nbloader.DataLoader does not call: the replacement has "
            "no effect on it. Use torch.utils.data.DataLoader with this program. (Replacements of these methods of "
            f"_BaseDataLoaderIter are called: {', '.join(HONORED)}.)"
        )


def _unused_hooks() -> Iterator[str]:
    """Yield the names of functions of torch's loader that were replaced, and that nbloader does not call."""
    from torch.utils.data import dataloader as of_torch
    from torch.utils.data._utils import fetch, worker

    for cls, known in (
        (of_torch._SingleProcessDataLoaderIter, ("__next__",)),
        (of_torch._MultiProcessingDataLoaderIter, ("__next__",)),
        (of_torch._BaseDataLoaderIter, (*HONORED, *_NOT_RUN)),
        (fetch._MapDatasetFetcher, ()),
        (fetch._IterableDatasetFetcher, ()),
    ):
        for name, value in vars(cls).items():
            if name not in known and callable(value) and _is_replaced(cls, name):
                yield f"{cls.__name__}.{name}"
    for name in ("__iter__", "_get_iterator"):
        if _is_replaced(of_torch.DataLoader, name):
            yield f"DataLoader.{name}"
    if not _is_of(worker, worker._worker_loop):
        yield "_utils.worker._worker_loop"


def _is_replaced(cls: type, name: str) -> bool:
    """Whether one of torch's classes has a method of this name that another module has defined."""
    method = vars(cls).get(name)
    return method is not None and not _is_of(sys.modules[cls.__module__], getattr(method, "__func__", method))


def _is_of(module: ModuleType, function: Any) -> bool:
    """Whether a function was defined in a module. `functools.wraps` copies `__module__`, but not the globals."""
    return getattr(function, "__globals__", None) is vars(module)
