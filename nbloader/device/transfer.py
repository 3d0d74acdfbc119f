"""Decides when a batch is transferred to a device and when its host memory may be reused. Touches no device itself.

    reorder buffer -> DeviceLane.start_ahead() --.
                   -> DeviceLane.deliver() -------`-> Copy: pin, start ... done -> its segment is returned
                                                       `-> the consumer's work on the device waits for it

A worker writes its next batch into a returned segment. So a batch's memory is held until the device reports that the
copy is done: returning a segment too early would silently corrupt data. Only `DeviceLane.deliver` waits for a copy, and
only if more copies are in flight than allowed. There is no upload thread: when the consumer takes a batch, the copy of
the next batch is started if that batch is ready, and runs while the consumer works.

Without a device, `pin_memory=True` copies batches to torch's pool of pinned memory, because the user then uploads the
batch, on any stream, and may drop it right away. torch records an event on each stream that reads from its pool, and
reuses the memory only after that event. It does not do so for memory that was merely registered, and no event recorded
here could cover a stream that is unknown here. With `device=`, the streams are created here, and the shared memory is
used in place.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from nbloader.events import BatchRecord, Placed

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

WAYS = ("registered", "copied", "pageable")
"""Kinds of host memory from which the device copies; see `events.Placed.memory`."""
MAX_PENDING_RECORDS = 64
"""Maximum number of records that wait for the device's times; older ones are published without these times."""


class BatchKey(NamedTuple):
    """Identifies a batch of the loader."""

    run: int
    """Number of the iteration."""
    number: int


class CopyTimes(NamedTuple):
    """Times of a copy as measured by the device, in ns of the host's perf_counter; 0 if not known (yet)."""

    begin: int = 0
    end: int = 0
    needed: int = 0
    """When the consumer's work on the device reached the batch."""


class Copy(Protocol):
    """The copy of one batch to a device."""

    memory: str
    """One of `WAYS`."""
    nbytes: int
    """Bytes that the device copies."""
    pinned: int
    """When all of the batch was in pinned memory, in perf_counter ns; 0 if it is not pinned."""

    def start(self) -> None:
        """Pin the batch and enqueue the copy. After an error, `done` covers the parts that are already enqueued."""
        ...

    def done(self) -> bool:
        """Whether the device no longer reads the host's memory. Does not block."""
        ...

    def wait(self) -> None:
        """Block until the copy is done."""
        ...

    def deliver(self) -> Any:
        """Return the batch on the device; called once. Work that the consumer enqueues later waits for the copy."""
        ...

    def times_known(self) -> bool:
        """Whether `times` is complete. Does not block."""
        ...

    def times(self) -> CopyTimes:
        """Return when the device copied the batch and when it needed the batch."""
        ...


@runtime_checkable
class Accelerator(Protocol):
    """A device that batches are uploaded to. `device.torch_backend` implements it with torch."""

    name: str
    """Name of the device, such as "cuda:0"."""
    pins: bool
    """Whether batches go through pinned memory."""
    out_of_memory: type[Exception]
    """The exception that `Copy.start` raises when the device's memory is full; it can be constructed from a message."""

    def can_upload_ahead(self, batch: Any) -> bool:
        """Whether this batch can be copied before the consumer asks for it."""
        ...

    def copy(self, batch: Any, mapping: Any) -> Copy:
        """Create the copy of a batch without starting it.

        Args:
            batch: The batch, as the workers produced it.
            mapping: The whole segment that contains the batch; None if the batch is not in a segment.
        """
        ...

    def memory(self) -> str:
        """Return a phrase that says how much of the device's memory is free and what holds the rest."""
        ...


class TransferPayload(Protocol):
    """What a transfer needs from a `BatchPayload`. The payload holds the batch's memory from `open()` on."""

    @property
    def mapping(self) -> Any:
        """The whole segment that contains the opened batch; None if the batch is not in a segment."""
        ...

    def open(self) -> Any:
        """Build the batch in place, on the memory in which it arrived."""
        ...


class Transfer(NamedTuple):
    """A copy that was started, with the payload that holds its memory."""

    payload: TransferPayload
    copy: Copy
    begin: int
    """When the transfer was started, in perf_counter ns."""


class DeviceBatch(NamedTuple):
    """A batch on its device."""

    batch: Any
    copy: Copy
    begin: int
    """When the transfer was started, in perf_counter ns."""


