"""What limits a loop: the rules on synthetic evidence, the evidence of synthetic records, and some planted causes."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import re
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import FOREIGN, WORKLOADS, run, workloads
from torch.utils.data import IterableDataset

from nbloader import DataLoader
from nbloader._platform import ContextSwitches, CpuTimes
from nbloader.diagnose.causes import BY_NAME
from nbloader.diagnose.common import in_common
from nbloader.diagnose.findings import find_causes
from nbloader.diagnose.verdict import verdict
from nbloader.events import BatchRecord, Machine, NodeTransfer
from nbloader.events.pauses import Pauses
from nbloader.metrics.evidence import Evidence, MachineLoad, MakeTime, Place, SampleFacts, SlowBatch, SlowLine
from nbloader.metrics.span import EpochSample, SpanOptions, measure
from nbloader.metrics.usage import LoopCounters, Usage, UsageLog, WorkerCounters
from nbloader.metrics.usage_probe import UsageProbe, WorkerThread

MS = 1_000_000
S = 1000 * MS


def usage(**changes: Any) -> Usage:
    fields: dict[str, Any] = dict.fromkeys((f.name for f in dataclasses.fields(Usage)), 0)
    return Usage(
        **(fields | {"seconds": 5.0, "threads": 1, "yielded": None, "preempted": None, "idle_cores": None} | changes)
    )


def record(index: int, requested: int, wait: int, make: int, **changes: Any) -> BatchRecord:
    """A batch of 16 samples of equal times from a process, received 0.1 ms before it was delivered."""
    delivered = requested + wait
    in_order = delivered - MS // 10
    fields: dict[str, Any] = dict.fromkeys(BatchRecord._fields, 0) | {
        "index": index, "worker": index % 2, "pid": 7 + index % 2, "attempt": 1, "samples": 16, "transport": "segment",
        "requested": requested, "fetch_begin": in_order - MS - make, "fetched": in_order - MS - make // 10,
        "collated": in_order - MS, "received": in_order, "in_order": in_order, "delivered": delivered,
        "returned": delivered + 10 * MS, "fetch_cpu": make // 2, "slowest_ns": make * 9 // 160, "in_flight": 3,
        "indices": tuple(range(16 * index, 16 * index + 8)), "slowest_index": 16 * index, "placed": None,
        "transfer": None, "lost_sample": None,
    }  # fmt: skip
    return BatchRecord(**(fields | changes))


def epoch(waits: list[int], make: int = 80 * MS, **changes: Any) -> list[BatchRecord]:
    now, records = S, []
    for index, wait in enumerate(waits):
        records.append(record(index, now, wait, make, **changes))
        now = records[-1].returned
    return records


BUSY: dict[str, Any] = {
    "span": "epoch", "seconds": 5.0, "batches": 100, "cores": 8, "workers": 2, "window": 4, "wait_share": 0.8,
    "producing_wait": 0.8, "make_ms": 95.0, "fetch_ms": 90.0, "collate_ms": 5.0, "transport_ms": 0.3,
    "reorder_ms": 1.0, "fetch_cpu": 0.05, "collate_cpu": 1.0, "utilization": 0.95, "full": 0.9, "ready": 0.1,
    "nbytes": 100_000.0, "samples": 16.0, "sample_ms": 5.6,
    "by_worker": {0: MakeTime(50, 95.0, 94.0), 1: MakeTime(50, 96.0, 94.0)},
}  # fmt: skip
"""Two workers that wait, and a loop that waits for them."""
HEALTHY: dict[str, Any] = BUSY | {
    "wait_share": 0.02, "producing_wait": 0.02, "utilization": 0.3, "ready": 3.9,
}  # fmt: skip
COMPUTING: dict[str, Any] = BUSY | {"fetch_cpu": 0.97}
WORST = SlowBatch(42, 683, 3.1, 3.0, 1)
SENT = [
    r._replace(transfer=NodeTransfer("node", r.collated - 20 * MS, r.collated + MS, 10)) for r in epoch([30 * MS] * 9)
]
"""Batches that a node sends within 21 ms."""
LOST = WORST._replace(make=0.1, attempt=2, slowest=0.02)
"""A batch whose worker hung. The second attempt was quick."""


def evidence(base: dict[str, Any], changes: dict[str, Any]) -> Evidence:
    return Evidence(**(base | changes))


ALONE: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("healthy", "consumer", HEALTHY, {}, "it waited for 2% of the epoch's 5.0 s. It spends 49.0 ms on each batch."),
    ("healthy, 9%", "consumer", HEALTHY, {"wait_share": 0.09, "producing_wait": 0.09}, "waited for 9%"),
    ("device step", "consumer", HEALTHY, {"usage": usage(consumer_cpu=0.1), "device": "cuda:0"},
     "10% of it computing on the CPU and the rest waiting, for example for cuda:0."),
    ("step that waits, no device", "consumer", HEALTHY, {"usage": usage(consumer_cpu=0.1)},
     "10% of it computing on the CPU and the rest waiting. The loader keeps 3.9 batches ready. A faster loader"),
    ("just in time", "consumer", HEALTHY, {"ready": 0.1}, "5.0 s. It spends 49.0 ms on each batch. A faster loader"),
    ("loop in Python", "consumer_python", HEALTHY, {"usage": usage(consumer_cpu=0.9)},
     "your loop (loader.profile_lines() before an epoch finds its slowest line). Your"),
    ("loop in Python, busy machine", "consumer_python", HEALTHY,
     {"usage": usage(consumer_cpu=0.5, consumer_core_wait=0.4)},
     "51% of it computing on the CPU and 41% waiting for a core"),
    ("waiting", "workers_wait", BUSY, {}, "Use more workers, even beyond the number of cores (8). Workers are"),
    ("waiting, busy machine", "workers_wait", BUSY, {"usage": usage(core_wait=0.1)}, "of its time (disk"),
    ("computing, cores free", "workers_compute", COMPUTING, {}, "Use more workers, up to the number of cores (8), or"),
    ("computing, no core free", "workers_compute_full", COMPUTING, {"cores": 2},
     "Fetching is 97% CPU time, and the workers and the loop use 1.85 of 2 cores. More workers would not help"),
    ("computing, own use is full", "workers_compute_full", BUSY,
     {"fetch_cpu": 0.45, "cores": 2, "usage": usage(core_wait=0.5, worker_cores=0.9)}, "Make samples cheaper: try"),
    ("cores taken", "cores_taken", BUSY,
     {"fetch_cpu": 0.4, "cores": 2, "usage": usage(core_wait=0.5, worker_cores=0.4)}, "during 53% of their work"),
    ("cores taken, as the machine says", "cores_taken", BUSY,
     {"fetch_cpu": 0.4, "cores": 2, "usage": usage(core_wait=0.5, worker_cores=0.4, idle_cores=0.1)}, "use the rest"),
    ("workers and loop that take each other's cores", "workers_compute_full", BUSY,
     {"fetch_cpu": 0.7, "cores": 2, "usage": usage(core_wait=0.25, worker_cores=0.7, idle_cores=0.5)},
     "Fetching is 70% CPU time, and the workers and the loop need 1.86 of 2 cores. More workers would not help"),
    ("collate computes", "collate", BUSY, {"fetch_ms": 10.0, "collate_ms": 85.0},
     "89% of the workers' time, 100%"),
    ("collate waits", "collate", BUSY, {"fetch_ms": 10.0, "collate_ms": 85.0, "collate_cpu": 0.02},
     "2% of it CPU"),
    ("slow worker", "worker", BUSY,
     {"by_worker": {0: MakeTime(50, 30.0, 29.0), 1: MakeTime(9, 300.0, 290.0)}, "reorder_ms": 80.0},
     "take 300 ms, and those of the other worker take 30.0 ms. On average, a batch waits 80.0 ms in the reorder"),
    ("slow samples", "slow_samples", BUSY,
     {"slow_share": 0.85, "slow_every": 50.0, "slow_ms": 100.0, "sample_ms": 1.0, "slow_workers": 2,
      "slow_indices": (50, 100, 150, 200, 350, 400), "usual_indices": tuple(range(7, 400, 3))},
     "the others take 1.00 ms. This costs 85% of the workers' time. The slow ones are those with index % 50 "),
    ("slow samples, by chance in one worker", "slow_samples", BUSY,
     {"slow_share": 0.85, "slow_every": 20.0, "slow_workers": 2, "slow_ms": 100.0, "reorder_ms": 50.0,
      "by_worker": {0: MakeTime(9, 30.0, 29.0), 1: MakeTime(7, 100.0, 90.0)}, "slow_indices": (3, 8)},
     "The slowest samples are 3, 8."),
    ("samples that waited for a core", "cores_taken", BUSY,
     {"slow_share": 0.6, "slow_every": 20.0, "slow_ms": 30.0, "slow_workers": 2, "fetch_cpu": 0.2, "cores": 2,
      "usage": usage(core_wait=0.7, worker_cores=0.2)}, "other programs use the rest"),
    ("slow samples on a busy machine", "slow_samples", BUSY,
     {"slow_share": 0.85, "slow_every": 50.0, "slow_ms": 100.0, "sample_ms": 1.0, "slow_workers": 2,
      "slow_indices": (3, 8), "usage": usage(core_wait=0.2)}, "One sample in 50 takes 100 ms"),
    ("one stall", "stall", BUSY,
     {"stall_wait": 0.6, "stalls": 1, "producing_wait": 0.2, "worst": WORST, "utilization": 0.5, "full": 0.0},
     "The loop waited 3.1 s for batch 42. Its slowest sample was 683. A batch usually takes 95.0 ms."),
    ("hang, ended by a restart", "stall", BUSY,
     {"stall_wait": 0.7, "stalls": 1, "producing_wait": 0.1, "worst": LOST._replace(lost_sample=640)},
     "for batch 42, which was produced again after a worker was lost at sample 640 (attempt 2). A batch usually"),
    ("hang, ended by a restart, at an unknown sample", "stall", BUSY,
     {"stall_wait": 0.7, "stalls": 1, "producing_wait": 0.1, "worst": LOST},
     "for batch 42, which was produced again after a worker was lost (attempt 2). A batch usually"),
    ("slow sample, after the end of a worker", "stall", BUSY,
     {"stall_wait": 0.7, "stalls": 1, "producing_wait": 0.1, "worst": LOST._replace(lost_sample=640, slowest=2.9)},
     "lost at sample 640 (attempt 2). Its slowest sample was 683. A batch usually"),
    ("window", "window", BUSY, {"workers": 4, "window": 1, "utilization": 0.25, "full": 1.0},
     "are busy for 25% of the time. The window of 1 batch was full at 100% of the deliveries. More workers would"),
    ("window of some batches", "window", BUSY, {"workers": 4, "window": 4, "utilization": 0.25, "full": 1.0},
     "Use a larger prefetch_factor, or a larger prefetch if it is set. The prefetch window is too small"),
    ("dataset that was reloaded", "unknown", {},
     {"span": "epoch", "batches": 80, "seconds": 5.0, "wait_share": 0.9},
     "the loop waited for 90% of the epoch's 5.0 s, but no batch has been measured"),
    ("pickled objects", "pickle", BUSY,
     {"fetch_ms": 10.0, "collate_ms": 40.0, "pickled": 2e6, "opening_wait": 0.4, "producing_wait": 0.4},
     "2.00 MB of each"),
    ("many small objects", "pickle", BUSY,
     {"fetch_ms": 4.0, "collate_ms": 4.0, "pickled": 36e3, "nbytes": 2e6, "opening_wait": 0.4, "producing_wait": 0.1},
     "Return a few tensors of the whole batch from the collate function"),
    ("some objects that do not explain it", "unknown", BUSY,
     {"fetch_ms": 4.0, "collate_ms": 4.0, "pickled": 6e3, "nbytes": 2e6, "opening_wait": 0.4, "producing_wait": 0.1},
     "Cannot tell what limits the loop"),
    ("transport by pickle", "pickle", BUSY,
     {"transport_ms": 150.0, "by_pickle": 1.0, "nbytes": 4e7}, "A worker pickles 40.0 MB of each batch"),
    ("transport", "transport", BUSY, {"transport_ms": 150.0, "nbytes": 4e7}, "150 ms from the worker to the loop."),
    ("transfer from nodes", "transport", BUSY,
     {"transport_ms": 150.0, "records": SENT, "nbytes": 8e6, "nodes": 2},
     "and 150 ms from the worker to the loop (after earlier ones, its node sends it in 21.0 ms)."),
    ("computing on another machine, where cores are free", "workers_compute", COMPUTING,
     {"cores": 2, "elsewhere": (MachineLoad(2, 8),), "usage": usage(loop_cores=0.3)},
     "Use more workers, up to the number of cores of their machines"),
    ("computing here, and cores are free elsewhere", "workers_compute", COMPUTING,
     {"cores": 2, "workers": 4, "elsewhere": (MachineLoad(2, 8),), "usage": usage(worker_cores=0.95)},
     "Use more workers, up to the number of cores of their machines"),
    ("all cores of other machines are used", "workers_compute_full", BUSY,
     {"fetch_cpu": 0.5, "workers": 8, "elsewhere": (MachineLoad(4, 2), MachineLoad(4, 2)), "usage": usage()},
     "workers use 4.00 of the 4 cores of 2 other machines."),
    ("all cores here and elsewhere are used", "workers_compute_full", COMPUTING,
     {"cores": 2, "workers": 4, "elsewhere": (MachineLoad(2, 2),), "usage": usage(worker_cores=0.9)},
     "workers use 1.85 of the 2 cores of 1 other machine, and 1.85 of 2 cores of this one"),
    ("waiting on other machines", "workers_wait", BUSY, {"elsewhere": (MachineLoad(2, 4),)},
     "Use more workers, even beyond the number of cores of their machines"),
    ("cores of this machine are taken, and the workers are elsewhere", "workers_wait", BUSY,
     {"workers": 4, "elsewhere": (MachineLoad(3, 8),), "cores": 2,
      "usage": usage(core_wait=0.6, worker_cores=0.1, major_faults=9000.0, locked=0.9, looks=40)}, "waits for 95%"),
    ("huge batches", "huge_batches", BUSY, {"fetch_ms": 5.0, "collate_ms": 60.0, "nbytes": 1.2e8}, "(2.00 GB/s)"),
    ("start-up", "startup", BUSY,
     {"startup_wait": 0.7, "producing_wait": 0.1, "startup": 3.6, "worker_startup": 3.0},
     "The first batch came after 3.6 s, including 3.0 s to start the workers."),
    ("start-up, one worker", "startup", BUSY,
     {"startup_wait": 0.7, "producing_wait": 0.1, "startup": 3.6, "worker_startup": 3.0, "workers": 1},
     "The first batch came after 3.6 s, including 3.0 s to start the worker. Later batches take"),
    ("start-up, a worker after the first batch", "startup", BUSY,
     {"startup_wait": 0.7, "producing_wait": 0.1, "startup": 0.4, "worker_startup": 3.0},
     "The first batch came after 400 ms, and the slowest worker took 3.0 s to start. Later batches take"),
    ("no workers", "in_process", BUSY, {"place": Place.CONSUMER, "workers": 1}, "Use num_workers=2 or more"),
    ("no workers, small batches", "in_process",
     BUSY, {"place": Place.CONSUMER, "workers": 1, "fetch_ms": 0.04, "collate_ms": 0.02},
     "Use larger batches: a worker takes longer to send such a batch than the loop to make it. Loading is"),
    ("no workers, one core", "in_process", COMPUTING, {"place": Place.CONSUMER, "workers": 1, "cores": 1},
     "There is only one core. More workers would not help."),
    ("no workers, other programs", "in_process", BUSY,
     {"place": Place.CONSUMER, "workers": 1, "fetch_cpu": 0.4, "usage": usage(consumer_core_wait=0.5)},
     "Free the cores that other programs use, or use num_workers=2 or more. Or make samples cheaper: try loader."),
    ("interpreter lock", "interpreter_lock", BUSY,
     {"place": Place.THREADS, "workers": 4, "fetch_cpu": 0.25, "usage": usage(loop_cores=1.0)}, "workers='process'"),
    ("interpreter lock, threads that cannot begin", "interpreter_lock", BUSY,
     {"place": Place.THREADS, "workers": 4, "fetch_cpu": 0.35, "utilization": 0.6, "usage": usage(loop_cores=0.99)},
     "use 0.99 of 8 cores"),
    ("interpreter lock, a loop that cannot go on", "interpreter_lock", BUSY,
     {"place": Place.THREADS, "workers": 4, "fetch_cpu": 0.3, "producing_wait": 0.3, "opening_wait": 0.5,
      "usage": usage(loop_cores=0.99)}, "workers='process'"),
    ("interpreter lock, slow steps", "interpreter_lock", HEALTHY,
     {"place": Place.THREADS, "workers": 4, "fetch_cpu": 0.3, "utilization": 0.75,
      "usage": usage(loop_cores=0.99, consumer_cpu=0.07)}, "the loop waited for 2% of the epoch's 5.0 s"),
    ("healthy, threads", "consumer", HEALTHY,
     {"place": Place.THREADS, "workers": 4, "fetch_cpu": 0.3, "utilization": 0.5, "usage": usage(loop_cores=0.7)},
     "it waited for 2%"),
    ("threads that wait", "workers_wait", BUSY, {"place": Place.THREADS, "workers": 4, "usage": usage(loop_cores=0.2)},
     "Fetching waits"),
    ("threads that compute outside the lock", "workers_compute", COMPUTING,
     {"place": Place.THREADS, "usage": usage(loop_cores=1.9)}, "Use more workers"),
    ("lock", "lock", BUSY, {"workers": 4, "usage": usage(locked=0.74, looks=40)}, "in 74% of 40 observations"),
    ("lock held while computing", "lock", BUSY,
     {"workers": 2, "fetch_cpu": 0.5, "usage": usage(locked=0.45, looks=40)}, "in 45% of 40 observations"),
    ("lock held while computing, 4 workers", "lock", BUSY,
     {"workers": 4, "fetch_cpu": 0.25, "usage": usage(locked=0.7, looks=40)}, "in 70% of 40 observations"),
    ("lock for a part of the computing", "workers_compute", BUSY,
     {"workers": 2, "fetch_cpu": 0.9, "usage": usage(locked=0.1, looks=40)}, "90% CPU time"),
    ("too few looks for a lock", "workers_wait", BUSY, {"workers": 4, "usage": usage(locked=0.74, looks=5)}, "waits"),
    ("threads", "threads", BUSY,
     {"fetch_cpu": 0.9, "cores": 2, "usage": usage(threads=8, other_threads=0.6, worker_cores=0.95)},
     "up to 8 threads"),
    ("threads that lose their cores", "threads", BUSY,
     {"fetch_cpu": 0.9, "cores": 2,
      "usage": usage(threads=8, other_threads=0.6, worker_cores=0.95, preempted=956.0)},
     "in threads other than the one that loads, which loses its core 956 times a second. More workers would not"),
    ("threads that keep their cores", "workers_compute_full", BUSY,
     {"fetch_cpu": 0.9, "cores": 2, "usage": usage(threads=8, other_threads=0.6, worker_cores=0.95, preempted=2.0)},
     "More workers would not"),
    ("cores taken, with switches", "cores_taken", BUSY,
     {"fetch_cpu": 0.4, "cores": 2, "usage": usage(core_wait=0.5, worker_cores=0.4, preempted=214.0)},
     "of their work, and each loses its core 214 times a second. The workers and the loop use only 0.80"),
    ("sampler", "sampler", BUSY,
     {"sampler_wait": 0.75, "producing_wait": 0.05, "utilization": 0.1}, "the sampler was drawing indices (37.5 ms"),
    ("memory", "memory", BUSY, {"usage": usage(major_faults=8000.0)}, "reads 8,000 pages a second back"),
    ("upload", "upload", BUSY, {"placing_wait": 0.7, "producing_wait": 0.1, "device": "cuda:0"},
     "transfer to cuda:0"),
    ("idle workers, unexplained", "unknown", BUSY, {"utilization": 0.1, "full": 0.0}, "busy for only 10% of the time"),
    ("too few batches", "unknown", BUSY, {"batches": 2},
     "Cannot tell yet what limits the loop: 2 batches are too few"),
    ("nothing known", "unknown", {}, {}, "Cannot tell yet"),
]  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize(("cause", "base", "changes"), [c[1:4] for c in ALONE], ids=[c[0] for c in ALONE])
def test_the_slowest_line_is_named_where_workers_limit_the_loop(cause: str, base: Any, changes: Any):
    line = SlowLine(0.62, "image = open(path)", "cell 4 line 12")
    plain, named = verdict(evidence(base, changes)), verdict(evidence(base, changes | {"line": line}))
    assert named.cause == plain.cause == cause
    where = "the time of fetching" if evidence(base, changes).place is Place.CONSUMER else "the workers' time"
    words = f" 62% of {where} is spent in `image = open(path)` (cell 4 line 12)." if BY_NAME[cause].names_line else ""
    assert (words in named.sentence) if words else (named.sentence == plain.sentence)
    assert len(named.evidence) == len(plain.evidence) + len(words)


@pytest.mark.unit
def test_a_line_whose_results_a_cache_keeps_is_not_to_be_made_cheaper():
    line = SlowLine(0.62, "image = open(path)", "cell 4 line 12", is_kept=True)
    found = verdict(evidence(BUSY, {"fetch_cpu": 0.97, "cores": 2, "line": line}))
    assert found.cause == "workers_compute_full"
    assert found.sentence.startswith("Let the cache fill: cell 4 line 12 runs once for each result that it keeps. ")
    assert "remedies()" not in found.sentence
    in_vain = verdict(evidence(BUSY, {"fetch_cpu": 0.97, "cores": 2, "line": line._replace(missed=1234)}))
    assert in_vain.sentence.startswith("Remove nbloader.cached, or pass arguments that come again (cell 4 line 12). ")
    assert "(cell 4 line 12), and none of 1,234 cached calls in this epoch found an earlier result." in in_vain.sentence


class Numbers:
    """A dataset of slow samples."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.005)
        return index


