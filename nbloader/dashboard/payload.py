"""What the dashboard says, in words and numbers: snapshots and points as plain JSON values.

The browser and the static picture show the same strings, made here; neither knows what a snapshot is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nbloader.stats import STAGES
from nbloader.text import clean, duration, megabytes, number, percent, plural, tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbloader.stats import Point, Snapshot, WorkerStats

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

WORKER_COLUMNS = ("Worker", "State", "Now at", "Queued", "Made", "Rate", "CPU", "Memory", "Restarts", "Last exit")
"""Heads of the table of workers; the buttons stand in a column after these."""

_INDEX_LIMIT = 40
_NONE = "\N{EN DASH}"


def view_of(snapshot: Snapshot) -> dict[str, Any]:
    """Give all that the dashboard writes for a snapshot, as JSON values.

    Texts that come from the dataset (indices, errors) are cut to a bounded length; they are not escaped.
    """
    return {
        "state": snapshot.state,
        "verdict": clean(snapshot.verdict, 300),
        "progress": _progress(snapshot),
        "tiles": _tiles(snapshot),
        "stages": {stage.name: number(stage.p50) for stage in snapshot.stages},
        "workers": [_worker(w) for w in snapshot.workers],
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
    return {"share": share, "text": text}


def _tiles(snapshot: Snapshot) -> list[dict[str, str]]:
    samples, megabytes = number(snapshot.samples_per_second), number(snapshot.mb_per_second)
    running = snapshot.state in ("starting", "running", "paused")
    left = duration(snapshot.eta) if running and snapshot.eta is not None else _NONE
    if snapshot.waiting is None:
        waiting = f"{percent(snapshot.wait_share_epoch)} over the epoch"
    else:
        batch = _NONE if snapshot.waiting_for is None else snapshot.waiting_for
        waiting = f"now for batch {batch}: {duration(snapshot.waiting)}"
    return [
        _tile(
            "Throughput", number(snapshot.batches_per_second), "batches/s", f"{samples} samples/s · {megabytes} MB/s"
        ),
        _tile("Time left", left, "", f"{duration(snapshot.elapsed)} {'so far' if running else 'for the epoch'}"),
        _tile("Your loop waits", percent(snapshot.wait_share), "of its time", waiting),
        _tile(
            "In flight",
            str(snapshot.in_flight),
            f"of {snapshot.window}",
            f"{snapshot.reordering} to reorder · {snapshot.ready} ready",
        ),
    ]


def _tile(label: str, value: str, unit: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "unit": unit, "note": note}


def _worker(worker: WorkerStats) -> dict[str, Any]:
    state = "stuck" if worker.stuck else worker.state
    if state == "dead" and not worker.pid and not worker.exit_reason:
        state = "not started"
    at = _NONE
    if worker.batch is not None:
        at = f"batch {worker.batch}"
        if worker.sample is not None:
            at += f", sample {clean(worker.sample, _INDEX_LIMIT)}"
        if worker.batch_age is not None:
            at += f", {duration(worker.batch_age)}"
    return {
        "id": worker.worker,
        "incarnation": f"{worker.pid}/{worker.restarts}",
        "state": state,
        "cells": [
            f"{worker.worker} · pid {worker.pid}" if worker.pid else str(worker.worker),
            state,
            at,
            str(worker.queued),
            f"{worker.batches:,}" + (f" ({worker.errors:,} failed)" if worker.errors else ""),
            f"{number(worker.batches_per_second)}/s",
            _NONE if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %",
            _NONE if worker.rss is None else megabytes(round(worker.rss, -6)),
            str(worker.restarts),
            clean(worker.exit_reason) or _NONE,
        ],
        "output": "\n".join(tail(worker.stderr_tail, 300)),
    }


def _notes(snapshot: Snapshot) -> list[str]:
    notes = []
    if snapshot.slowest:
        slow = snapshot.slowest[0]
        notes.append(f"slowest sample: {clean(slow.index, _INDEX_LIMIT)}, {duration(slow.seconds)}")
    if snapshot.cpu_share is not None:
        notes.append(f"fetching computes {percent(snapshot.cpu_share)} of its time")
    for count, noun, what in (
        (snapshot.errors, "batch", "failed"),
        (snapshot.deaths, "worker", "died"),
        (snapshot.restarts, "worker", "replaced"),
    ):
        if count:
            notes.append(f"{plural(count, noun)} {what}")
    if not snapshot.workers and snapshot.state != "closed":
        notes.append("no worker processes: batches are made in the notebook's own process")
    return notes
