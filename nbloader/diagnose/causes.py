"""Find out why a loop waits, from the evidence of one span. Pure.

Each part of the loop's time gets a cause. The evidence contains the parts of the wait that were measured: start-up,
stalls, sampler, upload, opening. During the rest of the wait the loop waits for production. That part is divided by
what the workers do: one slow worker, slow samples, collating, fetching. Waiting for a core is a cause of its own, and
is taken out of collating and of fetching (`split_work`). The rest of fetching is divided into computing and waiting for
anything else. Workers that are idle while the loop waits are limited by the prefetch window.
The cause with the largest part is the verdict. If another cause is comparable, it is the second cause.
"""

from __future__ import annotations

import collections
import enum
from typing import TYPE_CHECKING, NamedTuple

from nbloader.metrics.evidence import Evidence, Place

if TYPE_CHECKING:
    from nbloader.metrics.usage import Usage

SMALL_WAIT = 0.1
"""A loop that waits for less than this share of its time is the bottleneck itself: without any wait it would be at most
11 % faster."""
START_TIMES = 1.5
"""Start-up outranks another cause only if it takes this many times as long: the other cause affects later batches."""
LARGE_START = 0.3
"""For a loader that otherwise keeps up, start-up or stalls are the verdict only from this share of the time on."""
MIN_BATCHES = 3
"""Minimum number of batches after the first one for a verdict."""
SECOND = 0.25
"""A second cause is named if its part of the loop's time is at least this share of the first cause's part."""
STRAGGLER_TIMES = 2.0
"""A worker is slow if its batches take this many times as long as those of the others."""
BUSY = 0.7
"""Workers that are busy for at least this share of their time limit the rate; otherwise something keeps them idle."""
FULL = 0.5
"""The prefetch window is a limit if it is full at this share of the deliveries."""
PYTHON_STEP = 0.75
"""The loop is bound by Python if its thread uses a core for this share of its steps."""
SATURATED = 0.8
"""If the loader and the loop together use this share of the cores, no core counts as free."""
CONTENDED = 0.15
"""Workers are short of cores if they wait for a core during this share of their production."""
SLOW_SAMPLES = 0.25
"""Slow samples matter if they take this share of the workers' time more than usual samples would."""
RARE = 5
"""Slow samples are exceptions: at most 1 in this many samples is slow."""
LOCKED = 0.4
"""A lock serializes the workers if this share of the looks at busy workers found them waiting for a lock."""
MIN_LOOKS = 8
"""Minimum number of looks at busy workers for this."""
ONE_CORE = (0.6, 1.25)
"""Range of the CPU time per second, of all threads, if worker threads take turns under the interpreter lock."""
LOCK_TAKEN = 0.9
"""If the process uses this much CPU time per second, a thread that wants the interpreter lock has to wait for it."""
FAULT_SECONDS = 5e-5
"""Minimum cost, in seconds, of a page that is read from a disk."""
FAULTED = 0.2
"""Page faults matter if they cost at least this share of production."""
PICKLE_BYTES = 50_000
"""Pickling may matter if more than this many bytes of a batch are pickled."""
PICKLE_RATE = 30e6
"""Bytes per second at which Python pickles small objects."""
HUGE_BYTES = 30e6
"""Memory bandwidth may matter if a batch is larger than this many bytes."""
HUGE_RATE = 0.5e9
"""Collating consists mostly of copying if it produces more than this many bytes per second."""
OTHER_THREADS = 0.25
"""Workers are multi-threaded if threads other than the loading thread use this share of their CPU time."""
PREEMPTED = 20
"""The threads of a worker compete with others if it loses its core this many times per second."""
TRANSPORT_BYTES = 1e5
"""Transport can be the bottleneck if a batch is larger than this many bytes."""
_MAJORITY = 0.5


