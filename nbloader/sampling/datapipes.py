"""torch's DataPipes: shuffled, seeded and shared out as torch's loader does it, wherever they are iterated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch.utils.data import IterDataPipe, MapDataPipe


@dataclass(frozen=True)
class Prepare:
    """Makes a DataPipe ready for one pass over one shard."""

    world: int
    """Processes of a distributed training, each with a loader of its own."""
    rank: int
    """Which of them this is."""

    def __call__(self, pipe: Any, shard: int, shards: int, seed: int) -> None:
        """Seed the shufflers of its graph, alike in all shards, and give each sharding filter its part.

        Args:
            pipe: The last DataPipe of the graph.
            shard: Which shard.
            shards: How many there are in this process; 0 for one without workers.
            seed: The epoch's base seed.
        """
        from torch.utils.data import graph_settings

        generator = torch.Generator()
        generator.manual_seed(seed)
        graph_settings.apply_random_seed(pipe, generator)
        graph_settings.apply_sharding(pipe, max(shards, 1) * self.world, shard * self.world + self.rank)


def settle(dataset: Any, shuffle: bool | None, workers: str) -> tuple[Any, bool | None]:
    """For a DataPipe, let `shuffle` switch its shufflers. Other datasets are left as they are.

    Args:
        dataset: Any dataset.
        shuffle: The loader's argument.
        workers: The loader's argument.

    Returns:
        The dataset (with a shuffler at its end where it had none and shall be shuffled; torch warns then), and what is
        left of the argument.

    Raises:
        ValueError: It is for threads, which cannot have a copy each: a DataPipe has one iterator at a time.
    """
    if not isinstance(dataset, (IterDataPipe, MapDataPipe)):
        return dataset, shuffle
    dataset = getattr(dataset, "_datapipe", dataset)  # torch's loader of several processes wraps it
    if not isinstance(dataset, IterDataPipe):
        return dataset, shuffle
    if workers == "thread":
        raise ValueError("workers='thread' and a DataPipe are mutually exclusive: it has one iterator at a time")
    if shuffle is not None:
        from torch.utils.data import graph_settings

        dataset = graph_settings.apply_shuffle_settings(dataset, shuffle=shuffle)
    return dataset, None


def preparation(dataset: Any) -> Prepare | None:
    """What makes this dataset ready for a shard; None where nothing need be done."""
    if not isinstance(dataset, IterDataPipe):
        return None
    if _distributed():
        return Prepare(torch.distributed.get_world_size(), torch.distributed.get_rank())
    return Prepare(1, 0)


def common_seed(seed: int) -> int:
    """The base seed of the first process of a distributed training, in all of them: they shuffle alike, then share."""
    if not _distributed():
        return seed
    group = torch.distributed.new_group(backend="gloo")
    shared = torch.tensor(seed, dtype=torch.int64)
    torch.distributed.broadcast(shared, src=0, group=group)
    torch.distributed.destroy_process_group(group)
    return int(shared)


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
