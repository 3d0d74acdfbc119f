"""The dashboard's plots, as Bokeh documents that the browser builds once and then feeds column by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbloader._util import palette
from nbloader.dashboard.payload import COLUMNS, TIPS, Columns

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class in spite of its name

    from nbloader.metrics.snapshot import Histogram


@dataclass(frozen=True, slots=True)
class Series:
    """One line or area of a plot."""

    column: str
    """Which of `payload.COLUMNS` it shows."""
    label: str
    color: str
    """From a palette that stays apart for colour-blind eyes and on light and dark grounds."""
    stage: str = ""
    """Name of the stage whose median stands beside the label; "" for none."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot over time."""

    name: str
    title: str
    unit: str
    """As written beside the title."""
    series: tuple[Series, ...]
    stacked: bool = False
    top: float | None = None
    """Upper end of the y axis; None follows the data."""
    one_of: bool = False
    """One series is shown at a time, at first the first: they have different units."""


CHARTS = (
    Chart(
        "queues",
        "Queues",
        "batches",
        (
            Series("in_flight", "in flight", palette.STAGES["fetch"]),
            Series("reordering", "reorder buffer", palette.STAGES["reorder"]),
            Series("ready", "ready", palette.STAGES["collate"]),
        ),
    ),
    Chart(
        "stages",
        "Time per batch",
        "ms",
        tuple(
            Series(f"stage_{name}", name, palette.STAGES[name], name)
            for name in ("queue", "fetch", "collate", "transport", "reorder", "ready")
        ),
        stacked=True,
    ),
    Chart(
        "wait",
        "Your loop waits",
        "share of time spent waiting for a batch",
        (Series("wait_share", "", palette.WAIT),),
        top=1.0,
    ),
    Chart(
        "rate",
        "Throughput",
        "a second",
        (
            Series("batches_per_second", "batches", palette.STAGES["collate"]),
            Series("samples_per_second", "samples", palette.STAGES["fetch"]),
            Series("mb_per_second", "MB", palette.STAGES["transport"]),
        ),
        one_of=True,
    ),
    Chart(
        "device",
        "Way to the device",
        "ms per batch, beside the other stages",
        tuple(Series(f"stage_{name}", name, palette.STAGES[name], name) for name in ("pin", "upload")),
    ),
)
"""What the dashboard and the picture draw, in this order."""

SECONDS_SHOWN = 120
"""The plots show the last two minutes,"""
SECONDS_AT_LEAST = 10
"""and begin with this much, so that the first seconds do not fill the whole width."""
HEIGHT = 118
"""Of a plot, in pixels."""


def charts_of(*, placed: bool) -> tuple[Chart, ...]:
    """The charts that say something: that of the way to a device only where batches are placed there."""
    return tuple(chart for chart in CHARTS if placed or chart.name != "device")


def describe(*, placed: bool = False) -> dict[str, Any]:
    """Give what the browser needs to draw: for each chart names for people and a Bokeh document as JSON.

    Args:
        placed: Whether batches are pinned or uploaded.
    """
    from bokeh.embed import json_item

    charts = [
        {
            "name": chart.name,
            "title": chart.title,
            "unit": chart.unit,
            "oneOf": chart.one_of,
            "series": [{"label": s.label, "color": s.color, "stage": s.stage} for s in chart.series if s.label],
            "item": json_item(_figure(chart, {name: [] for name in (*COLUMNS, *TIPS)})),
        }
        for chart in charts_of(placed=placed)
    ]
    return {"charts": charts, "seconds": SECONDS_SHOWN, "atLeast": SECONDS_AT_LEAST}


