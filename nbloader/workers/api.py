"""The interface of workers, whatever kind they are: the engine knows these classes only.

To add a kind of worker, write a module with a `WorkerKind`, a `WorkerPool` and a `WorkerHandle`, and add a line to
`registry`. `tests/test_worker_kinds.py` is an example.

    kind = registry.create_kind(options)               one per loader
    kind.pack(dataset, ...) -> WorkerSetup             what workers are given when they start
    kind.create_pool() -> WorkerPool
    pool.start(worker, options, setup) -> WorkerHandle
    pool.submit(uid, tasks); pool.poll() -> messages   WorkerLaunched, WorkerInitialized, BatchDone, ..., WorkerGone
"""

from __future__ import annotations

import collections
import itertools
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from nbloader.batch.payload import BatchPayload
from nbloader.batch.task import Task
from nbloader.errors import NbloaderError
from nbloader.events.gauges import FetchProgress, WorkerGauge
from nbloader.events.stack_samples import StackCount
from nbloader.sampling.index_arrays import IndexArray
from nbloader.sampling.shard_plan import IterableOptions
from nbloader.transport.messages import WorkerMessage
from nbloader.workers.ray_options import RayOptions
from nbloader.workers.status import WorkerState, WorkerStatus

if TYPE_CHECKING:
    from nbloader.events.records import Machine

_clock = time.perf_counter_ns
_uids = itertools.count(1)

TAIL_SIZE = 4096
"""Characters of a worker's standard error that are kept."""
TAIL_LINE_SIZE = 300
"""Characters of a line of it: after a crash faulthandler lists all native modules in one line of kilobytes, which would
leave no room for what the worker wrote."""
LISTED = 8
"""Batches that a gauge lists as held by one worker."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The configuration of workers, apart from the dataset and functions."""

    kind: str
    """The name of the kind of workers, as in the registry."""
    batched: bool
    """Whether samples make batches."""
    output: str = "torch"
    """"torch" or "numpy": what the arrays of a batch become."""
    iterable: IterableOptions | None = None
    """How an iterable dataset is read; None for a map-style one."""
    num_workers: int = 1
    seed: int = 0
    """The base seed of the epoch in which the worker starts. Its own seed is this plus its id."""
    start_method: str = "forkserver"
    """"forkserver", "spawn" or "fork": for processes."""
    fork_fallback: bool = False
    """Whether processes are forked from this one all the same where what they need cannot be pickled."""
    transport: str = "shared_memory"
    """"shared_memory" or "pickle": for processes."""
    in_order: bool = True
    """Whether batches are delivered in order, so that those behind a slow one wait for it anyway."""
    fresh: bool = False
    """Whether each iteration begins as in new workers: with the dataset as it was sent, new seeds and a call of
    `worker_init_fn` (torch's `persistent_workers=False`)."""
    concurrency: int = 1
    """Samples of an asynchronous dataset that a worker may fetch at a time."""
    ray: RayOptions | None = None
    """How a Ray cluster is used: for its workers."""


class OutputTail:
    """The last lines of what a worker has written to its standard error."""

    def __init__(self) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=100)

    def keep(self, text: str) -> None:
        """Add lines."""
        for line in text.splitlines(keepends=True)[-100:]:
            self._lines.append(line if len(line) <= TAIL_LINE_SIZE else f"{line[:TAIL_LINE_SIZE]}...\n")

    def __str__(self) -> str:
        return "".join(self._lines)[-TAIL_SIZE:]


