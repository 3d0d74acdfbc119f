"""The format in which a batch travels: a pickled skeleton, and one block of memory with its arrays.

    PlannedArrays.encode(batch) or encode_object(batch) -> EncodedBatch: skeleton, write(memory)   in a worker process
                       load_object(skeleton, memory) -> the batch, whose arrays lie in the memory   in the notebook

The skeleton is the pickle of the batch, in which the arrays and tensors are replaced by placeholders (out-of-band
buffers of pickle's protocol 5), and the place, shape and dtype of each array. On loading, `pickle` requests the next
buffer for each placeholder and is given the finished array.

- Samples that nbloader collates are stacked straight into the memory (`PlannedArrays`).
- In a batch that a `collate_fn` returned, the arrays that are easy to find (the batch itself, and up to two levels of
  lists, tuples and dicts below it) are extracted before pickling, since NumPy takes ten times as long to pickle an
  array as to report its address. `pickle` finds the others.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nbloader._util.plain_tensor import is_plain
from nbloader.batch.collate import ADDED_TO_NUMPY, NotPlannedError, tensor_kind
from nbloader.batch.pickling import dump, in_shared_memory
from nbloader.shm.segment import SLAB_SIZE, aligned

Memory: TypeAlias = Any
"""Any object with a writable buffer that NumPy can use as the base of an array: mmap, bytearray, ctypes array."""
CopyOut: TypeAlias = "Callable[[memoryview], Memory]"
"""Copies a part of a batch's memory to a buffer of the same size."""

SMALL = SLAB_SIZE
"""Largest array, in bytes, that is copied out of the memory of a batch that also has larger arrays. Otherwise a program
that keeps only the labels of a batch would keep the memory of its images."""

PLACEHOLDER = pickle.PickleBuffer(bytearray(1))
"""Replaces each array. `pickle` handles it out of band and, on loading, accepts any object in its place."""


def tensor_of(array: Any) -> Any:
    """Create a tensor on the memory of an array, or on a copy if torch cannot share that memory.

    Args:
        array: An array of any shape, with a dtype that torch supports.
    """
    import torch

    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.from_numpy(array)


class ArrayToBeTensor:
    """An array that becomes a tensor when it is unpickled. Used in workers."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle as the tensor."""
        return tensor_of, (self.array,)


Found: TypeAlias = "tuple[str, str | None, Any]"
"""An array to write: its type character ("" for a buffer from which `pickle` itself builds an object), what it becomes
(see `collate.tensor_kind`), and the array."""
Place: TypeAlias = "tuple[str, str | None, int, tuple[int, ...]]"
"""An array in a batch's memory: the first two fields of its `Found`, its offset in bytes, and its shape."""


class EncodedBatch(NamedTuple):
    """A batch that is ready to be written."""

    skeleton: bytes
    """What `load_object` needs in addition to the memory."""
    nbytes: int
    """Memory that the arrays need, bytes."""
    write: Callable[[Memory], None]
    """Writes the arrays into the memory."""


def _skeleton(data: bytes, places: list[Place], sizes: list[int]) -> bytes:
    """Return the skeleton.

    Args:
        data: The pickle of the batch.
        places: Its arrays.
        sizes: Their sizes, bytes.
    """
    mixed = bool(sizes) and min(sizes) <= SMALL < max(sizes)
    return pickle.dumps((data, mixed, places), 5)


