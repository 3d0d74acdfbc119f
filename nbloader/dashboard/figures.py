"""Bokeh figures: the timeline of an epoch that has ended, and the plots over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from nbloader._util import palette
from nbloader._util.format import plural
from nbloader.dashboard.charts import (
    AREA_ALPHA,
    COLUMNS,
    HEIGHT,
    SECONDS_SHOWN,
    STACK_ALPHA,
    TIPS,
    Chart,
    Columns,
)
from nbloader.events import WorkerDied
from nbloader.report.slices import KINDS, Lane
from nbloader.report.timeline import Block, Row, lost_rows, rows_of, stall_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.plotting import figure as Figure  # noqa: N812  a class despite its name

    from nbloader.metrics.snapshot import Histogram
    from nbloader.report.trace import Trace

LIMIT = 4000
"""Maximum number of batches in a timeline, which shows the last ones. With more, panning and zooming are slow."""
REPORT_HEIGHT = 190
"""Height of a plot in a report, in pixels."""
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
            source=ColumnDataSource(_columns(blocks, lanes, origin)),
        )  # fmt: skip
        fig.add_tools(HoverTool(renderers=[renderer], tooltips=_TIP, visible=False))
    _mark_stalls(fig, rows, origin)
    fig.yaxis.ticker = [i + 0.45 for i in range(len(lanes))]
    fig.yaxis.major_label_overrides = {i + 0.45: lane.label for lane, i in lanes.items()}
    fig.ygrid.grid_line_color = None
    if rows:
        _lay_out_legend(fig, "below", "11px")
    return fig


def _lay_out_legend(fig: Figure, place: Literal["above", "below"], size: str) -> None:
    """Place the legend outside the plot, as a row of entries. A click on an entry hides its blocks or line."""
    legend = fig.legend[0]
    legend.orientation, legend.click_policy, legend.location = "horizontal", "hide", "left"
    legend.label_text_font_size, legend.border_line_color = size, None
    legend.update(padding=2, margin=2)
    fig.add_layout(legend, place)


def _columns(blocks: Sequence[tuple[Row, Block]], lanes: dict[Lane, int], origin: int) -> dict[str, list[Any]]:
    top, bottom = _STRIP if KINDS[blocks[0][1].kind].below else _BODY
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


def live_figure(chart: Chart) -> Figure:
    """Create an empty chart, to which the browser adds the values."""
    return _figure(chart, {name: [] for name in (*COLUMNS, *TIPS)})


def figure_of(chart: Chart, columns: Columns) -> Figure:
    """Create a chart of all values with a legend, for a report."""
    from bokeh.models import Range1d

    fig = _figure(chart, columns, static=True)
    fig.height, fig.toolbar_location = REPORT_HEIGHT, "right"
    fig.add_tools("xpan", "xwheel_zoom", "reset")
    fig.x_range = Range1d(start=0, end=max(columns["time"], default=1.0))
    if fig.legend:
        _lay_out_legend(fig, "above", "10px")
    return fig


def histogram_of(times: Histogram) -> Figure:
    """Create the histogram of production times, for a report."""
    from bokeh.models import DataRange1d, LogTicker
    from bokeh.plotting import figure

    fig = figure(
        height=REPORT_HEIGHT, sizing_mode="stretch_width", toolbar_location=None, tools="hover", x_axis_type="log",
        y_range=DataRange1d(start=0), x_axis_label="ms", y_axis_label="batches",
        tooltips=[("batches", "@top"), ("ms", "@left{0.000} to @right{0.000}")],
    )  # fmt: skip
    fig.xaxis.ticker = LogTicker(mantissas=[1, 2, 5])
    fig.axis.minor_tick_line_color = None
    left, right = list(times.edges[:-1]), list(times.edges[1:])
    fig.quad(left=left, right=right, top=list(times.counts), bottom=0, color=palette.STAGES["fetch"], line_color=None)
    return fig


def _figure(chart: Chart, columns: Columns, *, static: bool = False) -> Figure:
    from bokeh.models import (
        BasicTicker,
        ColumnDataSource,
        DataRange1d,
        HoverTool,
        NumeralTickFormatter,
        PrintfTickFormatter,
        Range1d,
    )
    from bokeh.plotting import figure

    names = ["time", *(s.column for s in chart.series), *(f"tip_{s.stage}" for s in chart.series if s.stage)]
    if unknown := set(names) - set(columns):
        raise ValueError(f"no such column: {sorted(unknown)}")
    source = ColumnDataSource({name: columns[name] for name in names}, name="source")
    follow_data = static and not chart.top  # the browser sets the axes of a live figure
    fig = figure(
        height=HEIGHT,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        x_range=Range1d(start=0, end=SECONDS_SHOWN),
        y_range=DataRange1d(start=0, range_padding=0.12, min_interval=1, only_visible=True)
        if follow_data
        else Range1d(start=0, end=(chart.top or 1.0) * 1.04),
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=None,
        min_border=2,
        min_border_left=38,  # aligns the plots, whatever the length of their labels
    )
    labels = [{"legend_label": s.label} if static and s.label else {} for s in chart.series]
    if chart.stacked:
        stack = [s.column for s in chart.series]
        fig.varea_stack(
            stack, x="time", color=[s.color for s in chart.series], alpha=STACK_ALPHA, source=source,
            **({"legend_label": [s.label for s in chart.series]} if static else {}),
        )  # fmt: skip
    elif chart.filled:
        for i, s in enumerate(chart.series):
            area = fig.varea("time", 0, s.column, color=s.color, alpha=AREA_ALPHA, source=source, **labels[i])
            line = fig.line("time", s.column, color=s.color, line_width=1.8, source=source, **labels[i])
            area.visible = line.visible = i == 0
            area.name = line.name = f"only {i}"
    else:
        for s, label, dash in zip(chart.series, labels, ("solid", "dashed", "dotdash"), strict=False):
            fig.line("time", s.column, color=s.color, line_width=1.8, line_dash=dash, source=source, **label)
    touched = fig.line("time", chart.series[0].column, alpha=0, source=source)  # areas do not react to the pointer
    tips = [("", "@time{0.0} s")]
    if chart.series[0].stage:
        tips += [(s.label, f"@{s.column}{{0.00}} ms; p50 / p95 / p99: @tip_{s.stage}") for s in chart.series]
    else:
        form = "{0 %}" if chart.is_share else "{0.0}"
        tips += [(s.label, f"@{s.column}{form}") for s in chart.series]
    fig.add_tools(HoverTool(renderers=[touched], tooltips=tips, mode="vline", line_policy="nearest"))
    fig.xaxis.formatter = PrintfTickFormatter(format="%g s" if static else "%d s")
    fig.xaxis.ticker = BasicTicker(desired_num_ticks=5, min_interval=0.001 if static else 1)
    fig.yaxis.ticker = fig.ygrid.ticker = BasicTicker(desired_num_ticks=3)
    fig.yaxis.formatter = NumeralTickFormatter(format="0%" if chart.is_share else "0[.]0a")
    fig.axis.axis_line_color = None
    fig.axis.major_tick_line_color = None
    fig.axis.minor_tick_line_color = None
    fig.axis.major_label_text_font_size = "10px"
    fig.xgrid.grid_line_color = None
    return fig
