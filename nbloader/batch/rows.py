"""Gathers batches of in-memory array datasets by one indexing operation per array, instead of sample by sample.

    select(dataset, indices) -> Selection: which rows of which arrays -> collate(target)

A shuffled batch of 1,024 rows of 32 floats takes 20 us this way, and 2,300 us with `dataset[i]` and stacking.

It recognizes arrays, tensors, torch's `TensorDataset`, `StackDataset` and `Subset` (and thus `random_split`) of them,
nested in any way, and a Hugging Face `datasets.Dataset` in NumPy or torch format. Subclasses are not recognized, since
they may do anything in `__getitem__`. The batch equals the one that is collated from its samples. If the two could
differ, as with a tensor that requires a gradient or an index out of range, the samples are fetched as usual.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nbloader._util.signals import raised_by_handler
from nbloader.batch.collate import NUMPYS_OWN, ArrayTarget
from nbloader.sampling.index_arrays import IndexArray


class Column(NamedTuple):
    """Rows of an array, which become one array or tensor of the batch."""

    array: Any
    """A NumPy array; it holds unsigned integers if NumPy lacks the tensor's dtype."""
    rows: Any
    """The rows, as an int64 array of valid, non-negative positions; None for the whole array."""
    torch_dtype: str | None
    """Name of the torch dtype if the samples are tensors, otherwise None."""


_Structure: TypeAlias = "Column | list[Any] | dict[Any, Any] | Texts"


class Texts(NamedTuple):
    """A list of strings, which becomes part of the batch unchanged."""

    values: list[Any]


class NotInMemoryError(Exception):
    """The batch must be collated from samples. Never leaves this module."""


class Selection:
    """The rows of arrays that make up a batch.

    Args:
        structure: Columns, in the lists and dicts of the batch.
        size: Number of samples.
    """

    __slots__ = ("_structure", "size")

    def __init__(self, structure: _Structure, size: int) -> None:
        self._structure = structure
        self.size = size

    def __len__(self) -> int:
        """Number of samples."""
        return self.size

    def collate(self, target: ArrayTarget) -> Any:
        """Gather the batch; see `collate_samples`."""
        return _gather(self._structure, target)


def _gather(structure: _Structure, target: ArrayTarget) -> Any:
    if isinstance(structure, Column):
        array, rows, torch_dtype = structure
        if rows is None:
            return target.place(array.shape, array.dtype, lambda out: np.copyto(out, array), torch_dtype)
        # With "raise", NumPy gathers into a buffer first.
        take = functools.partial(array.take, rows, 0, mode="clip")
        return target.place((len(rows), *array.shape[1:]), array.dtype, lambda out: take(out=out), torch_dtype)
    if isinstance(structure, Texts):
        return structure.values
    if isinstance(structure, dict):
        return {key: _gather(part, target) for key, part in structure.items()}
    return [_gather(part, target) for part in structure]


# ---- recognizing datasets -------------------------------------------------------------------------------------------


