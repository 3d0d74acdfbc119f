"""The format in which a batch travels: a pickled skeleton, and one block of memory with its arrays.

    PlannedArrays.encode(batch) or encode_object(batch) -> EncodedBatch: skeleton, write(memory)   in a worker process
                       load_object(skeleton, memory) -> the batch, whose arrays lie in the memory   in the notebook

The skeleton is the pickle of the batch, in which the arrays and tensors are replaced by placeholders (out-of-band
buffers of pickle's protocol 5), and the place, shape and dtype of each array. On loading, `pickle` requests the next
buffer for each placeholder and is given the finished array.

- Samples that nbloader collates are stacked straight into the memory (`PlannedArrays`).
- In a batch that a `collate_fn` returned, the arrays that are easy to find (the batch itself, and up to two levels of
  lists, tuples and dicts below it) are extracted before pickling, since NumPy takes ten times as long to pickle an
  array as to report its address. Arrays of the same form are copied with one call. `pickle` finds the others.

For a batch of 32 arrays with strings and nested lists, `encode_object` takes 80 us (114 us if each array is copied
separately) and `load_object` 47 us; the dataset and the collate function take 67 us (timed alone, on a slow core).
"""

from __future__ import annotations

import functools
import math
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nbloader.batch.collate import ADDED_TO_NUMPY, NotPlannedError, tensor_kind
from nbloader.batch.pickling import dump, in_shared_memory, is_plain
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
ALIGN_FROM = 64 * 1024
"""An array of at least this many bytes begins at a multiple of `segment.ALIGN`; a smaller one need not."""
MAX_RUN = 256 * 1024
"""Size of a run after which a new run begins, bytes: joined arrays should still be in the CPU cache when copied."""


def tensor_of(array: Any, dtype: str | None = None) -> Any:
    """Create a tensor on the memory of an array, or on a copy if torch cannot share that memory.

    Args:
        array: An array of any shape, with a dtype that torch supports.
        dtype: Name of a torch dtype of the same size, to reinterpret the memory; None to keep the array's dtype.
    """
    import torch

    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.view(getattr(torch, dtype))


class ArrayToBeTensor:
    """An array that becomes a tensor when it is unpickled. Used in workers."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle as the tensor."""
        return tensor_of, (self.array,)


class Form(NamedTuple):
    """The kind of object that is rebuilt on a piece of memory."""

    char: str
    """Type character of the array; "" for a plain buffer."""
    tensor: str | None
    """What the array becomes: see `collate.tensor_kind`."""


USABLE = 0x0101
"""Required bits of `ndarray.flags.num`: C-contiguous and aligned."""
BUFFER = Form("", None)
"""A buffer from which `pickle` itself builds an object."""


class Run(NamedTuple):
    """Arrays of the same form that follow each other in a batch's memory."""

    form: Form
    starts: list[int]
    """Offset of each array, bytes."""
    shapes: list[tuple[int, ...]]


class EncodedBatch(NamedTuple):
    """A batch that is ready to be written."""

    skeleton: bytes
    """What `load_object` needs in addition to the memory."""
    nbytes: int
    """Memory that the arrays need, bytes."""
    write: Callable[[Memory], None]
    """Writes the arrays into the memory."""


def _skeleton(data: bytes, runs: list[Run], sizes: list[int]) -> bytes:
    """Return the skeleton.

    Args:
        data: The pickle of the batch.
        runs: Its arrays.
        sizes: Their sizes, bytes.
    """
    mixed = bool(sizes) and min(sizes) <= SMALL < max(sizes)
    return pickle.dumps((data, mixed, [(*form, starts, shapes) for form, starts, shapes in runs]), 5)


