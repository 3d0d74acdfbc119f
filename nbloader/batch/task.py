"""Tasks that are dispatched to workers: batches, or chunks of batches that several workers produce together.

    Task -> dump_task() -> socket of a worker process -> read_task() -> TaskMessage -> load_indices()

The message of a task must not contain objects of user's classes: unpickling one may raise or hang, and then the worker
would not know which batch it belongs to. Such indices travel as bytes, which the worker unpickles when it produces the
batch, so that an error is an error of that batch. Worker threads are given the `Task` itself.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from nbloader._util.rng import mix
from nbloader.batch.pickling import CodePickler, NamePickler, dump
from nbloader.errors import DatasetTransferError
from nbloader.sampling.index_arrays import DrawnIndices, IndexArray, part_of
from nbloader.sampling.shard_plan import Ticket

if TYPE_CHECKING:
    from nbloader.events.records import Event

R = TypeVar("R")


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
    lost_sample: Any = None
    """Dataset index of the sample that a worker was fetching for this task when it was lost; None if there is none."""
    deaths: int = 0
    """Number of workers that died unexpectedly while they processed the task. After that, a worker that processes
    several batches at a time produces it alone, so that it is clear whether it causes the deaths."""
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


# ---- sending to a worker process ------------------------------------------------------------------------------

_STANDARD = {int, str, bool, float, bytes, Ticket, IndexArray}
"""Types of indices that the standard pickle handles, and whose unpickling cannot fail."""


class PickledIndices:
    """Indices that a worker unpickles when it produces the batch.

    Args:
        data: The pickle.
        types: Names of the types of the indices.
    """

    __slots__ = ("_loaded", "data", "types")

    def __init__(self, data: bytes, types: str) -> None:
        self.data = data
        self.types = types
        self._loaded: list[Any] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the bytes."""
        return PickledIndices, (self.data, self.types)

    def load(self) -> Any:
        """Unpickle the indices, once.

        Raises:
            DatasetTransferError: The code of their class has raised an exception, which is the cause.
        """
        if not self._loaded:
            try:
                self._loaded.append(pickle.loads(self.data))
            except Exception as error:
                raise DatasetTransferError(
                    f"the indices of the batch, of type {self.types}, were pickled, but cannot be unpickled in the "
                    f"worker: {type(error).__name__}: {error}. Let the sampler yield integers, strings or tuples, or "
                    "give the class a __reduce__ with which pickle.loads(pickle.dumps(index)) works in a new process"
                ) from error
        return self._loaded[0]


def pack_indices(indices: Any, *, by_name: bool = False) -> Any:
    """Return the indices of a batch as they are sent to a worker process: themselves, or `PickledIndices`.

    Args:
        indices: The indices.
        by_name: Whether classes that are defined in the notebook exist in the worker. Otherwise they are pickled by
            value.

    Raises:
        Exception: Whatever pickling raises.
    """
    if type(indices) is DrawnIndices:
        standard = indices.standard
    elif type(indices) is PickledIndices:
        standard = True
    else:
        standard = _STANDARD.issuperset(map(type, indices if type(indices) is list else (indices,)))
    if standard:
        return indices
    return PickledIndices(dump(indices, None, NamePickler if by_name else CodePickler), _names(indices))


def load_indices(indices: Any) -> Any:
    """Undo `pack_indices`.

    Raises:
        DatasetTransferError: See `PickledIndices.load`.
    """
    return indices.load() if type(indices) is PickledIndices else indices


def _names(indices: Any) -> str:
    """Return the names of the types of indices."""
    if type(indices) is DrawnIndices:
        return type(indices.drawn).__name__
    items = indices if isinstance(indices, (list, tuple)) else (indices,)
    return " or ".join(sorted({type(index).__name__ for index in items}))


class TaskMessage(NamedTuple):
    """The body of a TASK frame. It is sent as a plain tuple, which is smaller."""

    epoch: int
    job: int
    """Job number of the batch or chunk."""
    indices: Any
    """What was drawn for the batch, as `pack_indices` returns it."""
    seed: int
    returned: list[int]
    """Segments of this worker that are no longer in use in the notebook's process."""
    sequence: int
    """The position of the task in the sequence of tasks that were sent to this worker."""
    deaths: int
    """See `Task`."""


def dump_task(task: Task, returned: list[int], *, by_name: bool = False) -> bytes:
    """Pickle a task as the fields of `TaskMessage`.

    Args:
        task: The task.
        returned: Segments of the worker that are no longer in use.
        by_name: See `pack_indices`.
    """
    indices = pack_indices(task.indices, by_name=by_name)
    return pickle.dumps((task.epoch, task.job, indices, task.seed, returned, task.sequence, task.deaths), 5)


def read_task(body: Any) -> TaskMessage:
    """Unpickle a task from a buffer, in the worker process."""
    return tuple.__new__(TaskMessage, pickle.loads(body))  # takes half as long as calling the class