class Cause(str, enum.Enum):
    """What can limit a loop."""

    CONSUMER = "consumer"
    CONSUMER_PYTHON = "consumer_python"
    WAIT = "workers_wait"
    COMPUTE = "workers_compute"
    COMPUTE_FULL = "workers_compute_full"
    COLLATE = "collate"
    SLOW_WORKER = "worker"
    SLOW_SAMPLES = "slow_samples"
    STALL = "stall"
    LOCK = "lock"
    INTERPRETER_LOCK = "interpreter_lock"
    THREADS = "threads"
    CORES_TAKEN = "cores_taken"
    MEMORY = "memory"
    IN_PROCESS = "in_process"
    SAMPLER = "sampler"
    WINDOW = "window"
    TRANSPORT = "transport"
    PICKLE = "pickle"
    HUGE = "huge_batches"
    UPLOAD = "upload"
    STARTUP = "startup"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """A cause, and its part of the loop's time."""

    cause: Cause
    share: float
    """0 to 1."""


def find_causes(e: Evidence) -> tuple[Finding, ...]:
    """Find what limited the loop: one cause, or two comparable ones, the larger first."""
    if e.batches <= MIN_BATCHES and e.startup_wait + e.stall_wait < _MAJORITY:
        return (Finding(Cause.UNKNOWN, e.wait_share),)
    first_wait = max(e.first_wait, e.startup_wait)
    apart = first_wait + e.stall_wait
    keeps_up = e.wait_share - apart < SMALL_WAIT * (1 - apart)
    if e.wait_share < SMALL_WAIT or (keeps_up and apart < LARGE_START):
        loop = Finding(_loop(e), 1 - e.wait_share)
        once = max(Finding(Cause.STARTUP, first_wait), Finding(Cause.STALL, e.stall_wait), key=_share)
        return (loop, once) if e.wait_share >= SMALL_WAIT else (loop,)
    parts: dict[Cause, float] = collections.defaultdict(float)
    parts[Cause.STARTUP] += first_wait if keeps_up else e.startup_wait
    parts[Cause.STALL] += e.stall_wait
    parts[Cause.SAMPLER] += e.sampler_wait
    parts[Cause.UPLOAD] += e.placing_wait
    parts[_opening(e)] += e.opening_wait
    for finding in _production(e, e.producing_wait + (0.0 if keeps_up else first_wait - e.startup_wait)):
        parts[finding.cause] += finding.share
    return _ranked(parts, e.wait_share)


def _share(finding: Finding) -> float:
    return finding.share


def _ranked(parts: dict[Cause, float], wait_share: float) -> tuple[Finding, ...]:
    ranked = sorted(parts.items(), key=lambda part: -part[1] / (START_TIMES if part[0] is Cause.STARTUP else 1))
    first, *others = [Finding(cause, share) for cause, share in ranked]
    if not first.share:
        return (Finding(Cause.UNKNOWN, wait_share),)
    second = next((f for f in others if f.cause is not Cause.UNKNOWN), None)
    if first.cause is Cause.UNKNOWN and second is not None and second.share >= wait_share / 3:
        first, second = second, None
    if second is None or first.cause is Cause.UNKNOWN or second.share < max(SECOND * first.share, SMALL_WAIT / 2):
        return (first,)
    return first, second


def _loop(e: Evidence) -> Cause:
    busy = loop_cpu(e)
    if lock_is_taken(e) and (busy is None or busy < PYTHON_STEP):
        return Cause.INTERPRETER_LOCK  # its steps take this long because it, too, waits for the lock
    return Cause.CONSUMER_PYTHON if busy is not None and busy >= PYTHON_STEP else Cause.CONSUMER


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


def loop_cpu(e: Evidence) -> float | None:
    """Share of the loop's own steps in which its thread computed or waited for a core; None if not measured."""
    steps = split_steps(e)
    return None if steps is None else steps.computing + steps.queued


def _opening(e: Evidence) -> Cause:
    """Why batches that have arrived are not delivered at once."""
    if lock_is_taken(e):
        return Cause.INTERPRETER_LOCK
    if e.pickled > PICKLE_BYTES or e.by_pickle > _MAJORITY:
        return Cause.PICKLE
    if e.usage is not None and e.usage.consumer_core_wait >= e.opening_wait / 2:
        return Cause.COMPUTE_FULL if cores_used(e) >= SATURATED * e.cores else Cause.CORES_TAKEN
    return Cause.UNKNOWN


