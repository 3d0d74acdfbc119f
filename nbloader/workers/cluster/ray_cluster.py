"""The calls of Ray: everything else of this package knows nodes and connections only.

Ray is imported by the first call, never with nbloader.
"""

from __future__ import annotations

import collections
import functools
import importlib
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nbloader.errors import DatasetTransferError, NbloaderError, WorkerStartError
from nbloader.workers.cluster.placement import NodeInfo, usable
from nbloader.workers.cluster.protocol import NodeHello, NodeReport, SetupParts
from nbloader.workers.ray_options import RayOptions

_clock = time.perf_counter_ns

_PACKAGE = __name__.partition(".")[0]
STACK_TIMEOUT = 10.0
"""Seconds to wait for the stack of a worker on another node."""
CLIENT = (
    "Ray is connected through Ray Client (an address that begins with ray://), which moves all data through one "
    "process and has no object store on this side. Run this notebook on a node of the cluster (the head node, or any "
    "machine after `ray start --address=<head>:6379`) and connect it with ray.init(address='auto')"
)


class NodeLostError(NbloaderError):
    """The connection to a node has ended: its actor or the node has died, or an object was lost."""


class StoreFullError(NbloaderError):
    """A report could not be stored: the object store of its node is full, and so is the disk to which Ray spills."""


