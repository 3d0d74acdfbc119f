"""Which tensors are nothing but numbers in memory."""

from __future__ import annotations

from typing import Any


def is_plain(torch: Any, tensor: Any) -> bool:
    """Whether a tensor is nothing but its elements in CPU memory, and not a large expanded view of few elements."""
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and (tensor.is_contiguous() or tensor.nbytes <= tensor.untyped_storage().nbytes())  # not expanded
    )
