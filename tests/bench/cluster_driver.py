"""Measure what a batch of another machine costs the notebook's process: `python tests/bench/cluster_driver.py`.

Ray is left out: a stub answers at once with copies of one batch, for as many tasks as it was sent. What is measured is
the CPU time of the notebook's process: its scheduler, its reports and its copies, with those of the stub.
"""

from __future__ import annotations

import dataclasses
import pickle
import platform
import sys
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from light import Numbers

import nbloader
from nbloader import DataLoader
from nbloader.batch.collate import collate_samples
from nbloader.batch.payload import BatchHeader, pack_header
from nbloader.batch.serialize import PlannedArrays
from nbloader.shm.segment import NO_SEGMENT
from nbloader.workers import registry
from nbloader.workers.cluster.placement import NodeInfo
from nbloader.workers.cluster.pool import RayKind
from nbloader.workers.cluster.protocol import (
    BatchBegin,
    CloseNode,
    NodeClosed,
    NodeHello,
    NodeReport,
    StartWorker,
    SubmitTasks,
)
from nbloader.workers.cluster.ray_cluster import RayCluster
from nbloader.workers.messages import WorkerInitialized, WorkerLaunched

_clock = time.perf_counter_ns
LIMIT = 6_250_000
"""Bytes in a report, as with four nodes of a store of 100 MB each."""


class Stub:
    """A node that has every batch at once."""

    def __init__(self, nbytes):
        self._nbytes = nbytes
        samples, target = [np.zeros(nbytes // 4, np.uint8)] * 4, PlannedArrays("numpy")
        self._skeleton = target.encode(collate_samples(samples, target)).skeleton
        self._data = np.zeros(max(nbytes, 1), np.uint8)
        self._changed = threading.Condition()
        self._entries = []
        self.reports = 0

    def hello(self):
        return NodeHello(platform.python_version(), nbloader.__version__, "", 1, "stub", 64)

    def execute(self, commands, setup=None):
        with self._changed:
            for command in pickle.loads(commands):
                if isinstance(command, StartWorker):
                    self._entries += [WorkerLaunched(command.uid), WorkerInitialized(command.uid)]
                elif isinstance(command, SubmitTasks):
                    sent = map(pickle.loads, command.tasks)
                    self._entries += [self._batch(command.uid, task.epoch, task.job) for task in sent]
                elif isinstance(command, CloseNode):
                    self._entries.append(NodeClosed())
            self._changed.notify()

    def _batch(self, uid, epoch, job):
        inline = self._nbytes < 4096
        now = _clock()
        segment = NO_SEGMENT if inline else 0
        header = BatchHeader(epoch, job, segment, self._nbytes, len(self._skeleton), 4, now, now, now)
        return BatchBegin(uid, pack_header(*header), self._skeleton, bytes(self._nbytes) if inline else None, ())

    def request_report(self, credit):
        pass

    def next_report(self):
        with self._changed:
            while not self._entries:
                self._changed.wait()
            count = max(1, min(len(self._entries), LIMIT // max(1, self._nbytes)))
            entries, self._entries = self._entries[:count], self._entries[count:]
        self.reports += 1
        large = [entry for entry in entries if isinstance(entry, BatchBegin) and entry.memory is None]
        now = _clock()
        return NodeReport(now, now, pickle.dumps(entries, 5), [self._data] * len(large)), now

    def kill(self):
        with self._changed:
            self._entries.append(NodeClosed())
            self._changed.notify()


class StubCluster(RayCluster):
    """One node."""

    connected = current = True
    session = "stub"

    def __init__(self, nbytes):
        self.stub = Stub(nbytes)

    def connect(self):
        pass

    def nodes(self):
        return [NodeInfo("n" * 8, "stub", 64, 10**9)]

    def put(self, data, buffers, options):
        return None

    def create_connection(self, node, options):
        return self.stub


class Rows(Numbers):
    """Samples of `width` bytes."""

    def __getitem__(self, i):
        return np.zeros(self.width, np.uint8)


def measure(nbytes, workers, count):
    cluster = StubCluster(nbytes)

    class StubKind(RayKind):
        def __init__(self, spec):
            super().__init__(dataclasses.replace(spec, ray=None), cluster)

    registry.register("stub", StubKind)
    dataset = Rows(4 * count, width=nbytes // 4)
    with DataLoader(dataset, 4, num_workers=workers, workers="stub", output="numpy") as loader:
        for epoch in range(2):
            begin, used = time.perf_counter(), time.process_time()
            before = cluster.stub.reports
            got = sum(1 for _batch in loader)
            used = time.process_time() - used
            if epoch:
                took = time.perf_counter() - begin
                reports = cluster.stub.reports - before
                print(
                    f"{nbytes:>10,} bytes, {workers:>4} workers: {used / got * 1e6:>8.1f} us of CPU per batch, "
                    f"{nbytes * got / used / 1e6:>8,.0f} MB per s of CPU; {got / reports:.1f} batches per report; "
                    f"{took / got * 1e6:.1f} us by the clock",
                    flush=True,
                )
    registry.unregister("stub")


def main():
    for workers in (4, 64, 1000):
        measure(32, workers, 8_000)
    for nbytes, count in ((100_000, 2_000), (1_000_000, 500), (8_000_000, 100)):
        measure(nbytes, 16, count)


if __name__ == "__main__":
    main()