class WorkerHandle:
    """One worker, from its start to its end. A replacement has a handle of its own.

    Args:
        worker: Worker id.
        kind: The name of its kind, as in the registry.
        status: Where the worker publishes what it is doing. It is read while the worker writes.
    """

    def __init__(self, worker: int, kind: str, status: WorkerStatus) -> None:
        self.uid = next(_uids)
        """Unique number of this worker. Messages name their worker by it."""
        self.worker = worker
        """Worker id; a replacement has the same."""
        self.kind = kind
        self.status = status
        self.pid = 0
        """Process id; 0 until the process exists."""
        self.pid_known = threading.Event()
        """Set when `pid` is known, or will never be."""
        self.ready = False
        """Whether it can be given batches."""
        self.gone = False
        """Whether it has ended or was abandoned. Nothing that it sends counts any more."""
        self.ended = threading.Event()
        """Set together with `gone`, for threads that wait."""
        self.exitcode: int | None = None
        """As in `multiprocessing`; None while it runs, or if it is unknown."""
        self.expected = False
        """Whether its end was requested."""
        self.held: tuple[int, ...] = ()
        """Numbers of the batches that were taken from it when its end was requested."""
        self.produced = 0
        """Batches that it produced and that were accepted."""
        self.requested = _clock()
        """When its start was requested, `time.perf_counter_ns()`."""

    def mark_launched(self, pid: int) -> None:
        """Its process, or its thread in the process `pid`, exists."""
        self.pid = pid
        self.pid_known.set()

    def mark_ended(self, exitcode: int | None) -> None:
        """It has ended, or was abandoned.

        Args:
            exitcode: As in `multiprocessing`; None if it is unknown.
        """
        self.gone = True
        self.exitcode = exitcode
        self.pid_known.set()
        self.ended.set()

    @property
    def native_id(self) -> int:
        """The kernel's id of the thread that loads; of a process its main thread. 0 until it exists."""
        return self.pid

    @property
    def node(self) -> str:
        """The node of a cluster that it runs on; "" for none."""
        return ""

    @property
    def machine(self) -> Machine | None:
        """The machine that it runs on; None for this one."""
        return None

    @property
    def stderr_tail(self) -> str:
        """The last lines that it wrote to its standard error."""
        return ""

    def begun(self, held: list[Task]) -> list[Task]:
        """Those of the tasks that it holds that it is processing: the first one, unless its dataset is asynchronous."""
        return held[:1]

    def kill(self) -> None:
        """End it at once, whatever it is doing. The pool reports `WorkerGone`."""
        raise NotImplementedError

    def stack_request(self) -> Callable[[], str]:
        """Return a function that requests the worker's Python stack and waits for it.

        This is called with the engine's lock held, and the function without it.

        Raises:
            NbloaderError: There is no stack. The function raises it if the worker does not respond.
        """
        raise NbloaderError(f"workers of the kind {self.kind!r} do not report their stack")

    def sample_stack(self) -> StackCount | None:
        """Sample its stack, if it produces a batch. Called without the engine's lock, on the line profiler's thread.

        Returns:
            The sample. None if it comes later, with `StacksSampled`, or if there is none.
        """
        return None

    def busy_since(self) -> float:
        """When it began to fetch or collate, `time.perf_counter_ns()`; infinity if it does neither."""
        status = self.status
        return status.since if status.state in (WorkerState.FETCHING, WorkerState.COLLATING) else math.inf

    def fetch_progress(self, held: list[Task]) -> FetchProgress | None:
        """How far it has come with the batch that it fetches sample by sample; None if it does not do so now.

        Args:
            held: The batches that it was given.
        """
        status = self.status
        position, since, number = status.position, status.since, status.number
        task = next((task for task in held if task.job == number and task.run == status.run), None)
        if task is None or position < 0 or status.state != WorkerState.FETCHING:
            return None
        indices = task.indices
        if not isinstance(indices, (list, tuple, IndexArray)):
            return None
        return FetchProgress(task.number, since, min(position, len(indices)), len(indices))

    def gauge(self, held: list[Task], runs: Collection[int], exit_reason: str, produced: int) -> WorkerGauge:
        """What is known of it now. This reads its status and does not ask it.

        Args:
            held: The batches that it was given.
            runs: Numbers of the iterations that are open.
            exit_reason: Why the worker before it ended.
            produced: Batches produced under its id.
        """
        status = self.status
        state, number = status.state, status.number
        at = None
        sample = None
        if number >= 0 and state != WorkerState.STARTING:
            task = next((task for task in held if task.job == number and task.run == status.run), None)
            at = number if task is None else task.number
            if task is not None and state == WorkerState.FETCHING:
                sample = _sample(task.indices, status.position)
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
            held=tuple(dict.fromkeys(task.number for task in held[:LISTED] if task.run in runs)),
            left=at is not None and not (held and held[0].run in runs),
            made=produced,
            kind=self.kind,
            node=self.node,
            machine=self.machine,
        )


