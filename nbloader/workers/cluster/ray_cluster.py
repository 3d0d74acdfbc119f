"""All calls to Ray. The rest of this package only knows nodes and connections.

Ray is imported by the first call, never when nbloader is imported.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import importlib
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from nbloader.errors import DatasetTransferError, NbloaderError, WorkerStartError
from nbloader.workers.cluster.placement import NodeInfo, usable
from nbloader.workers.cluster.protocol import NodeHello, NodeReport, SetupParts
from nbloader.workers.ray_options import RayOptions

_clock = time.perf_counter_ns

_PACKAGE = __name__.partition(".")[0]
LOOK_FOR_SHUTDOWN = 0.5
"""Seconds between two checks whether Ray was shut down, while a thread waits for a node."""
STACK_TIMEOUT = 10.0
"""Seconds to wait for the stack of a worker on another node."""
SHUT_DOWN = "Ray was shut down in this process while the loader used it"
CLIENT = (
    "Ray is connected through Ray Client (an address that begins with ray://), which moves all data through one "
    "process and has no object store on this side. Run this notebook on a node of the cluster (the head node, or any "
    "machine after `ray start --address=<head>:6379`) and connect it with ray.init(address='auto')"
)
_unreleased: list[Any] = []
"""Results that are no longer awaited because Ray was shut down. They are kept because Ray ends the process if a
reference is released during a shutdown, and there is no public way to find out when the shutdown is over. Each takes a
few hundred bytes."""


class NodeLostError(NbloaderError):
    """The connection to a node has ended: its actor or the node has died, or an object was lost."""


class StoreFullError(NbloaderError):
    """A report could not be stored: the node's object store and the disk to which Ray spills are both full."""


