"""What goes to a device when, and when the memory that it came from may be used again. Decides; touches no device.

    ready line (reorder.py) -> Lane.ahead() ----.
                            -> Lane.deliver() -> Copy: pin, start ... done -> its segment goes back
                                                   `-> the consumer's work on the device waits for it

A worker writes its next batch over the memory of one that came back, so a batch's memory is held until the device says
that its copy is done: a segment that went back too early would be silent corruption. Nothing here waits for that but
`Lane.deliver`, and only where more copies are under way than were allowed. No thread uploads: the consumer's next batch
is begun when it takes the one before, if it is ready by then, and is copied while the consumer works.

Why `pin_memory=True` without a device copies: there the user uploads, on any stream, and may drop the batch at once.
torch delays the reuse of pinned memory that it allocated itself by an event on each stream that read it; of memory
that was registered it knows nothing, and no event that could be recorded here covers a stream that we do not know. So
such batches are copied to torch's own pool. With `device=` the streams are ours and the shared memory is used as it is.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from nbloader.batch.payload import BatchPayload
from nbloader.events import BatchRecord, Placed

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

WAYS = ("registered", "copied", "pageable")
"""How the memory is prepared from which the device copies; see `events.Placed.memory`."""
RECORDS = 64
"""Records that wait for the device's times at most; then they are published without."""


class Copy(Protocol):
    """One batch on its way to a device."""

    memory: str
    """One of `WAYS`."""
    nbytes: int
    """What the device copies."""
    pinned: int
    """When it lay in pinned memory, ns; 0 when it does not."""

    def start(self) -> None:
        """Pin, and have the device copy. After an error `done` tells of what was begun before it."""
        ...

    def done(self) -> bool:
        """Whether the device has read the host's memory for the last time. Never waits."""
        ...

    def wait(self) -> None:
        """Block until it has."""
        ...

    def deliver(self) -> Any:
        """The batch on the device, once; what the consumer has the device do from now on waits for the copy."""
        ...

    def told(self) -> bool:
        """Whether `times` is complete. Never waits."""
        ...

    def times(self) -> tuple[int, int, int]:
        """When the device began to copy, was done, and came to need it, ns; 0 for what is not known (yet)."""
        ...


@runtime_checkable
class Accelerator(Protocol):
    """A device, as far as uploading to it goes. `nbloader.cuda` has the real one."""

    name: str
    """Such as "cuda:0"."""
    pins: bool
    """Whether batches go through pinned memory."""
    out_of_memory: type[Exception]
    """What `Copy.start` raises when the device's memory does not suffice; made of a message."""

    def goes_ahead(self, batch: Any) -> bool:
        """Whether this batch can be copied before the consumer asks for it."""
        ...

    def copy(self, batch: Any, mapping: Any) -> Copy:
        """A copy of this batch, not started.

        Args:
            batch: As the workers made it.
            mapping: The whole segment in which it lies; None where it lies elsewhere.
        """
        ...

    def memory(self) -> str:
        """A phrase that tells how much of the device's memory is free and who holds the rest."""
        ...