def _sample(indices: Any, position: int) -> Any:
    """The index of the sample at a position. Both are read while the worker continues, so they may not match."""
    if position < 0:
        return None
    if not isinstance(indices, (list, tuple, IndexArray)):
        return indices
    return indices[position] if position < len(indices) else None


class Produced(Protocol):
    """A batch that the consumer's thread has produced and not reported yet."""

    @property
    def task(self) -> Task:
        """The batch."""

    @property
    def message(self) -> WorkerMessage | None:
        """The report; None if there is none, since the worker was killed meanwhile."""

    def report(self) -> None:
        """Have `WorkerPool.poll` report it."""

    def release(self) -> None:
        """It was reported or taken: forget the task."""


class WorkerSetup(Protocol):
    """What workers are given when they start: dataset, `collate_fn`, `worker_init_fn` and `on_error`."""

    @property
    def identity(self) -> Any:
        """Equal for two setups if workers that have one of them need not be given the other."""

    @property
    def self_contained(self) -> bool:
        """Whether `identity` covers everything: of two setups that are equal, new workers may be given either."""

    def holds(self, *parts: Any) -> bool:
        """Whether it was made of these, and they are unchanged. False if only another setup could show it."""


class LocalSetup(NamedTuple):
    """The setup of workers in this process: the objects themselves."""

    dataset: Any
    collate_fn: Any
    worker_init_fn: Any
    on_error: Any

    @property
    def identity(self) -> tuple[int, ...]:
        """See `WorkerSetup`."""
        return tuple(map(id, self))

    @property
    def self_contained(self) -> bool:
        """See `WorkerSetup`."""
        return True

    def holds(self, *parts: Any) -> bool:
        """See `WorkerSetup`."""
        return self.identity == tuple(map(id, parts))


