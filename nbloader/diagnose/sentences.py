"""Verdicts: what limited the loop over a span, as sentences that begin with a remedy. Pure.

causes -> remedy of the first one -> what to do, and what does not help unless it helps against the second cause
-> evidence of both        -> what limited the loop, with numbers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nbloader._util.format import clean, duration, megabytes, number, percent, plural
from nbloader.diagnose import causes
from nbloader.diagnose.causes import Cause, find_causes
from nbloader.diagnose.common import in_common
from nbloader.metrics.evidence import Evidence, Place
from nbloader.metrics.snapshot import Verdict

_ROUNDING = 0.05
"""A mean count that is this close to an integer is shown as an integer."""
_MOSTLY = 0.5
_SMALLER = "Make batches smaller: a smaller dtype (uint8 instead of float32), or fewer samples."
_MIN_STEP_MS = 0.1
"""Shortest step, ms, that is measured precisely enough to say how many batches per second the loop could consume."""


class _Remedy(NamedTuple):
    """What helps against a cause, and what does not."""

    text: str = ""
    """What to do, as a sentence; "" if that is unknown."""
    more_workers: bool | None = None
    """Whether more workers help; None if that depends."""
    larger_window: bool | None = None
    """Whether a larger prefetch window helps; None if that depends."""

    def beside(self, other: _Remedy) -> _Remedy:
        """Return this remedy without denials of what helps against another cause at the same time."""
        return self._replace(
            more_workers=None if self.more_workers is False and other.more_workers else self.more_workers,
            larger_window=None if self.larger_window is False and other.larger_window else self.larger_window,
        )

    def no_help(self, e: Evidence, *, alone: bool) -> str:
        """A sentence about what does not help, which begins with a space; "" if nothing is known.

        Args:
            e: The evidence.
            alone: Whether there is no second cause.
        """
        if alone and self.more_workers is False and self.larger_window is False:
            return " A faster loader does not help."
        workers = f"more {'threads' if e.place is Place.THREADS else 'workers'}"
        denied = [workers] if self.more_workers is False else []
        denied += ["a larger prefetch window"] if self.larger_window is False else []
        text = " and ".join(denied)
        return f" {text[0].upper()}{text[1:]} {'do' if denied[0] == workers else 'does'} not help." if denied else ""


def verdict(e: Evidence) -> Verdict:
    """State what limited the loop over a span, as a word and as a sentence."""
    first, *second = find_causes(e)
    remedy = _REMEDIES[first.cause](e)
    text = _SENTENCES[first.cause](e)
    also = ""
    if second:
        remedy = remedy.beside(_REMEDIES[second[0].cause](e))
        also = f" Also, {_of_wait(e, second[0].share)} of the wait: {_SHORT[second[0].cause](e)}."
    slow = causes.slow_worker(e) if first.cause is Cause.SLOW_WORKER else None
    return Verdict(
        cause=first.cause.value,
        sentence=f"{remedy.text} {text}{remedy.no_help(e, alone=not second)}{also}".lstrip(),
        also=second[0].cause.value if second else "",
        restart=() if slow is None or e.span != "now" else (slow,),
        evidence=text + also,
        more_workers=remedy.more_workers,
        larger_window=remedy.larger_window,
    )


def _waits(e: Evidence) -> str:
    """The share of time for which the loop waited, and the span over which it was measured."""
    if e.span == "now":
        return f"the loop waits {percent(e.wait_share)} of the last {duration(e.seconds)}"
    return f"the loop waited {percent(e.wait_share)} of the epoch's {duration(e.seconds)}"


def _of_wait(e: Evidence, share: float) -> str:
    """Convert a share of the span to a share of the wait."""
    return percent(share / max(share, e.wait_share)) if share else percent(0)


def _ms(ms: float) -> str:
    return duration(ms / 1e3)


def _mean_batches(count: float) -> str:
    """Format a mean number of batches: "4 batches", "3.6 batches"."""
    return plural(round(count), "batch") if abs(count - round(count)) < _ROUNDING else f"{count:.1f} batches"


def _own_ms(e: Evidence) -> float:
    """Time per batch for which the loop did not wait, ms."""
    return (1 - e.wait_share) * e.seconds * 1e3 / max(1, e.batches)


def _consumer(e: Evidence) -> str:
    waits = "waits" if e.span == "now" else "waited"
    span = f"of the last {duration(e.seconds)}" if e.span == "now" else f"of the epoch's {duration(e.seconds)}"
    ready = "" if e.place is Place.CONSUMER or e.ready < 1 else f"; the loader keeps {_mean_batches(e.ready)} ready"
    return (
        f"Your loop is the bottleneck: it {waits} {percent(e.wait_share)} {span}{ready}, and the loop spends "
        f"{_ms(_own_ms(e))} per batch{_steps(e)}."
    )


def _steps(e: Evidence) -> str:
    """What the loop's thread does during the loop's own steps; "" if not measured."""
    steps = causes.split_steps(e)
    if steps is None:
        return ""
    parts = [f"{percent(steps.computing)} of it computing on its own thread"]
    if steps.queued >= causes.CONTENDED:
        parts.append(f"{percent(steps.queued)} waiting for a core")
    rest = f"otherwise waiting{f', for example for {clean(e.device, 40)}' if e.device else ''}"
    if steps.computing + steps.queued < causes.PYTHON_STEP:
        return f", {', '.join(parts)} and {rest}"
    return f", {' and '.join(parts)}"


def _workers(e: Evidence) -> str:
    """How fast the workers are, and how fast the loop could consume batches."""
    own = _own_ms(e)
    could = number(1e3 / own) if own > _MIN_STEP_MS else "over 10,000"
    rate = number(e.rate if e.rate is not None else e.batches / e.seconds if e.seconds else 0.0)
    one = e.workers == 1
    return (
        f"{'The worker is' if one else 'Workers are'} the bottleneck: {_waits(e)}; {plural(e.workers, 'worker')} "
        f"{'produces' if one else 'produce'} {rate} batches/s, the loop could consume {could}."
    )


def _cpu(e: Evidence) -> str:
    return percent(causes.split_work(e).fetching.computing)


def _cores(e: Evidence) -> str:
    """How many cores of this machine the workers and the loop use."""
    return f"{number(causes.cores_used(e))} of {plural(e.cores, 'core')}"


def _all_cores(e: Evidence) -> str:
    """How many cores the workers and the loop use, on each machine."""
    if not e.elsewhere:
        return f"workers and loop use {_cores_needed(e)}"
    workers, cores = sum(m.workers for m in e.elsewhere), sum(m.cores for m in e.elsewhere)
    used = number(min(workers * causes.computing_cores(e), cores))
    full = causes.cores_needed(e) >= causes.SATURATED * e.cores
    here = f", and {_cores_needed(e)} of this one" if e.workers_here or full else ""
    machines = plural(len(e.elsewhere), "other machine")
    return f"workers use {used} of the {plural(round(cores), 'core')} of {machines}{here}"


def _cores_needed(e: Evidence) -> str:
    return f"{number(min(e.cores, causes.cores_needed(e)))} of {plural(e.cores, 'core')}"


def _limit(e: Evidence) -> str:
    """Which cores workers can use."""
    return f"the {plural(e.cores, 'core')}" if not e.elsewhere else "the cores of their machines"


def _waiting_samples(e: Evidence) -> str:
    share = percent(causes.split_work(e).fetching.waiting)
    if e.overlap > 1:
        return (
            f"{_workers(e)} Each fetches samples of {number(e.overlap)} batches at a time, and waits for them {share} "
            f"of its time (network, disk, sleep)."
        )
    return f"{_workers(e)} Fetching is {share} waiting (disk, network, sleep)."


def _compute(e: Evidence) -> str:
    return f"{_workers(e)} Fetching is {_cpu(e)} CPU time."


def _compute_full(e: Evidence) -> str:
    return f"{_workers(e)} Fetching is {_cpu(e)} CPU time, and {_all_cores(e)}."


def _collate(e: Evidence) -> str:
    make = e.fetch_ms + e.collate_ms
    work = causes.split_work(e).collating
    computing = "" if e.collate_cpu is None else f", {percent(work.computing)} of it CPU time"
    if work.queued >= causes.CONTENDED:
        computing += f" and {percent(work.queued)} waiting for a core"
    return (
        f"Collating is the bottleneck: {_waits(e)}; a batch takes {_ms(e.fetch_ms)} to fetch and {_ms(e.collate_ms)} "
        f"to collate ({percent(e.collate_ms / make if make else 0)} of the workers' time{computing})."
    )


def _collate_too(e: Evidence) -> str:
    queued = causes.split_work(e).collating.queued
    apart = ", apart from waiting for a core," if queued >= causes.CONTENDED else ""
    own = e.collate_ms * (1 - queued) if apart else e.collate_ms
    return f"collating takes {_ms(own)}{apart} of {_ms(e.fetch_ms + e.collate_ms)}"


def _slow_worker(e: Evidence) -> str:
    worker = causes.slow_worker(e)
    if worker is None:
        return _workers(e)
    others = sorted(time.median_ms for other, time in e.by_worker.items() if other != worker)
    return (
        f"Worker {worker} is slow: its batches take {_ms(e.by_worker[worker].median_ms)}, those of the others "
        f"{_ms(others[len(others) // 2])}, plus {_ms(e.reorder_ms)} in the reorder buffer; {_waits(e)}."
    )


def _slow_samples(e: Evidence) -> str:
    common = in_common(e.slow_indices, e.usual_indices, e.facts)
    listed = "".join(f"{', ' if n else ' Slowest: '}{clean(i, 20)}" for n, i in enumerate(e.slow_indices[:3]))
    return (
        f"Slow samples are the bottleneck: {_waits(e)}; one of {round(e.slow_every)} samples takes {_ms(e.slow_ms)}, "
        f"the others {_ms(e.sample_ms)}: {percent(e.slow_share)} of the workers' time."
        + (f" They are those with {common}." if common else f"{listed}." if listed else "")
    )


def _slow_samples_too(e: Evidence) -> str:
    common = in_common(e.slow_indices, e.usual_indices, e.facts)
    which = f", those with {common}" if common else ""
    return f"one of {round(e.slow_every)} samples takes {_ms(e.slow_ms)}{which}; others take {_ms(e.sample_ms)}"


def _stall(e: Evidence) -> str:
    worst = e.worst
    count = "One batch" if e.stalls == 1 else plural(e.stalls, "batch")
    text = f"{count} stalled the loop: {_waits(e)}, {_of_wait(e, e.stall_wait)} of that in "
    text += "this wait" if e.stalls == 1 else "these waits"
    if worst is None:
        return f"{text}."
    sample = "" if worst.sample is None else f", slowest sample {clean(worst.sample, 40)}"
    # How long a wait has lasted so far is said where its age is shown: evidence may be a second old.
    longest = "which goes on, is" if worst.make is None else f"{duration(worst.wait)}, was"
    text += f". The longest, {longest} for batch {worst.batch}{sample}"
    if worst.attempt > 1:
        text += f", which was produced again after the worker that processed it was lost (attempt {worst.attempt})"
    return f"{text}; a batch usually takes {_ms(e.make_ms)}." if e.make_ms else f"{text}."


def _startup(e: Evidence) -> str:
    began = "" if e.startup is None else f"; the first batch came after {duration(e.startup)}"
    ready = "" if e.worker_startup is None else f", of which the workers took {duration(e.worker_startup)} to start"
    return (
        f"Start-up is the bottleneck: {_waits(e)}, {_of_wait(e, e.startup_wait)} of that for the first batch "
        f"of each worker{began}{ready}; later ones take {_ms(e.make_ms)}."
    )


def _sampler(e: Evidence) -> str:
    return (
        f"The sampler is the bottleneck: {_waits(e)}, and for {_of_wait(e, e.sampler_wait)} of that it draws "
        f"indices ({_ms(_per_batch(e, e.sampler_wait))} per batch)."
    )


def _per_batch(e: Evidence, share: float) -> float:
    """Convert a share of the span to milliseconds per batch."""
    return share * e.seconds * 1e3 / max(1, e.batches)


def _window(e: Evidence) -> str:
    return (
        f"The prefetch window is too small: {_waits(e)}, while {plural(e.workers, 'worker')} "
        f"{'is' if e.workers == 1 else 'are'} busy {percent(e.utilization)} of the time; {_full_window(e)}."
    )


def _full_window(e: Evidence) -> str:
    return f"the window of {plural(e.window, 'batch')} was full at {percent(e.full)} of the deliveries"


def _pickle(e: Evidence) -> str:
    return (
        f"Pickling is the bottleneck: {_waits(e)}; {megabytes(max(e.pickled, e.nbytes if e.by_pickle else 0))} of each "
        f"batch are pickled by a worker ({_ms(e.collate_ms)} to collate and pickle, {_ms(e.transport_ms)} to "
        f"transport) and unpickled by the loop ({_ms(_per_batch(e, e.opening_wait))})."
    )


def _transport(e: Evidence) -> str:
    what, parts = "Transport", ""
    if e.nodes:
        what = f"The transfer from {'the node' if e.nodes == 1 else plural(e.nodes, 'node')}"
        parts = f" (its node needs {_ms(e.transfer_ms)} to send it, after earlier ones)"
    return (
        f"{what} is the bottleneck: {_waits(e)}; a batch of {megabytes(e.nbytes)} takes {_ms(e.transport_ms)} from "
        f"worker to loop{parts} and {_ms(e.fetch_ms + e.collate_ms)} to produce."
    )


def _huge(e: Evidence) -> str:
    rate = e.nbytes / max(1e-6, e.collate_ms / 1e3) / 1e9
    return (
        f"The size of batches is the bottleneck: {_waits(e)}; collating {megabytes(e.nbytes)} takes "
        f"{_ms(e.collate_ms)} ({number(rate)} GB/s), fetching the samples {_ms(e.fetch_ms)}."
    )


def _upload(e: Evidence) -> str:
    u = e.uploads
    where = clean(e.device, 40) or "pinned memory"
    share = _of_wait(e, e.placing_wait)
    head = f"The transfer to {where} is the bottleneck: {_waits(e)}, {share} of that for finished batches"
    if u is None:
        return f"{head}."
    speed = "" if u.gb_per_second is None else f" ({number(u.gb_per_second)} GB/s)"
    copying = "" if u.copy is None else f", {_ms(u.copy)} to copy{speed}"
    return f"{head}; one of {megabytes(e.nbytes)} takes {_ms(u.pin)} to pin{copying}."


def _in_process(e: Evidence) -> str:
    queued = causes.split_work(e).fetching.queued
    core = f", {percent(queued)} waiting for a core" if queued >= causes.CONTENDED else ""
    computing = "" if e.fetch_cpu is None else f" ({_cpu(e)} of fetching is CPU time{core})"
    collating = "" if e.collate_ms < e.fetch_ms else f", {_ms(e.collate_ms)} of it to collate"
    return (
        f"Loading is the bottleneck: {_waits(e)}, because batches are produced between its steps. Producing one takes "
        f"{_ms(e.fetch_ms + e.collate_ms)}{collating}{computing}, a step {_ms(_own_ms(e))}."
    )


def _interpreter_lock(e: Evidence) -> str:
    loop = 0.0 if e.usage is None else e.usage.loop_cores
    return (
        f"The interpreter lock is the bottleneck: {_waits(e)}; {plural(e.workers, 'thread')} compute in turn and "
        f"together use {number(loop)} of {plural(e.cores, 'core')}, each for {_cpu(e)} of its fetching."
    )


def _lock(e: Evidence) -> str:
    locked, looks = (0.0, 0) if e.usage is None else (e.usage.locked, e.usage.looks)
    return (
        f"A lock serializes the workers: {_waits(e)}; at {percent(locked)} of {plural(looks, 'look')} "
        f"a busy worker was waiting for one ({plural(e.workers, 'worker')})."
    )


def _threads(e: Evidence) -> str:
    usage = e.usage
    threads, others = (0, 0.0) if usage is None else (usage.threads, usage.other_threads)
    return (
        f"The workers have too many threads: {_waits(e)}; {plural(e.workers, 'worker')} of up to "
        f"{plural(threads, 'thread')} use {_cores(e)}, {percent(others)} of that in other threads than the one that "
        f"loads{_preempted(e, ', which loses its core')}."
    )


def _cores_taken(e: Evidence) -> str:
    waiting = f"They wait for a core during {percent(_queued(e))} of their work"
    waiting += _preempted(e, ", and each loses its own")
    if not _queued(e):  # the cause was found in the loop's own thread
        loop = 0.0 if e.usage is None else e.usage.consumer_core_wait
        waiting = f"The loop's thread waits for a core during {percent(loop)} of the time"
    return f"{_workers(e)} {waiting}, yet workers and loop use only {_cores(e)}: other programs use the rest."


def _queued(e: Evidence) -> float:
    """Share of the workers' production in which they wait for a core."""
    make, work = e.fetch_ms + e.collate_ms, causes.split_work(e)
    return (work.fetching.queued * e.fetch_ms + work.collating.queued * e.collate_ms) / make if make else 0.0


