"""Batches that several workers write side by side into one segment (`chunk_size`), so that nobody joins them by a copy.

    notebook: Board.place(whole) -> a Place -> each piece goes out as `Placed`: which segment, laid out how, which rows
    worker:   Beside.write(samples, placed) -> its rows of every array; or it cannot, and sends the piece by itself
    notebook: all pieces there? -> Place.open(): arrays on the whole segment; else they are joined by a copy

The notebook makes these segments, and every worker maps them. How a batch is laid out is what the last pieces were
like, so the first batch of all is joined by a copy. Nobody can be stopped from writing by a message, and so

- a piece that is given out for a second time is never placed: a worker that was given it before may still write there;
- the segment of such a batch, or of one that nobody waits for any more, is never used again.
"""

from __future__ import annotations

import collections
import math
import os
import pickle
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbloader.batch.collate import NotPlannedError, Plan
from nbloader.batch.layout_cache import Fill, compile_fill
from nbloader.batch.pytree import ArrayNode, LayoutNode, map_arrays
from nbloader.batch.rebuild import builder
from nbloader.shm.segment import FreeSegments, SegmentMaps, aligned, anonymous_file, mapped, segment_size

if TYPE_CHECKING:
    from nbloader.batch.payload import BatchPayload, Layout
    from nbloader.batch.task import ChunkedBatch, Task

PLACED_FROM = 1 << 16
"""Batches from this size on are written side by side, bytes; a copy of a smaller one costs less than that."""
MAX_FILLS = 64
"""Ways to write rows that a worker remembers."""


class Placed(NamedTuple):
    """In the place of the indices of a piece: where its worker shall write it."""

    indices: Any
    segment: int
    layout: int
    start: int
    """Position of its first sample in the batch."""
    size: int
    """Samples of the batch."""


def relaid(tree: LayoutNode, rows: int, size: int, start: int) -> tuple[LayoutNode, int]:
    """Where some samples of a batch lie, among all of them.

    Args:
        tree: The layout of any number of such samples.
        rows: How many.
        size: Samples of the batch.
        start: Position of the first of them in the batch.

    Returns:
        The layout, and the size of the whole batch in bytes.
    """
    end = 0

    def place(node: ArrayNode) -> ArrayNode:
        nonlocal end
        row = np.dtype(node.dtype).itemsize * math.prod(node.shape[1:])
        offset, end = end + start * row, end + aligned(row * size)
        return ArrayNode(offset, (rows, *node.shape[1:]), node.dtype, node.torch_dtype)

    return map_arrays(tree, place), end


# ---- the worker's side --------------------------------------------------------------------------------------------


class Rows:
    """Writes pieces of batches that are all laid out in one way, each at its rows.

    Args:
        tree: The layout of any number of samples.
    """

    def __init__(self, tree: LayoutNode) -> None:
        self.tree = relaid(tree, 1, 1, 0)[0]
        """The layout of one sample."""
        self._fills: dict[tuple[int, ...], Fill] = {}

    def write(self, samples: list[Any], memory: Any, start: int, size: int) -> tuple[list[Any], int] | None:
        """Write a piece where it belongs.

        Args:
            samples: Its samples.
            memory: That of the batch.
            start: Position of the first of them in the batch.
            size: Samples of the batch.

        Returns:
            What of it is no array, and its size in bytes; None where it is laid out in another way.

        Raises:
            Exception: As `Plan`: the samples do not make a batch.
        """
        rows = len(samples)
        key = start, size, rows
        fill = self._fills.get(key)
        if fill is not None:
            extras: list[Any] = []
            try:
                fill(samples, memory, extras)
            except Exception:  # noqa: BLE001 - whatever is wrong, the plan says it
                del self._fills[key]
            else:
                return extras, relaid(self.tree, rows, rows, 0)[1]
        try:
            plan = Plan(samples)
        except NotPlannedError:
            return None
        if plan.tree != relaid(self.tree, rows, rows, 0)[0]:
            return None
        target, _nbytes = relaid(self.tree, rows, size, start)
        plan.move(target)
        plan.fill(memory)
        fill = compile_fill(target, samples)
        if fill is not None:
            if len(self._fills) >= MAX_FILLS:
                self._fills.clear()
            self._fills[key] = fill
        return plan.extras, plan.nbytes


