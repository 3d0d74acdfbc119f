"""What there is to dispatch: batches, and their pieces where several workers make one at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nbloader._util.rng import mix

R = TypeVar("R")


@dataclass(slots=True)
class Task:
    """One batch to make."""

    run: int
    number: int
    """Batch number within the run, from 0."""
    indices: Any
    """What the batch sampler gave: a list of dataset indices, or a single index where batching is off; a `Ticket` of
    an iterable dataset."""
    seed: int
    dispatched: int = 0
    """When it was last sent to a worker, perf_counter ns; set by the sender."""
    in_order: int = 0
    """When it and all earlier ones had come, perf_counter ns; set by the receiver."""
    attempt: int = 0
    """How often it was sent."""
    deaths: int = 0
    """Workers that died, unasked, while they made it."""
    job: int = -1
    """The number by which workers know it: that of the batch, where batches are not cut."""
    whole: ChunkedBatch[Any] | None = None
    """The batch that this is a piece of."""


class ChunkedBatch(Generic[R]):
    """One batch and its pieces.

    Args:
        task: The batch.
        size: Samples of a piece; the last one may have fewer.
    """

    __slots__ = ("_results", "begun", "left", "pieces", "place", "size", "task")

    def __init__(self, task: Task, size: int) -> None:
        self.task = task
        self.size = size
        self.pieces: list[Task] = []
        self.begun = False
        """Whether a piece was given to a worker."""
        self.left = -(-len(task.indices) // size) or 1
        """Pieces that have not come; one of a batch without samples."""
        self._results: dict[int, Any] = {}
        self.place: Any = None
        """Where the workers write it, in memory that they share; of placing.py."""

    def cut(self) -> Iterator[tuple[Any, int]]:
        """The pieces, as (indices, seed)."""
        indices = self.task.indices
        for number, start in enumerate(range(0, len(indices) or 1, self.size)):
            yield indices[start : start + self.size], mix(self.task.seed, number)

    def start(self, piece: Task) -> int:
        """Position of the first sample of a piece in the batch."""
        return (piece.job - self.pieces[0].job) * self.size

    def has(self, piece: Task) -> bool:
        """Whether this piece has come."""
        return piece.job in self._results

    def put(self, piece: Task, result: R) -> bool:
        """A piece has come. Whether all have, now."""
        self._results[piece.job] = result
        self.left -= 1
        return not self.left

    def results(self) -> list[R]:
        """What has come, in the order of the pieces."""
        return [self._results[piece.job] for piece in self.pieces if piece.job in self._results]

    def let_go(self) -> None:
        """What has come has been joined: whoever has the batch holds its memory, and nothing here does."""
        self._results = dict.fromkeys(self._results)
        self.place = None

    def dissolve(self) -> None:
        """Nobody waits for it: let go of the memory now, and not when the cycle of it and its pieces is collected."""
        self._results.clear()
        self.pieces.clear()
        self.place = None

    def redo(self) -> tuple[list[Task], list[R]]:
        """Forget what has come. Returns the pieces that are to be made again, and what had come for them."""
        again = [piece for piece in self.pieces if piece.job in self._results]
        dropped = self.results()
        self._results.clear()
        self.left = len(self.pieces)
        self.place = None
        return again, dropped