class Pinning:
    """Pins batches: in place as long as the system allows it, otherwise by copying them.

    Args:
        way: The kind of memory to start with, one of `WAYS`.
        register: Pins memory in place, given its address and its size in bytes. Returns "" or the reason for a failure.
        unregister: Unpins memory, given its address.
    """

    def __init__(self, way: str, register: Callable[[int, int], str], unregister: Callable[[int], object]) -> None:
        self.way = way
        self._register = register
        self._unregister = unregister
        self._registered: set[int] = set()

    def of(self, mapping: Any) -> str:
        """Return the kind of memory for a batch in `mapping`, a ctypes array or None. Registers a new mapping.

        The mapping is unregistered just before it is unmapped: the callbacks of weak references run newest first, and
        the callback that unmaps is older.
        """
        if self.way != "registered":
            return self.way
        if mapping is None:
            return "copied"
        address = ctypes.addressof(mapping)
        if address in self._registered:
            return "registered"
        size = ctypes.sizeof(mapping)
        why = self._register(address, size)
        if why:  # a limit of the system: the next segments would fail too, and each attempt is slow
            self.way = "copied"
            log.warning("%.1f MB of shared memory cannot be pinned (%s): batches are copied instead", size / 1e6, why)
            return self.way
        self._registered.add(address)
        weakref.finalize(mapping, self._forget, address).atexit = False
        return "registered"

    def _forget(self, address: int) -> None:
        self._registered.discard(address)
        self._unregister(address)


class DeviceLane:
    """Transfers to one device.

    Args:
        accelerator: The device.
        ahead: Maximum number of batches whose transfer is started before the consumer asks for them.
    """

    def __init__(self, accelerator: Accelerator, ahead: int) -> None:
        self.accelerator = accelerator
        self._ahead = ahead
        self._full_run = -1  # the iteration in which the device had no memory for an upload ahead
        self._started: dict[BatchKey, Transfer] = {}  # ahead of the consumer
        self._in_flight: collections.deque[Transfer] = collections.deque()  # copies that may not be done, oldest first
        weakref.finalize(self, _wait_for_all, self._in_flight).atexit = False

    @property
    def in_flight(self) -> int:
        """Number of copies that may be unfinished."""
        return len(self._in_flight)

    @property
    def started(self) -> tuple[BatchKey, ...]:
        """Batches whose transfer was started and that have not been delivered. Thread-safe."""
        return tuple(self._started)

    def start_ahead(self, key: BatchKey, payload: TransferPayload) -> bool:
        """Start the transfer of a ready batch early, unless too many are ahead. Does not block.

        Returns:
            Whether the transfer has been started, by this call or before.
        """
        started = self._started.get(key)
        if started is not None and started.payload is payload:
            return True
        self._release_done()
        of_run = sum(other.run == key.run for other in list(self._started))
        if key.run == self._full_run or of_run >= self._ahead or len(self._in_flight) > self._ahead:
            return False
        batch = payload.open()
        if not self.accelerator.can_upload_ahead(batch):
            return False
        try:
            self._started[key] = self._start(batch, payload)
        except self.accelerator.out_of_memory:
            # The consumer may free memory before the batch is due. Attempts are costly: torch empties its cache first.
            self._full_run = key.run
            log.warning("no memory for a batch ahead on %s: uploads wait until they are due", self.accelerator.name)
            return False
        return True

    def deliver(self, key: BatchKey, payload: TransferPayload) -> DeviceBatch:
        """Return the batch on the device.

        Raises:
            Exception: `accelerator.out_of_memory`. `deliver` can then be called again for this batch.
        """
        transfer = self._started.pop(key, None)
        if transfer is None or transfer.payload is not payload:  # the batch was produced again, from another dataset
            self._release_done()
            while len(self._in_flight) > self._ahead:  # the link to the device is the bottleneck
                self._wait_for_oldest()
                self._release_done()
            try:
                transfer = self._start(payload.open(), payload)
            except self.accelerator.out_of_memory as error:
                raise self.accelerator.out_of_memory(self._full(key, error)) from error
        return DeviceBatch(transfer.copy.deliver(), transfer.copy, transfer.begin)

    def forget(self, run: int, number: int | None = None) -> None:
        """Drop the started transfers of an iteration, or only that of one batch. Thread-safe."""
        for key in list(self._started):
            if key.run == run and number in (None, key.number):
                self._started.pop(key, None)

    def close(self) -> None:
        """Wait for all copies, which takes milliseconds, and release their memory."""
        self._started.clear()
        _wait_for_all(self._in_flight)

    def _start(self, batch: Any, payload: TransferPayload) -> Transfer:
        begin = _clock()
        transfer = Transfer(payload, self.accelerator.copy(batch, payload.mapping), begin)
        self._in_flight.append(transfer)  # before start: parts enqueued before an error read the memory too
        transfer.copy.start()
        self._release_done()
        return transfer

    def _wait_for_oldest(self) -> None:
        try:
            oldest = self._in_flight[0]
        except IndexError:  # another thread has just closed the loader
            return
        oldest.copy.wait()

    def _release_done(self) -> None:
        """Release the memory of finished copies. Thread-safe."""
        with contextlib.suppress(IndexError):
            while True:
                transfer = self._in_flight.popleft()
                if not transfer.copy.done():
                    self._in_flight.appendleft(transfer)
                    return

    def _full(self, key: BatchKey, error: Exception) -> str:
        return (
            f"batch {key.number} does not fit on {self.accelerator.name}: {error} ({self.accelerator.memory()}; "
            f"{len(self._started)} batches were uploaded ahead). Use a smaller batch_size or upload_ahead=0, or drop "
            "tensors that are no longer used; the batch is kept, so next() on the iterator returns it once there is "
            "enough memory."
        )


