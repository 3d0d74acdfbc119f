"""Samples that compute in Python, by one and by two worker threads: for an interpreter without the GIL.

    PYTHONPATH=. python3.13t tests/bench/free_threading.py

On a busy machine compare the CPU time: as long as that is the same for both, the threads do not hinder each other, and
how much of the time both run is up to the machine.
"""

from __future__ import annotations

import statistics
import sys
import time

from nbloader import DataLoader

TURNS = 7


class Computed:
    """Each sample takes some milliseconds of pure Python."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, i: int) -> int:
        total = 0
        for k in range(60_000):
            total += (k * i) & 1023
        return total


def main() -> None:
    """Measure both in turn, and print the table."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}, {'with' if gil else 'without'} the GIL, {TURNS} epochs each, medians")
    loaders = {n: DataLoader(Computed(), 4, num_workers=n, workers="thread", output="numpy") for n in (1, 2)}
    walls: dict[int, list[float]] = {n: [] for n in loaders}
    cpus: dict[int, list[float]] = {n: [] for n in loaders}
    for turn in range(TURNS + 1):
        for n, loader in loaders.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _batch in loader:
                pass
            if turn:  # the first one starts the threads
                walls[n].append(time.perf_counter() - wall)
                cpus[n].append(time.process_time() - cpu)
    for n, loader in loaders.items():
        loader.close()
        print(f"{n} threads: {statistics.median(walls[n]):.3f} s, {statistics.median(cpus[n]):.3f} s of CPU time")
    pairs = [one / two for one, two in zip(walls[1], walls[2], strict=True)]
    print(f"speedup {statistics.median(pairs):.2f} x ({min(pairs):.2f} to {max(pairs):.2f})")


if __name__ == "__main__":
    main()
