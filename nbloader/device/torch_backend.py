"""Accelerators, implemented with torch: streams, events, and memory that is pinned in place. Not tested on a GPU.

The same code serves CUDA, ROCm (which torch calls cuda) and XPU, whose modules in torch have the same interface. Copies
to other devices, such as MPS, are synchronous. `device.transfer` decides when each batch is copied.

A batch that is copied ahead of the consumer:

    consumer's stream   ... work on the batch before ... | ready       work on this batch: waits for `end`
    side stream                                          waits for `ready` | begin, copies, end

Its memory on the device is allocated on the consumer's stream, as if the program had uploaded it itself. So when the
program drops a batch, the next one can use that memory at once, however far the host runs ahead of the device. The side
stream waits until the work is finished that was enqueued before the allocation, since that may still use the memory.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from nbloader._util.signals import raised_by_handler
from nbloader.batch.pytree import map_leaves
from nbloader.device.accelerator import Copy, CopyTimes, MemoryKind
from nbloader.device.pinning import Registry
from nbloader.device.staging import CopyThread, Job, Move, Staged, all_plain, stage
from nbloader.events.gauges import DeviceGauge

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

WITH_STREAMS = ("cuda", "xpu")
"""Types of devices that `TorchAccelerator` is for."""
PORTABLE = 1
"""The flag cudaHostRegisterPortable: the memory is pinned for the contexts of all devices."""
OUT_OF_MEMORY = 2
"""The code cudaErrorMemoryAllocation: the limit of pinned memory is reached."""
ANCHOR_NS = 10_000_000_000
"""Lifetime of an anchor in ns: an old one would be inaccurate, since events report elapsed times in float32."""


class _CudaMemory:
    """Registers memory with the CUDA runtime."""

    def register(self, address: int, size: int, device: Any) -> None:
        """See `pinning.HostMemory`."""
        with torch.cuda.device(device):
            self._check(_runtime().cudaHostRegister(address, size, PORTABLE), device)

    def unregister(self, address: int, device: Any) -> None:
        """See `pinning.HostMemory`."""
        # On another device, the call would create a context, which takes memory.
        with torch.cuda.device(device):
            self._check(_runtime().cudaHostUnregister(address), device)

    def _check(self, code: Any, device: Any) -> None:
        runtime = _runtime()
        if code == runtime.cudaError.success:
            return
        # The runtime also returns the error to the next caller that checks for one, which would be torch after its
        # next kernel. A kernel that is launched here clears it.
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device=device).add_(1)
        raise (MemoryError if int(code) == OUT_OF_MEMORY else OSError)(str(runtime.cudaGetErrorString(code)))


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


@functools.cache
def cuda_registry() -> Registry:
    """Return the registry of this process for CUDA."""
    return Registry(_CudaMemory())


class _Streams(NamedTuple):
    """The streams of a device that all loaders of a process share: torch has 32 per device, and then repeats them."""

    side: Any
    """For copies ahead of the consumer."""
    clock: Any
    """Has no other work, so that an event on it completes at once."""


@functools.cache
def _streams(module: Any, device: torch.device) -> _Streams:
    return _Streams(module.Stream(device=device), module.Stream(device=device))


class _Anchor(NamedTuple):
    """An event of the device, and when it completed according to the host's clock."""

    event: Any
    time: int
    """perf_counter ns."""


