"""The kind of workers that run on the nodes of a cluster, what they are sent, and their pool: see the package."""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from nbloader._util.signals import raised_by_handler
from nbloader.batch.task import Task, pack_indices
from nbloader.errors import DatasetTransferError, NbloaderError, WorkerStartError
from nbloader.transport.environment import Environment
from nbloader.transport.process_setup import pickle_parts
from nbloader.workers.api import WorkerKind, WorkerPool
from nbloader.workers.cluster.incoming import IncomingBatches
from nbloader.workers.cluster.link import REPORTS, LinkState, NodeLink, RayHandle
from nbloader.workers.cluster.placement import NodeInfo, NodeLoad, choose, surplus, usable, why_unusable
from nbloader.workers.cluster.protocol import (
    CancelTasks,
    CloseNode,
    Command,
    DropSetup,
    KillWorker,
    LoadSetup,
    ReleaseMemory,
    SentTask,
    SetEnvironment,
    StartWorker,
    SubmitTasks,
)
from nbloader.workers.cluster.ray_cluster import SHUT_DOWN, NodeLostError, RayCluster, check_versions
from nbloader.workers.message_queue import MessageQueue
from nbloader.workers.messages import (
    BatchDone,
    OutputText,
    PoolFailed,
    WorkerGone,
    WorkerInitialized,
    WorkerMessage,
)
from nbloader.workers.process_pool import ProcessSetup
from nbloader.workers.ray_options import RayOptions
from nbloader.workers.seeders import dump_seeders
from nbloader.workers.spec import Parts, WorkerSpec

log = logging.getLogger(__name__)

LOOK_FOR_NODES = 2.0
"""Seconds between two queries for the nodes of the cluster: Ray has no public notification of a node that joins."""
SUSPECT = 30.0
"""Seconds for which a node is avoided after a link to it was lost: Ray may take this long to notice a dead node."""
LONG_OPENING = 8.0
"""Seconds after which a notice in the cell says that a node has not started its actor."""
MAX_PLACEMENTS = 5
"""Maximum number of nodes on which the pool tries to start a worker, if they are lost one after another."""
CLOSE_TIMEOUT = 3.0
"""Seconds beyond the grace period of `close` that a node gets to report that its workers have ended."""
MAX_WINDOW = 1 << 30
"""Upper limit for the default of `RayOptions.window_bytes`."""
WINDOW_PART = 4
"""The default of `RayOptions.window_bytes` is 1/`WINDOW_PART` of the smallest object store."""
MIN_CREDIT, MAX_CREDIT = 256 << 10, 32 << 20
"""Limits of `NodeLink.credit`, in bytes. The lower one does not apply if `RayOptions.window_bytes` is set."""


