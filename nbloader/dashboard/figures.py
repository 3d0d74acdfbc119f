"""Bokeh figures of the plots over time and of the histogram of production times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nbloader._util import palette
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

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class despite its name

    from nbloader.metrics.snapshot import Histogram

REPORT_HEIGHT = 190
"""Height of a plot in a report, in pixels."""


def lay_out_legend(fig: Figure, place: Literal["above", "below"], size: str) -> None:
    """Place the legend outside the plot, as a row of entries. A click on an entry hides its blocks or line."""
    legend = fig.legend[0]
    legend.orientation, legend.click_policy, legend.location = "horizontal", "hide", "left"
    legend.label_text_font_size, legend.border_line_color = size, None
    legend.update(padding=2, margin=2)
    fig.add_layout(legend, place)


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
        lay_out_legend(fig, "above", "10px")
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
        form = "{0%}" if chart.is_share else "{0.0}"
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