class Pinning:
    """In which way batches are pinned: where they lie, as long as the system lets us, else by a copy.

    Args:
        way: The way to begin with, one of `WAYS`.
        register: Pins memory where it lies, given address and size in bytes; gives "" or why it could not.
        unregister: Undoes that, given the address.
    """

    def __init__(self, way: str, register: Callable[[int, int], str], unregister: Callable[[int], object]) -> None:
        self.way = way
        self._register = register
        self._unregister = unregister
        self._registered: set[int] = set()

    def of(self, mapping: Any) -> str:
        """How to pin a batch that lies in `mapping` (None for elsewhere), a ctypes array; registers it if it is new.

        It is unregistered just before it is unmapped: of the callbacks of weak references the newest runs first, and
        that which unmaps is older.
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
        if why:  # a limit of the system: the next segments would fare alike, and each failure is slow
            self.way = "copied"
            log.warning("%.1f MB of shared memory cannot be pinned (%s): batches are copied instead", size / 1e6, why)
            return self.way
        self._registered.add(address)
        weakref.finalize(mapping, self._forget, address).atexit = False
        return "registered"

    def _forget(self, address: int) -> None:
        self._registered.discard(address)
        self._unregister(address)


class Lane:
    """The way to one device.

    Args:
        accelerator: The device.
        ahead: Batches that may be begun before they are asked for.
    """

    def __init__(self, accelerator: Accelerator, ahead: int) -> None:
        self.accelerator = accelerator
        self._ahead = ahead
        self._tight = -1  # the run in which the device had no room for a batch ahead
        self._begun: dict[tuple[int, int], tuple[BatchPayload, Copy, int]] = {}
        # Copies that may be under way, oldest first, each with what holds its memory.
        self._flying: collections.deque[tuple[Copy, BatchPayload]] = collections.deque()
        weakref.finalize(self, _wait_for_all, self._flying).atexit = False

    @property
    def flying(self) -> int:
        """Copies that may be under way."""
        return len(self._flying)

    @property
    def begun(self) -> tuple[tuple[int, int], ...]:
        """Run and number of the batches that were begun and not delivered; from any thread."""
        return tuple(self._begun)

    def ahead(self, key: tuple[int, int], parcel: BatchPayload) -> bool:
        """Begin a batch that is ready before it is asked for, if there is room. Never waits.

        Args:
            key: Its run and number.
            parcel: The batch.

        Returns:
            Whether it is begun, now or before.
        """
        if key in self._begun and self._begun[key][0] is parcel:
            return True
        self._land()
        run = key[0]
        begun = sum(other == run for other, _number in list(self._begun))
        if run == self._tight or begun >= self._ahead or len(self._flying) > self._ahead:
            return False
        batch = parcel.open()
        if not self.accelerator.goes_ahead(batch):
            return False
        try:
            self._begun[key] = parcel, *self._begin(batch, parcel)
        except self.accelerator.out_of_memory:
            # The consumer may free some until it is due. Each try costs: torch gives up what it keeps for later.
            self._tight = run
            log.warning("no room for a batch ahead on %s: uploads wait until they are due", self.accelerator.name)
            return False
        return True

    def deliver(self, key: tuple[int, int], parcel: BatchPayload) -> tuple[Any, Copy, int]:
        """The batch on the device, with its copy and when that was taken up (ns).

        Raises:
            Exception: `accelerator.out_of_memory`. The batch can be delivered again.
        """
        begun = self._begun.pop(key, None)
        if begun is not None and begun[0] is parcel:  # else it was made again, of another dataset
            _parcel, copy, begin = begun
        else:
            self._land()
            while len(self._flying) > self._ahead:  # the link is the limit
                self._flying[0][0].wait()
                self._land()
            try:
                copy, begin = self._begin(parcel.open(), parcel)
            except self.accelerator.out_of_memory as error:
                raise self.accelerator.out_of_memory(self._full(key, error)) from error
        return copy.deliver(), copy, begin

    def forget(self, run: int, number: int | None = None) -> None:
        """The batches of this run (or one) that were begun and not delivered are not wanted; from any thread."""
        for key in list(self._begun):
            if key[0] == run and number in (None, key[1]):
                self._begun.pop(key, None)

    def close(self) -> None:
        """Wait for all copies, milliseconds, and give everything back."""
        self._begun.clear()
        _wait_for_all(self._flying)

    def _begin(self, batch: Any, parcel: BatchPayload) -> tuple[Copy, int]:
        begin = _clock()
        copy = self.accelerator.copy(batch, parcel.mapping)
        self._flying.append((copy, parcel))  # first: what is begun before an error reads the memory too
        copy.start()
        self._land()
        return copy, begin

    def _land(self) -> None:
        """Let go of the memory of copies that are done. Other threads may do the same."""
        with contextlib.suppress(IndexError):
            while True:
                item = self._flying.popleft()
                if not item[0].done():
                    self._flying.appendleft(item)
                    return

    def _full(self, key: tuple[int, int], error: Exception) -> str:
        return (
            f"batch {key[1]} does not fit on {self.accelerator.name}: {error} ({self.accelerator.memory()}; "
            f"{len(self._begun)} batches were uploaded ahead). Use a smaller batch_size or upload_ahead=0, or drop "
            "tensors that are no longer used; the batch is kept, so next() on the iterator gives it once there is room."
        )


class Placer:
    """Brings the batches of one loader to where they shall be.

    Args:
        accelerators: One for each batch of a step, which go to them in turn; None where it stays as it is.
        ahead: Batches begun before they are asked for, per device.
    """

    def __init__(self, accelerators: Sequence[Accelerator | None], ahead: int) -> None:
        self._lanes = [None if accelerator is None else Lane(accelerator, ahead) for accelerator in accelerators]
        self.ahead = ahead * len(self._lanes)
        """How many of the ready batches `go_ahead` wants to see."""
        used = [accelerator for accelerator in accelerators if accelerator is not None]
        self.out_of_memory = tuple({accelerator.out_of_memory for accelerator in used})
        """Errors of `deliver` after which the batch can be delivered again."""
        self.pins = any(accelerator.pins for accelerator in used)
        """Whether batches go through pinned memory."""
        self.name = ", ".join(dict.fromkeys(accelerator.name for accelerator in used))
        """The devices."""

    def deliver(self, key: tuple[int, int], parcel: BatchPayload, position: int = 0) -> tuple[Any, Shipment | None]:
        """The batch, where it shall be.

        Args:
            key: Its run and number.
            parcel: What came.
            position: How many of its run were delivered before.
        """
        lane = self._lanes[position % len(self._lanes)]
        for other in self._lanes:  # a batch between was skipped, and this one was begun for the wrong device
            if other is not None and other is not lane:
                other.forget(*key)
        if lane is None:
            return parcel.open(), None
        batch, copy, begin = lane.deliver(key, parcel)
        return batch, Shipment(lane.accelerator.name, copy, begin)

    def go_ahead(self, ready: Iterable[tuple[tuple[int, int], BatchPayload]], position: int = 0) -> None:
        """Begin what is ready, as far as there is room.

        Args:
            ready: The next batches (key, parcel), in order.
            position: How many of the run were delivered before the first of them.
        """
        for offset, (key, parcel) in enumerate(ready):
            lane = self._lanes[(position + offset) % len(self._lanes)]
            if lane is not None and not lane.ahead(key, parcel):
                return

    def begun(self, run: int) -> tuple[int, ...]:
        """The batches of a run that were begun before they were asked for; from any thread."""
        begun = [key for lane in self._lanes if lane is not None for key in lane.begun]
        return tuple(sorted(number for other, number in begun if other == run))

    def forget(self, run: int) -> None:
        """A run has ended; from any thread."""
        for lane in self._lanes:
            if lane is not None:
                lane.forget(run)

    def close(self) -> None:
        """The loader is closed: wait for all copies."""
        for lane in self._lanes:
            if lane is not None:
                lane.close()


class Shipment:
    """What a record will say of a batch's way to its device, once the device has told."""

    __slots__ = ("_begin", "_copy", "_device")

    def __init__(self, device: str, copy: Copy, begin: int) -> None:
        self._device = device
        self._copy = copy
        self._begin = begin

    def placed(self, *, at_once: bool) -> Placed | None:
        """The entry of the record; None when times are missing, unless it is wanted `at_once`."""
        copy = self._copy
        if not (at_once or copy.told()):
            return None
        return Placed(self._device, copy.memory, self._begin, copy.pinned, *copy.times(), copy.nbytes)


class Records:
    """Batch records on their way to the bus, in order: each waits until the device has told its times.

    Args:
        publish: Takes a finished record.
    """

    def __init__(self, publish: Callable[[BatchRecord], object]) -> None:
        self._publish = publish
        self._waiting: collections.deque[tuple[BatchRecord, Shipment | None]] = collections.deque()

    def add(self, record: BatchRecord, shipment: Shipment | None) -> None:
        """Publish this record, but for its `placed` complete, and those before it, as far as their times are known."""
        self._waiting.append((record, shipment))
        self.flush()

    def flush(self, *, at_once: bool = False) -> None:
        """Publish what is complete; everything when `at_once`, with zeros for times that are not known."""
        while self._waiting:
            record, shipment = self._waiting[0]
            if shipment is not None:
                placed = shipment.placed(at_once=at_once or len(self._waiting) > RECORDS)
                if placed is None:
                    return
                record = record._replace(placed=placed)
            self._waiting.popleft()
            self._publish(record)


def _wait_for_all(flying: collections.deque[tuple[Copy, BatchPayload]]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            copy, parcel = flying.popleft()
            try:
                copy.wait()
            except Exception:  # the device is lost, and reads no more
                log.exception("waiting for an upload failed")
            del copy, parcel
