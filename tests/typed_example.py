"""A typed program that uses nbloader. `mypy --strict` checks it; it is not run.

A line with an error ends in a comment with the error that mypy must give there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset
from typing_extensions import assert_type

from nbloader import DataLoader


class Pairs(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3), index


class Named(Dataset[int]):
    def __getitem__(self, index: str) -> int:
        return len(index)


class Stream(IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        yield 1.0


class Plain:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> bytes:
        return b""


class PlainStream:
    def __iter__(self) -> Iterator[str]:
        yield ""


# The type parameter is the type of the samples, as in torch; a batch is whatever `collate_fn` makes of them.
loader = DataLoader(Pairs(), batch_size=4, shuffle=True, num_workers=2, workers="thread", output="numpy")
assert_type(loader, DataLoader[tuple[torch.Tensor, int]])
for batch in loader:
    assert_type(batch, Any)
assert_type(DataLoader(Named(), sampler=["a", "bc"]), DataLoader[int])
assert_type(DataLoader(Stream(), 4), DataLoader[float])
assert_type(DataLoader(Plain(), 4), DataLoader[bytes])
assert_type(DataLoader(PlainStream(), 4), DataLoader[str])
assert_type(DataLoader([1, 2, 3], 2), DataLoader[int])
assert_type(DataLoader(range(3), 2), DataLoader[int])
assert_type(DataLoader(Subset(Named(), [0, 1])).num_workers, int)
arrays = DataLoader(np.zeros((4, 2)), 2)
tensors = DataLoader(TensorDataset(torch.zeros(4, 2)), 2)


def collate(samples: list[tuple[torch.Tensor, int]]) -> torch.Tensor:
    return torch.stack([image for image, _label in samples])


def replace(index: object, error: Exception) -> tuple[torch.Tensor, int]:
    return torch.zeros(3), -1


with DataLoader(
    Pairs(), 4, collate_fn=collate, on_error=replace, last_batch="rollover", device=["cpu", None], names=("x", "y")
) as managed:
    torch_loader: torch.utils.data.DataLoader[tuple[torch.Tensor, int]] = managed
    managed.num_workers = 3
    state: dict[str, Any] = managed.state_dict()
    managed.load_state_dict(state)
    assert_type(managed.stack(0), str)
    print(managed.stats().batches_per_second)
assert_type(DataLoader.from_torch(torch_loader, num_workers=2), DataLoader[tuple[torch.Tensor, int]])

DataLoader(Pairs(), batchsize=4)  # Unexpected keyword argument "batchsize" for "DataLoader"; did you mean "batch_size"?
DataLoader(Pairs(), workers="threads")  # expected "Literal['process', 'thread', 'ray']"
DataLoader(Pairs(), workers=4)  # expected "Literal['process', 'thread', 'ray']"
DataLoader(Pairs(), output="jax")  # expected "Literal['torch', 'numpy']"
DataLoader(Pairs(), dispatch="any")  # expected "Literal['least_loaded', 'round_robin']"
DataLoader(Pairs(), last_batch="drop")  # expected "Literal['keep', 'discard', 'rollover'] | None"
DataLoader(Pairs(), on_timeout="ignore")  # expected "Literal['raise', 'restart']"
DataLoader(Pairs(), on_error="ignore")  # expected "Literal['raise', 'skip'] | Callable[[Any, Exception], Any]"
DataLoader(Pairs(), 4, True, None, None, 2, None, False, False, 0, None, None, None, 3)  # Too many positional arguments
DataLoader(3)  # Argument 1 to "DataLoader" has incompatible type "int"
DataLoader()  # Missing positional argument "dataset"
