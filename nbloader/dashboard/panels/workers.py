"""The table of workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from nbloader._util.format import age, clean, megabytes, number, percent, plural, tail
from nbloader.dashboard.panels.base import Frame, Panel, Reply, section
from nbloader.dashboard.panels.controls import incarnation
from nbloader.report.render import previous_process, state_of

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl
    from nbloader.metrics.snapshot import Snapshot, WorkerStats

COLUMNS = {
    "Worker": "Id of the worker and its process. Workers on other machines are grouped by machine",
    "State": "What it does now",
    "Current batch": "The batch that it processes, the sample of it, and for how long",
    "Queued": "Batches that it was assigned and has not begun",
    "Produced": "Batches that it has produced",
    "Rate": "Batches that it produces per second while an epoch runs, over the same time as the throughput above",
    "Errors": "Batches in which it raised an exception",
    "CPU": "Share of one core that its process has used since the update before",
    "Memory": "Memory of its process alone + memory that it shares with others. The sum, until both are known of all",
    "Restarts": "How often it was replaced",
}
"""Headings and their tooltips. The live view adds a column of buttons."""
STATIC_ROWS = 64
"""Largest number of workers in the static form."""
STACK_LINES = 200
_INDEX_LIMIT = 40
_NODE_LIMIT = 60
_STDERR_LIMIT = 600
_NONE = "\N{EN DASH}"
_BUSY = ("fetching", "collating", "sending")


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    order: float | str
    """Value by which the column is sorted."""


class Workers(Panel):
    """A table with one row per worker. Rows are sent as news: only the rows that changed."""

    name = "workers"
    title = "Workers"

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, Any]] = {}

    def payload(self, frame: Frame) -> dict[str, Any]:
        """Return everything except the rows."""
        s = frame.snapshot
        return {
            "columns": [*COLUMNS.items()],
            "count": len(s.workers),
            "errors": s.errors,
            "deaths": s.deaths,
            **({"nodes": nodes} if (nodes := _nodes(s)) else {}),
            "notes": _notes(s),
        }

    def news(self, frame: Frame) -> list[Any]:
        """Return the rows that are new or changed."""
        before = self._rows
        self._rows = {w.worker: _row(w, frame.snapshot) for w in frame.snapshot.workers}
        return [row for worker, row in self._rows.items() if before.get(worker) != row]

    def history(self) -> list[Any]:
        """Return all rows."""
        return list(self._rows.values())

    def respond(self, request: Mapping[str, Any], loader: LoaderControl) -> Reply | None:
        """Return the stack of a worker."""
        if request.get("name") != "stack":
            return None
        worker = request.get("worker")
        try:
            text = loader.stack(int(worker))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - whatever the reason that there is no stack, it is shown in its place
            text = str(error)
        lines = [clean(line, 300) for line in text.splitlines()[:STACK_LINES]]
        return Reply({"worker": worker, "stack": "\n".join(lines)})

    def html(self, payload: dict[str, Any]) -> str:
        """Return the table without buttons."""
        rows = []
        node = ""
        for row in sorted(self._rows.values(), key=lambda row: (row.get("node", ""), row["id"]))[:STATIC_ROWS]:
            if row.get("node", "") != node:
                node = row["node"]
                text = f"{escape(node)} <span>{escape(payload['nodes'].get(node, ''))}</span>"
                rows.append(f'<tr class="nbl-node"><th scope="rowgroup" colspan="{len(COLUMNS)}">{text}</th></tr>')
            first, state, *rest = (escape(text) for text in row["cells"])
            head = f'<th scope="row">{first}</th><td class="nbl-state">{state}</td>'
            rows.append(f'<tr class="{row["look"]}">{head}{"".join(f"<td>{text}</td>" for text in rest)}</tr>')
        if len(self._rows) > STATIC_ROWS:
            rows.append(f"<tr><td>… {len(self._rows) - STATIC_ROWS} more</td></tr>")
        head = "".join(f'<th scope="col" title="{escape(tip)}">{name}</th>' for name, tip in COLUMNS.items())
        table = (
            f'<div class="nbl-scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        )
        notes = f'<p class="nbl-notes">{escape(" · ".join(payload["notes"]))}</p>'
        return section(self.title, table) + notes if rows else notes


def state_word(w: WorkerStats, s: Snapshot) -> str:
    """Name a worker's state, usually in one word."""
    return "stuck" if w.stuck else "discarding" if w.left else state_of(w, s)


