"""What transfers need from a device: `torch_backend` implements it with torch, tests with a script."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from nbloader.events.gauges import DeviceGauge

MemoryKind: TypeAlias = Literal["registered", "copied", "pageable"]
"""Kind of host memory from which the device copies; see `events.Placed.memory`."""

COPY_THREAD = "nbloader-pin"
"""Beginning of the names of threads that run parts of copies."""


class CopyTimes(NamedTuple):
    """Times of a copy as measured by the device, in ns of the host's perf_counter; 0 if not known (yet)."""

    begin: int = 0
    end: int = 0
    needed: int = 0
    """When the consumer's work on the device reached the batch."""


class Copy(Protocol):
    """The copy of one batch to a device."""

    memory: MemoryKind
    nbytes: int
    """Bytes that the device copies."""
    pinned: int
    """When all of the batch was in pinned memory, in perf_counter ns; 0 if it is not pinned."""

    def start(self) -> None:
        """Pin the batch and enqueue the copy.

        After an error or an interrupt at any point, `done` and `wait` cover the parts that are already enqueued.
        """
        ...

    def done(self) -> bool:
        """Whether nobody reads the batch's memory any more. Does not block."""
        ...

    def begun(self) -> bool:
        """Whether the device has finished the consumer's work that precedes the copy. Does not block."""
        ...

    def wait_until_begun(self) -> None:
        """Block until the device has finished the consumer's work that precedes the copy."""
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

    def copy(self, batch: Any, mapping: Any, *, ahead: bool) -> Copy:
        """Create the copy of a batch without starting it.

        Args:
            batch: The batch, as the workers produced it.
            mapping: The whole segment that contains the batch; None if the batch is not in a segment.
            ahead: Whether the consumer has not asked for the batch yet.
        """
        ...

    def memory(self) -> str:
        """Return a phrase that says how much of the device's memory is free and what holds the rest."""
        ...

    def gauge(self) -> DeviceGauge | None:
        """Return what torch knows of the device's memory; None if nothing. Thread-safe, and does not ask the device."""
        ...

    def close(self) -> None:
        """Release what this object holds. Called when all copies are done; it can be used again."""
        ...
