"""What `device=` and `pin_memory=` mean on this machine. How batches get there is in upload.py and cuda.py."""

from __future__ import annotations

import warnings
from typing import Any

from nbloader._util.validate import natural
from nbloader.device.transfer import Accelerator, Placer


def check_device(device: Any, output: str = "torch") -> Any:
    """What `device=` means on this machine.

    Args:
        device: What the user gave; or an `upload.Accelerator`, which is taken as it is.
        output: What arrays become.

    Returns:
        None for the CPU, an accelerator, or a `torch.device` (with its index) that exists here.

    Raises:
        ValueError: It names no device, or `output` is "numpy".
        RuntimeError: There is no such device here.
    """
    if device is None or isinstance(device, Accelerator):
        return device
    import torch

    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be a torch device such as 'cpu' or 'cuda:0', not {device!r}: {error}") from error
    if chosen.type == "cpu":
        return None
    if output == "numpy":
        raise ValueError(f"device={device!r} needs output='torch': NumPy arrays are in the host's memory")
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    there = accelerator.type if accelerator is not None else "none"
    if there != chosen.type:
        raise RuntimeError(
            f"device={device!r} was asked for, but torch {torch.__version__} sees no such accelerator here (it sees: "
            f"{there}). Use device=None, or install a torch build for this accelerator and its driver."
        )
    index: Any = chosen.index
    if index is None:
        index = torch.accelerator.current_device_index()
    if index >= torch.accelerator.device_count():
        raise RuntimeError(f"device={device!r}: this machine has {torch.accelerator.device_count()} of that kind")
    return torch.device(chosen.type, index)


def check_devices(device: Any, output: str) -> tuple[Any, list[Any]]:
    """What `device=` means on this machine, be it one device or a list of them.

    Returns:
        The device (None for the CPU, and for a list), and the devices of the list (empty for one device).

    Raises:
        RuntimeError: There is no such device here.
        ValueError: It names none, or `output` is "numpy".
    """
    if not isinstance(device, (list, tuple)):
        return check_device(device, output), []
    if not device:
        raise ValueError(f"device must name at least one device, not {device!r}")
    return None, [check_device(one, output) for one in device]


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


def placer(devices: list[Any], *, pin: bool, ahead: int) -> Placer | None:
    """What brings batches to these devices.

    Args:
        devices: What `check_device` gave, one for each batch of a step.
        pin: Whether batches that stay on the host are to be pinned.
        ahead: Batches uploaded before they are asked for, per device.

    Returns:
        None where batches stay as they are.

    Raises:
        ValueError: `ahead` is negative.
        TypeError: It is no int.
    """
    ahead = natural("upload_ahead", ahead, "0 uploads a batch when it is asked for")
    if not pin and all(device is None for device in devices):
        return None
    return Placer([_accelerator(device, pin=pin) for device in devices], ahead)


def _accelerator(device: Any, *, pin: bool) -> Accelerator | None:
    if device is None and not pin:
        return None
    if isinstance(device, Accelerator):
        return device
    import torch

    from nbloader.device import torch_backend

    if device is None:
        return torch_backend.PoolPinner()
    if hasattr(torch.get_device_module(device), "Stream"):
        return torch_backend.TorchAccelerator(device)
    return torch_backend.SpotAccelerator(device)