class AllNumbers(IterableDataset):
    """The same, which each worker iterates over."""

    def __iter__(self):
        return map(Numbers().__getitem__, range(40))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [Numbers(), AllNumbers()], ids=["map-style", "iterable"])
def test_more_workers_for_an_iterable_dataset_are_advised_with_a_part_for_each(dataset, workers):
    """Otherwise each sample arrives once per worker, and the epoch takes as long as before."""
    with DataLoader(dataset, batch_size=4, num_workers=workers) as loader:
        for _batch in loader:
            pass
        sentence = loader.stats().epoch_verdict.sentence
    assert re.match("Use (num_workers=2 or )?more", sentence), sentence
    assert ("Let `__iter__` yield only its worker's part" in sentence) == isinstance(dataset, IterableDataset)


@pytest.mark.unit
def test_no_more_workers_are_advised_where_each_core_has_one():
    found = verdict(evidence(BUSY, {"fetch_cpu": 0.7, "cores": 4, "workers": 4}))
    assert found.cause == "workers_compute"
    assert "more workers" not in found.sentence
    assert found.sentence.startswith("Make samples cheaper: try loader.remedies(). ")


KNOWN = SlowLine(0.62, "x = np.load(path)['x']", "cell 4 line 12", "Read the file once per worker")
ADVICE = "Read the file once per worker (cell 4 line 12), as loader.remedies() shows"
TAKEN = {"fetch_cpu": 0.4, "cores": 2, "usage": usage(core_wait=0.5, worker_cores=0.4)}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("cause", "changes", "share", "words"),
    [
        ("workers_compute_full", {"fetch_cpu": 0.97, "cores": 2}, 0.62, f"{ADVICE}. Workers are the bottleneck"),
        ("workers_compute_full", {"fetch_cpu": 0.97, "cores": 2}, 0.25, f"{ADVICE}. Workers are the bottleneck"),
        ("workers_compute_full",
         {"fetch_cpu": 0.5, "workers": 8, "elsewhere": (MachineLoad(4, 2), MachineLoad(4, 2)), "usage": usage()},
         0.62, f"{ADVICE}, or add machines. Workers"),
        ("workers_compute", {"fetch_cpu": 0.97}, 0.62,
         f"{ADVICE}. Or use more workers, up to the number of cores (8). Workers are the bottleneck"),
        ("workers_compute", {"fetch_cpu": 0.97}, 0.49,
         f"Use more workers, up to the number of cores (8). Or {ADVICE[0].lower()}{ADVICE[1:]}. Workers are"),
        ("workers_wait", {"line": KNOWN._replace(shorter_wait=KNOWN.remedy)}, 0.62,
         f"{ADVICE}. Or use more workers, even beyond the number of cores (8). Workers are the bottleneck"),
        ("collate", {"fetch_ms": 20.0, "collate_ms": 80.0, "collate_cpu": 0.95}, 0.62,
         f"{ADVICE}. Or make the collate function faster, or use more workers. Collating is the bottleneck"),
        ("in_process", {"place": Place.CONSUMER, "workers": 1, "fetch_cpu": 0.97}, 0.62,
         f"{ADVICE}. Or use num_workers=2 or more, so that several batches are produced at the same time. Loading"),
        ("in_process", {"place": Place.CONSUMER, "workers": 1, "fetch_cpu": 0.97}, 0.49,
         "Use num_workers=2 or more, so that several batches are produced at the same time. Or read the file once per"),
        ("in_process", {"place": Place.CONSUMER, "workers": 1, "fetch_cpu": 0.97, "cores": 1}, 0.62,
         f"{ADVICE}. Loading is the bottleneck"),
        ("in_process",
         {"place": Place.CONSUMER, "workers": 1, "fetch_cpu": 0.2, "usage": usage(consumer_core_wait=0.7)},
         0.62, f"{ADVICE}. Or free the cores that other programs use, or use num_workers=2 or more. Loading"),
        ("cores_taken", TAKEN, 0.62, f"{ADVICE}. Or free the cores that other programs use. Workers are"),
        ("cores_taken", TAKEN, 0.3, f"{ADVICE}. Or free the cores that other programs use. Workers are"),
    ],
)  # fmt: skip
def test_the_verdict_begins_with_what_is_known_for_the_slowest_line(cause, changes, share, words):
    line = changes.get("line", KNOWN)._replace(share=share)
    found = verdict(evidence(BUSY, changes | {"line": line}))
    assert found.cause == cause
    assert found.sentence.startswith(words)
    assert found.sentence.count("loader.remedies()") == 1
    assert "x = np.load(path)['x']" in found.evidence
    assert "loader.remedies()" not in found.evidence, "the other span's evidence does not say what to do"
    assert "cheaper" not in found.sentence
    assert len(found.sentence) < 520, "as below"
    tried = line._replace(remedy_place="cell 2 line 5", is_tried=True)
    shown = verdict(evidence(BUSY, changes | {"line": tried})).sentence
    assert "ead the file once per worker (cell 2 line 5), as loader.remedies() has shown" in shown


