"""What of a batch can be moved: its tensors, and whatever brings a method for it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any


def map_leaves(batch: Any, change: Callable[[Any], Any], *, method: str = "to") -> Any:
    """A batch of the same structure, with `change` applied to each leaf that has `method`.

    Containers are walked as torch walks them to pin a batch: mappings, named tuples, tuples and sequences keep their
    type where that can be made; dataclasses keep theirs too. What has no such method (numbers, strings, arrays) stays.

    Args:
        batch: Any structure.
        change: Gives the new leaf.
        method: What a leaf has: "to" or "pin_memory". All tensors have both.
    """

    def walk(part: Any) -> Any:
        if hasattr(part, method) and not isinstance(part, type):
            return change(part)
        if isinstance(part, Mapping):
            return _mapping(part, {key: walk(value) for key, value in part.items()})
        if isinstance(part, tuple):
            values = [walk(value) for value in part]
            return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
        if isinstance(part, Sequence) and not isinstance(part, (str, bytes, bytearray, memoryview)):
            return _sequence(part, [walk(value) for value in part])
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            clone: Any = copy.copy(part)
            for field in dataclasses.fields(part):
                if hasattr(part, field.name):
                    object.__setattr__(clone, field.name, walk(getattr(part, field.name)))  # frozen ones too
            return clone
        return part

    return walk(batch)


def _mapping(part: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    try:
        if isinstance(part, MutableMapping):  # it may carry more than its items
            clone = copy.copy(part)
            clone.update(values)
            return clone
        return type(part)(values)  # type: ignore[call-arg]
    except TypeError:
        return values


def _sequence(part: Sequence[Any], values: list[Any]) -> Any:
    try:
        if isinstance(part, MutableSequence):
            clone = copy.copy(part)
            for position, value in enumerate(values):
                clone[position] = value
            return clone
        return type(part)(values)  # type: ignore[call-arg]
    except TypeError:  # such as a range
        return values
