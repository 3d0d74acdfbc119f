"""Pinning and upload; the only module that needs an accelerator."""

from __future__ import annotations

import warnings
from typing import Any


def check_device(device: Any) -> Any:
    """What `device=` means on this machine.

    Returns:
        None for the CPU, else a `torch.device` that exists here.

    Raises:
        RuntimeError: There is no such device here.
    """
    if device is None:
        return None
    import torch

    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be a torch device such as 'cpu' or 'cuda:0', not {device!r}: {error}") from error
    if chosen.type == "cpu":
        return None
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    there = accelerator.type if accelerator is not None else "none"
    if there != chosen.type:
        raise RuntimeError(
            f"device={device!r} was asked for, but torch {torch.__version__} sees no such accelerator here (it sees: "
            f"{there}). Use device=None, or install a torch build for this accelerator and its driver."
        )
    if (chosen.index or 0) >= torch.accelerator.device_count():
        raise RuntimeError(f"device={device!r}: this machine has {torch.accelerator.device_count()} of that kind")
    return chosen


def check_devices(device: Any) -> tuple[Any, list[Any]]:
    """What `device=` means on this machine, be it one device or a list of them.

    Returns:
        The device (None for the CPU, and for a list), and the devices of the list (empty for one device).

    Raises:
        RuntimeError: There is no such device here.
        ValueError: It names none.
    """
    if not isinstance(device, (list, tuple)):
        return check_device(device), []
    if not device:
        raise ValueError(f"device must name at least one device, not {device!r}")
    return None, [check_device(one) for one in device]


def check_pin(pin_memory: bool) -> bool:
    """Whether batches are to be pinned: only where there is an accelerator; elsewhere a warning, as torch's."""
    if not pin_memory:
        return False
    import torch

    if torch.accelerator.is_available():
        return True
    warnings.warn(
        "pin_memory=True has no effect: no accelerator is found, so batches stay in pageable memory.",
        stacklevel=3,  # the line that made the loader
    )
    return False


def place(batch: Any, *, pin: bool, device: Any) -> Any:
    """Pin a batch, then upload it, on the current stream. Untested on a GPU."""
    if pin:
        from torch.utils.data._utils.pin_memory import pin_memory

        batch = pin_memory(batch)  # type: ignore[no-untyped-call]
    return _to(batch, device) if device is not None else batch


def _to(batch: Any, device: Any) -> Any:
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)({key: _to(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[_to(value, device) for value in batch])
    if isinstance(batch, (list, tuple)):
        return type(batch)([_to(value, device) for value in batch])
    return batch
