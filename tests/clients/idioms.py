"""What the tests of other programs' idioms share.

An idiom is a function of a loader class. It is run with torch's loader and with ours, and both must give the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import data as theirs

from nbloader import DataLoader


class Squares:
    """Sample i is i squared."""

    def __init__(self, n: int = 8):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i * i


class Stream(theirs.IterableDataset):
    """Its workers read every other number, as `get_worker_info()` says."""

    def __init__(self, n: int = 8):
        self.n = n

    def __iter__(self):
        info = theirs.get_worker_info()
        return iter(range(self.n) if info is None else range(info.id, self.n, info.num_workers))


class SizedStream(Stream):
    def __len__(self):
        return self.n


def plain(value: Any) -> Any:
    """A batch, or anything that holds batches, with lists in place of tensors."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def same_as_torch(idiom: Callable[..., Any], *ours: dict[str, Any]) -> Any:
    """Run an idiom with torch's loader and with ours, and compare what it returns.

    Args:
        idiom: Called with the loader class and keyword arguments for the loader.
        ours: The arguments with which our loader runs it, in turn; without workers if none are given. torch's runs it
            without workers: the process of the tests has threads and is not forked.

    Returns:
        What it returned.
    """
    torch.manual_seed(7)
    expected = plain(idiom(theirs.DataLoader))
    for how in ours or ({},):
        torch.manual_seed(7)
        assert plain(idiom(DataLoader, **how)) == expected, how
    return expected
