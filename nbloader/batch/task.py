"""Tasks that are dispatched to workers: batches, or chunks of batches that several workers produce together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from nbloader._util.rng import mix
from nbloader.events.records import Event
from nbloader.sampling.index_arrays import part_of

R = TypeVar("R")

ALONE_AFTER = 2
"""Number of worker deaths after which a batch is produced on its own.

A worker may process several batches at the same time. If the batch is processed alone, it is clear whether it causes
the deaths.
"""


class JobKey(NamedTuple):
    """Identifies a job, which is a batch or a chunk of one, among the jobs of all iterations."""

    epoch: int
    """Number of the epoch."""
    job: int
    """Number of the job within the epoch."""


@dataclass(slots=True)
class Task:
    """One batch, or a chunk of one, to produce."""

    epoch: int
    """Number of the epoch that the batch belongs to."""
    number: int
    """Batch number within the epoch, from 0."""
    indices: Any
    """The value that the batch sampler yielded: a list of dataset indices, or a single index if batching is off. A
    `Ticket` if the dataset is iterable."""
    seed: int
    dispatched: int = 0
    """When the task was last sent to a worker, in ns of `time.perf_counter_ns()`. Set by the sender."""
    in_order: int = 0
    """When this batch and all earlier batches had arrived, in ns of `time.perf_counter_ns()`. Set by the receiver."""
    attempt: int = 0
    """Number of times the task was assigned to a worker."""
    deaths: int = 0
    """Number of workers that died unexpectedly while they processed the task."""
    job: int = -1
    """The number that identifies the task to workers: the batch number, or a separate number for a chunk."""
    sequence: int = 0
    """Sequence number of the task among those sent to its worker process. Set by the sender."""
    parent: ChunkedBatch[Any] | None = None
    """The batch that contains this chunk; None for a whole batch."""
    failures: list[Event] = field(default_factory=list)
    """The events about failures in the batch, which are published when it is delivered. A chunk has none."""


class ChunkedBatch(Generic[R]):
    """A batch and its chunks.

    Args:
        task: The batch.
        size: Number of samples in a chunk; the last chunk may have fewer.
    """

    __slots__ = ("_outcomes", "chunks", "missing", "size", "task")

    def __init__(self, task: Task, size: int) -> None:
        self.task = task
        self.size = size
        self.chunks: list[Task] = []
        self.missing = -(-len(task.indices) // size) or 1
        """Number of chunks that have not arrived. A batch without samples has one chunk."""
        self._outcomes: dict[int, Any] = {}

    def split(self, first_job: int) -> list[Task]:
        """Create the chunks.

        Args:
            first_job: Job number of the first chunk. The other chunks get the following numbers.
        """
        task, indices = self.task, self.task.indices
        for position, start in enumerate(range(0, len(indices) or 1, self.size)):
            part, seed = part_of(indices, start, start + self.size), mix(task.seed, position)
            self.chunks.append(Task(task.epoch, task.number, part, seed, job=first_job + position, parent=self))
        return self.chunks

    def start(self, chunk: Task) -> int:
        """Return the position in the batch of the first sample of a chunk."""
        return (chunk.job - self.chunks[0].job) * self.size

    def has(self, chunk: Task) -> bool:
        """Whether a chunk has arrived."""
        return chunk.job in self._outcomes

    def add(self, chunk: Task, outcome: R) -> bool:
        """Record the outcome of a chunk that has arrived. Returns whether all chunks have arrived."""
        self._outcomes[chunk.job] = outcome
        self.missing -= 1
        return not self.missing

    def outcomes(self) -> list[R]:
        """Return the outcomes that have arrived, in the order of the chunks."""
        return [self._outcomes[chunk.job] for chunk in self.chunks if chunk.job in self._outcomes]

    def release(self) -> None:
        """Drop the references to the outcomes after they were joined: their memory now belongs to the joined batch."""
        self._outcomes = dict.fromkeys(self._outcomes)

    def discard(self) -> None:
        """Free the memory of a batch that is no longer needed.

        Otherwise it would be freed only when the reference cycle between batch and chunks is garbage-collected.
        """
        self._outcomes.clear()
        self.chunks.clear()

    def reset(self) -> tuple[list[Task], list[R]]:
        """Mark all chunks as missing.

        Returns:
            The chunks that had arrived, which must be produced again, and their outcomes.
        """
        again = [chunk for chunk in self.chunks if chunk.job in self._outcomes]
        dropped = self.outcomes()
        self._outcomes.clear()
        self.missing = len(self.chunks)
        return again, dropped
