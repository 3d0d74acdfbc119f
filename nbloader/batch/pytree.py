"""Batches as trees of containers and leaves, for the modules that convert, move or join batches.

A `Container` takes one level of a batch apart and puts it together again. `map_leaves` (used to move batches to a
device and to pin them) and `merge` (joins chunks) are based on it.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from nbloader._util.signals import raised_by_handler


class Container(ABC):
    """One level of a batch.

    Args:
        template: The container. `make` returns an object of the same type, with the template's other attributes.
    """

    __slots__ = ("template",)

    def __init__(self, template: Any) -> None:
        self.template = template

    @abstractmethod
    def columns(self, values: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """Return one sequence per child: the child's values in several such containers."""

    @abstractmethod
    def make(self, parts: list[Any]) -> Any:
        """Return a container like the template, but with other children."""


class _MappingContainer(Container):
    __slots__ = ()

    def columns(self, values: Sequence[Any]) -> Iterable[Sequence[Any]]:
        return [[value[key] for value in values] for key in self.template]

    def make(self, parts: list[Any]) -> Any:
        template = self.template
        items = dict(zip(template, parts, strict=True))
        if type(template) is dict:
            return items
        try:
            if isinstance(template, MutableMapping):  # it may have attributes besides its items
                clone = copy.copy(template)
                clone.update(items)
                return clone
            return type(template)(items)
        except TypeError:
            return items


class _SequenceContainer(Container):
    __slots__ = ()

    def columns(self, values: Sequence[Any]) -> Iterable[Sequence[Any]]:
        return zip(*values, strict=True)

    def make(self, parts: list[Any]) -> Any:
        template = self.template
        kind = type(template)
        if kind is list:
            return parts
        if isinstance(template, tuple):
            return kind(*parts) if hasattr(template, "_fields") else kind(parts)
        try:
            if isinstance(template, MutableSequence):
                clone = copy.copy(template)
                for position, part in enumerate(parts):
                    clone[position] = part
                return clone
            return kind(parts)
        except TypeError:  # for a range, for example
            return parts


class _DataclassContainer(Container):
    __slots__ = ("_names",)

    def __init__(self, template: Any) -> None:
        super().__init__(template)
        self._names = [field.name for field in dataclasses.fields(template) if hasattr(template, field.name)]

    def columns(self, values: Sequence[Any]) -> Iterable[Sequence[Any]]:
        return [[getattr(value, name) for value in values] for name in self._names]

    def make(self, parts: list[Any]) -> Any:
        clone: Any = copy.copy(self.template)
        for name, part in zip(self._names, parts, strict=True):
            object.__setattr__(clone, name, part)  # works for frozen dataclasses, too
        return clone


def container_of(value: Any) -> Container | None:
    """Return the `Container` that takes a value apart; None for a leaf.

    The rules are the ones that torch applies when it pins a batch: mappings, named tuples, tuples and sequences keep
    their type if an object of this type can be constructed. In addition, dataclasses keep their type.
    """
    if isinstance(value, Mapping):
        return _MappingContainer(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return _SequenceContainer(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _DataclassContainer(value)
    return None


def map_tree(batch: Any, is_leaf: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """Return a batch of the same structure, with `change` applied to each leaf.

    Args:
        batch: Any structure.
        is_leaf: Returns whether to change a part, which may also be a container.
        change: Returns the new leaf.
    """
    # Not by a nested function that calls itself: as a reference cycle, it would keep what `change` refers to, such as
    # memory of a device, until the next garbage collection.
    if is_leaf(batch):
        return change(batch)
    container = container_of(batch)
    if container is None:
        return batch
    return container.make([map_tree(child, is_leaf, change) for (child,) in container.columns((batch,))])


def map_leaves(batch: Any, change: Callable[[Any], Any], *, method: str = "to") -> Any:
    """Return a batch of the same structure, with `change` applied to each leaf that has `method`.

    Leaves without this method (numbers, strings, arrays) stay unchanged.

    Args:
        batch: Any structure.
        change: Returns the new leaf.
        method: Name of the method: "to" or "pin_memory". All tensors have both.
    """
    return map_tree(batch, lambda part: hasattr(part, method) and not isinstance(part, type), change)


def merge(parts: Sequence[Any]) -> Any:
    """Join the collated chunks of a batch: arrays are concatenated along the first dimension, lists of strings chained.

    Raises:
        TypeError: The chunks contain objects that cannot be joined.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        return _concatenated(torch, parts)
    if isinstance(first, (list, tuple)) and not hasattr(first, "_fields") and _of_text(first):
        return type(first)(itertools.chain.from_iterable(parts))
    if dataclasses.is_dataclass(first) and not isinstance(first, type):  # constructed by `__init__`, as in collation
        names = [field.name for field in dataclasses.fields(first) if field.init]
        return type(first)(**{name: merge([getattr(part, name) for part in parts]) for name in names})
    container = container_of(first)
    if container is None:
        raise TypeError(f"chunks that hold {type(first).__name__} cannot be joined into one batch: omit chunk_size")
    return container.make([merge(column) for column in container.columns(parts)])


def _concatenated(torch: Any, tensors: Sequence[Any]) -> Any:
    """Concatenate tensors, in memory of NumPy if possible.

    torch's own allocations leave gaps when large and small ones alternate: a program that keeps only the labels of its
    batches would need as much memory as if it kept the images, too.
    """
    if {*map(type, tensors)} == {torch.Tensor} and len({tensor.dtype for tensor in tensors}) == 1:
        try:
            return torch.from_numpy(np.concatenate([tensor.numpy() for tensor in tensors]))
        except (TypeError, RuntimeError, ValueError) as error:  # torch joins them, or raises its own error
            if raised_by_handler(error):
                raise
    return torch.cat(tuple(tensors))


def _of_text(sequence: Sequence[Any]) -> bool:
    return not sequence or isinstance(sequence[0], (str, bytes))
