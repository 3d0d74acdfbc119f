"""Describes events as lines of text, for the dashboard's log, the trace and reports. Pure: no clock and no I/O."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from nbloader._util.format import clean, duration, final_message, number, plural
from nbloader.events import (
    BatchFailed,
    BatchRecord,
    DatasetReloaded,
    EpochEnded,
    EpochStarted,
    Event,
    LoaderClosed,
    LoaderPaused,
    LoaderResumed,
    LoopStopped,
    SampleFailed,
    SettingTried,
    SupervisorFailed,
    WorkerDied,
    WorkerLeaving,
    WorkerReady,
    WorkerRestarted,
    WorkersResized,
    WorkerStarted,
)

Kind: TypeAlias = Literal["worker", "error", "epoch", "command"]
"""Categories by which lines can be filtered."""


class Line(NamedTuple):
    """One line of the log."""

    time: int
    """When the event happened, in ns of `time.perf_counter_ns()`."""
    kind: Kind
    text: str
    """Printable and of bounded length; not escaped."""


def line_of(event: Event) -> Line:
    """Describe an event in one line."""
    time = event.delivered if isinstance(event, BatchRecord) else event.time
    return Line(time, *_DESCRIBE[type(event)](event))


Described: TypeAlias = tuple[Kind, str]


def _worker_died(e: WorkerDied) -> Described:
    held = f"; it held {plural(len(e.batches), 'batch')}" if e.batches else ""
    if e.expected:
        how = "was killed by request" if e.exitcode == -signal.SIGKILL else "stopped"
        return "worker", f"worker {e.worker} (pid {e.pid}) {how}{held}"
    last = final_message(e.stderr_tail)
    output = f"; last output: {last}" if last else ""
    return "error", f"worker {e.worker} (pid {e.pid}) {clean(e.reason)}{held}{output}"


def _worker_restarted(e: WorkerRestarted) -> Described:
    why = "by request" if e.reason == "request" else f"because it {clean(e.reason)}"
    return "worker", f"worker {e.worker} restarted {why}"


def _epoch_started(e: EpochStarted) -> Described:
    count = "" if e.batches is None else f", {plural(e.batches, 'batch')}"
    return "epoch", f"epoch {e.epoch} started{count}, {plural(e.num_workers, 'worker')}"


def _epoch_ended(e: EpochEnded) -> Described:
    return "epoch", f"epoch {e.epoch} ended after {plural(e.batches, 'batch')}: {e.reason}"


def _loop_stopped(e: LoopStopped) -> Described:
    how = "was interrupted" if e.interrupted else "stopped"
    return "error", f"the loop {how} at batch {e.index}: {clean(e.error)}"


def _batch_failed(e: BatchFailed) -> Described:
    where = "this process" if e.worker < 0 else f"worker {e.worker}"
    return "error", f"batch {e.index} failed in {where}, {e.place}: {clean(e.error)}"


def _sample_failed(e: SampleFailed) -> Described:
    sample = "" if e.sample is None else f"sample {clean(e.sample, 40)} of "
    return "error", f"{sample}batch {e.index} was {e.done}: {clean(e.error)}"


def _supervisor_failed(e: SupervisorFailed) -> Described:
    return "error", f"the thread that supervises the workers failed and went on: {clean(e.error)}"


def _setting_tried(e: SettingTried) -> Described:
    window = "" if e.prefetch_factor is None else f", prefetch_factor={e.prefetch_factor}"
    kind = f', workers="{e.workers}"' if e.workers else ""
    what = f"num_workers={e.num_workers}{window}{kind}"
    return "command", f"tried {what}: {number(e.rate)} batches/s, {'kept' if e.kept else 'reverted'}"


_DESCRIBE: dict[type, Callable[[Any], Described]] = {
    BatchRecord: lambda e: ("epoch", f"batch {e.index} delivered"),
    WorkerStarted: lambda e: ("worker", f"worker {e.worker} started, pid {e.pid}"),
    WorkerReady: lambda e: ("worker", f"worker {e.worker} ready after {duration(e.startup_ns / 1e9)}"),
    WorkerLeaving: lambda e: ("worker", f"worker {e.worker} (pid {e.pid}) leaves after its current sample"),
    WorkerDied: _worker_died,
    WorkerRestarted: _worker_restarted,
    EpochStarted: _epoch_started,
    EpochEnded: _epoch_ended,
    LoopStopped: _loop_stopped,
    BatchFailed: _batch_failed,
    SampleFailed: _sample_failed,
    WorkersResized: lambda e: ("command", f"number of workers changed from {e.before} to {e.after}"),
    SettingTried: _setting_tried,
    LoaderPaused: lambda _: ("command", "paused"),
    LoaderResumed: lambda _: ("command", "resumed"),
    DatasetReloaded: lambda _: ("command", "dataset reloaded"),
    SupervisorFailed: _supervisor_failed,
    LoaderClosed: lambda _: ("epoch", "loader closed"),
}
