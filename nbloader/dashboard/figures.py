"""Bokeh figures of an epoch that has ended, for `loader.timeline()` and `loader.report()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbloader._util import palette
from nbloader._util.format import clean, duration, megabytes, number, percent, plural
from nbloader.metrics.stage_times import share_of, shown_of
from nbloader.report.slices import KINDS, Slice, lane_order, slices, stalls, waited
from nbloader.report.trace import Trace, first_indices

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class in spite of its name

    from nbloader.events import BatchRecord
    from nbloader.events.pauses import Pauses

LIMIT = 4000
"""Batches that a timeline shows, the last ones: a page with more is slow to move in."""
COLOURS = {
    "fetch": palette.STAGES["fetch"],
    "collate": palette.STAGES["collate"],
    "order": palette.STAGES["reorder"],
    "pin": palette.STAGES["pin"],
    "upload": palette.STAGES["upload"],
    "wait": palette.WAIT,
    "step": palette.STAGES["step"],
}
LABELS = {
    "fetch": "fetch",
    "collate": "collate",
    "order": "made, waits for an earlier batch",
    "pin": "put into pinned memory",
    "upload": "copied to the device",
    "wait": "your loop waits",
    "step": "your loop works",
}
_BODY, _STRIP = (0.12, 0.72), (0.76, 0.92)
"""Where in its lane, from the top, a slice is drawn; waiting batches are a strip below the others."""


def timeline(trace: Trace) -> Figure:
    """Draw what every worker and the loop were at, over time.

    Args:
        trace: An epoch's events; of more than 4,000 batches the last ones are drawn.

    Returns:
        A figure to `bokeh.plotting.show`: the wheel zooms, dragging pans, and a slice that the pointer rests on tells
        its batch and its dataset indices. Lanes without batches are not there.
    """
    from bokeh.models import ColumnDataSource, HoverTool, Range1d
    from bokeh.plotting import figure

    records = trace.batches[-LIMIT:]
    origin = min((r.requested for r in records), default=0)
    cut = list(slices(records, trace.pauses))
    lanes = sorted({s.lane for s in cut}, key=lane_order)
    rows = {lane: i for i, lane in enumerate(lanes)}
    shown = f"the last {LIMIT:,} of {plural(len(trace), 'batch')}" if len(trace) > LIMIT else ""
    fig = figure(
        title=f"Timeline{': ' + shown if shown else ''}",
        height=130 + max(2, len(lanes)) * max(10, min(28, 640 // max(1, len(lanes)))),
        sizing_mode="stretch_width",
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
        active_drag="xpan",
        active_scroll="xwheel_zoom",
        y_range=Range1d(start=max(1, len(lanes)), end=-0.4),
        x_axis_label="seconds since the first batch was asked for",
    )
    for kind in KINDS:
        own = [s for s in cut if s.kind == kind]
        if not own:
            continue
        renderer = fig.quad(
            left="left", right="right", top="top", bottom="bottom", color=COLOURS[kind], line_width=0,
            alpha=0.45 if kind == "order" else 0.9, legend_label=LABELS[kind],
            source=ColumnDataSource(_columns(own, rows, origin)),
        )  # fmt: skip
        tips = [("", "@what"), ("took", "@took"), ("samples", "@indices"), ("slowest", "@slowest")]
        fig.add_tools(HoverTool(renderers=[renderer], tooltips=tips, visible=False))
    _mark_stalls(fig, records, trace.pauses, origin)
    fig.yaxis.ticker = [i + 0.45 for i in range(len(lanes))]
    fig.yaxis.major_label_overrides = {i + 0.45: lane for i, lane in enumerate(lanes)}
    fig.ygrid.grid_line_color = None
    if cut:
        fig.legend.orientation = "horizontal"
        fig.legend.click_policy = "hide"
        fig.legend.label_text_font_size = "11px"
        fig.add_layout(fig.legend[0], "below")
    return fig


def _columns(own: list[Slice], rows: dict[str, int], origin: int) -> dict[str, list[Any]]:
    top, bottom = _STRIP if own[0].kind == "order" else _BODY
    return {
        "left": [(s.begin - origin) / 1e9 for s in own],
        "right": [(s.end - origin) / 1e9 for s in own],
        "top": [rows[s.lane] + top for s in own],
        "bottom": [rows[s.lane] + bottom for s in own],
        "what": [f"batch {s.record.index}: {LABELS[s.kind]}{_copied(s)}" for s in own],
        "took": [duration((s.end - s.begin) / 1e9) for s in own],
        "indices": [f"{s.record.samples} ({first_indices(s.record)})" for s in own],
        "slowest": [_slowest(s.record) for s in own],
    }


def _copied(s: Slice) -> str:
    p = s.record.placed
    if s.kind != "upload" or p is None:
        return ""
    hidden = f", {percent(1 - share_of(shown_of(p), s.end - s.begin))} of it hidden" if p.needed else ""
    return f", {megabytes(p.nbytes)}, {number(p.nbytes / (s.end - s.begin))} GB/s{hidden}"


def _slowest(r: BatchRecord) -> str:
    return f"{clean(r.slowest_index, 40)}, {duration(r.slowest_ns / 1e9)}" if r.slowest_ns else "-"


def _mark_stalls(fig: Figure, records: tuple[BatchRecord, ...], pauses: Pauses, origin: int) -> None:
    found = stalls(records, pauses)
    if not found:
        return
    x = [(r.delivered - origin) / 1e9 for r in found]
    fig.scatter(x, [-0.05] * len(x), marker="inverted_triangle", size=9, color=COLOURS["wait"], legend_label="stall")
    longest = sorted(found, key=lambda r: -waited(r, pauses))[:8]
    fig.text(
        [(r.delivered - origin) / 1e9 for r in longest], [-0.12] * len(longest),
        text=[duration(waited(r, pauses) / 1e9) for r in longest], text_font_size="10px", text_align="left", x_offset=7,
        text_color="#888888", text_baseline="middle",
    )  # fmt: skip