def figure_of(chart: Chart, columns: Columns) -> Figure:
    """Draw a chart of values that stay as they are, with a legend; for a report."""
    from bokeh.models import Range1d

    fig = _figure(chart, columns, still=True)
    fig.height, fig.toolbar_location = 190, "right"
    fig.add_tools("xpan", "xwheel_zoom", "reset")
    fig.x_range = Range1d(start=0, end=max(columns["time"], default=1.0))
    if fig.legend:
        fig.legend.click_policy = "hide"
        fig.legend.orientation = "horizontal"
        fig.legend.label_text_font_size = "10px"
        fig.add_layout(fig.legend[0], "above")
    return fig


def histogram_of(times: Histogram) -> Figure:
    """Draw how long batches took to make; for a report."""
    from bokeh.models import DataRange1d
    from bokeh.plotting import figure

    fig = figure(
        height=190, sizing_mode="stretch_width", toolbar_location=None, tools="hover", x_axis_type="log",
        y_range=DataRange1d(start=0),
        tooltips=[("batches", "@top"), ("ms", "@left{0.000} to @right{0.000}")],
    )  # fmt: skip
    left, right = list(times.edges[:-1]), list(times.edges[1:])
    fig.quad(left=left, right=right, top=list(times.counts), bottom=0, color=palette.STAGES["fetch"], line_color=None)
    return fig


def _figure(chart: Chart, columns: Columns, *, still: bool = False) -> Figure:
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
    y_range = DataRange1d(start=0, range_padding=0.12, min_interval=1, only_visible=True)
    fig = figure(
        height=HEIGHT,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        x_range=Range1d(start=0, end=SECONDS_SHOWN),  # moved by the browser
        y_range=Range1d(start=0, end=chart.top * 1.04) if chart.top else y_range,
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=None,
        min_border=2,
        min_border_left=38,  # or plots with longer labels would not stand in line with the others
    )
    labels = [{"legend_label": s.label} if still and s.label else {} for s in chart.series]
    if chart.stacked:
        stack = [s.column for s in chart.series]
        fig.varea_stack(
            stack, x="time", color=[s.color for s in chart.series], alpha=0.85, source=source,
            **({"legend_label": [s.label for s in chart.series]} if still else {}),
        )  # fmt: skip
    elif len(chart.series) == 1 or chart.one_of:
        for i, series in enumerate(chart.series):
            area = fig.varea("time", 0, series.column, color=series.color, alpha=0.22, source=source, **labels[i])
            line = fig.line("time", series.column, color=series.color, line_width=1.8, source=source, **labels[i])
            area.visible = line.visible = i == 0
            area.name = line.name = f"only {i}"
    else:
        for series, label, dash in zip(chart.series, labels, ("solid", "dashed", "dotdash"), strict=False):
            fig.line("time", series.column, color=series.color, line_width=1.8, line_dash=dash, source=source, **label)
    touched = fig.line("time", chart.series[0].column, alpha=0, source=source)  # areas feel no pointer
    tips = [("", "@time{0.0} s")]
    if chart.series[0].stage:
        tips += [(s.label, f"@{s.column}{{0.00}} ms; p50 / p95 / p99: @tip_{s.stage}") for s in chart.series]
    else:
        form = "{0 %}" if chart.top == 1.0 else "{0.0}"
        tips += [(s.label, f"@{s.column}{form}") for s in chart.series]
    fig.add_tools(HoverTool(renderers=[touched], tooltips=tips, mode="vline", line_policy="nearest"))
    fig.xaxis.formatter = PrintfTickFormatter(format="%g s" if still else "%d s")
    fig.xaxis.ticker = BasicTicker(desired_num_ticks=5, min_interval=0.001 if still else 1)
    fig.yaxis.ticker = fig.ygrid.ticker = BasicTicker(desired_num_ticks=3)
    fig.yaxis.formatter = NumeralTickFormatter(format="0%" if chart.top == 1.0 else "0[.]0a")
    fig.axis.axis_line_color = None
    fig.axis.major_tick_line_color = None
    fig.axis.minor_tick_line_color = None
    fig.axis.major_label_text_font_size = "10px"
    fig.xgrid.grid_line_color = None
    return fig
