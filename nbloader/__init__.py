"""A data loader for notebooks that you can watch and control while it runs.

`import nbloader` imports neither torch nor ipywidgets nor bokeh, and starts no process. `nbloader.DataLoader` imports
torch when it is first looked up.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nbloader._util.version import __version__ as __version__

if TYPE_CHECKING:
    from nbloader.cache.cached_function import cached
    from nbloader.cache.process_cache import configure_cache
    from nbloader.distributed.ranks import ranks
    from nbloader.errors import (
        DatasetTransferError,
        LoaderClosedError,
        LoaderTimeoutError,
        NbloaderError,
        RecordingError,
        ReplayError,
        WorkerDiedError,
        WorkerStartError,
    )
    from nbloader.explorer.api import explore
    from nbloader.loader.dataloader import DataLoader
    from nbloader.recording.player import play
    from nbloader.sampling.samplers import FilterSampler, IntervalSampler
    from nbloader.shm.share import share
    from nbloader.workers.ray_options import RayOptions
    from nbloader.workers.seeders import register_seeder
    from nbloader.workers.worker_info import get_worker_info

_MODULES = {
    "DataLoader": "nbloader.loader",
    "DatasetTransferError": "nbloader.errors",
    "FilterSampler": "nbloader.sampling.samplers",
    "IntervalSampler": "nbloader.sampling.samplers",
    "LoaderClosedError": "nbloader.errors",
    "LoaderTimeoutError": "nbloader.errors",
    "NbloaderError": "nbloader.errors",
    "RayOptions": "nbloader.workers.ray_options",
    "RecordingError": "nbloader.errors",
    "ReplayError": "nbloader.errors",
    "WorkerDiedError": "nbloader.errors",
    "WorkerStartError": "nbloader.errors",
    "cached": "nbloader.cache.cached_function",
    "configure_cache": "nbloader.cache.process_cache",
    "explore": "nbloader.explorer",
    "get_worker_info": "nbloader.workers.worker_info",
    "play": "nbloader.recording",
    "ranks": "nbloader.distributed.ranks",
    "register_seeder": "nbloader.workers.seeders",
    "share": "nbloader.shm.share",
}

__all__ = [
    "DataLoader",
    "DatasetTransferError",
    "FilterSampler",
    "IntervalSampler",
    "LoaderClosedError",
    "LoaderTimeoutError",
    "NbloaderError",
    "RayOptions",
    "RecordingError",
    "ReplayError",
    "WorkerDiedError",
    "WorkerStartError",
    "cached",
    "configure_cache",
    "explore",
    "get_worker_info",
    "play",
    "ranks",
    "register_seeder",
    "share",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'nbloader' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))})
