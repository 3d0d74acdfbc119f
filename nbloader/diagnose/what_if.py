"""Predict the rate with other settings by replaying measured batches through a model of the loader. Pure.

    records -> costs -> jobs -> replay with the present settings   -> must match what was measured
                 |
                 +-> changed costs -> jobs -> replay with the changed settings   -> prediction

A cost is the time that a batch took: waiting and computing while it was fetched and collated, and the loop's step.
Some changes affect the settings (workers, window, order). Others affect the costs (a cache, a line that takes no time,
larger batches).

In the model, workers take jobs in order while the prefetch window has room, as in `scheduler.prefetch`, everything that
computes shares the cores evenly, and the loop takes batches in order. There is a prediction only if the replay of the
unchanged loop comes close to what was measured, and if nothing that the model lacks (a lock, other programs) limits the
loop. For a line of code that takes no time there is always one: else its share bounds the gain (`without_line`). If a
change has an effect that was not measured (which code holds the interpreter lock, how long a step with a
larger batch takes), both extremes are replayed. Their predictions are the ends of the interval; if they are far apart,
there is no prediction.

Workers on other machines share the cores of their machine. Three things were not measured: how many of these cores
other programs use, whether more workers would be placed on further machines, and how many bytes per second a node can
send. At one end of the interval, workers never wait for a core or for the transfer of another batch. At the other end,
they have only the cores of the present machines, and a node sends batches one after another, each taking as long as
now.
"""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from nbloader._util.format import factor, number, percent, plural, text_table
from nbloader.diagnose.causes import BY_NAME, CORES_TAKEN, LOCK, PICKLE
from nbloader.diagnose.causes.interpreter_lock import INTERPRETER_LOCK
from nbloader.diagnose.without_line import LineTime, gain_without
from nbloader.diagnose.work import CONTENDED, core_wait, split_work, taken_by_others
from nbloader.metrics.evidence import MachineLoad
from nbloader.metrics.stage_times import elapsed_ns, returned_at
from nbloader.scheduler import prefetch

if TYPE_CHECKING:
    from nbloader.events import BatchRecord
    from nbloader.metrics.evidence import Evidence
    from nbloader.scheduler.prefetch import Load

REPLAYED = 400
"""Number of batches to replay, the newest ones."""
MIN_REPLAYED = 20
"""Minimum number of batches for a prediction, except of an epoch that has fewer."""
MIN_WHOLE = 4
"""Minimum number of batches of an epoch that is replayed as a whole."""
BLOCKS = 4
"""The replayed batches are split into this many parts; the spread of their predictions gives the interval."""
MATCHES = 0.2
"""Largest relative error of the replay of the unchanged loop for which there is a prediction. Its interval is at least
that wide to either side."""
UNDISTURBED = 0.1
"""Share of the gaps between two batches of a worker that no other thread on its core has prolonged, where the loader
itself fills the cores."""
ROUNDS, ENOUGH = 40, 0.01
"""Limits of the iteration in `_slowdown`: number of rounds, and relative precision of the cores used."""
WIDE = 1.6
"""There is no prediction if the two extremes of an unmeasured effect differ by more than this factor, or the ends of
the interval by more than its square."""
HIT_TIMES = 0.8, 1.25
"""Range of the cost of a cache hit, as multiples of the measured cost, which varies with the arguments and with other
programs."""
OVER = 10
"""A larger speedup is given as "over 10x". It depends on the little time that would be left, such as for handing over
a batch, and this takes longer in a slow loop, where each batch finds cold caches."""
COLUMNS = ("", "batches/s", "gain")
"""Headings of the table of a prediction."""


class Job(NamedTuple):
    """What one batch costs in the model, seconds."""

    waiting: float
    """The part of its production that does not compute."""
    cpu: float
    """The part of its production that computes, as if it had a core to itself."""
    step: float
    """Time in the loop: the step, the sampler, and building the batch."""
    step_cpu: float = 0.0
    """The part of `step` that computes."""