def _preempted(e: Evidence, what: str) -> str:
    """How often a worker loses its core; "" if not measured."""
    if e.usage is None or e.usage.preempted is None:
        return ""
    return f"{what} {number(e.usage.preempted)} times a second"


def _memory(e: Evidence) -> str:
    faults = 0.0 if e.usage is None else e.usage.major_faults
    return (
        f"Memory is the bottleneck: {_waits(e)}; each worker reads {number(faults)} pages a second back from a disk or "
        f"swap."
    )


def _unknown(e: Evidence) -> str:
    if e.batches <= causes.MIN_BATCHES:
        few = "one batch is" if e.batches == 1 else f"{plural(e.batches, 'batch')} are"
        return f"Cannot tell yet what limits the loop: {few} too few."
    if not e.make_ms:
        return f"Cannot tell yet what limits the loop: {_waits(e)}, but no batch has been measured."
    workers = f"its {plural(e.workers, 'worker')} {'is' if e.workers == 1 else 'are'} busy"
    share = f"{percent(e.utilization)} of the time"
    if e.utilization >= causes.BUSY:
        return f"Cannot tell what limits the loop: {_waits(e)}; {workers} {share}, and it is not known why."
    return (
        f"Cannot tell what limits the loop: {_waits(e)}, but {workers} only {share}, and no measurement explains the "
        f"rest."
    )


