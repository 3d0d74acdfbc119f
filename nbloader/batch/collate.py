"""Collates samples: the arrays of a batch are stacked straight into the memory in which the batch stays or is sent.

    samples -> collate_samples(samples, target) -> the batch
                 for each array: target.place(shape, dtype, write) -> the array, or what takes its place in the pickle

The target is `LocalArrays` in the notebook's process, and `serialize.PlannedArrays` in a worker process.

The rules are those of torch's `default_collate`: numbers, arrays and tensors are stacked into tensors, strings and
bytes stay lists, mappings and named tuples keep their type, other tuples become lists. In addition, dataclasses are
supported and keep their type. torch is needed only if a sample contains a tensor, so most workers need not import it.

Samples of other types (sparse and nested tensors, types registered in `default_collate_fn_map`, other rare types) are
collated by torch's `default_collate` itself. In a worker process, this costs one more copy.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter, length_hint
from typing import Any, Protocol

import numpy as np

from nbloader._util.signals import raised_by_handler
from nbloader.batch.pytree import container_of, map_tree

NOT_COLLATED = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"

NUMPYS_OWN = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64", "complex64", "complex128"}
)
"""Names of the dtypes that NumPy and torch share. Packages such as ml_dtypes register more of torch's names with NumPy,
but torch does not accept those dtypes."""
ADDED_TO_NUMPY = 2
"""Value of `dtype.isbuiltin` for a dtype that such a package has registered."""

_shape_of = attrgetter("shape")
_dtype_of = attrgetter("dtype")
SCALARS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


LARGE = 4 << 20
"""Size of a stacked tensor, bytes, from which NumPy allocates it in this process: in huge pages, which spares most page
faults."""

EMPTY_BATCH = "the batch is empty: the batch sampler gave a list without indices, or __getitems__ one without samples"


class NotPlannedError(Exception):
    """Samples must be collated by `collate_object`. Never reaches the user."""


class ArrayTarget(Protocol):
    """Where the arrays of a batch go."""

    def place(
        self, shape: tuple[int, ...], dtype: Any, write: Callable[[Any], object], torch_dtype: str | None = None
    ) -> Any:
        """Provide an array.

        Args:
            shape: Shape of the array.
            dtype: Its NumPy dtype.
            write: Fills an array of this shape and dtype. It is called now or later, once.
            torch_dtype: Name of the torch dtype if samples are tensors. `dtype` is an unsigned integer of the same size
                if NumPy lacks it.

        Returns:
            The array or tensor, or an object that takes its place until the batch is loaded.

        Raises:
            NotPlannedError: The output is NumPy's, which lacks the dtype.
        """

    def stack(self, tensors: Sequence[Any]) -> Any:
        """Return the tensors of all samples as one, if torch may choose its memory; None if it must be placed."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what `function` returns for arguments that contain arrays, or an object that takes its place."""


