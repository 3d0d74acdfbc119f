"""Pickling with tensors as arrays, so that their memory travels beside the pickle (torch's own way copies it in)."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np


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


_CARRIERS = {1: "uint8", 2: "int16", 4: "int32"}


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with dense tensors as arrays."""

    def reducer_override(self, obj: Any) -> Any:
        """Reduce a tensor as its array."""
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and _is_plain(torch, obj):
            name = str(obj.dtype).removeprefix("torch.")
            try:
                np.dtype(name)
            except TypeError:  # bfloat16, float8_..., complex32: as integers of that size
                carrier = _CARRIERS.get(obj.dtype.itemsize)
                if carrier is not None:
                    return tensor_of, (obj.contiguous().view(getattr(torch, carrier)).numpy(), name)
            else:
                return tensor_of, (obj.numpy(),)
        return super().reducer_override(obj)


def _is_plain(torch: Any, tensor: Any) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and tensor.numel() * tensor.dtype.itemsize <= tensor.untyped_storage().nbytes()  # else expanded: keep it small
    )


def dump(obj: Any, buffer_callback: Callable[[pickle.PickleBuffer], object] | None) -> bytes:
    """Pickle an object with protocol 5. What belongs to the notebook's own module goes along by value.

    Args:
        obj: What to pickle.
        buffer_callback: As for `pickle.dumps`.
    """
    with io.BytesIO() as file:
        Pickler(file, protocol=5, buffer_callback=buffer_callback).dump(obj)
        return file.getvalue()
