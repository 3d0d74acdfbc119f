"""Writes the chunks of a batch (`chunk_size`) side by side into one block of memory, so that no copy must join them.

Worker processes write into an arena of the notebook's process:

    notebook: ArenaAllocator.allocate() -> SegmentArena -> a `ChunkSlot` is sent with each chunk: arena, layout, rows
    worker:   ChunkWriter.write(samples, slot) -> its rows of every array; if it cannot, it sends the chunk separately
    notebook: all chunks received? -> SegmentArena.open(): arrays on the whole arena; else a copy joins the chunks

The layout is learned from earlier chunks, so the first batch is joined by a copy. No message can stop a worker from
writing. Therefore:

- A chunk that is dispatched a second time gets no slot: the worker that had it before may still write there.
- The arena of such a batch, or of a batch that is no longer needed, is never reused.

Worker threads share all memory: the first chunk that is ready determines the layout of the batch's `MemoryArena` and
allocates its memory. A thread cannot be stopped from writing either, so each chunk is written there only once. If a
chunk is produced again (its thread was abandoned, or another thread took it over), it gets separate memory, and the
batch is joined by a copy.
"""

from __future__ import annotations

import logging
import math
import pickle
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbloader.batch.collate import plan_batch
from nbloader.batch.layout_cache import CachedLayout, compile_fill
from nbloader.batch.pytree import ArrayNode, LayoutNode, map_arrays
from nbloader.batch.rebuild import builder, delivered_builder
from nbloader.shm.arena import ArenaMaps, ArenaWriter
from nbloader.shm.segment import Block, aligned

if TYPE_CHECKING:  # worker processes use this module without them
    from nbloader.batch.payload import BatchPayload, Layout
    from nbloader.batch.task import Task

log = logging.getLogger(__name__)

ARENA_FROM = 1 << 16
"""Minimum size of a batch whose chunks are written side by side, bytes; for a smaller batch, a copy is cheaper."""
MAX_CACHED = 64
"""Maximum number of chunk positions for which a worker caches the compiled function that writes a chunk there."""


class PlacedRows(NamedTuple):
    """Location of some samples of a batch in the batch's memory."""

    layout: LayoutNode
    """Layout of these samples in the memory of the batch."""
    nbytes: int
    """Size of the whole batch, bytes."""


def place_rows(layout: LayoutNode, rows: int, size: int, start: int) -> PlacedRows:
    """Compute the location of some samples in the memory of their batch.

    Args:
        layout: The layout of such samples, for any number of them.
        rows: Number of samples to place.
        size: Number of samples in the batch.
        start: Position of the first of these samples in the batch.
    """
    end = 0

    def place(node: ArrayNode) -> ArrayNode:
        nonlocal end
        row = np.dtype(node.dtype).itemsize * math.prod(node.shape[1:])
        offset, end = end + start * row, end + aligned(row * size)
        return ArrayNode(offset, (rows, *node.shape[1:]), node.dtype, node.torch_dtype)

    return PlacedRows(map_arrays(layout, place), end)


class WrittenChunk(NamedTuple):
    """A chunk that was written into the arena of its batch."""

    extras: list[Any]
    """The parts that are not arrays."""
    nbytes: int
    """Size of its arrays, bytes."""


