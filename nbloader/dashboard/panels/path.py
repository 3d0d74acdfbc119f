"""The path of a batch through the loader, drawn as boxes that contain numbered batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from nbloader._util.format import age, clean, duration, number, percent, plural
from nbloader.dashboard.panels.base import Frame, Panel, section
from nbloader.dashboard.panels.workers import look_of, state_word
from nbloader.metrics.ages import age_in

if TYPE_CHECKING:
    from nbloader.metrics.snapshot import Snapshot, WorkerStats

TOKENS = 18
"""Largest number of batches drawn in a box, fewer if their numbers are long. The others are only counted."""
ROWS = 8
"""Up to this many workers have a row each, with their queue. If there are more, each is a cell with its batch."""
CELLS, STATIC_CELLS = 256, 64
"""Largest number of workers that are drawn, in the live form and in the static form."""
CALM = 25.0
"""Below this many batches per second, batches glide from box to box. The eye cannot follow more."""
_DIGITS = 16
"""Number of digits of batch numbers that fit into a worker's row."""
_FULL = 0.75
SHORT_WAIT_S, SHORT_WAITS = 0.25, 0.1
"""A wait of the loop raises no alarm if it is shorter than this (seconds) and the loop waits less than this share."""

Mark = Literal["", "empty", "full", "waiting", "stuck"]


@dataclass(frozen=True, slots=True)
class Box:
    """One station of the path."""

    id: str
    title: str
    tokens: Sequence[int] = ()
    """Numbers of the batches that are drawn in the box."""
    more: int = 0
    """Number of batches in the box that are not drawn."""
    note: str = ""
    mark: Mark = ""
    """How the box is highlighted; `alarm` gives the reason."""
    alarm: str = ""


@dataclass(frozen=True, slots=True)
class WorkerCell:
    """A worker in the box `workers`."""

    id: int
    state: str
    look: str
    """CSS class of the state."""
    tokens: Sequence[int]
    """Its current batch, then its queue."""
    more: int


@dataclass(frozen=True, slots=True)
class PathDescription:
    """Description of the path, which both the live and the static form draw."""

    boxes: tuple[Box, ...]
    """The boxes in the order of the path."""
    workers: tuple[WorkerCell, ...] = ()
    compact: bool = False
    """Whether workers are drawn as a grid of cells."""
    wanted: int | None = None
    """The batch that the loop is waiting for."""
    animate: bool = False
    """Whether batches are animated, because they are slow enough to follow."""


class Path(Panel):
    """The path of a batch through the loader."""

    name = "path"
    title = "Path of a batch"

    def payload(self, frame: Frame) -> dict[str, Any]:
        """Return a `PathDescription` as a dict."""
        return dataclasses.asdict(describe(frame.snapshot))

    def html(self, payload: dict[str, Any]) -> str:
        """Return the same boxes as the live view, without animation."""
        boxes = "".join(_box_html(box, payload) for box in payload["boxes"])
        return section(self.title, f'<div class="nbl-path">{boxes}</div>')


def describe(s: Snapshot) -> PathDescription:
    """Describe where every batch is."""
    ready = [m.number for m in s.made if m.in_order and m.number not in s.begun]
    early = sorted(m.number for m in s.made if not m.in_order)
    sampler = _box("sampler", "Sampler", s.asked, note=_remaining(s))
    animate = round(s.batches_per_second) < CALM
    if not s.workers:
        boxes = (sampler, _in_process(s), *_device(s), _loop(s))
        return PathDescription(boxes, wanted=s.waiting_for, animate=animate)
    compact = len(s.workers) > ROWS
    return PathDescription(
        boxes=(sampler, _workers(s), *_transport(s), _reorder(s, early), _ready(s, ready), *_device(s), _loop(s)),
        workers=tuple(_worker(w, s, compact=compact) for w in s.workers[:CELLS]),
        compact=compact,
        wanted=s.waiting_for,
        animate=animate,
    )


