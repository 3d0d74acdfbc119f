"""Pickling with tensors as arrays, so that their memory travels beside the pickle (torch's own way copies it in)."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np

from nbloader.shm import memmap

SHARE_FROM = 64 * 1024
"""Arrays inside a dataset from this size on are shared by all workers, bytes; smaller ones are copied to each."""


def tensor_of(array: Any, dtype: str | None = None) -> Any:
    """A tensor on the memory of an array (a copy of it where torch cannot share it).

    Args:
        array: Any shape, of a dtype that torch knows.
        dtype: Name of the torch dtype as which its bytes are to be read, of the same size; None for the array's own.
    """
    import torch

    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.view(getattr(torch, dtype))


def rebuild_tensor(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """A tensor on the memory of a buffer, which must be writable.

    Args:
        buffer: Its memory.
        dtype: Such as "torch.float32": a pickle in which the name of torch stands needs torch (preload.py).
        shape: Its shape.
    """
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    if not memoryview(buffer).nbytes:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(buffer, dtype=kind).view(shape)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with dense tensors as their memory: a tenth of the time, and no copy where buffers go beside."""

    def reducer_override(self, obj: Any) -> Any:
        """Reduce a tensor as (memory, dtype, shape)."""
        if type(obj) is np.ndarray:
            return NotImplemented  # NumPy's own way is right, and asking cloudpickle takes longer than it
        if type(obj) is np.memmap:
            return memmap.reduce(obj) or np.asarray(obj).__reduce_ex__(5)
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and is_plain(torch, obj):
            try:
                array = obj.numpy()
            except TypeError:  # bfloat16, float8_...: unknown to NumPy
                flat = obj.contiguous().view(-1)
                if flat.stride(0) != 1:  # one expanded element counts as contiguous
                    flat = flat.clone(memory_format=torch.contiguous_format)
                array = flat.view(torch.uint8).numpy()
            if not array.flags.c_contiguous:
                array = np.ascontiguousarray(array)
            return rebuild_tensor, (pickle.PickleBuffer(array), str(obj.dtype), tuple(obj.shape))
        if torch is not None and isinstance(obj, torch.Tensor) and obj.device.type not in ("cpu", "meta"):
            raise TypeError(
                f"a tensor on {obj.device} cannot travel between processes: workers do not touch the accelerator. Let "
                "the dataset and the collate function hold and return CPU tensors, and give the loader "
                f"device={str(obj.device)!r}: it uploads batches while the loop works on the one before."
            )
        return super().reducer_override(obj)


def is_plain(torch: Any, tensor: Any) -> bool:
    """Whether it is no more than its elements, in memory of this process, and not many views of few of them."""
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and (tensor.is_contiguous() or tensor.nbytes <= tensor.untyped_storage().nbytes())  # else expanded: stay small
    )


def dump(
    obj: Any, buffer_callback: Callable[[pickle.PickleBuffer], object] | None, pickler: type[Pickler] = Pickler
) -> bytes:
    """Pickle an object with protocol 5. What belongs to the notebook's own module goes along by value.

    Args:
        obj: What to pickle.
        buffer_callback: As for `pickle.dumps`.
        pickler: How.
    """
    with io.BytesIO() as file:
        pickler(file, protocol=5, buffer_callback=buffer_callback).dump(obj)
        return file.getvalue()