class Cost(NamedTuple):
    """What one batch took, seconds."""

    samples: float
    nbytes: float
    fetch_waiting: float
    fetch_cpu: float
    collate_waiting: float
    collate_cpu: float
    between: float
    """Time between one batch of a worker and the next one in its queue."""
    sending: float
    """Time to send the batch as a pickle, until the loop had read it."""
    sampling: float
    """Time for which the loop drew indices, or waited for them."""
    opening: float
    """Time to build or unpickle the batch after it had arrived."""
    step: float
    step_cpu: float
    """The part of `step` that computes."""
    transfer: float = 0.0
    """Time for which its node sent it, until it was copied; 0 for a batch from this machine."""

    @property
    def job(self) -> Job:
        """This cost as a job of the model."""
        waiting = self.fetch_waiting + self.collate_waiting + self.between + self.sending
        return Job(
            waiting,
            self.fetch_cpu + self.collate_cpu,
            self.sampling + self.opening + self.step,
            self.step_cpu,
        )

    @property
    def made(self) -> float:
        """Time to fetch and collate."""
        return self.fetch_waiting + self.fetch_cpu + self.collate_waiting + self.collate_cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class CostChange:
    """A change in what batches cost."""

    cached: float = 0.0
    """Share of the samples that come from a cache, 0 to 1."""
    hit_seconds: float = 0.0
    """CPU time of a sample that comes from the cache, seconds."""
    line: LineTime | None = None
    """A line of code that is assumed to take no time."""
    unlocks: bool = False
    """Whether that line is one at which workers wait for a lock."""
    threads: bool = False
    """Whether the workers become threads instead of processes."""
    transport: bool = True
    """Whether batches must be transported."""
    batch_size: int | None = None
    """Samples per batch; None to keep the present size."""

    @property
    def removes_pickling(self) -> bool:
        """Whether batches are no longer pickled."""
        return self.threads or not self.transport