CHEAPER = "Make the slowest line cheaper (cell 4 line 12): try loader.remedies()"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        ("workers_compute_full", {"fetch_cpu": 0.97, "cores": 2}),
        ("in_process", {"place": Place.CONSUMER, "workers": 1, "fetch_cpu": 0.97, "cores": 1}),
    ],
)
def test_where_only_a_cheaper_line_helps_the_verdict_names_the_call_that_looks_for_one(cause, changes):
    found = verdict(evidence(BUSY, changes | {"line": SlowLine(0.3, "x = word in words", "cell 4 line 12")}))
    assert found.cause == cause
    assert found.sentence.startswith(f"{CHEAPER}. ")
    assert "loader.remedies()" not in found.evidence
    in_vain = SlowLine(0.3, "x = word in words", "cell 4 line 12", is_tried=True)
    sentence = verdict(evidence(BUSY, changes | {"line": in_vain})).sentence
    assert sentence.startswith("Make the slowest line cheaper (cell 4 line 12). ")
    assert "loader.remedies()" not in sentence


@pytest.mark.unit
@pytest.mark.parametrize(
    ("cause", "changes", "more"),
    [
        ("cores_taken", TAKEN, ""),
        ("in_process",
         {"place": Place.CONSUMER, "workers": 1, "fetch_cpu": 0.2, "usage": usage(consumer_core_wait=0.7)},
         ", or use num_workers=2 or more"),
    ],
)  # fmt: skip
def test_where_other_programs_use_the_cores_the_slowest_line_is_a_remedy_too(cause, changes, more):
    free = f"ree the cores that other programs use{more}."
    for share in (0.62, 0.3):
        named = SlowLine(share, "x = word in words", "cell 4 line 12")
        found = verdict(evidence(BUSY, changes | {"line": named}))
        assert found.cause == cause
        assert found.sentence.startswith(f"{CHEAPER}. Or f{free} ")
    assert verdict(evidence(BUSY, changes)).sentence.startswith(f"F{free} ")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("source", "remedy"),
    [("total += y[i].item()", "Keep values as tensors, and convert them once after the loop (cell 4 line 12)."),
     ("words.sort()", "Make the slowest line of your loop cheaper (cell 4 line 12).")],
)  # fmt: skip
def test_the_slowest_line_of_the_loop_is_named_if_it_was_sampled(source, remedy):
    step = SlowLine(0.8, source, "cell 4 line 12")
    told = f" 80% of that time is spent in `{source}` (cell 4 line 12)."
    computing = verdict(evidence(HEALTHY, {"usage": usage(consumer_cpu=0.9), "step": step}))
    queued = verdict(
        evidence(HEALTHY, {"usage": usage(consumer_cpu=0.2, consumer_core_wait=0.7, worker_cores=0.1), "step": step})
    )
    assert computing.cause == queued.cause == "consumer_python"
    assert computing.sentence.startswith(remedy)
    assert queued.sentence.startswith(f"{remedy[:-1]}, or free the cores that other programs use. ")
    assert told in computing.evidence
    assert told in queued.evidence


