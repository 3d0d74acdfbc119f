"""The interface of all kinds of workers. The engine knows only these classes.

To add a kind of worker, write a module with a `WorkerKind`, a `WorkerPool` and a `WorkerHandle`, and add a line to
`registry`. `tests/test_worker_kinds.py` is an example.

    kind = registry.create_kind(spec)                  one per loader
    kind.pack(dataset, ...) -> WorkerSetup             given to workers when they start
    kind.create_pool() -> WorkerPool
    pool.start(worker, spec, setup) -> WorkerHandle
    pool.submit(uid, tasks); pool.poll() -> messages   WorkerLaunched, WorkerInitialized, BatchDone, ..., WorkerGone
"""

from __future__ import annotations

import collections
import itertools
import math
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from nbloader.batch.task import Task
from nbloader.errors import NbloaderError
from nbloader.events.gauges import FetchProgress, WorkerGauge
from nbloader.events.stack_samples import StackCount
from nbloader.sampling.index_arrays import IndexArray
from nbloader.workers.messages import WorkerMessage
from nbloader.workers.spec import Parts, WorkerSpec
from nbloader.workers.status import WorkerState, WorkerStatus

if TYPE_CHECKING:
    from nbloader.events.records import Machine

_clock = time.perf_counter_ns
_uids = itertools.count(1)

TAIL_SIZE = 4096
"""Number of characters of a worker's standard error that are kept."""
TAIL_LINE_SIZE = 300
"""Number of characters that are kept of each line of standard error. After a crash, faulthandler lists all native
modules in one line of several kilobytes, which would leave no space for the worker's own output."""
JOIN_TIMEOUT = 1.0
"""Maximum number of seconds to wait for the end of a thread that has nothing left to do, and between looks whether a
thread can still answer."""
LISTED = 8
"""Maximum number of batches that a gauge lists as held by one worker."""


_OUTERMOST = re.compile(r'  File ".*", line \d+ in become_worker$')
"""The outermost frame of a forked worker in what faulthandler writes after a crash. The frames outside it belong to the
notebook: a hundred lines that would leave no space for the others."""
_C_STACK = "Current thread's C stack trace"
"""The beginning of the line before the C frames, which faulthandler writes since Python 3.14."""
C_FRAMES = 8
"""Number of C frames that are kept, the innermost ones. Those outside them are mostly the interpreter's own."""


class OutputTail:
    """The last lines of what a worker has written to its standard error."""

    def __init__(self) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=100)
        self._room: int | None = None
        """How many more frames are kept of the stack that is being written; None for all."""

    def keep(self, text: str) -> None:
        """Add lines."""
        for line in text.splitlines(keepends=True):
            if not line.startswith("  "):
                self._room = C_FRAMES if line.startswith(_C_STACK) else None
            elif self._room == 0:
                continue
            elif _OUTERMOST.match(line):
                self._room = 0
            elif self._room is not None:
                self._room -= 1
            self._lines.append(line if len(line) <= TAIL_LINE_SIZE else f"{line[:TAIL_LINE_SIZE]}...\n")

    def __str__(self) -> str:
        return "".join(self._lines)[-TAIL_SIZE:]