class RowWriter:
    """Writes the rows of chunks that share one layout.

    Args:
        layout: The layout, for any number of samples.
    """

    def __init__(self, layout: LayoutNode) -> None:
        self.layout = place_rows(layout, 1, 1, 0).layout
        """The layout of one sample."""
        self._cache: dict[tuple[int, int, int], CachedLayout] = {}  # by start, batch size and chunk size

    def write(self, samples: list[Any], memory: Any, start: int, size: int) -> WrittenChunk | None:
        """Write a chunk into its rows.

        Args:
            samples: The samples of the chunk.
            memory: The memory of the batch.
            start: Position of the first sample in the batch.
            size: Number of samples in the batch.

        Returns:
            The written chunk; None if the samples have a different layout.

        Raises:
            Exception: The samples cannot be collated; see `Plan`.
        """
        rows = len(samples)
        key = start, size, rows
        cached = self._cache.get(key)
        if cached is not None:
            extras: list[Any] = []
            try:
                cached.fill(samples, memory, extras)
            except Exception:  # samples may differ in any way; the plan raises the right error
                log.debug("a chunk of %d samples differs from the cached layout", rows, exc_info=True)
                del self._cache[key]
            else:
                return WrittenChunk(extras, cached.nbytes)
        plan = plan_batch(samples)
        if plan is None or plan.tree != place_rows(self.layout, rows, rows, 0).layout:
            return None
        target = place_rows(self.layout, rows, size, start).layout
        plan.move(target)
        plan.fill(memory)
        fill = compile_fill(target, samples)
        if fill is not None:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[key] = CachedLayout(fill, plan.nbytes, None)
        return WrittenChunk(plan.extras, plan.nbytes)


def join_extras(chunks: Iterable[BatchPayload]) -> list[Any]:
    """Join the extras of all chunks into the extras of the batch."""
    columns = zip(*[chunk.extras for chunk in chunks], strict=True)
    return [type(column[0])([value for part in column for value in part]) for column in columns]


# ---- worker processes -----------------------------------------------------------------------------------------------


class ChunkSlot(NamedTuple):
    """Where a worker process writes a chunk; sent in place of the chunk's indices."""

    indices: Any
    """The indices, as `pack_indices` returns them while the slot is sent."""
    arena: int
    """Number of the arena."""
    layout: int
    """Number of the layout."""
    start: int
    """Position of the first sample in the batch."""
    size: int
    """Number of samples in the batch."""


class ChunkWriter:
    """Writes chunks into arenas. Used in worker processes."""

    def __init__(self) -> None:
        self.arenas = ArenaMaps()
        self._rows: dict[int, RowWriter] = {}

    def learn(self, number: int, layout: bytes) -> None:
        """Set the layout of the next chunks.

        Args:
            number: Number of the layout.
            layout: The pickled layout.
        """
        self._rows = {number: RowWriter(pickle.loads(layout))}

    def write(self, samples: list[Any], slot: ChunkSlot) -> WrittenChunk | None:
        """Write a chunk into its slot. See `RowWriter.write`."""
        memory, rows = self.arenas.memory(slot.arena), self._rows.get(slot.layout)
        if memory is None or rows is None or len(samples) != len(slot.indices):
            return None
        return rows.write(samples, memory, slot.start, slot.size)


class ArenaLayout(NamedTuple):
    """The layout of the batches in arenas."""

    number: int
    tree: LayoutNode
    """The layout of one sample."""
    pickled: bytes
    """A layout of any number of samples, for workers."""


