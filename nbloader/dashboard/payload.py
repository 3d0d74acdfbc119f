"""What the dashboard says, in words and numbers: snapshots and points as plain JSON values.

The browser and the static picture show the same strings, made here; neither knows what a snapshot is.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from nbloader._util.format import clean, duration, megabytes, number, percent, plural, tail
from nbloader.dashboard.path import path_of
from nbloader.metrics.snapshot import STAGES
from nbloader.report.render import state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbloader.metrics.snapshot import Point, Snapshot, WorkerStats

Columns = dict[str, list[Any]]
"""Name of a column -> its values; all of one length."""

COLUMNS = (
    "time",
    "in_flight",
    "reordering",
    "ready",
    "batches_per_second",
    "samples_per_second",
    "mb_per_second",
    "wait_share",
    *(f"stage_{name}" for name in STAGES),
)
"""Columns of the plots over time. `time` in seconds, `wait_share` from 0 to 1, stages in milliseconds."""
TIPS = tuple(f"tip_{name}" for name in STAGES)
"""Further columns, of text: p50, p95 and p99 of a stage at that time."""

WORKER_COLUMNS = (
    "Worker", "State", "Now at", "Queued", "Made", "Rate", "Errors", "CPU", "Own + shared", "Restarts",
)  # fmt: skip
"""Heads of the table of workers; the buttons stand in a column after these."""

_INDEX_LIMIT = 40
_ERROR_LIMIT = 160
_COPY_LIMIT = 200
_STDERR_LIMIT = 600
_FAILED = 20
_NONE = "\N{EN DASH}"


def view_of(snapshot: Snapshot) -> dict[str, Any]:
    """Give all that the dashboard writes for a snapshot, as JSON values.

    Texts that come from the dataset (indices, errors) are cut to a bounded length; they are not escaped.
    """
    here = os.getpid()
    return {
        "state": snapshot.state,
        "cause": snapshot.cause,
        "verdict": clean(snapshot.verdict, 300),
        "rate": round(snapshot.batches_per_second, 1),
        "progress": _progress(snapshot),
        "tiles": _tiles(snapshot),
        "stages": {s.name: [number(s.p50), _spread(s.p50, s.p95, s.p99)] for s in snapshot.stages},
        "placed": bool(snapshot.pinned or snapshot.device),
        "path": path_of(snapshot),
        "loop": _loop(snapshot),
        "workers": [_worker(w, here) for w in snapshot.workers],
        "samples": _samples(snapshot),
        "makeTimes": _make_times(snapshot),
        "deaths": snapshot.deaths,
        "notes": _notes(snapshot),
    }


def columns_of(points: Sequence[Point]) -> Columns:
    """Give points as columns, one list per name in `COLUMNS` and `TIPS`. Values that are not finite become None."""
    rows = [
        (p.time, p.in_flight, p.reordering, p.ready, p.batches_per_second, p.samples_per_second, p.mb_per_second,
         p.wait_share, *p.stages)
        for p in points
    ]  # fmt: skip
    values = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    columns: Columns = {
        name: [round(v, 4) if math.isfinite(v) else None for v in column]
        for name, column in zip(COLUMNS, values, strict=True)
    }
    for i, name in enumerate(TIPS):
        columns[name] = [" / ".join(map(number, p.spread[i])) if p.spread else "" for p in points]
    return columns


def _spread(*percentiles: float) -> str:
    return "p50 {} ms, p95 {} ms, p99 {} ms over the last 200 batches".format(*map(number, percentiles))


def _progress(snapshot: Snapshot) -> dict[str, Any]:
    done, total = snapshot.batches_done, snapshot.batches_total
    share = None
    if snapshot.epoch < 0:
        text = "no epoch yet"
    elif total:
        share = round(done / total, 4)
        text = f"epoch {snapshot.epoch} · batch {done:,} of {total:,} · {percent(share)}"
    else:
        text = f"epoch {snapshot.epoch} · batch {done:,}"
    if snapshot.iterators > 1:
        text += f" · newest of {snapshot.iterators} iterators"
    return {"share": share, "text": text}


def _tiles(snapshot: Snapshot) -> list[dict[str, str]]:
    samples, mb = number(snapshot.samples_per_second), number(snapshot.mb_per_second)
    running = snapshot.state in ("starting", "running", "paused")
    if snapshot.epoch < 0:
        return [_tile(label, _NONE, "", "") for label in ("Throughput", "Time left", "Your loop waits", "In flight")]
    took = duration(snapshot.elapsed)
    if running:
        left = _NONE if snapshot.eta is None else duration(snapshot.eta)
        time = _tile("Time left", left, "", f"{took} so far")
    else:
        time = _tile("The epoch took", took, "", f"{number(snapshot.epoch_rate)} batches/s over all of it")
    if snapshot.waiting is not None and snapshot.state == "paused":
        waiting = "paused" if snapshot.waiting_for is None else f"paused before batch {snapshot.waiting_for}"
    elif snapshot.waiting is None:
        waiting = f"{percent(snapshot.wait_share_epoch)} over the epoch"
    else:
        batch = _NONE if snapshot.waiting_for is None else snapshot.waiting_for
        waiting = f"now for batch {batch}: {duration(snapshot.waiting)}"
    return [
        _tile("Throughput", number(snapshot.batches_per_second), "batches/s", f"{samples} samples/s · {mb} MB/s"),
        time,
        _tile("Your loop waits", percent(snapshot.wait_share), "of its time", waiting),
        _ahead(snapshot),
    ]


def _ahead(snapshot: Snapshot) -> dict[str, str]:
    if not snapshot.workers:
        make = sum(stage.mean for stage in snapshot.stages if stage.name in ("fetch", "collate"))
        return _tile("Making a batch takes", duration(make / 1e3) if make else _NONE, "", "while your loop waits")
    waits = f"{snapshot.reordering} to reorder · {snapshot.ready} ready"
    return _tile("In flight", str(snapshot.in_flight), f"of {snapshot.window}", waits)


def _tile(label: str, value: str, unit: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "unit": unit, "note": note}


def _worker(worker: WorkerStats, here: int) -> dict[str, Any]:
    state = "stuck" if worker.stuck else "unwanted" if worker.left else state_of(worker)
    at = _NONE
    if worker.batch is not None:
        at = f"batch {worker.batch}"
        if worker.left:
            at = "a batch that nobody wants any more"
        elif worker.sample is not None:
            at += f", sample {clean(worker.sample, _INDEX_LIMIT)}"
        if worker.batch_age is not None:
            at += f", {duration(worker.batch_age)}"
    row = {
        "id": worker.worker,
        "incarnation": f"{worker.pid}/{worker.restarts}",
        "state": state,
        "batch": None if worker.left else worker.batch,
        "age": None if worker.batch_age is None else round(1e3 * worker.batch_age),
        "cells": [
            _name(worker, here),
            state,
            at,
            str(worker.queued),
            f"{worker.batches:,}",
            f"{number(worker.batches_per_second)}/s",
            f"{worker.errors:,}" if worker.errors else _NONE,
            _NONE if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %",
            _memory(worker),
            str(worker.restarts),
        ],
    }
    if worker.exit_reason:
        row["exit"] = clean(worker.exit_reason)
    if worker.stderr_tail:
        row["output"] = "\n".join(tail(worker.stderr_tail, _STDERR_LIMIT))
    return row


def _name(worker: WorkerStats, here: int) -> str:
    if worker.pid == here:
        return f"{worker.worker} · thread"
    return f"{worker.worker} · pid {worker.pid}" if worker.pid else str(worker.worker)


def _memory(worker: WorkerStats) -> str:
    """What is its own, and what it shares with other processes; what is resident where that is not known."""
    if worker.private is None or worker.shared is None:
        return _NONE if worker.rss is None else megabytes(round(worker.rss, -6))
    return f"{round(worker.private / 1e6):,} + {round(worker.shared / 1e6):,} MB"


def _loop(snapshot: Snapshot) -> list[Any] | None:
    """What the loop is at now, for the timeline: "wait" or "step", the batch, for how many ms."""
    if snapshot.state not in ("running", "starting"):
        return None
    if snapshot.waiting is not None:
        return ["wait", snapshot.waiting_for, round(1e3 * snapshot.waiting)]
    if snapshot.at is not None and snapshot.at_for is not None:
        return ["step", snapshot.at, round(1e3 * snapshot.at_for)]
    return None


def _samples(snapshot: Snapshot) -> dict[str, Any]:
    slowest = [
        [clean(x.index, _COPY_LIMIT), duration(x.seconds), f"batch {x.batch} of epoch {x.epoch}", _who(x.worker)]
        for x in snapshot.slowest
    ]
    failed = [
        [clean(x.sample, _COPY_LIMIT), clean(x.error, _ERROR_LIMIT), f"batch {x.index}, {x.done}", _who(x.worker)]
        for x in reversed(snapshot.failed_samples[-_FAILED:])
    ]
    return {"slowest": slowest, "failed": failed, "failures": snapshot.skipped + snapshot.replaced}


def _who(worker: int) -> str:
    return "this process" if worker < 0 else f"worker {worker}"


def _make_times(snapshot: Snapshot) -> dict[str, Any]:
    times = snapshot.make_times
    return {"edges": [number(ms) for ms in times.edges], "counts": list(times.counts)}


def _notes(snapshot: Snapshot) -> list[str]:
    notes = []
    if snapshot.cpu_share is not None:
        notes.append(f"fetching computes {percent(snapshot.cpu_share)} of its time")
    for count, noun, what in (
        (snapshot.errors, "batch", "failed"),
        (snapshot.skipped, "sample", "skipped"),
        (snapshot.replaced, "sample", "replaced"),
        (snapshot.deaths, "worker", "died"),
        (snapshot.restarts, "worker", "restarted"),
    ):
        if count:
            notes.append(f"{plural(count, noun)} {what}")
    if not snapshot.workers and snapshot.state != "closed":
        notes.append("no workers: batches are made in the notebook's own process")
    return notes