# --- remedies


def _collate_remedy(e: Evidence) -> _Remedy:
    work = causes.split_work(e).collating
    free = causes.core_wait(e) < causes.CONTENDED and not causes.all_used(e)
    if work.computing < _MOSTLY or free:
        return _Remedy("Make the collate function faster, or use more workers.", more_workers=True)
    return _Remedy("Make the collate function faster.")


def _startup_remedy(e: Evidence) -> _Remedy:
    if e.place is Place.CONSUMER:
        return _Remedy("Let the dataset open its files faster, or make epochs longer.", more_workers=False)
    return _Remedy(
        "Start up less often or faster: longer epochs, persistent_workers=True, a dataset that opens its files faster.",
        more_workers=False,
    )


def _stall_remedy(e: Evidence) -> _Remedy:
    worst = e.worst
    what = "the longest waits" if worst is None else f"batch {worst.batch}"
    if worst is not None and worst.sample is not None:
        what = f"sample {clean(worst.sample, 40)}"
    return _Remedy(f"Look at {what}, or limit waits with timeout= and on_timeout='restart'.", more_workers=False)


def _slow_worker_remedy(e: Evidence) -> _Remedy:
    worker = causes.slow_worker(e)
    if worker is None:
        return _Remedy()
    return _Remedy(f"If worker {worker} stays slow, restart it: loader.restart_workers([{worker}]).")