class SegmentArena:
    """The arena of one batch that worker processes write. Used in the notebook's process.

    Args:
        writer: The loader's arenas.
        block: The block of the arena.
        layout: The layout of the batch.
        size: Number of samples in the batch.
        output: "torch" or "numpy".
    """

    def __init__(self, writer: ArenaWriter, block: Block, layout: ArenaLayout, size: int, output: str) -> None:
        self._writer = writer
        self.block = block
        self.layout = layout
        self.size = size
        self._output = output
        self._given: set[int] = set()  # jobs of the chunks that were dispatched
        self._memory: Any = None
        self._abort = weakref.finalize(self, writer.abort, block)
        self._abort.atexit = False

    @property
    def mapping(self) -> Any:
        """The whole segment once the batch has been opened on it, otherwise None."""
        lent = self._memory is not None and not isinstance(self._memory, bytearray)
        return self._writer.reader.mapping(self.block.number) if lent else None

    def give_slot(self, chunk: Task, start: int, worker: int) -> ChunkSlot | None:
        """Return the slot of a chunk that is being dispatched; None if the chunk must be sent separately.

        Args:
            chunk: The chunk.
            start: Position of its first sample in the batch.
            worker: The uid of its worker.
        """
        if chunk.job in self._given:
            self._writer.poison(self.block)
            return None
        self._given.add(chunk.job)
        if not self._writer.has(worker, self.block):
            return None
        return ChunkSlot(chunk.indices, self.block.number, self.layout.number, start, self.size)

    def open(self, chunks: Sequence[BatchPayload]) -> Any:
        """Build the batch from its chunks, all of which have arrived."""
        layout, nbytes = place_rows(self.layout.tree, self.size, self.size, 0)
        return self._build(layout, nbytes, join_extras(chunks))

    def deliver(self, chunks: Sequence[BatchPayload]) -> Any:
        """Build the batch from its chunks; see `BatchPayload.deliver`."""
        layout, nbytes = place_rows(self.layout.tree, self.size, self.size, 0)
        memory = self._lend(nbytes)
        build = delivered_builder(layout, self._output, self._writer.reader.store, shared=type(memory) is not bytearray)
        return build(memory, join_extras(chunks))

    def read(self, chunk: BatchPayload, start: int) -> Any:
        """Build one chunk that has arrived."""
        layout, nbytes = place_rows(self.layout.tree, chunk.samples, self.size, start)
        return self._build(layout, nbytes, chunk.extras)

    def _build(self, layout: LayoutNode, nbytes: int, extras: list[Any]) -> Any:
        memory = self._lend(nbytes)
        return builder(layout, self._output, shared=type(memory) is not bytearray)(memory, extras)

    def give_back(self) -> None:
        """Return the arena if all chunks have arrived and none will be read. If it was read, its reader returns it."""
        if self._commit():
            self._writer.reader.discard(self.block.number)

    def _lend(self, nbytes: int) -> Any:
        if self._memory is None:
            self._commit()
            self._memory = self._writer.reader.view(self.block.number, nbytes)
            self._writer.reader.lend(self.block.number, self._memory)
        return self._memory

    def _commit(self) -> bool:
        """Commit the arena after all chunks have arrived. Returns whether this is the first call."""
        if self._abort.detach() is None:
            return False
        self._writer.commit(self.block)
        return True


class ArenaAllocator:
    """Allocates arenas for batches that worker processes write. Used in the notebook's process.

    Args:
        output: "torch" or "numpy".
        writer: The loader's arenas.
    """

    def __init__(self, output: str, writer: ArenaWriter) -> None:
        self.output = output
        self.writer = writer
        self._layout: ArenaLayout | None = None
        self._last: Layout | None = None

    def learn(self, chunk: Any) -> None:
        """Use the layout of a chunk that was sent separately for the next batches.

        Args:
            chunk: The `SegmentPayload` of the chunk.
        """
        layout = chunk.layout
        if layout is None or layout is self._last:
            return
        self._last = layout
        pickled = bytes(layout.tree)
        tree = place_rows(pickle.loads(pickled), 1, 1, 0).layout
        if self._layout is None or tree != self._layout.tree:
            self._layout = ArenaLayout(0 if self._layout is None else self._layout.number + 1, tree, pickled)

    def allocate(self, size: int) -> SegmentArena | None:
        """Allocate an arena for a batch before its first chunk is dispatched; None if a copy will join the chunks.

        Args:
            size: Number of samples in the batch.
        """
        if self._layout is None:
            return None
        nbytes = place_rows(self._layout.tree, size, size, 0).nbytes
        if nbytes < ARENA_FROM:
            return None
        try:
            block = self.writer.begin(nbytes)
        except (MemoryError, OSError):
            log.debug("no arena of %d bytes: a copy joins the batch", nbytes, exc_info=True)
            return None
        return SegmentArena(self.writer, block, self._layout, size, self.output)

    def slot(self, chunk: Task, worker: int) -> tuple[ChunkSlot, ArenaLayout] | None:
        """Return the slot and the layout of a chunk that is dispatched now; None if the chunk must be sent separately.

        Args:
            chunk: The chunk.
            worker: The uid of its worker.
        """
        batch = chunk.parent
        if batch is None or not isinstance(arena := batch.arena, SegmentArena):
            return None
        slot = arena.give_slot(chunk, batch.start(chunk), worker)
        return None if slot is None else (slot, arena.layout)


