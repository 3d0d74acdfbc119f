"""How close `what_if` comes to what is then measured, and `tune` to a grid search: both with real loaders.

    make bench-diagnosis             after the planted causes; ONLY=predictions or ONLY=tuner for these alone

Each prediction is made from one epoch, which is followed by one with the changed settings and one as before. The
changed one is compared with the mean of the two: a change of the machine's load is not taken for a gain. This is done
three times. The tuner begins with one worker. What it finds is then measured in turns with the best settings of a
grid. The tables are written to build/planted/predictions.md.
"""

from __future__ import annotations

import argparse
import collections
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
from planted import TABLE, Computing, Samples, Sleeping, compute, warm_up

import nbloader

TURNS = 3
WARM_UP_BATCHES = 20
"""Batches of an epoch that are not measured."""
GRID = [(workers, prefetch) for workers in (1, 2, 3, 4, 6, 8, 12, 16) for prefetch in (2, 4)]
GRID_SECONDS = 1.5
STEP = Sleeping(0.002)


@dataclass(frozen=True)
class Lognormal:
    """Waits for a time that depends on the index, some much longer than others."""

    median: float
    sigma: float = 0.5

    def __call__(self, index: int) -> None:
        draw = np.random.default_rng(index).standard_normal()
        time.sleep(self.median * float(np.exp(self.sigma * draw)))


@dataclass(frozen=True)
class Mixed:
    """Computes, then waits."""

    computing: float
    waiting: float

    def __call__(self, _index: int) -> None:
        compute(self.computing)
        time.sleep(self.waiting)


class Cached(Samples):
    """The same samples from a cache, once they are there."""

    def __getitem__(self, index: int) -> Any:
        work: Any = self.work
        return cached_sample(index, work.seconds, computes=isinstance(work, Computing))


@nbloader.cached
def cached_sample(index: int, seconds: float, *, computes: bool) -> Any:
    """What `Samples` does for a sample."""
    compute(seconds) if computes else time.sleep(seconds)
    return np.full(16, index, np.float32)


@dataclass(frozen=True)
class Change:
    """A loop and a change of its settings."""

    name: str
    work: Callable[[int], object]
    before: dict[str, Any]
    after: dict[str, Any]
    step: Callable[[int], object] = STEP
    batches: int = 150


CHANGES = (
    Change("waits 4 ms", Sleeping(0.004), {"num_workers": 2}, {"num_workers": 4}),
    Change("waits 4 ms", Sleeping(0.004), {"num_workers": 4}, {"num_workers": 2}),
    Change("waits 4 ms, threads", Sleeping(0.004), {"num_workers": 2, "workers": "thread"}, {"num_workers": 4}),
    Change("waits 4 ms, step 25 ms", Sleeping(0.004), {"num_workers": 2}, {"num_workers": 6}, Sleeping(0.025)),
    Change("lognormal waits", Lognormal(0.003), {"num_workers": 2}, {"num_workers": 3}),
    Change("lognormal waits", Lognormal(0.003), {"num_workers": 3}, {"num_workers": 8}),
    Change("waits 4 ms, window 1", Sleeping(0.004), {"num_workers": 4, "prefetch": 1}, {"prefetch_factor": 2}),
    Change("no workers", Sleeping(0.002), {"num_workers": 0}, {"num_workers": 2}),
    Change("computes 2 ms", Computing(0.002), {"num_workers": 1}, {"num_workers": 2}),
    Change("computes and waits", Mixed(0.001, 0.003), {"num_workers": 1}, {"num_workers": 3}),
    Change("waits 4 ms", Sleeping(0.004), {"num_workers": 2}, {"cache": 1.0}),
    Change("computes 2 ms", Computing(0.002), {"num_workers": 1}, {"cache": 1.0}),
    Change("waits 4 ms", Sleeping(0.004), {"num_workers": 2}, {"batch_size": 32}),
    Change("waits 4 ms", Sleeping(0.004), {"num_workers": 2}, {"workers": "thread"}),
    Change("lognormal waits", Lognormal(0.003), {"num_workers": 3}, {"in_order": False}),
)


@dataclass
class Compared:
    """Predictions of a change, and what was measured."""

    change: Change
    predicted: list[float] = field(default_factory=list)
    inside: int = 0
    """Measurements inside the predicted interval."""
    measured: list[float] = field(default_factory=list)
    reason: str = ""

    @property
    def error(self) -> float:
        """Relative error of the median."""
        return abs(statistics.median(self.predicted) / statistics.median(self.measured) - 1)


def rate(loader: Any, step: Callable[[int], object], batches: int) -> float:
    """Samples per second of an epoch, without its beginning."""
    begin = time.perf_counter()
    number = 0
    for number, _batch in enumerate(loader):
        if number == WARM_UP_BATCHES:
            begin = time.perf_counter()
        step(number)
        if number == batches - 1:
            break
    return (number - WARM_UP_BATCHES) * loader.batch_size / (time.perf_counter() - begin)


def unchanged(dataset: Samples, change: Change) -> tuple[float, Any]:
    """The rate with the present settings, and the prediction of the change."""
    with nbloader.DataLoader(dataset, **{"batch_size": 16, **change.before}) as loader:
        before = rate(loader, change.step, change.batches)
        return before, loader.what_if(**change.after)


