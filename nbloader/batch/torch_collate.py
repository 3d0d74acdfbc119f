"""The collate function that workers get when the loader's is torch's `default_collate` or `default_convert`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
    from torch.utils.data._utils import collate as torch_collate

    if collate_fn is not (torch_collate.default_collate if batched else torch_collate.default_convert):
        return collate_fn
    if not batched:
        return None
    own = torch_collate.__name__
    added = {
        kind: function
        for kind, function in torch_collate.default_collate_fn_map.items()
        if getattr(function, "__module__", "") != own
    }
    return RegisteredCollate(added) if added else None
