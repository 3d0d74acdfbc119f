"""How workers and the loop spend their time, and which cores they use, from the evidence of one span. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbloader.metrics.evidence import Evidence, Place

if TYPE_CHECKING:
    from nbloader.metrics.usage import Usage

PYTHON_STEP = 0.75
"""The loop is bound by Python if its thread uses a core for this share of its steps."""
SATURATED = 0.8
"""If the loader and the loop together use this share of the cores, no core counts as free."""
CONTENDED = 0.15
"""Workers are short of cores if they wait for a core during this share of their production."""
ONE_CORE = (0.6, 1.25)
"""Range of the CPU time per second, of all threads, if worker threads take turns under the interpreter lock."""
LOCK_TAKEN = 0.9
"""If the process uses this much CPU time per second, a thread that wants the interpreter lock has to wait for it."""
OTHER_THREADS = 0.25
"""Workers are multi-threaded if threads other than the loading thread use this share of their CPU time."""
PREEMPTED = 20
"""The threads of a worker compete with others if it loses its core this many times per second."""


class Work(NamedTuple):
    """How some time was spent. The shares add up to 1."""

    computing: float
    queued: float
    """Share in which the thread was ready to run but had no core."""
    waiting: float
    """Share in which it waited for anything else."""


def split_steps(e: Evidence) -> Work | None:
    """What the loop's thread does during the loop's own steps; None if not measured."""
    if e.usage is None or not e.usage.consumer_cpu:
        return None
    own = max(0.01, 1 - e.wait_share)
    computing = min(1.0, e.usage.consumer_cpu / own)
    queued = min(1 - computing, e.usage.consumer_core_wait / own)
    return Work(computing, queued, 1 - computing - queued)


class SplitWork(NamedTuple):
    """How workers spend the time in which they produce batches."""

    fetching: Work
    collating: Work


def split_work(e: Evidence) -> SplitWork:
    """Divide fetching and collating into computing, waiting for a core, and waiting for anything else.

    Only the total wait for a core is measured. It is attributed to what computes, in proportion to the CPU time.
    """
    times = (e.fetch_ms, e.collate_ms) if e.fetch_ms + e.collate_ms else (1.0, 0.0)
    ratios = [min(1.0, cpu or 0.0) for cpu in (e.fetch_cpu, e.collate_cpu)]
    used = [ms * ratio for ms, ratio in zip(times, ratios, strict=True)]
    free = [ms - cpu for ms, cpu in zip(times, used, strict=True)]
    queued_ms = core_wait(e) * sum(times)
    in_proportion = queued_ms * used[0] / sum(used) if sum(used) else queued_ms * times[0] / sum(times)
    fetching = min(free[0], max(in_proportion, queued_ms - free[1]))
    queued = fetching, min(free[1], queued_ms - fetching)
    portions = [q / ms if ms else 0.0 for q, ms in zip(queued, times, strict=True)]
    shares = [max(0.0, min(1 - ratio, portion)) for portion, ratio in zip(portions, ratios, strict=True)]
    return SplitWork(*(Work(r, q, max(0.0, 1 - r - q)) for r, q in zip(ratios, shares, strict=True)))


def taken_by_others(e: Evidence) -> bool:
    """Whether other programs, not this loader, use up the cores, if workers wait for one.

    They use most of what the loader leaves. Where that is unknown, they must: otherwise no worker would have to wait.
    """
    left = e.cores - cores_used(e)
    if left <= (1 - SATURATED) * e.cores:
        return False
    idle = None if e.usage is None else e.usage.idle_cores
    return idle is None or idle < left / 2


def all_used(e: Evidence) -> bool:
    """Whether more workers would find no core on any of the machines that they run on."""
    one = computing_cores(e)  # how long workers on other machines wait for a core is not measured
    here = cores_needed(e) >= SATURATED * e.cores
    there = all(machine.workers * one >= SATURATED * machine.cores for machine in e.elsewhere)
    return there and (here or not e.workers_here)


def cores_needed(e: Evidence) -> float:
    """Cores of this machine that the workers here and the loop use, or wait for, while batches are produced."""
    one = min(e.utilization, computing_cores(e) + core_wait(e) * e.utilization)
    return max(cores_used(e), e.workers_here * one)


def computing_cores(e: Evidence) -> float:
    """Cores that one worker uses, according to the CPU time of its batches."""
    make, work = e.fetch_ms + e.collate_ms, split_work(e)
    used = work.fetching.computing * e.fetch_ms + work.collating.computing * e.collate_ms
    return used / make * e.utilization if make else 0.0


def workers_usage(e: Evidence) -> Usage | None:
    """The measured usage of the workers; None if there is none, or if most workers run on other machines."""
    return e.usage if 2 * e.workers_here >= e.workers else None


def opening_is_queued(e: Evidence) -> bool:
    """Whether the loop's thread waits for a core for most of the time in which it opens batches."""
    return e.usage is not None and e.usage.consumer_core_wait >= e.opening_wait / 2


def core_wait(e: Evidence) -> float:
    """Share of production for which a worker was ready to run but had no core; 0 if not measured."""
    usage = workers_usage(e)
    if usage is None:
        return 0.0
    if e.place is Place.CONSUMER:  # the loop's own thread produces batches
        return min(1.0, usage.consumer_core_wait)
    return min(1.0, usage.core_wait / e.utilization) if e.utilization else 0.0


def cores_used(e: Evidence) -> float:
    """Cores of this machine that the workers here and the loop use together."""
    if e.usage is not None and not (e.usage.workers_unread and e.place is Place.PROCESSES):
        workers = e.workers_here * e.usage.worker_cores if e.place is Place.PROCESSES else 0.0
        return workers + e.usage.loop_cores
    return e.workers_here * computing_cores(e) + (0.0 if e.usage is None else e.usage.loop_cores)


def takes_turns(e: Evidence) -> bool:
    """Whether worker threads compute one at a time: together they use one core, and each could use more."""
    if e.place is not Place.THREADS or e.usage is None or e.fetch_cpu is None or e.workers < 2:  # noqa: PLR2004 - one needs no turn
        return False
    low, high = ONE_CORE
    used = e.workers * e.utilization * e.fetch_cpu
    return low <= used <= high and e.usage.loop_cores <= high and e.fetch_cpu <= PYTHON_STEP


def lock_is_taken(e: Evidence) -> bool:
    """Whether worker threads take turns, and some thread of the process nearly always holds the interpreter lock."""
    return takes_turns(e) and e.usage is not None and e.usage.loop_cores >= LOCK_TAKEN


def many_threads(e: Evidence) -> bool:
    """Whether the workers' threads compete for the cores."""
    usage = workers_usage(e)
    if usage is None or e.place is not Place.PROCESSES:
        return False
    crowded = cores_used(e) >= SATURATED * e.cores or core_wait(e) >= CONTENDED
    if usage.preempted is not None:  # a loading thread that keeps its core has no competitors
        crowded = crowded and usage.preempted >= PREEMPTED
    return usage.other_threads >= OTHER_THREADS and usage.threads * e.workers_here > e.cores and crowded
