"""Predicts the rate with other settings, by replaying measured batches through a model of the loader. Pure.

    records -> jobs (waiting, CPU time, step) -> replay with the present settings   -> must match what was measured
                                              -> replay with the changed settings   -> prediction

The model has workers that take jobs in order while the prefetch window has room, cores that are shared evenly by what
computes, and a loop that takes batches in order. A prediction is given only if replaying the unchanged loop comes close
to what was measured, and nothing that the model lacks limits it (a lock, other programs).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from nbloader._util.format import number, percent
from nbloader.diagnose.causes import SATURATED, Cause, core_wait, cores_used
from nbloader.metrics.stage_times import elapsed_ns, returned_at

if TYPE_CHECKING:
    from nbloader.events import BatchRecord
    from nbloader.metrics.evidence import Evidence

REPLAYED = 400
"""Batches that are replayed, the newest ones."""
MIN_REPLAYED = 20
"""Batches that a prediction needs."""
BLOCKS = 4
"""Parts of these batches whose predictions give the interval."""
MATCHES = 0.1
"""A replay of the unchanged loop must come so close to what was measured."""
EXTENSION = 16
"""Batches per worker beyond the window, while one is delayed and later ones are there."""
ROUNDS, ENOUGH = 40, 0.01
"""Limits of an iteration: rounds, and relative precision of the cores used."""
UNMODELED = {
    Cause.LOCK: "a lock serializes the workers",
    Cause.INTERPRETER_LOCK: "threads wait for the interpreter lock",
    Cause.THREADS: "the workers have several threads each",
    Cause.CORES_TAKEN: "other programs use the cores",
    Cause.PICKLE: "batches are pickled",
    Cause.MEMORY: "pages are read back from a disk or swap",
}
"""What the model lacks."""


class Job(NamedTuple):
    """What one batch costs, seconds."""

    waiting: float
    """Of its production: anything but computing."""
    cpu: float
    """Of its production: on a core of its own."""
    step: float
    """In the loop: the step, the sampler, and building the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a loader that the model knows."""

    workers: int
    """0: the loop itself produces batches."""
    window: int
    cores: float
    """Cores that the workers can use."""
    in_order: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The rate of a loader with other settings."""

    change: str
    """The settings, such as "num_workers=4"."""
    measured: float
    """Batches per second now."""
    speedup: float | None = None
    """Predicted rate over measured rate; None if there is no prediction."""
    low: float = 0.0
    """Lower end of the interval of `speedup`."""
    high: float = 0.0
    """Upper end."""
    replay_error: float | None = None
    """Rate of the replayed, unchanged loop over the measured one, minus 1."""
    reason: str = ""
    """Why there is no prediction."""

    @property
    def batches_per_second(self) -> float | None:
        """Predicted rate."""
        return None if self.speedup is None else self.speedup * self.measured

    def __str__(self) -> str:
        """One line."""
        if self.speedup is None:
            return f"{self.change}: cannot tell, {self.reason}"
        return (
            f"{self.change}: {self.speedup:.2f} x ({self.low:.2f} to {self.high:.2f}), "
            f"{number(self.speedup * self.measured)} batches/s instead of {number(self.measured)}"
        )


def jobs_of(records: Sequence[BatchRecord], e: Evidence) -> list[Job]:
    """What the batches cost.

    The time in which a worker waited for a core is left out where the loader itself fills the cores: then the model has
    it. Otherwise other programs are the reason, and will be so with other settings, too.
    """
    ratio = min(1.0, e.fetch_cpu or 0.0)
    queued = min(core_wait(e), 1 - ratio) if cores_used(e) >= SATURATED * e.cores else 0.0
    between = _between(records)
    jobs = []
    for r in records:
        make = elapsed_ns(r.fetch_begin, r.collated)
        cpu = ratio * make
        if r.fetch_cpu is not None and r.collate_cpu is not None:
            cpu = min(make, r.fetch_cpu + r.collate_cpu)
        waiting = max(0.0, make * (1 - queued) - cpu)
        there = elapsed_ns(max(r.requested, r.in_order), r.delivered)
        jobs.append(Job((waiting + between) / 1e9, cpu / 1e9, (there + elapsed_ns(r.delivered, returned_at(r))) / 1e9))
    return jobs


def _between(records: Sequence[BatchRecord]) -> float:
    """What a worker needs from one batch to the next that is in its queue, ns: sending, and receiving the task."""
    last: dict[int, BatchRecord] = {}
    gaps = []
    for r in sorted(records, key=lambda r: r.fetch_begin):
        before = last.get(r.worker)
        if before is not None and 0 < r.dispatched < before.collated < r.fetch_begin:
            gaps.append(r.fetch_begin - before.collated)
        last[r.worker] = r
    return statistics.median(gaps) if gaps else 0.0


