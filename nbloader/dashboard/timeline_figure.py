"""The Bokeh figure of an epoch's timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbloader._util import palette
from nbloader._util.format import plural
from nbloader.dashboard.figures import lay_out_legend
from nbloader.events import WorkerDied
from nbloader.report.slices import KINDS, Lane
from nbloader.report.timeline import Block, Row, lost_rows, rows_of, stall_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.plotting import figure as Figure  # noqa: N812  a class despite its name

    from nbloader.report.trace import Trace

LIMIT = 4000
"""Maximum number of batches in a timeline, which shows the last ones. With more, panning and zooming are slow."""
_BODY, _STRIP = (0.12, 0.72), (0.76, 0.92)
"""Top and bottom edges within a lane, as fractions of its height: of most blocks, and of those drawn below them."""
_APART = 0.08
"""Of stalls that are closer together than this fraction of the epoch, only the longest is labeled."""
_TIP = '<div style="white-space: pre-line; max-width: 360px">@tip</div>'


def timeline(trace: Trace) -> Figure:
    """Draw what each worker and the loop did, over time.

    Args:
        trace: Events of an epoch. If it has more than 4,000 batches, the last 4,000 are drawn.

    Returns:
        A figure for `bokeh.plotting.show`: the wheel zooms, dragging pans, and a tooltip names the batch and its
        dataset indices. Lanes without batches are left out.
    """
    from bokeh.models import ColumnDataSource, HoverTool, Range1d
    from bokeh.plotting import figure

    records = trace.batches[-LIMIT:]
    origin = min((r.requested for r in records), default=0)
    rows = rows_of(records, trace.pauses)
    rows += lost_rows(e for e in trace.events if isinstance(e, WorkerDied) and e.since >= origin)
    lanes = {lane: i for i, lane in enumerate(sorted({row.lane for row in rows}))}
    shown = f"the last {LIMIT:,} of {plural(len(trace), 'batch')}" if len(trace) > LIMIT else ""
    fig = figure(
        title=shown,
        height=130 + max(2, len(lanes)) * max(10, min(28, 640 // max(1, len(lanes)))),
        sizing_mode="stretch_width",
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
        active_drag="xpan",
        active_scroll="xwheel_zoom",
        y_range=Range1d(start=max(1, len(lanes)), end=-0.4),
        x_axis_label="seconds since the first batch was requested",
    )
    for kind in KINDS.values():
        blocks = [(row, block) for row in rows for block in row.blocks if block.kind == kind.name]
        if not blocks:
            continue
        renderer = fig.quad(
            left="left", right="right", top="top", bottom="bottom", color=kind.color, line_width=0,
            alpha=0.45 if kind.below else 0.9, legend_label=kind.label,
            source=ColumnDataSource(_columns(blocks, lanes, origin, _STRIP if kind.below else _BODY)),
        )  # fmt: skip
        fig.add_tools(HoverTool(renderers=[renderer], tooltips=_TIP, visible=False))
    _mark_stalls(fig, rows, origin)
    fig.yaxis.ticker = [i + 0.45 for i in range(len(lanes))]
    fig.yaxis.major_label_overrides = {i + 0.45: lane.label for lane, i in lanes.items()}
    fig.ygrid.grid_line_color = None
    if rows:
        lay_out_legend(fig, "below", "11px")
    return fig


def _columns(
    blocks: Sequence[tuple[Row, Block]], lanes: dict[Lane, int], origin: int, edges: tuple[float, float]
) -> dict[str, list[Any]]:
    top, bottom = edges
    return {
        "left": [(block.begin - origin) / 1e9 for _, block in blocks],
        "right": [(block.end - origin) / 1e9 for _, block in blocks],
        "top": [lanes[row.lane] + top for row, _ in blocks],
        "bottom": [lanes[row.lane] + bottom for row, _ in blocks],
        "tip": [row.tip for row, _ in blocks],
    }


def _mark_stalls(fig: Figure, rows: Sequence[Row], origin: int) -> None:
    stalled = [row for row in rows if row.stall]
    if not stalled:
        return
    span = max(row.end for row in rows) - origin
    x = [(row.stalled_until - origin) / 1e9 for row in stalled]
    fig.scatter(x, [-0.05] * len(x), marker="inverted_triangle", size=9, color=palette.WAIT, legend_label="stall")
    longest: list[Row] = []
    for row in sorted(stalled, key=lambda row: -row.stall):
        if all(abs(row.stalled_until - other.stalled_until) > _APART * span for other in longest):
            longest.append(row)
    fig.text(
        [(row.stalled_until - origin) / 1e9 for row in longest], [-0.12] * len(longest),
        text=list(map(stall_label, longest)), text_font_size="10px", text_align="left", x_offset=7,
        text_color="#888888", text_baseline="middle",
    )  # fmt: skip