def _box(
    name: str, title: str, batches: Sequence[int] = (), *, count: int | None = None, note: str = "", mark: Mark = "",
    alarm: str = "",
) -> Box:  # fmt: skip
    tokens = batches[: TOKENS * 3 // max(3, len(str(max(batches, default=0))))]
    more = (len(batches) if count is None else max(count, len(batches))) - len(tokens)
    return Box(name, title, tokens, more, note, mark, alarm)


def _remaining(s: Snapshot) -> str:
    if s.epoch < 0 or s.batches_total is None:
        return ""
    outside = s.in_flight + s.reordering + s.ready
    return f"{max(0, s.batches_total - s.batches_done - outside):,} remaining"


def _workers(s: Snapshot) -> Box:
    title, note = plural(len(s.workers), "worker"), f"{s.in_flight} in flight"
    stuck = [w.worker for w in s.workers if w.stuck]
    if stuck:
        alarm = f"worker {stuck[0]} is stuck" if len(stuck) == 1 else f"{len(stuck)} workers are stuck"
        return _box("workers", title, note=note, mark="stuck", alarm=alarm)
    busy = any(w.batch is not None for w in s.workers)
    # if the buffer is full, workers should be idle
    if s.state == "running" and not busy and not _is_full(s) and _waits_notably(s):
        return _box("workers", title, note=note, mark="empty", alarm="all idle")
    return _box("workers", title, note=note)


def _worker(w: WorkerStats, s: Snapshot, *, compact: bool) -> WorkerCell:
    held = list(w.held)
    current = w.batch is not None and not w.left
    if w.batch is not None and current and w.batch not in held[:1]:
        held = [w.batch, *(n for n in held if n != w.batch)]
    keep = 1 if compact else max(2, min(5, _DIGITS // len(str(max(held, default=0)))))
    more = 0 if compact else max(0, w.queued + current - len(held[:keep]))
    state = state_word(w, s)
    return WorkerCell(w.worker, state, look_of(state), held[:keep], more)


def _transport(s: Snapshot) -> tuple[Box, ...]:
    if any(w.in_process for w in s.workers):  # they share the memory of the loop
        return ()
    running = s.state in ("running", "paused")
    rate = f"{number(s.mb_per_second)} MB/s" if running else ""
    nodes = len({w.node for w in s.workers if w.node})
    if not nodes:
        return (_box("shared", "Shared memory", note=rate),)
    took = next((f"{number(stage.p50)} ms" for stage in s.stages if stage.name == "transfer"), "")
    return (_box("shared", f"From {plural(nodes, 'node')}", note=", ".join(filter(None, (rate, took)))),)


def _reorder(s: Snapshot, early: list[int]) -> Box:
    if not s.reordering:
        return _box("reorder", "Reorder buffer", note="in order")
    missing = s.waiting_for
    if missing is None:
        return _box("reorder", "Reorder buffer", early, count=s.reordering, note=f"{s.reordering} waiting")
    producer = next((w for w in s.workers if w.batch == missing and not w.left), None)
    who = "" if producer is None else f" (worker {producer.worker})"
    text = f"{plural(s.reordering, 'batch')} behind {missing}{who}"
    if producer is not None and producer.stuck:
        return _box("reorder", "Reorder buffer", early, count=s.reordering, mark="waiting", alarm=text)
    return _box("reorder", "Reorder buffer", early, count=s.reordering, note=text)  # as intended, so no alarm


def _ready(s: Snapshot, ready: list[int]) -> Box:
    note = f"window of {s.window}"
    count = s.ready - len(s.begun)
    if s.state == "running" and _waits_notably(s) and not s.ready:
        return _box("ready", "Ready", note=note, mark="empty", alarm="starved: no batch is ready")
    if s.state == "running" and _is_full(s):
        slower = _slowest_after(s)
        alarm = f"full: {slower} is slower" if slower else "full at this moment"
        return _box("ready", "Ready", ready, count=count, note=note, mark="full", alarm=alarm)
    return _box("ready", "Ready", ready, count=count, note=note)


def _waits_notably(s: Snapshot) -> bool:
    """Whether the loop waits now, and not just for a moment between two batches of a loop that hardly waits."""
    usually = bool(s.rate_seconds) and s.wait_share >= SHORT_WAITS  # not measured before the first batch
    return s.waiting is not None and (s.waiting >= SHORT_WAIT_S or usually)


def _slowest_after(s: Snapshot) -> str:
    """What takes longer than production; "" if a full buffer does not tell, because the loop waits at other moments."""
    if s.cause != "upload":
        return "your loop" if s.wait_share < SHORT_WAITS else ""
    pins_longer = s.uploads is not None and s.uploads.pin > (s.uploads.copy or 0.0)
    return "pinning" if pins_longer else "the upload"


def _is_full(s: Snapshot) -> bool:
    starved = s.waiting is not None and s.cause != "upload"  # only for a moment, until the loop wakes up
    return bool(s.window) and s.ready >= max(1, _FULL * s.window) and not starved


def _device(s: Snapshot) -> tuple[Box, ...]:
    """The boxes between the buffer and the loop: pinning and upload, if they are in use."""
    pinned, sent = "pinned memory", clean(s.device, 24)
    if s.uploads is not None:
        pinned = "in place" if s.uploads.ways[0].memory == "registered" else f"copy, {duration(s.uploads.pin / 1e3)}"
        if s.uploads.copy is not None:
            sent += f", {duration(s.uploads.copy / 1e3)}"
        if s.uploads.gb_per_second is not None:
            sent += f", {number(s.uploads.gb_per_second)} GB/s"
        if s.uploads.hidden is not None:
            sent += f", {percent(s.uploads.hidden)} hidden"
    pin = (_box("pin", "Pin", note=pinned),) if s.pinned else ()
    return (*pin, _box("upload", "Upload", s.begun, note=sent)) if s.device else pin


def _in_process(s: Snapshot) -> Box:
    current = [] if s.waiting_for is None else [s.waiting_for]
    return _box("inprocess", "This process", current, note="fetches and collates between two steps of the loop")


def _loop(s: Snapshot) -> Box:
    if s.waiting is not None and s.state != "paused":
        what = "" if s.waiting_for is None else f" for {s.waiting_for}"
        text = f"waiting{what}: {_unbroken(age_in(s, s.waiting))}"
        alarming = _waits_notably(s)
        return _box(
            "loop", "Your loop", note="" if alarming else text, mark="waiting" if alarming else "",
            alarm=text if alarming else "",
        )  # fmt: skip
    if s.at is None:
        return _box("loop", "Your loop", note="paused" if s.state == "paused" else "")
    return _box("loop", "Your loop", [s.at], note="" if s.at_for is None else f"working: {_unbroken(age(s.at_for))}")


def _unbroken(text: str) -> str:
    """Keep a text on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


# --- the static form


def _box_html(box: dict[str, Any], path: dict[str, Any]) -> str:
    classes = " ".join(("nbl-box", f"nbl-box-{box['id']}", *([f"nbl-{box['mark']}"] if box["mark"] else [])))
    inside = _workers_html(path) if box["id"] == "workers" else _tokens_html(box, path["wanted"])
    return (
        f'<div class="{classes}"><div class="nbl-box-title">{escape(box["title"])}</div>{inside}'
        f'<div class="nbl-note">{escape(box["note"])}</div><div class="nbl-alarm">{escape(box["alarm"])}</div></div>'
    )


def _workers_html(path: dict[str, Any]) -> str:
    cells = "".join(
        f'<div class="nbl-worker {w["look"]}"><i>{w["id"]}</i>{_tokens_html(w, path["wanted"])}</div>'
        for w in path["workers"][:STATIC_CELLS]
    )
    return f'<div class="nbl-group{" nbl-cells" if path["compact"] else ""}">{cells}</div>'


def _tokens_html(box: dict[str, Any], wanted: int | None) -> str:
    tokens = "".join(f'<span class="nbl-token{" nbl-wanted" if n == wanted else ""}">{n}</span>' for n in box["tokens"])
    more = f'<span class="nbl-more">+{box["more"]}</span>' if box["more"] else ""
    return f'<span class="nbl-tokens">{tokens}{more}</span>'
