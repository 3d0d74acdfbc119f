"""Describe what a loader is doing and what limits the loop, in sentences with numbers. Pure.

    state, stuck workers, start-up (here)   ->  headline
    evidence of the last seconds   ->  parts -> causes -> verdict  ->  what limits the loop now
    evidence of the epoch          ->  parts -> causes -> verdict  ->  what limited it over the epoch

The headline is the state of a loader that is new, paused or starting, or names a stuck worker. Otherwise it is the
verdict about the last seconds. After the end of an epoch, also after `close()`, it is the verdict about the epoch.
While an epoch has too few batches to tell what limits it, the verdict about the one before stays with the headline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import age, clean, duration, percent, plural
from nbloader.diagnose.causes import UNKNOWN
from nbloader.diagnose.common import in_common
from nbloader.diagnose.parts import MIN_BATCHES, SMALL_WAIT
from nbloader.diagnose.phrases import TRY, line_remedy, slowest_line
from nbloader.diagnose.verdict import verdict
from nbloader.metrics.ages import age_in
from nbloader.metrics.evidence import Diagnosis
from nbloader.metrics.snapshot import Verdict

if TYPE_CHECKING:
    from nbloader.events import LoopStopped
    from nbloader.metrics.evidence import Evidence, LoaderStatus
    from nbloader.metrics.snapshot import Snapshot, WorkerStats

STRAGGLER_TIMES = 3.0
"""A worker delays the loop if its batch takes more than this many times as long as usual."""
STRAGGLER_SECONDS = 0.3
"""A delayed batch is reported after this many seconds."""
_ENDINGS = {"exhausted": "ended", "error": "ended with an error", "closed": "was closed", "abandoned": "was abandoned"}


def judge(s: Snapshot, status: LoaderStatus, now: Evidence, epoch: Evidence) -> Diagnosis:
    """Diagnose a loader.

    Args:
        s: The snapshot, complete except for its verdicts.
        status: What else is known about the epoch.
        now: Measurements of the last seconds in which the loader ran.
        epoch: Measurements of the epoch.

    Returns:
        The verdicts about this moment, the last seconds, and the epoch.
    """
    if s.epoch < 0:
        closed = s.state == "closed"
        new = Verdict("new", "No batches yet: iterate over the loader to start it.")
        return Diagnosis(Verdict("closed", "The loader is closed.") if closed else new, Verdict(), Verdict())
    recent, whole = verdict(now), verdict(epoch)
    common = in_common(epoch.slow_indices, epoch.usual_indices, epoch.facts) if epoch.slow_indices else ""
    headline = _with_epoch_before(_headline(s, status, recent, whole, epoch), status)
    left_out = _left_out(status)
    if left_out:
        headline = headline._replace(sentence=f"{headline.sentence} {left_out}")
    return Diagnosis(headline, recent, whole, common)


def _with_epoch_before(headline: Verdict, status: LoaderStatus) -> Verdict:
    """Add the verdict about an earlier epoch to a headline that only says that the newest one is too short for one."""
    before = status.before
    if before is None or headline.cause not in ("starting", "idle"):
        return headline
    sentence = f"{headline.sentence} Epoch {before.epoch}: {before.verdict.sentence}"
    if headline.cause == "starting":
        return headline._replace(sentence=sentence)
    return before.verdict._replace(sentence=sentence, restart=(), failure=headline.failure)


def _left_out(status: LoaderStatus) -> str:
    """Describe the samples of the epoch that were skipped or replaced; "" if there are none."""
    if not status.left_out:
        return ""
    last, count = status.left_out[-1], status.left_out_count
    sample = f"sample {clean(last.sample, 40)} of batch {last.index}"
    error = clean(last.error, 80)
    if count == 1:
        return f"One sample was {last.done}, {sample}: {error}."
    return f"{count:,} samples were {last.done}. The last one was {sample}: {error}."


def _headline(s: Snapshot, status: LoaderStatus, recent: Verdict, whole: Verdict, epoch: Evidence) -> Verdict:
    if status.ended or s.state in ("closed", "stopped"):
        return _after_epoch(s, status, whole, epoch)
    if s.state == "paused":
        since = "" if status.paused_for is None else f" for {age(status.paused_for)}"
        return Verdict("paused", f"Paused{since} with {plural(s.ready, 'batch')} ready. Call resume() to continue.")
    return _stuck(s, status) or _starting(s, status, epoch) or recent


def _after_epoch(s: Snapshot, status: LoaderStatus, whole: Verdict, epoch: Evidence) -> Verdict:
    how = _ENDINGS.get(status.ended, "was abandoned")
    total = "" if s.batches_total is None or status.ended == "exhausted" else f" of {s.batches_total:,}"
    head = f"Epoch {s.epoch} {how} after {_done(s, total)} in {duration(s.elapsed)}"
    if status.ended == "error" and status.failed is not None:
        head += f" ({status.failed.place} of batch {status.failed.index}: {clean(status.failed.error, 80)})"
    failed = status.ended == "error"
    if status.stopped is not None:
        head = _stopped(s, status, status.stopped)
        failed = not status.stopped.interrupted
    if s.state == "closed" and status.ended != "closed":
        head += ", and the loader is closed"
    if whole.cause == UNKNOWN.name and s.batches_done <= MIN_BATCHES:
        waited = f"The loop waited for {percent(s.wait_share_epoch)} of the time"
        line = _line(epoch) if s.wait_share_epoch >= SMALL_WAIT else ""
        whole = Verdict("idle", f"{waited}, but these are too few batches to tell why.{line}")
    return whole._replace(sentence=f"{head}. {whole.sentence}", failure=f"{head}." if failed else "")


def _line(e: Evidence) -> str:
    """The slowest line, and its remedy or the call that may find one, as sentences; "" if no line is known."""
    if e.line is None:
        return ""
    todo = line_remedy(e) or ("" if e.line.is_tried else TRY.capitalize())
    return slowest_line(e) + (f" {todo}." if todo else "")


def _stopped(s: Snapshot, status: LoaderStatus, stop: LoopStopped) -> str:
    total = "" if s.batches_total is None else f" of {s.batches_total:,}"
    done = f"after {_done(s, total)} in {duration(s.elapsed)}"
    if stop.interrupted:
        waited = duration(status.stop_waited)
        return f"Epoch {s.epoch} was interrupted {done}, while the loop waited for batch {stop.index} ({waited})"
    failed = status.failed
    place = f"{failed.place} of " if failed is not None and failed.index == stop.index else ""
    return f"Epoch {s.epoch} stopped {done}: {place}batch {stop.index} raised {clean(stop.error, 160)}"


def _done(s: Snapshot, total: str) -> str:
    return f"{s.batches_done:,}{total} batches" if total else plural(s.batches_done, "batch")


def _starting(s: Snapshot, e: LoaderStatus, epoch: Evidence) -> Verdict | None:
    line = _line(epoch)
    if e.first_batch is None:
        ready = sum(w.state not in ("starting", "dead") for w in s.workers)
        if s.workers and ready < len(s.workers):
            return Verdict(
                "starting",
                f"Starting up for {age_in(s, s.elapsed)}: {ready} of {plural(len(s.workers), 'worker')} "
                f"{'is' if ready == 1 else 'are'} ready.",
            )
        busy = (w for w in s.workers if w.batch is not None and not w.left and (w.batch_age or 0.0) <= s.elapsed)
        at = max(busy, key=lambda w: w.batch_age or 0.0, default=None)
        where = "" if at is None else f" Worker {at.worker} has been processing {_current_batch(at)}."
        expected = "" if s.first_batch_in is None else f" At this pace, it comes in {duration(s.first_batch_in)}."
        return Verdict("starting", f"Starting up for {age_in(s, s.elapsed)}: no batch yet.{where}{expected}{line}")
    if not e.recent and s.at is not None and s.at_for is not None:
        return Verdict(
            "starting",
            f"The first batch came after {duration(e.first_batch)}. The loop has been working on "
            f"{'it' if s.batches_done <= 1 else f'batch {s.at}'} for {age(s.at_for)}.",
        )
    if e.recent < MIN_BATCHES and s.wait_share >= SMALL_WAIT:
        done = plural(s.batches_done, "batch")
        return Verdict(
            "starting",
            f"The first batch came after {duration(e.first_batch)}. {done} are too few for a verdict.{line}"
            if s.batches_done != 1
            else f"The first batch came after {duration(e.first_batch)}. One batch is too few for a verdict.{line}",
        )
    return None


def _current_batch(w: WorkerStats) -> str:
    sample = "" if w.sample is None else f", sample {clean(w.sample, 40)}"
    return f"batch {w.batch}{sample}, for {age(w.batch_age or 0.0)}"


def _stuck(s: Snapshot, status: LoaderStatus) -> Verdict | None:
    """Describe a worker that is stuck, or that delays later batches which are finished; None if there is none."""
    if status.usual_make is None:
        return None  # nothing is known that a batch could be compared with
    usually = f"A batch usually takes {duration(status.usual_make)}"
    stuck = sorted((w for w in s.workers if w.stuck), key=lambda w: (w.batch != s.waiting_for, -(w.batch_age or 0.0)))
    if stuck:
        w = stuck[0]
        more = f" (and {plural(len(stuck) - 1, 'other')} too)" if len(stuck) > 1 else ""
        awaited = s.waiting_for is not None and s.waiting_for == w.batch
        waits = ", and the loop is waiting for this batch" if awaited else ""
        workers = tuple(sorted(x.worker for x in stuck)[:8])
        ids = ", ".join(map(str, workers))
        return Verdict(
            "worker",
            f"Worker {w.worker} seems stuck{more}: it has been processing {_current_batch(w)}{waits}. "
            f"{usually}. "
            f"Restart the {'worker' if len(stuck) == 1 else 'workers'}: loader.restart_workers([{ids}]).",
            restart=workers,
        )
    limit = max(STRAGGLER_SECONDS, STRAGGLER_TIMES * status.usual_make)
    if status.first_batch is None or s.waiting is None or s.reordering == 0:
        return None
    for w in s.workers:
        if w.batch is not None and w.batch == s.waiting_for and (w.batch_age or 0.0) > limit:
            return Verdict(
                "worker",
                f"Worker {w.worker} delays the loop: it has been processing {_current_batch(w)}, "
                f"and {plural(s.reordering, 'later batch')} "
                f"{'is' if s.reordering == 1 else 'are'} waiting behind it. {usually}. If this persists, "
                f"restart the worker: loader.restart_workers([{w.worker}]).",
                restart=(w.worker,),
            )
    return None