def _production(e: Evidence, share: float) -> list[Finding]:
    """Divide the wait for batches that are being produced."""
    if e.place is Place.CONSUMER:
        return [Finding(Cause.IN_PROCESS, share)]
    if e.transport_ms > max(1.0, e.fetch_ms + e.collate_ms) and max(e.nbytes, e.pickled) > TRANSPORT_BYTES:
        pickled = e.by_pickle > _MAJORITY or e.pickled > PICKLE_BYTES
        return [Finding(Cause.PICKLE if pickled else Cause.TRANSPORT, share)]
    slow = _slow_part(e)
    if slow_worker(e) is not None and (not slow or e.slow_workers == 1):
        return [Finding(Cause.SLOW_WORKER, share)]
    found = []
    busy = e.utilization
    if busy < BUSY:
        cause = Cause.SLOW_SAMPLES if slow and e.workers > 1 else _idle(e)
        idle = share if cause is Cause.WINDOW and busy < _MAJORITY else share * (1 - busy)
        found.append(Finding(cause, idle))
        share -= idle
    sending = e.transport_ms * e.by_pickle
    make = e.fetch_ms + e.collate_ms + sending
    if sending:
        found.append(Finding(Cause.PICKLE, share * (e.collate_ms + sending) / make))
        return found + _fetching(e, share * e.fetch_ms / make)
    collating = share * e.collate_ms / make if make else 0.0
    fetching = share - collating
    if core_wait(e) >= CONTENDED and not many_threads(e) and not takes_turns(e):
        queued = collating * split_work(e).collating.queued
        found.append(Finding(_contention(e), queued))
        collating -= queued
    found.append(Finding(_collating(e), collating))
    found.append(Finding(Cause.SLOW_SAMPLES, fetching * slow))
    return found + _fetching(e, fetching * (1 - slow))


def _slow_part(e: Evidence) -> float:
    """The part of fetching that is due to slow samples; 0 if they do not matter, or are not exceptions.

    If workers wait for cores, this can slow down any sample. That part of the time says nothing about the samples.
    """
    if e.slow_share - core_wait(e) < SLOW_SAMPLES or e.slow_every < RARE:
        return 0.0
    make = e.fetch_ms + e.collate_ms
    return min(1.0, e.slow_share * make / e.fetch_ms) if e.fetch_ms else 0.0


def _idle(e: Evidence) -> Cause:
    """Why workers are idle while the loop waits."""
    if lock_is_taken(e):
        return Cause.INTERPRETER_LOCK  # they need the lock to begin the next batch
    return Cause.WINDOW if e.full >= FULL and e.window <= 2 * e.workers else Cause.UNKNOWN


def _collating(e: Evidence) -> Cause:
    seconds = e.collate_ms / 1e3
    if e.pickled > PICKLE_BYTES and e.pickled / PICKLE_RATE > seconds / 2:
        return Cause.PICKLE
    if e.nbytes > HUGE_BYTES and e.nbytes > HUGE_RATE * seconds:
        return Cause.HUGE
    return Cause.COLLATE


def _fetching(e: Evidence, share: float) -> list[Finding]:
    """Divide the wait for samples into computing, waiting for a core, and waiting for anything else."""
    cpu = e.fetch_cpu
    if cpu is None:
        return [Finding(Cause.UNKNOWN, share)]
    if takes_turns(e):
        return [Finding(Cause.INTERPRETER_LOCK, share)]
    if many_threads(e):
        return [Finding(Cause.THREADS, share)]
    full = all_used(e)
    if full and _workers_usage(e) is None and e.elsewhere:  # a worker there that does not compute waits for a core
        return [Finding(Cause.COMPUTE_FULL, share)]
    computing, queued, waiting = split_work(e).fetching
    contention = _contention(e)
    if queued < CONTENDED:
        waiting, queued = waiting + queued, 0.0
    found = [
        Finding(Cause.COMPUTE_FULL if full else Cause.COMPUTE, share * computing),
        Finding(contention, share * queued),
        Finding(_waiting(e), share * waiting),
    ]
    if queued >= CONTENDED and contention is Cause.CORES_TAKEN and queued > computing / 2:
        found[:2] = [Finding(Cause.CORES_TAKEN, share * (computing + queued))]  # free cores would shorten computing
    return found


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


