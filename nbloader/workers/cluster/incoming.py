"""Batches that arrive from nodes: copied into segments of the notebook's process, once, as the bytes come.

    BatchBegin -> IncomingBatches.begin() -> write() for each piece -> finish() -> SegmentPayload

The segments are those of an `ArenaWriter` without workers: the notebook alone owns them, lends each with its batch, and
uses it again when nobody views the batch any more. They are writable and can be pinned, as those of local workers.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from nbloader.batch.header import BatchHeader, pack_header, unpack_header
from nbloader.batch.payload import PayloadSource, SegmentPayload
from nbloader.events import NodeTransfer
from nbloader.shm.arena import ArenaWriter
from nbloader.shm.segment import NO_SEGMENT, Block, SegmentReader
from nbloader.workers.cluster.clock import ClockOffset
from nbloader.workers.cluster.protocol import BatchBegin


class IncomingBatches:
    """The segments of one pool. Links use it from their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writer = ArenaWriter(frozenset, lambda _number, _fd: frozenset(), lambda _number, _uids: None)

    @property
    def reader(self) -> SegmentReader:
        """The end that lends segments to the consumer."""
        return self._writer.reader

    def begin(self, nbytes: int) -> Block:
        """A segment for a batch.

        Raises:
            MemoryError: There is not that much memory left.
            OSError: It cannot be mapped.
        """
        with self._lock:
            return self._writer.begin(nbytes)

    def abort(self, block: Block) -> None:
        """The rest of the batch will not come. Nobody else writes to the segment."""
        self._writer.reader.discard(block.number)

    def rest(self) -> None:
        """There is nothing to do for now: keep one segment of each size."""
        with self._lock:
            self._writer.rest()


class ReceivedPayload(SegmentPayload):
    """A batch that was copied from another machine into a segment of this process."""

    __slots__ = ("transfer",)

    def __init__(self, source: PayloadSource, body: Any, received: int, transfer: NodeTransfer) -> None:
        super().__init__(source, body, received)
        self.transfer = transfer


class IncomingBatch:
    """A batch of which a part has arrived.

    Args:
        begin: Its beginning.
        sent: When its node sent that, by the node's clock, ns.
        block: Its memory, if it has any; None to ignore the bytes that follow.
        batches: Where the memory comes from.
    """

    def __init__(self, begin: BatchBegin, sent: int, block: Block | None, batches: IncomingBatches) -> None:
        self.begin = begin
        self.header: BatchHeader = unpack_header(begin.header)
        self.left = bytes_to_follow(begin)
        """Bytes that have not arrived."""
        self._sent = sent
        self._batches = batches
        self._block = block
        self._written = 0

    @property
    def ignored(self) -> bool:
        """Whether there is no memory for its bytes."""
        return self._block is None and bytes_to_follow(self.begin) > 0

    def write(self, piece: Any) -> None:
        """Copy the next bytes."""
        self.left -= piece.nbytes
        if self._block is not None:
            target = np.frombuffer(self._block.memory, np.uint8, piece.nbytes, self._written)
            np.copyto(target, piece)  # without the interpreter lock
        self._written += piece.nbytes

    def drop(self) -> None:
        """Nobody wants it: ignore the bytes that follow."""
        if self._block is not None:
            self._batches.abort(self._block)
            self._block = None

    def finish(self, source: PayloadSource, node: str, clock: ClockOffset, received: int) -> ReceivedPayload:
        """All bytes have arrived.

        Args:
            source: The worker.
            node: Name of its node.
            clock: The clock of its node.
            received: Now, perf_counter ns.
        """
        begin, header = self.begin, self.header
        # The offset is known to some 0.1 ms: a batch is not collated after it was received.
        shift = min(-clock.offset, received - header.collate_end)
        here = header._replace(
            segment=NO_SEGMENT if self._block is None else self._block.number,
            fetch_begin=header.fetch_begin + shift,
            fetch_end=header.fetch_end + shift,
            collate_end=header.collate_end + shift,
        )
        collated = here.collate_end
        transfer = NodeTransfer(
            node,
            min(max(clock.here(self._sent), collated), received),
            received,
            self._written + len(begin.extras) + len(begin.memory or b""),
        )
        body = pack_header(*here) + begin.extras + (begin.memory or b"")
        return ReceivedPayload(source, body, received, transfer)


def bytes_to_follow(begin: BatchBegin) -> int:
    """Bytes of a batch that are not in its beginning."""
    header = unpack_header(begin.header)
    return 0 if header.segment == NO_SEGMENT else header.nbytes
