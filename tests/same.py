"""Comparison of batches. A separate module, because workers import the test modules that use it."""

from __future__ import annotations

import collections.abc
from typing import Any

import numpy as np
import torch


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, for any dtype; NaN equals NaN. A copy, because an expanded element counts as contiguous."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return torch.empty(dense.shape, dtype=dense.dtype).copy_(dense).view(-1).view(torch.uint8)


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, Exception):
        assert isinstance(ours, Exception), (ours, theirs)
        return
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if theirs.numel():
            assert torch.equal(memory_of(ours), memory_of(theirs))
    elif isinstance(theirs, collections.abc.Mapping):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, collections.abc.Sequence) and not isinstance(theirs, (str, bytes)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
    else:
        assert ours == theirs or ours != ours  # noqa: PLR0124 - NaN