@pytest.mark.unit
@pytest.mark.parametrize(("cause", "base", "changes", "words"), [c[1:] for c in ALONE], ids=[c[0] for c in ALONE])
def test_each_cause_alone(cause: str, base: dict[str, Any], changes: dict[str, Any], words: str):
    e = evidence(base, changes)
    found = verdict(e)
    assert (found.cause, found.also) == (cause, "")
    assert words in found.sentence
    if cause != "unknown":
        assert "of the epoch's 5.0 s" in found.sentence, "it says over which time"
        assert "of the last 5.0 s" in verdict(dataclasses.replace(e, span="now")).sentence
    assert len(found.sentence) < 520, "longer ones do not fit on the dashboard after the state of an epoch"


PAIRS: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("waiting and collate", "workers_wait", "collate", {"fetch_ms": 60.0, "collate_ms": 40.0},
     "collating takes 40.0 ms"),
    ("computing and waiting", "workers_compute", "workers_wait", {"fetch_cpu": 0.6}, "for 40% of its time"),
    ("two causes that explain most of the wait", "collate", "workers_compute_full",
     {"wait_share": 0.34, "opening_wait": 0.13, "producing_wait": 0.21, "fetch_ms": 7.0, "collate_ms": 7.2,
      "fetch_cpu": 0.9, "cores": 2, "pickled": 800.0}, "fetching computes"),
    ("waiting and cores taken", "workers_wait", "cores_taken", {"fetch_cpu": 0.1, "usage": usage(core_wait=0.25)},
     "core"),
    ("start-up and waiting", "startup", "workers_wait", {"startup_wait": 0.5, "producing_wait": 0.3}, "fetching waits"),
    ("waiting and start-up", "workers_wait", "startup", {"startup_wait": 0.42, "producing_wait": 0.38},
     "until the first"),
    ("stall and waiting", "stall", "workers_wait", {"stall_wait": 0.5, "stalls": 1, "producing_wait": 0.3}, "fetching"),
    ("sampler and waiting", "sampler", "workers_wait", {"sampler_wait": 0.5, "producing_wait": 0.3}, "fetching waits"),
    ("upload and collate", "upload", "collate",
     {"placing_wait": 0.5, "producing_wait": 0.3, "fetch_ms": 2.0, "collate_ms": 90.0}, "collating takes 90.0 ms"),
    ("waiting and window", "workers_wait", "window", {"workers": 4, "window": 2, "utilization": 0.6},
     "the window of 2 batches was full at 90% of the deliveries."),
    ("collate that computes next to other programs", "cores_taken", "collate",
     {"fetch_ms": 10.0, "collate_ms": 85.0, "collate_cpu": 0.4, "cores": 2,
      "usage": usage(core_wait=0.6, worker_cores=0.4)}, "collating takes 34.0 ms, apart from waiting for a core, of"),
    ("waiting, and collating beside other programs", "workers_wait", "cores_taken",
     {"fetch_ms": 60.0, "collate_ms": 35.0, "collate_cpu": 0.3, "usage": usage(core_wait=0.3)},
     "workers wait for a core during 32% of their work"),
    ("slow samples and collate", "slow_samples", "collate",
     {"fetch_ms": 60.0, "collate_ms": 40.0, "slow_share": 0.55, "slow_every": 40.0}, "collating takes"),
    ("lock and computing", "lock", "workers_compute",
     {"workers": 4, "fetch_cpu": 0.3, "usage": usage(locked=0.45, looks=20)}, "fetching computes for 30%"),
]  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize(("first", "second", "changes", "words"), [c[1:] for c in PAIRS], ids=[c[0] for c in PAIRS])
def test_pairs_of_causes(first: str, second: str, changes: dict[str, Any], words: str):
    found = verdict(evidence(BUSY, changes))
    assert (found.cause, found.also) == (first, second)
    assert words in found.sentence.partition(" A second cause accounts for ")[2]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("worst", "what"),
    [
        (WORST, "sample 683"),
        (LOST, "batch 42"),
        (LOST._replace(lost_sample=640), "sample 640"),
        (LOST._replace(lost_sample=640, slowest=2.9), "sample 683"),
        (LOST._replace(lost_sample=640, sample=None), "sample 640"),
        (SlowBatch(42, None, 3.1, None, 1), "batch 42"),
    ],
)
def test_the_sample_to_look_at_is_the_one_for_which_the_loop_waited(worst: SlowBatch, what: str):
    e = evidence(BUSY, {"stall_wait": 0.7, "stalls": 1, "producing_wait": 0.1, "worst": worst})
    assert verdict(e).sentence.startswith(f"Look at {what}, or limit waits")


