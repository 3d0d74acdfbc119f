"""Samples into a batch, straight into the memory in which the batch will travel.

    samples -> plan(): what goes where -> Plan.fill(memory) in the worker -> Builder(memory) in the notebook

The rules are those of torch's `default_collate`: numbers, arrays and tensors are stacked to tensors, strings and bytes
stay lists, mappings and named tuples keep their type, other tuples become lists. Dataclasses keep theirs too. torch
itself is not needed where no sample holds a tensor, so that a worker need not import it.

What the plan does not know (sparse and nested tensors, registered or exotic types, the result of a custom
`collate_fn`) is collated to an object and pickled with its arrays out of band: one copy more, any type.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import numpy as np

from nbloader.shm.segment import aligned

Tree: TypeAlias = "tuple[Any, ...]"
Memory: TypeAlias = Any  # anything with a writable buffer that numpy can keep as base: mmap, bytearray, ctypes array

NOT_COLLATED = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"

NUMPYS_OWN = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64", "complex64", "complex128"}
)
"""Names of dtypes that NumPy and torch have. Where a package such as ml_dtypes is imported NumPy knows more of torch's
names, but torch does not know what NumPy means by them."""
ADDED_TO_NUMPY = 2
"""`isbuiltin` of a dtype that such a package has added."""

_shape_of = operator.attrgetter("shape")
_dtype_of = operator.attrgetter("dtype")
SCALARS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


NOTHING = "the batch is empty: the batch sampler gave a list without indices, or __getitems__ one without samples"


class NotPlannedError(Exception):
    """The plan does not know this type: collate to an object and pickle it. Never leaves nbloader."""


class Plan:
    """Where each leaf of a collated batch goes.

    Attributes:
        tree: The structure, hashable: equal for batches that are laid out alike.
        extras: Leaves that are not arrays (lists of strings), sent beside the memory.
        nbytes: Size of the memory that the batch needs.
    """

    __slots__ = ("_leaves", "extras", "nbytes", "tree")

    def __init__(self, samples: Sequence[Any]) -> None:
        self._leaves: list[tuple[Any, tuple[int, ...], Any, int, str | None]] = []
        self.extras: list[Any] = []
        self.nbytes = 0
        if not samples:
            raise IndexError(NOTHING)
        self.tree = self._walk(samples)

    def fill(self, memory: Memory) -> None:
        """Write the arrays into `memory`, which has room for `nbytes`."""
        for values, shape, dtype, offset, tensor in self._leaves:
            out: Any = np.ndarray(shape, dtype, memory, offset)
            if tensor is not None:
                torch = sys.modules["torch"]
                torch.stack(values, out=torch.from_numpy(out).view(getattr(torch, tensor)))
            elif type(values) is np.ndarray:
                out[...] = values
            elif len(shape) > 1:
                np.concatenate(values, 0, out.reshape(shape[0] * shape[1], *shape[2:]))
            else:
                out[...] = np.array(values)

    def move(self, tree: Tree) -> None:
        """Have the arrays lie elsewhere.

        Args:
            tree: The same but for the offsets.
        """
        offsets = _offsets(tree)
        self._leaves = [(*leaf[:3], next(offsets), leaf[4]) for leaf in self._leaves]

    def _leaf(self, values: Any, shape: tuple[int, ...], dtype: Any, tensor: str | None = None) -> Tree:
        offset = self.nbytes
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        self.nbytes = offset + aligned(nbytes)
        self._leaves.append((values, shape, dtype, offset, tensor))
        return "array", offset, shape, dtype.str, tensor

    def _walk(self, values: Sequence[Any]) -> Tree:
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
                raise NotPlannedError from None  # torch says what it takes
            return self._leaf(array, array.shape, array.dtype)
        if kind is dict:
            return "dict", tuple(first), tuple([self._walk([v[key] for v in values]) for key in first])
        if kind is tuple or kind is list:
            return "list", tuple([self._walk(column) for column in _columns(values, len(first))])
        if isinstance(first, (str, bytes)):
            self.extras.append(values)  # a tuple below tuples and lists, as torch gives it
            return "extra", len(self.extras) - 1
        return self._rarer(values, first, kind)

    def _rarer(self, values: Sequence[Any], first: Any, kind: type) -> Tree:
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
            children = tuple([self._walk(column) for column in _columns(values, len(first))])
            return "namedtuple", kind, children
        if isinstance(first, (int, float, np.ndarray, Mapping, Sequence)) or _registered(kind):
            raise NotPlannedError
        if dataclasses.is_dataclass(first) and not isinstance(first, type):
            names = tuple(f.name for f in dataclasses.fields(first) if f.init)
            return "dataclass", kind, names, tuple([self._walk([getattr(v, n) for v in values]) for n in names])
        raise TypeError(NOT_COLLATED.format(kind))

    def _arrays(self, values: Sequence[Any], first: Any) -> Tree:
        shape, dtype = first.shape, first.dtype
        if dtype.kind not in "biufc" or dtype.isbuiltin == ADDED_TO_NUMPY:
            raise TypeError(NOT_COLLATED.format(dtype))
        if len(set(map(type, values))) > 1:
            raise NotPlannedError
        if len(set(map(_shape_of, values))) > 1:
            raise unequal_sizes(values)
        if not _alike(values) or not dtype.isnative or dtype.itemsize > (16 if dtype.kind == "c" else 8):
            raise NotPlannedError
        return self._leaf(values, (len(values), *shape), dtype)

    def _tensors(self, torch: Any, values: Sequence[Any], first: Any) -> Tree:
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
        if name not in NUMPYS_OWN:  # bfloat16, float8_...: carried as unsigned integers of that size
            if dtype.itemsize not in (1, 2, 4) or dtype.is_complex:
                raise NotPlannedError
            carrier = f"u{dtype.itemsize}"
        return self._leaf(values, (len(values), *first.shape), np.dtype(carrier), name)


def _common(first: type, kinds: set[type]) -> Any:
    """What numbers of several types become, as torch has it: the first decides whether they are doubles."""
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


def _alike(values: Sequence[Any]) -> bool:
    """Whether all have the same dtype. Most dtypes are one object each, and comparing those is ten times as quick."""
    dtypes = list(map(_dtype_of, values))
    return len(set(map(id, dtypes))) == 1 or len(set(dtypes)) == 1


def _columns(values: Sequence[Any], length: int) -> list[tuple[Any, ...]]:
    if any(len(v) != length for v in values):
        raise RuntimeError("each element in list of batch should be of equal size")
    return list(zip(*values, strict=True))


def _offsets(tree: Tree) -> Iterator[int]:
    if tree[0] == "array":
        yield tree[1]
    elif tree[0] != "extra":
        for child in tree[-1]:
            yield from _offsets(child)


def unequal_sizes(values: Sequence[Any]) -> RuntimeError:
    """The error that torch raises when samples cannot be stacked, with what to do added."""
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
    """Collate what `Plan` does not know, by torch's own rules (imports torch).

    Args:
        samples: Those of a batch.
        output: "torch" or "numpy".
    """
    from torch.utils.data import default_collate

    if not samples:
        raise IndexError(NOTHING)
    batch = default_collate(samples)
    return batch if output == "torch" else _with_arrays(batch)


def _with_arrays(value: Any) -> Any:
    """With arrays in the place of tensors, but for those of a dtype that NumPy does not know."""
    import torch

    kind = type(value)
    if kind is torch.Tensor:
        try:
            return value.numpy()
        except TypeError:
            return value
    if kind is dict:
        return {key: _with_arrays(part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*map(_with_arrays, value))
    return kind(map(_with_arrays, value)) if kind is list or kind is tuple else value


def convert(sample: Any, as_tensor: Callable[[Any], Any]) -> Any:
    """Convert as torch's `default_convert`, for samples that pass unbatched: arrays become tensors, the rest stays.

    Args:
        sample: One sample.
        as_tensor: Makes the tensor of an array (or marks it, where torch is not to be imported).
    """
    kind = type(sample)
    if (
        kind is np.ndarray
        or kind is np.memmap
        or (isinstance(sample, np.generic) and not isinstance(sample, (str, bytes)))
    ):
        return as_tensor(sample) if sample.dtype.kind in "biufc" else sample
    if kind is dict:
        return {key: convert(value, as_tensor) for key, value in sample.items()}
    if isinstance(sample, tuple):
        parts = [convert(value, as_tensor) for value in sample]
        return kind(*parts) if hasattr(sample, "_fields") else parts
    if kind is list:
        return [convert(value, as_tensor) for value in sample]
    if isinstance(sample, (Mapping, Sequence)) and not isinstance(sample, (str, bytes)):
        from torch.utils.data import default_convert

        return default_convert(sample)  # type: ignore[no-untyped-call]
    return sample


# ---- the notebook's side ----------------------------------------------------------------------------------------

Build: TypeAlias = "Callable[[Memory, list[Any]], Any]"


def builder(tree: Tree, output: str) -> Build:
    """A function that makes the batch of this layout from its memory and extras.

    Args:
        tree: `Plan.tree`.
        output: "torch" or "numpy".
    """
    kind = tree[0]
    if kind == "array":
        return _array_builder(tree, output)
    if kind == "extra":
        return lambda _memory, extras: extras[tree[1]]
    children = [builder(child, output) for child in tree[-1]]
    if kind == "list":
        return lambda memory, extras: [child(memory, extras) for child in children]
    if kind == "dict":
        return _dict_builder(tree, children, output)
    cls = tree[1]
    if kind == "namedtuple":
        return lambda memory, extras: cls(*[child(memory, extras) for child in children])
    fields = list(zip(tree[2], children, strict=True))
    return lambda memory, extras: cls(**{name: child(memory, extras) for name, child in fields})


def _dict_builder(tree: Tree, children: Sequence[Build], output: str) -> Build:
    keys = tree[1]
    arrays = _evenly_spaced(tree[2], output)
    if arrays is not None:
        return lambda memory, _extras: dict(zip(keys, arrays(memory), strict=True))
    items = list(zip(keys, children, strict=True))
    return lambda memory, extras: {key: child(memory, extras) for key, child in items}


def _evenly_spaced(trees: Sequence[Tree], output: str) -> Callable[[Memory], Iterator[Any]] | None:
    """Makes arrays or tensors of one shape and dtype as slices of one array; None for others.

    The memory is asked only once for its address: 40 tensors in 39 us instead of 52 us.
    """
    if not trees[1:] or any(tree[0] != "array" or tree[4] is not None for tree in trees):
        return None
    _kind, start, shape, dtype_str, _tensor = trees[0]
    spacing = trees[1][1] - start
    if any(tree[1:4] != (start + i * spacing, shape, dtype_str) for i, tree in enumerate(trees)):
        return None
    array, dtype = np.ndarray, np.dtype(dtype_str)
    shapes, strides = (len(trees), *shape), (spacing, *np.empty(shape, dtype).strides)
    if output == "numpy":
        return lambda memory: iter(array(shapes, dtype, memory, start, strides))
    import torch

    from_numpy = torch.from_numpy
    return lambda memory: map(from_numpy, array(shapes, dtype, memory, start, strides))


def _array_builder(tree: Tree, output: str) -> Build:
    _kind, offset, shape, dtype_str, tensor = tree
    dtype = np.dtype(dtype_str)
    array = np.ndarray
    if output == "numpy":
        return lambda memory, _extras: array(shape, dtype, memory, offset)
    import torch

    from_numpy = torch.from_numpy
    if tensor is not None and str(dtype) != tensor:
        torch_dtype = getattr(torch, tensor)
        return lambda memory, _extras: from_numpy(array(shape, dtype, memory, offset)).view(torch_dtype)
    return lambda memory, _extras: from_numpy(array(shape, dtype, memory, offset))