class RowSelector:
    """Selects the batches of one dataset.

    The dataset is inspected for each batch, as `dataset[i]` would do: its tensors may be replaced at any time. Only the
    index list of a `Subset` is converted just once per epoch, or when its length changes: the conversion takes as long
    as gathering several batches.
    """

    def __init__(self) -> None:
        self._epoch = -1
        self._converted: dict[int, tuple[Any, Any]] = {}  # id of a list of indices -> (the list, an array)

    def select(self, dataset: Any, indices: Any, epoch: int, output: str) -> Selection | list[Any] | None:
        """Select the samples of a batch.

        Args:
            dataset: Any map-style dataset.
            indices: The indices of the batch: a list, or an `IndexArray`.
            epoch: Number of the epoch.
            output: "torch" or "numpy": what the arrays of the batch become.

        Returns:
            The selection; or the samples themselves, if they were fetched anyway; or None if they must be fetched.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._converted.clear()
        try:
            rows = _rows_of(indices)
            if _is_hugging_face(dataset):
                if not is_in_memory(dataset):
                    return None
                return _hugging_face(dataset, rows.tolist(), output)
            return Selection(self._describe(dataset, rows, output), len(rows))
        except NotInMemoryError:
            return None

    def _describe(self, dataset: Any, rows: Any, output: str) -> _Structure:
        kind = type(dataset)
        if kind in _ARRAYS:
            return _column(dataset, rows)
        torch = sys.modules.get("torch")
        if torch is None:
            raise NotInMemoryError
        if kind is torch.Tensor:
            return _tensor_column(torch, dataset, rows, output)
        data = torch.utils.data
        if kind not in (data.TensorDataset, data.StackDataset, data.Subset) or "__getitems__" in vars(dataset):
            raise NotInMemoryError
        if kind is data.TensorDataset:
            return [self._describe(tensor, rows, output) for tensor in dataset.tensors]
        if kind is data.StackDataset:
            return self._describe_stack(dataset.datasets, rows, output)
        chosen = self._indices_of(dataset.indices)
        return self._describe(dataset.dataset, chosen.take(_within(rows, len(chosen)), 0, None, "clip"), output)

    def _describe_stack(self, parts: Any, rows: Any, output: str) -> _Structure:
        if type(parts) is dict:
            return {key: self._describe(part, rows, output) for key, part in parts.items()}
        if type(parts) is tuple:
            return [self._describe(part, rows, output) for part in parts]
        raise NotInMemoryError

    def _indices_of(self, indices: Any) -> Any:
        """Return the indices of a subset as an array."""
        kind = type(indices)
        if kind is list or kind is tuple:
            known = self._converted.get(id(indices))
            if known is not None and known[0] is indices and len(known[1]) == len(indices):
                return known[1]
            array = _rows_of(indices)
            self._converted[id(indices)] = indices, array
            return array
        if kind is range:
            return np.arange(indices.start, indices.stop, indices.step)
        if kind is np.ndarray:
            array = indices
        elif (torch := sys.modules.get("torch")) is not None and kind is torch.Tensor and indices.is_cpu:
            array = indices.detach().numpy()
        else:
            raise NotInMemoryError
        if array.ndim != 1 or array.dtype != np.int64:
            raise NotInMemoryError
        return array


_ARRAYS = (np.ndarray, np.memmap)
_HUGGING_FACE = ("datasets.arrow_dataset", "Dataset")


def is_in_memory(dataset: Any) -> bool:
    """Whether batches of a dataset can be gathered, unless their indices prevent it. Reads no sample."""
    kind = type(dataset)
    if kind in _ARRAYS:
        return dataset.ndim > 0 and _has_plain_dtype(dataset.dtype)
    if _is_hugging_face(dataset):
        return dataset.format["type"] in ("numpy", "torch")
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor:
        return bool(_is_plain(torch, dataset))
    parts = _parts(dataset)
    return bool(parts) and all(map(is_in_memory, parts))


def _parts(dataset: Any) -> Sequence[Any]:
    """Return what a subset or another dataset of `torch.utils.data` wraps; an empty sequence for other objects."""
    kind = type(dataset)
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    data = torch.utils.data
    if kind is data.TensorDataset:
        return tuple(dataset.tensors)
    if kind is data.Subset:
        return (dataset.dataset,)
    if kind is data.StackDataset:
        return tuple(dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets)
    return ()


def _is_hugging_face(dataset: Any) -> bool:
    kind = type(dataset)
    return (kind.__module__, kind.__qualname__) == _HUGGING_FACE


def _rows_of(indices: Any) -> Any:
    """Return the indices of a batch as an int64 array.

    Raises:
        NotInMemoryError: The indices are not plain integers, so only the dataset knows what they mean.
    """
    if type(indices) is IndexArray:
        return indices.array
    if not indices or not set(map(type, indices)) <= {int, np.int64}:
        raise NotInMemoryError
    try:
        return np.array(indices, np.int64)
    except OverflowError:
        raise NotInMemoryError from None


def _within(rows: Any, length: int) -> Any:
    """Convert negative positions, which count from the end, to non-negative ones.

    Raises:
        NotInMemoryError: A position is out of range; fetching the samples raises the right error.
    """
    if not len(rows):
        raise NotInMemoryError
    low = rows.min()
    if low < -length or rows.max() >= length:
        raise NotInMemoryError
    return rows if low >= 0 else np.where(rows < 0, rows + length, rows)


def _has_plain_dtype(dtype: Any) -> bool:
    return dtype.isnative and dtype.name in NUMPYS_OWN


def _column(array: Any, rows: Any) -> Column:
    if not array.ndim or not _has_plain_dtype(array.dtype):
        raise NotInMemoryError
    return Column(np.asarray(array), _within(rows, len(array)), None)


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Whether the memory of a tensor holds exactly its values, so that NumPy can read it."""
    if tensor.requires_grad or not tensor.is_cpu or tensor.layout is not torch.strided or not tensor.ndim:
        return False
    return not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())


def _tensor_column(torch: Any, tensor: Any, rows: Any, output: str) -> Column:
    if not _is_plain(torch, tensor):
        raise NotInMemoryError
    name = str(tensor.dtype).removeprefix("torch.")
    if name in NUMPYS_OWN:
        array = tensor.numpy()
    elif output == "torch" and tensor.itemsize in (1, 2, 4) and not tensor.is_complex():
        array = tensor.view(getattr(torch, f"uint{8 * tensor.itemsize}")).numpy()
    else:
        raise NotInMemoryError
    return Column(array, _within(rows, len(array)), name)


def _hugging_face(dataset: Any, indices: list[int], output: str) -> Selection | list[Any]:
    """Read rows of a Hugging Face dataset, all columns at once; as samples if a column is neither array nor text."""
    size = len(indices)
    try:
        columns = dataset[indices]
    except Exception as error:  # fetching the samples raises it again, and `on_error` then applies
        if raised_by_handler(error):
            raise
        raise NotInMemoryError from None
    try:
        return Selection({name: _read_column(values, size, output) for name, values in columns.items()}, size)
    except NotInMemoryError:
        return [{name: values[i] for name, values in columns.items()} for i in range(size)]


def _read_column(values: Any, size: int, output: str) -> Column | Texts:
    kind = type(values)
    if kind is list and all(type(value) is str for value in values):
        return Texts(values)
    if kind is np.ndarray and values.dtype.kind == "U" and values.ndim == 1:
        return Texts(list(values))
    if kind is np.ndarray and values.ndim and len(values) == size and _has_plain_dtype(values.dtype):
        return Column(values, None, None)
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor and _is_plain(torch, values) and len(values) == size:
        return _tensor_column(torch, values, np.arange(size), output)._replace(rows=None)
    raise NotInMemoryError