def import_ray() -> Any:
    """Import the module `ray`.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("workers='ray' needs Ray, which is not installed: pip install ray") from error


class RayCluster:
    """The cluster to which this process is connected."""

    def __init__(self) -> None:
        self._ray = import_ray()
        self.session: str | None = None
        """Identifies the connection of this process: each `ray.init()` creates a new one. None before `connect`."""
        self._shut_down = False

    def connect(self) -> None:
        """Check the connection. If there is none, call `ray.init()` and print a message.

        Raises:
            NbloaderError: This process is connected in an unsupported way.
        """
        ray = self._ray
        client = sys.modules.get("ray.util.client")
        if client is not None and client.ray.is_connected():
            raise NbloaderError(CLIENT)
        self.session, self._shut_down = _session_of(ray), False
        if self.session is not None:
            return
        address = os.environ.get("RAY_ADDRESS", "")
        if address.startswith("ray://"):
            raise NbloaderError(f"RAY_ADDRESS={address!r}: {CLIENT}")
        ray.init(include_dashboard=False, logging_level="warning", log_to_driver=False)
        where = f"connected to the cluster at {address}" if address else "started a local one on this machine"
        print(f"nbloader: Ray was not initialized: {where}. ray.shutdown() ends it.", file=sys.stderr)  # noqa: T201
        self.session = _session_of(ray)

    @property
    def connected(self) -> bool:
        """Whether calls can be made. False once a call has noticed that Ray was shut down, until the next `connect`."""
        return bool(self._ray.is_initialized()) and not self._shut_down

    @property
    def current(self) -> bool:
        """Whether this process still has the connection that `connect` found or established.

        Only the consumer's thread may use this: Ray ends the process if another thread asks during a shutdown.
        """
        return self.session is not None and _session_of(self._ray) == self.session

    def on_shutdown(self, session: str | None) -> None:
        """Record that Ray was shut down in this session."""
        if session == self.session:
            self._shut_down = True

    def nodes(self) -> list[NodeInfo]:
        """The nodes that are alive."""
        return [
            NodeInfo(
                node["NodeID"],
                node["NodeManagerAddress"],
                node["Resources"].get("CPU", 0.0),
                int(node["Resources"].get("object_store_memory", 0)),
                dict(node["Resources"]),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    def put(self, data: memoryview, buffers: list[memoryview], options: RayOptions) -> Any:
        """Put a pickle into the object store, once for all nodes.

        Returns:
            A reference to pass to `RayConnection.execute`.

        Raises:
            DatasetTransferError: The pickle does not fit into an object store.
        """
        size = sum(map(len, buffers)) + len(data)
        for node in usable(self.nodes(), options):
            if 0 < node.store_bytes < size:
                raise DatasetTransferError(
                    f"the dataset ({size / 1e6:,.0f} MB pickled) does not fit into the object store of node "
                    f"{node.name}, which has {node.store_bytes / 1e6:,.0f} MB. Let the dataset keep the data in files "
                    "that it reads in __getitem__, or start Ray with a larger store: "
                    "ray start --object-store-memory=<bytes>"
                )
        try:
            return self._ray.put(
                SetupParts(np.frombuffer(data, np.uint8), [np.frombuffer(buffer, np.uint8) for buffer in buffers])
            )
        except self._ray.exceptions.RayError as error:
            text = f"the dataset ({size / 1e6:,.0f} MB pickled) cannot be put into Ray's object store: {error}"
            raise DatasetTransferError(text) from error

    def create_connection(self, node: NodeInfo, options: RayOptions) -> RayConnection:
        """Start an actor on a node, without waiting for it.

        Raises:
            NbloaderError: Ray was shut down.
        """
        ray = self._ray
        if not self.connected:
            raise NbloaderError(SHUT_DOWN)
        scheduling = importlib.import_module("ray.util.scheduling_strategies")
        resources = dict(options.resources or {})
        remote = ray.remote(
            num_cpus=resources.pop("CPU", 0),
            num_gpus=resources.pop("GPU", 0),
            resources=resources,
            max_restarts=0,
            max_task_retries=0,
            concurrency_groups={"commands": 1, "reports": 1, "others": 2},
            scheduling_strategy=scheduling.NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            runtime_env=None if options.runtime_env is None else dict(options.runtime_env),
        )
        return RayConnection(ray, remote(_actor_class(ray)).remote(), self)


class RayConnection:
    """The calls to the actor of one node. Only one thread may call `next_report`; the other methods are thread-safe.

    Args:
        ray: The module `ray`.
        actor: The actor.
        cluster: The cluster that the actor runs on.
    """

    def __init__(self, ray: Any, actor: Any, cluster: RayCluster) -> None:
        self._ray = ray
        self._actor = actor
        self._cluster = cluster
        self._session = cluster.session
        self._requested: collections.deque[tuple[Future[Any], int]] = collections.deque()
        """The requested reports, with the time of each request."""
        self._completed: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._arrived: set[Future[Any]] = set()
        """The requested reports that were taken from `_completed`."""
        self._numbers = 0
        self._killed = threading.Event()

    def hello(self) -> NodeHello:
        """Wait until the actor runs, and ask which versions it has.

        Raises:
            NodeLostError: The actor cannot be started, or has died.
        """
        return NodeHello(*self._result(self._actor.hello))

    def execute(self, commands: bytes, setup: Any = None) -> None:
        """Send commands without waiting. If they are lost, the next report reveals it.

        Args:
            commands: The pickled commands.
            setup: Reference to the pickled dataset and functions, if one of the commands is a `LoadSetup`.
        """
        number, self._numbers = self._numbers, self._numbers + 1
        self._call(lambda: self._actor.execute.remote(number, commands, setup))

    def request_report(self, credit: int) -> None:
        """Request one more report.

        Raises:
            NodeLostError: Ray was shut down.
        """
        result: Future[Any] = self._call(lambda: self._actor.report.remote(credit).future())
        self._requested.append((result, _clock()))
        result.add_done_callback(self._completed.put)

    def next_report(self) -> tuple[NodeReport, int]:
        """Wait for the report that was requested first. The caller must drop it before it requests another report.

        Ray may search a long time for a report that was lost with its node. A later call to the same actor fails
        immediately in that case, so this method watches all requested reports.

        Returns:
            The report, and when it was requested.

        Raises:
            NodeLostError: The actor has died, the report was lost, or Ray was shut down.
            StoreFullError: The report could not be stored on its node.
        """
        first, sent = self._requested[0]
        while first not in self._arrived:
            result = self._next_completed()
            if result is not first:
                self._call(result.result)  # raises if the actor has died
            self._arrived.add(result)
        self._requested.popleft()
        self._arrived.remove(first)
        return NodeReport(*self._call(first.result, first)), sent

    def _next_completed(self) -> Future[Any]:
        """Wait for any of the requested reports.

        Raises:
            NodeLostError: Ray was shut down.
        """
        while True:
            try:
                return self._completed.get(timeout=LOOK_FOR_SHUTDOWN)
            except queue.Empty:
                self._check_connected()

    def stack(self, uid: int) -> str:
        """Return the current Python stack of a worker.

        Raises:
            NbloaderError: The worker does not respond.
        """
        try:
            self._check_connected()
            stack: str = self._ray.get(self._actor.stack.remote(uid), timeout=STACK_TIMEOUT)
        except self._ray.exceptions.RayTaskError as error:
            raise NbloaderError(str(error.cause)) from None
        except self._ray.exceptions.RayError as error:
            raise NbloaderError(f"its node did not respond to a stack request: {_summary(error)}") from error
        return stack

    def kill(self) -> None:
        """Kill the actor; its zygote then ends the workers."""
        if not self._killed.is_set():
            self._killed.set()
            if self._connected:  # otherwise the actor has ended with its job
                with contextlib.suppress(ValueError, NodeLostError):  # the actor is already dead
                    self._call(lambda: self._ray.kill(self._actor, no_restart=True))

    def _result(self, method: Any) -> Any:
        """Call a method of the actor, and wait for its result."""
        result: Future[Any] = self._call(lambda: method.remote().future())
        while not concurrent.futures.wait([result], LOOK_FOR_SHUTDOWN).done:
            self._check_connected(result)
        return self._call(result.result, result)

    def _check_connected(self, *results: Future[Any]) -> None:
        """Check that Ray was not shut down: in that case a call would start a new local cluster.

        Args:
            results: Results that must not be released if Ray was shut down.

        Raises:
            NodeLostError: Ray was shut down, and may have been connected again.
        """
        if not self._connected:
            raise self._lost_by_shutdown(*results)

    @property
    def _connected(self) -> bool:
        return self._cluster.connected and self._cluster.session == self._session

    def _lost_by_shutdown(self, *results: Future[Any]) -> NodeLostError:
        _unreleased.append((results, tuple(self._requested)))
        self._cluster.on_shutdown(self._session)
        return NodeLostError(SHUT_DOWN)

    def _call(self, call: Callable[[], Any], *results: Future[Any]) -> Any:
        """Make a call to Ray.

        Args:
            call: The call.
            results: See `_check_connected`.

        Raises:
            NodeLostError: The call failed, or Ray was shut down.
            StoreFullError: The result of the call could not be stored.
        """
        exceptions = self._ray.exceptions
        self._check_connected(*results)
        try:
            return call()
        except (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError) as error:
            raise StoreFullError(_summary(error)) from error
        except exceptions.RayError as error:
            raise NodeLostError(_summary(error)) from error
        except Exception as error:
            if self._connected:
                raise
            raise self._lost_by_shutdown(*results) from error


def _session_of(ray: Any) -> str | None:
    """Return a string that identifies the connection of this process to a cluster; None if not connected."""
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return f"{context.get_node_id()} {context.get_job_id()}"


def _summary(error: Exception) -> str:
    """Summarize an error of Ray in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def check_versions(hello: NodeHello, node: NodeInfo) -> None:
    """Check that a node has the versions of Python and nbloader that its workers need.

    Raises:
        WorkerStartError: The node has another version of Python or nbloader, or cannot import nbloader.
    """
    here, version = platform.python_version(), importlib.import_module(_PACKAGE).__version__
    exclude = "or leave the node out with ray=RayOptions(nodes=[...])"
    if hello.problem:
        raise WorkerStartError(
            f"node {node.name} cannot import nbloader: {hello.problem}. Install this version ({version}) "
            f"there from the repository, {exclude}"
        )
    if hello.python.rsplit(".", 1)[0] != here.rsplit(".", 1)[0]:
        raise WorkerStartError(
            f"node {node.name} has Python {hello.python}, and this process {here}: code of the notebook cannot be sent "
            f"between them. Use one version of Python on all nodes, {exclude}"
        )
    if hello.nbloader != version:
        raise WorkerStartError(
            f"node {node.name} has nbloader {hello.nbloader}, and this process {version}. Install one "
            f"version on all nodes, {exclude}"
        )


