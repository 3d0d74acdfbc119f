"""Accelerators, implemented with torch: streams, events, and memory that is pinned in place. Not tested on a GPU.

The same code serves CUDA, ROCm (which torch calls cuda) and XPU, whose modules in torch have the same interface. Copies
to devices without streams (MPS) are synchronous. `device.transfer` decides when each batch is copied.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

import torch

from nbloader.batch.pytree import map_leaves
from nbloader.device.accelerator import Copy, CopyTimes, MemoryKind
from nbloader.device.pinning import Pinning

_clock = time.perf_counter_ns

PORTABLE = 1
"""The flag cudaHostRegisterPortable: the memory is pinned for the contexts of all devices."""
ANCHOR_NS = 10_000_000_000
"""Lifetime of an anchor in ns: an old one would be inaccurate, since events report elapsed times in float32."""


class _Anchor(NamedTuple):
    """An event of the device, and when it completed according to the host's clock."""

    event: Any
    time: int
    """perf_counter ns."""


class TorchAccelerator:
    """A torch device that has streams. Not tested on a GPU.

    Args:
        device: The device with its index, such as `torch.device("cuda", 0)`.
        memory: The kind of host memory; "registered" needs CUDA and becomes "copied" elsewhere.
        side_stream: Whether batches are copied on a separate stream. Otherwise they are copied on the consumer's
            stream when they are due, as `.to(device, non_blocking=True)` does.
    """

    out_of_memory: type[Exception] = torch.cuda.OutOfMemoryError

    def __init__(self, device: torch.device, *, memory: MemoryKind = "registered", side_stream: bool = True) -> None:
        self.device = device
        self.name = str(device)
        self.pins = memory != "pageable"
        self.module: Any = torch.get_device_module(device)
        cuda = device.type == "cuda"
        self.pinning = Pinning("copied" if memory == "registered" and not cuda else memory, self._register, _unregister)
        self._event_options = {
            "enable_timing": True,
            **({"blocking": True} if cuda else {}),
        }  # "blocking": no busy-waiting
        self._side: Any = self.module.Stream(device=device) if side_stream else None
        self._clock_stream: Any = self.module.Stream(device=device)  # always idle: an event on it completes at once
        self._anchor: _Anchor | None = None

    def can_upload_ahead(self, batch: Any) -> bool:
        """Whether the batch is copied on the side stream.

        Types that define their own `to` method are copied on the consumer's stream: it is unknown here which device
        memory they allocate, so it must not be allocated on another stream.
        """
        return self._side is not None and _only_tensors(batch)

    def copy(self, batch: Any, mapping: Any) -> Copy:
        """See `accelerator.Accelerator`."""
        return _StreamCopy(
            self, batch, self.pinning.memory_for(mapping), self._side if self.can_upload_ahead(batch) else None
        )

    def memory(self) -> str:
        """See `accelerator.Accelerator`."""
        free, total = self.module.mem_get_info(self.device)
        held = self.module.memory_reserved(self.device)
        return f"{free / 1e6:,.0f} of its {total / 1e6:,.0f} MB are free; torch has reserved {held / 1e6:,.0f} MB"

    def synchronize(self) -> None:
        """Wait until the device has finished all enqueued work."""
        self.module.synchronize(self.device)

    def event(self) -> Any:
        """Create an event with timing enabled."""
        return self.module.Event(**self._event_options)

    def anchor(self) -> _Anchor:
        """Return a recent event whose time on the host is known."""
        now = _clock()
        if self._anchor is None or now - self._anchor.time > ANCHOR_NS:
            event = self.event()
            event.record(self._clock_stream)
            event.synchronize()
            self._anchor = _Anchor(event, now)
        return self._anchor

    def _register(self, address: int, size: int) -> str:
        runtime = _runtime()
        with torch.cuda.device(self.device):
            code = runtime.cudaHostRegister(address, size, PORTABLE)
            if code == runtime.cudaError.success:
                return ""
            # The runtime also returns the error to the next caller that checks for one, which would be torch after its
            # next kernel. A kernel that is launched here clears it.
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device=self.device).add_(1)
        return str(runtime.cudaGetErrorString(code))