class _Loop:
    """Replays jobs; see `replay`."""

    def __init__(self, jobs: Sequence[Job], settings: Settings) -> None:
        self._jobs = jobs
        self._settings = settings
        self._now = 0.0
        self._next = 0  # to dispatch
        self._left: dict[int, float] = {}  # what is left of the jobs in workers, 1 to 0
        self._done: set[int] = set()
        self._taken = 0
        self._busy_until: float | None = None
        self.finished: list[float] = []

    def run(self) -> list[float]:
        while len(self.finished) < len(self._jobs):
            self._take()
            self._dispatch()
            self._advance()
        return self.finished

    def _take(self) -> None:
        if self._busy_until is not None or not self._done:
            return
        job = min(self._done)
        if self._settings.in_order and job != self._taken:
            return
        self._done.remove(job)
        self._taken += 1
        self._busy_until = self._now + self._jobs[job].step

    def _dispatch(self) -> None:
        s = self._settings
        while self._next < len(self._jobs) and len(self._left) < s.workers:
            outstanding = self._next - self._taken
            delayed = self._busy_until is None and bool(self._done)
            if outstanding >= s.window + (EXTENSION * s.workers if delayed else 0):
                return
            self._left[self._next] = 1.0
            self._next += 1

    def _advance(self) -> None:
        """To the next moment at which a job or a step ends."""
        jobs = self._jobs
        slowdown = _slowdown([jobs[i] for i in self._left], self._settings.cores)
        lasts = {i: max(1e-9, jobs[i].waiting + jobs[i].cpu * slowdown) for i in self._left}
        until = min((left * lasts[i] for i, left in self._left.items()), default=float("inf"))
        if self._busy_until is not None:
            until = min(until, self._busy_until - self._now)
        self._now += max(0.0, until)
        for i in list(self._left):
            self._left[i] -= until / lasts[i]
            if self._left[i] <= 1e-9:  # noqa: PLR2004 - rounding
                del self._left[i]
                self._done.add(i)
        if self._busy_until is not None and self._busy_until <= self._now + 1e-12:
            self._busy_until = None
            self.finished.append(self._now)


def _slowdown(jobs: Sequence[Job], cores: float) -> float:
    """How many times longer the computing part of these jobs takes on so many cores, each job also waiting."""
    slowdown, cores = 1.0, max(0.1, cores)
    for _ in range(ROUNDS):
        used = sum(job.cpu / max(1e-9, job.waiting + job.cpu * slowdown) for job in jobs)
        if used <= cores * (1 + ENOUGH):
            break
        slowdown *= used / cores
    return slowdown


def replay(jobs: Sequence[Job], settings: Settings) -> list[float]:
    """When the loop has done each step, seconds from the start."""
    if not settings.workers:
        now, finished = 0.0, []
        for job in jobs:
            now += job.waiting + job.cpu + job.step
            finished.append(now)
        return finished
    return _Loop(jobs, settings).run()


def _seconds(finished: Sequence[float], skipped: int) -> float:
    """Time per batch once the loader is in its steady state."""
    skipped = min(skipped, len(finished) // 3)
    return (finished[-1] - finished[skipped]) / (len(finished) - 1 - skipped)


def predict(
    records: Sequence[BatchRecord], e: Evidence, now: Settings, changed: Settings, cause: str, change: str
) -> Prediction:
    """Predict the rate with changed settings.

    Args:
        records: Consecutive batches of one epoch, without its first ones.
        e: Evidence of that epoch.
        now: The settings with which they were made.
        changed: The settings to predict.
        cause: What limited the loop.
        change: The change, for a person.
    """
    records = sorted(records, key=returned_at)[-REPLAYED:]
    if len(records) < MIN_REPLAYED:
        reason = f"{MIN_REPLAYED} consecutive batches are needed, there are {len(records)}"
        return Prediction(change=change, measured=0.0, reason=reason)
    skipped = now.workers + 1
    seconds = _seconds([returned_at(r) / 1e9 for r in records], skipped)
    measured = 1 / seconds if seconds > 0 else 0.0
    none = Prediction(change=change, measured=measured)
    if cause in UNMODELED:
        return replace(none, reason=UNMODELED[Cause(cause)])
    jobs = jobs_of(records, e)
    error = seconds / _seconds(replay(jobs, now), skipped) - 1
    if abs(error) > MATCHES:
        text = f"a replay of the unchanged loop differs from what was measured by {percent(abs(error))}"
        return replace(none, reason=text, replay_error=error)
    size = max(MIN_REPLAYED // 2, len(jobs) // BLOCKS)
    parts = [jobs, *(jobs[i : i + size] for i in range(0, len(jobs) - size + 1, size))]
    ratios = [
        _seconds(replay(part, now), skipped) / max(1e-9, _seconds(replay(part, changed), changed.workers + 1))
        for part in parts
    ]
    speedup = ratios[0]
    spread = max(abs(error) * speedup, 2 * statistics.stdev(ratios[1:]) / len(ratios[1:]) ** 0.5 if ratios[2:] else 0.0)
    low, high = max(0.0, speedup - spread), speedup + spread
    return replace(none, speedup=speedup, low=low, high=high, replay_error=error)