class WorkerHandle:
    """One worker, from its start to its end. A replacement worker has a new handle.

    Args:
        worker: Worker id.
        kind: The name of the worker's kind, as in the registry.
        status: Where the worker publishes what it is doing. It may be read while the worker writes.
    """

    in_process: ClassVar[bool] = True
    """See `WorkerKind.in_process`."""
    takes_signals: ClassVar[bool] = False
    """Whether `pid` is a process on this machine that belongs to the worker alone, so that a signal to it affects
    nothing else."""

    def __init__(self, worker: int, kind: str, status: WorkerStatus) -> None:
        self.uid = next(_uids)
        """Unique number of this worker. Messages refer to their worker by this number."""
        self.worker = worker
        """Worker id. A replacement worker has the same id."""
        self.kind = kind
        self.status = status
        self.pid = 0
        """Process id; 0 until the process exists."""
        self.pid_known = threading.Event()
        """Set when `pid` is known, or when it is certain that it never will be."""
        self.ready = False
        """Whether the worker can be given batches."""
        self.gone = False
        """Whether the worker has ended or was abandoned. Anything that it still sends is ignored."""
        self.ended = threading.Event()
        """Set together with `gone`, for threads that wait for the end of the worker."""
        self.exitcode: int | None = None
        """The exit code, as in `multiprocessing`; None while the worker runs, or if the exit code is unknown."""
        self.expected = False
        """Whether the end of the worker was requested."""
        self.end_reason = ""
        """Why its end was requested, for the event; "" if the user requested it."""
        self.held: tuple[int, ...] = ()
        """Numbers of the batches that were taken from the worker when its end was requested."""
        self.produced = 0
        """Number of batches that the worker produced and that were accepted."""
        self.requested = _clock()
        """When the start of the worker was requested, `time.perf_counter_ns()`."""

    def mark_launched(self, pid: int) -> None:
        """Record that the worker's process, or its thread in the process `pid`, exists."""
        self.pid = pid
        self.pid_known.set()

    def mark_ended(self, exitcode: int | None) -> None:
        """Record that the worker has ended, or was abandoned.

        Args:
            exitcode: The exit code, as in `multiprocessing`; None if unknown.
        """
        self.gone = True
        self.exitcode = exitcode
        self.pid_known.set()
        self.ended.set()

    @property
    def native_id(self) -> int:
        """Kernel id of the thread that loads samples (in a worker process, its main thread); 0 until it exists."""
        return self.pid

    @property
    def node(self) -> str:
        """The cluster node that the worker runs on; "" if it runs on none."""
        return ""

    @property
    def machine(self) -> Machine | None:
        """The machine that the worker runs on; None for this machine."""
        return None

    @property
    def stderr_tail(self) -> str:
        """The last lines that the worker wrote to its standard error."""
        return ""

    def begun(self, held: list[Task]) -> list[Task]:
        """Return the held tasks that are being processed: at most the first one, unless the dataset is asynchronous."""
        return held[:1]

    def leave(self) -> None:
        """Tell the worker to end as soon as it has processed its present sample. The pool reports `WorkerGone`.

        A kind whose workers hold nothing that others wait for may end them at once.
        """
        self.kill()

    def kill(self) -> None:
        """End the worker at once, whatever it is doing. The pool reports `WorkerGone`."""
        raise NotImplementedError

    def stack_request(self) -> Callable[[], str]:
        """Return a function that requests the worker's Python stack and waits for it.

        This method is called on the engine's thread, the returned function on another one.

        Raises:
            NbloaderError: There is no stack. The returned function raises it if the worker does not respond.
        """
        raise NbloaderError(f"workers of the kind {self.kind!r} do not report their stack")

    def sample_stack(self) -> StackCount | None:
        """Sample the worker's stack, if it is producing a batch.

        This is called on the line profiler's thread.

        Returns:
            The sample; None if it arrives later in `StacksSampled`, or if there is none.
        """
        return None

    def busy_since(self) -> float:
        """Return when the worker began to fetch or collate, `time.perf_counter_ns()`; infinity if it does neither."""
        status = self.status
        return status.since if status.state in (WorkerState.FETCHING, WorkerState.COLLATING) else math.inf

    def fetch_progress(self, held: list[Task]) -> FetchProgress | None:
        """See `fetch_progress`."""
        return fetch_progress(self.status, held)

    def current(self, held: list[Task]) -> tuple[Task | None, Any]:
        """Return what the worker is processing: one of the held tasks, and the dataset index of the sample.

        The task is None if it is none of them. The index is None if no single sample is being fetched.
        """
        status = self.status
        state, job = status.state, status.job
        if job < 0 or state == WorkerState.STARTING:
            return None, None
        task = next((task for task in held if task.job == job and task.epoch == status.epoch), None)
        if task is None or state != WorkerState.FETCHING:
            return task, None
        return task, _sample(task.indices, status.position)

    def gauge(self, held: list[Task], epochs: Collection[int], exit_reason: str, produced: int) -> WorkerGauge:
        """Return the current state of the worker. This reads its status and sends it no message.

        Args:
            held: The batches that the worker was given.
            epochs: Numbers of the epochs whose iterations are open.
            exit_reason: Why the previous worker with this id ended.
            produced: Number of batches produced by workers with this id.
        """
        status = self.status
        state, job = status.state, status.job
        task, sample = self.current(held)
        at = None
        if job >= 0 and state != WorkerState.STARTING:
            at = job if task is None else task.number
        return WorkerGauge(
            worker=self.worker,
            pid=self.pid,
            state=WorkerState(state).name.lower(),
            batch=at,
            since=status.since or self.requested,
            sample=sample,
            queued=len(held) - len(self.begun(held)),
            exit_reason=exit_reason,
            stderr_tail=self.stderr_tail,
            cpu_percent=None,
            rss=None,
            held=tuple(dict.fromkeys(task.number for task in held[:LISTED] if task.epoch in epochs)),
            left=at is not None and not (held and held[0].epoch in epochs),
            made=produced,
            kind=self.kind,
            node=self.node,
            machine=self.machine,
            in_process=self.in_process,
        )