class TorchAccelerator:
    """A torch device that has streams. Not tested on a GPU.

    It does not use the device before the first copy: workers that are forked from a process that has a context of CUDA
    cannot use CUDA.

    Args:
        device: The device with its index, such as `torch.device("cuda", 0)`.
        registry: Where segments are registered; None copies batches to torch's pool of pinned memory instead.
        pins: Whether batches are copied from pinned memory.
    """

    out_of_memory: type[Exception] = torch.cuda.OutOfMemoryError

    def __init__(self, device: torch.device, registry: Registry | None = None, *, pins: bool = True) -> None:
        self.device = device
        self.name = str(device)
        self.pins = pins
        self.module: Any = torch.get_device_module(device)
        self.thread = CopyThread()
        self._registry = registry if pins else None
        if self._registry is not None:
            self._registry.enter(self)
        # "blocking": no busy-waiting
        self._event_options = {"enable_timing": True, **({"blocking": True} if device.type == "cuda" else {})}
        self._anchor: _Anchor | None = None

    def can_upload_ahead(self, batch: Any) -> bool:
        """Whether all of the batch consists of plain tensors.

        Other types are copied when they are due by their own method `to`, on the consumer's stream: it is unknown here
        which device memory they allocate.
        """
        return all_plain(batch, "to")

    def copy(self, batch: Any, mapping: Any, *, ahead: bool) -> Copy:
        """See `accelerator.Accelerator`."""
        memory: MemoryKind = "copied" if self.pins else "pageable"
        if self._registry is not None:
            memory = self._registry.memory_for(mapping, self.device)
        return _CopyAhead(self, batch, memory) if ahead else _CopyDue(self, batch, memory)

    def memory(self) -> str:
        """See `accelerator.Accelerator`."""
        free, total = self.module.mem_get_info(self.device)
        held = self.module.memory_reserved(self.device)
        return f"{free / 1e6:,.0f} of its {total / 1e6:,.0f} MB are free; torch has reserved {held / 1e6:,.0f} MB"

    def gauge(self) -> DeviceGauge | None:
        """See `accelerator.Accelerator`."""
        if self._anchor is None:  # before the first copy, torch would have to initialize the device
            return None
        module, device = self.module, self.device
        total = module.get_device_properties(device).total_memory
        pinned = 0 if self._registry is None else self._registry.nbytes
        return DeviceGauge(self.name, module.memory_allocated(device), module.memory_reserved(device), total, pinned)

    def close(self) -> None:
        """See `accelerator.Accelerator`."""
        self.thread.close()
        if self._registry is not None:
            self._registry.leave(self)

    def synchronize(self) -> None:
        """Wait until the device has finished all enqueued work."""
        self.module.synchronize(self.device)

    @property
    def streams(self) -> _Streams:
        """The streams of the device."""
        return _streams(self.module, self.device)

    def current_stream(self) -> Any:
        """Return the stream of the calling thread."""
        return self.module.current_stream(self.device)

    def event(self) -> Any:
        """Create an event with timing enabled."""
        return self.module.Event(**self._event_options)

    def anchor(self) -> _Anchor:
        """Return a recent event whose time on the host is known."""
        now = _clock()
        if self._anchor is None or now - self._anchor.time > ANCHOR_NS:
            event = self.event()
            event.record(self.streams.clock)
            event.synchronize()
            self._anchor = _Anchor(event, now)
        return self._anchor


class _StreamCopy:
    """A copy on a stream, with events before it, after it, and at the point where the consumer needs it."""

    def __init__(self, accelerator: TorchAccelerator, batch: Any, memory: MemoryKind) -> None:
        self._accelerator = accelerator
        self._batch = batch
        self._anchor = accelerator.anchor()
        self._begin, self._end = accelerator.event(), accelerator.event()
        self._needed: Any = None
        self._stream: Any = None  # set before anything is enqueued
        self._ended = False
        self.memory = memory
        self.nbytes = 0
        self.pinned = 0

    def start(self) -> None:
        """See `accelerator.Copy`."""
        raise NotImplementedError

    def done(self) -> bool:
        """See `accelerator.Copy`."""
        if self._stream is None:
            return True
        self._record_end()
        return bool(self._end.query())

    def begun(self) -> bool:
        """See `accelerator.Copy`."""
        return self._stream is None or bool(self._begin.query())

    def wait_until_begun(self) -> None:
        """See `accelerator.Copy`."""
        if self._stream is not None:
            self._begin.synchronize()

    def wait(self) -> None:
        """See `accelerator.Copy`."""
        if self._stream is not None:
            self._record_end()
            self._end.synchronize()

    def deliver(self) -> Any:
        """See `accelerator.Copy`."""
        batch, self._batch = self._batch, None
        return batch

    def times_known(self) -> bool:
        """See `accelerator.Copy`."""
        return self.done() and self._needed is not None and bool(self._needed.query())

    def times(self) -> CopyTimes:
        """See `accelerator.Copy`."""
        if self._stream is None or not self.done():
            return CopyTimes()
        needed = self._needed is not None and self._needed.query()
        return CopyTimes(
            self._host_ns(self._begin), self._host_ns(self._end), self._host_ns(self._needed) if needed else 0
        )

    def _send(self, stream: Any, moves: Callable[[], object]) -> None:
        """Enqueue copies on a stream, between two events."""
        with self._accelerator.module.stream(stream):
            self._begin.record(stream)
            self._stream = stream
            try:
                moves()
            finally:
                self._record_end()

    def _record_end(self) -> None:
        """Record the event after all copies, unless this was done. After an interrupt, it comes late."""
        if not self._ended:
            self._end.record(self._stream)
            self._ended = True

    def _stage(self) -> Staged:
        if self.memory == "pageable":
            return Staged(self._batch, [])
        return stage(self._batch, _pinned_if_possible)

    def _host_ns(self, event: Any) -> int:
        return self._anchor.time + int(self._anchor.event.elapsed_time(event) * 1e6)