class Beside:
    """The segments that a worker process writes its pieces into, beside others."""

    def __init__(self) -> None:
        self._maps: dict[int, Any] = {}
        self._rows: dict[int, Rows] = {}

    def add(self, number: int, fd: int) -> None:
        """A segment; takes the descriptor."""
        try:
            self._maps[number] = mapped(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def forget(self, number: int) -> None:
        """This segment is not used any more."""
        del self._maps[number]

    def learn(self, layout: int, tree: bytes) -> None:
        """How batches are laid out."""
        self._rows = {layout: Rows(pickle.loads(tree))}

    def write(self, samples: list[Any], placed: Placed) -> tuple[list[Any], int] | None:
        """Write a piece where it belongs: see `Rows.write`."""
        memory, rows = self._maps.get(placed.segment), self._rows.get(placed.layout)
        if memory is None or rows is None or len(samples) != len(placed.indices):
            return None
        return rows.write(samples, memory, placed.start, placed.size)


# ---- the notebook's side ------------------------------------------------------------------------------------------


def joined_extras(parcels: Iterable[Any]) -> list[Any]:
    """What of all pieces of a batch is no array."""
    columns = zip(*[parcel.extras for parcel in parcels], strict=True)
    return [type(column[0])([value for part in column for value in part]) for column in columns]


class Place:
    """Where one batch is written.

    Args:
        board: Whose segment it is.
        number: Of the segment.
        layout: How the batch is laid out.
        size: Samples of it.
    """

    def __init__(self, board: Board, number: int, layout: Known, size: int) -> None:
        self._board = board
        self.number = number
        self.layout = layout
        self.size = size
        self.given: set[int] = set()
        """The pieces that were given to a worker."""
        self._memory: Any = None
        self._net = weakref.finalize(self, board.lost.append, number)
        self._net.atexit = False

    @property
    def mapping(self) -> Any:
        """The whole segment, once the batch is open on it; None else."""
        lent = self._memory is not None and not isinstance(self._memory, bytearray)
        return self._board.maps.mapping(self.number) if lent else None

    def taint(self) -> None:
        """Somebody may still write to it who should not."""
        self._board.tainted.add(self.number)

    def open(self, parcels: Iterable[BatchPayload]) -> Any:
        """The batch, of pieces that all lie here."""
        tree, nbytes = relaid(self.layout.tree, self.size, self.size, 0)
        return builder(tree, self._board.output)(self._lend(nbytes), joined_extras(parcels))

    def read(self, parcel: BatchPayload, start: int) -> Any:
        """One piece that lies here."""
        tree, nbytes = relaid(self.layout.tree, parcel.samples, self.size, start)
        return builder(tree, self._board.output)(self._lend(nbytes), parcel.extras)

    def _lend(self, nbytes: int) -> Any:
        if self._memory is None:
            self._net.detach()
            self._memory = self._board.maps.lend(self.number, nbytes)
        return self._memory

    def give_back(self) -> None:
        """Nobody reads here, and all pieces have come. Once it was opened it goes back when nobody holds it."""
        if self._net.detach() is not None:
            self._board.maps.discard(self.number)


class Known(NamedTuple):
    """How batches are laid out."""

    number: int
    tree: LayoutNode
    """Of one sample."""
    pickled: bytes
    """A layout of any number of samples, for workers."""


class Board:
    """The segments for batches that several workers write.

    Args:
        output: "torch" or "numpy".
        send: Sends a segment (number, descriptor) to all workers; gives the unique numbers of those who have it.
        drop: Has these workers forget a segment: (number, unique numbers).
    """

    def __init__(
        self, output: str, send: Callable[[int, int], frozenset[int]], drop: Callable[[int, frozenset[int]], object]
    ) -> None:
        self.output = output
        self.maps = SegmentMaps()
        self.tainted: set[int] = set()
        self.lost: collections.deque[int] = collections.deque()
        """Segments whose batch nobody waits for any more, while workers may still write it."""
        self._send = send
        self._drop = drop
        self._made = 0
        self._free = FreeSegments(time.monotonic())
        self._sizes: dict[int, int] = {}
        self._holders: dict[int, frozenset[int]] = {}
        self._layout: Known | None = None
        self._seen: Layout | None = None

    def learn(self, parcel: Any) -> None:
        """A piece has come by itself: the next batches will be laid out as it is."""
        layout = parcel.layout
        if layout is None or layout is self._seen:
            return
        self._seen = layout
        pickled = bytes(layout.tree)
        tree, _nbytes = relaid(pickle.loads(pickled), 1, 1, 0)
        if self._layout is None or tree != self._layout.tree:
            self._layout = Known(0 if self._layout is None else self._layout.number + 1, tree, pickled)

    def place(self, whole: ChunkedBatch[Any], workers: frozenset[int]) -> Place | None:
        """A place for a batch of which no piece was given out yet; None where it shall be joined by a copy.

        Args:
            whole: The batch.
            workers: Those that run now.
        """
        if self._layout is None:
            return None
        size = len(whole.task.indices)
        _tree, nbytes = relaid(self._layout.tree, size, size, 0)
        if nbytes < PLACED_FROM:
            return None
        try:
            number = self._take(segment_size(nbytes), workers)
        except (MemoryError, OSError):
            return None
        return Place(self, number, self._layout, size)

    def placed(self, task: Task, worker: int) -> tuple[Placed, Known] | None:
        """Where a worker shall write a piece; None where it cannot, or should not.

        Args:
            task: The piece.
            worker: The unique number of the worker.
        """
        whole = task.whole
        if whole is None or whole.place is None:
            return None
        place: Place = whole.place
        if task.job in place.given:
            place.taint()
            return None
        place.given.add(task.job)
        if worker not in self._holders.get(place.number, ()):
            return None
        piece = Placed(task.indices, place.number, place.layout.number, whole.start(task), place.size)
        return piece, place.layout

    def _take(self, size: int, workers: frozenset[int]) -> int:
        self._collect(workers)
        free = self._free.take(size)
        for unused in self._free.unused(time.monotonic()):
            self._forget(unused)
        if free is not None:
            return free
        fd = anonymous_file(size)
        number, self._made = self._made, self._made + 1
        try:
            holders = self._send(number, fd)
        except BaseException:
            os.close(fd)
            raise
        try:
            self.maps.add(number, fd)
        except BaseException:
            self._drop(number, holders)
            raise
        self._holders[number] = holders
        self._sizes[number] = size
        return number

    def _collect(self, workers: frozenset[int]) -> None:
        """See what came back: what all workers have and nobody else writes to can be used again."""
        while self.lost:
            number = self.lost.popleft()
            self.tainted.add(number)
            self.maps.discard(number)
        for number in self.maps.take_returned():
            if number in self.tainted or not workers <= self._holders[number]:
                self._forget(number)
            else:
                self._free.put(number, self._sizes[number])

    def rest(self, workers: frozenset[int]) -> None:
        """Nothing is to do for now: keep one segment of each size."""
        self._collect(workers)
        for number in self._free.all_but(1):
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._drop(number, self._holders.pop(number))
        self.maps.forget(number)
        self.tainted.discard(number)
        del self._sizes[number]