def fetch_progress(status: WorkerStatus, held: list[Task]) -> FetchProgress | None:
    """Return the progress with the batch that is fetched sample by sample; None if there is none.

    Args:
        status: Where the worker publishes what it is doing.
        held: The batches that it was given.
    """
    position, since, job = status.position, status.since, status.job
    task = next((task for task in held if task.job == job and task.epoch == status.epoch), None)
    if task is None or position < 0 or status.state != WorkerState.FETCHING:
        return None
    indices = task.indices
    if not isinstance(indices, (list, tuple, IndexArray)):
        return None
    return FetchProgress(task.number, since, min(position, len(indices)), len(indices))


def _sample(indices: Any, position: int) -> Any:
    """Return the index of the sample at a position. The worker keeps running, so the two may not match exactly."""
    if position < 0:
        return None
    if not isinstance(indices, (list, tuple, IndexArray)):
        return indices
    return indices[position] if position < len(indices) else None


class WorkerSetup(Protocol):
    """`Parts` in the form in which workers of a kind are given them."""

    @property
    def identity(self) -> tuple[int, ...]:
        """A value that is equal for two setups of the same objects."""


class WorkerPool(ABC):
    """The workers of one loader. A pool makes no decisions: it carries out the engine's requests and reports events.

    All methods are called on the engine's thread, unless their docstring says otherwise. The methods that are not
    abstract are optional: not every kind needs them.
    """

    @property
    @abstractmethod
    def handles(self) -> Mapping[int, WorkerHandle]:
        """The workers that have not ended, by their unique number."""

    @abstractmethod
    def fileno(self) -> int | None:
        """Return a file descriptor that is readable while `poll` has something to report; None if there is none."""

    @abstractmethod
    def start(self, worker: int, spec: WorkerSpec, setup: Any) -> WorkerHandle:
        """Start a worker. It reports `WorkerLaunched`, and later `WorkerInitialized` or `WorkerInitFailed`.

        Args:
            worker: Worker id.
            spec: The configuration of the worker.
            setup: What `WorkerKind.pack` returned.

        Raises:
            OSError: The system provides no process, thread, pipe or memory.
        """

    @property
    def usable(self) -> bool:
        """Whether the pool can run workers. An unusable pool is closed and replaced when an epoch begins."""
        return True

    def missing(self, setup: Any, seed: int) -> Callable[[], Any] | None:  # noqa: ARG002 - optional
        """Return what takes from this process what new workers inherit from it; None if the pool has it already.

        The function is called on the consumer's thread, which is the one that such state may belong to. What it returns
        is passed to `inherit`.

        Args:
            setup: What `WorkerKind.pack` returned.
            seed: The base seed of the epoch.
        """
        return None

    def inherit(self, inherited: Any) -> None:  # noqa: B027 - optional
        """Let the workers that are started from now on have what `missing` has taken."""

    def reject(self, inherited: Any) -> None:  # noqa: B027 - optional
        """Release what `missing` has taken, because the pool has been ended meanwhile."""

    def prepare(self, setup: Any, seed: int = 0) -> None:
        """Let workers inherit the present state of this process, where one thread does everything.

        Args:
            setup: What `WorkerKind.pack` returned.
            seed: The base seed of the epoch.
        """
        take = self.missing(setup, seed)
        if take is not None:
            self.inherit(take())

    def can_start(self, setup: Any) -> bool:  # noqa: ARG002 - optional
        """Whether a worker can be started although the consumer is away, with what the pool has.

        Args:
            setup: What `WorkerKind.pack` returned.
        """
        return True

    def renew(self) -> None:  # noqa: B027 - optional
        """Let the workers that are started from now on have the present state of this process, if they inherit any."""

    @abstractmethod
    def submit(self, uid: int, tasks: Sequence[Task]) -> list[tuple[Task, Exception]]:
        """Send tasks to a worker, which reports `BatchDone` or `ShardExhausted` for each.

        Returns:
            The tasks that cannot be sent, each with the reason. The worker does not receive them.
        """

    @abstractmethod
    def cancel(self, uid: int, epoch: int, jobs: tuple[int, ...] | None) -> None:
        """Tell a worker to drop tasks of an iteration that has ended. Tasks that it has begun may still be reported.

        Args:
            uid: The worker; it may have ended.
            epoch: Number of the epoch.
            jobs: Job numbers of the tasks; None for the whole iteration. In that case `ShardExhausted` is reported for
                each task that is dropped, and the iterators over the shards of the iteration are released.
        """

    @abstractmethod
    def poll(self, timeout: float | None) -> list[WorkerMessage]:
        """Wait until there is something to report, and report it.

        Args:
            timeout: Seconds; 0 does not wait, None waits without limit.
        """

    @abstractmethod
    def close(self, grace: float) -> list[WorkerMessage]:
        """Shut down all workers, and kill those that have not ended after `grace` seconds.

        Returns:
            The messages that arrived in the meantime, with a `WorkerGone` for each worker.
        """

    def let_leave(self, grace: float) -> list[WorkerMessage]:
        """Shut down all workers, but let those that are in the middle of a sample finish it.

        Returns:
            The messages that arrived within `grace` seconds. If `handles` is not empty then, `poll` reports the rest.
        """
        return self.close(grace)

    def end_leaving(self, grace: float) -> bool:  # noqa: ARG002 - optional
        """Wait until the workers that were told to leave have ended, and kill those that have not in time.

        Called if there are too many open files to start another worker.

        Args:
            grace: Seconds for which they may finish their present sample.

        Returns:
            Whether a worker has ended.
        """
        return False

    def release_memory(self) -> None:  # noqa: B027 - optional
        """Release memory that the next epoch does not need at once. Called when the workers are idle."""

    def partial_output(self) -> list[tuple[str, str]]:
        """Take the incomplete last lines of the workers' output, as (stream, text)."""
        return []

    def dispose(self) -> None:  # noqa: B027 - optional
        """Release the resources of the pool itself, after all workers have ended."""