def _contention(e: Evidence) -> Cause:
    """Why workers wait for a core: other programs use the cores, or the loader does."""
    return Cause.CORES_TAKEN if taken_by_others(e) else Cause.COMPUTE_FULL


def taken_by_others(e: Evidence) -> bool:
    """Whether other programs, not this loader, use up the cores, if workers wait for one."""
    return cores_used(e) < SATURATED * e.cores


def all_used(e: Evidence) -> bool:
    """Whether more workers would find no core on any of the machines that they run on."""
    one = computing_cores(e)
    here = cores_needed(e) >= SATURATED * e.cores
    there = all(machine.workers * one >= SATURATED * machine.cores for machine in e.elsewhere)
    return there and (here or not e.workers_here)


def cores_needed(e: Evidence) -> float:
    """Cores of this machine that the workers here and the loop use while batches are produced."""
    return max(cores_used(e), e.workers_here * computing_cores(e))


def computing_cores(e: Evidence) -> float:
    """Cores that one worker uses, according to the CPU time of its batches."""
    make, work = e.fetch_ms + e.collate_ms, split_work(e)
    used = work.fetching.computing * e.fetch_ms + work.collating.computing * e.collate_ms
    return used / make * e.utilization if make else 0.0


def _workers_usage(e: Evidence) -> Usage | None:
    """The measured usage of the workers; None if there is none, or if most workers run on other machines."""
    return e.usage if 2 * e.workers_here >= e.workers else None


def _waiting(e: Evidence) -> Cause:
    usage = _workers_usage(e)
    if usage is not None and e.utilization:
        if usage.major_faults * FAULT_SECONDS / e.utilization >= FAULTED:
            return Cause.MEMORY
        if e.workers > 1 and usage.looks >= MIN_LOOKS and usage.locked >= LOCKED:
            return Cause.LOCK
    return Cause.WAIT


def core_wait(e: Evidence) -> float:
    """Share of production for which a worker was ready to run but had no core; 0 if not measured."""
    usage = _workers_usage(e)
    if usage is None:
        return 0.0
    if e.place is Place.CONSUMER:  # the loop's own thread produces batches
        return min(1.0, usage.consumer_core_wait)
    return min(1.0, usage.core_wait / e.utilization) if e.utilization else 0.0


def cores_used(e: Evidence) -> float:
    """Cores of this machine that the workers here and the loop use together."""
    if e.usage is not None:
        workers = e.workers_here * e.usage.worker_cores if e.place is Place.PROCESSES else 0.0
        return workers + e.usage.loop_cores
    return e.workers_here * computing_cores(e)


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
    usage = _workers_usage(e)
    if usage is None or e.place is not Place.PROCESSES:
        return False
    crowded = cores_used(e) >= SATURATED * e.cores or core_wait(e) >= CONTENDED
    if usage.preempted is not None:  # a loading thread that keeps its core has no competitors
        crowded = crowded and usage.preempted >= PREEMPTED
    return usage.other_threads >= OTHER_THREADS and usage.threads * e.workers_here > e.cores and crowded


def slow_worker(e: Evidence) -> int | None:
    """The worker whose batches take several times as long as those of the others, and delay them.

    None if there is no such worker.
    """
    times = e.by_worker
    if len(times) < 2:  # noqa: PLR2004 - to compare
        return None
    worker = max(times, key=lambda w: times[w].median_ms)
    others = sorted(time.median_ms for other, time in times.items() if other != worker)
    usual = others[len(others) // 2]
    # The quartile, not the median: by chance the worker may have got more of the slow samples than the others.
    slow = times[worker].batches > 1 and times[worker].quartile_ms >= STRAGGLER_TIMES * max(usual, 0.5)
    return worker if slow and e.reorder_ms >= usual / 4 else None
