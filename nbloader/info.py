"""What a worker is: `get_worker_info()`, ours and torch's; and what runs a dataset in a process of its own."""

from __future__ import annotations

import sys
from typing import Protocol

from nbloader import fetch as f
from nbloader.private import WorkerInfo, own

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
        f.seed_everything(seed)

    def torch_was_seeded(self) -> bool:
        """See `Host`."""
        return f.torch_was_seeded()

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
