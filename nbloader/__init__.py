"""nbloader: a data loader for notebooks: fast, open to the eye while it runs, steerable without restarting the kernel.

`import nbloader` imports neither torch nor ipywidgets nor bokeh. `nbloader.DataLoader`, when it is first named, imports
torch, and starts the process that workers come from (forkserver.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbloader.errors import (
        DatasetTransferError,
        LoaderClosedError,
        LoaderTimeoutError,
        NbloaderError,
        WorkerDiedError,
        WorkerStartError,
    )
    from nbloader.loader.dataloader import DataLoader
    from nbloader.loader.upload_benchmark import compare_uploads
    from nbloader.sampling.samplers import FilterSampler, IntervalSampler
    from nbloader.shm.dataset_store import share
    from nbloader.workers.worker_info import get_worker_info

__version__ = "0.1.0"

_HOME = {
    "DataLoader": "nbloader.loader",
    "DatasetTransferError": "nbloader.errors",
    "FilterSampler": "nbloader.sampling.samplers",
    "IntervalSampler": "nbloader.sampling.samplers",
    "LoaderClosedError": "nbloader.errors",
    "LoaderTimeoutError": "nbloader.errors",
    "NbloaderError": "nbloader.errors",
    "WorkerDiedError": "nbloader.errors",
    "WorkerStartError": "nbloader.errors",
    "compare_uploads": "nbloader.loader.upload_benchmark",
    "get_worker_info": "nbloader.workers.worker_info",
    "share": "nbloader.shm.dataset_store",
}

__all__ = [
    "DataLoader",
    "DatasetTransferError",
    "FilterSampler",
    "IntervalSampler",
    "LoaderClosedError",
    "LoaderTimeoutError",
    "NbloaderError",
    "WorkerDiedError",
    "WorkerStartError",
    "compare_uploads",
    "get_worker_info",
    "share",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'nbloader' has no attribute {name!r}")
    if name == "DataLoader":  # its module imports torch: the fork server does so at the same time
        importlib.import_module("nbloader.transport.forkserver").start_early()
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