@pytest.mark.unit
def test_a_loader_that_keeps_up_but_for_its_start_is_healthy():
    e = evidence(HEALTHY, {"wait_share": 0.25, "startup_wait": 0.22, "startup": 0.9})
    assert [(f.cause.name, f.share) for f in find_causes(e)] == [("consumer", 0.75), ("startup", 0.22)]
    assert (
        "A second cause accounts for 88% of the wait: start-up, with 900 ms until the first batch."
        in verdict(e).sentence
    )
    assert verdict(evidence(HEALTHY, {"wait_share": 0.5, "startup_wait": 0.48})).cause == "startup"
    late = {"wait_share": 0.5, "startup_wait": 0.48, "startup": 0.9}
    for started in (None, 0.8):
        remedy = verdict(evidence(HEALTHY, late | {"worker_startup": started})).sentence
        assert ("persistent_workers=True" in remedy) == (started is not None), "workers that did not start are kept"
        assert "longer epochs" in remedy
    soon = evidence(HEALTHY, {"wait_share": 0.16, "first_wait": 0.14, "startup_wait": 0.02, "startup": 0.7})
    why = "A second cause accounts for 88% of the wait: start-up, with 700 ms until the first batch."
    assert why in verdict(soon).sentence


shares = st.floats(0, 1)
counts = st.floats(0, 1e9)
any_usage = st.builds(
    Usage,
    shares,
    shares,
    counts,
    shares,
    st.integers(0, 99),
    counts,
    shares,
    st.integers(0, 99),
    counts,
    shares,
    shares,
    counts,
    st.none() | counts,
    st.none() | counts,
)
any_evidence = st.builds(
    Evidence,
    span=st.sampled_from(["now", "epoch"]), seconds=counts, batches=st.integers(0, 99), cores=st.integers(1, 64),
    workers=st.integers(1, 64), place=st.sampled_from(Place), window=st.integers(0, 99),
    wait_share=shares, startup_wait=shares, startup=st.none() | counts, worker_startup=st.none() | counts,
    stall_wait=shares, stalls=st.integers(0, 9), worst=st.none() | st.just(WORST), sampler_wait=shares,
    placing_wait=shares, opening_wait=shares, producing_wait=shares, make_ms=counts, fetch_ms=counts,
    collate_ms=counts, transport_ms=counts, reorder_ms=counts, fetch_cpu=st.none() | counts,
    collate_cpu=st.none() | counts, utilization=shares, full=shares, ready=counts, nbytes=counts, pickled=counts,
    by_pickle=shares, slow_share=shares, slow_every=counts, slow_workers=st.integers(0, 9),
    by_worker=st.dictionaries(st.integers(0, 3), st.builds(MakeTime, st.integers(0, 9), counts, counts), max_size=4),
    usage=st.none() | any_usage, nodes=st.integers(0, 9), records=st.just(()) | st.just(SENT),
    elsewhere=st.just(()) | st.just((MachineLoad(1, 2),)),
)  # fmt: skip