class LocalArrays:
    """Puts the arrays of a batch into memory of this process, each by itself.

    Args:
        output: "torch" or "numpy": what the arrays become.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self.nbytes = 0
        """Size of the arrays, bytes."""

    def place(
        self, shape: tuple[int, ...], dtype: Any, write: Callable[[Any], object], torch_dtype: str | None = None
    ) -> Any:
        """See `ArrayTarget`. NumPy requests huge pages for large arrays, which spares most of their page faults."""
        tensor = tensor_kind(self._output, torch_dtype)
        out = np.empty(shape, dtype)
        write(out)
        self.nbytes += out.nbytes
        return out if tensor is None else as_tensor(out, tensor)

    def stack(self, tensors: Sequence[Any]) -> Any:
        """See `ArrayTarget`."""
        if self._output != "torch" or tensors[0].nbytes * len(tensors) >= LARGE:
            return None
        try:
            stacked = sys.modules["torch"].stack(tensors)
        except (RuntimeError, TypeError) as error:  # placing them finds out why
            if raised_by_handler(error):
                raise
            return None
        self.nbytes += stacked.nbytes
        return stacked

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """See `ArrayTarget`."""
        return function(*args)


def tensor_kind(output: str, torch_dtype: str | None) -> str | None:
    """Return what an array becomes: None for an array, "" for a tensor of its dtype, or the name of a torch dtype.

    Args:
        output: "torch" or "numpy".
        torch_dtype: Name of the torch dtype of the samples; None if they are not tensors.

    Raises:
        NotPlannedError: The output is NumPy's, which lacks the dtype.
    """
    foreign = torch_dtype is not None and torch_dtype not in NUMPYS_OWN
    if output == "numpy":
        if foreign:
            raise NotPlannedError
        return None
    return torch_dtype if foreign else ""


def as_tensor(array: Any, kind: str) -> Any:
    """Create a tensor on the memory of an array, which must be writable.

    Args:
        array: The array.
        kind: See `tensor_kind`.
    """
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, kind)) if kind else tensor


def collate_samples(samples: Sequence[Any], target: ArrayTarget) -> Any:
    """Collate samples.

    Args:
        samples: The samples of the batch.
        target: Where its arrays go.

    Returns:
        The batch, with what `target` returned in place of each array.

    Raises:
        NotPlannedError: A sample contains a type that must be collated by `collate_object`.
        Exception: The samples cannot be collated; the errors are those of torch's `default_collate`.
    """
    if not samples:
        raise IndexError(EMPTY_BATCH)
    return _collate(samples, target)


def _collate(values: Sequence[Any], target: ArrayTarget) -> Any:
    first = values[0]
    kind = type(first)
    if kind is np.ndarray or kind is np.memmap:
        return _arrays(values, first, target)
    scalar = SCALARS.get(kind)
    if scalar is not None:
        if len(kinds := set(map(type, values))) > 1:
            scalar = _common(kind, kinds)
        try:
            with np.errstate(over="ignore") if scalar is np.float32 else nullcontext():
                array = np.array(values, scalar)
        except OverflowError:
            raise NotPlannedError from None  # torch raises its own error
        return _place_array(array, target)
    if kind is dict:
        return {key: _collate([v[key] for v in values], target) for key in first}
    if kind is tuple or kind is list:
        return [_collate(column, target) for column in _columns(values, len(first))]
    if isinstance(first, (str, bytes)):
        return values  # inside tuples and lists, this is a tuple, as in torch
    return _collate_rare_type(values, first, kind, target)


def _collate_rare_type(values: Sequence[Any], first: Any, kind: type, target: ArrayTarget) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        return _tensors(torch, values, first, target)
    if isinstance(first, np.generic) and first.dtype.kind in "biufc":
        if len(set(map(type, values))) > 1:
            raise NotPlannedError
        return _place_array(np.array(values), target)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        if len(set(map(len, values))) > 1:
            raise NotPlannedError
        return target.call(kind, *[_collate(column, target) for column in _columns(values, len(first))])
    if isinstance(first, (int, float, np.ndarray, Mapping, Sequence)) or _registered(kind):
        raise NotPlannedError
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = tuple(f.name for f in dataclasses.fields(first) if f.init)
        parts = [_collate([getattr(value, name) for value in values], target) for name in names]
        return target.call(make_dataclass, kind, names, *parts)
    raise TypeError(NOT_COLLATED.format(kind))


def make_dataclass(cls: Callable[..., Any], names: Sequence[str], *parts: Any) -> Any:
    """Construct a dataclass from the fields that its `__init__` takes."""
    return cls(**dict(zip(names, parts, strict=True)))


def _place_array(array: Any, target: ArrayTarget) -> Any:
    return target.place(array.shape, array.dtype, lambda out: np.copyto(out, array))


def _arrays(values: Sequence[Any], first: Any, target: ArrayTarget) -> Any:
    shape, dtype = first.shape, first.dtype
    if dtype.kind not in "biufc" or dtype.isbuiltin == ADDED_TO_NUMPY:
        raise TypeError(NOT_COLLATED.format(dtype))
    count = len(values)
    if list(map(type, values)).count(type(first)) != count:
        raise NotPlannedError
    if not dtype.isnative or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise NotPlannedError
    if not shape:
        return _place_scalars(values, target)
    joined = (count * shape[0], *shape[1:])
    if list(map(length_hint, values)).count(shape[0]) != count:
        raise unequal_sizes(values)  # `concatenate` would accept other lengths with the same sum

    def write(out: Any) -> None:
        try:
            np.concatenate(values, 0, out.reshape(joined), casting="no")
        except (TypeError, ValueError) as error:
            raise _not_alike(values, error) from None

    return target.place((count, *shape), dtype, write)


def _place_scalars(values: Sequence[Any], target: ArrayTarget) -> Any:
    """Place arrays without dimensions."""
    if len(set(map(_shape_of, values))) > 1 or len(set(map(_dtype_of, values))) > 1:
        raise _not_alike(values)
    return _place_array(np.array(values), target)


def _tensors(torch: Any, values: Sequence[Any], first: Any, target: ArrayTarget) -> Any:
    plain = type(first) is torch.Tensor and first.layout is torch.strided and first.device.type == "cpu"
    if not plain or first.is_quantized or first.is_nested:
        raise NotPlannedError
    if (stacked := target.stack(values)) is not None:
        return stacked
    if len(set(map(type, values))) > 1:
        raise NotPlannedError
    dtype = first.dtype
    if len(set(map(_dtype_of, values))) > 1:
        raise _not_alike(values)
    name = str(dtype).removeprefix("torch.")
    carrier = name
    if name not in NUMPYS_OWN:  # bfloat16, float8_...: stored as unsigned integers of the same size
        if dtype.itemsize not in (1, 2, 4) or dtype.is_complex:
            raise NotPlannedError
        carrier = f"u{dtype.itemsize}"

    def write(out: Any) -> None:
        tensor = torch.from_numpy(out)
        try:
            torch.stack(values, out=tensor if carrier is name else tensor.view(dtype))
        except RuntimeError as error:  # the shapes differ, or a tensor requires a gradient
            raise _not_alike(values, error) from None

    return target.place((len(values), *first.shape), np.dtype(carrier), write, name)


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


def _not_alike(values: Sequence[Any], error: Exception | None = None) -> Exception:
    """Return the error for arrays or tensors that could not be stacked as they are.

    Args:
        values: The arrays or tensors.
        error: The error of the call that stacks them, if it was called.
    """
    if error is not None and raised_by_handler(error):
        return error
    return unequal_sizes(values) if len(set(map(_shape_of, values))) > 1 else NotPlannedError()


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
    """Collate samples that `collate_samples` does not support, with torch's `default_collate` (imports torch).

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