class WorkerPool(ABC):
    """The workers of one loader. It decides nothing: it does what the engine asks for and reports what happens.

    All methods are called with the engine's lock held. The last ones are optional: not every kind needs them.
    """

    seeds: Mapping[int, int] = MappingProxyType({})
    """The base seeds of the open iterations, by their number; kept up to date by the engine."""

    wakes_for_each: ClassVar[bool] = False
    """Whether each batch that arrives wakes a consumer that waits for `fileno()`, and interrupts a worker for that."""

    @property
    @abstractmethod
    def handles(self) -> Mapping[int, WorkerHandle]:
        """The workers that have not ended, by their unique number."""

    @abstractmethod
    def fileno(self, uid: int | None = None) -> int | None:
        """A file descriptor that is readable while `poll` has something to report; None for an inline pool.

        Args:
            uid: The worker whose batches alone are awaited, if the pool can tell them apart; None for everything.
        """

    @abstractmethod
    def start(self, worker: int, options: WorkerOptions, setup: Any) -> WorkerHandle:
        """Start a worker. It reports `WorkerLaunched`, and later `WorkerInitialized` or `WorkerInitFailed`.

        Args:
            worker: Worker id.
            options: Its configuration.
            setup: What `WorkerKind.pack` returned.

        Raises:
            OSError: The system provides no process, thread, pipe or memory.
        """

    @property
    def usable(self) -> bool:
        """Whether it can have workers. If not, it is ended, and another one is created, when an epoch begins."""
        return True

    def can_start(self, setup: Any) -> bool:  # noqa: ARG002 - optional
        """Whether `start` serves its purpose on any thread, or else this is the right one: the consumer's.

        Args:
            setup: What `WorkerKind.pack` returned.
        """
        return True

    @abstractmethod
    def submit(self, uid: int, tasks: Sequence[Task]) -> list[tuple[Task, Exception]]:
        """Have a worker produce batches, one after the other. It reports `BatchDone` or `ShardExhausted` for each.

        Returns:
            The tasks that cannot be sent, and why. The worker does not get them.
        """

    @abstractmethod
    def cancel(self, uid: int, run: int, jobs: tuple[int, ...] | None) -> None:
        """Have a worker drop tasks of an iteration that has ended. What it has begun may still be reported.

        Args:
            uid: The worker; it may have ended.
            run: Number of the iteration.
            jobs: Their job numbers; None for the whole iteration. Then `ShardExhausted` is reported for each task that
                is dropped, and iterators over its shards are released.
        """

    @abstractmethod
    def poll(self, timeout: float | None) -> list[WorkerMessage]:
        """Wait until something happens, and report it.

        Args:
            timeout: Seconds; 0 does not wait, None waits without limit.
        """

    @abstractmethod
    def close(self, grace: float) -> list[WorkerMessage]:
        """End all workers: those that have not ended after `grace` seconds are killed.

        Returns:
            What there was to report meanwhile, with a `WorkerGone` for each worker.
        """

    def revoke(self, uid: int, tasks: Sequence[Task]) -> list[Task]:  # noqa: ARG002 - optional
        """Take tasks back from a worker, so that another one can produce them. Never waits.

        Without a fault each sample is fetched exactly once: a task that the worker has begun, or may be about to begin,
        is not revoked. A pool that cannot tell revokes nothing; its workers then keep what they were given. A pool that
        must ask another machine returns nothing, and reports `TasksRevoked` later.

        Args:
            uid: The worker; it may have ended.
            tasks: What to take back, of what was submitted to it.

        Returns:
            The tasks that this worker will not begin, and will not report.
        """
        return []

    def next_task(self, run: int) -> Task | None:  # noqa: ARG002 - for inline pools
        """What `run_next` would produce first; None if it would produce nothing."""
        return None

    def run_next(self, run: int) -> bool:  # noqa: ARG002 - for inline pools
        """Produce the tasks of an iteration on this thread, where a consumer would block.

        This is called without the engine's lock.

        Returns:
            Whether `poll` has something to report. Otherwise the consumer blocks.
        """
        return False

    def produce_first(self, run: int) -> Produced | None:  # noqa: ARG002 - for inline pools
        """Produce the first task of an iteration as `run_next`, and leave it to the caller to report it.

        Returns:
            None if there is no task.
        """
        return None

    def wake_after(self, batches: int) -> bool:  # noqa: ARG002 - optional
        """Let `fileno()` become readable only when so many batches have arrived, or anything else.

        It is for a consumer that is about to block, and looks again soon; it ends with the next `poll`. Each wake-up
        of a thread beside another one that computes costs both of them a switch of the interpreter lock.

        Args:
            batches: Their number; 1 to wake for each.

        Returns:
            Whether this pool does so.
        """
        return False

    def learn_layout(self, payload: BatchPayload) -> None:  # noqa: B027 - optional
        """A chunk of a batch has arrived: the next batches may have the same layout."""

    def release_memory(self) -> None:  # noqa: B027 - optional
        """There is nothing to do for now: release memory that the next epoch does not need at once."""

    def partial_output(self) -> list[tuple[str, str]]:
        """Take what workers wrote after their last line end, as (stream, text)."""
        return []

    def abandon(self) -> None:
        """End all workers at once and ignore what they report: an interrupt may have left the pool in any state."""
        for handle in list(self.handles.values()):
            handle.mark_ended(None)
            handle.kill()
        self.dispose()

    def dispose(self) -> None:  # noqa: B027 - optional
        """Release what the pool itself holds, after all workers have ended."""


class WorkerKind(ABC):
    """A kind of worker, as configured for one loader."""

    inline: ClassVar[bool] = False
    """Whether the consumer's own thread produces the batches, in `WorkerPool.run_next`."""
    in_process: ClassVar[bool] = True
    """Whether the workers are threads of this process."""
    deep_bytes: ClassVar[int | None] = None
    """See `PrefetchPolicy`."""

    @property
    def connected(self) -> bool:
        """Whether what `pack` returned can still be used. Called by consumers."""
        return True

    def prepare(self, dataset: Any, *functions: Any) -> None:  # noqa: B027 - optional
        """Start what the workers will need. Called when the loader is constructed, before the first epoch.

        Args:
            dataset: The dataset.
            functions: The functions that workers will be given, or None.
        """

    def pack(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> WorkerSetup:
        """Convert the dataset and functions to what workers of this kind are given.

        Raises:
            DatasetTransferError: They cannot be given to them.
        """
        return LocalSetup(dataset, collate_fn, worker_init_fn, on_error)

    def inherits(self, setup: Any) -> bool:  # noqa: ARG002 - optional
        """Whether workers have got the setup by being forked from this process: only new ones see it as it is now.

        Args:
            setup: What `pack` returned.
        """
        return False

    @abstractmethod
    def create_pool(self) -> WorkerPool:
        """Create a pool without workers."""
