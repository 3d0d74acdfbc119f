"""Stand-ins for an accelerator: they copy late and by address, so they read what lies there by then."""

from __future__ import annotations

import ctypes
import itertools
import time

import torch

from nbloader.batch.pytree import map_leaves
from nbloader.device.accelerator import CopyTimes
from nbloader.device.pinning import Registry
from nbloader.events.gauges import DeviceGauge


class DeviceFull(RuntimeError):
    """As `torch.OutOfMemoryError`."""


class StandIn:
    """A device with one copy stream. A copy is executed when it is waited for, or `lag` copies after it were started.

    Like a device it knows only addresses, and keeps no memory of the host alive.

    Args:
        lag: How late copies are executed; None for as late as possible.
        register_fails_at: Number of the registration, from 0, from which on all fail.
        room: Bytes that fit on the device at once; None for any number.
        ahead: Whether batches may be copied before they are due.
    """

    out_of_memory = DeviceFull

    def __init__(self, lag=2, *, way="registered", register_fails_at=None, room=None, ahead=True, name="stand-in:0"):
        self.name = name
        self.pins = way != "pageable"
        self.lag = lag
        self.room = room
        self.ahead = ahead
        self.way = way
        self.registry = Registry(self)
        self.registered = {}
        self.log = []
        self.most_in_flight = 0
        self._fails_at = register_fails_at
        self._registrations = itertools.count()
        self._queue = []
        self._clock = itertools.count(1)

    # ---- the Accelerator protocol

    def can_upload_ahead(self, _batch):
        return self.ahead

    def copy(self, batch, mapping, *, ahead):
        return StandInCopy(self, batch, self.memory_for(mapping))

    def memory_for(self, mapping):
        return self.registry.memory_for(mapping, self.name) if self.way == "registered" else self.way

    def memory(self):
        return f"{self.room} bytes in total"

    def gauge(self):
        return DeviceGauge(self.name, 300 << 20, 420 << 20, 1 << 30, self.registry.nbytes)

    def close(self):
        self.registry.release()

    # ---- for tests

    def synchronize(self):
        """Execute all copies."""
        self.execute(len(self._queue))

    def execute(self, count):
        for _ in range(min(count, len(self._queue))):
            self._queue.pop(0).execute()

    def polled(self):
        """Time passes: execute copies that are late enough."""
        if self.lag is not None:
            self.execute(len(self._queue) - self.lag)

    def started(self, copy):
        self._queue.append(copy)
        self.most_in_flight = max(self.most_in_flight, len(self._queue))

    def tick(self):
        return next(self._clock)

    def execute_until(self, copy):
        if copy in self._queue:
            self.execute(self._queue.index(copy) + 1)

    def reads_from(self, address, size):
        return any(address <= begin < address + size for c in self._queue for begin, _n, _out in c.moves)

    # ---- pinning.HostMemory

    def register(self, address, size, _device):
        assert address not in self.registered, "registered twice"
        if self._fails_at is not None and next(self._registrations) >= self._fails_at:
            raise MemoryError("out of memory")
        self.registered[address] = size
        self.log.append(("register", address))

    def unregister(self, address, _device):
        size = self.registered.pop(address)
        if self.reads_from(address, size):
            self.log.append(("unregistered while being read", address))
        ctypes.string_at(address, size)  # crashes unless it is still mapped
        self.log.append(("unregister", address))


class StandInCopy:
    def __init__(self, device, batch, memory):
        self.device = device
        self.memory = memory
        self.nbytes = self.pinned = 0
        self.moves = []
        self._batch = batch
        self._times = [0, 0, 0]
        self._pool = []  # as in torch: pinned memory is kept until it was read

    def start(self):
        if self.memory != "registered":
            self._batch = map_leaves(self._batch, self._pin)
        self.pinned = self.device.tick() if self.device.pins else 0
        self._times[0] = self.device.tick()
        try:
            self._batch = map_leaves(self._batch, self._send)
        finally:
            self.device.started(self)

    def _pin(self, leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        self._pool.append(leaf.clone())
        return self._pool[-1]

    def _send(self, leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf.to(self.device.name, non_blocking=True)
        if self.device.room is not None and self.nbytes + leaf.nbytes > self.device.room:
            raise DeviceFull(f"tried to allocate {leaf.nbytes} bytes")
        out = torch.full_like(leaf, 99)
        self.moves.append((leaf.data_ptr(), leaf.nbytes, out))
        self.nbytes += leaf.nbytes
        return out

    def execute(self):
        for address, nbytes, out in self.moves:
            ctypes.memmove(out.data_ptr(), address, nbytes)
        self.moves = []
        self._times[1] = self.device.tick()

    def done(self):
        self.device.polled()
        return not self._pending()

    def begun(self):
        return True

    def wait_until_begun(self):
        pass

    def wait(self):
        self.device.execute_until(self)

    def deliver(self):
        self._times[2] = self.device.tick()
        batch, self._batch = self._batch, None
        return batch

    def times_known(self):
        return not self._pending() and self._times[2] > 0

    def times(self):
        return CopyTimes(*self._times)

    def _pending(self):
        return self in self.device._queue


class PacedStandIn(StandIn):
    """A device whose copies take real time, one after the other. The consumer's work waits for them.

    Args:
        bytes_per_second: Throughput of the link.
        **options: See `StandIn`.
    """

    def __init__(self, bytes_per_second, **options):
        super().__init__(None, **options)
        self.bytes_per_second = bytes_per_second
        self.free_at = 0

    def copy(self, batch, mapping, *, ahead):
        return PacedCopy(self, batch, self.memory_for(mapping))

    def tick(self):
        return time.perf_counter_ns()


class PacedCopy(StandInCopy):
    ends = 0

    def start(self):
        super().start()
        self._times[0] = max(self._times[0], self.device.free_at)
        self.ends = self.device.free_at = self._times[0] + round(1e9 * self.nbytes / self.device.bytes_per_second)

    def done(self):
        if time.perf_counter_ns() >= self.ends:
            self.device.execute_until(self)
        return super().done()

    def wait(self):
        time.sleep(max(0, self.ends - time.perf_counter_ns()) / 1e9)
        super().wait()

    def execute(self):
        super().execute()
        self._times[1] = self.ends

    def deliver(self):
        needed = self.device.tick()
        self.wait()
        batch = super().deliver()
        self._times[2] = needed
        return batch
