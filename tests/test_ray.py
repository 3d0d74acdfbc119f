"""Workers on a Ray cluster of two simulated nodes on this machine. Starting an actor takes seconds: few tests, each
with few loaders."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import torch
from datasets import flat, wait_for
from light import Fragile, Large, Numbers, Shards, Slow, Varied
from ray_nodes import Nodes
from test_docs import OUTPUT, ROOT, code

from nbloader import DataLoader, DatasetTransferError, RayOptions
from nbloader import events as ev

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'nbloader-torch[ray]'")

pytestmark = [
    pytest.mark.leaves_behind("Ray keeps processes, threads and files of its own; `nothing_left` looks for the others"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def nodes():
    try:
        started = Nodes(2)
    except TimeoutError as error:
        pytest.skip(str(error))
    ray.init(address=started.address, log_to_driver=False, logging_level="warning")
    yield started
    ray.shutdown()
    started.close()


@pytest.fixture(autouse=True)
def nothing_left(nodes):
    yield
    wait_for(lambda: not (ours_on_nodes() or our_threads()))


def ours_on_nodes():
    """Zygotes and workers in jobs of Ray."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        environ, command = process.info["environ"] or {}, process.info["cmdline"] or ()
        if "RAY_JOB_ID" in environ and any("nbloader.transport.zygote_process" in part for part in command):
            found.append(process.pid)
    return found


def our_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("nbloader")]


def plain(batches):
    return [{key: getattr(value, "tolist", lambda v=value: v)() for key, value in b.items()} for b in batches]


def test_batches_and_order_are_those_of_processes_and_an_epoch_can_move(nodes):
    def loader(kind):
        torch.manual_seed(5)
        return DataLoader(Varied(72), 8, shuffle=True, num_workers=2, workers=kind)

    with loader("process") as before, loader("ray") as on_ray, loader("process") as after:
        epoch = iter(on_ray)
        whole = [next(epoch)]
        assert {worker.kind for worker in on_ray.stats().workers} == {"ray"}
        assert "Current thread" in on_ray.stack(next(w.worker for w in on_ray.stats().workers if w.pid))
        whole += epoch
        for batch in whole:
            batch["image"].add_(0)  # it is writable
        whole = plain(whole)
        assert plain(loader("process")) == whole
        # Not `dispatched <= fetch_begin`: on a busy machine the clock of a node is known to some milliseconds only.
        records = on_ray.events.batches()
        assert all(r.fetch_begin <= r.collated <= r.received >= r.dispatched for r in records)
        # Processes begin an epoch, nodes continue it, and processes end it.
        torch.manual_seed(5)
        moved = plain(itertools.islice(before, 3))
        on_ray.load_state_dict(before.state_dict())
        moved += plain(itertools.islice(on_ray, 3))
        after.load_state_dict(on_ray.state_dict())
        assert moved + plain(after) == whole


def test_a_batch_larger_than_the_window_travels_in_pieces(nodes):
    with DataLoader(Large(8), 2, workers="ray", num_workers=1, ray=RayOptions(window_bytes=3_000_000)) as loader:
        for number, batch in enumerate(loader):
            assert batch.equal(torch.from_numpy(np.stack([Large()[2 * number], Large()[2 * number + 1]])))
        assert number == 3


