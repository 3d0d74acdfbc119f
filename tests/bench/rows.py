"""The rows of the benchmark: what is done, by whom, and what is wanted of it."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import systems
import work

OURS, TORCH = "nbloader", "torch"

Turns = "dict[str, list[dict[str, float]]]"
"""What the turns of each system gave, in the order in which they were taken."""


@dataclass(frozen=True)
class Verdict:
    """One thing wanted, and what was found."""

    want: str
    found: str
    met: bool


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    """The key of its work, and the name to select it by."""
    title: str
    unit: str
    kind: str
    """The method of `side.Side` that measures a turn."""
    judge: Callable[[Turns], list[Verdict]]
    extra: tuple[str, ...] = ()
    """Systems beside torch and ours."""
    peers: bool = False
    fresh: bool = False
    """A new process for each turn."""
    turns: int = 5


def median(turns, system, key="value"):
    """The median of one figure of one system."""
    return statistics.median(turn[key] for turn in turns[system])


def ratio(turns, one, other):
    """How many times faster `one` is than `other`: the median over pairs of turns taken one after the other."""
    return statistics.median(a["value"] / b["value"] for a, b in zip(turns[one], turns[other], strict=True))


def at_least(what, found, want, form="{:.1f} x"):
    return Verdict(f"{what} ≥ {form.format(want)}", form.format(found), found >= want)


def at_most(what, found, want, form):
    return Verdict(f"{what} ≤ {form.format(want)}", form.format(found), found <= want)


def times(torch, peers=0.0):
    """Judge a rate against torch's, and against the best peer's where one was measured."""

    def judge(turns):
        verdicts = [at_least("torch", ratio(turns, OURS, TORCH), torch)]
        measured = [peer for peer in systems.PEERS if peer in turns]
        if peers and measured:
            best = max(measured, key=lambda peer: median(turns, peer))
            verdicts.append(at_least(f"best peer ({best})", ratio(turns, OURS, best), peers))
        return verdicts

    return judge


def _large(turns):
    part = 100 * ratio(turns, OURS, "memcpy")
    return [*times(8)(turns), at_least("one thread's memcpy", part, 60, "{:.0f} %")]


def _wait(turns):
    """Eight workers at 5 ms a sample: 1,600 samples a second."""
    return [at_least("the ideal of 100/s", median(turns, OURS), 98, "{:.1f} %")]


def _stragglers(turns):
    job = work.WORK["stragglers"]
    batches = work.BATCHES["stragglers"]
    ideal = batches / (sum(work.straggling(job.batch_size * batches)) / job.workers)
    return [at_least(f"total wait / workers ({ideal:.1f}/s)", 100 * median(turns, OURS) / ideal, 95, "{:.1f} %")]


def _jpeg(turns):
    workers = work.WORK["jpeg"].workers
    part = 100 * ratio(turns, OURS, "in process") / workers
    return [at_least(f"{workers} x in process", part, 95, "{:.0f} %")]


def _later(turns):
    beyond = median(turns, OURS) - median(turns, OURS, "own")
    return [at_most("beyond the batch's own work", beyond, 10, "{:.1f} ms")]


def _first(turns):
    return [at_most("from iter()", median(turns, OURS), 250, "{:.0f} ms")]


def _first_torch(turns):
    """Spawn and import once, timed here and now, so that it has the same noise around it."""
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        took.append(1e3 * (time.perf_counter() - begin))
    once = statistics.median(took)
    return [at_most("one spawn and import of torch", median(turns, OURS), once, "{:.0f} ms")]


def _memory(turns):
    return [
        at_most("PSS of all processes", median(turns, OURS), 1200, "{:,.0f} MB"),
        at_most("first batch", median(turns, OURS, "first"), 1000, "{:.0f} ms"),
    ]


def _events(turns):
    slower = 100 * (ratio(turns, "without events", OURS) - 1)
    return [at_most("slower than without", slower, 6, "{:.1f} %")]


def _keep(turns):
    return [at_most("memory over data", median(turns, OURS), 110, "{:.0f} %")]


ROWS = (
    Row("large", "large: 64 x 3x224x224 float32, no work, 2 workers", "batch/s", "rate", _large, ("memcpy",), peers=True),
    Row("tiny", "tiny: 32 x (8 floats, int), 2 workers", "batch/s", "rate", times(8, 3), peers=True),
    Row("dict40", "dict of 40 arrays of 64 floats, batch 32, 2 workers", "batch/s", "rate", times(20, 5), peers=True),
    Row("custom", "strings, nested lists, variable arrays, own collate, 2 workers", "batch/s", "rate", times(3)),
    Row("wait", "5 ms wait a sample, batch 16, 8 workers", "batch/s", "rate", _wait, peers=True),
    Row("jpeg", "JPEG decode, resize, crop, batch 32, 2 workers", "batch/s", "rate", _jpeg, ("in process",), peers=True),
    Row("later", "first batch of a later epoch, large, 2 workers", "ms", "later", _later, peers=True),
    Row("first", "first batch ever, NumPy only, 4 workers", "ms", "first", _first, fresh=True),
    Row("first_torch", "first batch ever, torch in the dataset, 4 workers", "ms", "first", _first_torch, fresh=True),
    Row("stragglers", "1 ms a sample, every 50th 100 ms, batch 16, 4 workers", "batch/s", "rate", _stragglers),
    Row("memory", "1 GB array in the dataset, 4 workers, all processes", "MB PSS", "memory", _memory, fresh=True),
    Row("events", "tiny, events and history on against off", "batch/s", "rate", _events, ("without events",), turns=11),
    Row("keep", "list(loader): memory over data, 2 workers", "%", "keep", _keep, fresh=True),
)

LEFT_OUT = (
    'workers="thread", 5 ms wait, 16 threads: there are no thread workers yet',
    "100 million samples, shuffle=True: there is no lazy permutation yet",
    "dashboard open at 4 Hz: needs a kernel and a browser",
)
