"""What an epoch is drawn from: which batches there are, in which order, with which seeds, and how far it has come."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nbloader import sampler
from nbloader.dispatch import Task
from nbloader.fetch import mix
from nbloader.pieces import Cut
from nbloader.shards import Shards
from nbloader.source import Reader

if TYPE_CHECKING:
    from nbloader.loader import DataLoader


class Draw(ABC):
    """The batches of one epoch, as they are asked for."""

    seed: int
    """The epoch's base seed."""
    first = 0
    """Number of the first batch that it gives."""
    total: int | None = None
    """Batches of the whole epoch; None where that is not known."""
    shards: Shards | None = None
    """Of an iterable dataset."""
    reader: Reader | None = None
    """Of a source."""
    error: Exception | None = None
    """What the sampler raised; nothing is drawn any more."""

    @abstractmethod
    def take(self, room: int) -> list[tuple[Any, int]]:
        """The next batches to make, as (indices, seed).

        Args:
            room: How many at most.
        """

    @abstractmethod
    def delivered(self, task: Task, samples: int) -> None:
        """A batch goes to the consumer, or its error (with no samples)."""


class MapDraw(Draw):
    """Batches of indices, from a sampler.

    Args:
        index_sampler: The batch sampler, or the sampler where batching is off.
        batched: Whether it gives batches of indices.
        generator: What the base seed is drawn from; torch's default one when None.
    """

    def __init__(self, index_sampler: Any, *, batched: bool, generator: Any) -> None:
        self._indices: Iterator[Any] = iter(index_sampler)
        self.reader = self._indices if isinstance(self._indices, Reader) else None
        self._batched = batched
        self._dry = False
        self._drawn = 0
        self.seed = draw_seed(generator)
        self.total = sampler.length(index_sampler)

    def take(self, room: int) -> list[tuple[Any, int]]:
        """See `Draw`."""
        batches: list[tuple[Any, int]] = []
        if self._dry:
            return batches
        try:
            for _ in range(room):
                indices = next(self._indices)
                if self._batched and not isinstance(indices, (list, tuple)):
                    indices = list(indices)
                batches.append((indices, mix(self.seed, self._drawn)))
                self._drawn += 1
        except StopIteration:
            self._dry = True
        except Exception as error:  # noqa: BLE001 - the user's sampler: raised once what it gave before is delivered
            self._dry = True
            self.error = error
        return batches

    def delivered(self, task: Task, samples: int) -> None:
        """See `Draw`."""


class ShardDraw(Draw):
    """Batches of the shards of an iterable dataset.

    Args:
        shards: How many there are; 0 for a single one, in the notebook's process.
        size: Samples a batch; None where batching is off.
        generator: What the base seed is drawn from; torch's default one when None.
        total: Batches of the epoch, as far as the dataset says so.
        promised: What `len(dataset)` was when somebody asked for `len(loader)`, and the dataset.
    """

    def __init__(
        self, shards: int, *, size: int | None, generator: Any, total: int | None, promised: tuple[int, Any] | None
    ) -> None:
        self.seed = draw_seed(generator)
        self.total = total
        self.shards: Shards = Shards(shards, size=size, seed=self.seed)
        self._samples = 0
        self._promised = promised

    def take(self, room: int) -> list[tuple[Any, int]]:
        """See `Draw`."""
        batches: list[tuple[Any, int]] = []
        for _ in range(room):
            ticket = self.shards.take()
            if ticket is None:
                break
            batches.append((ticket, ticket.seed_of(ticket.position)))
        return batches

    def delivered(self, task: Task, samples: int) -> None:
        """See `Draw`."""
        self.shards.deliver(task.indices)
        self._samples += samples
        if self._promised is not None and self._samples > self._promised[0]:
            length, dataset = self._promised
            text = (
                f"Length of IterableDataset {dataset} was reported to be {length}(when accessing len(dataloader)), but "
                f"{self._samples} samples have been fetched. "
            )
            if self.shards.count:
                text += (
                    "For multiprocessing data-loading, this could be caused by not properly configuring the "
                    "IterableDataset replica at each worker. Please see "
                    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
                )
            warnings.warn(text, stacklevel=3)


def begin(loader: DataLoader[Any]) -> Draw:
    """Begin an epoch."""
    if not loader._iterable:
        drawn_from: Any = loader._index_sampler
        if loader._pieces > 1 and loader.batch_size is not None:
            drawn_from = Cut(drawn_from, loader.batch_size // loader._pieces)
        return MapDraw(drawn_from, batched=loader.batch_sampler is not None, generator=loader.generator)
    samples = sampler.length(loader.dataset)
    total = batches_of(samples, loader.batch_size, drop_last=loader.drop_last) if samples is not None else None
    promised = (loader._promised, loader.dataset) if loader._promised is not None else None
    return ShardDraw(
        loader.num_workers, size=loader.batch_size, generator=loader.generator, total=total, promised=promised
    )


def batches_of(samples: int, size: int | None, *, drop_last: bool) -> int:
    """How many batches so many samples make, as torch counts those of an iterable dataset."""
    if size is None:
        return samples
    return samples // size if drop_last else -(-samples // size)


def draw_seed(generator: Any) -> int:
    """A base seed, drawn as torch draws it, so that `torch.manual_seed` makes epochs repeatable."""
    import torch

    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
