"""Accelerators through torch: streams, events and memory pinned where it lies. Untested on a GPU.

One code for CUDA, ROCm (torch calls it cuda) and XPU, whose modules in torch are alike; what has no streams there (MPS)
is uploaded to on the spot. Who uploads what when is decided in upload.py.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from nbloader.batch.pytree import map_leaves
from nbloader.device.transfer import Copy, Pinning

_clock = time.perf_counter_ns

PORTABLE = 1
"""cudaHostRegisterPortable: pinned for the contexts of all devices."""
ANCHOR_NS = 10_000_000_000
"""How long the device's clock is told by one comparison with the host's, ns. Events tell differences in float32."""


class TorchAccelerator:
    """A device that torch knows, with streams of its own. Untested on a GPU.

    Args:
        device: Such as `torch.device("cuda", 0)`, with its index.
        way: How memory is pinned, one of `upload.WAYS`; "registered" is for CUDA and becomes "copied" elsewhere.
        side_stream: Whether batches are copied on a stream of their own. Otherwise they are copied on the consumer's
            stream when they are due, as `.to(device, non_blocking=True)` does.
    """

    out_of_memory: type[Exception] = torch.cuda.OutOfMemoryError

    def __init__(self, device: torch.device, *, way: str = "registered", side_stream: bool = True) -> None:
        self.device = device
        self.name = str(device)
        self.pins = way != "pageable"
        self.module: Any = torch.get_device_module(device)
        cuda = device.type == "cuda"
        self.pinning = Pinning("copied" if way == "registered" and not cuda else way, self._register, _unregister)
        self._event_options = {"enable_timing": True, **({"blocking": True} if cuda else {})}  # blocking: no busy wait
        self._side: Any = self.module.Stream(device=device) if side_stream else None
        self._clock_stream: Any = self.module.Stream(device=device)  # always idle: an event on it happens at once
        self._anchor: tuple[Any, int] | None = None

    def goes_ahead(self, batch: Any) -> bool:
        """Whether the batch is copied on the side stream.

        Types that bring their own `to` are copied on the consumer's: what memory they take on the device cannot be told
        to the allocator, so it must not come from another stream.
        """
        return self._side is not None and _only_tensors(batch)

    def copy(self, batch: Any, mapping: Any) -> Copy:
        """See `upload.Accelerator`."""
        return _StreamCopy(self, batch, self.pinning.of(mapping), self._side if self.goes_ahead(batch) else None)

    def memory(self) -> str:
        """See `upload.Accelerator`."""
        free, total = self.module.mem_get_info(self.device)
        held = self.module.memory_reserved(self.device)
        return f"{free / 1e6:,.0f} of its {total / 1e6:,.0f} MB are free, {held / 1e6:,.0f} MB are torch's"

    def synchronize(self) -> None:
        """Wait until the device has done all that it was asked for."""
        self.module.synchronize(self.device)

    def event(self) -> Any:
        """A new event with a time."""
        return self.module.Event(**self._event_options)

    def anchor(self) -> tuple[Any, int]:
        """An event of the last seconds, and the host's time at which it happened, ns."""
        now = _clock()
        if self._anchor is None or now - self._anchor[1] > ANCHOR_NS:
            event = self.event()
            event.record(self._clock_stream)
            event.synchronize()
            self._anchor = event, now
        return self._anchor

    def _register(self, address: int, size: int) -> str:
        runtime = _runtime()
        with torch.cuda.device(self.device):
            code = runtime.cudaHostRegister(address, size, PORTABLE)
            if code == runtime.cudaError.success:
                return ""
            # The runtime keeps the error for whoever asks next, which would be torch after its next kernel.
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device=self.device).add_(1)
        return str(runtime.cudaGetErrorString(code))


