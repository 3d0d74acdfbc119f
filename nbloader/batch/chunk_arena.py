"""Batches that several threads write side by side into one block of memory (`chunk_size`); placing.py is for processes.

Threads share all memory, so the piece that is ready first can lay out the batch. Nobody can stop a thread from
writing, and so a piece is written there once: whoever makes it again (its thread was given up, or another took it over)
keeps to memory of its own, and the batch is joined by a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbloader.batch.chunk_writer import PLACED_FROM, Rows, joined_extras, relaid
from nbloader.batch.collate import NotPlannedError, Plan
from nbloader.batch.pytree import LayoutNode
from nbloader.batch.rebuild import builder
from nbloader.batch.task import Task

if TYPE_CHECKING:
    from nbloader.batch.payload import BatchPayload


class Together:
    """Where the pieces of one batch are written; in the shape of `placing.Place`.

    Args:
        size: Samples of the batch.
        piece: Samples of a piece.
        first: The number of the first piece.
        output: "torch" or "numpy": what the arrays become.
    """

    mapping = None
    """It lies in no segment."""

    def __init__(self, size: int, piece: int, first: int, output: str) -> None:
        self.size = size
        self._piece = piece
        self._first = first
        self._output = output
        self._lock = threading.Lock()
        self._tree: LayoutNode | None = None
        self._memory = bytearray()
        self._claimed: set[int] = set()

    def start(self, task: Task) -> int:
        """Position of the first sample of a piece in the batch."""
        return (task.job - self._first) * self._piece

    def claim(self, task: Task, tree: LayoutNode) -> bytearray | None:
        """The memory for a piece to be written to; None where it shall be written elsewhere.

        Args:
            task: The piece.
            tree: The layout of one sample.
        """
        nbytes = relaid(tree, self.size, self.size, 0)[1]
        if nbytes < PLACED_FROM:
            return None
        with self._lock:
            if self._tree is None:
                self._tree, self._memory = tree, bytearray(nbytes)
            if self._tree != tree or task.job in self._claimed:
                return None
            self._claimed.add(task.job)
        return self._memory

    def _layout(self, rows: int, start: int) -> LayoutNode:
        if self._tree is None:
            raise RuntimeError("no chunk was written here")
        return relaid(self._tree, rows, self.size, start)[0]

    def open(self, parcels: Iterable[BatchPayload]) -> Any:
        """The batch, of pieces that all lie here."""
        return builder(self._layout(self.size, 0), self._output)(self._memory, joined_extras(parcels))

    def read(self, parcel: BatchPayload, start: int) -> Any:
        """One piece that lies here."""
        return builder(self._layout(parcel.samples, start), self._output)(self._memory, parcel.extras)

    def give_back(self) -> None:
        """Nobody reads here: it goes with the last array on it."""


class Writer:
    """Writes the pieces that one thread makes."""

    def __init__(self) -> None:
        self._rows: Rows | None = None

    def write(self, samples: list[Any], task: Task, place: Together) -> tuple[list[Any], int] | None:
        """Write a piece beside those of other threads.

        Returns:
            What of it is no array, and its size in bytes; None where it shall be collated by itself.

        Raises:
            Exception: As `Plan`: the samples do not make a batch.
        """
        if len(samples) != len(task.indices):
            return None
        if self._rows is None:
            try:
                self._rows = Rows(Plan(samples).tree)
            except NotPlannedError:
                return None
        memory = place.claim(task, self._rows.tree)
        if memory is None:
            return None
        written = self._rows.write(samples, memory, place.start(task), place.size)
        if written is None:
            self._rows = None  # it is laid out in another way than the one before
        return written
