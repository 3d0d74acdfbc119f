"""Finds what limits the loop, and says it in one sentence with the numbers that it rests on. Pure.

The rules, first match wins:

1. There is nothing to judge: the loader is closed, new, paused or starting, or there are too few batches.
2. One worker delays the others: its current batch takes far too long, or its batches take several times as long.
3. The loop waits less than 5 % of the time: the loop is the bottleneck.
4. Batches are produced in the loader's own process: the loop waits for each of them.
5. The loop mostly waits for batches that are produced, and are being pinned or uploaded: upload.
6. Batches take longer to transport than to produce: transport.
7. Otherwise the workers are the bottleneck. CPU time compared to wall time shows whether they compute or wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import clean, duration, megabytes, number, percent, plural
from nbloader.metrics.evidence import Verdict

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence
    from nbloader.metrics.snapshot import Snapshot, UploadStats, WorkerStats

SMALL_WAIT = 0.05
"""Below this share of waiting, the loop itself is the bottleneck."""
MIN_BATCHES = 3
"""Batches of an epoch after its first that a verdict needs."""
STRAGGLER_TIMES = 3.0
"""A worker straggles if its batch takes this many times as long as those of the others."""
STRAGGLER_SECONDS = 0.3
"""A straggling batch is reported after this many seconds."""
COMPUTE_SHARE, IDLE_SHARE = 0.75, 0.4
"""CPU time over wall time of fetching: above the first workers compute, below the second they wait."""
SATURATED = 0.85
"""Workers that together use this share of the cores saturate them."""
CORE_WAIT_SHARE = 0.25
"""If workers wait for a core for this share of their fetching, something else is using the cores."""
_MAX_CORE_WAIT = 0.99
"""Measured shares of waiting for a core are cut to this, which avoids a division by zero."""
_LARGE_BATCH = 1e5
"""Mean size of a batch, bytes, from which transport can be the bottleneck."""
_MAJORITY = 0.5
_MIN_STEP_MS = 0.1
"""Shorter steps are not measured precisely enough to say how many batches the loop could consume."""
_ROUNDING = 0.05
"""Mean counts this close to an integer are shown as one."""


def judge(s: Snapshot, e: Evidence) -> Verdict:
    """Find what limits the loop now.

    Args:
        s: The snapshot, complete but for `cause` and `verdict`.
        e: Additional measurements.

    Returns:
        The cause and the sentence.
    """
    if s.state == "closed":
        return Verdict("closed", f"The loader is closed{_so_far(s)}.")
    if s.epoch < 0:
        return Verdict("new", "No batches yet: iterate over the loader to start it.")
    if s.state == "paused":
        since = "" if e.paused_for is None else f" for {duration(e.paused_for)}"
        return Verdict("paused", f"Paused{since} with {plural(s.ready, 'batch')} ready; call resume() to continue.")
    if e.ended:
        return _after_epoch(s, e)
    return _stuck(s, e) or _starting(s, e) or _bottleneck(s, e)


def _so_far(s: Snapshot) -> str:
    if s.epoch < 0:
        return ""
    total = "" if s.batches_total is None else f" of {s.batches_total:,}"
    return f"; its last epoch, {s.epoch}, delivered {s.batches_done:,}{total} batches"


def _after_epoch(s: Snapshot, e: Evidence) -> Verdict:
    how = {"exhausted": "ended", "error": "ended with an error", "closed": "was closed"}.get(e.ended, "was abandoned")
    total = "" if s.batches_total is None or e.ended == "exhausted" else f" of {s.batches_total:,}"
    head = f"Epoch {s.epoch} {how} after {s.batches_done:,}{total} batches in {duration(s.elapsed)}"
    waited = f"; the loop waited {percent(s.wait_share_epoch)} of the time."
    if e.recent < MIN_BATCHES:
        return Verdict("idle", head + waited)
    # The bottleneck at the end of the epoch is the advice for the next one.
    cause, sentence = _bottleneck(s, e)
    return Verdict(cause, f"{head}{waited} {sentence}")


def _starting(s: Snapshot, e: Evidence) -> Verdict | None:
    if e.first_batch is None:
        ready = sum(w.state not in ("starting", "dead") for w in s.workers)
        if s.workers and ready < len(s.workers):
            return Verdict(
                "starting",
                f"Starting up for {duration(s.elapsed)}: {ready} of {plural(len(s.workers), 'worker')} ready.",
            )
        at = max((w for w in s.workers if w.batch is not None), key=lambda w: w.batch_age or 0.0, default=None)
        where = "" if at is None else f" Worker {at.worker} has been processing {_current_batch(at)}."
        return Verdict("starting", f"Starting up for {duration(s.elapsed)}: no batch yet.{where}")
    if not e.recent and s.at is not None and s.at_for is not None:
        return Verdict(
            "starting",
            f"The first batch came after {duration(e.first_batch)}; the loop has worked on "
            f"{'it' if s.batches_done <= 1 else f'batch {s.at}'} for {duration(s.at_for)}.",
        )
    if e.recent < MIN_BATCHES and s.wait_share >= SMALL_WAIT:
        done = plural(s.batches_done, "batch")
        return Verdict(
            "starting",
            f"The first batch came after {duration(e.first_batch)}; {done} are too few for a verdict."
            if s.batches_done != 1
            else f"The first batch came after {duration(e.first_batch)}; one is too few for a verdict.",
        )
    return None


def _current_batch(w: WorkerStats) -> str:
    sample = "" if w.sample is None else f", sample {clean(w.sample, 40)}"
    return f"batch {w.batch}{sample}, for {duration(w.batch_age or 0.0)}"


def _stuck(s: Snapshot, e: Evidence) -> Verdict | None:
    """One worker has been processing its batch for far too long, or the loop waits for it while others are done."""
    stuck = sorted((w for w in s.workers if w.stuck), key=lambda w: (w.batch != s.waiting_for, -(w.batch_age or 0.0)))
    if stuck:
        w = stuck[0]
        more = f" (and {plural(len(stuck) - 1, 'other')} too)" if len(stuck) > 1 else ""
        waits = ", and the loop is waiting for it" if s.waiting_for is not None and s.waiting_for == w.batch else ""
        ids = ", ".join(str(x.worker) for x in sorted(stuck, key=lambda x: x.worker)[:8])
        return Verdict(
            "worker",
            f"Worker {w.worker} seems stuck{more}: it has been processing {_current_batch(w)}; "
            f"a batch usually takes {duration(e.make_ms / 1e3)}{waits}. "
            f"Restart {'it' if len(stuck) == 1 else 'them'}: loader.restart_workers([{ids}]).",
        )
    limit = max(STRAGGLER_SECONDS, STRAGGLER_TIMES * e.make_ms / 1e3)
    if e.first_batch is None or s.waiting is None or s.reordering == 0:
        return None
    for w in s.workers:
        if w.batch is not None and w.batch == s.waiting_for and (w.batch_age or 0.0) > limit:
            return Verdict(
                "worker",
                f"Worker {w.worker} delays the loop: it has been processing {_current_batch(w)}; a batch usually takes "
                f"{duration(e.make_ms / 1e3)}, and {plural(s.reordering, 'later batch')} "
                f"{'is' if s.reordering == 1 else 'are'} waiting behind it. If this persists, "
                f"restart it: loader.restart_workers([{w.worker}]).",
            )
    return None


def _slow_worker(s: Snapshot, e: Evidence) -> Verdict | None:
    """The batches of one worker take several times as long as the others, which wait in the reorder buffer."""
    reorder = next((stage.mean for stage in s.stages if stage.name == "reorder"), 0.0)
    if not e.make_ms_by_worker:
        return None
    times = e.make_ms_by_worker
    worker = max(times, key=lambda worker: times[worker].median_ms)
    count, slow = times[worker]
    others = sorted(time.median_ms for other, time in times.items() if other != worker)
    usual = others[len(others) // 2] if others else slow
    if count == 1 or slow < STRAGGLER_TIMES * usual or reorder < usual / 2:
        return None
    return Verdict(
        "worker",
        f"Worker {worker} is slow: its batches take {duration(slow / 1e3)}, those of the others "
        f"{duration(usual / 1e3)}, plus {duration(reorder / 1e3)} in the reorder buffer; the loop waits "
        f"{percent(s.wait_share)} of the time. If it stays slow, restart it: loader.restart_workers([{worker}]).",
    )


def _bottleneck(s: Snapshot, e: Evidence) -> Verdict:  # noqa: PLR0911 - one return per rule
    mean = {stage.name: stage.mean for stage in s.stages}
    step, make, transport = (
        mean.get("step", 0.0),
        mean.get("fetch", 0.0) + mean.get("collate", 0.0),
        mean.get("transport", 0.0),
    )
    waits = f"the loop waits {percent(s.wait_share)} of the time"
    if s.wait_share < SMALL_WAIT:
        consumer = f"Your loop is the bottleneck: it waits {percent(s.wait_share)} of the time"
        if e.in_process:
            return Verdict(
                "consumer",
                f"{consumer}, and spends {_ms(step)} per batch.",
            )
        return Verdict(
            "consumer",
            f"{consumer}; the loader keeps {_mean_batches(e.ready_mean)} ready, "
            f"and the loop spends {_ms(step)} per batch.",
        )
    computing = "" if s.cpu_share is None else f" ({percent(s.cpu_share)} of fetching is CPU time)"
    if e.in_process:
        return Verdict(
            "in_process",
            f"Loading is the bottleneck: {waits}, because batches are produced between its steps. Producing one takes "
            f"{_ms(make)}{computing}, a step {_ms(step)}. With num_workers=1 or more they are produced in parallel.",
        )
    if e.handover > _MAJORITY and s.uploads is not None:
        return Verdict("upload", _upload_limit(s, e, s.uploads, waits))
    slow = _slow_worker(s, e)
    if slow is not None:
        return slow
    if transport > make and transport > 1.0 and e.nbytes_mean > _LARGE_BATCH:
        remedy = (
            "They are pickled: a collate function that returns tensors or arrays lets them use shared memory."
            if e.pickled > _MAJORITY
            else "Smaller batches help: a smaller dtype (uint8 instead of float32), or fewer samples."
        )
        return Verdict(
            "transport",
            f"Transport is the bottleneck: {waits}; a batch of {megabytes(e.nbytes_mean)} takes {_ms(transport)} "
            f"from worker to loop and {_ms(make)} to produce. {remedy}",
        )
    return _workers_limit(s, e, step=step, waits=waits)


def _upload_limit(s: Snapshot, e: Evidence, u: UploadStats, waits: str) -> str:
    where = clean(s.device, 40) or "pinned memory"
    speed = "" if u.gb_per_second is None else f" ({number(u.gb_per_second)} GB/s)"
    copying = "" if u.copy is None else f", {_ms(u.copy)} to copy{speed}"
    remedy = "Smaller batches help: a smaller dtype (uint8 instead of float32), or fewer samples."
    if u.ways[0].memory == "pageable":
        remedy = "pin_memory=True makes copies faster and lets them run ahead."
    elif not s.device:
        remedy = "device='cuda' pins batches in place, without this copy, and uploads them ahead of time."
    return (
        f"The transfer to {where} is the bottleneck: {waits}, {percent(e.handover)} of that for finished batches; "
        f"one of {megabytes(e.nbytes_mean)} takes {_ms(u.pin)} to pin{copying}. {remedy}"
    )


def _workers_limit(s: Snapshot, e: Evidence, *, step: float, waits: str) -> Verdict:
    alive = sum(w.state != "dead" for w in s.workers)
    head = "Workers are" if alive != 1 else "The worker is"
    produce = "produces" if alive == 1 else "produce"
    could = number(1e3 / step) if step > _MIN_STEP_MS else "over 10,000"
    head = (
        f"{head} the bottleneck: {waits}; {plural(alive, 'worker')} {produce} "
        f"{number(s.batches_per_second)} batches/s, the loop could consume {could}."
    )
    share = s.cpu_share
    if share is None:
        return Verdict("workers", head)
    known = [w.cpu_percent for w in s.workers if w.cpu_percent is not None]
    # Workers that wait for a core look like workers that wait for a disk; their total CPU use tells them apart.
    if sum(known) >= 100 * SATURATED * e.cores and alive >= e.cores:
        use = f"They use {number(sum(known) / 100)} of {plural(e.cores, 'core')}"
        return Verdict("workers_compute", f"{head} {use}, so cheaper transforms help, more workers do not.")
    return _by_cpu_share(s, e, head, share, alive)


def _by_cpu_share(s: Snapshot, e: Evidence, head: str, share: float, alive: int) -> Verdict:
    known = [w.core_wait for w in s.workers if w.core_wait is not None]
    starved = min(_MAX_CORE_WAIT, sum(known) / len(known)) if known else 0.0
    queued = min(1 - share, share * starved / (1 - starved))
    if queued >= CORE_WAIT_SHARE:
        return Verdict(
            "workers",
            f"{head} Fetching is {percent(share)} CPU time and {percent(queued)} waiting for a core: something else, "
            f"possibly your loop, is using the {plural(e.cores, 'core')} too.",
        )
    if share >= COMPUTE_SHARE and alive >= e.cores:
        return Verdict(
            "workers_compute",
            f"{head} Fetching is {percent(share)} CPU time and there are {plural(e.cores, 'core')}, "
            f"so cheaper transforms help, more workers hardly do.",
        )
    if share >= COMPUTE_SHARE:
        return Verdict(
            "workers_compute",
            f"{head} Fetching is {percent(share)} CPU time, so more workers help up to the {plural(e.cores, 'core')}; "
            f"cheaper transforms help too.",
        )
    if share <= IDLE_SHARE:
        return Verdict(
            "workers_wait",
            f"{head} Fetching is {percent(1 - share)} waiting (disk, network, sleep), "
            f"so more workers help, even beyond the {plural(e.cores, 'core')}.",
        )
    return Verdict(
        "workers", f"{head} Fetching is {percent(share)} CPU time and otherwise waiting, so more workers help."
    )


def _mean_batches(count: float) -> str:
    """A mean number of batches: "4 batches", "3.6 batches"."""
    return plural(round(count), "batch") if abs(count - round(count)) < _ROUNDING else f"{count:.1f} batches"


def _ms(ms: float) -> str:
    return duration(ms / 1e3)
