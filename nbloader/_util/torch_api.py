"""The names that the loader imports from torch, or stand-ins for them if torch is not installed.

Importing this module imports torch. Code that runs in worker processes therefore imports it only inside functions, so
that workers can start without torch if the dataset has no tensors.
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
        if error.name != "torch":  # torch is installed, but one of its dependencies is missing
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
