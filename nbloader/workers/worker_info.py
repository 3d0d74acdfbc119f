"""What a worker is: `get_worker_info()`, ours and torch's; and what runs a dataset in a process of its own."""

from __future__ import annotations

import functools
import sys
from typing import Any, Protocol

from nbloader._util import rng
from nbloader.workers.thread_rng import WorkerInfo, own

_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Inside a worker, what it is; None in the notebook's process. As `torch.utils.data.get_worker_info`.

    With an iterable dataset `id` is the shard to give and `num_workers` says of how many.
    """
    return own.worker_info or _info


class Host(Protocol):
    """Whose random generators are seeded, and who answers `get_worker_info()`: a process, or a thread."""

    def seed(self, seed: int) -> None:
        """Seed all generators."""

    def torch_was_seeded(self) -> bool:
        """Whether somebody else has seeded torch since."""

    def introduce(self, info: WorkerInfo | None) -> None:
        """Make `get_worker_info()` answer this from now on."""


class Process:
    """This process."""

    def seed(self, seed: int) -> None:
        """See `Host`."""
        rng.seed_everything(seed)

    def torch_was_seeded(self) -> bool:
        """See `Host`."""
        return rng.torch_was_seeded()

    def introduce(self, info: WorkerInfo | None) -> None:
        """See `Host`."""
        global _info  # noqa: PLW0603 - a process is one thing
        if info is not _info:
            _info = info
            if "torch.utils.data" in sys.modules:
                introduce_to_torch()


def introduce_to_torch() -> None:
    """Tell torch what this process is."""
    from torch.utils.data._utils import worker as theirs

    theirs._worker_info = theirs.WorkerInfo(**vars(_info)) if _info is not None else None


def stack_in_own_memory() -> None:
    """In a worker process, have torch's `default_collate` stack tensors as it does in a notebook.

    In a worker of torch's it would stack them into torch's shared memory, files in /dev/shm, which is small in
    containers. Here a batch travels in another way.
    """
    import torch
    from torch.utils.data._utils import collate, worker

    original = collate.collate_tensor_fn

    @functools.wraps(original)
    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        told, worker._worker_info = worker._worker_info, None
        try:
            return original(batch, collate_fn_map=collate_fn_map)
        finally:
            worker._worker_info = told

    if collate.default_collate_fn_map.get(torch.Tensor) is original:
        collate.default_collate_fn_map[torch.Tensor] = stack