class RayKind(WorkerKind):
    """Worker processes on the nodes of a Ray cluster.

    Args:
        spec: The configuration of the workers.
        cluster: The connection to the cluster; None for that of this process.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """

    in_process: ClassVar[bool] = False
    takes_ray_options: ClassVar[bool] = True
    reads_iterables: ClassVar[bool] = True

    def __init__(self, spec: WorkerSpec, cluster: RayCluster | None = None) -> None:
        super().__init__(spec)
        self.cluster = RayCluster() if cluster is None else cluster

    def keeps_pool(self, setup: Any) -> bool:  # noqa: ARG002
        """See `WorkerKind`. The actors on the nodes run the workers of the next epoch, too."""
        return True

    @property
    def connected(self) -> bool:
        """See `WorkerKind`. False after Ray was shut down; `pack` then connects again."""
        return self.cluster.current

    def pack(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> ClusterSetup:
        """See `WorkerKind`. Also connects to the cluster, on the consumer's thread, before workers start.

        Raises:
            DatasetTransferError: The dataset or a function cannot be pickled or sent to other machines.
            NbloaderError: This process is connected to a cluster in an unsupported way.
        """
        self.cluster.connect()
        parts = Parts(dataset, collate_fn, worker_init_fn, on_error)
        pickled = pickle_parts(*parts, here=False)
        if pickled.spawning.fds:
            raise DatasetTransferError(
                f"the dataset ({type(dataset).__name__}) holds objects that only processes of one machine can "
                "share: queues, values or connections of multiprocessing, or tensors after share_memory_(). It cannot "
                "be sent to other machines: remove these objects, or create them on first use inside __getitem__"
            )
        return ClusterSetup(ProcessSetup(pickled, parts), self.cluster)

    def create_pool(self) -> RayPool:
        """See `WorkerKind`."""
        return RayPool(self.cluster, self.spec.ray or RayOptions())


class ClusterSetup:
    """A version of the dataset and functions. It is pickled once, and put into the object store when a worker needs it.

    Args:
        setup: The pickled dataset and functions.
        cluster: The cluster whose object store receives the pickle.
    """

    _versions = itertools.count()

    def __init__(self, setup: ProcessSetup, cluster: RayCluster) -> None:
        self._setup = setup
        self._cluster = cluster
        self.version = next(self._versions)
        self.identity = setup.identity
        """See `WorkerSetup`."""
        self.command = LoadSetup(self.version)
        self.reference: Any = None
        """Reference to the pickle in the object store; None before `put`."""
        self._session: str | None = None

    def put(self, options: RayOptions) -> None:
        """Put the pickle into the object store, once for each connection of this process. No-op if not connected.

        Raises:
            DatasetTransferError: The pickle does not fit into the object store.
        """
        cluster = self._cluster
        if cluster.connected and cluster.session != self._session:
            pickled = self._setup.pickled.parts()
            self.reference = cluster.put(pickled.data, pickled.buffers, options)
            self._session = cluster.session


@dataclass(slots=True)
class _Start:
    """The start of a worker: it waits to be placed on a node, and is kept until the worker has ended."""

    handle: RayHandle
    spec: WorkerSpec
    setup: ClusterSetup
    placements: int = 0


class RayPool(WorkerPool):
    """The workers of one loader on the nodes of a cluster.

    Args:
        cluster: The cluster.
        options: How the cluster is used.
    """

    def __init__(self, cluster: RayCluster, options: RayOptions) -> None:
        self._cluster = cluster
        self._session = cluster.session
        self._options = options
        self._handles: dict[int, RayHandle] = {}
        self._messages = MessageQueue()
        self._batches = IncomingBatches()
        self._environment: Environment | None = None
        self._stale = False
        """Whether workers must be given the present environment."""
        self._changed = threading.Condition()
        """Guards the attributes below."""
        self._links: list[NodeLink] = []
        self._suspects: dict[str, float] = {}  # when a link was lost, by node id
        self._to_start: list[_Start] = []
        self._starts: dict[int, _Start] = {}  # of workers that were placed, by uid
        self._closing = False
        self._failure: Exception | None = None
        self._looked = 0.0
        self._credit = MIN_CREDIT
        self._known: set[str] = set()  # ids of nodes
        self._thread = threading.Thread(target=self._run_thread, name="nbloader-ray", daemon=True)

    @property
    def handles(self) -> Mapping[int, RayHandle]:
        """See `WorkerPool`."""
        return self._handles

    @property
    def usable(self) -> bool:
        """See `WorkerPool`. False once the pool's thread has failed, or Ray has been shut down or reconnected."""
        return self._failure is None and self._session == self._cluster.session

    def fileno(self) -> int:
        """See `WorkerPool`."""
        return self._messages.fileno()

    # ---- from the engine --------------------------------------------------------------------------------------------

    def start(self, worker: int, spec: WorkerSpec, setup: ClusterSetup) -> RayHandle:
        """See `WorkerPool`.

        Raises:
            DatasetTransferError: The dataset does not fit into an object store.
        """
        setup.put(self._options)
        handle = RayHandle(worker, self._batches.reader, self._send, self._request_stack)
        self._handles[handle.uid] = handle
        with self._changed:
            self._to_start.append(_Start(handle, replace(spec, seeders=dump_seeders(), ray=None), setup))
            if self._failure is not None:
                self._messages.put(PoolFailed(handle.uid, self._failure))
            elif not self._thread.ident:
                self._thread.start()
            self._changed.notify()
        return handle

    def submit(self, uid: int, tasks: Sequence[Task]) -> list[tuple[Task, Exception]]:
        """See `WorkerPool`."""
        handle = self._handles[uid]
        link = handle.link
        if link is None:
            raise RuntimeError("a worker was given a task before it was ready")
        dumped: list[bytes] = []
        refused: list[tuple[Task, Exception]] = []
        for task in tasks:
            try:
                dumped.append(_dump(task))
            except Exception as error:  # pickling runs the user's code, which may raise anything
                if raised_by_handler(error):
                    raise
                refused.append((task, error))
            else:
                handle.sent += 1
                task.sequence = handle.sent
        if dumped:
            self._send(handle, SubmitTasks(uid, dumped))
        return refused

    def missing(self, setup: ClusterSetup, seed: int) -> Callable[[], Environment] | None:  # noqa: ARG002
        """See `WorkerPool`: the environment of this process."""
        return Environment.of_this_process if self._environment is None or self._stale else None

    def inherit(self, inherited: Environment) -> None:
        """See `WorkerPool`. If it has changed, the change is sent to the nodes."""
        before, self._environment, self._stale = self._environment, inherited, False
        if inherited != before:
            with self._changed:
                for link in self._links:
                    link.outbox.append(self._environment_command(inherited))
                self._changed.notify()

    def renew(self) -> None:
        """See `WorkerPool`."""
        self._stale = True

    def _environment_command(self, environment: Environment) -> SetEnvironment:
        return SetEnvironment(environment, self._options.runtime_env is not None)

    def cancel(self, uid: int, epoch: int, jobs: tuple[int, ...] | None) -> None:
        """See `WorkerPool`."""
        handle = self._handles.get(uid)
        if handle is not None:
            self._send(handle, CancelTasks(uid, epoch, jobs))

    def release_memory(self) -> None:
        """See `WorkerPool`."""
        self._batches.rest()
        with self._changed:
            for link in self._links:
                link.outbox.append(ReleaseMemory())
            self._changed.notify()

    def poll(self, timeout: float | None) -> list[WorkerMessage]:
        """See `WorkerPool`."""
        messages: list[WorkerMessage] = []
        for message in self._messages.take(timeout):
            handle = self._handles.get(message.uid)
            if handle is None:
                if isinstance(message, BatchDone):
                    message.outcome.discard()
                continue  # the worker has ended
            if isinstance(message, WorkerInitialized):
                handle.ready = True
            elif isinstance(message, WorkerGone):
                handle.mark_ended(message.exitcode)
                del self._handles[message.uid]
                with self._changed:
                    if self._starts.pop(message.uid, None) is not None:
                        self._drop_setups()
            messages.append(message)
        return messages

    def _drop_setups(self) -> None:
        """Tell nodes to release the versions of the dataset that no worker uses."""
        used = {start.setup.version for start in (*self._to_start, *self._starts.values())}
        for link in self._links:
            unused = link.setups - used
            link.setups -= unused
            link.outbox.extend(map(DropSetup, unused))
        self._changed.notify()

    def _send(self, handle: RayHandle, command: Command) -> None:
        with self._changed:
            link = handle.link
            if link is not None:
                link.outbox.append(command)
                self._changed.notify()
                return
            if handle.killed:  # the worker was killed before it had a node
                self._to_start = [start for start in self._to_start if start.handle is not handle]
                self._messages.put(WorkerGone(handle.uid, None))

    def _request_stack(self, handle: RayHandle) -> str:
        link = handle.link
        if link is None or handle.gone:
            raise NbloaderError(f"worker {handle.worker} has ended")
        return link.connection.stack(handle.uid)

    # ---- ending -------------------------------------------------------------------------------------------------

    def close(self, grace: float) -> list[WorkerMessage]:
        """See `WorkerPool`. The pool gives up on a node that is late, and Ray ends the node's processes."""
        with self._changed:
            self._closing = True
            self._to_start.clear()
            for link in self._links:
                if link.state is LinkState.OPEN:
                    link.state = LinkState.CLOSING
                    link.outbox.append(CloseNode(grace))
            self._changed.notify()
            placed = {uid for link in self._links if link.state is LinkState.CLOSING for uid in link.handles}
        messages: list[WorkerMessage] = []
        deadline = time.monotonic() + (grace + CLOSE_TIMEOUT if self._cluster.connected and self.usable else 0)
        while placed & self._handles.keys() and (left := deadline - time.monotonic()) > 0:
            messages += self.poll(left)
        messages += self.poll(0)
        for uid, handle in list(self._handles.items()):
            handle.mark_ended(None)
            messages.append(WorkerGone(uid, None))
        self._handles.clear()
        return messages

    def dispose(self) -> None:
        """See `WorkerPool`. The threads end by themselves when the actors have ended."""
        with self._changed:
            links = [link for link in self._links if link.state is not LinkState.ENDED]
        for link in links:
            link.connection.kill()
        with self._changed:
            self._changed.notify()
            threads = [self._thread, *(link.thread for link in self._links)]
        for thread in threads:
            if thread.is_alive():
                thread.join(1.0)
        self._messages.close()

    # ---- the pool's thread ------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        """Place workers, watch for nodes, and send commands, until the pool is closed and all commands are sent."""
        try:
            while self._work():
                pass
        except NbloaderError as error:
            self._fail(error)
        except Exception as error:
            log.exception("the thread of the Ray workers failed")
            self._fail(NbloaderError(f"the thread of the Ray workers failed: {type(error).__name__}: {error}"))

    def _work(self) -> bool:
        with self._changed:
            self._changed.wait_for(self._has_work, None if self._closing else LOOK_FOR_NODES)
            starts, self._to_start = self._to_start, []
            sending = [link for link in self._links if link.outbox and link.state is not LinkState.OPENING]
            if self._closing and not sending:
                return False
            self._notice_long_openings()
        for link in sending:
            self._flush(link)
        if not self._closing and (starts or time.monotonic() - self._looked > LOOK_FOR_NODES):
            self._place(starts)
        return True

    def _has_work(self) -> bool:
        opened = any(link.outbox and link.state is not LinkState.OPENING for link in self._links)
        return bool(self._closing or self._to_start or opened)

    def _flush(self, link: NodeLink) -> None:
        """Send the queued commands to a node. If the node is lost, its commands are dropped."""
        setups: dict[int, ClusterSetup] = {}
        commands: list[Command] = []
        with self._changed:
            while link.outbox:
                command = link.outbox.popleft()
                if isinstance(command, StartWorker):
                    start = self._starts.get(command.uid)
                    if start is None:  # the worker was given up in the meantime
                        continue
                    if command.setup not in link.setups:
                        setups[command.setup] = start.setup
                commands.append(command)
        # A version that no worker used while this one was placed is loaded again: before the commands, so not dropped.
        commands = [one for one in commands if not (isinstance(one, DropSetup) and one.version in setups)]
        try:
            for version, setup in setups.items():  # one call each, since a call carries one pickle
                setup.put(self._options)
                link.connection.execute(pickle.dumps([setup.command], 5), setup.reference)
                link.setups.add(version)
            if commands and link.state in (LinkState.OPEN, LinkState.CLOSING):
                link.connection.execute(pickle.dumps(commands, 5))
        except NodeLostError:
            log.debug("commands for node %s were not sent", link.node.name, exc_info=True)

    def _place(self, starts: list[_Start]) -> None:
        """Start workers on the nodes that are alive, and move running workers to nodes that have joined."""
        try:
            alive = self._cluster.nodes()
            nodes = usable(alive, self._options)
        except Exception as error:
            if self._cluster.connected:
                raise
            raise NbloaderError(SHUT_DOWN) from error
        self._looked = time.monotonic()
        self._limit_window(nodes)
        for start in starts:
            if not nodes:
                why = f"no node of the Ray cluster can run a worker: {why_unusable(alive, self._options)}"
                self._messages.put(PoolFailed(start.handle.uid, WorkerStartError(why)))
                return
            self._place_one(start, nodes)
        joined = {node.node_id for node in nodes} - self._known
        if self._known and joined:
            self._rebalance(nodes)
        self._known = {node.node_id for node in nodes}

    def _limit_window(self, nodes: list[NodeInfo]) -> None:
        """Divide the window of bytes in the object stores among the nodes."""
        smallest = min((node.store_bytes for node in nodes), default=0)
        window = self._options.window_bytes or min(MAX_WINDOW, smallest // WINDOW_PART)
        credit = window // (REPORTS * max(1, len(nodes)))
        if self._options.window_bytes is None:
            credit = max(MIN_CREDIT, credit)
        with self._changed:
            for link in self._links:
                link.credit = max(1, min(MAX_CREDIT, credit))
            self._credit = max(1, min(MAX_CREDIT, credit))

    def _loads(self, nodes: list[NodeInfo]) -> list[NodeLoad]:
        now = time.monotonic()
        counts: dict[str, int] = {}
        for link in self._links:
            there = sum(not handle.killed for handle in list(link.handles.values())) if link.alive else 0
            counts[link.node.node_id] = counts.get(link.node.node_id, 0) + there
        return [
            NodeLoad(node, counts.get(node.node_id, 0), now - self._suspects.get(node.node_id, -SUSPECT) < SUSPECT)
            for node in nodes
        ]

    def _place_one(self, start: _Start, nodes: list[NodeInfo]) -> None:
        with self._changed:
            load = choose(self._loads(nodes), self._options)
        if load is None:
            limit = self._options.workers_per_node
            workers = f"num_workers={start.spec.num_workers}"
            text = f"{workers} is more than {len(nodes)} nodes can run with workers_per_node={limit}"
            self._messages.put(PoolFailed(start.handle.uid, WorkerStartError(text)))
            return
        start.placements += 1
        link = self._link_to(load.info)
        with self._changed:
            if start.handle.killed or start.handle.gone:  # its end has been reported
                return
            if not link.alive:  # the link has just been lost
                self._to_start.append(start)
                return
            start.handle.link = link
            link.handles[start.handle.uid] = start.handle
            self._starts[start.handle.uid] = start
            link.outbox.append(StartWorker(start.handle.uid, start.handle.worker, start.spec, start.setup.version))
        if not link.thread.ident:  # only now, since a failure is reported under the uid of a worker
            link.thread.start()
        elif link.state is not LinkState.OPENING:
            self._flush(link)

    def _link_to(self, node: NodeInfo) -> NodeLink:
        for link in self._links:
            if link.node.node_id == node.node_id and link.alive:
                return link
        connection = self._cluster.create_connection(node, self._options)
        link = NodeLink(node, connection, self._batches, self._messages.put, self._on_change, check_versions)
        link.credit = self._credit
        if self._environment is not None:
            link.outbox.append(self._environment_command(self._environment))
        with self._changed:
            self._links.append(link)
        return link

    def _notice_long_openings(self) -> None:
        """Report nodes that take long to start their actors: Ray itself waits indefinitely, without a message."""
        before = time.monotonic() - LONG_OPENING
        for link in self._links:
            if link.state is LinkState.OPENING and link.created < before and not link.noticed and link.handles:
                link.noticed = True
                reserved = f"It reserves {dict(self._options.resources)}, " if self._options.resources else ""
                cause = "which other tasks may hold" if reserved else "The node may be busy"
                if self._options.runtime_env is not None:
                    cause += ", or it is still installing the runtime environment"
                text = (
                    f"nbloader: node {link.node.name} has not started the actor of its workers for "
                    f"{LONG_OPENING:.0f} s. {reserved}{cause}: see `ray status`. The training loop is waiting.\n"
                )
                self._messages.put(OutputText(next(iter(link.handles)), "stderr", text))

    def _rebalance(self, nodes: list[NodeInfo]) -> None:
        """Move workers to nodes that have joined.

        The moved workers are killed and replaced. Their unfinished batches are dispatched again.
        """
        with self._changed:
            for donor in surplus(self._loads(nodes), self._options):
                link = next((link for link in self._links if link.node.node_id == donor and link.alive), None)
                if link is None:
                    continue
                running = [uid for uid, handle in list(link.handles.items()) if not handle.killed]
                if not running:
                    continue
                uid = max(running)
                handle = link.handles[uid]
                del link.handles[uid]
                handle.expected = handle.killed = True
                link.outbox.append(KillWorker(uid))
                self._messages.put(WorkerGone(uid, None, reason="moved to a node that has joined the cluster"))

    # ---- from the links' threads ------------------------------------------------------------------------------------

    def _on_change(self, link: NodeLink) -> None:
        with self._changed:
            if link.state is LinkState.LOST:
                self._on_lost(link)
            if not link.alive and link.state is not LinkState.CLOSING:
                for uid in list(link.handles):
                    self._messages.put(WorkerGone(uid, None, link.node.node_id))
                link.handles.clear()
                link.outbox.clear()
                self._links.remove(link)
            self._changed.notify()

    def _on_lost(self, link: NodeLink) -> None:
        """Report the workers of a lost node as gone. Those whose processes had not been launched are placed again."""
        self._suspects[link.node.node_id] = time.monotonic()
        if self._closing:
            return
        at = time.strftime("%H:%M:%S")
        waiting = [handle for handle in link.handles.values() if not (handle.launched or handle.killed)]
        for handle in waiting:
            start = self._starts.pop(handle.uid)
            del link.handles[handle.uid]
            handle.link = None
            if start.placements >= MAX_PLACEMENTS:
                text = (
                    f"worker {handle.worker} could not be started: {start.placements} nodes were lost while it was "
                    f"being started, most recently {link.node.name}: {link.why}"
                )
                self._messages.put(PoolFailed(handle.uid, WorkerStartError(text)))
                return
            self._to_start.append(start)
        if not link.handles or not self._cluster.connected:
            return
        workers = ", ".join(str(handle.worker) for handle in link.handles.values())
        reason = f"was lost with node {link.node.name} at {at}: {link.why}"
        text = (
            f"nbloader: node {link.node.name} was lost at {at} ({link.why}). Its workers {workers} are being restarted "
            "on other nodes, and their unfinished batches are loaded again.\n"
        )
        for first, uid in enumerate(list(link.handles)):
            if not first:
                self._messages.put(OutputText(uid, "stderr", text))
            self._messages.put(WorkerGone(uid, None, link.node.node_id, reason))
        link.handles.clear()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
        for uid in list(self._handles)[:1]:
            self._messages.put(PoolFailed(uid, error))


def _dump(task: Task) -> bytes:
    """Pickle a task."""
    return pickle.dumps(SentTask(task.epoch, task.job, pack_indices(task.indices), task.seed, task.deaths), 5)