class PlannedArrays:
    """Plans where the arrays of a collated batch lie in its memory: an `ArrayTarget`. They are written later.

    Args:
        output: "torch" or "numpy": what the arrays become.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self._runs: list[Run] = []
        self._planned: list[tuple[int, tuple[int, ...], Any, Callable[[Any], object]]] = []
        """The offset, shape, dtype and function of each array."""
        self._sizes: list[int] = []
        self._nbytes = 0
        self._last: tuple[Any, str | None] | None = None
        """The dtypes of the arrays in the last run."""

    def place(
        self, shape: tuple[int, ...], dtype: Any, write: Callable[[Any], object], torch_dtype: str | None = None
    ) -> Any:
        """See `ArrayTarget`."""
        if (dtype, torch_dtype) != self._last:
            self._runs.append(Run(Form(dtype.char, tensor_kind(self._output, torch_dtype)), [], []))
            self._last = dtype, torch_dtype
        _form, starts, shapes = self._runs[-1]
        start, nbytes = self._nbytes, dtype.itemsize * math.prod(shape)
        self._nbytes = start + aligned(nbytes)
        self._sizes.append(nbytes)
        starts.append(start)
        shapes.append(shape)
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
        return EncodedBatch(_skeleton(data, self._runs, self._sizes), self._nbytes, self._write)

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
        found = [next(placed) if buffer is PLACEHOLDER else (BUFFER, buffer.raw()) for buffer in buffers]
    runs, joined, end = _arrange(found)
    sizes = [array.nbytes for _form, array in found]
    return EncodedBatch(_skeleton(data, runs, sizes), end, functools.partial(_copy_into, joined))


def _copy_into(joined: list[tuple[int, list[Any]]], memory: Memory) -> None:
    """Copy arrays into the memory. The small arrays of a run are joined first: one copy is faster than many.

    Args:
        joined: Adjacent arrays, with the offset of the first one.
        memory: The memory.
    """
    view = memoryview(memory).cast("B")
    for start, arrays in joined:
        data = b"".join(arrays) if len(arrays) > 1 else pickle.PickleBuffer(arrays[0]).raw()
        view[start : start + len(data)] = data


def _arrange(found: list[tuple[Form, Any]]) -> tuple[list[Run], list[tuple[int, list[Any]]], int]:
    """Arrange arrays in memory.

    Returns:
        The runs, in the order of the arrays; the arrays of each run, with its offset; the memory that they need, bytes.
    """
    runs: list[Run] = []
    joined: list[tuple[int, list[Any]]] = []
    end = 0
    for form, group in groupby(found, itemgetter(0)):
        arrays = [array for _form, array in group]
        sizes = [array.nbytes for array in arrays]
        begin = 0
        while begin < len(arrays):  # usually once
            stop = len(arrays)
            if form is BUFFER or sum(sizes) > MAX_RUN or max(sizes) >= ALIGN_FROM:
                stop = _end_of_run(form, sizes, begin)
            starts = list(accumulate(sizes[begin:stop], initial=aligned(end)))
            end = starts.pop()
            runs.append(Run(form, starts, [array.shape for array in arrays[begin:stop]]))
            joined.append((starts[0], arrays[begin:stop]))
            begin = stop
    return runs, joined, end


def _end_of_run(form: Form, sizes: list[int], begin: int) -> int:
    """Return the index of the first array after `begin` that is not part of the run that begins there."""
    total = sizes[begin]
    for number in range(begin + 1, len(sizes)):
        if form is BUFFER or sizes[number] >= ALIGN_FROM or total >= MAX_RUN:
            return number
        total += sizes[number]
    return len(sizes)


def load_object(skeleton: Any, memory: Memory, copy_out: CopyOut | None = None) -> Any:
    """Build a batch on the memory to which its arrays were written.

    Args:
        skeleton: The skeleton.
        memory: The memory of its arrays.
        copy_out: Copies small arrays if there are larger ones; None if all arrays are views of the memory.
    """
    data, mixed, runs = pickle.loads(skeleton)
    buffers: list[Any] = []
    for char, tensor, starts, shapes in runs:
        dtype = np.dtype(char or "B")
        memories: Iterable[Memory] = repeat(memory)
        offsets: Iterable[int] = starts
        if mixed and copy_out is not None:
            sizes = [math.prod(shape) * dtype.itemsize for shape in shapes]
            places = [_kept_apart(memory, *place, copy_out) for place in zip(starts, sizes, strict=True)]
            memories, offsets = zip(*places, strict=True)
        if not char:
            parts = zip(memories, offsets, shapes, strict=False)
            buffers += [memoryview(one).cast("B")[start : start + nbytes] for one, start, (nbytes,) in parts]
        elif tensor is None:
            buffers += map(np.ndarray, shapes, repeat(dtype), memories, offsets)
        else:
            arrays = map(np.ndarray, shapes, repeat(dtype), memories, offsets)
            buffers += _tensors(arrays, tensor, memories)
    return pickle.loads(data, buffers=buffers)


def _kept_apart(memory: Memory, start: int, nbytes: int, copy_out: CopyOut) -> tuple[Memory, int]:
    """Return the memory and the offset of an array, after copying it out of its batch if it is small."""
    if nbytes > SMALL:
        return memory, start
    return copy_out(memoryview(memory).cast("B")[start : start + nbytes]), 0


def _form(dtype: Any, *, tensors: bool) -> Form:
    plain = dtype.kind in "biufc" and dtype.isnative and dtype.isbuiltin != ADDED_TO_NUMPY
    return Form(dtype.char, "" if tensors else None) if plain else BUFFER


def _tensors(arrays: Iterable[Any], kind: str, memories: Iterable[Memory]) -> list[Any]:
    """Create tensors on arrays.

    Args:
        arrays: The arrays.
        kind: What each of them becomes: see `collate.tensor_kind`.
        memories: The memory of each array. Any other than a bytearray is shared between processes.
    """
    import torch

    tensors: list[Any] = [*map(torch.from_numpy, arrays)]
    for tensor, memory in zip(tensors, memories, strict=False):
        if type(memory) is not bytearray:
            tensor.untyped_storage().is_shared = in_shared_memory
    return [tensor.view(getattr(torch, kind)) for tensor in tensors] if kind else tensors


class _ArrayExtractor:
    """Replaces arrays and tensors by placeholders, in a copy of the lists, tuples and dicts that hold them."""

    def __init__(self) -> None:
        self.found: list[tuple[Form, Any]] = []
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
        else:
            kinds = set(map(type, values))
            if self._kinds.isdisjoint(kinds):
                return obj
            parts = (self._uniform(list(values)) if kinds == {np.ndarray} else None) or self._leaves(values)
        return dict(zip(obj, parts, strict=True)) if kind is dict else kind(parts)

    def _uniform(self, arrays: list[Any]) -> list[Any] | None:
        """Same as `_leaves`, but twice as fast. None unless all arrays are extractable and have the same form."""
        dtype = arrays[0].dtype  # most arrays share one dtype object
        usable = [array.dtype is dtype and array.size and array.flags.num & USABLE == USABLE for array in arrays]
        form = _form(dtype, tensors=False)
        if form is BUFFER or not all(usable):
            return None
        self._seen.extend(map(id, arrays))
        self.found.extend(zip(repeat(form), arrays, strict=False))
        return [PLACEHOLDER] * len(arrays)

    def _leaves(self, values: Iterable[Any]) -> list[Any]:
        out, seen, found, kinds, ndarray = [], self._seen, self.found, self._kinds, np.ndarray
        dtype: Any = None  # of the previous array: most arrays share one dtype object
        last, form = None, BUFFER
        for obj in values:
            kind = type(obj)
            if kind not in kinds:
                out.append(obj)
                continue
            seen.append(id(obj))
            array = obj if kind is ndarray else self._array_of(obj)
            if array is None or not array.size or array.flags.num & USABLE != USABLE:
                out.append(obj)
                continue
            if array.dtype is not dtype or kind is not last:
                dtype, last = array.dtype, kind
                form = _form(dtype, tensors=kind is not ndarray)
            if form is BUFFER:
                out.append(obj)
            else:
                found.append((form, array))
                out.append(PLACEHOLDER)
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