class DeviceTransfer:
    """Transfers the batches of one loader to its devices.

    Args:
        accelerators: The devices, one for each batch of a step; batches go to them in turn. None leaves a batch as is.
        ahead: Maximum number of batches per device whose transfer is started before the consumer asks for them.
    """

    def __init__(self, accelerators: Sequence[Accelerator | None], ahead: int) -> None:
        self._lanes = [None if accelerator is None else DeviceLane(accelerator, ahead) for accelerator in accelerators]
        self.ahead = ahead * len(self._lanes)
        """Maximum number of ready batches that `start_ahead` can start."""
        used = [accelerator for accelerator in accelerators if accelerator is not None]
        self.out_of_memory = tuple({accelerator.out_of_memory for accelerator in used})
        """Exceptions of `deliver` after which it can be called again for the same batch."""
        self.pins = any(accelerator.pins for accelerator in used)
        """Whether batches go through pinned memory."""
        self.name = ", ".join(dict.fromkeys(accelerator.name for accelerator in used))
        """Names of the devices."""

    def deliver(
        self, key: BatchKey, payload: TransferPayload, position: int = 0
    ) -> tuple[Any, PendingPlacement | None]:
        """Transfer a batch to its device.

        Args:
            key: The batch.
            payload: Its payload.
            position: Number of batches of the iteration that were delivered before.

        Returns:
            The batch on its device, and the placement that its record waits for (None if the batch was left as is).
        """
        lane = self._lanes[position % len(self._lanes)]
        for other in self._lanes:  # a batch in between was skipped, and this one was started for another device
            if other is not None and other is not lane:
                other.forget(key.run, key.number)
        if lane is None:
            return payload.open(), None
        on_device = lane.deliver(key, payload)
        return on_device.batch, PendingPlacement(lane.accelerator.name, on_device.copy, on_device.begin)

    def start_ahead(self, ready: Iterable[tuple[BatchKey, TransferPayload]], position: int = 0) -> None:
        """Start the transfers of ready batches, up to the limit of each device.

        Args:
            ready: The next batches, in order.
            position: Number of batches of the iteration that are delivered before the first batch in `ready`.
        """
        for offset, (key, payload) in enumerate(ready):
            lane = self._lanes[(position + offset) % len(self._lanes)]
            if lane is not None and not lane.start_ahead(key, payload):
                return

    def started(self, run: int) -> tuple[int, ...]:
        """Numbers of an iteration's batches whose transfer was started ahead of the consumer. Thread-safe."""
        keys = [key for lane in self._lanes if lane is not None for key in lane.started]
        return tuple(sorted(key.number for key in keys if key.run == run))

    def forget(self, run: int) -> None:
        """Drop the started transfers of an iteration that has ended. Thread-safe."""
        for lane in self._lanes:
            if lane is not None:
                lane.forget(run)

    def close(self) -> None:
        """Wait for all copies. Called when the loader is closed."""
        for lane in self._lanes:
            if lane is not None:
                lane.close()


class PendingPlacement:
    """The `Placed` entry of a batch's record, which is complete once the device has reported its times."""

    __slots__ = ("_begin", "_copy", "_device")

    def __init__(self, device: str, copy: Copy, begin: int) -> None:
        self._device = device
        self._copy = copy
        self._begin = begin

    def get(self, *, at_once: bool) -> Placed | None:
        """Return the entry; None if times are still missing and `at_once` is False."""
        copy = self._copy
        if not (at_once or copy.times_known()):
            return None
        return Placed(self._device, copy.memory, self._begin, copy.pinned, *copy.times(), copy.nbytes)


class RecordQueue:
    """Publishes batch records in order, each as soon as the device has reported its times.

    Args:
        publish: Called with each complete record.
    """

    def __init__(self, publish: Callable[[BatchRecord], object]) -> None:
        self._publish = publish
        self._waiting: collections.deque[tuple[BatchRecord, PendingPlacement | None]] = collections.deque()

    def add(self, record: BatchRecord, placement: PendingPlacement | None) -> None:
        """Queue a record that is complete except for `placed`, and publish the records whose times are known."""
        self._waiting.append((record, placement))
        self.flush()

    def flush(self, *, at_once: bool = False) -> None:
        """Publish complete records. If `at_once`, publish all records, with 0 for unknown times."""
        while self._waiting:
            record, placement = self._waiting[0]
            if placement is not None:
                placed = placement.get(at_once=at_once or len(self._waiting) > MAX_PENDING_RECORDS)
                if placed is None:
                    return
                record = record._replace(placed=placed)
            self._waiting.popleft()
            self._publish(record)


def _wait_for_all(in_flight: collections.deque[Transfer]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            transfer = in_flight.popleft()
            try:
                transfer.copy.wait()
            except Exception:  # the device is lost and no longer reads the memory
                log.exception("waiting for an upload failed")
            del transfer
