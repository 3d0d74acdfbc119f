"""What a worker process is given: its copy of the dataset and functions, and the seeds of its random generators.

Unless workers are persistent, they end with the iteration that they were started for, as torch's do. The next iteration
then begins in new processes, with the notebook's current dataset and a call of `worker_init_fn`.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable
from typing import Any

from nbloader._util import rng
from nbloader._util.import_hooks import when_imported
from nbloader.workers.bootstrap import WorkerStart
from nbloader.workers.fetcher import is_async
from nbloader.workers.reachable import holds_generator
from nbloader.workers.spec import Parts
from nbloader.workers.worker_info import (
    ProcessContext,
    WorkerInfo,
    collate_tensors_in_private_memory,
    set_torch_worker_info,
)


def copied(parts: Parts) -> Parts:
    """In a forked worker: copy the dataset, to take over the shard of another worker. All copies share the functions.

    The dataset is deep-copied, or copied shallowly if that fails, or shared if that fails, too.
    """
    for duplicate in (copy.deepcopy, copy.copy):
        with contextlib.suppress(Exception):  # copying runs the user's code, which may raise anything
            return parts._replace(dataset=duplicate(parts.dataset))
    return parts


class WorkerParts:
    """The dataset and functions of a worker process, after the call of `worker_init_fn`.

    Args:
        start: Which worker this is.
        parts: The dataset and functions.
        another: Makes another copy of them, for an iterable dataset.

    Raises:
        Exception: Whatever `worker_init_fn` raises.
    """

    def __init__(self, start: WorkerStart, parts: Parts, another: Callable[[], Parts]) -> None:
        self._another = another
        self.dataset, self.collate_fn, worker_init_fn, self.on_error = parts
        when_imported("torch", _set_up_torch)
        seed = start.spec.seed + start.worker
        asynchronous = start.spec.iterable is None and is_async(self.dataset)
        self.info = WorkerInfo(
            start.worker, start.spec.num_workers, seed, self.dataset, rng.TaskGenerators() if asynchronous else None
        )
        """What `get_worker_info()` returns."""
        ProcessContext().set_worker_info(self.info)
        rng.seed_everything(seed)
        self.seeded = False
        """Whether `worker_init_fn` has seeded a generator. If so, batches are not seeded: as in torch, the worker draws
        from its own generators throughout."""
        if worker_init_fn is not None:
            worker_init_fn(start.worker)
            self.seeded = rng.was_seeded()
        self.round_robin = self.seeded or (
            start.spec.iterable is None
            and holds_generator(self.dataset, self.collate_fn, worker_init_fn, self.on_error, seeded=not asynchronous)
        )
        """Whether the worker draws from generators that are not seeded for each batch."""

    def copy_dataset(self) -> tuple[Any, Any]:
        """Make another copy of the dataset and `worker_init_fn`, for an `IterableFetcher`."""
        parts = self._another()
        return parts.dataset, parts.worker_init_fn


def _set_up_torch() -> None:
    """Set up torch after it was imported, possibly by a sample, and seed it like the other libraries."""
    import torch

    set_torch_worker_info()
    collate_tensors_in_private_memory()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    rng.seed_torch()