def test_what_others_keep_in_the_object_stores_loses_no_batch(nodes):
    """The stores are nearly full: reports wait, Ray spills the objects of the others, and batches come as ever."""

    @ray.remote(num_cpus=0)
    class Keeper:
        def keep(self):
            self.kept = [ray.put(np.ones(10 << 20, np.uint8)) for _ in range(9)]

    on_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    alive = [on_node(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
    keepers = [Keeper.options(scheduling_strategy=place).remote() for place in alive]
    ray.get([keeper.keep.remote() for keeper in keepers])
    with DataLoader(Large(12), 2, workers="ray", num_workers=2) as loader:
        for number, batch in enumerate(loader):
            assert batch.equal(torch.from_numpy(np.stack([Large()[2 * number], Large()[2 * number + 1]])))
        assert number == 5
        assert not [event for event in list(loader.events.history) if isinstance(event, ev.WorkerDied)]


def test_errors_and_commands_have_the_same_effects_as_with_processes(nodes):
    dataset = Fragile(40, bad=5)
    with DataLoader(dataset, 4, num_workers=2, workers="ray", worker_init_fn=print) as loader:
        epoch = iter(loader)
        assert flat([next(epoch)]) == [0, 1, 2, 3]
        with pytest.raises(KeyError) as caught:
            next(epoch)
        assert "in __getitem__" in str(caught.value.__cause__)
        loader.pause()
        loader.step()
        assert flat([next(epoch)]) == [8, 9, 10, 11]
        loader.resume()
        loader.restart_workers()
        loader.num_workers = 3
        assert flat(epoch) == list(range(12, 40))
        dataset.bad = -1
        assert flat(loader) == list(range(40))


def test_an_iterable_dataset_is_read_in_shards(nodes):
    epochs = []
    for kind in ("process", "ray"):
        with DataLoader(Shards(40), 4, num_workers=2, workers=kind) as loader:
            epochs.append([batch.tolist() for batch in loader])
    assert epochs[0] == epochs[1]


def test_what_cannot_be_sent_is_refused(nodes):
    generator = Numbers(4, file=(i for i in range(3)))
    with (
        DataLoader(generator, num_workers=1, workers="ray") as loader,
        pytest.raises(DatasetTransferError, match="file"),
    ):
        next(iter(loader))
    large = Numbers(4, data=np.zeros(101 << 20, np.uint8))
    text = "106 MB pickled.* does not fit into the object store of node"
    with DataLoader(large, num_workers=1, workers="ray") as loader, pytest.raises(DatasetTransferError, match=text):
        next(iter(loader))


def test_every_batch_comes_once_in_order_whatever_dies(nodes):
    """A worker process, the actor of a node, then a whole node end; another node joins."""
    with DataLoader(Slow(1_000_000, wait=0.01), 2, num_workers=2, workers="ray", max_restarts=10) as loader:
        epoch, got = iter(loader), []

        def go_on(until):
            """Iterate until something has happened: the epoch is longer than that takes."""
            deadline = time.monotonic() + 120
            for batch in epoch:
                got.extend(batch.tolist())
                if until():
                    return
                assert time.monotonic() < deadline

        def working():
            return {w.worker: w.pid for w in loader.stats().workers if w.pid}

        go_on(lambda: len(working()) == 2)
        assert ours_on_nodes()
        victim = working()[0]
        os.kill(victim, signal.SIGKILL)
        go_on(lambda: working().get(0, victim) != victim)
        assert [event.exitcode for event in dead(loader)] == [-signal.SIGKILL]

        server = psutil.Process(working()[1]).parent()
        actor = server.parent()
        assert "NbloaderNode" in " ".join(actor.cmdline())
        lost = working()[1]
        actor.kill()
        go_on(lambda: working().get(1, lost) != lost)
        last = dead(loader)[-1]
        assert "was lost with node" in last.reason  # it may have held no batch just then

        joined = nodes.command("add")
        name = joined[:8]
        go_on(lambda: name in nodes_of(loader))
        nodes.command(f"kill {joined}")
        go_on(lambda: name not in nodes_of(loader) and len(working()) == 2)
        assert name in dead(loader)[-1].reason
        assert got == list(range(len(got)))


def dead(loader):
    return [event for event in list(loader.events.history) if isinstance(event, ev.WorkerDied) and not event.expected]


def nodes_of(loader):
    """The nodes with a running worker: the ids, as names of nodes show them."""
    return {worker.node.partition("(")[2][:8] for worker in loader.stats().workers if worker.pid}


def test_nothing_is_left_when_the_notebook_is_killed(nodes):
    program = f"""
import sys, ray
sys.path.insert(0, {os.path.dirname(__file__)!r})
from light import Slow
from nbloader import DataLoader
ray.init(address={nodes.address!r}, log_to_driver=False, logging_level="error")
for batch in DataLoader(Slow(100000), 2, num_workers=1, workers="ray", output="numpy"):
    print("batch", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as notebook:
        assert any(line == "batch\n" for line in notebook.stdout)  # Ray prints, too
        assert ours_on_nodes()
        notebook.kill()
    wait_for(lambda: not ours_on_nodes())


def test_a_shutdown_of_ray_ends_the_epoch_and_the_next_one_connects_again(nodes):
    """In a process of its own, which Ray would end if a thread used it meanwhile."""
    program = f"""
import sys, time, ray
sys.path.insert(0, {os.path.dirname(__file__)!r})
from light import Slow
from nbloader import DataLoader, NbloaderError
connect = dict(address={nodes.address!r}, log_to_driver=False, logging_level="error")
for persistent in (False, True):
    ray.init(**connect)
    with DataLoader(
        Slow(60), 2, num_workers=2, workers="ray", persistent_workers=persistent, output="numpy"
    ) as loader:
        epoch = iter(loader)
        next(epoch)
        ray.shutdown()
        try:
            print(len(list(epoch)), "more batches", flush=True)
        except NbloaderError as error:
            print(error, flush=True)
        print("started by nbloader:", ray.is_initialized(), flush=True)
        for _ in range(2):
            ray.init(**connect)
            print([int(i) for batch in loader for i in batch] == list(range(60)), flush=True)
            ray.shutdown()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    error = "Ray was shut down in this process while the loader used it"
    expected = [error, "started by nbloader: False", "True", "True"]
    lines = [line for line in done.stdout.splitlines() if line in {*expected, "False"}]
    assert (done.returncode, lines) == (0, expected * 2), (done.stdout, done.stderr)


def test_the_guides_program_loads_from_the_cluster(nodes, monkeypatch, capsys):
    page = ROOT / "docs/how-to/many-machines.md"
    (program,), (output,) = code(page), OUTPUT.findall(page.read_text(encoding="utf-8"))
    monkeypatch.setattr(ray, "init", lambda address: address)  # the fixture has joined it
    exec(program, {"__name__": "__main__"})
    assert capsys.readouterr().out == output
