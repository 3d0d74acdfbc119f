"""What the notebook and the actor of a node send to each other. Workers are named by their `uid` in the notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from nbloader.events.remote_errors import SampleFailure
from nbloader.transport.environment import Environment
from nbloader.transport.messages import WorkerMessage
from nbloader.workers.api import WorkerOptions

# ---- commands: from the notebook to a node -------------------------------------------------------------------------


class SetEnvironment(NamedTuple):
    """What workers take over from the notebook."""

    environment: Environment
    own_first: bool
    """Whether the node's own paths and directory come first: it has a runtime environment."""


class LoadSetup(NamedTuple):
    """A version of the dataset and functions; its pickle comes with the call."""

    version: int
    preload: list[str]
    """Modules that the fork server imports first."""
    packages: frozenset[str]
    """Modules of large packages that workers need."""


class DropSetup(NamedTuple):
    """No worker is started with this version any more."""

    version: int


class StartWorker(NamedTuple):
    """Start a worker."""

    uid: int
    worker: int
    options: WorkerOptions
    setup: int
    """A version."""


class SentTask(NamedTuple):
    """A batch to produce: the fields of `Task` that a worker needs."""

    run: int
    job: int
    indices: Any
    seed: int
    deaths: int


class SubmitTasks(NamedTuple):
    """Have a worker produce batches."""

    uid: int
    seeds: dict[int, int] | None
    """The base seeds of the open iterations, by their number; None if they are the same as before."""
    tasks: list[bytes]
    """Pickled, each a `SentTask`: unpickling one may run the user's code, and may fail."""
    keys: list[tuple[int, int]]
    """(run, job) of each of them, to report that it cannot be unpickled."""


class RevokeTasks(NamedTuple):
    """Take tasks back that a worker has not begun. The node reports `TasksRevoked`, if there are any."""

    uid: int
    jobs: list[tuple[int, int]]
    """(run, job) of each."""


class CancelTasks(NamedTuple):
    """As `WorkerPool.cancel`."""

    uid: int
    run: int
    jobs: tuple[int, ...] | None


class KillWorker(NamedTuple):
    """End a worker at once."""

    uid: int


class SampleStack(NamedTuple):
    """Sample what a worker executes."""

    uid: int


class ReleaseMemory(NamedTuple):
    """As `WorkerPool.release_memory`."""


class CloseNode(NamedTuple):
    """End all workers, report that, and report no more."""

    grace: float


Command: TypeAlias = (
    "SetEnvironment | LoadSetup | DropSetup | StartWorker | SubmitTasks | RevokeTasks | CancelTasks | KillWorker"
    " | SampleStack | ReleaseMemory | CloseNode"
)


class SetupParts(NamedTuple):
    """The pickle of the dataset and functions, as it lies in the object store."""

    data: Any
    """The pickle, a byte array."""
    buffers: list[Any]
    """Its large arrays, byte arrays."""


# ---- reports: from a node to the notebook --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeHello:
    """What a node says about itself first."""

    python: str
    nbloader: str
    """Its version; "" if it is not installed there."""
    problem: str
    """Why nbloader cannot be imported there; "" if it can."""
    pid: int
    processes: str
    """See `process_space`; "" if nbloader cannot be imported there."""
    cores: int
    """CPU cores that processes may use there."""


class StatusEntry(NamedTuple):
    """The status of a worker: see `WorkerStatus`. Times are those of the node."""

    uid: int
    state: int
    run: int
    number: int
    since: int
    position: int
    pid: int
    begun: int
    """The highest sequence number that was begun, of a worker that processes several tasks at a time; else -1."""


class BatchBegin(NamedTuple):
    """A batch. Its memory follows in the data of this report, and of the next ones if it does not fit."""

    uid: int
    header: bytes
    """See `BatchHeader`; its times are those of the node."""
    extras: bytes
    layout: bytes | None
    """The pickled layout, before the first batch of the worker that has it."""
    memory: bytes | None
    """The arrays of a small batch; None if they follow, or if there are none."""
    failed_samples: Sequence[SampleFailure]


class NodeFault(NamedTuple):
    """The node cannot go on, for a reason of nbloader's own."""

    error: str
    """The traceback."""


class NodeClosed(NamedTuple):
    """All workers have ended: this is the last report."""


Entry: TypeAlias = "WorkerMessage | StatusEntry | BatchBegin | NodeFault | NodeClosed"


class NodeReport(NamedTuple):
    """The result of a call for a report. Ray stores `data` without pickling it."""

    begun: int
    """When the node began with the call, by its clock."""
    sent: int
    """When it returned, by its clock."""
    entries: bytes
    """A pickled list of `Entry`."""
    data: list[Any]
    """Byte arrays: the memory of the batches in `entries`, and first what is missing of the batch before."""