class WorkerKind(ABC):
    """A kind of worker, as configured for one loader.

    The class attributes say how the kind differs from others. Code outside this package asks for them, not for names of
    kinds.

    Args:
        spec: The configuration of the workers.
    """

    in_process: ClassVar[bool] = True
    """Whether the workers are threads of this process, and so share its objects, such as the dataset."""
    local_processes: ClassVar[bool] = False
    """Whether each worker is a process that this process starts on this machine, by a start method of
    `multiprocessing`."""
    takes_ray_options: ClassVar[bool] = False
    """Whether `DataLoader(ray=...)` applies."""
    reads_iterables: ClassVar[bool] = False
    """Whether the workers pass an `IterableFetcher` to their `Producer`, and so can read an iterable dataset."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec

    @property
    def connected(self) -> bool:
        """Whether what `pack` returned can still be used. Called by consumers."""
        return True

    def pack(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> WorkerSetup:
        """Convert the dataset and functions to what workers of this kind are given.

        Raises:
            DatasetTransferError: They cannot be sent to workers of this kind.
        """
        return Parts(dataset, collate_fn, worker_init_fn, on_error)

    def inherits(self, setup: Any) -> bool:  # noqa: ARG002 - optional
        """Whether workers inherit the setup by being forked, so that only new workers see its current state.

        Args:
            setup: What `pack` returned.
        """
        return False

    def keeps_pool(self, setup: Any) -> bool:  # noqa: ARG002 - optional
        """Whether the pool is kept when its workers end with an epoch, because it costs more than the workers.

        Args:
            setup: What `pack` returned.
        """
        return False

    def clean(self, setup: Any) -> WorkerSetup | None:  # noqa: ARG002 - optional
        """Pack what a setup holds for workers that inherit nothing from this process.

        Args:
            setup: What `pack` returned.

        Returns:
            None if workers of this loader must inherit it, or inherit nothing already.

        Raises:
            DatasetTransferError: They cannot be sent to such workers.
        """
        return None

    def stop_inheriting(self) -> None:  # noqa: B027 - optional
        """Let `pack` pack for workers that inherit nothing from now on."""

    @abstractmethod
    def create_pool(self) -> WorkerPool:
        """Create a pool without workers."""
