"""The notebook's end of the connection to one node. The state machine is described in the package's docstring."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, Protocol

from nbloader._platform import process_space
from nbloader._util.format import megabytes
from nbloader.batch.payload import unpack_header
from nbloader.errors import NbloaderError, WorkerStartError
from nbloader.events import Machine
from nbloader.events.failures import LoaderFailure
from nbloader.shm.segment import SegmentReader
from nbloader.workers.api import OutputTail, WorkerHandle
from nbloader.workers.cluster.clock import ClockOffset
from nbloader.workers.cluster.incoming import IncomingBatch, IncomingBatches, bytes_to_follow
from nbloader.workers.cluster.placement import NodeInfo
from nbloader.workers.cluster.protocol import (
    BatchBegin,
    Command,
    KillWorker,
    NodeClosed,
    NodeFault,
    NodeHello,
    NodeReport,
    SampleStack,
    StatusEntry,
)
from nbloader.workers.cluster.ray_cluster import NodeLostError, StoreFullError
from nbloader.workers.messages import (
    BatchDone,
    OutputText,
    PoolFailed,
    WorkerGone,
    WorkerInitialized,
    WorkerMessage,
)
from nbloader.workers.status import LocalStatus

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

REPORTS = 2
"""Number of reports that are requested from a node at a time: while one is copied, the next is built and sent."""


class Connection(Protocol):
    """The calls to a node: see `RayConnection`."""

    def hello(self) -> NodeHello:
        """Wait until the node's actor runs, and ask which versions it has."""

    def execute(self, commands: bytes, setup: Any = None) -> None:
        """Send commands without waiting."""

    def request_report(self, credit: int) -> None:
        """Request one more report."""

    def next_report(self) -> tuple[NodeReport, int]:
        """Wait for the report that was requested first. Return it, and the time of its request."""

    def stack(self, uid: int) -> str:
        """Return the current Python stack of a worker."""

    def kill(self) -> None:
        """Kill the actor."""


