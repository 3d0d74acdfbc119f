"""torch's default collate functions, and the functions that workers use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def default_function(*, batched: bool) -> Callable[[Any], Any]:
    """Return torch's default `collate_fn`.

    Args:
        batched: Whether samples are batched.
    """
    from torch.utils.data._utils import collate as torch_collate

    return torch_collate.default_collate if batched else torch_collate.default_convert


class RegisteredCollate:
    """torch's `default_collate`, with the functions that the notebook's process added to `default_collate_fn_map`.

    A worker that is forked from the notebook's process would inherit that map. A worker that is started by the fork
    server has only torch's own entries.

    Args:
        functions: The added entries, a dict from type to collate function.
    """

    def __init__(self, functions: dict[Any, Callable[..., Any]]) -> None:
        self.functions = functions

    def __call__(self, samples: list[Any]) -> Any:
        """Collate samples with torch's `default_collate`, after adding the functions if necessary."""
        from torch.utils.data._utils.collate import default_collate, default_collate_fn_map

        if any(default_collate_fn_map.get(kind) is not function for kind, function in self.functions.items()):
            default_collate_fn_map.update(self.functions)
        return default_collate(samples)  # type: ignore[no-untyped-call]


def collate_for_workers(collate_fn: Callable[[Any], Any], *, batched: bool) -> Callable[[Any], Any] | None:
    """Return the collate function to send to workers.

    Args:
        collate_fn: The collate function of the loader.
        batched: Whether samples are batched. If so, `default_collate` is the default, otherwise `default_convert`.

    Returns:
        The function; None if workers use nbloader's own collation, which follows torch's rules and is faster.
    """
    if collate_fn is not default_function(batched=batched):
        return collate_fn
    if not batched:
        return None
    from torch.utils.data._utils import collate as torch_collate

    own = torch_collate.__name__
    added = {
        kind: function
        for kind, function in torch_collate.default_collate_fn_map.items()
        if getattr(function, "__module__", "") != own
    }
    return RegisteredCollate(added) if added else None