def _actor_class(ray: Any) -> type:
    """Create the actor class. It is local so that Ray pickles it by value, for nodes where nbloader is missing."""

    class NbloaderNode:
        def __init__(self) -> None:
            self.node: Any = None

        @ray.method(concurrency_group="others")  # type: ignore[untyped-decorator,unused-ignore]
        def hello(self) -> tuple[str, str, str, int, str, int]:
            import importlib
            import os
            import platform

            python, pid = platform.python_version(), os.getpid()
            try:
                version = importlib.import_module("nbloader").__version__
                self.node = importlib.import_module("nbloader.workers.cluster.node").Node()
                system = importlib.import_module("nbloader._platform")
            except ImportError as error:
                return python, "", f"{type(error).__name__}: {error}", pid, "", 0
            return python, version, "", pid, system.process_space(), system.cores()

        @ray.method(concurrency_group="commands")  # type: ignore[untyped-decorator,unused-ignore]
        def execute(self, number: int, commands: bytes, setup: Any) -> None:
            import pickle

            self.node.execute(number, pickle.loads(commands), setup)

        @ray.method(concurrency_group="reports")  # type: ignore[untyped-decorator,unused-ignore]
        def report(self, credit: int) -> tuple[Any, ...]:
            return tuple(self.node.report(credit))

        @ray.method(concurrency_group="others")  # type: ignore[untyped-decorator,unused-ignore]
        def stack(self, uid: int) -> str:
            stack: str = self.node.stack(uid)
            return stack

    return NbloaderNode
