"""Lifecycle events in words: one line each, for the dashboard's log, the trace and reports. Pure."""

from __future__ import annotations

from typing import NamedTuple

from nbloader._util.format import clean, duration, last_words, plural
from nbloader.events import (
    BatchFailed,
    BatchRecord,
    DatasetReloaded,
    EpochEnded,
    EpochStarted,
    Event,
    LoaderPaused,
    LoaderResumed,
    SampleFailed,
    SupervisorFailed,
    WorkerDied,
    WorkerReady,
    WorkerRestarted,
    WorkersResized,
    WorkerStarted,
)

KINDS = ("worker", "error", "epoch", "command")
"""What lines can be filtered by."""


class Line(NamedTuple):
    """One line of the log."""

    time: int
    """perf_counter ns."""
    kind: str
    """One of `KINDS`."""
    text: str
    """Cleaned, of bounded length; not escaped."""


def line_of(event: Event) -> Line:
    """Say what happened."""
    time = event.delivered if isinstance(event, BatchRecord) else event.time
    kind, text = _say(event)
    return Line(time, kind, text)


def _say(event: Event) -> tuple[str, str]:  # noqa: C901, PLR0911, PLR0912 - one branch per kind of event
    if isinstance(event, BatchRecord):
        return "epoch", f"batch {event.index} delivered"
    if isinstance(event, WorkerStarted):
        return "worker", f"worker {event.worker} started, pid {event.pid}"
    if isinstance(event, WorkerReady):
        return "worker", f"worker {event.worker} ready after {duration(event.startup_ns / 1e9)}"
    if isinstance(event, WorkerDied):
        held = f"; it held {plural(len(event.batches), 'batch')}" if event.batches else ""
        if event.expected:
            return "worker", f"worker {event.worker} (pid {event.pid}) was ended{held}"
        last = last_words(event.stderr_tail)
        said = f"; its last words: {last}" if last else ""
        return "error", f"worker {event.worker} (pid {event.pid}) {clean(event.reason)}{held}{said}"
    if isinstance(event, WorkerRestarted):
        why = "by request" if event.reason == "request" else f"because the one before {clean(event.reason)}"
        return "worker", f"worker {event.worker} replaced {why}"
    if isinstance(event, EpochStarted):
        count = "" if event.batches is None else f", {plural(event.batches, 'batch')}"
        return "epoch", f"epoch {event.epoch} began{count}, {plural(event.num_workers, 'worker')}"
    if isinstance(event, EpochEnded):
        return "epoch", f"epoch {event.epoch} ended after {plural(event.batches, 'batch')}: {event.reason}"
    if isinstance(event, BatchFailed):
        where = "collate" if event.sample is None else f"sample {clean(event.sample, 40)}"
        return "error", f"batch {event.index} failed in worker {event.worker}, at {where}: {clean(event.error)}"
    if isinstance(event, SampleFailed):
        of_sample = "" if event.sample is None else f"sample {clean(event.sample, 40)} of "
        at = f"{of_sample}batch {event.index}"
        return "error", f"{at} was {event.done}: {clean(event.error)}"
    if isinstance(event, WorkersResized):
        return "command", f"{plural(event.after, 'worker')} instead of {event.before}"
    if isinstance(event, LoaderPaused):
        return "command", "paused"
    if isinstance(event, LoaderResumed):
        return "command", "resumed"
    if isinstance(event, DatasetReloaded):
        return "command", "dataset reloaded"
    if isinstance(event, SupervisorFailed):
        return "error", f"the supervisor thread failed and was restarted: {clean(event.error)}"
    return "epoch", "loader closed"
