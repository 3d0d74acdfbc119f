"""The path of a batch as boxes with numbered batches in them: what the live view and the picture draw. Pure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nbloader._util.format import clean, duration, number, percent, plural
from nbloader.report.render import state_of

if TYPE_CHECKING:
    from nbloader.metrics.snapshot import Snapshot, WorkerStats

TOKENS = 18
"""Batches drawn in one box, fewer where their numbers are long; of more only the number is told."""
ROWS = 8
"""Up to so many workers get a row each with their queue; of more each is a cell with the batch it is at."""
CELLS = 256
_DIGITS = 16
"""Of numbers of batches that have room in a worker's row."""
_FULL = 0.75


def path_of(s: Snapshot) -> dict[str, Any]:
    """Give the boxes, in the order of the path.

    Returns:
        `boxes`: each with an `id`, a `title`, `tokens` (numbers of batches), `more` (batches that have no token), a
        `note`, a `mark` ("", "empty", "full", "waits" or "stuck") with its words in `alarm`, and `off` where batches do
        not pass it. `crew`: the workers, which stand in the box "workers". `wanted`: the batch that the loop waits for.
    """
    ready = [m.number for m in s.made if m.in_order and m.number not in s.begun]
    early = sorted(m.number for m in s.made if not m.in_order)
    sampler = _box("sampler", "Sampler", s.asked, note=_left(s))
    if not s.workers:
        return {"boxes": [sampler, _here(s), *_after(s), _loop(s)], "crew": [], "wanted": s.waiting_for}
    return {
        "boxes": [
            sampler,
            _workers(s),
            *_transport(s),
            _reorder(s, early),
            _ready(s, ready),
            *_after(s),
            _loop(s),
        ],
        "crew": [_member(w, compact=len(s.workers) > ROWS) for w in s.workers[:CELLS]],
        "wanted": s.waiting_for,
    }


def _box(
    name: str, title: str, tokens: Any = (), *, count: int | None = None, note: str = "", mark: str = "",
    alarm: str = "", off: bool = False,
) -> dict[str, Any]:  # fmt: skip
    shown = list(tokens)[: TOKENS * 3 // max(3, len(str(max(tokens, default=0))))]
    more = (len(tokens) if count is None else max(count, len(tokens))) - len(shown)
    return {
        "id": name, "title": title, "tokens": shown, "more": more, "note": note, "mark": mark, "alarm": alarm,
        "off": off,
    }  # fmt: skip


def _left(s: Snapshot) -> str:
    if s.epoch < 0 or s.batches_total is None:
        return ""
    outside = s.in_flight + s.reordering + s.ready
    return f"{max(0, s.batches_total - s.batches_done - outside):,} to come"


def _workers(s: Snapshot) -> dict[str, Any]:
    stuck = [w.worker for w in s.workers if w.stuck]
    note = f"{s.in_flight} of {s.window} in flight"
    if stuck:
        who = f"worker {stuck[0]} is stuck" if len(stuck) == 1 else f"{len(stuck)} workers are stuck"
        return _box("workers", plural(len(s.workers), "worker"), note=note, mark="stuck", alarm=who)
    busy = sum(w.batch is not None for w in s.workers)
    if s.state == "running" and not busy and not _is_full(s):  # those of a full loader rest, as they should
        return _box("workers", plural(len(s.workers), "worker"), note=note, mark="empty", alarm="all idle")
    return _box("workers", plural(len(s.workers), "worker"), note=note)


def _member(w: WorkerStats, *, compact: bool) -> dict[str, Any]:
    state = "stuck" if w.stuck else "unwanted" if w.left else state_of(w)
    held = list(w.held)
    if w.batch is not None and not w.left and w.batch not in held[:1]:
        held = [w.batch, *(n for n in held if n != w.batch)]
    keep = 1 if compact else max(2, min(5, _DIGITS // len(str(max(held, default=0)))))
    at = w.batch is not None and not w.left
    more = 0 if compact else max(0, w.queued + at - len(held[:keep]))
    return {"id": w.worker, "state": state, "tokens": held[:keep], "more": more}


def _transport(s: Snapshot) -> list[dict[str, Any]]:
    here = os.getpid()
    if any(w.pid == here for w in s.workers):  # what threads make is where the loop is
        return []
    return [_box("shared", "Shared memory", note=f"{number(s.mb_per_second)} MB/s" if s.epoch >= 0 else "")]


def _reorder(s: Snapshot, early: list[int]) -> dict[str, Any]:
    if not s.reordering:
        return _box("reorder", "Reorder buffer", note="in order")
    missing = s.waiting_for
    if missing is None:
        return _box("reorder", "Reorder buffer", early, count=s.reordering, note=f"{s.reordering} wait")
    who = next((f" (worker {w.worker})" for w in s.workers if w.batch == missing and not w.left), "")
    return _box(
        "reorder", "Reorder buffer", early, count=s.reordering, mark="waits",
        alarm=f"{plural(s.reordering, 'batch')} behind {missing}{who}",
    )  # fmt: skip


def _ready(s: Snapshot, ready: list[int]) -> dict[str, Any]:
    note = f"{s.ready} of {s.window}"
    count = s.ready - len(s.begun)
    slower = "loop" if s.cause != "upload" else "pinning" if _pins_longer(s) else "upload"
    if s.state == "running" and s.waiting is not None and not s.ready:
        return _box("ready", "Ready", note=note, mark="empty", alarm="starved: nothing is ready")
    if s.state == "running" and _is_full(s):
        return _box("ready", "Ready", ready, count=count, note=note, mark="full", alarm=f"full: the {slower} is slower")
    return _box("ready", "Ready", ready, count=count, note=note)


def _pins_longer(s: Snapshot) -> bool:
    return s.uploads is not None and s.uploads.pin > (s.uploads.copy or 0.0)


def _is_full(s: Snapshot) -> bool:
    waits = s.waiting is not None and s.cause != "upload"  # for a moment only: it is woken
    return bool(s.window) and s.ready >= max(1, _FULL * s.window) and not waits


def _after(s: Snapshot) -> list[dict[str, Any]]:
    pinned, sent = "pinned memory", clean(s.device, 24)
    if s.uploads is not None:
        pinned = "in place" if s.uploads.ways[0][0] == "registered" else f"copy, {duration(s.uploads.pin / 1e3)}"
        if s.uploads.copy is not None:
            sent += f", {duration(s.uploads.copy / 1e3)}"
        if s.uploads.gb_per_second is not None:
            sent += f", {number(s.uploads.gb_per_second)} GB/s"
        if s.uploads.hidden is not None:
            sent += f", {percent(s.uploads.hidden)} hidden"
    return [
        _box("pin", "Pin", note=pinned if s.pinned else "off", off=not s.pinned),
        _box("upload", "Upload", s.begun, note=sent or "off", off=not s.device),
    ]


def _here(s: Snapshot) -> dict[str, Any]:
    at = [] if s.waiting_for is None else [s.waiting_for]
    return _box("here", "This process", at, note="fetch and collate, between two steps of the loop")


def _loop(s: Snapshot) -> dict[str, Any]:
    if s.waiting is not None and s.state != "paused":
        what = "" if s.waiting_for is None else f" for {s.waiting_for}"
        return _box("loop", "Your loop", mark="waits", alarm=f"waits{what}: {duration(s.waiting)}")
    if s.at is None:
        return _box("loop", "Your loop", note="paused" if s.state == "paused" else "")
    worked = "" if s.at_for is None else f"works: {duration(s.at_for)}"
    return _box("loop", "Your loop", [s.at], note=worked)
