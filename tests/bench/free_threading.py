"""Samples that compute in Python, by one and by two worker threads: for an interpreter without the GIL.

    .venv/pythons/3.14t-torch-2.14.1/bin/python tests/bench/free_threading.py

`make pythons PYTHON=python3.14t TORCH=2.14.1` creates that environment. The batches are NumPy arrays, then tensors.

On a busy machine compare the CPU time: as long as that is the same for both, the threads do not hinder each other, and
how much of the time both run is up to the machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any, Literal

import torch

from nbloader import DataLoader

TURNS = 7


def compute(i: int) -> int:
    """Take some milliseconds of pure Python."""
    total = 0
    for k in range(60_000):
        total += (k * i) & 1023
    return total


class Computed:
    """Samples are numbers."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, i: int) -> Any:
        return compute(i)


class ComputedTensors(Computed):
    """Samples are tensors of the size of a small image."""

    def __getitem__(self, i: int) -> Any:
        return torch.full((3, 64, 64), float(compute(i)))


def main() -> None:
    """Measure both kinds of samples."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(
        f"Python {sys.version.split()[0]}, {'with' if gil else 'without'} the GIL, torch {torch.__version__}, "
        f"{TURNS} epochs each, medians"
    )
    compare(Computed(), "numpy")
    compare(ComputedTensors(), "torch")


def compare(dataset: Computed, output: Literal["numpy", "torch"]) -> None:
    """Measure epochs with one thread and with two in turn, and print the speedup."""
    loaders = {n: DataLoader(dataset, 4, num_workers=n, workers="thread", output=output) for n in (1, 2)}
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
        wall, cpu = statistics.median(walls[n]), statistics.median(cpus[n])
        print(f"{output}, {n} threads: {wall:.3f} s, {cpu:.3f} s of CPU time")
    pairs = [one / two for one, two in zip(walls[1], walls[2], strict=True)]
    print(f"{output}, speedup {statistics.median(pairs):.2f}x ({min(pairs):.2f} to {max(pairs):.2f})")


if __name__ == "__main__":
    main()
