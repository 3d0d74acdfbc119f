"""Collates samples directly into the memory in which the batch is sent.

    samples -> Plan: layout, size -> Plan.fill(memory) in the worker -> rebuild.builder(layout) in the notebook

The rules are those of torch's `default_collate`: numbers, arrays and tensors are stacked into tensors, strings and
bytes stay lists, mappings and named tuples keep their type, other tuples become lists. In addition, dataclasses are
supported and keep their type. torch is needed only if a sample contains a tensor, so most workers need not import it.

Batches that a plan does not support (sparse and nested tensors, types registered in `default_collate_fn_map`, other
rare types, the result of a custom `collate_fn`) are collated into an object, which is pickled with its arrays out of
band. This costs one more copy, but works for any type.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from nbloader.batch.pytree import (
    ArrayNode,
    DataclassNode,
    DictNode,
    ExtraNode,
    LayoutNode,
    ListNode,
    NamedTupleNode,
    container_of,
    map_tree,
)
from nbloader.batch.rebuild import Memory
from nbloader.shm.segment import aligned

NOT_COLLATED = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"

NUMPYS_OWN = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64", "complex64", "complex128"}
)
"""Names of the dtypes that NumPy and torch share. Packages such as ml_dtypes register more of torch's names with NumPy,
but torch does not accept those dtypes."""
ADDED_TO_NUMPY = 2
"""Value of `dtype.isbuiltin` for a dtype that such a package has registered."""

_shape_of = operator.attrgetter("shape")
_dtype_of = operator.attrgetter("dtype")
SCALARS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


EMPTY_BATCH = "the batch is empty: the batch sampler gave a list without indices, or __getitems__ one without samples"


class NotPlannedError(Exception):
    """A plan does not support a type: the batch must be collated into an object and pickled. Never reaches the user."""


class Plan:
    """Memory locations of the leaves of a collated batch.

    Args:
        samples: The samples of the batch.

    Attributes:
        tree: The layout of the batch. Batches with the same structure, shapes and dtypes have equal layouts.
        extras: Leaves that are not arrays (lists of strings), sent separately from the memory.
        nbytes: Size of the memory that the batch needs.

    Raises:
        NotPlannedError: A sample contains a type that plans do not support.
        Exception: The samples cannot be collated; the errors are those of torch's `default_collate`.
    """

    __slots__ = ("_leaves", "extras", "nbytes", "tree")

    def __init__(self, samples: Sequence[Any]) -> None:
        self._leaves: list[tuple[Any, Any, ArrayNode]] = []
        """For each array: values (one array for all samples, or a sequence of one per sample), dtype and node."""
        self.extras: list[Any] = []
        self.nbytes = 0
        if not samples:
            raise IndexError(EMPTY_BATCH)
        self.tree: LayoutNode = self._walk(samples)

    def fill(self, memory: Memory) -> None:
        """Write the arrays into `memory`, which must hold at least `nbytes` bytes."""
        for values, dtype, node in self._leaves:
            shape = node.shape
            out: Any = np.ndarray(shape, dtype, memory, node.offset)
            if node.torch_dtype is not None:
                torch = sys.modules["torch"]
                torch.stack(values, out=torch.from_numpy(out).view(getattr(torch, node.torch_dtype)))
            elif type(values) is np.ndarray:
                out[...] = values
            elif len(shape) > 1:
                np.concatenate(values, 0, out.reshape(shape[0] * shape[1], *shape[2:]))
            else:
                out[...] = np.array(values)

    def _leaf(self, values: Any, shape: tuple[int, ...], dtype: Any, torch_dtype: str | None = None) -> ArrayNode:
        offset = self.nbytes
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        self.nbytes = offset + aligned(nbytes)
        node = ArrayNode(offset, shape, dtype.str, torch_dtype)
        self._leaves.append((values, dtype, node))
        return node

    def _walk(self, values: Sequence[Any]) -> LayoutNode:
        first = values[0]
        kind = type(first)
        if kind is np.ndarray or kind is np.memmap:
            return self._arrays(values, first)
        scalar = SCALARS.get(kind)
        if scalar is not None:
            if len(kinds := set(map(type, values))) > 1:
                scalar = _common(kind, kinds)
            try:
                with np.errstate(over="ignore") if scalar is np.float32 else nullcontext():
                    array = np.array(values, scalar)
            except OverflowError:
                raise NotPlannedError from None  # torch raises its own error
            return self._leaf(array, array.shape, array.dtype)
        if kind is dict:
            return DictNode(tuple(first), tuple([self._walk([v[key] for v in values]) for key in first]))
        if kind is tuple or kind is list:
            return ListNode(tuple([self._walk(column) for column in _columns(values, len(first))]))
        if isinstance(first, (str, bytes)):
            self.extras.append(values)  # inside tuples and lists, this is a tuple, as in torch
            return ExtraNode(len(self.extras) - 1)
        return self._walk_rare_type(values, first, kind)

    def _walk_rare_type(self, values: Sequence[Any], first: Any, kind: type) -> LayoutNode:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(first, torch.Tensor):
            return self._tensors(torch, values, first)
        if isinstance(first, np.generic) and first.dtype.kind in "biufc":
            array = np.array(values)
            if len(set(map(type, values))) > 1:
                raise NotPlannedError
            return self._leaf(array, array.shape, array.dtype)
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            if len(set(map(len, values))) > 1:
                raise NotPlannedError
            return NamedTupleNode(kind, tuple([self._walk(column) for column in _columns(values, len(first))]))
        if isinstance(first, (int, float, np.ndarray, Mapping, Sequence)) or _registered(kind):
            raise NotPlannedError
        if dataclasses.is_dataclass(first) and not isinstance(first, type):
            names = tuple(f.name for f in dataclasses.fields(first) if f.init)
            return DataclassNode(kind, names, tuple([self._walk([getattr(v, n) for v in values]) for n in names]))
        raise TypeError(NOT_COLLATED.format(kind))

    def _arrays(self, values: Sequence[Any], first: Any) -> ArrayNode:
        shape, dtype = first.shape, first.dtype
        if dtype.kind not in "biufc" or dtype.isbuiltin == ADDED_TO_NUMPY:
            raise TypeError(NOT_COLLATED.format(dtype))
        if len(set(map(type, values))) > 1:
            raise NotPlannedError
        if len(set(map(_shape_of, values))) > 1:
            raise unequal_sizes(values)
        if not _same_dtype(values) or not dtype.isnative or dtype.itemsize > (16 if dtype.kind == "c" else 8):
            raise NotPlannedError
        return self._leaf(values, (len(values), *shape), dtype)

    def _tensors(self, torch: Any, values: Sequence[Any], first: Any) -> ArrayNode:
        plain = type(first) is torch.Tensor and first.layout is torch.strided and first.device.type == "cpu"
        if not plain or first.is_quantized or first.is_nested or len(set(map(type, values))) > 1:
            raise NotPlannedError
        if len(set(map(_shape_of, values))) > 1:
            raise unequal_sizes(values)
        dtype = first.dtype
        if len(set(map(_dtype_of, values))) > 1 or any(v.requires_grad for v in values):
            raise NotPlannedError
        name = str(dtype).removeprefix("torch.")
        carrier = name
        if name not in NUMPYS_OWN:  # bfloat16, float8_...: sent as unsigned integers of the same size
            if dtype.itemsize not in (1, 2, 4) or dtype.is_complex:
                raise NotPlannedError
            carrier = f"u{dtype.itemsize}"
        return self._leaf(values, (len(values), *first.shape), np.dtype(carrier), name)


def _common(first: type, kinds: set[type]) -> Any:
    """Return the dtype for numbers of several types, as in torch.

    It is float64 if the first number is a float, float32 if only later numbers are floats, and otherwise int64.
    """
    if not kinds <= SCALARS.keys():
        raise NotPlannedError
    if first is float:
        return np.float64
    if float not in kinds:
        return np.int64
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_default_dtype() is not torch.float32:
        raise NotPlannedError
    return np.float32


def _same_dtype(values: Sequence[Any]) -> bool:
    """Return whether all values have the same dtype.

    Most dtypes are singletons, so their ids are compared first, which is ten times faster than comparing the dtypes.
    """
    dtypes = list(map(_dtype_of, values))
    return len(set(map(id, dtypes))) == 1 or len(set(dtypes)) == 1


def plan_batch(samples: Sequence[Any]) -> Plan | None:
    """Return the plan of a batch; None if the batch must be collated into an object (`collate_object`).

    Raises:
        Exception: The samples cannot be collated; see `Plan`.
    """
    try:
        return Plan(samples)
    except NotPlannedError:
        return None


def _columns(values: Sequence[Any], length: int) -> list[tuple[Any, ...]]:
    if any(len(v) != length for v in values):
        raise RuntimeError("each element in list of batch should be of equal size")
    return list(zip(*values, strict=True))


def unequal_sizes(values: Sequence[Any]) -> RuntimeError:
    """Return the error that torch raises if samples cannot be stacked, with added advice."""
    first = list(values[0].shape)
    entry, shape = next((i, list(v.shape)) for i, v in enumerate(values) if list(v.shape) != first)
    return RuntimeError(
        f"stack expects each tensor to be equal size, but got {first} at entry 0 and {shape} at entry {entry}. "
        "Resize or pad the samples in the dataset, or give a collate_fn that does."
    )


def _registered(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and any(
        issubclass(kind, k) for k in torch.utils.data._utils.collate.default_collate_fn_map
    )


def collate_object(samples: list[Any], output: str) -> Any:
    """Collate samples that `Plan` does not support, with torch's `default_collate` (imports torch).

    Args:
        samples: The samples of a batch.
        output: "torch" or "numpy".

    Raises:
        Exception: Whatever the function that collates them raises.
    """
    if not samples:
        raise IndexError(EMPTY_BATCH)
    from torch import Tensor
    from torch.utils.data import default_collate

    batch = default_collate(samples)
    return batch if output == "torch" else map_tree(batch, lambda part: type(part) is Tensor, _as_array)


def _as_array(tensor: Any) -> Any:
    """Convert a tensor to an array; return the tensor unchanged if NumPy lacks its dtype."""
    try:
        return tensor.numpy()
    except TypeError:
        return tensor


def convert(sample: Any, as_tensor: Callable[[Any], Any]) -> Any:
    """Convert a sample that is not batched, as torch's `default_convert` does: arrays become tensors.

    All other leaves stay unchanged.

    Args:
        sample: One sample.
        as_tensor: Converts an array to a tensor, or marks it for conversion if torch must not be imported here. For
            NumPy output, it returns an array.
    """
    kind = type(sample)
    if isinstance(sample, np.ndarray) and kind.__module__ == "numpy" and kind is not np.ndarray:
        sample, kind = np.asarray(sample), np.ndarray  # np.matrix and np.memmap, as in torch; other subclasses stay
    if kind is np.ndarray or (isinstance(sample, np.generic) and not isinstance(sample, (str, bytes))):
        return as_tensor(sample) if sample.dtype.kind in "biufc" else sample
    if kind not in (dict, list) and isinstance(sample, (Mapping, Sequence)) and not isinstance(sample, tuple):
        if isinstance(sample, (str, bytes)):
            return sample
        from torch.utils.data import default_convert

        return default_convert(sample)  # type: ignore[no-untyped-call]
    if dataclasses.is_dataclass(sample) or (container := container_of(sample)) is None:
        return sample
    parts = [convert(part, as_tensor) for (part,) in container.columns((sample,))]
    if kind is not dict and not hasattr(sample, "_fields"):
        return parts  # tuples become lists, too
    return container.make(parts)
