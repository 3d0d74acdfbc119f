"""What does not survive a fork, again and again: each loader must work, or heal within 15 s, and say so once.

    python tests/fork_stress.py --times 50

For each situation, new processes prepare it, and iterate a loader with forked workers for two epochs. Prints a table:
how many loaders worked at once, healed (went on with clean workers), failed or hung, and how long the first epoch took.
Each batch must arrive once.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import importlib
import importlib.util
import json
import logging
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

N = 64
HEALED_WITHIN = 15.0
"""Seconds within which the first epoch must be complete."""
LIMIT = 240.0
"""Seconds after which a process counts as hanging; it also imports torch, on a busy machine."""
SAID = "from now on"
"""Part of the line that says that the loader has changed to clean workers."""
GUARDED = "import threading\nlock = threading.Lock()\ndef read(i):\n    with lock:\n        return i\n"


class Samples:
    """Sample i is i.

    Args:
        read: What each sample calls.
    """

    def __init__(self, read: Callable[[int], Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> int:
        self.read(i)
        return i


@contextlib.contextmanager
def repeated(*functions: Callable[[], object]) -> Iterator[None]:
    """Let threads call functions again and again."""
    stop = threading.Event()

    def repeat(function: Callable[[], object]) -> None:
        while not stop.is_set():
            function()

    threads = [threading.Thread(target=repeat, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def held(lock: Any) -> Iterator[None]:
    """Let another thread hold a lock."""
    acquired, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            acquired.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    acquired.wait()
    try:
        yield
    finally:
        release.set()
        thread.join()


# ---- situations: context managers that yield a dataset


@contextlib.contextmanager
def openmp() -> Iterator[Samples]:
    """The notebook has used OpenMP with two threads; so do workers."""
    import torch

    def compute(_i: int) -> None:
        torch.set_num_threads(2)
        assert torch.ones(1_000_000).exp().sum() > 0

    compute(0)
    yield Samples(compute)


@contextlib.contextmanager
def logging_locks() -> Iterator[Samples]:
    """Threads log to a file without a pause; so do workers."""
    log = logging.getLogger("fork_stress")
    log.addHandler(logging.FileHandler(os.devnull))
    log.propagate = False
    with repeated(*2 * [lambda: log.warning("from a thread")]):
        yield Samples(lambda i: log.warning("sample %d", i))


@contextlib.contextmanager
def torch_generator() -> Iterator[Samples]:
    """Threads draw from torch's and NumPy's global generators without a pause; so do workers."""
    import numpy as np
    import torch

    with repeated(torch.empty(300_000).uniform_, lambda: np.random.rand(300_000), lambda: sum(range(100))):
        yield Samples(lambda _i: (torch.rand(3), np.random.rand(3)))


@contextlib.contextmanager
def module_lock() -> Iterator[Samples]:
    """Another thread holds a lock of a module of the project."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "guarded.py").write_text(GUARDED)
        sys.path.insert(0, folder)
        module = importlib.import_module("guarded")
        with held(module.lock):
            yield Samples(module.read)


@contextlib.contextmanager
def thread_pool() -> Iterator[Samples]:
    """The dataset has a thread pool, which the notebook has used."""
    with ThreadPoolExecutor(1) as pool:
        list(pool.map(int, range(4)))
        dataset = Samples(int)
        dataset.pool = pool  # type: ignore[attr-defined]
        dataset.read = ReadsWithThreads(pool)
        yield dataset


class ReadsWithThreads:
    """Calls a function on a thread pool."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool

    def __call__(self, i: int) -> int:
        return sum(self.pool.map(int, [i, 0]))


@contextlib.contextmanager
def event_loop() -> Iterator[Samples]:
    """An event loop runs in the notebook; workers run one for each sample."""
    yield Samples(lambda i: asyncio.run(asyncio.sleep(0, i)))


@contextlib.contextmanager
def polars() -> Iterator[Samples]:
    """The notebook has used polars; so do workers."""
    import polars as pl

    frame = pl.DataFrame({"x": range(10_000), "y": [i % 7 for i in range(10_000)]})

    def read(_i: int) -> None:
        assert frame.group_by("y").agg(pl.col("x").sum()).height == 7

    read(0)
    yield Samples(read)


SITUATIONS = {
    "polars, used before": polars,
    "OpenMP with two threads, used before": openmp,
    "logging in other threads": logging_locks,
    "torch's generator in other threads": torch_generator,
    "a lock of a module, held": module_lock,
    "a thread pool, used before": thread_pool,
    "a running event loop": event_loop,
}


# ---- one process


def attempt(name: str) -> None:
    """Iterate a loader for two epochs in a situation. Print the duration of the first, s."""
    from nbloader import DataLoader

    def epoch(loader: Any) -> float:
        begin = time.monotonic()
        assert [int(i) for batch in loader for i in batch] == list(range(N)), "each batch must arrive once"
        return time.monotonic() - begin

    async def cell() -> None:
        with SITUATIONS[name]() as dataset, DataLoader(dataset, 4, num_workers=2) as loader:
            print(json.dumps([epoch(loader), epoch(loader)]), flush=True)

    asyncio.run(cell())


# ---- the table


def outcome(name: str) -> tuple[str, float]:
    """Run one process. Return what happened, and how long the first epoch took."""
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", __file__, "--attempt", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return "hung", LIMIT
    if done.returncode:
        print(f"exit code {done.returncode}", done.stdout, done.stderr, sep="\n", file=sys.stderr)
        return "failed", 0.0
    said = (done.stdout + done.stderr).count(SAID)
    first, _second = json.loads(done.stdout.splitlines()[-1])
    if said > 1 or first > HEALED_WITHIN:
        return "late" if said <= 1 else f"said {said} times", first
    return ("healed" if said else "worked"), first


def main() -> int:
    """Run all situations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--only", default="", help="situations whose name contains this")
    parser.add_argument("--beside", type=int, default=os.cpu_count(), help="processes at the same time")
    parser.add_argument("--attempt", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attempt:
        attempt(arguments.attempt)
        return 0
    bad = False
    print("| situation | outcome | first epoch, median | longest |\n|---|---|---|---|", flush=True)
    for name in SITUATIONS:
        if arguments.only not in name:
            continue
        if name.startswith("polars") and importlib.util.find_spec("polars") is None:
            print(f"| {name} | not installed | | |", flush=True)
            continue
        with concurrent.futures.ThreadPoolExecutor(arguments.beside) as beside:
            found = list(beside.map(outcome, [name] * arguments.times))
        counts = {what: sum(w == what for w, _ in found) for what, _ in found}
        bad |= not counts.keys() <= {"worked", "healed"}
        said = ", ".join(f"{count} {what}" for what, count in counts.items())
        times = [seconds for _, seconds in found]
        print(f"| {name} | {said} | {statistics.median(times):.1f} s | {max(times):.1f} s |", flush=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