UNCHANGED = CostChange()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a loader that the model takes into account."""

    workers: int
    """Number of workers; if 0, the loop itself produces batches."""
    window: int
    blocked: int = 0
    """Batches that may be outstanding beyond the window while one batch blocks those that have arrived after it."""
    cores: float
    """Cores that the workers on this machine and the loop can use."""
    in_order: bool = True
    elsewhere: tuple[MachineLoad, ...] = ()
    """Other machines on which workers run, with their workers and cores."""
    nodes: int = 0
    """Number of nodes that send batches."""

    @property
    def unlimited(self) -> Settings:
        """The same settings without limits on the cores of other machines and on the transfer from nodes."""
        return replace(self, elsewhere=tuple(m._replace(cores=math.inf) for m in self.elsewhere), nodes=0)

    def with_workers(self, workers: int) -> Settings:
        """Return settings with another number of workers, divided among the machines in the present proportions."""
        if not self.elsewhere:
            return replace(self, workers=workers)
        loads = [load.workers for load in self.machines]
        counts = [0] * len(loads)
        for _ in range(workers):
            fewest = min((i for i, load in enumerate(loads) if load), key=lambda i: (counts[i] + 1) / loads[i])
            counts[fewest] += 1
        there = zip(self.elsewhere, counts[1:], strict=True)
        elsewhere = tuple(m._replace(workers=count) for m, count in there if count)
        return replace(self, workers=workers, elsewhere=elsewhere)

    @property
    def machines(self) -> list[MachineLoad]:
        """This machine, then the others."""
        here = self.workers - sum(machine.workers for machine in self.elsewhere)
        return [MachineLoad(here, self.cores), *self.elsewhere]


def settings_of(load: Load, e: Evidence, *, in_order: bool) -> Settings:
    """Return the settings of a loader, with the window that the prefetch policy in use plans.

    Args:
        load: What the policy plans from.
        e: Evidence of an epoch.
        in_order: Whether batches are delivered in order.
    """
    plan = prefetch.POLICY(load._replace(num_workers=max(1, load.num_workers)))
    now = Settings(
        workers=e.workers,
        window=plan.size if load.num_workers else 0,
        blocked=plan.credit - plan.size,
        cores=e.cores,
        in_order=in_order,
        elsewhere=e.elsewhere,
        nodes=e.nodes,
    )
    return now.with_workers(load.num_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The rate of a loader with other settings."""

    change: str
    """The changed settings, such as "num_workers=4"."""
    measured: float
    """Batches per second now."""
    speedup: float | None = None
    """Predicted over measured samples per second; None if there is no prediction."""
    low: float = 0.0
    """Lower end of the interval of `speedup`."""
    high: float = 0.0
    """Upper end of the interval."""
    replay_error: float | None = None
    """Replayed rate of the unchanged loop over the measured rate, minus 1."""
    reason: str = ""
    """Why there is no prediction."""
    batches: float = 1.0
    """Batches per sample with the change, relative to now: less than 1 if batches become larger. `speedup` refers to
    samples per second."""

    @property
    def batches_per_second(self) -> float | None:
        """Predicted rate; None if there is no prediction."""
        return None if self.speedup is None else self.speedup * self.measured * self.batches

    def gain(self, unit: str = "", *, interval: bool = True) -> str:
        """The speedup as text, such as "1.88x as fast (1.70 to 2.00)"; "" if there is no prediction.

        Args:
            unit: What follows the number, such as " as fast".
            interval: Whether to add the interval.
        """
        if self.speedup is None:
            return ""
        if self.at_least:
            return f"over {self.at_least}x{unit}"
        return f"{factor(self.speedup, '.2f')}{unit}" + (f" ({self.low:.2f} to {self.high:.2f})" if interval else "")

    @property
    def at_least(self) -> int:
        """For a speedup above `OVER`: this, or the lower end of its interval. 0 if the speedup itself is said."""
        return min(OVER, math.floor(self.low)) if (self.speedup or 0.0) > OVER and self.low >= 1 else 0

    @property
    def _unit(self) -> str:
        return " as many samples/s" if self.batches != 1 else ""

    def _rate(self, *, interval: bool) -> str:
        """The predicted rate as text, as precise as `gain`."""
        gains = (self.speedup or 0.0, self.low, self.high, self.at_least)
        rate, low, high, least = (number(gain * self.measured * self.batches) for gain in gains)
        if self.at_least:
            return f"over {least}"
        return f"{rate} ({low} to {high})" if interval else rate

    def _rows(self) -> list[tuple[str, str, str]]:
        """The rows of the table: now, and with the change."""
        now = "not measured" if not self.measured else number(self.measured)
        if self.speedup is None:
            return [("now", now, ""), (self.change, f"cannot tell: {self.reason}", "")]
        return [("now", now, ""), (self.change, self._rate(interval=True), self.gain(self._unit))]

    def __repr__(self) -> str:
        """A table: the rate now, the predicted rate with its interval, and the gain."""
        return text_table([COLUMNS, *self._rows()], left=(0, 1, 2))

    def _repr_html_(self) -> str:
        """The same table for notebooks."""
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in COLUMNS)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self._rows())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __str__(self) -> str:
        """The prediction in one line."""
        if self.speedup is None:
            return f"{self.change}: cannot tell, because {self.reason}"
        instead = f"{self._rate(interval=False)} batches/s instead of {number(self.measured)}"
        return f"{self.change}: {self.gain(self._unit)}, {instead}"


