"""Workloads that need large packages in the workers: what it takes until a loader gives its first batch.

Each function returns a dataset and the functions of its loader, as a program of that library would give them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Workload = tuple[Any, dict[str, Any]]
LENGTH = 64


def _tensors():
    import torch

    return [torch.full((3,), float(i)) for i in range(LENGTH)]


def monai() -> Workload:
    """A dataset and a transform of MONAI."""
    import torch
    from monai.data import Dataset
    from monai.transforms import ScaleIntensityd

    return Dataset(
        [{"image": torch.arange(64.0).reshape(1, 8, 8) + i} for i in range(LENGTH)], ScaleIntensityd("image")
    ), {}


def torch_geometric() -> Workload:
    """Graphs of PyG, collated by its loader's function."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader.dataloader import Collater

    edges = torch.zeros(2, 5, dtype=torch.long)
    graphs = [Data(x=torch.full((4, 3), float(i)), edge_index=edges) for i in range(LENGTH)]
    return graphs, {"collate_fn": Collater(graphs, None, None)}


def lightning() -> Workload:
    """Lightning's `seed_everything(workers=True)`."""
    from lightning.fabric.utilities.seed import pl_worker_init_function

    return _tensors(), {"worker_init_fn": pl_worker_init_function}


def timm() -> Workload:
    """What timm's `create_loader` gives each worker."""
    from timm.data.loader import _worker_init

    return _tensors(), {"worker_init_fn": functools.partial(_worker_init, worker_seeding="all")}


def transformers() -> Workload:
    """What the Trainer of transformers gives the loader of each evaluation."""
    from transformers import default_data_collator
    from transformers.trainer_utils import seed_worker

    samples = [{"input_ids": [i, 2, 3], "label": i % 2} for i in range(LENGTH)]
    init = functools.partial(seed_worker, num_workers=2, rank=0)
    return samples, {"collate_fn": default_data_collator, "worker_init_fn": init}


WORKLOADS: dict[str, Callable[[], Workload]] = {
    function.__name__: function for function in (monai, torch_geometric, lightning, timm, transformers)
}
"""By the name of the package that must be installed."""
