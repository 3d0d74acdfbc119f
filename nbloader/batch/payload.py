"""Payloads: produced batches on their way to the consumer.

A batch arrives from a worker process, is produced in this process, or is joined from chunks. All payloads hold the
header of the batch, and `open()` builds the batch. Payloads and the failures of `events.failures` are the possible
outcomes of a dispatched batch (`BatchOutcome`).
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from nbloader.batch.serialize import load_object
from nbloader.shm.segment import NO_SEGMENT

if TYPE_CHECKING:
    from nbloader.events import NodeTransfer
    from nbloader.events.failures import EmptyBatch, LoaderFailure, WorkerFailure
    from nbloader.shm.segment import SegmentReader

_new = tuple.__new__  # takes half as long as `_make`


class BatchHeader(NamedTuple):
    """Identity, location, size and cost of a produced batch (or of a chunk). All fields are 64-bit integers.

    `BatchRecord` describes the fields that have the same names there.
    """

    epoch: int
    """Number of the epoch that the batch belongs to."""
    job: int
    """Job number of the batch or chunk."""
    segment: int
    """Number of the worker's segment, or `segment.NO_SEGMENT` if the batch is not in a segment."""
    nbytes: int
    """Size of the arrays in bytes."""
    skeleton_nbytes: int
    """Size of the skeleton in bytes: the pickled parts that are not arrays."""
    samples: int = 0
    fetch_begin: int = 0
    fetched: int = 0
    collated: int = 0
    fetch_cpu: int = 0
    collate_cpu: int = 0
    slowest: int = -1
    """Position of the slowest sample in the batch; -1 if the samples were not fetched one by one."""
    slowest_ns: int = 0


_STRUCT = struct.Struct(f"<{len(BatchHeader._fields)}q")
HEADER_SIZE = _STRUCT.size
"""Size of a packed header in bytes."""
pack_header: Callable[..., bytes] = _STRUCT.pack
"""Pack a header. The arguments are the fields of `BatchHeader`, in order. (A method would cost 0.4 us.)"""


def unpack_header(body: Any) -> BatchHeader:
    """Read the header at the beginning of a frame's body."""
    return _new(BatchHeader, _STRUCT.unpack_from(body))


class PayloadSource(Protocol):
    """The attributes of a worker process that `SegmentPayload` needs."""

    worker: int
    pid: int
    segments: SegmentReader


class BatchPayload(ABC):
    """A produced batch. After `open()`, the payload holds the batch's memory until the payload is garbage-collected.

    Args:
        header: Identity, size and cost of the batch.
        worker: Id of the worker that produced the batch; -1 if no worker did.
        pid: Id of the process that produced the batch.
        received: `perf_counter_ns` time at which the loader received the batch.
        transport: How the batch was transported: "segment", "inline", "pickle" or "local".
    """

    __slots__ = ("header", "nbytes", "pid", "produce_ns", "received", "samples", "transport", "worker")
    failed: ClassVar[Literal[False]] = False
    empty: ClassVar[Literal[False]] = False
    transfer: NodeTransfer | None = None
    """The transfer of the batch from another machine; None if it was produced on this machine."""

    def __init__(self, header: BatchHeader, worker: int, pid: int, received: int, transport: str) -> None:
        self.header = header
        self.worker = worker
        self.pid = pid
        self.received = received
        self.transport = transport
        (
            _epoch, _number, _segment, nbytes, skeleton_nbytes, samples, fetch_begin, _fetched, collated,
            _fetch_cpu, _collate_cpu, _slowest, _slowest_ns,
        ) = header  # unpacked at once: each attribute of a named tuple takes 35 ns  # fmt: skip
        self.samples = samples
        """Number of samples in the batch."""
        self.nbytes = nbytes + skeleton_nbytes
        """Size of the batch in bytes."""
        self.produce_ns = collated - fetch_begin
        """Time that a worker spent fetching and collating the batch, ns."""

    @property
    def mapping(self) -> Any:
        """The whole segment that contains the opened batch; None if the batch is not in a segment."""
        return None

    @abstractmethod
    def open(self) -> Any:
        """Build the batch on the memory in which it arrived."""

    def deliver(self) -> Any:
        """Build the batch for a consumer that may keep parts: small arrays do not keep the memory of large ones."""
        return self.open()

    @abstractmethod
    def discard(self) -> None:
        """Release the memory of a batch that nobody will open."""


BatchOutcome: TypeAlias = "BatchPayload | WorkerFailure | LoaderFailure | EmptyBatch"
"""The outcome of a dispatched batch. `failed` and `empty` tell them apart."""


class PayloadParts(NamedTuple):
    """The parts of a batch as they came from a worker process, for sending them to another machine."""

    header: bytes
    skeleton: bytes
    inline: bytes | None
    """The arrays of a small batch; None if they are in a segment."""
    segment: Any
    """The segment as a ctypes array, which begins with the batch's arrays; None if they are not in a segment."""