def costs_of(records: Sequence[BatchRecord], e: Evidence) -> list[Cost]:
    """Compute what each batch took.

    If the loader itself fills the cores, the time for which a worker or the loop waited for a core is left out, also
    between two batches, because the model adds it. Otherwise other programs cause the wait, and would do so with other
    settings too.
    """
    full = not taken_by_others(e)
    work = split_work(e)
    queued, collate_queued = (work.fetching.queued, work.collating.queued) if full else (0.0, 0.0)
    own = max(0.01, 1 - e.wait_share)
    computing, short = (0.0, 0.0) if e.usage is None else (e.usage.consumer_cpu / own, e.usage.consumer_core_wait / own)
    computing = min(1.0, computing)
    short = min(short, 1 - computing) if full else 0.0
    between = _between(records, UNDISTURBED if full else 0.5)
    opening = _undisturbed(records) if full else 1.0
    costs = []
    for r, sending in zip(records, _transfers(records), strict=True):
        made = elapsed_ns(r.fetch_begin, r.collated)
        fetch = min(made, elapsed_ns(r.fetch_begin, r.fetched))
        collate = made - fetch
        fetch_cpu, collate_cpu = min(fetch, r.fetch_cpu), min(collate, r.collate_cpu)
        there = elapsed_ns(max(r.requested, r.in_order), r.delivered)
        drawn = min(there, r.sampling)
        step = elapsed_ns(r.delivered, returned_at(r))
        nanoseconds = (
            max(0.0, fetch * (1 - queued) - fetch_cpu),
            fetch_cpu,
            max(0.0, collate * (1 - collate_queued) - collate_cpu),
            collate_cpu,
            between,
            elapsed_ns(r.collated, r.received) if r.transport == "pickle" else 0,
            drawn,
            (there - drawn) * opening,
            step * (1 - short),
            step * computing,
            sending,
        )
        costs.append(Cost(max(1, r.samples), r.nbytes, *(ns / 1e9 for ns in nanoseconds)))
    return costs


def _undisturbed(records: Sequence[BatchRecord]) -> float:
    """The part of the time to build the batches that is left without the threads that share the loop's core."""
    times = sorted(elapsed_ns(max(r.requested, r.in_order), r.delivered) for r in records)
    mean = sum(times) / len(times) if times else 0
    return min(1.0, times[int(UNDISTURBED * len(times))] / mean) if mean else 1.0


def _between(records: Sequence[BatchRecord], part: float) -> int:
    """Time of a worker between one batch and the next one that is already in its queue, ns.

    It sends the first batch and receives the task of the second.

    Args:
        records: The batches.
        part: The part of these times that is shorter: 0.5 for the median.
    """
    last: dict[int, BatchRecord] = {}
    gaps = []
    for r in sorted(records, key=lambda r: r.fetch_begin):
        before = last.get(r.worker)
        if before is not None and 0 < r.dispatched < before.collated < r.fetch_begin:
            gaps.append(r.fetch_begin - before.collated)
        last[r.worker] = r
    return sorted(gaps)[int(part * len(gaps))] if gaps else 0


def _transfers(records: Sequence[BatchRecord]) -> list[float]:
    """How long the node of each batch took to send it, until it was copied, ns; 0 for a batch from this machine.

    Batches that were sent together have the same begin, and share the time.
    """
    together: dict[tuple[str, int], list[int]] = collections.defaultdict(list)
    for r in records:
        if r.transfer is not None:
            together[r.transfer.node, r.transfer.begin].append(r.transfer.end)
    shares = {key: (max(ends) - key[1]) / len(ends) for key, ends in together.items()}
    return [0.0 if r.transfer is None else shares[r.transfer.node, r.transfer.begin] for r in records]


