"""Containers: mappings, dataclasses, named tuples, lists and tuples, whose parts become fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from nbloader._util.format import clean, plural
from nbloader.explorer.field import SUMMARY
from nbloader.explorer.kinds.base import Kind, Value

MAX_ITEMS = 40
"""Maximum number of items of a container that are described one by one."""


class Tree(Kind):
    """A container. A list of numbers is one if it is the sample itself, and short; otherwise it is an array."""

    name = "tree"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value has named or numbered parts."""
        content = value.content
        if not value.expandable:
            return False
        if isinstance(content, Mapping) or _is_dataclass(content) or _is_named_tuple(content):
            return True
        if not isinstance(content, (list, tuple)) or not content or (value.path and value.array is not None):
            return False
        return len(content) <= MAX_ITEMS or not all(type(part) in (int, float) for part in content)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Return the first items."""
        content = self.value.content
        if isinstance(content, Mapping):
            named = [(clean(key, SUMMARY), content[key]) for key in list(content)[:MAX_ITEMS]]
        elif _is_dataclass(content):
            named = [(f.name, getattr(content, f.name, None)) for f in dataclasses.fields(content)[:MAX_ITEMS]]
        elif _is_named_tuple(content):
            named = list(zip(content._fields, content, strict=False))[:MAX_ITEMS]
        else:
            named = [(str(at), part) for at, part in enumerate(content[:MAX_ITEMS])]
        return iter(named)

    def describe(self) -> None:
        """Count the items."""
        content = self.value.content
        size = len(content) if hasattr(content, "__len__") else len(dataclasses.fields(content))
        self.field.summary = plural(size, "item") + (f", of which {MAX_ITEMS} are shown" if size > MAX_ITEMS else "")


def _is_dataclass(content: Any) -> bool:
    return dataclasses.is_dataclass(content) and not isinstance(content, type)


def _is_named_tuple(content: Any) -> bool:
    return isinstance(content, tuple) and hasattr(content, "_fields")
