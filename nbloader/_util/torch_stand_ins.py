"""What takes the place of torch's classes and functions where torch is not installed (`torch_api`).

Only NumPy output works then. Classes of which no object can exist are empty: `isinstance` is False for all objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, NoReturn, TypeVar

T_co = TypeVar("T_co", covariant=True)


def missing_torch(what: str, instead: str = "") -> ModuleNotFoundError:
    """The error for what torch is needed for, where it is not installed.

    Args:
        what: What needs it, such as "device='cuda'".
        instead: What can be done without it.
    """
    alternative = f", or {instead}" if instead else ""
    return ModuleNotFoundError(
        f"{what} needs torch, which is not installed: install it (`pip install torch`){alternative}", name="torch"
    )


class DataLoader(Generic[T_co]):
    """In the place of torch's loader: the base class of ours, with those of its private members that ours inherits."""

    batch_sampler: Any
    sampler: Any
    multiprocessing_context: Any
    __initialized = False

    @property
    def _auto_collation(self) -> bool:
        """Whether samples make batches."""
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        """What is iterated for the indices of the batches."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def check_worker_number_rationality(self) -> None:
        """No warning of more worker processes than cores: that is torch's own."""


class _DatasetKind:
    """How samples are read."""

    Map = 0
    Iterable = 1


class _BaseDataLoaderIter:
    """In the place of torch's iterator: the base class of ours."""


class Dataset(Generic[T_co]):
    """In the place of torch's class."""


class IterableDataset(Dataset[T_co]):
    """In the place of torch's class."""


class Subset:
    """Some samples of a dataset, with the attributes of torch's. Also used where torch is not imported yet.

    Args:
        dataset: A map-style dataset.
        indices: The indices of these samples.
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, position: int) -> Any:
        """One sample."""
        return self.dataset[self.indices[position]]

    def __getitems__(self, positions: Iterable[int]) -> Any:
        """The samples of a batch, in one call if the dataset provides that."""
        indices = [self.indices[position] for position in positions]
        together = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[index] for index in indices] if together is None else together(indices)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.indices)


class SequentialSampler:
    """The indices of a dataset in order, as torch's.

    Args:
        data_source: The dataset.
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        """The indices of one epoch."""
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        """Number of indices per epoch."""
        return len(self.data_source)


class BatchSampler:
    """Lists of indices, as torch's.

    Args:
        sampler: Yields the indices.
        batch_size: Indices per batch.
        drop_last: Whether to drop the last batch if it is incomplete.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        """The batches of one epoch."""
        batch: list[Any] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        """Number of batches per epoch."""
        samples = len(self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


class _InfiniteConstantSampler:
    """None without end, as torch's: the place of a sampler in a loader over an iterable dataset."""

    def __iter__(self) -> Iterator[None]:
        """The same for each sample."""
        while True:
            yield None


class _NeverInstantiated:
    """A class of torch's of which there is no object, since torch is not installed."""


RandomSampler = SubsetRandomSampler = WeightedRandomSampler = DistributedSampler = _NeverInstantiated
IterDataPipe = MapDataPipe = _NeverInstantiated


class Generator:
    """In the place of `torch.Generator`."""


class device:  # noqa: N801  torch's name
    """In the place of `torch.device`."""


def profiling() -> bool:
    """Whether torch's profiler is running."""
    return False


def record_function(name: str) -> NoReturn:
    """A range of torch's profiler."""
    raise missing_torch(f"the range {name!r} of torch's profiler")
