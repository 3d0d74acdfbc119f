"""Measure workers on a Ray cluster of simulated nodes: `make bench-ray`, or `python tests/bench/cluster.py`.

    waiting   samples that wait 5 ms, in batches of 16, with 1 to NODES nodes of 4 workers: batches per second
    large     batches of 8 MB, against `ray.get` of arrays of the same size from an actor on the same node
    tiny      batches of 4 integers, gathered: batches per second
    ray-data  samples of 50 kB that wait 5 ms, in batches of 16, beside Ray Data's `iter_torch_batches` with as many
              tasks at a time

All nodes are on this machine and share its cores: what computes does not scale here, what waits does.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

sys.path.insert(0, str(Path(__file__).parent.parent))
import light
from light import Numbers, Slow
from ray_nodes import Nodes

from nbloader import DataLoader, RayOptions

MB = 1_000_000


class Large(Numbers):
    """Samples of 8 MB that cost little to make."""

    sample = np.zeros(8 * MB, np.uint8)

    def __getitem__(self, i):
        return self.sample


def rate(loader):
    """Batches per second of the second epoch, from its first batch on."""
    for _batch in loader:
        pass
    epoch = iter(loader)
    next(epoch)
    begin = time.perf_counter()
    count = sum(1 for _ in epoch)
    return count / (time.perf_counter() - begin)


def waiting(nodes):
    names = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    alone, size = None, 16
    for count in (1, 2, 4, 8):
        if count > nodes:
            break
        options = RayOptions(nodes=names[:count])
        with DataLoader(Slow(300 * size * count), size, num_workers=4 * count, workers="ray", ray=options) as loader:
            got = rate(loader)
        alone = alone or got
        ideal = 4 * count / (size * Slow.wait)
        shares = f"{got / alone / count:.0%} of linear, {got / ideal:.0%} of ideal"
        print(f"waiting, {count} nodes: {got:.0f} batches/s, {shares}")


def large(_nodes):
    node = ray.get_runtime_context().get_node_id()
    other = next((n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != node), node)
    for name, place in (("the same node", node), ("another node", other)):

        @ray.remote(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(place, soft=False))
        class Source:
            def make(self):
                return np.zeros(8 * MB, np.uint8)

        source = Source.remote()
        ray.get(source.make.remote())
        begin, count, refs = time.perf_counter(), 60, [source.make.remote() for _ in range(2)]
        for _ in range(count):
            ray.get(refs.pop(0))
            refs.append(source.make.remote())
        alone = count * 8 / (time.perf_counter() - begin)
        del source, refs
        with DataLoader(Large(120), 1, num_workers=1, workers="ray", ray=RayOptions(nodes=[place])) as loader:
            ours = 8 * rate(loader)
        print(f"large, {name}: {ours:.0f} MB/s; ray.get alone {alone:.0f} MB/s: {ours / alone:.0%}")


def tiny(_nodes):
    with DataLoader(Numbers(40_000), 4, num_workers=2, workers="ray") as loader:
        print(f"tiny: {rate(loader):,.0f} batches/s")


class Waits(Numbers):
    """Samples of 50 kB that wait 5 ms."""

    def __getitem__(self, i):
        time.sleep(Slow.wait)
        return np.full((3, 64, 64), i, np.float32)


def ray_data(nodes):
    """The same samples, batches and number of workers, by Ray Data."""
    missing = [name for name in ("pyarrow", "pandas", "pydantic") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"ray-data: needs {', '.join(missing)}")
        return
    import ray.data

    ray.cloudpickle.register_pickle_by_value(light)  # its workers do not find the module

    count, size, workers, epochs = 3200, 16, 4 * nodes, 4
    dataset = Waits(count)

    def load(row):
        return {"image": dataset[int(row["id"])]}

    def timed(make):
        begin = time.perf_counter()
        batches = iter(make())
        next(batches)
        first = time.perf_counter() - begin
        got = 1 + sum(1 for _ in batches)
        assert got == count // size
        return first, got / (time.perf_counter() - begin)

    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.range(count, override_num_blocks=count // 64)
    theirs = [timed(lambda: rows.map(load, num_cpus=0.25).iter_torch_batches(batch_size=size)) for _ in range(epochs)]
    loader = DataLoader(dataset, size, num_workers=workers, workers="ray")
    with loader:
        ours = [timed(lambda: loader) for _ in range(epochs)]
    for name, turns in (("Ray Data", theirs), ("nbloader", ours)):
        text = "; ".join(f"first batch {first:.2f} s, {rate:.0f} batches/s" for first, rate in turns)
        print(f"{name}, {workers} workers, {epochs} epochs: {text}", flush=True)
    first, faster = (statistics.median(a[k] / b[k] for a, b in zip(ours, theirs, strict=True)) for k in (0, 1))
    print(f"ray-data: {faster:.1f}x the rate of Ray Data, first batch after {first:.0%} of its time")


ROWS = {"waiting": waiting, "large": large, "tiny": tiny, "ray-data": ray_data}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--only", default="waiting,large,tiny,ray-data", help="which rows, comma-separated")
    parser.add_argument("--address", default="", help="of a running cluster")
    arguments = parser.parse_args()
    nodes = None if arguments.address else Nodes(arguments.nodes)
    ray.init(address=arguments.address or nodes.address, log_to_driver=False, logging_level="warning")
    try:
        for name in arguments.only.split(","):
            ROWS[name](arguments.nodes)
    finally:
        ray.shutdown()
        if nodes is not None:
            nodes.close()


if __name__ == "__main__":
    main()