class PlannedArrays:
    """Plans where the arrays of a collated batch lie in its memory: an `ArrayTarget`. They are written later.

    Args:
        output: "torch" or "numpy": what the arrays become.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self._places: list[Place] = []
        self._planned: list[tuple[int, tuple[int, ...], Any, Callable[[Any], object]]] = []
        """The offset, shape, dtype and function of each array."""
        self._sizes: list[int] = []
        self._nbytes = 0

    def place(
        self, shape: tuple[int, ...], dtype: Any, write: Callable[[Any], object], torch_dtype: str | None = None
    ) -> Any:
        """See `ArrayTarget`."""
        start, nbytes = self._nbytes, dtype.itemsize * math.prod(shape)
        self._nbytes = start + aligned(nbytes)
        self._sizes.append(nbytes)
        self._places.append((dtype.char, tensor_kind(self._output, torch_dtype), start, shape))
        self._planned.append((start, shape, dtype, write))
        return PLACEHOLDER

    def stack(self, tensors: Sequence[Any]) -> None:
        """See `ArrayTarget`. All arrays are placed."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """See `ArrayTarget`. The function is called when the batch is loaded."""
        return _Call(function, args)

    def encode(self, batch: Any) -> EncodedBatch:
        """Encode the collated batch.

        Raises:
            NotPlannedError: A list of strings contains other objects, which have buffers of their own.
        """
        buffers: list[pickle.PickleBuffer] = []
        data = dump(batch, buffers.append)
        if len(buffers) != len(self._planned):
            raise NotPlannedError
        return EncodedBatch(_skeleton(data, self._places, self._sizes), self._nbytes, self._write)

    def _write(self, memory: Memory) -> None:
        for start, shape, dtype, write in self._planned:
            write(np.ndarray(shape, dtype, memory, start))


class _Call:
    """Unpickled as the result of a function."""

    __slots__ = ("_args", "_function")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._function, self._args


def encode_object(obj: Any) -> EncodedBatch:
    """Encode a batch of any type."""
    extractor = _ArrayExtractor()
    remainder = extractor.extract(obj)
    buffers: list[pickle.PickleBuffer] = []
    extracted = extractor.all_distinct()
    data = dump(remainder if extracted else obj, buffers.append)
    found = extractor.found
    if not extracted or len(found) != len(buffers):  # pickle has found more buffers
        placed = iter(found)
        found = [next(placed) if buffer is PLACEHOLDER else ("", None, buffer.raw()) for buffer in buffers]
    places: list[Place] = []
    sizes = [array.nbytes for _char, _kind, array in found]
    end = 0
    for (char, kind, array), nbytes in zip(found, sizes, strict=True):
        places.append((char, kind, end, array.shape))
        end += aligned(nbytes)
    return EncodedBatch(_skeleton(data, places, sizes), end, functools.partial(_copy_into, found, places))


def _copy_into(found: list[Found], places: list[Place], memory: Memory) -> None:
    """Copy arrays into the memory."""
    view = memoryview(memory).cast("B")
    for (_, _, array), (_, _, start, _) in zip(found, places, strict=True):
        data = pickle.PickleBuffer(array).raw()
        view[start : start + data.nbytes] = data


def load_object(skeleton: Any, memory: Memory, copy_out: CopyOut | None = None) -> Any:
    """Build a batch on the memory to which its arrays were written.

    Args:
        skeleton: The skeleton.
        memory: The memory of its arrays.
        copy_out: Copies small arrays if there are larger ones; None if all arrays are views of the memory.
    """
    torch = None  # imported for the first tensor: it takes seconds, and the explorer's samples may have none
    data, mixed, places = pickle.loads(skeleton)
    copies = iter(_copies(memory, places, copy_out) if mixed and copy_out is not None else ())
    buffers: list[Any] = []
    for char, kind, start, shape in places:
        own, at = next(copies, (memory, start))
        if not char:
            buffers.append(memoryview(own).cast("B")[at : at + shape[0]])
            continue
        array = np.ndarray(shape, char, own, at)
        if kind is None:
            buffers.append(array)
            continue
        if torch is None:
            torch = importlib.import_module("torch")
        tensor = torch.from_numpy(array)
        if type(own) is not bytearray:  # any other memory is shared between processes
            tensor.untyped_storage().is_shared = in_shared_memory
        buffers.append(tensor.view(getattr(torch, kind)) if kind else tensor)
    return pickle.loads(data, buffers=buffers)


def _copies(memory: Memory, places: Sequence[Place], copy_out: CopyOut) -> Iterator[tuple[Memory, int]]:
    """Yield where each array is once the small ones are copied out: its memory, and its offset there.

    Small arrays that lie one after the other are copied together, as far as they are small together.
    """
    view = memoryview(memory).cast("B")
    parts = [(start, math.prod(shape) * np.dtype(char or "B").itemsize) for char, _kind, start, shape in places]
    copied, begin, end = memory, 0, 0
    for number, (start, nbytes) in enumerate(parts):
        if nbytes > SMALL:
            yield memory, start
            continue
        if start + nbytes > end:
            begin = end = start
            for first, size in itertools.islice(parts, number, None):
                if first + size - begin > SMALL:
                    break
                end = first + size
            copied = copy_out(view[begin:end])
        yield copied, start - begin


class _ArrayExtractor:
    """Replaces arrays and tensors by placeholders, in a copy of the lists, tuples and dicts that hold them."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        """The arrays, in the order of their placeholders."""
        self._torch = sys.modules.get("torch")
        self._kinds = {np.ndarray, ArrayToBeTensor}
        if self._torch is not None:
            self._kinds.add(self._torch.Tensor)
        self._seen: list[int] = []

    def all_distinct(self) -> bool:
        """Whether no object was seen twice: an object that is referenced twice must remain one object after loading."""
        return len(set(self._seen)) == len(self._seen)

    def extract(self, obj: Any, levels: int = 2) -> Any:
        """Return the object with its arrays replaced by placeholders, down to this many levels of containers."""
        kind = type(obj)
        if kind in self._kinds:
            return self._leaves((obj,))[0]
        if kind not in (dict, list, tuple):
            return obj
        self._seen.append(id(obj))
        values = obj.values() if kind is dict else obj
        if levels > 1:
            parts = [self.extract(value, levels - 1) for value in values]
        elif self._kinds.isdisjoint(map(type, values)):
            return obj
        else:
            parts = self._leaves(values)
        return dict(zip(obj, parts, strict=True)) if kind is dict else kind(parts)

    def _leaves(self, values: Iterable[Any]) -> list[Any]:
        out, kinds, ndarray = [], self._kinds, np.ndarray
        dtype: Any = None  # of the previous array: most arrays share one dtype object
        plain = False
        for obj in values:
            kind = type(obj)
            if kind not in kinds:
                out.append(obj)
                continue
            self._seen.append(id(obj))
            array = obj if kind is ndarray else self._array_of(obj)
            if array is None or not array.size or not (flags := array.flags).c_contiguous or not flags.aligned:
                out.append(obj)
                continue
            if array.dtype is not dtype:
                dtype = array.dtype
                plain = dtype.kind in "biufc" and dtype.isnative and dtype.isbuiltin != ADDED_TO_NUMPY
            if plain:
                self.found.append((dtype.char, None if kind is ndarray else "", array))
                out.append(PLACEHOLDER)
            else:
                out.append(obj)
        return out

    def _array_of(self, obj: Any) -> Any:
        """Return the array of an `ArrayToBeTensor` or of a tensor; None if NumPy cannot represent the tensor."""
        if type(obj) is ArrayToBeTensor:
            return obj.array
        if not is_plain(self._torch, obj) or not obj.is_contiguous():
            return None
        try:
            return obj.numpy()
        except TypeError:  # a dtype that NumPy does not know
            return None
