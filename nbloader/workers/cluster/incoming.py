"""Batches that arrive from nodes: their bytes are copied once, as they arrive, into segments of the notebook's process.

    BatchBegin -> IncomingBatches.begin() -> IncomingBatch.write() for each piece -> finish() -> ReceivedPayload

Only the notebook owns these segments. It lends each segment with its batch, and reuses the segment when no array of the
batch is in use any more. Like the segments of local workers, they are writable and can be pinned.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np

from nbloader.batch.payload import BatchHeader, PayloadSource, SegmentPayload, pack_header, unpack_header
from nbloader.events import NodeTransfer
from nbloader.shm.segment import NO_SEGMENT, Block, FreeSegments, SegmentReader, anonymous_file, segment_size
from nbloader.workers.cluster.clock import ClockOffset
from nbloader.workers.cluster.protocol import BatchBegin


class IncomingBatches:
    """The segments of one pool. This class is thread-safe: links use it from their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reader = SegmentReader()
        """Lends segments to the consumer."""
        self._free = FreeSegments()
        self._sizes: dict[int, int] = {}
        self._created = 0

    def begin(self, nbytes: int) -> Block:
        """Allocate a segment for a batch.

        Raises:
            MemoryError: Not enough memory is left.
            OSError: The segment cannot be mapped.
        """
        with self._lock:
            self._collect()
            size = segment_size(nbytes)
            number = self._free.take(size)
            self._forget(self._free.unused(time.monotonic()))
            if number is None:
                number = self._create(size)
            return Block(number, self.reader.mapping(number))

    def abort(self, block: Block) -> None:
        """Discard a segment because the rest of its batch will not arrive. Nothing else writes to the segment."""
        self.reader.discard(block.number)

    def rest(self) -> None:
        """Release memory because the pool is idle, and keep one segment."""
        with self._lock:
            self._collect()
            self._forget(self._free.all_but_one())

    def _create(self, size: int) -> int:
        opened: list[int] = []
        try:
            self.reader.add(self._created, anonymous_file(size, opened))
        finally:
            for fd in opened:
                os.close(fd)
        number, self._created = self._created, self._created + 1
        self._sizes[number] = size
        return number

    def _collect(self) -> None:
        """Reuse the segments that nobody views any more, except for those that a forked process may view."""
        self._forget(self.reader.take_inherited())
        for number in self.reader.take_returned():
            self._free.put(number, self._sizes[number], time.monotonic())

    def _forget(self, numbers: list[int]) -> None:
        for number in numbers:
            self.reader.forget(number)
            del self._sizes[number]


class ReceivedPayload(SegmentPayload):
    """A batch that was copied from another machine into a segment of this process."""

    __slots__ = ("transfer",)

    def __init__(self, source: PayloadSource, body: Any, received: int, transfer: NodeTransfer) -> None:
        super().__init__(source, body, received)
        self.transfer = transfer


class IncomingBatch:
    """A partially received batch.

    Args:
        begin: The report with which the batch begins.
        sent: When the node sent the beginning, by the node's clock, ns.
        block: The memory for the bytes that follow; None if no bytes follow, or to ignore them.
        batches: The segments that the memory comes from.
    """

    def __init__(self, begin: BatchBegin, sent: int, block: Block | None, batches: IncomingBatches) -> None:
        self.begin = begin
        self.header: BatchHeader = unpack_header(begin.header)
        self.left = bytes_to_follow(begin)
        """Number of bytes that have not arrived yet."""
        self._sent = sent
        self._batches = batches
        self._block = block
        self._written = 0

    @property
    def ignored(self) -> bool:
        """Whether the bytes of the batch are ignored because there is no memory for them."""
        return self._block is None and bytes_to_follow(self.begin) > 0

    def write(self, piece: Any) -> None:
        """Copy the next bytes into the memory of the batch."""
        self.left -= piece.nbytes
        if self._block is not None:
            target = np.frombuffer(self._block.memory, np.uint8, piece.nbytes, self._written)
            np.copyto(target, piece)  # releases the interpreter lock
        self._written += piece.nbytes

    def drop(self) -> None:
        """Drop the batch: release its memory, and ignore the bytes that follow."""
        if self._block is not None:
            self._batches.abort(self._block)
            self._block = None

    def finish(self, source: PayloadSource, node: str, clock: ClockOffset, received: int) -> ReceivedPayload:
        """Return the payload of the batch, after all bytes have arrived.

        Args:
            source: The worker.
            node: Name of the worker's node.
            clock: The offset of the clock of the worker's node.
            received: The current time, `time.perf_counter_ns()`.
        """
        begin, header = self.begin, self.header
        # The clock offset is accurate to only about 0.1 ms: ensure that no batch seems received before it was collated.
        shift = min(-clock.offset, received - header.collated)
        here = header._replace(
            segment=NO_SEGMENT if self._block is None else self._block.number,
            fetch_begin=header.fetch_begin + shift,
            fetched=header.fetched + shift,
            collated=header.collated + shift,
        )
        transfer = NodeTransfer(
            node=node,
            begin=min(max(clock.here(self._sent), here.collated), received),
            end=received,
            nbytes=self._written + len(begin.skeleton) + len(begin.memory or b""),
        )
        body = pack_header(*here) + begin.skeleton + (begin.memory or b"")
        return ReceivedPayload(source, body, received, transfer)


def bytes_to_follow(begin: BatchBegin) -> int:
    """Return the number of bytes of a batch that follow its `BatchBegin`."""
    header = unpack_header(begin.header)
    return 0 if header.segment == NO_SEGMENT else header.nbytes