def _unregister(address: int) -> None:
    _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _StreamCopy:
    """A copy on a stream, with events before it, after it, and at the point where the consumer's stream waits."""

    def __init__(self, accelerator: TorchAccelerator, batch: Any, memory: MemoryKind, side: Any) -> None:
        self._accelerator = accelerator
        self._batch = batch
        self._side = side
        self._tensors: list[torch.Tensor] = []
        self._anchor = accelerator.anchor()
        self._begin, self._end, self._needed = (accelerator.event() for _ in range(3))
        self._stream: Any = None  # set before anything is enqueued
        self._ended = self._delivered = False
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
            self._stream = stream
            try:
                self._batch = map_leaves(self._batch, self._send)
            finally:
                self._record_end()

    def _record_end(self) -> None:
        self._end.record(self._stream)
        self._ended = True

    def _send(self, leaf: Any) -> Any:
        sent = leaf.to(self._accelerator.device, non_blocking=True)
        if _is_plain(sent):
            self.nbytes += sent.nbytes
            self._tensors.append(sent)
        return sent

    def done(self) -> bool:
        if self._stream is None:
            return True
        if not self._ended:  # an interrupt came before that
            self._record_end()
        return bool(self._end.query())

    def wait(self) -> None:
        if self._stream is not None:
            if not self._ended:
                self._record_end()
            self._end.synchronize()

    def deliver(self) -> Any:
        consumer = self._accelerator.module.current_stream(self._accelerator.device)
        self._needed.record(consumer)
        if self._side is not None:
            consumer.wait_event(self._end)
            for tensor in self._tensors:
                tensor.record_stream(consumer)  # its memory is reused only after the consumer's work
        self._delivered = True
        batch, self._batch, self._tensors = self._batch, None, []
        return batch

    def times_known(self) -> bool:
        return self.done() and self._delivered and bool(self._needed.query())

    def times(self) -> CopyTimes:
        if self._stream is None or not self.done():
            return CopyTimes()
        needed = self._host_ns(self._needed) if self._delivered and self._needed.query() else 0
        return CopyTimes(self._host_ns(self._begin), self._host_ns(self._end), needed)

    def _host_ns(self, event: Any) -> int:
        return self._anchor.time + int(self._anchor.event.elapsed_time(event) * 1e6)


class SynchronousAccelerator:
    """A device without streams (MPS): batches are copied when they are due, and the copy blocks.

    Not tested on such a device.
    """

    out_of_memory: type[Exception] = torch.cuda.OutOfMemoryError

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = str(device)
        self.pins = False

    def can_upload_ahead(self, _batch: Any) -> bool:
        """Always False."""
        return False

    def copy(self, batch: Any, _mapping: Any) -> Copy:
        """See `accelerator.Accelerator`."""
        return _SynchronousCopy(batch, lambda leaf: leaf.to(self.device), "to", "pageable")

    def memory(self) -> str:
        """See `accelerator.Accelerator`."""
        return "it is unknown how much of its memory is free"


class PinnedPool:
    """torch's pool of pinned memory, from which the user uploads batches; not a device. Not tested on a GPU."""

    name = ""
    pins = True
    out_of_memory: type[Exception] = torch.cuda.OutOfMemoryError

    def can_upload_ahead(self, _batch: Any) -> bool:
        """Always False."""
        return False

    def copy(self, batch: Any, _mapping: Any) -> Copy:
        """See `accelerator.Accelerator`; device/transfer.py explains why batches are copied."""
        return _SynchronousCopy(batch, _pin, "pin_memory", "copied")

    def memory(self) -> str:
        """See `accelerator.Accelerator`."""
        return "pinned memory is host memory"


class _SynchronousCopy:
    """A copy that is done when `start` returns."""

    def __init__(self, batch: Any, change: Any, method: str, memory: MemoryKind) -> None:
        self._batch = batch
        self._change = change
        self._method = method
        self._times = CopyTimes()
        self.memory = memory
        self.nbytes = 0
        self.pinned = 0

    def start(self) -> None:
        begin = _clock()
        self._batch = map_leaves(self._batch, self._change, method=self._method)
        if self.memory == "copied":
            self.pinned = _clock()
        else:
            end = _clock()
            self._times = CopyTimes(begin, end, end)

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def deliver(self) -> Any:
        batch, self._batch = self._batch, None
        return batch

    def times_known(self) -> bool:
        return True

    def times(self) -> CopyTimes:
        return self._times


def _pin(leaf: Any) -> Any:
    """Pin a leaf as `torch.Tensor.pin_memory` does; return pinned memory and tensors on a device unchanged."""
    return leaf.pin_memory() if not isinstance(leaf, torch.Tensor) or leaf.device.type == "cpu" else leaf


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested


def _only_tensors(batch: Any) -> bool:
    """Whether all parts of a batch that can be uploaded are plain tensors."""
    plain = True

    def look(leaf: Any) -> Any:
        nonlocal plain
        plain = plain and _is_plain(leaf)
        return leaf

    map_leaves(batch, look)
    return plain
