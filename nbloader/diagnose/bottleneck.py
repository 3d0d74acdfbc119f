"""What limits the loop, in one sentence with the numbers that it rests on. Pure.

The rules, first match wins:

1. Nothing to judge: closed, never iterated, paused, starting up, or too few batches.
2. One worker holds the others up: its batch has lasted far too long, or its batches take several times as long.
3. The loop waits less than 5 % of the time: the loop is the limit.
4. Batches are made in the notebook's own process: the loop waits for every one of them.
5. The loop mostly waits for batches that are made and on their way into pinned memory or to the device: upload.
6. Batches take longer to travel than to make: transport.
7. Else the workers are the limit; CPU time beside wall time says whether they compute or wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import clean, duration, megabytes, number, percent, plural
from nbloader.metrics.evidence import Verdict

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence
    from nbloader.metrics.snapshot import Snapshot, UploadStats, WorkerStats

WAIT_IS_SMALL = 0.05
"""Below this share of waiting the loop itself is the limit."""
ENOUGH = 3
"""Batches of an epoch, after its first, that a judgement needs."""
STRAGGLES = 3.0
"""A worker straggles when its batch takes this many times as long as those of the others."""
LASTS = 0.3
"""Seconds that a straggling batch has lasted at least, to be spoken of."""
COMPUTES, WAITS = 0.75, 0.4
"""CPU time over wall time of fetching, above and below which workers compute or wait."""
FULL = 0.85
"""Workers that together use this share of the cores leave none free."""
QUEUES = 0.25
"""Workers that have no core for this share of their fetching are slow because something else computes."""
_MOST = 0.99
_CARRIED = 1e5
"""Bytes of a mean batch from which carrying it can limit a loop: a smaller one mostly waits to be read."""
_MOSTLY = 0.5
_NO_STEP = 0.1
_WHOLE = 0.05


def judge(s: Snapshot, e: Evidence) -> Verdict:
    """Find what limits the loop now.

    Args:
        s: The snapshot, complete but for `cause` and `verdict`.
        e: Further measurements.

    Returns:
        The cause (one of those listed at `Snapshot.cause`) and the sentence.
    """
    if s.state == "closed":
        return Verdict("closed", f"The loader is closed{_so_far(s)}.")
    if s.epoch < 0:
        return Verdict("new", "No batches yet: iterate over the loader to start it.")
    if s.state == "paused":
        since = "" if e.paused_for is None else f" for {duration(e.paused_for)}"
        return Verdict("paused", f"Paused{since} with {plural(s.ready, 'batch')} ready; resume() goes on.")
    if e.ended:
        return _after_epoch(s, e)
    return _stuck(s, e) or _starting(s, e) or _limit(s, e)


def _so_far(s: Snapshot) -> str:
    if s.epoch < 0:
        return ""
    total = "" if s.batches_total is None else f" of {s.batches_total:,}"
    return f"; its last epoch, {s.epoch}, delivered {s.batches_done:,}{total} batches"


def _after_epoch(s: Snapshot, e: Evidence) -> Verdict:
    how = {"exhausted": "ended", "error": "stopped at an error", "closed": "was closed"}.get(e.ended, "was left early")
    total = "" if s.batches_total is None or e.ended == "exhausted" else f" of {s.batches_total:,}"
    head = f"Epoch {s.epoch} {how} after {s.batches_done:,}{total} batches in {duration(s.elapsed)}"
    waited = f"; the loop waited {percent(s.wait_share_epoch)} of the time."
    if e.recent < ENOUGH:
        return Verdict("idle", head + waited)
    # The limit at the end of the epoch is still the advice for the next one.
    cause, sentence = _limit(s, e)
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
        where = "" if at is None else f" Worker {at.worker} is at {_place(at)}."
        return Verdict("starting", f"Starting up for {duration(s.elapsed)}: no batch yet.{where}")
    if not e.recent and s.at is not None and s.at_for is not None:
        return Verdict(
            "starting",
            f"The first batch came after {duration(e.first_batch)}; the loop has worked on "
            f"{'it' if s.batches_done <= 1 else f'batch {s.at}'} for {duration(s.at_for)}.",
        )
    if e.recent < ENOUGH and s.wait_share >= WAIT_IS_SMALL:
        done = plural(s.batches_done, "batch")
        return Verdict(
            "starting",
            f"The first batch came after {duration(e.first_batch)}; {done} are too few to judge by."
            if s.batches_done != 1
            else f"The first batch came after {duration(e.first_batch)}; one is too few to judge by.",
        )
    return None


def _place(w: WorkerStats) -> str:
    sample = "" if w.sample is None else f", sample {clean(w.sample, 40)}"
    return f"batch {w.batch}{sample}, for {duration(w.batch_age or 0.0)}"


def _stuck(s: Snapshot, e: Evidence) -> Verdict | None:
    """One worker has been at its batch for far too long, or the loop waits for it while others are done."""
    stuck = sorted((w for w in s.workers if w.stuck), key=lambda w: (w.batch != s.waiting_for, -(w.batch_age or 0.0)))
    if stuck:
        w = stuck[0]
        more = f" (and {plural(len(stuck) - 1, 'other')} too)" if len(stuck) > 1 else ""
        waits = "; the loop waits for it" if s.waiting_for is not None and s.waiting_for == w.batch else ""
        ids = ", ".join(str(x.worker) for x in sorted(stuck, key=lambda x: x.worker)[:8])
        return Verdict(
            "worker",
            f"Worker {w.worker} seems stuck{more}: at {_place(w)}, where a batch takes {duration(e.make_ms / 1e3)}"
            f"{waits}. Restart {'it' if len(stuck) == 1 else 'them'}: loader.restart_workers([{ids}]).",
        )
    limit = max(LASTS, STRAGGLES * e.make_ms / 1e3)
    if e.first_batch is None or s.waiting is None or s.reordering == 0:
        return None
    for w in s.workers:
        if w.batch is not None and w.batch == s.waiting_for and (w.batch_age or 0.0) > limit:
            return Verdict(
                "worker",
                f"Worker {w.worker} holds the loop up: at {_place(w)}, where a batch takes "
                f"{duration(e.make_ms / 1e3)}, with {plural(s.reordering, 'later batch')} behind it. If it lasts, "
                f"restart it: loader.restart_workers([{w.worker}]).",
            )
    return None


def _slow_worker(s: Snapshot, e: Evidence) -> Verdict | None:
    """One worker's batches take several times as long as the others', and those wait for it in the reorder buffer."""
    reorder = next((stage.mean for stage in s.stages if stage.name == "reorder"), 0.0)
    if not e.make_ms_by_worker:
        return None
    worker, (count, slow) = max(e.make_ms_by_worker.items(), key=lambda item: item[1][1])
    others = sorted(ms for other, (_, ms) in e.make_ms_by_worker.items() if other != worker)
    usual = others[len(others) // 2] if others else slow
    if count == 1 or slow < STRAGGLES * usual or reorder < usual / 2:
        return None
    return Verdict(
        "worker",
        f"Worker {worker} is slow: its batches take {duration(slow / 1e3)}, those of the others "
        f"{duration(usual / 1e3)} and then {duration(reorder / 1e3)} behind it in the reorder buffer; the loop waits "
        f"{percent(s.wait_share)} of the time. If it stays slow, restart it: loader.restart_workers([{worker}]).",
    )


def _limit(s: Snapshot, e: Evidence) -> Verdict:  # noqa: PLR0911 - one return per rule
    mean = {stage.name: stage.mean for stage in s.stages}
    step, make, transport = (
        mean.get("step", 0.0),
        mean.get("fetch", 0.0) + mean.get("collate", 0.0),
        mean.get("transport", 0.0),
    )
    waits = f"it waits {percent(s.wait_share)} of the time"
    if s.wait_share < WAIT_IS_SMALL:
        if e.in_process:
            return Verdict("consumer", f"Your loop is the limit: {waits}, and spends {_ms(step)} per batch.")
        return Verdict(
            "consumer",
            f"Your loop is the limit: {waits}; the loader keeps {_mean_batches(e.ready_mean)} ready, "
            f"and the loop spends {_ms(step)} per batch.",
        )
    computing = "" if s.cpu_share is None else f" ({percent(s.cpu_share)} of fetching is computing)"
    if e.in_process:
        return Verdict(
            "in_process",
            f"Loading limits the loop: {waits}, because batches are made between its steps. Making one takes "
            f"{_ms(make)}{computing}, a step {_ms(step)}. With num_workers=1 or more they are made meanwhile.",
        )
    if e.handing > _MOSTLY and s.uploads is not None:
        return Verdict("upload", _upload_limit(s, e, s.uploads, waits))
    slow = _slow_worker(s, e)
    if slow is not None:
        return slow
    if transport > make and transport > 1.0 and e.nbytes_mean > _CARRIED:
        remedy = (
            "They travel by pickle: a collate function that returns tensors or arrays moves them by shared memory."
            if e.pickled > _MOSTLY
            else "Smaller batches help: a smaller dtype (uint8 instead of float32), or fewer samples."
        )
        return Verdict(
            "transport",
            f"Transport limits the loop: {waits}; a batch of {megabytes(e.nbytes_mean)} takes {_ms(transport)} "
            f"from worker to notebook and {_ms(make)} to make. {remedy}",
        )
    return _workers_limit(s, e, step=step, waits=waits)


def _upload_limit(s: Snapshot, e: Evidence, u: UploadStats, waits: str) -> str:
    where = clean(s.device, 40) or "pinned memory"
    speed = "" if u.gb_per_second is None else f" ({number(u.gb_per_second)} GB/s)"
    copying = "" if u.copy is None else f", {_ms(u.copy)} to copy{speed}"
    remedy = "Smaller batches help: a smaller dtype (uint8 instead of float32), or fewer samples."
    if u.ways[0].memory == "pageable":
        remedy = "pin_memory=True makes copies quicker and lets them run ahead."
    elif not s.device:
        remedy = "device='cuda' pins batches where they lie, without this copy, and uploads them ahead."
    return (
        f"The way to {where} limits the loop: {waits}, {percent(e.handing)} of that for batches that are made; one of "
        f"{megabytes(e.nbytes_mean)} takes {_ms(u.pin)} to pin{copying}. {remedy}"
    )


def _workers_limit(s: Snapshot, e: Evidence, *, step: float, waits: str) -> Verdict:
    alive = sum(w.state != "dead" for w in s.workers)
    head = "Workers limit" if alive != 1 else "The worker limits"
    makes = "makes" if alive == 1 else "make"
    could = number(1e3 / step) if step > _NO_STEP else "over 10,000"
    head = (
        f"{head} the loop: {waits}; {plural(alive, 'worker')} {makes} {number(s.batches_per_second)} batches/s, "
        f"the loop could take {could}."
    )
    share = s.cpu_share
    if share is None:
        return Verdict("workers", head)
    known = [w.cpu_percent for w in s.workers if w.cpu_percent is not None]
    # Workers that queue for a core look as if they waited for a disk: what they use together tells them apart.
    if sum(known) >= 100 * FULL * e.cores and alive >= e.cores:
        use = f"They use {number(sum(known) / 100)} of {plural(e.cores, 'core')}"
        return Verdict("workers_compute", f"{head} {use}, so cheaper transforms help, more workers do not.")
    return _by_cpu_share(s, e, head, share, alive)


def _by_cpu_share(s: Snapshot, e: Evidence, head: str, share: float, alive: int) -> Verdict:
    known = [w.core_wait for w in s.workers if w.core_wait is not None]
    lack = min(_MOST, sum(known) / len(known)) if known else 0.0
    queued = min(1 - share, share * lack / (1 - lack))
    if queued >= QUEUES:
        return Verdict(
            "workers",
            f"{head} Fetching is {percent(share)} computing and {percent(queued)} waiting for a core: something else, "
            f"be it your loop, uses the {plural(e.cores, 'core')}, too.",
        )
    if share >= COMPUTES and alive >= e.cores:
        return Verdict(
            "workers_compute",
            f"{head} Fetching is {percent(share)} computing and there are {plural(e.cores, 'core')}, "
            f"so cheaper transforms help, more workers hardly.",
        )
    if share >= COMPUTES:
        return Verdict(
            "workers_compute",
            f"{head} Fetching is {percent(share)} computing, so more workers help up to the {plural(e.cores, 'core')}; "
            f"cheaper transforms help too.",
        )
    if share <= WAITS:
        return Verdict(
            "workers_wait",
            f"{head} Fetching is {percent(1 - share)} waiting (disk, network, sleep), "
            f"so more workers help, also beyond the {plural(e.cores, 'core')}.",
        )
    return Verdict("workers", f"{head} Fetching is {percent(share)} computing and else waits, so more workers help.")


def _mean_batches(count: float) -> str:
    """Give a mean number of batches: "4 batches", "3.6 batches"."""
    return plural(round(count), "batch") if abs(count - round(count)) < _WHOLE else f"{count:.1f} batches"


def _ms(ms: float) -> str:
    return duration(ms / 1e3)
