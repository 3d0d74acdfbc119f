"""What workers report so that the notebook's process can notice faults that give wrong data without an error."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class GeneratorDrawn(NamedTuple):
    """A worker has drawn from a random generator of its copy of the dataset."""

    worker: int
    path: str
    """Where the dataset has the generator."""
    kind: str
    """Name of the generator's class."""
    dataset: str
    """Name of the dataset's class."""
    before: int
    """Checksum of the generator's state before the first batch."""
    after: int
    """Checksum of its state after one of the batches. Equal numbers lead to equal states; a generator that is seeded
    for each sample has different ones."""


class ShardBegun(NamedTuple):
    """A worker has read the first samples of its shard of an iterable dataset."""

    shard: int
    dataset: str
    """Name of the dataset's class."""
    samples: tuple[int, ...]
    """Checksums of the samples."""
    asked: bool
    """Whether anything in the process has used `get_worker_info()`."""


FaultSign: TypeAlias = "GeneratorDrawn | ShardBegun"