class _Loop:
    """Simulation of the loader and the loop; see `replay`."""

    def __init__(self, jobs: Sequence[Job], settings: Settings) -> None:
        self._jobs = jobs
        self._settings = settings
        self._now = 0.0
        self._next = 0  # number of the next job to dispatch
        self._left: dict[int, float] = {}  # the part that is left of each job in a worker, 1 to 0
        self._machines = settings.machines
        self._free = [machine.workers for machine in self._machines]
        self._at: dict[int, int] = {}  # position in `_machines` of the machine that runs each job
        self._done: set[int] = set()
        self._taken = 0
        self._step: Job | None = None  # the present step of the loop, as a job without a step
        self._step_left = 0.0
        self.finished: list[float] = []

    def run(self) -> list[float]:
        while len(self.finished) < len(self._jobs):
            self._take()
            self._dispatch()
            self._advance()
        return self.finished

    def _take(self) -> None:
        if self._step is not None or not self._done:
            return
        number = min(self._done)
        if self._settings.in_order and number != self._taken:
            return
        self._done.remove(number)
        self._taken += 1
        job = self._jobs[number]
        self._step, self._step_left = Job(max(0.0, job.step - job.step_cpu), job.step_cpu, 0.0), 1.0

    def _dispatch(self) -> None:
        s = self._settings
        while self._next < len(self._jobs) and len(self._left) < s.workers:
            outstanding = self._next - self._taken
            delayed = self._step is None and bool(self._done)
            window = s.window or int(self._step is None)  # without one, a batch is requested when the loop waits
            if outstanding >= window + (min(len(self._done), s.blocked) if delayed else 0):
                return
            at = max(range(len(self._free)), key=self._free_share) if len(self._free) > 1 else 0
            self._free[at] -= 1
            self._at[self._next] = at
            self._left[self._next] = 1.0
            self._next += 1

    def _free_share(self, machine: int) -> float:
        """The share of a machine's workers that are idle."""
        return self._free[machine] / max(1, self._machines[machine].workers)

    def _advance(self) -> None:
        """Advance to the next moment at which a job or a step ends."""
        jobs, step = self._jobs, self._step
        running: list[list[Job]] = [[] for _machine in self._machines]
        if step is not None:
            running[0].append(step)
        for i in self._left:
            running[self._at[i]].append(jobs[i])
        slowdowns = [_slowdown(there, m.cores) for there, m in zip(running, self._machines, strict=True)]
        lasts = {i: max(1e-9, jobs[i].waiting + jobs[i].cpu * slowdowns[self._at[i]]) for i in self._left}
        until = min((left * lasts[i] for i, left in self._left.items()), default=float("inf"))
        step_lasts = 0.0 if step is None else max(1e-12, step.waiting + step.cpu * slowdowns[0])
        if step is not None:
            until = min(until, self._step_left * step_lasts)
        self._now += until
        for i in list(self._left):
            self._left[i] -= until / lasts[i]
            if self._left[i] <= 1e-9:  # noqa: PLR2004 - rounding
                del self._left[i]
                self._free[self._at.pop(i)] += 1
                self._done.add(i)
        if step is not None:
            self._step_left -= until / step_lasts
            if self._step_left <= 1e-9:  # noqa: PLR2004 - rounding
                self._step = None
                self.finished.append(self._now)


def _slowdown(jobs: Sequence[Job], cores: float) -> float:
    """How many times longer the computing parts of jobs take if the jobs run at the same time on this many cores."""
    slowdown, cores = 1.0, max(0.1, cores)
    for _ in range(ROUNDS):
        used = sum(job.cpu / max(1e-9, job.waiting + job.cpu * slowdown) for job in jobs)
        if used <= cores * (1 + ENOUGH):
            break
        slowdown *= used / cores
    return slowdown


def replay(jobs: Sequence[Job], settings: Settings) -> list[float]:
    """Compute when the loop finishes each step, in seconds from the start."""
    if not settings.workers:
        now, finished = 0.0, []
        for job in jobs:
            now += job.waiting + job.cpu + job.step
            finished.append(now)
        return finished
    return _Loop(jobs, settings).run()


