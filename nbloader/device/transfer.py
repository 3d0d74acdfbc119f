"""Decides when a batch is transferred to a device and when its host memory may be reused. Touches no device itself.

    reorder buffer -> DeviceLane.start_ahead() --.
                   -> DeviceLane.deliver() -------`-> Copy: pin, start ... done -> its segment is returned
                                                       `-> the consumer's work on the device waits for it

A worker writes its next batch into a returned segment. So a batch's memory is held until the device reports that the
copy is done: returning a segment too early would silently corrupt data. There is no upload thread: when the consumer
takes a batch, the copy of the next batch is started if that batch is ready, and runs while the consumer works. A thread
only copies from pageable to pinned memory. Registering memory and allocating it happen on the consumer's thread, since
they would break the capture of a CUDA graph that the consumer has begun.

A host that runs ahead of the device is stopped. It waits in two places, so that the waits are counted as what they are:
at the beginning of `__next__`, as a part of the loop's step, until the device has done the consumer's work that
precedes the copy delivered last (`DeviceLane.catch_up`); and when the next copy is started while more are in flight
than allowed, until the oldest one is done, because the link is slower. If the host got further ahead, as after a batch
that was not ready in time, the copies of delivered batches would fill the queue, and no later one could start early.

Without a device, `pin_memory=True` copies batches to torch's pool of pinned memory, because the user then uploads the
batch, on any stream, and may drop it right away. torch records an event on each stream that reads from its pool, and
reuses the memory only after that event. It does not do so for memory that was merely registered, and no event recorded
here could cover a stream that is unknown here. With `device=`, the streams are created here, and the shared memory is
used in place.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from nbloader._util.signals import raised_by_handler
from nbloader.device.accelerator import COPY_THREAD, Accelerator, Copy
from nbloader.device.record_queue import PendingPlacement
from nbloader.events.gauges import DeviceGauge

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns


class BatchKey(NamedTuple):
    """Identifies a batch of the loader."""

    epoch: int
    """Number of the epoch."""
    number: int


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


InFlight: TypeAlias = collections.deque[Transfer]
_all_in_flight: dict[int, InFlight] = {}
"""The copies of all lanes. An interrupt of the finalizer of a lane costs memory, which must not be reused then."""


class DeviceLane:
    """Transfers to one device.

    Args:
        accelerator: The device.
        ahead: Maximum number of batches whose transfer is started before the consumer asks for them.
    """

    def __init__(self, accelerator: Accelerator, ahead: int) -> None:
        self.accelerator = accelerator
        self._ahead = ahead
        self._full_epoch = -1  # the epoch in which the device had no memory for an upload ahead
        self._started: dict[BatchKey, Transfer] = {}  # ahead of the consumer
        self._in_flight: InFlight = collections.deque()  # copies that may not be done, oldest first
        self._delivered: Copy | None = None  # the last one
        _all_in_flight[id(self._in_flight)] = self._in_flight
        weakref.finalize(self, _finish, id(self._in_flight)).atexit = False

    @property
    def in_flight(self) -> int:
        """Number of copies that may be unfinished."""
        return len(self._in_flight)

    @property
    def started(self) -> tuple[BatchKey, ...]:
        """Batches whose transfer was started and that have not been delivered. Thread-safe."""
        return tuple(self._started)

    def start_ahead(self, key: BatchKey, payload: TransferPayload) -> bool:
        """Start the transfer of a ready batch early, unless too many are ahead.

        If too many copies are in flight, it waits for the oldest one, provided that the device has begun it. Otherwise
        it would wait for the consumer's work on the device, and that wait would count as a slow transfer.

        An error of the batch is raised by `deliver`, when the batch is due, in place of this batch and not before.

        Returns:
            Whether the transfer has been started, by this call or before.
        """
        started = self._started.get(key)
        if started is not None and started.payload is payload:
            return True
        of_epoch = sum(other.epoch == key.epoch for other in list(self._started))
        if key.epoch == self._full_epoch or of_epoch >= self._ahead or not (self._has_room() or self._oldest_begun()):
            return False
        try:
            batch = payload.open()
            if not self.accelerator.can_upload_ahead(batch):
                return False
            self._make_room()
            self._started[key] = self._start(batch, payload, ahead=True)
        except self.accelerator.out_of_memory:
            # The consumer may free memory before the batch is due. Attempts are costly: torch empties its cache first.
            self._full_epoch = key.epoch
            log.warning(
                "%s has no memory for uploads ahead: each batch is uploaded when the loop requests it",
                self.accelerator.name,
            )
            return False
        except Exception as error:  # a batch may raise anything while it is unpickled, pinned or copied
            if raised_by_handler(error):
                raise
            log.debug("batch %d cannot be uploaded ahead", key.number, exc_info=True)
            return False
        return True

    def deliver(self, key: BatchKey, payload: TransferPayload) -> DeviceBatch:
        """Return the batch on the device. After an error or an interrupt, it can be called again for this batch.

        Raises:
            Exception: `accelerator.out_of_memory`, or any error of the batch while it is built, pinned or copied.
        """
        transfer = self._started.pop(key, None)
        if transfer is None or transfer.payload is not payload:  # the batch was produced again, from another dataset
            self._make_room()
            try:
                transfer = self._start(payload.open(), payload, ahead=False)
            except self.accelerator.out_of_memory as error:
                raise self.accelerator.out_of_memory(self._full(key, error)) from error
        batch = transfer.copy.deliver()
        self._delivered = transfer.copy
        return DeviceBatch(batch, transfer.copy, transfer.begin)

    def catch_up(self) -> None:
        """Wait until the device has begun the copy that was delivered last, so has done the work that precedes it."""
        delivered = self._delivered
        if delivered is not None:
            delivered.wait_until_begun()
            self._delivered = None

    def forget(self, epoch: int, number: int | None = None) -> None:
        """Drop the started transfers of an iteration, or only that of one batch. Thread-safe."""
        for key in list(self._started):
            if key.epoch == epoch and number in (None, key.number):
                self._started.pop(key, None)

    def close(self) -> None:
        """Wait for all copies, and release their memory."""
        self._started.clear()
        self._delivered = None
        _wait_for_all(self._in_flight)
        self.accelerator.close()

    def _start(self, batch: Any, payload: TransferPayload, *, ahead: bool) -> Transfer:
        begin = _clock()
        transfer = Transfer(payload, self.accelerator.copy(batch, payload.mapping, ahead=ahead), begin)
        self._in_flight.append(transfer)  # before start: parts enqueued before an error read the memory too
        try:
            transfer.copy.start()
        finally:
            if transfer not in self._in_flight:  # another thread has closed the loader, and did not wait for this copy
                self._in_flight.append(transfer)
        self._release_done()
        return transfer

    def _has_room(self) -> bool:
        """Whether another copy may be started."""
        self._release_done()
        return len(self._in_flight) <= self._ahead

    def _oldest_begun(self) -> bool:
        oldest = _oldest(self._in_flight)
        return oldest is None or oldest.copy.begun()

    def _make_room(self) -> None:
        """Wait until another copy may be started: the link to the device is the bottleneck."""
        while not self._has_room() and (oldest := _oldest(self._in_flight)) is not None:
            oldest.copy.wait()

    def _release_done(self) -> None:
        """Release the memory of finished copies. Thread-safe.

        A copy stays in the queue until it is known to be done: an interrupt in between must not release its memory.
        """
        while (oldest := _oldest(self._in_flight)) is not None and oldest.copy.done():
            _release(self._in_flight, oldest)

    def _full(self, key: BatchKey, error: Exception) -> str:
        return (
            f"batch {key.number} does not fit on {self.accelerator.name}: {error} ({self.accelerator.memory()}; "
            f"{len(self._started)} batches were uploaded ahead). Use a smaller batch_size or upload_ahead=0, or drop "
            "tensors that are no longer used. The batch is kept, so next() on the iterator returns it once there is "
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

    def catch_up(self, position: int) -> None:
        """Wait until the device of the next batch has begun the copy that was delivered to it last.

        Args:
            position: Number of batches of the epoch that were delivered before.
        """
        lane = self._lanes[position % len(self._lanes)]
        if lane is not None:
            lane.catch_up()

    def deliver(
        self, key: BatchKey, payload: TransferPayload, position: int = 0
    ) -> tuple[Any, PendingPlacement | None]:
        """Transfer a batch to its device.

        Args:
            key: The batch.
            payload: Its payload.
            position: Number of batches of the epoch that were delivered before.

        Returns:
            The batch on its device, and the placement that its record waits for (None if the batch was left as is).
        """
        lane = self._lanes[position % len(self._lanes)]
        for other in self._lanes:  # a batch in between was skipped, and this one was started for another device
            if other is not None and other is not lane:
                other.forget(key.epoch, key.number)
        if lane is None:
            return payload.open(), None
        on_device = lane.deliver(key, payload)
        return on_device.batch, PendingPlacement(lane.accelerator.name, on_device.copy, on_device.begin)

    def start_ahead(self, ready: Iterable[tuple[BatchKey, TransferPayload]], position: int) -> None:
        """Start the transfers of ready batches, up to the limit of each device.

        Args:
            ready: The next batches, in order.
            position: Number of batches of the epoch that are delivered before the first batch in `ready`.
        """
        for offset, (key, payload) in enumerate(ready):
            lane = self._lanes[(position + offset) % len(self._lanes)]
            if lane is not None and not lane.start_ahead(key, payload):
                return

    def started(self, epoch: int) -> tuple[int, ...]:
        """Numbers of an epoch's batches whose transfer was started ahead of the consumer. Thread-safe."""
        keys = [key for lane in self._lanes if lane is not None for key in lane.started]
        return tuple(sorted(key.number for key in keys if key.epoch == epoch))

    def gauges(self) -> tuple[DeviceGauge, ...]:
        """Return what is known of the memory of the devices. Thread-safe."""
        found = [lane.accelerator.gauge() for lane in self._lanes if lane is not None]
        return tuple({gauge.name: gauge for gauge in found if gauge is not None}.values())

    def forget(self, epoch: int) -> None:
        """Drop the started transfers of an iteration that has ended. Thread-safe."""
        for lane in self._lanes:
            if lane is not None:
                lane.forget(epoch)

    def close(self) -> None:
        """Wait for all copies. Called when the loader is closed."""
        for lane in self._lanes:
            if lane is not None:
                lane.close()


def _wait_for_all(in_flight: InFlight) -> None:
    """Wait for all copies, and release the memory of each when it is done."""
    while (oldest := _oldest(in_flight)) is not None:
        try:
            oldest.copy.wait()
        except Exception as error:  # a device that is lost raises anything, and no longer reads the memory
            if raised_by_handler(error):
                raise
            log.exception("waiting for an upload failed")
        _release(in_flight, oldest)


def _oldest(in_flight: InFlight) -> Transfer | None:
    try:
        return in_flight[0]
    except IndexError:  # perhaps because another thread has just closed the loader
        return None


def _release(in_flight: InFlight, transfer: Transfer) -> None:
    with contextlib.suppress(ValueError):  # another thread, or a signal handler, has just released it
        in_flight.remove(transfer)


def _finish(key: int) -> None:
    """Wait for the copies of a lane that was garbage-collected, and release their memory."""
    if threading.current_thread().name.startswith(COPY_THREAD):  # it cannot wait for what it runs itself
        threading.Thread(target=_finish, args=(key,), name="nbloader-uploads").start()
        return
    _wait_for_all(_all_in_flight[key])
    del _all_in_flight[key]