def _wait_remedy(e: Evidence) -> _Remedy:
    if e.overlap > 1:
        return _Remedy("Use a larger concurrency, or more workers.", more_workers=True)
    return _Remedy(f"Use more workers, even beyond {_limit(e)}.", more_workers=True, larger_window=False)


def _in_process_remedy(e: Evidence) -> _Remedy:
    work = causes.split_work(e)
    computing = work.fetching if e.fetch_ms >= e.collate_ms else work.collating
    if e.cores == 1 and computing.computing >= _MOSTLY:
        return _Remedy("Make samples cheaper: there is one core, so workers compute no faster.", more_workers=False)
    if computing.queued > computing.waiting:
        return _Remedy("Free the cores that other programs use, or use num_workers=2 or more.")
    return _Remedy("Use num_workers=2 or more, which produce several batches at the same time.", more_workers=True)


def _compute_full_remedy(e: Evidence) -> _Remedy:
    where = ", or use further machines" if e.elsewhere else ""
    return _Remedy(f"Make transforms cheaper{where}.", more_workers=None if e.elsewhere else False)


def _upload_remedy(e: Evidence) -> _Remedy:
    if e.uploads is not None and e.uploads.ways[0].memory == "pageable":
        return _Remedy("Set pin_memory=True: copies are faster then and run ahead.")
    if e.uploads is not None and not e.device:
        return _Remedy(
            "Set device='cuda': it pins batches in place, without this copy, and uploads them ahead of time."
        )
    return _Remedy(_SMALLER)


