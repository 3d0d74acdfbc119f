"""The names of torch that the loader itself is built on, or stand-ins for them where torch is not installed.

This module imports torch: what runs in worker processes imports it inside functions at most, so that workers of
datasets without tensors start without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.torch_stand_ins import missing_torch

if TYPE_CHECKING:
    INSTALLED: bool
else:
    try:
        import torch.utils.data  # noqa: F401  whether it can be imported
    except ModuleNotFoundError as error:
        if error.name != "torch":  # torch is installed, but not what it needs
            raise
        INSTALLED = False
    else:
        INSTALLED = True

if TYPE_CHECKING or INSTALLED:
    from torch import Generator, device
    from torch._C._autograd import _profiler_enabled as profiling
    from torch.autograd.profiler import record_function
    from torch.utils.data import (
        BatchSampler,
        DataLoader,
        Dataset,
        DistributedSampler,
        IterableDataset,
        IterDataPipe,
        MapDataPipe,
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )
    from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _InfiniteConstantSampler
else:
    from nbloader._util.torch_stand_ins import (
        BatchSampler,
        DataLoader,
        Dataset,
        DistributedSampler,
        Generator,
        IterableDataset,
        IterDataPipe,
        MapDataPipe,
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
        _BaseDataLoaderIter,
        _DatasetKind,
        _InfiniteConstantSampler,
        device,
        profiling,
        record_function,
    )

__all__ = [
    "INSTALLED",
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "Generator",
    "IterDataPipe",
    "IterableDataset",
    "MapDataPipe",
    "RandomSampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "_BaseDataLoaderIter",
    "_DatasetKind",
    "_InfiniteConstantSampler",
    "device",
    "missing_torch",
    "profiling",
    "record_function",
]