class SegmentPayload(BatchPayload):
    """A batch or chunk from a worker process: in a segment of the worker, or in the frame.

    Args:
        source: The worker that sent the batch.
        body: The frame: header, skeleton, and the arrays of a small batch.
        received: `perf_counter_ns` time at which the batch was received.
    """

    __slots__ = ("_memory", "_segments", "_skeleton")

    def __init__(self, source: PayloadSource, body: Any, received: int) -> None:
        header = unpack_header(body)
        segment = header.segment
        transport = "segment"
        if segment == NO_SEGMENT:
            transport = "inline" if header.nbytes else "pickle"
        super().__init__(header, source.worker, source.pid, received, transport)
        end = HEADER_SIZE + header.skeleton_nbytes
        self._skeleton = body[HEADER_SIZE:end]
        self._segments = source.segments
        self._memory = source.segments.store(memoryview(body)[end:]) if segment == NO_SEGMENT else None

    def open(self) -> Any:
        """Build the batch on the memory in which it arrived, and which it holds until it is garbage-collected."""
        self._borrow()
        return load_object(self._skeleton, self._memory)

    def deliver(self) -> Any:
        """See `BatchPayload`."""
        self._borrow()
        copied = type(self._memory) is bytearray  # so many batches are kept that they are copied
        return load_object(self._skeleton, self._memory, None if copied else self._segments.store)

    def _borrow(self) -> None:
        """Provide the memory of the batch, which it holds until it is garbage-collected."""
        if self._memory is None:
            self._memory = self._segments.view(self.header.segment, self.header.nbytes)
            self._segments.lend(self.header.segment, self._memory)

    @property
    def mapping(self) -> Any:
        """The whole segment that contains the opened batch; None if the batch is not in a segment."""
        lent = self.header.segment != NO_SEGMENT and type(self._memory) is not bytearray
        return self._segments.mapping(self.header.segment) if lent else None

    def parts(self) -> PayloadParts:
        """Return the parts of a batch that has not been opened. The caller must see that the segment is discarded."""
        segment = None if self._memory is not None else self._segments.mapping(self.header.segment)
        inline = None if self._memory is None else bytes(self._memory)
        return PayloadParts(pack_header(*self.header), bytes(self._skeleton), inline, segment)

    def discard(self) -> None:
        """Release the segment: immediately, or (after `open`) when nobody views the batch any more."""
        if self._memory is None:
            self._segments.discard(self.header.segment)


class LocalPayload(BatchPayload):
    """A batch that was produced in this process, by a worker thread or inline.

    Args:
        batch: The batch.
        header: Size and cost of the batch.
        worker: Id of the worker that produced the batch; -1 if no worker did.
    """

    __slots__ = ("_batch",)

    def __init__(self, batch: Any, header: BatchHeader, worker: int) -> None:
        super().__init__(header, worker, os.getpid(), header.collated, "local")
        self._batch = batch

    def open(self) -> Any:
        """Return the batch."""
        return self._batch

    def discard(self) -> None:
        """Do nothing: there is no memory to release."""


class ChunkPart(NamedTuple):
    """A chunk that has samples, as a part of its batch."""

    start: int
    """Position of its first sample in the batch."""
    payload: BatchPayload


class JoinedPayload(BatchPayload):
    """A batch of chunks that several workers produced. Its `worker` is the one that finished its chunk last.

    Args:
        parts: The chunks that have samples.
        join: Joins the built chunks into one batch.
        calls_user_code: Whether `join` calls a function of the user.
    """

    __slots__ = ("_batch", "_chunks", "_join", "calls_user_code", "transfer")

    def __init__(self, parts: Sequence[ChunkPart], join: Callable[[list[Any]], Any], *, calls_user_code: bool) -> None:
        self.calls_user_code = calls_user_code
        self._chunks = [part.payload for part in parts]
        self._join = join
        self._batch: Any = None
        headers = [chunk.header for chunk in self._chunks]
        longest = max(parts, key=lambda part: part.payload.header.slowest_ns)
        slowest = longest.payload.header
        header = headers[0]._replace(
            nbytes=sum(header.nbytes for header in headers),
            skeleton_nbytes=sum(header.skeleton_nbytes for header in headers),
            samples=sum(header.samples for header in headers),
            fetch_begin=min(header.fetch_begin for header in headers),
            fetched=max(header.fetched for header in headers),
            collated=max(header.collated for header in headers),
            fetch_cpu=sum(header.fetch_cpu for header in headers),
            collate_cpu=sum(header.collate_cpu for header in headers),
            slowest=longest.start + slowest.slowest if slowest.slowest >= 0 else -1,
            slowest_ns=slowest.slowest_ns,
        )
        last = max(self._chunks, key=lambda chunk: chunk.header.collated)
        received = max(chunk.received for chunk in self._chunks)
        super().__init__(header, last.worker, last.pid, received, last.transport)
        arrived = max(self._chunks, key=lambda chunk: chunk.received)
        self.transfer = arrived.transfer  # of the chunk that arrived last

    def open(self) -> Any:
        """Build the batch from its chunks, with one copy. Later calls return the same batch."""
        if self._chunks:
            self._batch = self._join([chunk.open() for chunk in self._chunks])
            self._chunks = []
        return self._batch

    def discard(self) -> None:
        """Release the memory of the chunks."""
        for chunk in self._chunks:
            chunk.discard()