@pytest.mark.unit
@settings(max_examples=50)
@given(any_evidence)
def test_any_evidence_has_a_verdict(e: Evidence):
    found = verdict(e)
    assert found.cause in BY_NAME
    assert found.also != found.cause
    assert "nan" not in found.sentence
    assert "inf" not in found.sentence


@pytest.mark.unit
@settings(max_examples=200)
@given(any_evidence, shares, st.text(max_size=99), st.sampled_from(["", KNOWN.remedy]))
def test_a_verdict_names_a_remedy_only_of_a_line_that_is_recognized(e: Evidence, share: float, place: str, known: str):
    plain = verdict(e)
    found = verdict(dataclasses.replace(e, line=SlowLine(share, "x" * 99, place, known)))
    computes = found.cause in ("workers_compute", "workers_compute_full", "cores_taken", "unknown")
    assert (found.cause, found.also, found.more_workers) == (plain.cause, plain.also, plain.more_workers)
    count = found.sentence.lower().count("read the file once per worker")
    if found.cause in ("collate", "in_process"):  # there, only if what they do is computing, and most of it is the line
        assert count <= bool(known)
    else:
        assert count == bool(known and computes)
    trying = found.sentence.lower().count("make the slowest line cheaper (")
    assert trying <= (not known)
    assert found.sentence.count("loader.remedies()") == count + trying
    assert len(found.sentence) < 1000, "the text form and the report cut there"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("slow", "words"),
    [
        (range(7, 400, 40), "index % 40 == 7"),
        ([7, 47, 127, 167, 207, 247, 287, 555, 327, 367], "index % 40 == 7"),  # and one by chance
        ([300, 301, 303, 310, 320, 333, 319], "indices 300 to 333"),
        ([3, 101, 220, 501, 707, 990], ""),
        ([0, 50, 100], ""),
        (["a.png", "b.png"] * 9, ""),
        ([[1], {}, None, 3.5] * 9, ""),
        ([], ""),
    ],
)
def test_what_the_indices_of_slow_samples_have_in_common(slow: Any, words: str):
    assert in_common(list(slow), range(3, 1000, 8)) == words
    assert in_common(list(slow), []) == "", "nothing is known of the others"


def facts_of(index: int, seed: int = 0) -> SampleFacts:
    """Labels, files and sizes that have nothing to do with the index."""
    draw = random.Random(f"{index} {seed}")
    label = draw.randrange(10)
    values = {"label": label, "suffix": draw.choice([".png"] * 9 + [".tif"]), "folder": f"train/{label}"}
    return SampleFacts(values, {"file size": draw.uniform(1e4, 1e6), "len(texts)": draw.randrange(500)})


FACTS = {index: facts_of(index) for index in range(2000)}


