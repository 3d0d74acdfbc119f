"""Stand-ins for torch's classes and functions, used when torch is not installed (see `torch_api`).

Without torch, the loader can only return NumPy arrays. Classes that cannot have instances without torch are empty, so
that `isinstance` is False for every object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, NoReturn, TypeVar

T_co = TypeVar("T_co", covariant=True)


def missing_torch(what: str, instead: str = "") -> ModuleNotFoundError:
    """Return the error for a feature that needs torch when torch is not installed.

    Args:
        what: The feature that needs torch, such as "device='cuda'".
        instead: What the user can do without torch.
    """
    alternative = f", or {instead}" if instead else ""
    return ModuleNotFoundError(
        f"{what} needs torch, which is not installed: install it (`pip install torch`){alternative}", name="torch"
    )


class DataLoader(Generic[T_co]):
    """Stand-in for torch's `DataLoader`, the base class of nbloader's, with the private members that are inherited."""

    batch_sampler: Any
    sampler: Any
    multiprocessing_context: Any
    __initialized = False

    @property
    def _auto_collation(self) -> bool:
        """Whether samples are collated into batches."""
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        """The sampler that yields the indices of each batch."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def check_worker_number_rationality(self) -> None:
        """Do nothing. torch's method warns if there are more worker processes than CPU cores."""


class _DatasetKind:
    """Kinds of datasets."""

    Map = 0
    Iterable = 1


class _BaseDataLoaderIter:
    """Stand-in for torch's iterator, the base class of nbloader's."""


class Dataset(Generic[T_co]):
    """Stand-in for `torch.utils.data.Dataset`."""


class IterableDataset(Dataset[T_co]):
    """Stand-in for `torch.utils.data.IterableDataset`."""


class Subset:
    """Subset of a dataset, with the same attributes as torch's `Subset`. Also used before torch is imported.

    Args:
        dataset: A map-style dataset.
        indices: The indices of the samples in the subset.
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, position: int) -> Any:
        """Return one sample."""
        return self.dataset[self.indices[position]]

    def __getitems__(self, positions: Iterable[int]) -> Any:
        """Return the samples of a batch, read by a single call if the dataset has `__getitems__`."""
        indices = [self.indices[position] for position in positions]
        together = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[index] for index in indices] if together is None else together(indices)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.indices)


class SequentialSampler:
    """Sampler that yields the indices of a dataset in order, like torch's.

    Args:
        data_source: The dataset.
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over the indices of one epoch."""
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        """Return the number of indices per epoch."""
        return len(self.data_source)


class BatchSampler:
    """Sampler that yields the indices of one batch at a time, like torch's.

    Args:
        sampler: Yields the indices of single samples.
        batch_size: Indices per batch.
        drop_last: Whether to drop the last batch if it is incomplete.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the batches of one epoch, each as a list of indices."""
        batch: list[Any] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        samples = len(self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


class _InfiniteConstantSampler:
    """Sampler that yields None forever, like torch's. It is the sampler of loaders over iterable datasets."""

    def __iter__(self) -> Iterator[None]:
        """Yield None for each sample."""
        while True:
            yield None


class _NeverInstantiated:
    """Stand-in for torch's classes that cannot have instances, since torch is not installed."""


RandomSampler = SubsetRandomSampler = WeightedRandomSampler = DistributedSampler = _NeverInstantiated
IterDataPipe = MapDataPipe = _NeverInstantiated


class Generator:
    """Stand-in for `torch.Generator`."""


class device:  # noqa: N801  torch's name
    """Stand-in for `torch.device`."""


def profiling() -> bool:
    """Return False: torch's profiler cannot be running, since torch is not installed."""
    return False


def record_function(name: str) -> NoReturn:
    """Raise `ModuleNotFoundError`: without torch, there are no profiler ranges."""
    raise missing_torch(f"the range {name!r} of torch's profiler")