def _loop_remedy(e: Evidence) -> _Remedy:
    """The remedy of a loop that does not wait."""
    steps = causes.split_steps(e)
    text = "Make the loop's step faster."
    if steps is not None and steps.computing + steps.queued >= causes.PYTHON_STEP:
        text = "Do less on the loop's own thread."
        if steps.queued > steps.computing and causes.taken_by_others(e):
            text = "Free the cores that other programs use."
    return _Remedy(text, more_workers=False, larger_window=False)


_REMEDIES: dict[Cause, Callable[[Evidence], _Remedy]] = {
    Cause.CONSUMER: _loop_remedy,
    Cause.CONSUMER_PYTHON: _loop_remedy,
    Cause.WAIT: _wait_remedy,
    Cause.COMPUTE: lambda e: _Remedy(
        f"Use more workers, up to {_limit(e)}, or make transforms cheaper.", more_workers=True
    ),
    Cause.COMPUTE_FULL: _compute_full_remedy,
    Cause.COLLATE: _collate_remedy,
    Cause.SLOW_WORKER: _slow_worker_remedy,
    Cause.SLOW_SAMPLES: lambda _e: _Remedy("Make slow samples as quick as the others.", larger_window=False),
    Cause.STALL: _stall_remedy,
    Cause.LOCK: lambda _e: _Remedy(
        "Hold the lock for a shorter time, or give each worker its own file, connection or cache.", more_workers=False
    ),
    Cause.INTERPRETER_LOCK: lambda _e: _Remedy(
        "Use workers='process', which compute at the same time.", more_workers=False
    ),
    Cause.THREADS: lambda _e: _Remedy(
        "Use one thread per worker: torch.set_num_threads(1) in worker_init_fn.", more_workers=False
    ),
    Cause.CORES_TAKEN: lambda _e: _Remedy("Free the cores that other programs use.", more_workers=False),
    Cause.MEMORY: lambda _e: _Remedy(
        "Use fewer workers, smaller batches or a smaller dataset in memory.", more_workers=False
    ),
    Cause.IN_PROCESS: _in_process_remedy,
    Cause.SAMPLER: lambda _e: _Remedy("Draw the indices faster, or in advance.", more_workers=False),
    Cause.WINDOW: lambda e: _Remedy(
        "Use a larger prefetch_factor.", more_workers=False if e.window < e.workers else None, larger_window=True
    ),
    Cause.TRANSPORT: lambda e: _Remedy(_SMALLER, more_workers=False if e.nodes else None),
    Cause.PICKLE: lambda _e: _Remedy("Return tensors or arrays from the collate function: they use shared memory."),
    Cause.HUGE: lambda _e: _Remedy(_SMALLER, more_workers=False),
    Cause.UPLOAD: _upload_remedy,
    Cause.STARTUP: _startup_remedy,
    Cause.UNKNOWN: lambda _e: _Remedy(),
}
"""What helps against each cause."""

