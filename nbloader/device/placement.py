"""Validates `device=` and `pin_memory=` on this machine, and creates the `DeviceTransfer` of a loader."""

from __future__ import annotations

from typing import Any, NamedTuple

from nbloader._util.user_warning import warn
from nbloader._util.validate import natural
from nbloader.device.accelerator import Accelerator
from nbloader.device.transfer import DeviceTransfer


class Devices(NamedTuple):
    """Where batches are placed."""

    single: Any
    """One device for all batches; None for the CPU, or if a list of devices was given."""
    several: list[Any]
    """A device for each batch of a step; empty for a single device."""


def check_device(device: Any, output: str = "torch") -> Any:
    """Return the device that `device=` names.

    Args:
        device: The user's argument, or a `transfer.Accelerator`, which is returned unchanged.
        output: What arrays are converted to, "torch" or "numpy".

    Returns:
        None for the CPU, an accelerator, or a `torch.device` with its index.

    Raises:
        ValueError: `device` names no device, or `output` is "numpy".
        RuntimeError: This machine has no such device.
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
        raise ValueError(f"device={device!r} needs output='torch': NumPy arrays are in host memory")
    available = accelerator_type() or "none"
    if available != chosen.type:
        raise RuntimeError(
            f"device={device!r} was requested, but torch {torch.__version__} sees no such accelerator here (it sees: "
            f"{available}). Use device=None, or install a torch build for this accelerator and its driver."
        )
    module: Any = torch.get_device_module(chosen)
    index: Any = chosen.index
    if index is None:
        index = module.current_device() if hasattr(module, "current_device") else 0  # MPS has one device
    count = module.device_count()
    if index >= count:
        raise RuntimeError(f"device={device!r} does not exist: this machine has {count} devices of that kind")
    return torch.device(chosen.type, index)


def check_devices(device: Any, output: str) -> Devices:
    """Return the device or the list of devices that `device=` names.

    Raises:
        RuntimeError: This machine has no such device.
        ValueError: `device` names no device, or `output` is "numpy".
    """
    if not isinstance(device, (list, tuple)):
        return Devices(check_device(device, output), [])
    if not device:
        raise ValueError(f"device must name at least one device, not {device!r}")
    return Devices(None, [check_device(one, output) for one in device])


def accelerator_type() -> str:
    """Return the type of this machine's accelerator, such as "cuda"; "" if there is none."""
    import torch

    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:  # torch before 2.6
        kinds = {"cuda": torch.cuda, "xpu": torch.xpu, "mps": torch.backends.mps}
        return next((name for name, kind in kinds.items() if kind.is_available()), "")
    found = accelerator.current_accelerator() if accelerator.is_available() else None
    return "" if found is None else str(found.type)


def check_pin(pin_memory: bool) -> bool:
    """Return whether to pin batches. Warns as torch does and returns False where there is no pinned memory."""
    if not pin_memory:
        return False
    accelerator = accelerator_type()
    if not accelerator:
        warn("pin_memory=True has no effect: no accelerator was found, so batches stay in pageable memory.")
    elif accelerator == "mps":
        warn("pin_memory=True has no effect: MPS has no pinned memory, so batches stay in pageable memory.")
    else:
        return True
    return False


def device_transfer(devices: list[Any], *, pin: bool, ahead: int) -> DeviceTransfer | None:
    """Create the transfer of batches to these devices.

    Args:
        devices: Results of `check_device`, one for each batch of a step.
        pin: Whether to pin batches that stay on the host.
        ahead: Number of batches per device that are uploaded before the consumer asks for them.

    Returns:
        The transfer; None if batches stay where they are.

    Raises:
        ValueError: `ahead` is negative.
        TypeError: `ahead` is not an int.
    """
    ahead = natural("upload_ahead", ahead, "0 uploads a batch when it is asked for")
    if not pin and all(device is None for device in devices):
        return None
    return DeviceTransfer([_accelerator(device, pin=pin) for device in devices], ahead)


def _accelerator(device: Any, *, pin: bool) -> Accelerator | None:
    if device is None and not pin:
        return None
    if isinstance(device, Accelerator):
        return device
    from nbloader.device import torch_backend

    if device is None:
        return torch_backend.PinnedPool()
    if device.type in torch_backend.WITH_STREAMS:
        registry = torch_backend.cuda_registry() if device.type == "cuda" else None
        return torch_backend.TorchAccelerator(device, registry)
    return torch_backend.SynchronousAccelerator(device)