def import_ray() -> Any:
    """The module `ray`.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "workers='ray' needs Ray, which is not installed: pip install 'nbloader[ray]' (or: pip install ray)"
        ) from error


class RayCluster:
    """The cluster to which this process is connected."""

    def __init__(self) -> None:
        self._ray = import_ray()

    def connect(self) -> None:
        """Check the connection; without one, start a local cluster and say so.

        Raises:
            NbloaderError: This process is connected in a way that does not serve.
        """
        ray = self._ray
        client = sys.modules.get("ray.util.client")
        if client is not None and client.ray.is_connected():
            raise NbloaderError(CLIENT)
        if ray.is_initialized():
            return
        address = os.environ.get("RAY_ADDRESS", "")
        if address.startswith("ray://"):
            raise NbloaderError(f"RAY_ADDRESS={address!r}: {CLIENT}")
        ray.init(include_dashboard=False, logging_level="warning", log_to_driver=False)
        where = f"connected to the cluster at {address}" if address else "started a local one on this machine"
        print(f"nbloader: Ray was not initialized: {where}. ray.shutdown() ends it.", file=sys.stderr)  # noqa: T201

    @property
    def connected(self) -> bool:
        """Whether calls can be made."""
        return bool(self._ray.is_initialized())

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
            A reference, for `RayConnection.execute`.

        Raises:
            DatasetTransferError: It does not fit into an object store.
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

    def create_connection(self, node: NodeInfo, options: RayOptions, output: str) -> RayConnection:
        """Start an actor on a node. Does not wait for it.

        Raises:
            NbloaderError: Ray was shut down.
        """
        ray = self._ray
        if not self.connected:
            raise NodeLostError("Ray was shut down in this process")
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
        return RayConnection(ray, remote(_actor_class(ray)).remote(output))


class RayConnection:
    """The calls to the actor of one node. `next_report` is called by one thread, the others by any.

    Args:
        ray: The module.
        actor: The actor.
    """

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor
        self._requested: collections.deque[tuple[Any, int]] = collections.deque()
        self._numbers = 0
        self._killed = threading.Event()

    def hello(self) -> NodeHello:
        """Wait until the actor runs, and ask which versions it has.

        Raises:
            NodeLostError: It cannot be started, or has died.
        """
        return NodeHello(*self._get(self._actor.hello.remote()))

    def clock(self) -> tuple[int, int, int]:
        """When a call was sent, by this clock; the node's clock; and when the result arrived.

        Raises:
            NodeLostError: The actor has died.
        """
        sent = _clock()
        there = self._get(self._actor.clock.remote())
        return sent, there, _clock()

    def execute(self, commands: bytes, setup: Any = None) -> None:
        """Send commands. Does not wait; that they were lost is noticed by the next report.

        Args:
            commands: Pickled.
            setup: The reference to the pickle for a `LoadSetup` among them.
        """
        number, self._numbers = self._numbers, self._numbers + 1
        self._call(lambda: self._actor.execute.remote(number, commands, setup))

    def request_report(self, credit: int) -> None:
        """Request one more report.

        Raises:
            NodeLostError: Ray was shut down.
        """
        self._requested.append((self._call(lambda: self._actor.report.remote(credit)), _clock()))

    def next_report(self) -> tuple[NodeReport, int]:
        """Wait for the report that was requested first. The caller drops the result before it requests another one.

        A report that was lost with its node may be searched for a long time. A later call to the same actor fails at
        once then, so all of them are watched.

        Returns:
            The report, and when it was requested.

        Raises:
            NodeLostError: The actor has died, or the report was lost.
            StoreFullError: It could not be stored on its node.
        """
        refs = [ref for ref, _sent in self._requested]
        while True:
            ready, waiting = self._call(functools.partial(self._ray.wait, refs, num_returns=1))
            if ready[0] == self._requested[0][0]:
                ref, sent = self._requested.popleft()
                return NodeReport(*self._get(ref)), sent
            self._get(ready[0])  # raises if the actor has died
            refs = waiting

    def stack(self, uid: int) -> str:
        """The Python stack of a worker now.

        Raises:
            NbloaderError: It does not respond.
        """
        try:
            stack: str = self._ray.get(self._actor.stack.remote(uid), timeout=STACK_TIMEOUT)
        except self._ray.exceptions.RayTaskError as error:
            raise NbloaderError(str(error.cause)) from None
        except self._ray.exceptions.RayError as error:
            raise NbloaderError(f"its node did not respond to a stack request: {_summary(error)}") from error
        return stack

    def kill(self) -> None:
        """End the actor at once; its fork server ends the workers."""
        if not self._killed.is_set():
            self._killed.set()
            if self._ray.is_initialized():
                self._call(lambda: self._ray.kill(self._actor, no_restart=True), ValueError)

    def _get(self, ref: Any) -> Any:
        return self._call(lambda: self._ray.get(ref))

    def _call(self, call: Callable[[], Any], *ignored: type[Exception]) -> Any:
        """Make a call.

        Raises:
            NodeLostError: It failed.
            StoreFullError: Its result could not be stored.
        """
        exceptions = self._ray.exceptions
        try:
            return call()
        except ignored:
            return None
        except (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError) as error:
            raise StoreFullError(_summary(error)) from error
        except exceptions.RayError as error:
            raise NodeLostError(_summary(error)) from error
        except Exception as error:
            if self._ray.is_initialized():
                raise
            raise NodeLostError("Ray was shut down in this process") from error


def _summary(error: Exception) -> str:
    """An error of Ray in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def check_versions(hello: NodeHello, node: NodeInfo) -> None:
    """Check that a node has what its workers need.

    Raises:
        WorkerStartError: It has another version of Python or nbloader, or lacks nbloader.
    """
    here, version = platform.python_version(), importlib.import_module(_PACKAGE).__version__
    exclude = "or leave the node out with ray=RayOptions(nodes=[...])"
    if hello.problem:
        raise WorkerStartError(
            f"node {node.name} cannot import nbloader: {hello.problem}. Install nbloader {version} there, "
            f'or have Ray install it with ray=RayOptions(runtime_env={{"pip": ["nbloader"]}}), {exclude}'
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
    """The class of the actor. Ray sends it by value, since it is local: it must exist where nbloader does not."""

    class NbloaderNode:
        def __init__(self, output: str) -> None:
            self.output = output
            self.node: Any = None

        @ray.method(concurrency_group="others")  # type: ignore[untyped-decorator,unused-ignore]
        def hello(self) -> tuple[str, str, str, int, str, int]:
            import importlib
            import os
            import platform

            python, pid = platform.python_version(), os.getpid()
            try:
                version = importlib.import_module("nbloader").__version__
                self.node = importlib.import_module("nbloader.workers.cluster.node").Node(self.output)
                system = importlib.import_module("nbloader._util.system")
            except ImportError as error:
                return python, "", f"{type(error).__name__}: {error}", pid, "", 0
            return python, version, "", pid, system.process_space(), system.cores()

        @ray.method(concurrency_group="others")  # type: ignore[untyped-decorator,unused-ignore]
        def clock(self) -> int:
            import time

            return time.perf_counter_ns()

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