def _unregister(address: int) -> None:
    _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _StreamCopy:
    """A copy on a stream, with events before and after it and where the consumer's stream waits for it."""

    def __init__(self, accelerator: TorchAccelerator, batch: Any, memory: str, side: Any) -> None:
        self._accelerator = accelerator
        self._batch = batch
        self._side = side
        self._tensors: list[torch.Tensor] = []
        self._anchor = accelerator.anchor()
        self._begin, self._end, self._needed = (accelerator.event() for _ in range(3))
        self._started = self._delivered = False
        self.memory = memory
        self.nbytes = 0
        self.pinned = 0

    def start(self) -> None:
        accelerator = self._accelerator
        if self.memory != "pageable":
            self._batch = map_leaves(self._batch, _pin, method="pin_memory")
            self.pinned = _clock()
        stream = self._side if self._side is not None else accelerator.module.current_stream(accelerator.device)
        with accelerator.module.stream(stream):
            self._begin.record(stream)
            try:
                self._batch = map_leaves(self._batch, self._send)
            finally:
                self._end.record(stream)
                self._started = True

    def _send(self, leaf: Any) -> Any:
        sent = leaf.to(self._accelerator.device, non_blocking=True)
        if _is_plain(sent):
            self.nbytes += sent.nbytes
            self._tensors.append(sent)
        return sent

    def done(self) -> bool:
        return not self._started or bool(self._end.query())

    def wait(self) -> None:
        if self._started:
            self._end.synchronize()

    def deliver(self) -> Any:
        consumer = self._accelerator.module.current_stream(self._accelerator.device)
        self._needed.record(consumer)
        if self._side is not None:
            consumer.wait_event(self._end)
            for tensor in self._tensors:
                tensor.record_stream(consumer)  # freed by the consumer, it is used again only after its work
        self._delivered = True
        batch, self._batch, self._tensors = self._batch, None, []
        return batch

    def told(self) -> bool:
        return self.done() and self._delivered and bool(self._needed.query())

    def times(self) -> tuple[int, int, int]:
        if not self._started or not self._end.query():
            return 0, 0, 0
        needed = self._host_ns(self._needed) if self._delivered and self._needed.query() else 0
        return self._host_ns(self._begin), self._host_ns(self._end), needed

    def _host_ns(self, event: Any) -> int:
        before, ns = self._anchor
        return ns + int(before.elapsed_time(event) * 1e6)


class SpotAccelerator:
    """A device without streams of its own (MPS): batches are copied when they are due, and that is waited for.

    Untested on such a device.
    """

    out_of_memory: type[Exception] = torch.cuda.OutOfMemoryError

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = str(device)
        self.pins = False

    def goes_ahead(self, _batch: Any) -> bool:
        """Never."""
        return False

    def copy(self, batch: Any, _mapping: Any) -> Copy:
        """See `upload.Accelerator`."""
        return _SpotCopy(batch, lambda leaf: leaf.to(self.device), "to", "pageable")

    def memory(self) -> str:
        """See `upload.Accelerator`."""
        return "how much of its memory is free is not known"


class PoolPinner:
    """Not a device: brings batches into torch's pinned memory, from where the user uploads. Untested on a GPU."""

    name = ""
    pins = True
    out_of_memory: type[Exception] = torch.cuda.OutOfMemoryError

    def goes_ahead(self, _batch: Any) -> bool:
        """Never."""
        return False

    def copy(self, batch: Any, _mapping: Any) -> Copy:
        """See `upload.Accelerator`; why this copies is told in upload.py."""
        return _SpotCopy(batch, _pin, "pin_memory", "copied")

    def memory(self) -> str:
        """See `upload.Accelerator`."""
        return "pinned memory is the host's"


class _SpotCopy:
    """A copy that is done when it was started."""

    def __init__(self, batch: Any, change: Any, method: str, memory: str) -> None:
        self._batch = batch
        self._change = change
        self._method = method
        self._times = 0, 0, 0
        self.memory = memory
        self.nbytes = 0
        self.pinned = 0

    def start(self) -> None:
        begin = _clock()
        self._batch = map_leaves(self._batch, self._change, method=self._method)
        if self.memory == "copied":
            self.pinned = _clock()
        else:
            self._times = begin, _clock(), _clock()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def deliver(self) -> Any:
        batch, self._batch = self._batch, None
        return batch

    def told(self) -> bool:
        return True

    def times(self) -> tuple[int, int, int]:
        return self._times


def _pin(leaf: Any) -> Any:
    """As `torch.Tensor.pin_memory`, which leaves alone what is pinned already."""
    return leaf.pin_memory() if not isinstance(leaf, torch.Tensor) or leaf.device.type == "cpu" else leaf


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested


def _only_tensors(batch: Any) -> bool:
    """Whether everything in a batch that can be uploaded is a plain tensor."""
    plain = True

    def look(leaf: Any) -> Any:
        nonlocal plain
        plain = plain and _is_plain(leaf)
        return leaf

    map_leaves(batch, look)
    return plain
