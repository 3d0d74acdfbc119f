"""torch's DataPipes: shuffled, seeded and sharded as in torch's DataLoader, with every kind of worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch.utils.data import IterDataPipe, MapDataPipe


class ShuffledDataset(NamedTuple):
    """A dataset, and the value of `shuffle` that remains to be applied."""

    dataset: Any
    shuffle: bool | None


@dataclass(frozen=True)
class Prepare:
    """Prepares a DataPipe for one pass over one shard."""

    world: int
    """Number of processes in distributed training, each with its own loader."""
    rank: int
    """Rank of this process."""

    def __call__(self, pipe: Any, shard: int, shards: int, seed: int) -> None:
        """Seed the shufflers of the graph identically in all shards, and set the shard of each sharding filter.

        Args:
            pipe: The last DataPipe of the graph.
            shard: Number of the shard in this process, from 0.
            shards: Number of shards in this process; 0 for a single shard without workers.
            seed: The epoch's base seed.
        """
        from torch.utils.data import graph_settings

        generator = torch.Generator()
        generator.manual_seed(seed)
        graph_settings.apply_random_seed(pipe, generator)
        graph_settings.apply_sharding(pipe, max(shards, 1) * self.world, shard * self.world + self.rank)


def apply_shuffle(dataset: Any, shuffle: bool | None, workers: str, *, in_process: bool) -> ShuffledDataset:
    """Apply `shuffle` to the shufflers of a DataPipe. Other datasets are returned unchanged.

    Args:
        dataset: Any dataset.
        shuffle: The loader's argument.
        workers: The loader's argument.
        in_process: Whether these workers are threads of this process.

    Returns:
        The dataset, and `shuffle`, or None if `shuffle` was applied. If the DataPipe has no shuffler and `shuffle` is
        True, torch appends one, with a warning.

    Raises:
        ValueError: The workers are threads, which share the dataset, but a DataPipe can have only one iterator at a
            time.
    """
    if not isinstance(dataset, (IterDataPipe, MapDataPipe)):
        return ShuffledDataset(dataset, shuffle)
    dataset = getattr(dataset, "_datapipe", dataset)  # torch's loader wraps it for several processes
    if not isinstance(dataset, IterDataPipe):
        return ShuffledDataset(dataset, shuffle)
    if in_process:
        raise ValueError(f"workers={workers!r} and a DataPipe are mutually exclusive: it has one iterator at a time")
    if shuffle is not None:
        from torch.utils.data import graph_settings

        dataset = graph_settings.apply_shuffle_settings(dataset, shuffle=shuffle)
    return ShuffledDataset(dataset, None)


def preparation(dataset: Any) -> Prepare | None:
    """Return the function that prepares this dataset for a shard; None if it is not an `IterDataPipe`."""
    if not isinstance(dataset, IterDataPipe):
        return None
    if _distributed():
        return Prepare(torch.distributed.get_world_size(), torch.distributed.get_rank())
    return Prepare(1, 0)


def common_seed(seed: int) -> int:
    """In distributed training, return rank 0's base seed, so that all ranks shuffle identically before sharding."""
    if not _distributed():
        return seed
    group = torch.distributed.new_group(backend="gloo")
    shared = torch.tensor(seed, dtype=torch.int64)
    torch.distributed.broadcast(shared, src=0, group=group)
    torch.distributed.destroy_process_group(group)
    return int(shared)


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