def look_of(state: str) -> str:
    """Return the CSS class of a state."""
    return "nbl-busy" if state in _BUSY else f"nbl-{state.replace(' ', '-')}"


def _row(w: WorkerStats, s: Snapshot) -> dict[str, Any]:
    state = state_word(w, s)
    cells = _cells(w, state, running=s.state in ("running", "paused"), parts=_memory_parts_known(s))
    row = {
        "id": w.worker,
        "incarnation": incarnation(w.pid, w.restarts),
        "state": state,
        "look": look_of(state),
        "stuck": w.stuck,
        "cells": [cell.text for cell in cells],
        "order": [cell.order for cell in cells],
    }
    if w.node:
        row["node"] = clean(w.node, _NODE_LIMIT)
    if w.exit_reason:
        row["exit"] = previous_process(w)
    if w.stderr_tail:
        row["output"] = "\n".join(tail(w.stderr_tail, _STDERR_LIMIT))
    return row


def _nodes(s: Snapshot) -> dict[str, str]:
    """A summary of each other machine that has workers."""
    found: dict[str, list[WorkerStats]] = {}
    for w in s.workers:
        if w.node:
            found.setdefault(clean(w.node, _NODE_LIMIT), []).append(w)
    running = s.state in ("running", "paused")
    return {
        node: " · ".join(
            [plural(len(own), "worker"), f"{sum(w.batches for w in own):,} produced"]
            + ([f"{number(sum(w.batches_per_second for w in own))}/s"] if running else [])
        )
        for node, own in sorted(found.items())
    }


def _memory_parts_known(s: Snapshot) -> bool:
    """Whether private and shared memory of all workers were measured: one is measured at a time."""
    return all(w.private is not None and w.shared is not None for w in s.workers if w.rss is not None)


def _cells(w: WorkerStats, state: str, *, running: bool, parts: bool) -> tuple[_Cell, ...]:
    """The cells of a row, in the order of `COLUMNS`."""
    memory = w.private if parts else w.rss
    return (
        _Cell(_name(w), w.worker),
        _Cell(state, state),
        _Cell(_current(w), -1 if w.batch_age is None else round(w.batch_age, 3)),
        _Cell(str(w.queued), w.queued),
        _Cell(f"{w.batches:,}", w.batches),
        _Cell(f"{number(w.batches_per_second)}/s" if running else _NONE, round(w.batches_per_second, 3)),
        _Cell(f"{w.errors:,}" if w.errors else _NONE, w.errors),
        _Cell(_NONE if w.cpu_percent is None else f"{w.cpu_percent:.0f}%", round(w.cpu_percent or 0)),
        _Cell(_memory(w, parts=parts), -1 if memory is None else round(memory, -6)),
        _Cell(str(w.restarts), w.restarts),
    )


def _name(w: WorkerStats) -> str:
    if w.in_process:
        return f"{w.worker} · {w.kind}"
    return f"{w.worker} · pid {w.pid}" if w.pid else str(w.worker)


def _current(w: WorkerStats) -> str:
    if w.batch is None:
        return _NONE
    lasts = "" if w.batch_age is None else f", {age(w.batch_age)}"
    if w.left:
        return f"of an iterator that has ended{lasts}"
    sample = "" if w.sample is None else f", sample {clean(w.sample, _INDEX_LIMIT)}"
    return f"{w.batch}{sample}{lasts}"


def _memory(w: WorkerStats, *, parts: bool) -> str:
    """Private and shared memory; the resident size if these are unknown of a worker, so that all can be compared."""
    if not parts or w.private is None or w.shared is None:
        return _NONE if w.rss is None else megabytes(round(w.rss, -6))
    return f"{round(w.private / 1e6):,} + {round(w.shared / 1e6):,} MB"


def _notes(s: Snapshot) -> list[str]:
    notes = []
    if s.cpu_share is not None:
        notes.append(f"fetching the latest batches was {percent(s.cpu_share)} CPU time")
    for count, noun, what in (
        (s.errors, "batch", "failed"),
        (s.skipped, "sample", "skipped"),
        (s.replaced, "sample", "replaced"),
        (s.retried, "batch", "fetched again, sample by sample"),
        (s.deaths, "worker", "died"),
        (s.restarts, "worker", "restarted"),
        (s.supervisor_failures, "failure", "of the supervisor"),
    ):
        if count:
            notes.append(f"{plural(count, noun)} {what}")
    if not s.workers and s.state != "closed":
        notes.append("no workers: batches are produced in the notebook's own process")
    return notes
