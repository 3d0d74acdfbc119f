"""The default collate functions, those of torch or without torch, and what workers get in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nbloader.batch.collate import collate_to_arrays, convert


def default_function(*, batched: bool) -> Callable[[Any], Any]:
    """The `collate_fn` of a loader that is given none: torch's, or one that makes arrays if torch is not installed.

    Args:
        batched: Whether samples are batched.
    """
    from nbloader._util import torch_api

    if not torch_api.INSTALLED:
        return collate_to_arrays if batched else convert_to_arrays
    from torch.utils.data._utils import collate as torch_collate

    return torch_collate.default_collate if batched else torch_collate.default_convert


def convert_to_arrays(sample: Any) -> Any:
    """As torch's `default_convert`, to arrays."""
    return convert(sample, np.asarray)


class RegisteredCollate:
    """torch's `default_collate`, with the functions that this process added to `default_collate_fn_map`.

    A forked worker would inherit that map. A worker of the fork server has only the entries that torch ships.

    Args:
        functions: The added entries: type -> collate function.
    """

    def __init__(self, functions: dict[Any, Callable[..., Any]]) -> None:
        self.functions = functions

    def __call__(self, samples: list[Any]) -> Any:
        """Collate by torch's own rules."""
        from torch.utils.data._utils.collate import default_collate, default_collate_fn_map

        if any(default_collate_fn_map.get(kind) is not function for kind, function in self.functions.items()):
            default_collate_fn_map.update(self.functions)
        return default_collate(samples)  # type: ignore[no-untyped-call]


def collate_for_workers(collate_fn: Callable[[Any], Any], *, batched: bool) -> Callable[[Any], Any] | None:
    """The collate function to send to workers; None for nbloader's own, which follows torch's rules and is faster.

    Args:
        collate_fn: The loader's.
        batched: Whether samples are batched: then `default_collate` is the default, otherwise `default_convert`.
    """
    from nbloader._util import torch_api

    if collate_fn is not default_function(batched=batched):
        return collate_fn
    if not batched or not torch_api.INSTALLED:
        return None
    from torch.utils.data._utils import collate as torch_collate

    own = torch_collate.__name__
    added = {
        kind: function
        for kind, function in torch_collate.default_collate_fn_map.items()
        if getattr(function, "__module__", "") != own
    }
    return RegisteredCollate(added) if added else None
