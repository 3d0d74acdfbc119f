"""Pickles datasets and functions: cloudpickle, with tensors reduced to their memory, and with protocol 5.

torch's own reduction would copy a tensor's memory into the pickle.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import io
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import cloudpickle
import numpy as np

from nbloader._util.plain_tensor import is_plain
from nbloader.shm import memmap

REPLACED_FILE_NAME = "<dynamic-code>"
"""What cloudpickle 3.1.3 writes in place of the file name of a code object."""
SPAWNED_MAIN = "__mp_main__"
"""Module name of the main program in a process spawned by `multiprocessing`. Workers cannot import it."""


def in_shared_memory() -> bool:
    """Return True. Replaces `is_shared()` of storages in nbloader's shared memory.

    torch itself recognizes only shared memory that it has mapped, which would take a file descriptor and a mapping for
    each tensor.
    """
    return True


def rebuild_tensor(buffer: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Any:
    """Create a tensor on the memory of a buffer, which must be writable.

    Args:
        buffer: The memory of the tensor.
        dtype: For example "torch.float32".
        shape: The shape of the tensor.
        strides: The strides of the tensor, in elements; None if it is contiguous.
    """
    import torch

    memory, kind = memoryview(buffer), _torch_dtype(dtype)
    if not memory.nbytes:
        return torch.empty(shape, dtype=kind)
    tensor: Any = torch.frombuffer(memory, dtype=kind)
    if strides is not None:
        tensor = tensor.as_strided(shape, strides)
    elif len(shape) != 1:
        tensor = tensor.view(shape)
    if isinstance(memory.obj, ctypes.Array):  # a batch in shared memory; a dataset's file is an `mmap`
        tensor.untyped_storage().is_shared = in_shared_memory
    return tensor


@functools.lru_cache(maxsize=64)
def _torch_dtype(name: str) -> Any:
    """Return the dtype of a name such as "torch.float32"."""
    import torch

    return getattr(torch, name.removeprefix("torch."))


class DeviceTensorError(TypeError):
    """A tensor on an accelerator cannot be sent between processes."""


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Reduce a code object as cloudpickle does, but keep its file name.

    cloudpickle 3.1.3 replaces the name, so that tracebacks and sampled stacks no longer say which cell a line is from.
    """
    make, arguments, *rest = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    kept = [code.co_filename if argument == REPLACED_FILE_NAME else argument for argument in arguments]
    return (make, tuple(kept), *rest)


_by_name = False


def pickle_by_name() -> None:
    """In a forked worker: pickle classes and functions of the main program by name, as the notebook has the same."""
    global _by_name  # noqa: PLW0603 - a property of the process
    _by_name = True


def _is_named(obj: Any) -> bool:
    """Whether a class or function can be found under its name."""
    found: Any = sys.modules.get(obj.__module__ or "")
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Like cloudpickle's pickler, but keeps the file names of functions that are pickled by value."""

    dispatch_table: ClassVar[Any] = collections.ChainMap(
        {types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )
    by_name = False
    """Whether the receiver has the classes and functions of the main program."""

    def reducer_override(self, obj: Any) -> Any:
        """Pickle a class or function by name where the receiver has it; otherwise as cloudpickle does."""
        if (_by_name or self.by_name) and isinstance(obj, (type, types.FunctionType)) and _is_named(obj):
            return NotImplemented
        return super().reducer_override(obj)


class NamePickler(CodePickler):
    """Pickles for a worker that was forked from this process."""

    by_name = True


class Pickler(CodePickler):
    """Like `CodePickler`, but reduces dense tensors to their memory: ten times as fast, without copying buffers."""

    def reducer_override(self, obj: Any) -> Any:
        """Reduce a tensor to its memory, dtype, shape and strides."""
        if type(obj) is np.ndarray:
            return NotImplemented  # NumPy's own reduction is right; asking cloudpickle first takes longer
        if type(obj) is np.memmap:
            return memmap.reduce(obj) or np.asarray(obj).__reduce_ex__(5)
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and is_plain(torch, obj):
            contiguous, strides = _in_memory_order(obj)
            try:
                array = contiguous.numpy()
            except TypeError:  # bfloat16, float8_...: unknown to NumPy
                flat = contiguous.view(-1)
                if flat.stride(0) != 1:  # torch considers a single expanded element contiguous
                    flat = flat.clone(memory_format=torch.contiguous_format)
                array = flat.view(torch.uint8).numpy()
            return rebuild_tensor, (pickle.PickleBuffer(array), str(obj.dtype), tuple(obj.shape), strides)
        if torch is not None and isinstance(obj, torch.Tensor) and obj.device.type not in ("cpu", "meta"):
            raise DeviceTensorError(
                f"a tensor on {obj.device} cannot be sent between processes: workers do not use the accelerator. Let "
                "the dataset and the collate function hold and return CPU tensors, and give the loader "
                f"device={str(obj.device)!r}: it uploads batches while the loop works on the previous one."
            )
        return super().reducer_override(obj)


def _in_memory_order(tensor: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Return the elements of a tensor as a contiguous tensor, without a copy if the tensor has no gaps.

    Returns:
        The contiguous tensor, and the strides with which its memory becomes the tensor again. The strides are None if
        the tensor is contiguous, and if it has gaps, as a slice does: then it becomes contiguous.
    """
    if not tensor.is_contiguous():
        outermost_first = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
        permuted = tensor.permute(outermost_first)
        if permuted.is_contiguous():
            return permuted, tensor.stride()
        return tensor.contiguous(), None
    return tensor, None


class Writable(Protocol):
    """A file-like object to which a pickle is written."""

    def write(self, data: bytes, /) -> object:
        """Append data. Anything other than `bytes` is a buffer that is valid only during the call."""


def dump(
    obj: Any, buffer_callback: Callable[[pickle.PickleBuffer], object] | None, pickler: type[CodePickler] = Pickler
) -> bytes:
    """Pickle an object with protocol 5. Classes and functions of the main program are pickled by value.

    Args:
        obj: What to pickle.
        buffer_callback: As for `pickle.dumps`.
        pickler: The pickler class.
    """
    with io.BytesIO() as file:
        dump_to(file, obj, buffer_callback, pickler)
        return file.getvalue()


def dump_to(
    file: Writable,
    obj: Any,
    buffer_callback: Callable[[pickle.PickleBuffer], object] | None,
    pickler: type[CodePickler],
) -> None:
    """Same as `dump`, but write the pickle to a file piece by piece."""
    spawned_main = sys.modules.get(SPAWNED_MAIN)
    if spawned_main is not None:
        cloudpickle.register_pickle_by_value(spawned_main)
    pickler(file, protocol=5, buffer_callback=buffer_callback).dump(obj)


def pickled_copy(obj: Any) -> Any:
    """Return a copy of an object, made by pickling it. Classes and functions of the main program are copied, too."""
    return pickle.loads(dump(obj, None, CodePickler))
