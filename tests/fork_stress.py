"""Fork thousands of workers while threads of this process hold locks, and count those that hang.

    python tests/fork_stress.py --seconds 300
    python tests/fork_stress.py --seconds 300 --here

For each activity, threads do nothing else, and loaders with `multiprocessing_context="fork"` run epochs with new
workers. Each worker logs, draws from all global generators, allocates memory and uses OpenMP; its samples are compared
with those of an undisturbed process. The main thread has used OpenMP before. Prints a table by activity. With --here
the dataset holds a connection of sqlite3, so that the main thread forks.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import os
import random
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from nbloader import DataLoader

WORKERS = 8
PATIENCE = 30.0
"""Seconds without a batch after which a worker counts as hanging."""
log = logging.getLogger("nbloader.fork_stress")


class Samples:
    """Each sample uses what another process might have locked.

    Args:
        threads: Threads of OpenMP in each worker.
        connection: What only the main thread may use; or None.
    """

    def __init__(self, threads: int, connection: sqlite3.Connection | None) -> None:
        self.connection = connection
        self.threads = threads
        self.matrix = torch.arange(250_000.0).reshape(500, 500) / 250_000

    def __len__(self) -> int:
        return WORKERS

    def __getitem__(self, i: int) -> list[float]:
        torch.set_num_threads(self.threads)
        if self.connection is not None:
            assert self.connection.execute("SELECT 1").fetchone() == (1,)
        log.warning("sample %s", i)
        numbers = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        blocks = [bytearray(random.randrange(1000, 300_000)) for _ in range(50)]
        return [*numbers, float((self.matrix @ self.matrix).sum()), float(len(blocks))]


def _draw_torch() -> Callable[[], object]:
    return torch.empty(300_000).uniform_


def _compute() -> Callable[[], object]:
    numbers = torch.rand(500_000)
    return lambda: numbers.exp().sum()


def _multiply() -> Callable[[], object]:
    matrix = torch.rand(300, 300)
    return lambda: matrix @ matrix


def _allocate() -> Callable[[], object]:
    return lambda: [bytearray(random.randrange(1000, 300_000)) for _ in range(50)]


def _log() -> Callable[[], object]:
    return lambda: log.warning("from a thread")


def _draw_numpy() -> Callable[[], object]:
    return lambda: np.random.rand(300_000)


ACTIVITIES: dict[str, tuple[Callable[[], Callable[[], object]], ...]] = {
    "nothing": (),
    "logs to a file": (_log, _log),
    "computes with OpenMP": (_compute, _multiply),
    "allocates memory": (_allocate, _allocate),
    "draws from NumPy's global generator": (_draw_numpy, _draw_numpy),
    "draws from torch's global generator": (_draw_torch, _draw_torch),
    "all of these": (_log, _compute, _multiply, _allocate, _draw_numpy, _draw_torch),
}
"""What the threads do: makers of functions that are called again and again."""


@contextlib.contextmanager
def busy(makers: tuple[Callable[[], Callable[[], object]], ...]) -> Iterator[None]:
    """Run threads that call these functions again and again."""
    stop = threading.Event()

    def repeat(function: Callable[[], object]) -> None:
        while not stop.is_set():
            function()

    threads = [threading.Thread(target=repeat, args=(make(),)) for make in makers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def epoch(dataset: Samples, count: collections.Counter[str], **options: Any) -> list[Any]:
    """The batches of one epoch, with new workers."""
    loader: DataLoader[Any] = DataLoader(dataset, generator=torch.Generator().manual_seed(7), **options)
    with loader:

        def on_event(event: Any) -> None:
            match type(event).__name__:
                case "WorkerStarted":
                    count["forks"] += 1
                case "WorkerRestarted":
                    count["in its set-up" if "SIGALRM" in event.reason else event.reason] += 1

        subscription = loader.events.subscribe(on_event)
        batches = [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]
        del subscription
    return batches


def main() -> int:
    """Run all activities, each for the same time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--here", action="store_true", help="fork from the main thread")
    arguments = parser.parse_args()
    connection = sqlite3.connect(":memory:") if arguments.here else None
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores: on purpose
    log.addHandler(logging.FileHandler(os.devnull))
    log.propagate = False
    torch.set_num_threads(2)
    torch.rand(2_000_000).exp().sum()  # the main thread has threads of OpenMP now
    failed = False
    print("| other threads | OpenMP threads of a worker | forks | hung | forks/s |\n|---|---|---|---|---|", flush=True)
    for what, makers in ACTIVITIES.items():
        for threads in (1, 2):
            dataset = Samples(threads, connection)
            count: collections.Counter[str] = collections.Counter()
            how = {
                "num_workers": WORKERS, "multiprocessing_context": "fork", "dispatch": "round_robin",
                "timeout": PATIENCE, "on_timeout": "restart",
            }  # fmt: skip
            expected = epoch(dataset, collections.Counter())
            begin = time.monotonic()
            with busy(makers):
                while time.monotonic() - begin < arguments.seconds / 2 / len(ACTIVITIES):
                    assert epoch(dataset, count, **how) == expected, "the batches differ"
            forks = count.pop("forks")
            failed |= bool(count)
            said = ", ".join(f"{n} ({why})" for why, n in count.items()) or "0"
            rate = forks / (time.monotonic() - begin)
            print(f"| {what} | {threads} | {forks:,} | {said} | {rate:.0f} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
