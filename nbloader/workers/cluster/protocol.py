"""The messages between the notebook and the actor of a node. Workers are identified by their `uid` in the notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from nbloader.events.remote_errors import SampleFailure
from nbloader.transport.environment import Environment
from nbloader.workers.messages import WorkerMessage
from nbloader.workers.spec import WorkerSpec

# ---- commands: from the notebook to a node -------------------------------------------------------------------------


class SetEnvironment(NamedTuple):
    """Set the environment that workers take over from the notebook."""

    environment: Environment
    own_first: bool
    """Whether the node's own paths and directory take precedence, because it has a runtime environment."""


class LoadSetup(NamedTuple):
    """Load a version of the dataset and functions, whose pickle is an argument of the same call."""

    version: int


class DropSetup(NamedTuple):
    """Release a version of the dataset and functions that no worker will be started with."""

    version: int


class StartWorker(NamedTuple):
    """Start a worker."""

    uid: int
    worker: int
    spec: WorkerSpec
    setup: int
    """The version of the dataset and functions."""


class SentTask(NamedTuple):
    """A task: the fields of `Task` that a worker needs."""

    epoch: int
    job: int
    indices: Any
    """See `pack_indices`: a node does not run the code of their classes."""
    seed: int
    deaths: int


class SubmitTasks(NamedTuple):
    """Send tasks to a worker."""

    uid: int
    tasks: list[bytes]
    """The tasks, each a pickled `SentTask`."""


class CancelTasks(NamedTuple):
    """Cancel tasks: see `WorkerPool.cancel`."""

    uid: int
    epoch: int
    jobs: tuple[int, ...] | None


class KillWorker(NamedTuple):
    """End a worker at once."""

    uid: int


class SampleStack(NamedTuple):
    """Sample the stack of a worker."""

    uid: int


class ReleaseMemory(NamedTuple):
    """Release memory: see `WorkerPool.release_memory`."""


class CloseNode(NamedTuple):
    """End all workers, report their ends, and then stop reporting."""

    grace: float


Command: TypeAlias = (
    "SetEnvironment | LoadSetup | DropSetup | StartWorker | SubmitTasks | CancelTasks | KillWorker"
    " | SampleStack | ReleaseMemory | CloseNode"
)


class SetupParts(NamedTuple):
    """The pickle of the dataset and functions, as stored in the object store."""

    data: Any
    """The pickle, as a byte array."""
    buffers: list[Any]
    """The large arrays of the pickle, as byte arrays."""


# ---- reports: from a node to the notebook --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeHello:
    """What a node first reports about itself."""

    python: str
    nbloader: str
    """The version of nbloader; "" if it cannot be imported on the node."""
    problem: str
    """Why nbloader cannot be imported on the node; "" if it can be."""
    pid: int
    processes: str
    """See `process_space`; "" if nbloader cannot be imported on the node."""
    cores: int
    """Number of CPU cores that processes may use on the node."""


class StatusEntry(NamedTuple):
    """The status of a worker: see `WorkerStatus`. Times are readings of the node's clock."""

    uid: int
    state: int
    epoch: int
    job: int
    since: int
    position: int
    pid: int
    begun: int
    """See `SharedStatus.begun`."""


class BatchBegin(NamedTuple):
    """The beginning of a batch. Its memory follows in the data of this report, and of later reports if necessary."""

    uid: int
    header: bytes
    """See `BatchHeader`. Times are readings of the node's clock."""
    skeleton: bytes
    memory: bytes | None
    """The arrays of a small batch; None if they follow, or if there are none."""
    failed_samples: Sequence[SampleFailure]


class NodeFault(NamedTuple):
    """The node cannot continue because of a bug in nbloader."""

    error: str
    """The traceback."""


class NodeClosed(NamedTuple):
    """All workers have ended, and this is the last report."""


Entry: TypeAlias = "WorkerMessage | StatusEntry | BatchBegin | NodeFault | NodeClosed"


class NodeReport(NamedTuple):
    """The result of a call for a report. Ray stores `data` without pickling it."""

    begun: int
    """When the node began to execute the call, by the node's clock."""
    sent: int
    """When the call returned, by the node's clock."""
    entries: bytes
    """A pickled list of `Entry`."""
    data: list[Any]
    """Byte arrays: first the rest of the previous batch, if any, then the memory of the batches in `entries`."""