@pytest.mark.unit
@settings(max_examples=60, deadline=None)
@given(
    st.integers(8, 40),
    st.randoms(use_true_random=False),
    st.sampled_from(
        [
            ("label == 3", lambda k: k.values["label"] == 3),
            ("suffix .tif", lambda k: k.values["suffix"] == ".tif"),
            ("file size of at least", lambda k: k.sizes["file size"] > 9e5),
            ("len(texts) >= 4", lambda k: k.sizes["len(texts)"] > 450),
        ]
    ),
)
def test_a_property_that_makes_samples_slow_is_named(count: int, draw: Any, planted: tuple[str, Any]):
    words, is_slow = planted
    slow = draw.sample([i for i, known in FACTS.items() if is_slow(known)], count)
    usual = draw.sample([i for i, known in FACTS.items() if not is_slow(known)], 120)
    assert in_common(slow, usual, FACTS).startswith(words)
    by_chance = draw.sample(usual, count // 10)
    assert in_common([*slow[: count - len(by_chance)], *by_chance], usual, FACTS).startswith(words), "one of ten is not"


@pytest.mark.unit
def test_samples_that_are_slow_at_random_have_nothing_in_common():
    named = []
    for seed in range(300):
        draw = random.Random(seed)
        seen = draw.sample(range(2000), draw.randint(2, 180))
        slow = draw.randint(1, min(64, len(seen)))
        named.append(in_common(seen[:slow], seen[slow:], FACTS if seed % 3 else None))
    assert sum(map(bool, named)) <= 1, named


# --- from records to evidence


def span(records: list[BatchRecord], **changes: Any) -> SpanOptions:
    seconds = (records[-1].returned - records[0].requested) / 1e9
    given = {
        "span": "epoch", "seconds": seconds, "wait_share": sum(r.waited for r in records) / seconds / 1e9,
        "batches": len(records), "workers": 2, "place": Place.PROCESSES, "cores": 4, "window": 4,
    }  # fmt: skip
    return SpanOptions(**(given | changes))


@pytest.mark.unit
def test_the_wait_is_divided():
    records = epoch([600 * MS, 30 * MS, *[30 * MS] * 40, 2 * S, *[30 * MS] * 40])
    e = measure(records, span(records, opening=records[:32]))
    total = sum(r.waited for r in records)
    assert e.startup_wait * e.seconds == pytest.approx(0.6 + 0.03 - 2 * 0.08 - 2 * 0.03, abs=0.001)
    assert (e.stalls, e.worst) == (1, SlowBatch(42, 16 * 42, 2.0, 0.08, 1, slowest=0.0045))
    assert e.stall_wait * e.seconds == pytest.approx(1.97)
    assert e.wait_share * e.seconds == pytest.approx(total / 1e9)
    assert e.producing_wait * e.seconds == pytest.approx(81 * 0.0299, rel=0.01)
    assert e.opening_wait * e.seconds == pytest.approx(81 * 0.0001, rel=0.01)
    assert (e.make_ms, e.fetch_ms, e.collate_ms) == pytest.approx((80, 72, 8))
    assert e.utilization == pytest.approx(1, abs=0.1)
    assert e.full == 1
    assert e.slow_share == 0
    assert [r.index for r in e.records] == [i for i in range(83) if i not in (0, 1, 42)], "neither first nor stalled"


@pytest.mark.unit
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_the_first_batches_are_work_of_the_workers_too(count):
    made = epoch([(index % 2 == 0) * 80 * MS for index in range(count)])
    e = measure(made, span(made, opening=made))
    assert e.utilization == pytest.approx(count * 80 / (2 * e.seconds * 1000), abs=0.01)


@pytest.mark.unit
def test_the_sampler_and_the_device_have_their_parts_of_the_wait():
    drawn = epoch([50 * MS] * 20, in_order=1, sampling=40 * MS)
    e = measure(drawn, span(drawn))
    assert (e.sampler_wait, e.opening_wait) == pytest.approx((40 / 60, 10 / 60))
    once = epoch([50 * MS] * 40)
    once[20] = once[20]._replace(delivered=once[20].requested + 3 * S, sampling=3 * S)
    assert measure(once, span(once)).stall_wait == 0, "a sampler that draws many batches at once is no stall"
    first = measure(drawn, span(drawn, opening=drawn))
    assert first.sampler_wait == pytest.approx(40 / 60)
    assert first.startup_wait == 0


@pytest.mark.unit
def test_slow_samples_are_found_and_waits_that_are_not_rare_are_no_stalls():
    records = [
        r if r.index % 4 else r._replace(slowest_ns=60 * MS, slowest_index=100 + r.index) for r in epoch([30 * MS] * 40)
    ]
    e = measure(records, span(records))
    assert e.slow_every == 64
    assert e.slow_share == pytest.approx(10 * (60 - 4.5) / (40 * 80), rel=0.01)
    assert e.slow_workers == 1
    usual = e.usual_indices
    assert len(usual) == 120
    assert all(i // 16 % 4 for i in usual), "of batches without a slow sample"
    some = measure(records[::4], span(records))
    delayed = [r if r.index % 4 else r._replace(slowest_ns=20 * MS) for r in epoch([30 * MS] * 80)]
    planted = {r.index: r._replace(slowest_ns=300 * MS, slowest_index=5000) for r in delayed[1::16]}
    noisy = [planted.get(r.index, r) for r in delayed]
    assert set(measure(noisy, span(noisy)).slow_indices) == {5000}, "not those that were delayed by chance"
    listed = {i for r in records[::4] for i in r.indices} - {r.slowest_index for r in records[::4]}
    assert set(some.usual_indices) == listed, "each batch has a slow one"
    often = epoch([2 * S if index % 10 == 5 else 30 * MS for index in range(40)])
    assert measure(often, span(often)).stall_wait == 0


@pytest.mark.unit
def test_one_batch_that_is_most_of_the_wait_stalled_the_loop_also_if_some_other_waits_were_long():
    """A busy machine delays other batches, and a worker that hangs keeps the others idle with a full window."""
    waits = [MS, MS, MS, MS, 1500 * MS, MS, 130 * MS, MS, MS, 110 * MS, *[MS] * 30]
    records = epoch(waits, 3 * MS)
    e = measure(records, span(records, opening=records[:2]))
    assert (e.stalls, e.worst.batch) == (1, 4)
    assert e.stall_wait * e.seconds == pytest.approx(1.499, abs=0.005)
    said = verdict(e)
    assert said.cause == "stall", said.sentence


@pytest.mark.unit
def test_workers_of_other_machines_are_counted_by_machine_also_after_their_end():
    far, near = Machine("far", 8), Machine("near", 2)
    sent = [
        r._replace(worker=r.index % 4, transfer=NodeTransfer(f"node {r.index % 2}", r.collated, r.received, 10))
        for r in epoch([30 * MS] * 40)
    ]
    machines = {1: far, 2: far, 3: near, 9: near}
    alive = measure(sent, span(sent, workers=3, pids={0: 7, 1: 8, 2: 9}, machines=machines))
    assert (alive.workers, alive.workers_here, alive.elsewhere) == (3, 1, (MachineLoad(2, 8),))
    ended = measure(sent, span(sent, workers=0, machines=machines))
    assert (ended.workers, ended.workers_here, ended.nodes) == (4, 1, 2)
    assert set(ended.elsewhere) == {MachineLoad(2, 8), MachineLoad(1, 2)}
    local = epoch([30 * MS] * 40)
    e = measure(local, span(local))
    assert (e.workers_here, e.elsewhere, e.nodes) == (2, (), 0)


@pytest.mark.unit
def test_batches_that_a_worker_fetches_at_the_same_time_share_its_time():
    records = epoch([30 * MS] * 40, make=800 * MS, fetch_cpu=8 * MS, slowest_ns=700 * MS)
    e = measure(records, span(records))
    assert e.overlap == pytest.approx(10, rel=0.15)
    assert (e.utilization, e.slow_share) == (1.0, 0.0)
    assert find_causes(e)[0].cause.name == "collate"  # 80 ms of each batch, one after the other
    quick = [r._replace(fetched=r.collated - MS) for r in records]
    e = measure(quick, span(quick))
    assert e.fetch_ms + e.collate_ms == pytest.approx(80, rel=0.05)
    assert e.fetch_cpu == pytest.approx(8 / e.fetch_ms)
    assert verdict(e).sentence.startswith("Use a higher concurrency, or more workers.")


@pytest.mark.unit
def test_an_epoch_of_any_length_is_sampled_evenly_and_keeps_its_longest_waits():
    sample = EpochSample()
    for begin in range(0, 10_000, 50):
        waits = [5 * S if index == 7003 else 30 * MS + index for index in range(begin, begin + 50)]
        sample.add([record(begin + i, S, wait, MS) for i, wait in enumerate(waits)], Pauses())
    assert [r.index for r in sample.opening] == list(range(32))
    assert 128 <= len(sample.records) < 256
    assert len(sample.records) == pytest.approx(10_000 / sample.stride, rel=0.25)
    fifths = collections.Counter(r.index // 2000 for r in sample.records)
    assert max(fifths.values()) < 2 * min(fifths.values())
    assert 7003 in {r.index for r in sample.worst}
    assert {r.index for r in sample.worst} >= set(range(9990, 10_000))


# --- counters of workers and of the loop


def counters(running: int, waiting: int, **changes: Any) -> WorkerCounters:
    given = {"cpu": running, "major_faults": 0, "threads": 1, "busy": True, "locked": False}
    return WorkerCounters(CpuTimes(running, waiting), **(given | changes))


@pytest.mark.unit
def test_counters_are_added_up_over_an_epoch_and_over_its_last_seconds():
    log = UsageLog()
    assert log.epoch() is None
    log.add(0, {1: counters(5 * S, 5 * S)}, LoopCounters(3 * S, CpuTimes(S, 0)))
    log.begin_epoch()
    log.add(2 * S, {1: counters(6 * S, 5 * S, locked=True), 2: counters(9 * S, 0)}, LoopCounters(4 * S, CpuTimes(S, 0)))
    log.add(
        10 * S,
        {1: counters(6 * S, 9 * S, cpu=10 * S, threads=4, major_faults=80), 2: counters(9 * S, 4 * S)},
        LoopCounters(4 * S, CpuTimes(5 * S, S)),
    )
    log.end_epoch()
    whole, last = log.epoch(), log.since(9 * S)
    assert whole is not None
    assert last is not None
    assert (whole.seconds, last.seconds) == (10, 8)
    assert whole.core_wait == pytest.approx(8 / 18), "of two seconds of one worker and eight of both"
    assert (last.core_wait, last.worker_cores) == (0.5, pytest.approx(0.25))
    assert whole.worker_cores == pytest.approx((1 + 4) / 18)
    assert whole.other_threads == pytest.approx(1 - 1 / 5)
    assert (whole.threads, whole.major_faults) == (4, pytest.approx(80 / 18))
    assert (whole.looks, whole.locked) == (3, pytest.approx(1 / 3))
    assert (whole.loop_cores, last.loop_cores) == (pytest.approx(0.1), 0)
    assert (whole.consumer_cpu, last.consumer_core_wait) == (pytest.approx(0.4), pytest.approx(1 / 8))
    log.add(99 * S, {}, LoopCounters(99 * S, None))
    assert (log.epoch(), log.since(98 * S)) == (whole, last), "what happens after the end does not count"


@pytest.mark.unit
def test_idle_cores_are_counted_while_they_are_known():
    log = UsageLog()
    log.add(0, {}, LoopCounters(0, None, 70 * S))
    log.begin_epoch()
    log.add(2 * S, {}, LoopCounters(0, None, 73 * S))
    log.add(4 * S, {}, LoopCounters(0, None, None))
    log.add(6 * S, {}, LoopCounters(0, None, 90 * S))
    log.add(8 * S, {}, LoopCounters(0, None, 91 * S))
    got = log.epoch()
    assert got is not None
    assert got.idle_cores == 1, "4 s of all cores in 4 s"
    log.begin_epoch()
    log.add(9 * S, {}, LoopCounters(0, None, None))
    got = log.epoch()
    assert got is not None
    assert got.idle_cores is None


@pytest.mark.unit
def test_context_switches_and_page_faults_are_added_up_where_they_are_read():
    log, loop = UsageLog(), LoopCounters(0, None)
    log.add(0, {1: counters(0, 0, switches=ContextSwitches(9, 9))}, loop)
    log.begin_epoch()
    log.add(S, {1: counters(0, 0)}, loop)
    first = log.epoch()
    assert first is not None
    assert (first.preempted, first.yielded) == (None, None), "they were not read in this epoch"
    log.add(2 * S, {1: counters(0, 0, switches=ContextSwitches(100, 10), minor_faults=50)}, loop)
    log.add(3 * S, {1: counters(0, 0), 2: counters(0, 0, switches=ContextSwitches(0, 0))}, loop)
    log.add(6 * S, {1: counters(0, 0, switches=ContextSwitches(180, 50))}, loop)
    got = log.epoch()
    assert got is not None
    assert (got.yielded, got.preempted) == (20, 10), "80 and 40 in 4 s"


@pytest.mark.unit
def test_a_thread_that_sleeps_gives_up_its_core():
    workers = (WorkerThread(os.getpid(), threading.get_native_id(), busy=True),)
    probe = UsageProbe()
    probe.read(workers, switches=True)
    probe.begin_epoch()
    probe.read(workers, switches=True)
    for _ in range(40):
        time.sleep(0.0001)
    probe.read(workers, switches=True)
    got = probe.epoch()
    assert got is not None
    assert got.yielded is not None
    assert got.yielded * got.seconds >= 20, "a thread that is preempted as it falls asleep does not count"


@pytest.mark.unit
def test_counters_of_a_thread_that_waits_for_a_lock():
    lock, begun = threading.Lock(), threading.Event()

    def wait() -> None:
        begun.set()
        with lock:
            pass

    thread = threading.Thread(target=wait)
    with lock:
        thread.start()
        begun.wait()
        assert thread.native_id
        probe = UsageProbe()
        workers = (WorkerThread(os.getpid(), thread.native_id, busy=True),)
        probe.begin_epoch()
        deadline = time.monotonic() + 30
        while ((got := probe.epoch()) is None or not got.locked) and time.monotonic() < deadline:
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                sum(range(100))
            probe.read(workers, consumer=True)
    thread.join()
    assert got is not None
    assert got.locked > 0
    assert got.consumer_cpu > 0
    assert got.loop_cores >= got.consumer_cpu / 2
    probe.read(workers)  # the thread has ended
    probe.end_epoch()


def test_counters_are_read_without_a_dashboard_and_kept_after_closing():
    with DataLoader(list(range(64)), 4, num_workers=2, collate_fn=_compute) as loader:
        for _batch in loader:
            pass
    s = loader.stats()
    assert s.state == "closed"
    measured = loader._parts.monitor._usage.epoch()
    assert measured is not None
    assert measured.worker_cores > 0
    assert s.epoch_verdict.sentence == loader.stats().epoch_verdict.sentence


def _compute(samples: list[int]) -> list[int]:
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        sum(range(100))
    return samples


QUICK = [workload.name for workload in WORKLOADS if workload.quick]
SLOW_MOTION = 4.0, 8.0


@pytest.mark.parametrize("name", QUICK)
def test_planted_causes_are_found(name: str):
    """Where other programs use the cores, a short sample really waits for a core most of the time: then again, slower.

    In slow motion the same is planted, and the time without a core is a small part again.
    """
    for pace in (1.0, *SLOW_MOTION):
        outcome = run(next(workload for workload in workloads(pace) if workload.name == name))
        if outcome.right or outcome.foreign <= FOREIGN:
            break
    assert outcome.right, f"{outcome.cause} {outcome.also}: {outcome.sentence}"
