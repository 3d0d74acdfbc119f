"""Verdicts: what limited the loop over a span, with the evidence and a remedy, as sentences. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nbloader._util.format import clean, duration, megabytes, number, percent, plural
from nbloader.diagnose import causes
from nbloader.diagnose.causes import Cause, find_causes
from nbloader.diagnose.common import in_common
from nbloader.metrics.snapshot import Verdict

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

_ROUNDING = 0.05
"""A mean count that is this close to an integer is shown as an integer."""
_MIN_STEP_MS = 0.1
"""Shortest step, ms, that is measured precisely enough to say how many batches per second the loop could consume."""


def verdict(e: Evidence) -> Verdict:
    """State what limited the loop over a span, as a word and as a sentence."""
    first, *second = find_causes(e)
    text = _SENTENCES[first.cause](e)
    if second:
        text += f" Also, {_of_wait(e, second[0].share)} of the wait: "
        text += f"{_SHORT[second[0].cause](e)}."
    slow = causes.slow_worker(e) if first.cause is Cause.SLOW_WORKER else None
    restart = () if slow is None or e.span != "now" else (slow,)
    return Verdict(first.cause.value, text, second[0].cause.value if second else "", restart)


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


def _consumer(e: Evidence) -> str:
    waits = "waits" if e.span == "now" else "waited"
    span = f"of the last {duration(e.seconds)}" if e.span == "now" else f"of the epoch's {duration(e.seconds)}"
    busy = causes.loop_cpu(e)
    step = f"the loop spends {_ms(e.step_ms)} per batch"
    if busy is not None:
        python = busy >= causes.PYTHON_STEP
        step += f", {percent(busy)} of it computing on its own thread"
        step += ": cheaper steps help, a faster loader does not" if python else " and otherwise waiting for its device"
    ready = "" if e.place == "inline" else f"; the loader keeps {_mean_batches(e.ready)} ready"
    return f"Your loop is the bottleneck: it {waits} {percent(e.wait_share)} {span}{ready}, and {step}."


def _workers(e: Evidence) -> str:
    """How fast the workers are, and how fast the loop could consume batches."""
    could = number(1e3 / e.step_ms) if e.step_ms > _MIN_STEP_MS else "over 10,000"
    rate = number(e.batches / e.seconds) if e.seconds else "0"
    one = e.workers == 1
    return (
        f"{'The worker is' if one else 'Workers are'} the bottleneck: {_waits(e)}; {plural(e.workers, 'worker')} "
        f"{'produces' if one else 'produce'} {rate} batches/s, the loop could consume {could}."
    )


def _cpu(e: Evidence) -> str:
    return percent(min(1.0, e.fetch_cpu or 0.0))


def _cores(e: Evidence) -> str:
    """How many cores of this machine are in use."""
    return f"{number(causes.cores_used(e))} of {plural(e.cores, 'core')}"


def _all_cores(e: Evidence) -> str:
    """How many cores the workers and the loop use, on each machine."""
    if not e.elsewhere:
        return f"workers and loop use {_cores(e)}"
    workers, cores = sum(m.workers for m in e.elsewhere), sum(m.cores for m in e.elsewhere)
    used = number(min(workers * causes.computing_cores(e), cores))
    full = causes.cores_used(e) >= causes.SATURATED * e.cores
    here = f", and {_cores(e)} of this one" if e.workers_here or full else ""
    machines = plural(len(e.elsewhere), "other machine")
    return f"workers use {used} of the {plural(round(cores), 'core')} of {machines}{here}"


def _limit(e: Evidence) -> str:
    """Which cores workers can use."""
    return f"the {plural(e.cores, 'core')}" if not e.elsewhere else "the cores of their machines"


def _waiting_samples(e: Evidence) -> str:
    share = 1 - min(1.0, e.fetch_cpu or 0.0) - min(causes.core_wait(e), 1 - min(1.0, e.fetch_cpu or 0.0))
    if e.overlap > 1:
        return (
            f"{_workers(e)} Each fetches samples of {number(e.overlap)} batches at a time, and waits for them "
            f"{percent(share)} of its time (network, disk, sleep), so a larger concurrency helps, and so do more "
            "workers."
        )
    return (
        f"{_workers(e)} Fetching is {percent(share)} waiting (disk, network, sleep), so more workers help, even beyond "
        f"{_limit(e)}; a larger prefetch window does not."
    )


def _compute(e: Evidence) -> str:
    return (
        f"{_workers(e)} Fetching is {_cpu(e)} CPU time, so more workers help up to {_limit(e)}; "
        f"cheaper transforms help too."
    )


def _compute_full(e: Evidence) -> str:
    return (
        f"{_workers(e)} Fetching is {_cpu(e)} CPU time; {_all_cores(e)}, so cheaper transforms help and more workers "
        f"do not{', unless on further machines' if e.elsewhere else ''}."
    )


def _collate(e: Evidence) -> str:
    make = e.fetch_ms + e.collate_ms
    computing = "" if e.collate_cpu is None else f", {percent(min(1.0, e.collate_cpu))} of it CPU time"
    return (
        f"Collating is the bottleneck: {_waits(e)}; a batch takes {_ms(e.fetch_ms)} to fetch and {_ms(e.collate_ms)} "
        f"to collate ({percent(e.collate_ms / make if make else 0)} of the workers' time{computing}). A faster "
        f"collate function helps; so do more workers, as long as cores are free."
    )


def _slow_worker(e: Evidence) -> str:
    worker = causes.slow_worker(e)
    if worker is None:
        return _workers(e)
    others = sorted(time.median_ms for other, time in e.by_worker.items() if other != worker)
    return (
        f"Worker {worker} is slow: its batches take {_ms(e.by_worker[worker].median_ms)}, those of the others "
        f"{_ms(others[len(others) // 2])}, plus {_ms(e.reorder_ms)} in the reorder buffer; {_waits(e)}. "
        f"If it stays slow, restart it: loader.restart_workers([{worker}])."
    )


def _slow_samples(e: Evidence) -> str:
    common = in_common(e.slow_indices, e.usual_indices, e.facts)
    listed = ", ".join(clean(i, 20) for i in e.slow_indices[:3])
    return (
        f"Slow samples are the bottleneck: {_waits(e)}; one of {round(e.slow_every)} samples takes {_ms(e.slow_ms)}, "
        f"the others {_ms(e.sample_ms)}: {percent(e.slow_share)} of the workers' time. "
        + (f"They are those with {common}. " if common else f"Slowest: {listed}. ")
        + "Make them as quick as the others; a larger prefetch window does not help."
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
    longest = f"{duration(worst.wait)} so far, is" if worst.make is None else f"{duration(worst.wait)}, was"
    text += f". The longest, {longest} for batch {worst.batch}{sample}"
    if worst.attempt > 1:
        text += f", which was produced again after the worker that processed it was lost (attempt {worst.attempt})"
    return f"{text}; a batch usually takes {_ms(e.make_ms)}. More workers do not help."


def _startup(e: Evidence) -> str:
    began = "" if e.startup is None else f"; the first batch came after {duration(e.startup)}"
    ready = "" if e.worker_startup is None else f", of which the workers took {duration(e.worker_startup)} to start"
    return (
        f"Start-up is the bottleneck: {_waits(e)}, {_of_wait(e, e.startup_wait)} of that for the first batch "
        f"of each worker{began}{ready}; later ones take {_ms(e.make_ms)}. Longer epochs or persistent_workers=True "
        f"help, and so does a dataset that opens its files faster; more workers do not."
    )


def _sampler(e: Evidence) -> str:
    return (
        f"The sampler is the bottleneck: {_waits(e)}, and for {_of_wait(e, e.sampler_wait)} of that it draws "
        f"indices ({_ms(_per_batch(e, e.sampler_wait))} per batch). Draw them faster, or in advance; more workers do "
        f"not help."
    )


def _per_batch(e: Evidence, share: float) -> float:
    """Convert a share of the span to milliseconds per batch."""
    return share * e.seconds * 1e3 / max(1, e.batches)


def _window(e: Evidence) -> str:
    return (
        f"The prefetch window is too small: {_waits(e)}, while {plural(e.workers, 'worker')} "
        f"{'is' if e.workers == 1 else 'are'} busy {percent(e.utilization)} of the time; all {e.window} batches of the "
        f"window were requested at {percent(e.full)} of the deliveries. A larger prefetch_factor helps; more workers "
        f"do not."
    )


def _pickle(e: Evidence) -> str:
    return (
        f"Pickling is the bottleneck: {_waits(e)}; {megabytes(max(e.pickled, e.nbytes if e.by_pickle else 0))} of each "
        f"batch are pickled by a worker ({_ms(e.collate_ms)} to collate and pickle, {_ms(e.transport_ms)} to "
        f"transport) and unpickled by the loop ({_ms(_per_batch(e, e.opening_wait))}). A collate function that returns "
        f"tensors or arrays lets them use shared memory."
    )


def _transport(e: Evidence) -> str:
    what, parts, workers = "Transport", "", ""
    if e.nodes:
        what = f"The transfer from {'the node' if e.nodes == 1 else plural(e.nodes, 'node')}"
        parts = f" (its node needs {_ms(e.transfer_ms)} to send it, after earlier ones)"
        workers = "; more workers do not"
    return (
        f"{what} is the bottleneck: {_waits(e)}; a batch of {megabytes(e.nbytes)} takes {_ms(e.transport_ms)} from "
        f"worker to loop{parts} and {_ms(e.fetch_ms + e.collate_ms)} to produce. Smaller batches help: a smaller dtype "
        f"(uint8 instead of float32), or fewer samples{workers}."
    )


def _huge(e: Evidence) -> str:
    rate = e.nbytes / max(1e-6, e.collate_ms / 1e3) / 1e9
    return (
        f"The size of batches is the bottleneck: {_waits(e)}; collating {megabytes(e.nbytes)} takes "
        f"{_ms(e.collate_ms)} ({number(rate)} GB/s), fetching the samples {_ms(e.fetch_ms)}. Smaller batches help: a "
        f"smaller dtype (uint8 instead of float32), or fewer samples; more workers hardly do."
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
    remedy = "Smaller batches help: a smaller dtype (uint8 instead of float32), or fewer samples."
    if u.ways[0].memory == "pageable":
        remedy = "pin_memory=True makes copies faster and lets them run ahead."
    elif not e.device:
        remedy = "device='cuda' pins batches in place, without this copy, and uploads them ahead of time."
    return f"{head}; one of {megabytes(e.nbytes)} takes {_ms(u.pin)} to pin{copying}. {remedy}"


def _in_process(e: Evidence) -> str:
    computing = "" if e.fetch_cpu is None else f" ({_cpu(e)} of fetching is CPU time)"
    collating = "" if e.collate_ms < e.fetch_ms else f", {_ms(e.collate_ms)} of it to collate"
    return (
        f"Loading is the bottleneck: {_waits(e)}, because batches are produced between its steps. Producing one takes "
        f"{_ms(e.fetch_ms + e.collate_ms)}{collating}{computing}, a step {_ms(e.step_ms)}. With num_workers=1 or more "
        f"they are produced in parallel."
    )


def _interpreter_lock(e: Evidence) -> str:
    loop = 0.0 if e.usage is None else e.usage.loop_cores
    return (
        f"The interpreter lock is the bottleneck: {_waits(e)}; {plural(e.workers, 'thread')} compute in turn and "
        f"together use {number(loop)} of {plural(e.cores, 'core')}, each for {_cpu(e)} of its fetching. "
        f"workers='process' lets them compute at the same time; more threads do not help."
    )


def _lock(e: Evidence) -> str:
    locked, looks = (0.0, 0) if e.usage is None else (e.usage.locked, e.usage.looks)
    return (
        f"A lock serializes the workers: {_waits(e)}; at {percent(locked)} of {plural(looks, 'look')} "
        f"a busy worker was waiting for one ({plural(e.workers, 'worker')}). Hold it for a shorter time, or give each "
        f"worker its own file, connection or cache; more workers do not help."
    )


def _threads(e: Evidence) -> str:
    usage = e.usage
    threads, others = (0, 0.0) if usage is None else (usage.threads, usage.other_threads)
    return (
        f"The workers have too many threads: {_waits(e)}; {plural(e.workers, 'worker')} of up to "
        f"{plural(threads, 'thread')} use {_cores(e)}, {percent(others)} of that in other threads than the one that "
        f"loads{_preempted(e, ', which loses its core')}. One thread per worker helps: torch.set_num_threads(1) in "
        f"worker_init_fn; more workers do not."
    )


def _cores_taken(e: Evidence) -> str:
    return (
        f"{_workers(e)} They wait for a core during {percent(causes.core_wait(e))} of their work"
        f"{_preempted(e, ', and each loses its own')}, yet workers and loop use only {_cores(e)}: other programs use "
        f"the rest. Free cores help; more workers do not."
    )


def _preempted(e: Evidence, what: str) -> str:
    """How often a worker loses its core; "" if not measured."""
    if e.usage is None or e.usage.preempted is None:
        return ""
    return f"{what} {number(e.usage.preempted)} times a second"


def _memory(e: Evidence) -> str:
    faults = 0.0 if e.usage is None else e.usage.major_faults
    return (
        f"Memory is the bottleneck: {_waits(e)}; each worker reads {number(faults)} pages a second back from a disk or "
        f"swap. Fewer workers, smaller batches or a smaller dataset in memory help; more workers make it worse."
    )


def _unknown(e: Evidence) -> str:
    if e.batches <= causes.MIN_BATCHES:
        return (
            f"Cannot tell yet what limits the loop: {plural(e.batches, 'batch')} are too few."
            if e.batches != 1
            else ("Cannot tell yet what limits the loop: one batch is too few.")
        )
    return (
        f"Cannot tell what limits the loop: {_waits(e)}, but its {plural(e.workers, 'worker')} "
        f"{'is' if e.workers == 1 else 'are'} busy only {percent(e.utilization)} of the time, and no measurement "
        f"explains the rest."
    )


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
        f"fetching waits (disk, network, sleep) for {percent(1 - min(1.0, e.fetch_cpu or 0.0))} of its time"
    ),
    Cause.COMPUTE: lambda e: f"fetching computes for {_cpu(e)} of its time",
    Cause.COMPUTE_FULL: lambda e: f"fetching computes, and {_all_cores(e)}",
    Cause.COLLATE: lambda e: f"collating takes {_ms(e.collate_ms)} of {_ms(e.fetch_ms + e.collate_ms)}",
    Cause.SLOW_WORKER: lambda _e: "one worker is slow",
    Cause.SLOW_SAMPLES: _slow_samples_too,
    Cause.STALL: lambda e: f"{plural(e.stalls, 'batch')} that stalled the loop",
    Cause.LOCK: lambda _e: "workers wait for a lock",
    Cause.INTERPRETER_LOCK: lambda _e: "threads wait for the interpreter lock",
    Cause.THREADS: lambda _e: "workers have too many threads",
    Cause.CORES_TAKEN: lambda e: f"workers wait for a core during {percent(causes.core_wait(e))} of their work",
    Cause.MEMORY: lambda _e: "pages are read back from a disk or swap",
    Cause.IN_PROCESS: lambda _e: "batches are produced between the loop's steps",
    Cause.SAMPLER: lambda e: f"the sampler takes {_ms(_per_batch(e, e.sampler_wait))} per batch",
    Cause.WINDOW: lambda e: f"the window of {e.window} batches was full at {percent(e.full)} of the deliveries",
    Cause.TRANSPORT: lambda e: f"transport takes {_ms(e.transport_ms)} per batch",
    Cause.PICKLE: lambda e: f"{megabytes(e.pickled or e.nbytes)} of each batch are pickled",
    Cause.HUGE: lambda e: f"a batch has {megabytes(e.nbytes)}",
    Cause.UPLOAD: lambda _e: "batches are pinned or uploaded",
    Cause.STARTUP: lambda e: f"start-up, {duration(e.startup or 0.0)} until the first batch",
    Cause.UNKNOWN: lambda _e: "unknown",
}
"""How each cause is named if it is the second of two."""