class LinkState(Enum):
    """The state of a link: see the package's docstring."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    ENDED = "ended"
    LOST = "lost"
    FAILED = "failed"


class RayHandle(WorkerHandle):
    """A worker process on a node.

    Args:
        worker: Worker id.
        segments: The segments of this process that hold the worker's batches.
        send: Sends a command to the worker's node, or drops the command if the worker has no node yet.
        request_stack: Requests the worker's stack from its node.
    """

    in_process: ClassVar[bool] = False
    status: LocalStatus

    def __init__(
        self,
        worker: int,
        segments: SegmentReader,
        send: Callable[[RayHandle, Command], None],
        request_stack: Callable[[RayHandle], str],
    ) -> None:
        super().__init__(worker, "ray", LocalStatus(0))
        self.segments = segments
        self.link: NodeLink | None = None
        """The link to the node that the worker runs on; None until the worker is placed."""
        self.launched = False
        """Whether the node has reported anything about the worker, so that its start was at least attempted."""
        self.killed = False
        self.sent = 0
        """Number of tasks that were sent to the worker. The last one has this sequence number."""
        self.begun_to = 0
        """See `SharedStatus.begun`."""
        self.stderr = OutputTail()
        self._send = send
        self._request_stack = request_stack

    @property
    def native_id(self) -> int:
        """See `WorkerHandle`. 0 if the worker runs on another machine, whose kernel ids mean nothing here."""
        return self.pid if self.machine is None else 0

    @property
    def node(self) -> str:
        """See `WorkerHandle`."""
        return "" if self.link is None else self.link.node.name

    @property
    def machine(self) -> Machine | None:
        """See `WorkerHandle`. Also None for simulated nodes and for the node that the notebook runs on."""
        link = self.link
        return None if link is None else link.machine

    @property
    def stderr_tail(self) -> str:
        """See `WorkerHandle`."""
        return str(self.stderr)

    def begun(self, held: list[Any]) -> list[Any]:
        """See `WorkerHandle`."""
        if not self.begun_to:
            return super().begun(held)
        return [task for task in held if task.sequence <= self.begun_to]

    def kill(self) -> None:
        """See `WorkerHandle`."""
        if not self.killed:
            self.killed = True
            self._send(self, KillWorker(self.uid))

    def sample_stack(self) -> None:
        """See `WorkerHandle`. The sample arrives later, in a message from the worker."""
        if self.status.pid and not self.gone:
            self._send(self, SampleStack(self.uid))

    def stack_request(self) -> Callable[[], str]:
        """See `WorkerHandle`."""
        if not self.status.pid:
            raise NbloaderError(f"worker {self.worker} is being started: it has no Python stack yet")
        return lambda: self._request_stack(self)


class NodeLink:
    """One node, its workers, and the thread that waits for its reports.

    Args:
        node: The node.
        connection: The calls to the node.
        batches: The segments into which batches are copied.
        put: Takes messages for the engine. Called on the link's thread.
        on_change: Called on the link's thread when the state has changed. When a link is lost, the link itself does not
            report that its workers have ended: the callee does.
        check: Raises an exception if the node has different versions of Python or nbloader.
    """

    def __init__(
        self,
        node: NodeInfo,
        connection: Connection,
        batches: IncomingBatches,
        put: Callable[[WorkerMessage], None],
        on_change: Callable[[NodeLink], None],
        check: Callable[[NodeHello, NodeInfo], None],
    ) -> None:
        self.node = node
        self.connection = connection
        self.state = LinkState.OPENING
        self.credit = 1
        """Bytes of batches that a report may carry."""
        self.clock = ClockOffset()
        self.machine: Machine | None = None
        """The machine of the node's workers; None if it is this machine. Known once the link is open."""
        self.handles: dict[int, RayHandle] = {}
        """The node's workers that have not ended, by uid. Changed by the pool's thread and by the link's thread."""
        self.outbox: deque[Command] = deque()
        """Commands that have not been sent yet."""
        self.setups: set[int] = set()
        """Versions of the dataset that the node has."""
        self.why = ""
        """Why the link was lost or has failed."""
        self.created = time.monotonic()
        self.noticed = False
        """Whether a notice in the cell has said that the link takes long to open."""
        self._batches = batches
        self._put = put
        self._on_change = on_change
        self._check = check
        self._partial: IncomingBatch | None = None
        self.thread = threading.Thread(target=self._run, name=f"nbloader-node-{node.node_id[:8]}", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether workers can be placed on the node."""
        return self.state in (LinkState.OPENING, LinkState.OPEN)

    def _run(self) -> None:
        try:
            self._open()
            while self.state in (LinkState.OPEN, LinkState.CLOSING):
                self._receive()
        except NodeLostError as error:
            if self.state is not LinkState.ENDED:
                self._end(LinkState.LOST, str(error))
        except WorkerStartError as error:  # raised by `check`
            self._fail(error)
        except StoreFullError as error:
            self._fail(NbloaderError(self._store_full_message(error)))
        except Exception as error:
            log.exception("the link to node %s failed", self.node.name)
            self._fail(NbloaderError(f"the link to node {self.node.name} failed: {type(error).__name__}: {error}"))
        self.connection.kill()

    def _fail(self, error: Exception) -> None:
        for uid in list(self.handles)[:1]:
            self._put(PoolFailed(uid, error))
        self._end(LinkState.FAILED, str(error))

    def _store_full_message(self, error: StoreFullError) -> str:
        return (
            f"the object store of node {self.node.name} ({megabytes(self.node.store_bytes)}) is full: a report with at "
            f"most {megabytes(self.credit)} of batches could not be stored, although Ray waited and tried to spill "
            f"objects to disk ({error}). Other objects in the cluster fill it: release them, start Ray with a larger "
            "store (ray start --object-store-memory=<bytes>), free disk space on the node, or let nbloader use less of "
            "the store with ray=RayOptions(window_bytes=...)"
        )

    def _end(self, state: LinkState, why: str) -> None:
        self.why = why
        if self._partial is not None:
            self._partial.drop()
            self._partial = None
        self._change(state)

    def _change(self, state: LinkState) -> None:
        self.state = state
        self._on_change(self)

    def _open(self) -> None:
        hello = self.connection.hello()
        self._check(hello, self.node)
        if hello.processes != process_space():
            self.machine = Machine(hello.processes, hello.cores)
        for _ in range(REPORTS):
            self.connection.request_report(self.credit)
        if self.state is LinkState.OPENING:
            self._change(LinkState.OPEN)

    # ---- reports ------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        report, requested = self.connection.next_report()
        received = _clock()
        self.clock.observe(requested, report.begun, report.sent, received)
        pieces = deque(report.data)
        entries, sent = pickle.loads(report.entries), report.sent
        del report
        if self._partial is not None and pieces:
            self._continue(pieces.popleft())
        for entry in entries:
            if isinstance(entry, BatchBegin):
                self._begin(entry, sent, pieces)
            elif isinstance(entry, StatusEntry):
                self._take_status(entry)
            elif isinstance(entry, NodeClosed):
                self._change(LinkState.ENDED)
                return
            elif isinstance(entry, NodeFault):
                raise NbloaderError(f"a fault on the node:\n{entry.error}")
            else:
                self._take_message(entry)
        self.connection.request_report(self.credit)  # only now, when the copied data no longer occupies the store

    def _begin(self, begin: BatchBegin, sent: int, pieces: deque[Any]) -> None:
        handle = self.handles.get(begin.uid)
        nbytes, block = bytes_to_follow(begin), None
        if nbytes and handle is not None:
            try:
                block = self._batches.begin(nbytes)
            except (MemoryError, OSError) as error:
                header = unpack_header(begin.header)
                self._put(BatchDone(begin.uid, header.epoch, header.job, LoaderFailure(error)))
        self._partial = batch = IncomingBatch(begin, sent, block, self._batches)
        if batch.left:
            self._continue(pieces.popleft())
        else:
            self._complete(batch)

    def _continue(self, piece: Any) -> None:
        batch = self._partial
        if batch is not None:
            batch.write(piece)
            if not batch.left:
                self._complete(batch)

    def _complete(self, batch: IncomingBatch) -> None:
        self._partial = None
        handle = self.handles.get(batch.begin.uid)
        if handle is None or batch.ignored:
            batch.drop()
            return
        payload = batch.finish(handle, self.node.name, self.clock, _clock())
        header = batch.header
        self._put(BatchDone(handle.uid, header.epoch, header.job, payload, batch.begin.failed_samples))

    def _take_status(self, entry: StatusEntry) -> None:
        handle = self.handles.get(entry.uid)
        if handle is None:
            return
        status = handle.status
        status.state, status.epoch, status.job = entry.state, entry.epoch, entry.job
        status.since, status.position = self.clock.here(entry.since), entry.position
        status.pid = entry.pid
        if entry.pid and not handle.pid:
            handle.mark_launched(entry.pid)
        handle.begun_to = entry.begun

    def _take_message(self, message: WorkerMessage) -> None:
        handle = self.handles.get(message.uid)
        if handle is None:
            return
        handle.launched = True
        if isinstance(message, OutputText) and message.stream == "stderr":
            handle.stderr.keep(message.text)
        if isinstance(message, WorkerInitialized) and handle.killed:
            return
        if isinstance(message, WorkerGone):
            del self.handles[message.uid]
        self._put(message)