def _seconds(finished: Sequence[float], skipped: int | None) -> float:
    """Time per batch once the loader is in its steady state, after some batches; None for all of them, from time 0."""
    if skipped is None:
        return finished[-1] / len(finished)
    skipped = min(skipped, len(finished) // 3)
    return (finished[-1] - finished[skipped]) / (len(finished) - 1 - skipped)


class _Variant(NamedTuple):
    """One way in which a change may turn out."""

    jobs: list[Job]
    settings: Settings
    samples: float
    """Number of samples in all jobs."""
    transfer: float
    """Seconds for which the nodes send the batches, in total."""
    whole: bool
    """Whether the jobs are those of a whole epoch."""

    @property
    def seconds(self) -> float:
        """Time per sample: in the steady state, or of the whole epoch."""
        skipped = None if self.whole else self.settings.workers + 1
        return _seconds(replay(self.jobs, self.settings), skipped) * len(self.jobs) / self.samples

    @property
    def sending(self) -> float:
        """Time per sample if the nodes that send batches are the limit; 0 if no node sends batches."""
        return self.transfer / self.settings.nodes / self.samples if self.settings.nodes else 0.0


def _variants(costs: Sequence[Cost], settings: Settings, change: CostChange, *, whole: bool) -> list[_Variant]:
    """List the ways in which a change may turn out: one, or both extremes of each unmeasured effect."""
    found = [(list(costs), settings)]
    if change.line is not None:
        error = change.line.error
        found = [(_without_line(c, change.line, by), s) for c, s in found for by in (-error, 0.0, error)]
    if change.cached:
        found = [(_cached(c, change.cached, t * change.hit_seconds), s) for c, s in found for t in HIT_TIMES]
    if change.threads:
        found = [
            (_untransported(c, pickling=pickling), replace(s, cores=cores))
            for c, s in found
            for cores, pickling in ((min(1.0, s.cores), True), (s.cores, False))
        ]
    elif not change.transport:
        found = [(_untransported(c, pickling=pickling), s) for c, s in found for pickling in (True, False)]
    if change.batch_size is not None:
        found = [(_regrouped(c, change.batch_size, longer=longer), s) for c, s in found for longer in (True, False)]
    if settings.elsewhere or settings.nodes:
        found = [(c, end) for c, s in found for end in (s.unlimited, s)]
    return [_variant(c, s, whole=whole) for c, s in found]


def _variant(costs: Sequence[Cost], settings: Settings, *, whole: bool) -> _Variant:
    samples, transfer = sum(cost.samples for cost in costs), sum(cost.transfer for cost in costs)
    return _Variant([cost.job for cost in costs], settings, samples, transfer, whole)


def _without_line(costs: Sequence[Cost], line: LineTime, error: float) -> list[Cost]:
    """Remove the time of a line of code, as a share of the time of each batch.

    Args:
        costs: What the batches took.
        line: The line's share of the time.
        error: Added to this share.
    """
    share = line.share
    scale = max(0.0, min(1.0, share + error)) / share if share else 0.0
    made = sum(cost.made for cost in costs)
    computing = sum(cost.fetch_cpu + cost.collate_cpu for cost in costs)
    waiting = made - computing
    cpu = min(computing, line.computing * scale * made)
    idle = min(waiting, share * scale * made - cpu)
    keeps_cpu, keeps_idle = 1 - cpu / computing if computing else 1.0, 1 - idle / waiting if waiting else 1.0
    return [
        cost._replace(
            fetch_waiting=cost.fetch_waiting * keeps_idle,
            fetch_cpu=cost.fetch_cpu * keeps_cpu,
            collate_waiting=cost.collate_waiting * keeps_idle,
            collate_cpu=cost.collate_cpu * keeps_cpu,
        )
        for cost in costs
    ]


def _cached(costs: Sequence[Cost], share: float, hit: float) -> list[Cost]:
    """Take a share of the samples from a cache, where a hit takes `hit` seconds."""
    return [
        cost._replace(
            fetch_waiting=cost.fetch_waiting * (1 - share),
            fetch_cpu=cost.fetch_cpu * (1 - share) + share * cost.samples * hit,
        )
        for cost in costs
    ]


def _untransported(costs: Sequence[Cost], *, pickling: bool) -> list[Cost]:
    """Hand batches to the loop without transport.

    Args:
        costs: What the batches took.
        pickling: Whether pickled batches keep their time to collate, which includes the time to pickle them.
    """
    return [
        cost._replace(
            between=0.0,
            sending=0.0,
            opening=0.0,
            transfer=0.0,
            collate_waiting=cost.collate_waiting if pickling or not cost.sending else 0.0,
            collate_cpu=cost.collate_cpu if pickling or not cost.sending else 0.0,
        )
        for cost in costs
    ]


def _regrouped(costs: Sequence[Cost], size: int, *, longer: bool) -> list[Cost]:
    """Form batches of another size from the same samples.

    Args:
        costs: What the batches took.
        size: Samples per new batch.
        longer: Whether the duration of a step is proportional to the size of its batch. Otherwise a step takes as long
            as now.
    """
    found, parts, room = [], [], float(size)
    for cost in costs:
        left = 1.0  # the part of this batch that is left
        while left * cost.samples > 1e-9:  # noqa: PLR2004 - rounding
            part = min(left, room / cost.samples)
            parts.append(Cost(*(part * value for value in cost)))
            left -= part
            room -= part * cost.samples
            if room <= 1e-9:  # noqa: PLR2004 - rounding
                found.append(Cost(*map(sum, zip(*parts, strict=True))))
                parts, room = [], float(size)
    count = max(1, len(costs))
    step, step_cpu = sum(cost.step for cost in costs) / count, sum(cost.step_cpu for cost in costs) / count
    between = sum(cost.between for cost in costs) / count
    found = [cost._replace(between=between) for cost in found]
    return found if longer else [cost._replace(step=step, step_cpu=step_cpu) for cost in found]


def predict(
    records: Sequence[BatchRecord],
    e: Evidence,
    now: Settings,
    changed: Settings,
    cause: str,
    change: str,
    costs_change: CostChange = UNCHANGED,
    *,
    whole: bool = False,
) -> Prediction:
    """Predict the rate with changed settings.

    Args:
        records: Consecutive batches of one epoch, without its first ones.
        e: Evidence of that epoch.
        now: The settings with which the batches were loaded.
        changed: The settings for which to predict the rate.
        cause: What limited the loop.
        change: The change as text for the user.
        costs_change: What the change does to the costs of batches.
        whole: Whether the records are all batches of an epoch, which is too short for a steady state.
    """
    alone = costs_change.line if costs_change == CostChange(line=costs_change.line) and changed == now else None
    found = _replayed(records, e, now, changed, cause, change, costs_change, wide=alone is not None, whole=whole)
    if found.speedup is not None or alone is None or not (found.measured or e.batches_per_second):
        return found
    gain = gain_without(alone, e, serialized=cause in (LOCK.name, INTERPRETER_LOCK.name))
    return replace(found, reason="", measured=found.measured or e.batches_per_second, **gain._asdict())


def _replayed(
    records: Sequence[BatchRecord],
    e: Evidence,
    now: Settings,
    changed: Settings,
    cause: str,
    change: str,
    costs_change: CostChange,
    *,
    wide: bool,
    whole: bool,
) -> Prediction:
    """Predict the rate by a replay; see `predict`. `wide` says whether an interval may have any width."""
    records = sorted(records, key=returned_at)[-REPLAYED:]
    if len(records) < (MIN_WHOLE if whole else MIN_REPLAYED):
        return Prediction(change=change, measured=0.0, reason=_too_few(len(records), whole=whole))
    skipped, begin = (None, min(r.fetch_begin for r in records)) if whole else (now.workers + 1, 0)
    seconds = _seconds([(returned_at(r) - begin) / 1e9 for r in records], skipped)
    measured = 1 / seconds if seconds > 0 else 0.0
    costs = costs_of(records, e)
    samples = sum(cost.samples for cost in costs) / len(costs)
    fewer = 1.0 if costs_change.batch_size is None else samples / costs_change.batch_size
    none = Prediction(change=change, measured=measured, batches=fewer)
    instead = _instead(now, changed, costs_change)
    reason = _unmodeled(cause, costs_change, samples * len(costs), e)
    if reason:
        return replace(none, reason=f"{reason}{instead}")
    error = seconds / _seconds(replay([cost.job for cost in costs], now.unlimited), skipped) - 1
    if abs(error) > MATCHES:
        text = f"a replay of the unchanged loop differs from what was measured by {percent(abs(error))}{instead}"
        return replace(none, reason=text, replay_error=error)
    size = max(MIN_REPLAYED // 2, len(costs) // BLOCKS)
    parts = [costs, *([] if whole else (costs[i : i + size] for i in range(0, len(costs) - size + 1, size)))]
    gains = [_gains(part, now, changed, costs_change, whole=whole) for part in parts]
    gains = [gain for gain in gains if gain]
    error_at_least = max(abs(error), MATCHES) if whole else error
    by_variant = [_interval(list(ratios), error_at_least) for ratios in zip(*gains, strict=True)]
    low, high = min(found.low for found in by_variant), max(found.high for found in by_variant)
    extremes = [found.speedup for found in by_variant]
    speedup = statistics.median(extremes)
    if max(extremes) > WIDE * max(1e-9, min(extremes)) and not wide:
        text = f"{_may_be(min(extremes), max(extremes))}, {_unmeasured(costs_change)}{instead}"
        return replace(none, reason=text, replay_error=error)
    if high > WIDE * WIDE * low and not wide:
        text = f"{_may_be(low, high)}, because the batches differ too much from each other{instead}"
        return replace(none, reason=text, replay_error=error)
    return replace(none, speedup=speedup, low=low, high=high, replay_error=error)


def _too_few(batches: int, *, whole: bool) -> str:
    if whole:
        return f"an epoch of {plural(batches, 'batch')} is too short to replay (measure it in a longer epoch)"
    return (
        f"{MIN_REPLAYED} consecutive batches are needed, but there are {batches} so far (iterate over at least "
        f"{MIN_REPLAYED} batches, and ask again)"
    )


def _may_be(low: float, high: float) -> str:
    return f"it may be {factor(low, '.2f')} to {factor(high, '.2f')} as fast"


class _Interval(NamedTuple):
    """A speedup and its interval."""

    speedup: float
    low: float
    high: float


def _gains(costs: Sequence[Cost], now: Settings, changed: Settings, change: CostChange, *, whole: bool) -> list[float]:
    """Compute the speedup of each variant; an empty list if there are too few batches."""
    before = _variant(costs, now.unlimited, whole=whole).seconds
    variants = _variants(costs, changed, change, whole=whole)
    if any(len(variant.jobs) < (1 if whole else MIN_REPLAYED // 4) for variant in variants):
        return []
    # Nodes can send at least as many bytes per second as now.
    return [before / max(1e-12, variant.seconds, min(variant.sending, before)) for variant in variants]


def _interval(ratios: Sequence[float], error: float) -> _Interval:
    """Combine the speedup over all batches (the first ratio) with its spread between parts of them."""
    speedup, *parts = ratios
    spread = max(abs(error) * speedup, 2 * statistics.stdev(parts) / len(parts) ** 0.5 if len(parts) > 1 else 0.0)
    return _Interval(speedup, max(0.0, speedup - spread), speedup + spread)


def _unmodeled(cause: str, change: CostChange, samples: float, e: Evidence) -> str:
    """Why there can be no prediction, regardless of the replay; "" if there may be one."""
    limit = BY_NAME.get(cause)  # a verdict may also be a state of the loader
    cheaper = limit is CORES_TAKEN and change.line is not None  # a line's share includes its waits for a core
    removed = (limit is PICKLE and change.removes_pickling) or (limit is LOCK and change.unlocks) or cheaper
    if limit is not None and limit.unmodeled and not removed:
        return limit.unmodeled
    if change.line is None and core_wait(e) >= CONTENDED and taken_by_others(e):  # more workers would wait, too
        return CORES_TAKEN.unmodeled
    if change.batch_size is not None and samples < change.batch_size * MIN_REPLAYED:
        return f"the {samples:.0f} samples of the last batches make fewer than {MIN_REPLAYED} batches of this size"
    return ""


def _instead(now: Settings, changed: Settings, change: CostChange) -> str:
    """What to do where there is no prediction, in parentheses."""
    if change.threads:
        return ' (loader.tune(kinds=("process", "thread")) measures it)'
    measure = " (measure it in an epoch)"
    if change != UNCHANGED or changed.in_order != now.in_order:
        return measure
    if now.workers and changed.workers and changed.workers != now.workers:
        return f" (loader.tune(num_workers={changed.workers}) measures it)"
    return " (loader.tune() measures it)" if now.workers else measure


def _unmeasured(change: CostChange) -> str:
    """Name the missing measurement that makes the interval wide."""
    if change == UNCHANGED:
        return (
            "depending on how many cores of the other machines are free, and on how much their nodes can send, which "
            "was not measured"
        )
    if change.threads:
        return "depending on how much of the workers' computing holds the interpreter lock, which was not measured"
    if change.batch_size is not None:
        return "depending on how long a step with such a batch takes, which was not measured"
    if change.line is not None:
        return f"because there are only {change.line.samples} samples of the workers' lines"
    if change.cached:
        return "depending on how fast the cache is, which was not measured"
    return "depending on how long pickling takes, which was not measured apart from collating"