# ---- worker threads ----------------------------------------------------------------------------


def provide_arena(task: Task, output: str) -> None:
    """Give the batch of a chunk an arena when its first chunk is dispatched.

    Args:
        task: A chunk, or a whole batch, which needs no arena.
        output: "torch" or "numpy".
    """
    batch = task.parent
    if batch is not None and not batch.started:
        batch.started = True
        batch.arena = MemoryArena(len(batch.task.indices), batch.size, batch.chunks[0].job, output)


class MemoryArena:
    """The memory of one batch that is written by threads of this process.

    Args:
        size: Number of samples in the batch.
        chunk_size: Number of samples per chunk.
        first: Job number of the first chunk.
        output: "torch" or "numpy".
    """

    mapping = None

    def __init__(self, size: int, chunk_size: int, first: int, output: str) -> None:
        self.size = size
        self._chunk_size = chunk_size
        self._first = first
        self._output = output
        self._lock = threading.Lock()
        self._layout: LayoutNode | None = None
        self._memory = bytearray()
        self._begun: set[int] = set()

    def start(self, chunk: Task) -> int:
        """Position of the first sample of a chunk in the batch."""
        return (chunk.job - self._first) * self._chunk_size

    def begin(self, chunk: Task, layout: LayoutNode) -> bytearray | None:
        """Return the memory of the batch, to write a chunk to; None if the chunk needs separate memory.

        Args:
            chunk: The chunk.
            layout: The layout of one sample.
        """
        nbytes = place_rows(layout, self.size, self.size, 0).nbytes
        if nbytes < ARENA_FROM:
            return None
        with self._lock:
            if self._layout is None:
                self._layout, self._memory = layout, bytearray(nbytes)
            if self._layout != layout or chunk.job in self._begun:
                return None
            self._begun.add(chunk.job)
        return self._memory

    def open(self, chunks: Sequence[BatchPayload]) -> Any:
        """Build the batch from its chunks, all of which have arrived."""
        return builder(self._rows(self.size, 0), self._output)(self._memory, join_extras(chunks))

    def deliver(self, chunks: Sequence[BatchPayload]) -> Any:
        """Build the batch from its chunks; see `BatchPayload.deliver`."""
        return delivered_builder(self._rows(self.size, 0), self._output, bytearray)(self._memory, join_extras(chunks))

    def read(self, chunk: BatchPayload, start: int) -> Any:
        """Build one chunk that has arrived."""
        return builder(self._rows(chunk.samples, start), self._output)(self._memory, chunk.extras)

    def give_back(self) -> None:
        """No-op: the memory is freed with the last array on it."""

    def _rows(self, rows: int, start: int) -> LayoutNode:
        if self._layout is None:
            raise RuntimeError("no chunk was written to this arena")
        return place_rows(self._layout, rows, self.size, start).layout


class ThreadChunkWriter:
    """Writes the chunks of one thread into `MemoryArena`s."""

    def __init__(self) -> None:
        self._rows: RowWriter | None = None

    def write(self, samples: list[Any], chunk: Task, arena: MemoryArena) -> WrittenChunk | None:
        """Write a chunk next to the chunks of other threads.

        Returns:
            The written chunk; None if the chunk must be collated separately.

        Raises:
            Exception: The samples cannot be collated; see `Plan`.
        """
        if len(samples) != len(chunk.indices):
            return None
        if self._rows is None:
            plan = plan_batch(samples)
            if plan is None:
                return None
            self._rows = RowWriter(plan.tree)
        memory = arena.begin(chunk, self._rows.layout)
        if memory is None:
            return None
        written = self._rows.write(samples, memory, arena.start(chunk), arena.size)
        if written is None:
            self._rows = None  # the layout has changed
        return written
