"""`get_worker_info()`, nbloader's and torch's, and the context in which a dataset runs in a separate process."""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import dataclass
from typing import Any, Protocol

from nbloader._util import rng

__all__ = ["NotebookContext", "ProcessContext", "WorkerContext", "WorkerInfo", "get_worker_info"]

_info: WorkerInfo | None = None


@dataclass(frozen=True)
class WorkerInfo:
    """What `get_worker_info()` returns inside a worker, like torch's."""

    id: int
    """Worker id, from 0."""
    num_workers: int
    seed: int
    """Seed of this worker: the base seed of the loader plus `id`, as in torch."""
    dataset: Any
    """This worker's copy of the dataset; the dataset itself in a worker thread."""
    rng: rng.Generators | None = None
    """Random generators that are seeded for each batch: in worker threads, and for each sample of an asynchronous
    dataset. They have the attributes `random_generator`, `numpy_generator` and `torch_generator`, as in torch. None in
    other worker processes, where the global generators are seeded for each batch."""

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, and note that the worker's code uses this information."""
        if name in _FIELDS:
            _note_use()
        return object.__getattribute__(self, name)


_FIELDS = frozenset({"id", "num_workers", "seed", "dataset"})
_used = False


def _note_use() -> None:
    global _used  # noqa: PLW0603 - the process has one
    _used = True


def was_used() -> bool:
    """Whether any code of this process has read what `get_worker_info()` returns, nbloader's or torch's."""
    return _used


def forget_use() -> None:
    """In a new worker: forget uses in the process that it was forked from."""
    global _used  # noqa: PLW0603 - the process has one
    _used = False


class _ThreadLocal(threading.local):
    worker_info: WorkerInfo | None = None
    """The result of `get_worker_info()`; None outside of worker threads."""
    asked = False
    """Whether `get_worker_info()` was called on this worker thread."""


thread_local = _ThreadLocal()


def get_worker_info() -> WorkerInfo | None:
    """Return information about the current worker; None outside of workers. Like `torch.utils.data.get_worker_info`.

    With an iterable dataset, `id` is the shard to yield and `num_workers` the number of shards. Unlike torch's function
    it also works in worker threads.
    """
    thread_local.asked = True
    return thread_local.worker_info or _info


def inside_worker() -> bool:
    """Whether this code runs in a worker. Unlike `get_worker_info`, it does not count as a question for the shard."""
    return (thread_local.worker_info or _info) is not None


class WorkerContext(Protocol):
    """Controls the random generators that a dataset draws from, and the result of `get_worker_info()`."""

    def seed(self, seed: int) -> None:
        """Seed all generators."""

    def was_seeded(self) -> bool:
        """Whether other code has seeded a generator since the last call of `seed`."""

    def set_worker_info(self, info: WorkerInfo | None) -> None:
        """Set the result of `get_worker_info()`."""

    def asked_for_info(self) -> bool:
        """Whether the dataset can know its shard: it has called a function `get_worker_info()` that works here."""


class ProcessContext:
    """The context of a whole process: its global generators."""

    def seed(self, seed: int) -> None:
        """See `WorkerContext`."""
        rng.seed_everything(seed)

    def was_seeded(self) -> bool:
        """See `WorkerContext`."""
        return rng.was_seeded()

    def set_worker_info(self, info: WorkerInfo | None) -> None:
        """See `WorkerContext`."""
        global _info  # noqa: PLW0603 - the process has one
        if info is not _info:
            _info = info
            if "torch.utils.data" in sys.modules:
                set_torch_worker_info()

    def asked_for_info(self) -> bool:
        """See `WorkerContext`. In a process torch's function works, too."""
        return True


class NotebookContext(ProcessContext):
    """The context of the notebook's process, which may itself be a worker of another loader."""

    def __init__(self) -> None:
        self._changed = False

    def set_worker_info(self, info: WorkerInfo | None) -> None:
        """Set the result of `get_worker_info()`; None leaves it unchanged, for datasets without shards."""
        if info is not None:
            self._changed = True
            super().set_worker_info(info)

    def restore(self) -> None:
        """After a batch, let `get_worker_info()` return None again, if this context has changed it."""
        if self._changed:
            self._changed = False
            super().set_worker_info(None)


def set_torch_worker_info() -> None:
    """Make `torch.utils.data.get_worker_info()` return the same as nbloader's, in the way torch's workers do."""
    from torch.utils.data._utils import worker as torch_worker

    torch_worker._worker_info = _noting(torch_worker.WorkerInfo)(**vars(_info)) if _info is not None else None


@functools.cache
def _noting(torchs_class: Any) -> Any:
    """Return a subclass of torch's `WorkerInfo` that notes its use as nbloader's does."""

    class WorkerInfo(torchs_class):  # type: ignore[misc]
        __slots__ = ()
        __doc__ = torchs_class.__doc__

        def __getattribute__(self, name: str) -> Any:
            if name in _FIELDS:
                _note_use()
            return super().__getattribute__(name)

    return WorkerInfo


def collate_tensors_in_private_memory() -> None:
    """Make torch's `default_collate` stack tensors in a worker process as it does outside of workers.

    In torch's workers, it stacks tensors into torch's shared memory: files in /dev/shm, which is small in containers.
    nbloader transfers batches in a different way.
    """
    import torch
    from torch.utils.data._utils import collate
    from torch.utils.data._utils import worker as torch_worker

    original = collate.collate_tensor_fn

    @functools.wraps(original)
    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        info, torch_worker._worker_info = torch_worker._worker_info, None
        try:
            return original(batch, collate_fn_map=collate_fn_map)
        finally:
            torch_worker._worker_info = info

    if collate.default_collate_fn_map.get(torch.Tensor) is original:
        collate.default_collate_fn_map[torch.Tensor] = stack