class _CopyDue(_StreamCopy):
    """The copy of a batch that the consumer waits for: on the consumer's stream."""

    def start(self) -> None:
        accelerator = self._accelerator
        staged = self._stage()
        staged.fill()
        self.pinned = 0 if self.memory == "pageable" else _clock()

        def to_device(leaf: Any) -> Any:
            sent = leaf.to(accelerator.device, non_blocking=True)
            if isinstance(sent, torch.Tensor) and sent.layout is torch.strided and not sent.is_nested:
                self.nbytes += sent.nbytes
            return sent

        def move() -> None:
            self._batch = map_leaves(staged.batch, to_device)

        self._send(accelerator.current_stream(), move)
        self._needed = self._begin


class _CopyAhead(_StreamCopy):
    """The copy of a batch for which the consumer has not asked: on the side stream.

    If tensors must be copied to pinned memory first, a thread does that, and enqueues the copies to the device.
    """

    def __init__(self, accelerator: TorchAccelerator, batch: Any, memory: MemoryKind) -> None:
        super().__init__(accelerator, batch, memory)
        self._job = Job()
        self._owner: Any = None  # the stream on which the device's memory is allocated

    def start(self) -> None:
        accelerator = self._accelerator
        staged = self._stage()
        moves: list[Move] = []

        def allocated(leaf: torch.Tensor) -> torch.Tensor:
            moves.append(Move(torch.empty_like(leaf, device=accelerator.device), leaf))
            return moves[-1].to

        self._owner = accelerator.current_stream()
        self._batch = map_leaves(staged.batch, allocated)
        self.nbytes = sum(move.to.nbytes for move in moves)
        side = accelerator.streams.side
        side.wait_stream(self._owner)

        def copy() -> None:
            staged.fill()
            self.pinned = 0 if self.memory == "pageable" else _clock()
            self._send(side, lambda: [move.copy() for move in moves])

        self._job.run(copy, None if staged.short else accelerator.thread)

    def done(self) -> bool:
        return self._job.done() and super().done()

    def begun(self) -> bool:
        return self._job.done() and super().begun()

    def wait_until_begun(self) -> None:
        self._job.wait()
        super().wait_until_begun()

    def wait(self) -> None:
        self._job.wait()
        super().wait()

    def deliver(self) -> Any:
        self._job.check()
        consumer = self._accelerator.current_stream()
        needed = self._accelerator.event()
        needed.record(consumer)
        consumer.wait_event(self._end)
        if consumer != self._owner:

            def used(leaf: torch.Tensor) -> torch.Tensor:
                leaf.record_stream(consumer)  # its memory is reused only after the work of this stream
                return leaf

            map_leaves(self._batch, used)
        self._needed = needed
        return super().deliver()