def compare(change: Change) -> Compared:
    """Predict and measure in turns."""
    result = Compared(change)
    dataset = Samples(16 * change.batches, change.work)
    before, prediction = unchanged(dataset, change)
    for _turn in range(TURNS):
        arguments = {"batch_size": 16, **change.before}
        if "prefetch_factor" in change.after:
            arguments.pop("prefetch", None)
        arguments |= change.after
        cached = arguments.pop("cache", 0.0)
        changed = Cached(dataset.length, change.work) if cached else dataset
        with nbloader.DataLoader(changed, **arguments) as loader:
            if cached:
                collections.deque(loader, maxlen=0)  # fills it
            after = rate(loader, change.step, change.batches)
        again, next_prediction = unchanged(dataset, change)
        gain = 2 * after / (before + again)
        turn, before, prediction = prediction, again, next_prediction
        if turn.speedup is None:
            result.reason = turn.reason
            continue
        result.predicted.append(turn.speedup)
        result.measured.append(gain)
        result.inside += turn.low <= gain <= turn.high
    return result


def predictions() -> list[str]:
    """The table of predictions, as Markdown."""
    lines = ["| loop and change | predicted | measured | error |", "|---|---|---|---|"]
    errors = []
    for change in CHANGES:
        result = compare(change)
        after = ", ".join(f"{name}={value}" for name, value in change.after.items())
        before = ", ".join(f"{name}={value}" for name, value in change.before.items())
        row = f"| {change.name}, {before} -> {after} | "
        if result.predicted:
            errors.append(result.error)
            row += f"{statistics.median(result.predicted):.2f}x | {statistics.median(result.measured):.2f}x "
            row += f"({min(result.measured):.2f} to {max(result.measured):.2f}) | {100 * result.error:.0f}% |"
        else:
            row += f"none: {result.reason} | | |"
        print(row, flush=True)
        lines.append(row)
    if errors:
        highest = sorted(errors)[int(0.9 * (len(errors) - 1))]
        lines += ["", f"Median error {100 * statistics.median(errors):.0f}%, 90th percentile {100 * highest:.0f}%."]
    return lines


TUNED = (
    ("waits 4 ms, step 6 ms", Sleeping(0.004), Sleeping(0.006)),
    ("lognormal waits, step 4 ms", Lognormal(0.003), Sleeping(0.004)),
    ("computes 1 ms, waits 3 ms", Mixed(0.001, 0.003), Sleeping(0.002)),
    ("computes 2 ms", Computing(0.002), Sleeping(0.002)),
)


def grid_search(dataset: Samples, step: Callable[[int], object]) -> dict[tuple[int, int], float]:
    """The rate with each setting of the grid."""
    rates = {}
    for workers, prefetch in GRID:
        with nbloader.DataLoader(dataset, 16, num_workers=workers, prefetch_factor=prefetch) as loader:
            rates[workers, prefetch] = timed(loader, step, GRID_SECONDS)
    return rates


def timed(loader: Any, step: Callable[[int], object], seconds: float) -> float:
    """Batches per second over so many seconds, once the first batches are there."""
    begin = time.perf_counter()
    for number, _batch in enumerate(loader):
        if number == WARM_UP_BATCHES:
            begin = time.perf_counter()
        step(number)
        if number > 2 * WARM_UP_BATCHES and time.perf_counter() - begin > seconds:
            return (number - WARM_UP_BATCHES) / (time.perf_counter() - begin)
    raise RuntimeError("the dataset is too short")


def tuner(seconds: float) -> list[str]:
    """The table of the tuner beside the grid, as Markdown."""
    lines = ["| loop | best of the grid | tuner | took | rate of the tuner's |", "|---|---|---|---|---|"]
    for name, work, step in TUNED:
        dataset = Samples(16 * 1_000_000, work)
        rates = grid_search(dataset, step)
        best = max(rates, key=rates.__getitem__)
        with nbloader.DataLoader(dataset, 16, num_workers=1) as loader:
            tuning, began = loader.tune(seconds, max_workers=16), time.perf_counter()
            for number, _batch in enumerate(loader):
                step(number)
                if tuning.finished:
                    break
            took = time.perf_counter() - began
        assert tuning.best is not None
        found = tuning.best.setting
        ratios = []
        for _turn in range(TURNS):
            pair = []
            for workers, prefetch in (best, (found.num_workers, found.prefetch_factor)):
                with nbloader.DataLoader(dataset, 16, num_workers=workers, prefetch_factor=prefetch) as loader:
                    pair.append(timed(loader, step, GRID_SECONDS))
            ratios.append(pair[1] / pair[0])
        window = "" if found.prefetch_factor is None else f", prefetch {found.prefetch_factor}"
        row = (
            f"| {name} | {best[0]} workers, prefetch {best[1]} | {found.num_workers} workers{window} | "
            f"{took:.0f} s, {len(tuning.trials)} settings | "
            f"{100 * statistics.median(ratios):.0f}% of the grid's |"
        )
        print(row, flush=True)
        lines.append(row)
    return lines


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="predictions or tuner")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each search of the tuner")
    options = parser.parse_args()
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    warm_up()
    lines = [f"{datetime.now(timezone.utc):%Y-%m-%d}, {os.cpu_count()} cores, load {load}."]
    if options.only in ("", "predictions"):
        lines += ["", *predictions()]
    if options.only in ("", "tuner"):
        lines += ["", *tuner(options.seconds)]
    text = "\n".join(lines) + "\n"
    path = TABLE.with_name("predictions.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
