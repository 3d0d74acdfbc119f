"""Writes batches that have the same layout as an earlier batch in a single pass, without planning them again.

A plan (collate.py) inspects every array three times before it copies the array. If the layout of the last batch of the
same size is known, most of these checks are unnecessary: `np.concatenate` itself rejects a different dtype and any
difference in shape beyond the first dimension, so that only types and lengths must be checked. If the arrays of a dict
have the same dtype and row shape, they are concatenated in one call. Writing 32 samples that are dicts of 40 arrays of
64 floats takes 780 us with a plan, 430 us array by array, and 320 us in one call.

A batch that differs in any way is planned. Thus only the plan decides what is valid and which error is raised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np

from nbloader.batch.collate import SCALARS, Plan
from nbloader.batch.pytree import ArrayNode, DictNode, ExtraNode, LayoutNode, ListNode
from nbloader.batch.rebuild import Memory

Fill: TypeAlias = "Callable[[Sequence[Any], Memory, list[Any]], None]"
"""Writes samples into memory and appends objects that are not arrays to the list.

Raises an exception of any type if the samples do not have the expected layout.
"""


MAX_SIZES = 16
"""Maximum number of batch sizes for which a layout is remembered."""


class CachedLayout(NamedTuple):
    """How to write batches with a known layout."""

    fill: Fill
    nbytes: int
    """Size of the arrays, bytes."""
    note: Any
    """The object that the caller passed to `LayoutCache.learn`."""


class LayoutCache:
    """A cache of the layouts of recent batches, by number of samples.

    A layout is cached once two consecutive batches of the same size have it. Thus batches that all differ incur no
    extra cost.
    """

    def __init__(self) -> None:
        self._trees: dict[int, LayoutNode] = {}
        self._known: dict[int, CachedLayout] = {}

    def get(self, size: int) -> CachedLayout | None:
        """Return how to write a batch of `size` samples; None if the batch must be planned."""
        return self._known.get(size)

    def forget(self, size: int) -> None:
        """Forget the layout of batches of this size, because a batch had a different layout."""
        del self._known[size], self._trees[size]

    def learn(self, plan: Plan, samples: Sequence[Any], note: Any) -> None:
        """Learn the layout of a batch that was planned.

        Args:
            plan: The plan of the batch.
            samples: The samples of the batch.
            note: An object that `get` returns with the layout.
        """
        size = len(samples)
        if self._trees.get(size) != plan.tree:
            if len(self._trees) >= MAX_SIZES:
                self._trees.clear()
                self._known.clear()
            self._trees[size] = plan.tree
        elif (fill := compile_fill(plan.tree, samples)) is not None:
            self._known[size] = CachedLayout(fill, plan.nbytes, note)


class LayoutDiffersError(Exception):
    """The batch has a different layout. Never propagates out of nbloader."""


def compile_fill(layout: LayoutNode, values: Sequence[Any]) -> Fill | None:
    """Compile a layout to a function that writes batches with this layout.

    Args:
        layout: The layout.
        values: Samples that have this layout. Later samples must have the same types.

    Returns:
        The function; None if no way is faster than a plan.
    """
    kind = type(values[0])
    if isinstance(layout, ArrayNode):
        return _array(layout, kind, len(values))
    if isinstance(layout, ExtraNode):
        return _extra(kind)
    return _container(layout, kind, values) if isinstance(layout, (DictNode, ListNode)) else None


def _container(layout: DictNode | ListNode, kind: type, values: Sequence[Any]) -> Fill | None:
    columns = layout.columns(values)
    children = [compile_fill(child, column) for child, column in zip(layout.children, columns, strict=True)]
    if None in children:
        return None
    if isinstance(layout, ListNode):
        return _list(kind, len(children), children)
    if kind is not dict:
        return None
    keys, nodes = layout.keys, layout.children
    if len(keys) > 1 and all(type(values[0][key]) is np.ndarray for key in keys) and _contiguous(nodes):
        return _dict_in_one_call(keys, nodes)
    return _dict(keys, children)


def _extra(kind: type) -> Fill:
    def keep(values: Sequence[Any], _memory: Memory, extras: list[Any]) -> None:
        if type(values[0]) is not kind:
            raise LayoutDiffersError
        extras.append(values)

    return keep


def _dict(keys: tuple[Any, ...], children: Sequence[Any]) -> Fill:
    items = list(zip(keys, children, strict=True))

    def fill(values: Sequence[Any], memory: Memory, extras: list[Any]) -> None:
        first = values[0]
        if type(first) is not dict or tuple(first) != keys:
            raise LayoutDiffersError
        for key, child in items:
            child([v[key] for v in values], memory, extras)

    return fill


def _dict_in_one_call(keys: tuple[Any, ...], nodes: Sequence[ArrayNode]) -> Fill:
    """Return a function that writes all arrays of a dict, which are adjacent in memory, as one array."""
    first = nodes[0]
    offset, count, rest = first.offset, first.shape[0], first.shape[2:]
    dtype = np.dtype(first.dtype)
    lengths = [node.shape[1] for node in nodes for _ in range(count)]
    joined = (sum(lengths), *rest)
    ndarray, names, in_order = np.ndarray, list(keys), itemgetter(*keys)

    def fill(values: Sequence[Any], memory: Memory, _extras: list[Any]) -> None:
        if list(map(type, values)).count(dict) != count or tuple(values[0]) != keys:
            raise LayoutDiffersError
        same_order = list(map(list, values)).count(names) == count  # saves 5 us: no key must be looked up
        columns = map(dict.values, values) if same_order else map(in_order, values)
        arrays: list[Any] = []
        for column in zip(*columns, strict=True):
            arrays += column
        if list(map(type, arrays)).count(ndarray) != len(lengths) or list(map(len, arrays)) != lengths:
            raise LayoutDiffersError
        np.concatenate(arrays, 0, ndarray(joined, dtype, memory, offset), casting="no")

    return fill


def _contiguous(nodes: Sequence[LayoutNode]) -> TypeGuard[Sequence[ArrayNode]]:
    """Whether the nodes are adjacent arrays of one dtype whose sample shapes differ only in the first dimension."""
    first, end = nodes[0], None
    for node in nodes:
        if not isinstance(first, ArrayNode) or not isinstance(node, ArrayNode):
            return False
        if node.dtype != first.dtype or node.torch_dtype is not None or end not in (None, node.offset):
            return False
        if not node.shape[1:] or node.shape[2:] != first.shape[2:]:
            return False
        end = node.offset + node.nbytes
    return True


def _list(kind: type, length: int, children: Sequence[Any]) -> Fill:
    def fill(values: Sequence[Any], memory: Memory, extras: list[Any]) -> None:
        first = values[0]
        if len(first) != length or type(first) is not kind:
            raise LayoutDiffersError
        for child, column in zip(children, zip(*values, strict=True), strict=True):
            child(column, memory, extras)

    return fill


def _array(node: ArrayNode, kind: type, count: int) -> Fill | None:
    offset, shape, dtype = node.offset, node.shape, np.dtype(node.dtype)
    if kind in SCALARS or issubclass(kind, np.generic):
        mixed = dtype != SCALARS.get(kind, dtype)  # numbers of several types; later batches may have other types
        return None if mixed else _scalars(kind, count, dtype, offset)
    if node.torch_dtype is not None:
        return _tensors(kind, shape, dtype, offset, node.torch_dtype)
    if kind is np.ndarray and len(shape) > 1 and shape[1]:
        return _arrays(shape, dtype, offset)
    return None


def _scalars(kind: type, count: int, dtype: Any, offset: int) -> Fill:
    ndarray = np.ndarray

    def fill(values: Sequence[Any], memory: Memory, _extras: list[Any]) -> None:
        if list(map(type, values)).count(kind) != count:
            raise LayoutDiffersError
        ndarray(count, dtype, memory, offset)[...] = values

    return fill


def _arrays(shape: tuple[int, ...], dtype: Any, offset: int) -> Fill:
    count, length, *rest = shape
    joined = (count * length, *rest)
    ndarray = np.ndarray

    def fill(values: Sequence[Any], memory: Memory, _extras: list[Any]) -> None:
        if list(map(type, values)).count(ndarray) != count or list(map(len, values)).count(length) != count:
            raise LayoutDiffersError
        np.concatenate(values, 0, ndarray(joined, dtype, memory, offset), casting="no")

    return fill


def _tensors(kind: type, shape: tuple[int, ...], dtype: Any, offset: int, name: str) -> Fill:
    torch = sys.modules["torch"]
    stack, from_numpy, ndarray = torch.stack, torch.from_numpy, np.ndarray
    torch_dtype = getattr(torch, name)
    as_is = str(dtype) == name
    count = shape[0]

    def fill(values: Sequence[Any], memory: Memory, _extras: list[Any]) -> None:
        if list(map(type, values)).count(kind) != count or [v.dtype for v in values].count(torch_dtype) != count:
            raise LayoutDiffersError
        out = from_numpy(ndarray(shape, dtype, memory, offset))
        stack(values, out=out if as_is else out.view(torch_dtype))

    return fill