class SynchronousAccelerator:
    """A device without streams, such as MPS: batches are copied when they are due, and the copy blocks.

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

    def copy(self, batch: Any, _mapping: Any, *, ahead: bool) -> Copy:  # noqa: ARG002 - never ahead
        """See `accelerator.Accelerator`."""
        return _SynchronousCopy(batch, self.device)

    def memory(self) -> str:
        """See `accelerator.Accelerator`."""
        return "it is unknown how much of its memory is free"

    def gauge(self) -> DeviceGauge | None:
        """Always None."""
        return None

    def close(self) -> None:
        """See `accelerator.Accelerator`."""


class _HostCopy:
    """What copies that involve no stream have in common: when `deliver` returns, they are done."""

    memory: MemoryKind

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._times = CopyTimes()
        self.nbytes = 0
        self.pinned = 0

    def done(self) -> bool:
        """See `accelerator.Copy`."""
        return True

    def begun(self) -> bool:
        """See `accelerator.Copy`."""
        return True

    def wait_until_begun(self) -> None:
        """See `accelerator.Copy`."""

    def wait(self) -> None:
        """See `accelerator.Copy`."""

    def deliver(self) -> Any:
        """See `accelerator.Copy`."""
        batch, self._batch = self._batch, None
        return batch

    def times_known(self) -> bool:
        """See `accelerator.Copy`."""
        return True

    def times(self) -> CopyTimes:
        """See `accelerator.Copy`."""
        return self._times


class _SynchronousCopy(_HostCopy):
    memory: MemoryKind = "pageable"

    def __init__(self, batch: Any, device: torch.device) -> None:
        super().__init__(batch)
        self._device = device

    def start(self) -> None:
        begin = _clock()
        self._batch = map_leaves(self._batch, lambda leaf: leaf.to(self._device))
        end = _clock()
        self._times = CopyTimes(begin, end, end)


class PinnedPool:
    """torch's pool of pinned memory, from which the user uploads batches; not a device. Not tested on a GPU."""

    name = ""
    pins = True
    out_of_memory: type[Exception] = torch.cuda.OutOfMemoryError

    def __init__(self) -> None:
        self._thread = CopyThread()

    def can_upload_ahead(self, batch: Any) -> bool:
        """Whether all of the batch consists of plain tensors. Other types pin themselves when they are due."""
        return all_plain(batch, "pin_memory")

    def copy(self, batch: Any, _mapping: Any, *, ahead: bool) -> Copy:
        """See `accelerator.Accelerator`; device/transfer.py explains why batches are copied."""
        return _PinnedCopy(batch, self._thread if ahead else None)

    def memory(self) -> str:
        """See `accelerator.Accelerator`."""
        return "pinned memory is host memory"

    def gauge(self) -> DeviceGauge | None:
        """Always None."""
        return None

    def close(self) -> None:
        """See `accelerator.Accelerator`."""
        self._thread.close()


class _PinnedCopy(_HostCopy):
    """A copy to pinned memory, on a thread if the batch is not due yet."""

    memory: MemoryKind = "copied"

    def __init__(self, batch: Any, thread: CopyThread | None) -> None:
        super().__init__(batch)
        self._thread = thread
        self._job = Job()

    def start(self) -> None:
        staged = stage(self._batch, _pinned)

        def fill() -> None:
            staged.fill()
            self.pinned = _clock()

        self._batch = staged.batch
        self._job.run(fill, None if staged.short else self._thread)

    def done(self) -> bool:
        return self._job.done()

    def wait(self) -> None:
        self._job.wait()

    def deliver(self) -> Any:
        self._job.check()
        return super().deliver()


def _pinned(leaf: Any) -> Any:
    """Pin a leaf by its own method; return tensors on a device unchanged."""
    return leaf.pin_memory() if not isinstance(leaf, torch.Tensor) or leaf.device.type == "cpu" else leaf


def _pinned_if_possible(leaf: Any) -> Any:
    try:
        return _pinned(leaf)
    except Exception as error:  # types that cannot be pinned raise anything
        if raised_by_handler(error):
            raise
        log.debug("a %s cannot be pinned, and is uploaded from pageable memory", type(leaf).__name__, exc_info=True)
        return leaf
