"""What is dispatched to workers: batches, and their chunks where several workers produce one batch together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nbloader._util.rng import mix

if TYPE_CHECKING:
    from nbloader.batch.payload import Arena

R = TypeVar("R")

ALONE_AFTER = 2
"""Deaths of workers that were processing a batch together with others, after which it is produced on its own: whether
it is the cause shows then."""


@dataclass(slots=True)
class Task:
    """One batch, or a chunk of one, to produce."""

    run: int
    """The iteration that it belongs to."""
    number: int
    """Batch number within the iteration, from 0."""
    indices: Any
    """What the batch sampler gave: a list of dataset indices, or a single index where batching is off; a `Ticket` of
    an iterable dataset."""
    seed: int
    dispatched: int = 0
    """When it was last sent to a worker, perf_counter ns; set by the sender."""
    in_order: int = 0
    """When it and all earlier ones had arrived, perf_counter ns; set by the receiver."""
    attempt: int = 0
    """How often it was sent."""
    deaths: int = 0
    """Workers that died unexpectedly while they produced it."""
    job: int = -1
    """The number by which workers know it: the batch number, or a number of the chunk's own."""
    sequence: int = 0
    """Its number among the tasks that were sent to its worker process; set by the sender."""
    parent: ChunkedBatch[Any] | None = None
    """The batch of which this is a chunk; None for a whole batch."""


class ChunkedBatch(Generic[R]):
    """One batch and its chunks.

    Args:
        task: The batch.
        size: Samples of a chunk; the last one may have fewer.
    """

    __slots__ = ("_outcomes", "arena", "chunks", "missing", "size", "started", "task")

    def __init__(self, task: Task, size: int) -> None:
        self.task = task
        self.size = size
        self.chunks: list[Task] = []
        self.started = False
        """Whether a chunk was dispatched."""
        self.missing = -(-len(task.indices) // size) or 1
        """Chunks that have not arrived; a batch without samples has one chunk."""
        self.arena: Arena | None = None
        """The memory to which workers write the chunks side by side (chunk_arena.py)."""
        self._outcomes: dict[int, Any] = {}

    def split(self, first_job: int) -> list[Task]:
        """Create the chunks.

        Args:
            first_job: Job number of the first chunk; the others follow.
        """
        task, indices = self.task, self.task.indices
        for position, start in enumerate(range(0, len(indices) or 1, self.size)):
            part, seed = indices[start : start + self.size], mix(task.seed, position)
            self.chunks.append(Task(task.run, task.number, part, seed, job=first_job + position, parent=self))
        return self.chunks

    def start(self, chunk: Task) -> int:
        """Position of the first sample of a chunk in the batch."""
        return (chunk.job - self.chunks[0].job) * self.size

    def has(self, chunk: Task) -> bool:
        """Whether this chunk has arrived."""
        return chunk.job in self._outcomes

    def add(self, chunk: Task, outcome: R) -> bool:
        """A chunk has arrived. Returns whether all have, now."""
        self._outcomes[chunk.job] = outcome
        self.missing -= 1
        return not self.missing

    def outcomes(self) -> list[R]:
        """The outcomes that have arrived, in the order of the chunks."""
        return [self._outcomes[chunk.job] for chunk in self.chunks if chunk.job in self._outcomes]

    def release(self) -> None:
        """The outcomes have been joined: drop the references to their memory, which now belongs to the joined batch."""
        self._outcomes = dict.fromkeys(self._outcomes)
        self.arena = None

    def discard(self) -> None:
        """It is no longer needed: free its memory now, not when the cycle of batch and chunks is collected."""
        self._outcomes.clear()
        self.chunks.clear()
        self.arena = None

    def reset(self) -> tuple[list[Task], list[R]]:
        """Forget the chunks that have arrived. Returns these chunks, to be produced again, and their outcomes."""
        again = [chunk for chunk in self.chunks if chunk.job in self._outcomes]
        dropped = self.outcomes()
        self._outcomes.clear()
        self.missing = len(self.chunks)
        self.arena = None
        return again, dropped