_SENTENCES: dict[Cause, Callable[[Evidence], str]] = {
    Cause.CONSUMER: _consumer,
    Cause.CONSUMER_PYTHON: _consumer,
    Cause.WAIT: _waiting_samples,
    Cause.COMPUTE: _compute,
    Cause.COMPUTE_FULL: _compute_full,
    Cause.COLLATE: _collate,
    Cause.SLOW_WORKER: _slow_worker,
    Cause.SLOW_SAMPLES: _slow_samples,
    Cause.STALL: _stall,
    Cause.LOCK: _lock,
    Cause.INTERPRETER_LOCK: _interpreter_lock,
    Cause.THREADS: _threads,
    Cause.CORES_TAKEN: _cores_taken,
    Cause.MEMORY: _memory,
    Cause.IN_PROCESS: _in_process,
    Cause.SAMPLER: _sampler,
    Cause.WINDOW: _window,
    Cause.TRANSPORT: _transport,
    Cause.PICKLE: _pickle,
    Cause.HUGE: _huge,
    Cause.UPLOAD: _upload,
    Cause.STARTUP: _startup,
    Cause.UNKNOWN: _unknown,
}

_SHORT: dict[Cause, Callable[[Evidence], str]] = {
    Cause.CONSUMER: lambda _e: "the loop itself",
    Cause.CONSUMER_PYTHON: lambda _e: "Python on the loop's thread",
    Cause.WAIT: lambda e: (
        f"fetching waits (disk, network, sleep) for {percent(causes.split_work(e).fetching.waiting)} of its time"
    ),
    Cause.COMPUTE: lambda e: f"fetching computes for {_cpu(e)} of its time",
    Cause.COMPUTE_FULL: lambda e: f"fetching computes, and {_all_cores(e)}",
    Cause.COLLATE: _collate_too,
    Cause.SLOW_WORKER: lambda _e: "one worker is slow",
    Cause.SLOW_SAMPLES: _slow_samples_too,
    Cause.STALL: lambda e: f"{plural(e.stalls, 'batch')} that stalled the loop",
    Cause.LOCK: lambda _e: "workers wait for a lock",
    Cause.INTERPRETER_LOCK: lambda _e: "threads wait for the interpreter lock",
    Cause.THREADS: lambda _e: "workers have too many threads",
    Cause.CORES_TAKEN: lambda e: (
        f"workers wait for a core during {percent(_queued(e))} of their work"
        if _queued(e)
        else "the loop waits for a core"
    ),
    Cause.MEMORY: lambda _e: "pages are read back from a disk or swap",
    Cause.IN_PROCESS: lambda _e: "batches are produced between the loop's steps",
    Cause.SAMPLER: lambda e: f"the sampler takes {_ms(_per_batch(e, e.sampler_wait))} per batch",
    Cause.WINDOW: _full_window,
    Cause.TRANSPORT: lambda e: f"transport takes {_ms(e.transport_ms)} per batch",
    Cause.PICKLE: lambda e: f"{megabytes(e.pickled or e.nbytes)} of each batch are pickled",
    Cause.HUGE: lambda e: f"a batch has {megabytes(e.nbytes)}",
    Cause.UPLOAD: lambda _e: "batches are pinned or uploaded",
    Cause.STARTUP: lambda e: f"start-up, {duration(e.startup or 0.0)} until the first batch",
    Cause.UNKNOWN: lambda _e: "unknown",
}
"""How each cause is named if it is the second of two."""
