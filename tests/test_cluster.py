"""The parts of workers on a cluster that need no cluster: clocks, placement, the protocol, and links that fail."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
import math
import pickle
import platform
import sys
import threading
import time
import types

import numpy as np
import pytest
import torch
from datasets import begin, flat, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from light import Fragile, Hangs, Large, Numbers, Slow, Varied

import nbloader
from nbloader import DataLoader, LoaderTimeoutError, NbloaderError, RayOptions, WorkerStartError, get_worker_info
from nbloader import events as ev
from nbloader._platform import process_space
from nbloader.workers import registry
from nbloader.workers.cluster import pool as cluster_pool
from nbloader.workers.cluster.clock import DRIFT, ClockOffset
from nbloader.workers.cluster.link import REPORTS
from nbloader.workers.cluster.node import Node
from nbloader.workers.cluster.placement import NodeInfo, NodeLoad, choose, surplus, usable, why_unusable
from nbloader.workers.cluster.pool import RayKind, RayPool
from nbloader.workers.cluster.protocol import BatchBegin, NodeHello, SetupParts, StartWorker
from nbloader.workers.cluster.ray_cluster import NodeLostError, RayCluster, RayConnection, StoreFullError

# ---- clocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.unit
@settings(max_examples=30)
@given(
    offset=st.integers(-(10**15), 10**15),
    drift=st.floats(-DRIFT, DRIFT),
    calls=st.lists(st.tuples(*[st.integers(0, 10**8)] * 4), min_size=1, max_size=20),
)
def test_the_offset_of_a_clock_is_wrong_by_no_more_than_its_error(offset, drift, calls):
    def there(now):
        return round(now * (1 + drift)) + offset

    clock, now = ClockOffset(), 0
    for pause, way, work, back in calls:
        now += pause
        sent, received = now, now + way + work + back
        clock.observe(sent, there(sent + way), there(sent + way + work), received)
        now = received
    assert abs(clock.offset - (there(now) - now)) <= clock.error + 2  # rounding


@pytest.mark.unit
def test_a_clock_that_jumps_is_measured_anew():
    clock = ClockOffset()
    clock.observe(0, 1_000, 1_000, 100)
    clock.observe(200, 9_001_250, 9_001_250, 300)
    assert clock.offset == 9_001_000
    assert clock.error == 50
    assert clock.here(0) == 0
    assert clock.here(9_001_500) == 500


# ---- placement ------------------------------------------------------------------------------------------------------

NODES = [NodeInfo(c * 8, f"10.0.0.{i}", cpus, 10**9) for i, (c, cpus) in enumerate([("a", 4), ("b", 4), ("c", 8)])]


def placed(count, options, suspects=()):
    """Workers on each node after so many were placed."""
    counts = [0] * len(NODES)
    for _ in range(count):
        loads = [NodeLoad(node, counts[i], i in suspects) for i, node in enumerate(NODES)]
        load = choose(loads, options)
        if load is None:
            return counts, False
        counts[NODES.index(load.info)] += 1
    return counts, True


@pytest.mark.unit
def test_workers_are_spread_by_cpus_or_packed_up_to_a_limit_and_not_on_suspects():
    assert placed(8, RayOptions()) == ([2, 2, 4], True)
    assert placed(6, RayOptions(placement="pack")) == ([4, 2, 0], True)
    assert placed(5, RayOptions(workers_per_node=1)) == ([1, 1, 1], False)
    assert placed(6, RayOptions(), suspects=(2,)) == ([3, 3, 0], True)
    assert usable(NODES, RayOptions(nodes=["10.0.0.1", "cccccccc"])) == NODES[1:]
    assert surplus([NodeLoad(NODES[0], 4), NodeLoad(NODES[1], 4), NodeLoad(NODES[2], 0)], RayOptions()) == [
        NODES[0].node_id, NODES[1].node_id, NODES[0].node_id, NODES[1].node_id,
    ]  # fmt: skip


@pytest.mark.unit
def test_nodes_without_the_resources_of_an_actor_are_not_used():
    two = [dataclasses.replace(NODES[0], resources={"CPU": 4.0, "disk": 1.0}), NODES[1]]
    assert usable(two, RayOptions(resources={"CPU": 4, "disk": 0.5})) == two[:1]
    why = why_unusable(two, RayOptions(resources={"CPU": 8, "GPU": 1}))
    assert "no node has resources={'CPU': 8, 'GPU': 1}" in why
    assert "10.0.0.0 (aaaaaaaa) has 4 CPU, 0 GPU; 10.0.0.1 (bbbbbbbb) has 0 CPU, 0 GPU. Reserve less" in why
    assert "and 5 more" in why_unusable(NODES * 3, RayOptions(resources={"GPU": 1}))
    why = why_unusable(NODES, RayOptions(nodes=["other"]))
    assert "none of nodes=['other'] is alive. Nodes alive: 10.0.0.0 (" in why


@pytest.mark.unit
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"nodes": "10.0.0.1"}, "nodes must be a list"),
        ({"placement": "even"}, "'spread', 'pack', not 'even'"),
        ({"workers_per_node": 0}, "workers_per_node must be at least 1"),
        ({"window_bytes": -1}, "window_bytes option should be non-negative"),
    ],
)
def test_wrong_options_are_refused(values, text):
    with pytest.raises(ValueError, match=text):
        RayOptions(**values)


@pytest.mark.unit
def test_options_are_for_ray_only():
    with pytest.raises(ValueError, match="applies to workers='ray'"):
        DataLoader([1], num_workers=1, ray=RayOptions())
    with pytest.raises(TypeError, match=r"must be an nbloader.RayOptions"):
        DataLoader([1], num_workers=1, workers="ray", ray={})


# ---- connections that do not serve ----------------------------------------------------------------------------------


@pytest.mark.unit
def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"not installed: pip install ray$"):
        DataLoader([1], num_workers=1, workers="ray")


@pytest.mark.unit
def test_ray_client_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.delitem(sys.modules, "ray.util.client", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(NbloaderError, match=r"ray://head:10001.*moves all data through one process.*address='auto'"):
        next(iter(DataLoader([1], num_workers=1, workers="ray")))
    client = types.SimpleNamespace(ray=types.SimpleNamespace(is_connected=lambda: True))
    monkeypatch.setitem(sys.modules, "ray.util.client", client)
    with pytest.raises(NbloaderError, match="Ray is connected through Ray Client"):
        next(iter(DataLoader([1], num_workers=1, workers="ray")))


# ---- a cluster without Ray: its nodes are threads of this process, with worker processes of their own ---------------


class FakeConnection:
    """The calls to a `Node` in this process."""

    def __init__(self, changes, opened):
        self._node = Node()
        self._opened = opened
        self._changes = changes
        self._numbers = 0
        self._killed = False
        self._credits = collections.deque()
        self.reports = []
        """Bytes of batches in each report."""
        self.commands = []
        self.free = threading.Event()
        """Reports arrive while this is set."""
        self.free.set()
        self.loses_batches = False
        """Whether the first report that has batches is lost, and the node with it."""
        self.lost = threading.Event()
        """Set when that report is lost."""
        self.store_bytes = math.inf
        """Bytes of batches in a report that its object store has room for."""

    def hello(self):
        self._opened.wait()
        hello = NodeHello(platform.python_version(), nbloader.__version__, "", 1, process_space(), 2)
        return dataclasses.replace(hello, **self._changes)

    def execute(self, commands, setup=None):
        self.commands += pickle.loads(commands)
        self._node.execute(self._numbers, pickle.loads(commands), setup)
        self._numbers += 1

    def request_report(self, credit):
        self._credits.append((credit, time.perf_counter_ns()))

    def next_report(self):
        assert self.free.wait(60), "reports were held back"
        credit, requested = self._credits.popleft()
        report = self._node.report(credit)
        lost = self.loses_batches and any(isinstance(entry, BatchBegin) for entry in pickle.loads(report.entries))
        if lost:
            self.lost.set()
        if self._killed or lost:
            raise NodeLostError("ObjectLostError: simulated")
        nbytes = sum(piece.nbytes for piece in report.data)
        if nbytes > self.store_bytes:
            raise StoreFullError("ObjectStoreFullError: simulated")
        self.reports.append(nbytes)
        copies = [piece.copy() for piece in report.data]
        return report._replace(data=copies), requested

    def stack(self, uid):
        return self._node.stack(uid)

    def kill(self):
        self._killed = True
        node = self._node
        with node._lock:
            if not node._closed:
                node._closed = True
                node._pool.close(0)
                node._pool.dispose()
            node._setups.clear()
        node._wakeup.set()
        if threading.current_thread().name.startswith("nbloader-node"):  # the one that makes the reports
            node._wakeup.close()


class FakeCluster(RayCluster):
    """Nodes of this process."""

    connected = current = True
    session = "fake"

    def __init__(self, count, **changes):
        self.alive = NODES[:count]
        self.connections = []
        self.puts = 0
        self.opened = threading.Event()
        """Actors start when this is set."""
        self.opened.set()
        self._changes = changes
        self.loses_batches = False
        """Whether its first node does: see `FakeConnection`. Reports of the others arrive after that."""
        self.store_bytes = math.inf
        """See `FakeConnection`."""

    def connect(self):
        pass

    def nodes(self):
        return self.alive

    def put(self, data, buffers, options):
        self.puts += 1
        return SetupParts(np.frombuffer(data, np.uint8), [np.frombuffer(buffer, np.uint8) for buffer in buffers])

    def create_connection(self, node, options):
        connection = FakeConnection(self._changes, self.opened)
        connection.loses_batches = self.loses_batches and not self.connections
        connection.store_bytes = self.store_bytes
        if self.loses_batches and self.connections:  # or they could make all batches before the first has a worker
            connection.free = self.connections[0].lost
        self.connections.append(connection)
        return connection


@pytest.fixture
def on_cluster():
    """A function that creates a loader on a fake cluster."""

    def create(cluster, *args, ray=None, **kwargs):
        class FakeKind(RayKind):
            def __init__(self, spec):
                super().__init__(dataclasses.replace(spec, ray=ray), cluster)

        registry.register("fake", FakeKind)
        try:
            return DataLoader(*args, workers="fake", **kwargs)
        finally:
            registry.unregister("fake")

    return create


def test_the_dataset_is_put_once_a_version_and_batches_come_in_pieces(on_cluster):
    cluster = FakeCluster(2)
    dataset = Large(4, table=np.arange(100_000))
    with on_cluster(cluster, dataset, 2, num_workers=2, output="numpy") as loader:
        cluster.alive = [dataclasses.replace(node, store_bytes=8 << 20) for node in cluster.alive]
        epochs = [list(loader)]
        dataset.extra = 1
        texts = []
        epochs.append([])
        for batch in loader:
            epochs[1].append(batch)
            texts.append(str(loader.stats()))
            wait_for(lambda: [len(connection._node._setups) for connection in cluster.connections] == [1, 1])
        assert "0 on 10.0.0.0 (aaaaaaaa)" in texts[0]
        records = list(loader.events.batches())
    for epoch in epochs:
        assert [batch[:, 0].tolist() for batch in epoch] == [[0, 1], [2, 3]]
        assert all(batch.flags.writeable for batch in epoch)
    assert cluster.puts == 2
    window = (8 << 20) // 4
    assert max(size for connection in cluster.connections for size in connection.reports) <= window // (2 * REPORTS)
    assert all(r.dispatched <= r.collated <= r.received for r in records)  # by this machine's clock
    for r in records:
        assert r.collated <= r.transfer.begin <= r.transfer.end == r.received
        assert r.transfer.node in {node.name for node in NODES}
        assert r.transfer.nbytes == r.nbytes + r.pickled


def test_when_a_report_is_lost_the_batches_of_the_node_are_made_elsewhere(on_cluster, capfd):
    cluster = FakeCluster(2)
    cluster.loses_batches = True
    with on_cluster(cluster, Slow(120), 2, num_workers=2) as loader:
        assert flat(loader) == list(range(120))
        (died,) = [event for event in list(loader.events.history) if isinstance(event, ev.WorkerDied)]
    assert died.batches
    assert "was lost with node 10.0.0.0 (aaaaaaaa) at" in died.reason
    assert "ObjectLostError: simulated" in died.reason
    assert "Its workers 0 are being restarted on other nodes" in capfd.readouterr().err


def test_a_full_object_store_is_an_error_and_the_next_epoch_works_when_it_has_room(on_cluster):
    cluster = FakeCluster(2)
    cluster.store_bytes = 1000
    with on_cluster(cluster, Large(8), 2, num_workers=2, ray=RayOptions(window_bytes=4 << 20)) as loader:
        text = r"(?s)store of node 10.0.0.\d .* \(1.00 GB\) is full.* at most 1.05 MB .*Error: simulated.*window_bytes"
        with pytest.raises(NbloaderError, match=text):
            next(iter(loader))
        assert len(cluster.connections) == 2, "no node was tried again"
        wait_for(lambda: all(connection._killed for connection in cluster.connections))
        cluster.store_bytes = math.inf
        assert [batch[:, 0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("raised", "expected"),
    [("ObjectStoreFullError", StoreFullError), ("OutOfDiskError", StoreFullError), ("RayError", NodeLostError)],
)
def test_errors_of_ray_say_whether_a_store_is_full(raised, expected):
    class RayError(Exception):
        pass

    names = ("ObjectStoreFullError", "OutOfDiskError", "RayError")
    known = {name: RayError if name == "RayError" else type(name, (RayError,), {}) for name in names}

    report = concurrent.futures.Future()
    report.set_exception(known[raised]("no room\nmore"))
    reference = types.SimpleNamespace(future=lambda: report)
    actor = types.SimpleNamespace(report=types.SimpleNamespace(remote=lambda _credit: reference))
    connection = RayConnection(types.SimpleNamespace(exceptions=types.SimpleNamespace(**known)), actor, FakeCluster(1))
    connection.request_report(1)
    with pytest.raises(expected, match=f"^{raised}: no room$"):
        connection.next_report()


def test_random_numbers_and_texts_are_those_of_processes(on_cluster):
    epochs = []
    for create in (DataLoader, lambda *args, **kwargs: on_cluster(FakeCluster(2), *args, **kwargs)):
        torch.manual_seed(5)
        with create(Varied(48), 8, shuffle=True, num_workers=2) as loader:
            epochs.append([[v.tolist() if torch.is_tensor(v) else v for v in batch.values()] for batch in loader])
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"nbloader": "", "problem": "ModuleNotFoundError: no nbloader"}, r"cannot import nbloader: ModuleNotFound"),
        ({"python": "3.8.1"}, r"node 10.0.0.0 \(aaaaaaaa\) has Python 3.8.1, and this process"),
        ({"nbloader": "0.0.9"}, r"has nbloader 0.0.9, and this process"),
    ],
)
def test_a_node_with_other_versions_is_an_error_that_names_it(on_cluster, changes, text):
    loader = on_cluster(FakeCluster(1, **changes), Numbers(4), num_workers=1)
    with loader, pytest.raises(WorkerStartError, match=text):
        next(iter(loader))


def test_a_cluster_without_nodes_is_an_error(on_cluster):
    loader = on_cluster(FakeCluster(0), Numbers(4), num_workers=1)
    with loader, pytest.raises(WorkerStartError, match="no node is alive"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (RayOptions(resources={"GPU": 1}), r"no node has resources=\{'GPU': 1\}.*10.0.0.1 \(bbbbbbbb\) has 0 GPU"),
        (RayOptions(nodes=["10.9.9.9"]), r"none of nodes=\['10.9.9.9'\] is alive. Nodes alive: 10.0.0.0 \(aaaaaaaa\)"),
    ],
)
def test_a_cluster_without_a_place_for_workers_is_an_error(on_cluster, options, text):
    loader = on_cluster(FakeCluster(2), Numbers(4), num_workers=1, ray=options)
    with loader, pytest.raises(WorkerStartError, match=text):
        next(iter(loader))


def test_workers_are_measured_where_they_share_the_processes_of_the_notebook(on_cluster):
    with on_cluster(FakeCluster(1), Slow(40), 4, num_workers=1, persistent_workers=True) as loader:
        assert flat(loader) == list(range(40))
        wait_for(lambda: all(worker.cpu_percent is not None for worker in loader.stats().workers))
        assert [worker.pid for worker in loader._engine.worker_threads()] == [loader.stats().workers[0].pid]
        assert loader._parts.monitor._aggregator.epoch_evidence().workers_here == 1
    far = FakeCluster(1, processes="another machine", cores=3)
    with on_cluster(far, Slow(160), 4, num_workers=2, persistent_workers=True) as loader:
        assert flat(loader) == list(range(160))
        assert {worker.cpu_percent for worker in loader.stats().workers} == {None}
        ready = [event for event in list(loader.events.history) if isinstance(event, ev.WorkerReady)]
        assert {event.machine for event in ready} == {ev.Machine("another machine", 3)}
        assert "fetched on other machines" in loader.what_if(num_workers=0).reason
        assert "fetched on other machines" in loader.what_if(workers="thread").reason
        assert loader.stats().most_workers == 12


def test_a_line_says_that_a_node_takes_long_to_start_its_actor(on_cluster, capfd, monkeypatch):
    monkeypatch.setattr(cluster_pool, "LONG_OPENING", 0.0)
    monkeypatch.setattr(cluster_pool, "LOOK_FOR_NODES", 0.01)
    cluster, said = FakeCluster(1), []

    def text():
        said.append(capfd.readouterr().err)
        return "".join(said)

    cluster.opened.clear()
    cluster.alive = [dataclasses.replace(NODES[0], resources={"CPU": 4})]
    with (
        concurrent.futures.ThreadPoolExecutor(1) as executor,
        on_cluster(cluster, Numbers(4), 4, num_workers=1, ray=RayOptions(resources={"CPU": 4})) as loader,
    ):
        batch = executor.submit(lambda: next(iter(loader)))
        wait_for(lambda: "node 10.0.0.0 (aaaaaaaa) has not started the actor of its workers" in text())
        cluster.opened.set()
        assert batch.result().tolist() == [0, 1, 2, 3]
    assert text().count("It reserves {'CPU': 4}, which other tasks may hold") == 1


def test_a_node_that_joins_gets_workers_while_the_loop_runs(on_cluster, monkeypatch):
    monkeypatch.setattr(cluster_pool, "LOOK_FOR_NODES", 0.01)
    cluster = FakeCluster(1)
    with on_cluster(cluster, Slow(100_000), num_workers=2) as loader:
        epoch, got = iter(loader), []
        for batch in epoch:
            got += batch.tolist()
            cluster.alive = NODES[:2]
            if {worker.node for worker in loader.stats().workers if worker.batches} == {n.name for n in NODES[:2]}:
                break
        assert got == list(range(len(got)))
        # The end of the worker may be reported after the one that took its place has produced batches.
        moved = wait_for(lambda: [event for event in list(loader.events.history) if isinstance(event, ev.WorkerDied)])
        assert [event.reason for event in moved] == ["moved to a node that has joined the cluster"]
        assert moved[0].expected


def test_workers_that_are_being_ended_do_not_count_when_others_are_placed(on_cluster):
    cluster = FakeCluster(2)

    def starts():
        return sum(isinstance(command, StartWorker) for link in cluster.connections for command in link.commands)

    with on_cluster(cluster, Numbers(8), 2, num_workers=1, persistent_workers=True) as loader:
        assert flat(loader) == list(range(8))
        cluster.connections[0].free.clear()  # the end of its worker is not reported yet
        loader.restart_workers()
        wait_for(lambda: starts() == 2)
        assert len(cluster.connections) == 1  # not on the other node, as if this one had a worker
        cluster.connections[0].free.set()
        assert flat(loader) == list(range(8))


# ---- what a loader can do, on nodes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_error", "batch", "done"),
    [("skip", [4, 6, 7], "skipped"), (lambda index, _error: -index, [4, -5, 6, 7], "replaced")],
    ids=["skip", "replace"],
)
def test_samples_that_raise_on_a_node_are_skipped_or_replaced(on_cluster, on_error, batch, done):
    with on_cluster(FakeCluster(2), Fragile(12, bad=5), 4, num_workers=2, on_error=on_error) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], batch, [8, 9, 10, 11]]
        (failed,) = [event for event in list(loader.events.history) if isinstance(event, ev.SampleFailed)]
    assert (failed.index, failed.sample, failed.done) == (1, 5, done)
    assert "in __getitem__" in failed.traceback


def test_a_dataset_is_sent_again_if_its_last_worker_ends_while_the_next_one_is_placed(on_cluster, monkeypatch):
    def late(pool, starts):
        wait_for(lambda: not pool._starts)  # until the end of the worker is known
        place(pool, starts)

    place = RayPool._place
    monkeypatch.setattr(RayPool, "_place", late)
    with on_cluster(FakeCluster(1), Slow(40), 4, num_workers=1) as loader:
        epoch = iter(loader)
        first = next(epoch)
        loader.restart_workers()
        assert flat([first, *epoch]) == list(range(40))


def test_a_sample_that_hangs_on_a_node_is_an_error_with_its_stack_or_a_restart(on_cluster, tmp_path):
    files = {"flag": tmp_path / "flag", "hung": tmp_path / "hung"}
    files["flag"].touch()
    dataset = Hangs(8, bad=2, **files)
    with on_cluster(FakeCluster(1), dataset, 2, num_workers=1, timeout=1) as loader:
        epoch = begin(loader)
        assert flat([next(epoch)]) == [0, 1]
        with pytest.raises(LoaderTimeoutError, match=r"(?s)batch 1.*def sleep|batch 1.*in sleep"):
            next(epoch)
    files["hung"].unlink()
    with on_cluster(FakeCluster(1), dataset, 2, num_workers=1, timeout=1, on_timeout="restart") as loader:
        epoch, got = iter(loader), []
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            rest = executor.submit(lambda: got.extend(flat(epoch)))
            wait_for(files["hung"].exists)
            files["flag"].unlink()
            rest.result()
        assert got == list(range(8))
        died = wait_for(lambda: [event for event in list(loader.events.history) if isinstance(event, ev.WorkerDied)])
        assert died[0].expected  # it may be reported after the worker that took its place has produced all batches


def test_chunks_of_a_batch_from_several_nodes_are_joined(on_cluster):
    with on_cluster(FakeCluster(2), Varied(24), 8, num_workers=2, chunk_size=2) as loader:
        batches = list(loader)
        records = list(loader.events.batches())
    with DataLoader(Varied(24), 8, num_workers=2, chunk_size=2) as loader:
        images = [batch["image"] for batch in loader]
    assert [batch["text"] for batch in batches] == [[f"sample {i}" for i in range(k, k + 8)] for k in (0, 8, 16)]
    assert all(a["image"].equal(b) for a, b in zip(batches, images, strict=True))
    assert all(record.transfer is not None for record in records)


def test_worker_init_fn_and_changed_code_reach_the_nodes_and_an_epoch_moves_between_kinds(on_cluster):
    class Marked(Numbers):
        def __getitem__(self, i):
            return i + get_worker_info().dataset.offset

    def init(worker):
        get_worker_info().dataset.offset = 100 * worker

    dataset = Marked(8)
    with on_cluster(FakeCluster(2), dataset, 2, num_workers=2, worker_init_fn=init, in_order=True) as loader:
        assert {i % 100 for i in flat(loader)} == set(range(8))
        assert {i // 100 for i in flat(loader)} <= {0, 1}

        def changed(self, i):
            return -i

        Marked.__getitem__ = changed
        assert flat(loader) == [-i for i in range(8)]

    states, moved = [], []
    for create, count in (
        (DataLoader, 2),
        (lambda *args, **kwargs: on_cluster(FakeCluster(2), *args, **kwargs), 2),
        (DataLoader, 2),
    ):
        torch.manual_seed(7)
        with create(Varied(24), 4, shuffle=True, num_workers=2) as loader:
            if states:
                loader.load_state_dict(states[-1])
            moved += [batch["noise"].tolist() for batch in itertools.islice(loader, count)]
            states.append(loader.state_dict())
    torch.manual_seed(7)
    with DataLoader(Varied(24), 4, shuffle=True, num_workers=2) as loader:
        assert moved == [batch["noise"].tolist() for batch in loader]
