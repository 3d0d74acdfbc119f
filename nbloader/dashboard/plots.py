"""The dashboard's plots, as Bokeh documents that the browser builds once and then feeds column by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbloader.dashboard.payload import COLUMNS

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class in spite of its name


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


CHARTS = (
    Chart(
        "queues",
        "Queues",
        "batches",
        (
            Series("in_flight", "in flight", "#3b8fd6"),
            Series("reordering", "reorder buffer", "#e08a1e"),
            Series("ready", "ready", "#1a9e77"),
        ),
    ),
    Chart(
        "stages",
        "Time per batch",
        "ms",
        (
            Series("stage_queue", "queue", "#8d99a8", "queue"),
            Series("stage_fetch", "fetch", "#3b8fd6", "fetch"),
            Series("stage_collate", "collate", "#1a9e77", "collate"),
            Series("stage_transport", "transport", "#c76bb0", "transport"),
            Series("stage_reorder", "reorder", "#e08a1e", "reorder"),
            Series("stage_ready", "ready", "#7cc4ee", "ready"),
        ),
        stacked=True,
    ),
    Chart(
        "wait",
        "Your loop waits",
        "share of time spent waiting for a batch",
        (Series("wait_share", "", "#d1573a"),),
        top=1.0,
    ),
    Chart("rate", "Throughput", "batches per second", (Series("batches_per_second", "", "#1a9e77"),)),
)
"""What the dashboard and the picture draw, in this order."""

SECONDS_SHOWN = 120
"""The plots show the last two minutes,"""
SECONDS_AT_LEAST = 10
"""and begin with this much, so that the first seconds do not fill the whole width."""
HEIGHT = 118
"""Of a plot, in pixels."""


def describe() -> dict[str, Any]:
    """Give what the browser needs to draw: for each chart names for people and a Bokeh document as JSON."""
    from bokeh.embed import json_item

    charts = [
        {
            "name": chart.name,
            "title": chart.title,
            "unit": chart.unit,
            "series": [{"label": s.label, "color": s.color, "stage": s.stage} for s in chart.series if s.label],
            "item": json_item(_figure(chart)),
        }
        for chart in CHARTS
    ]
    return {"charts": charts, "seconds": SECONDS_SHOWN, "atLeast": SECONDS_AT_LEAST}


def _figure(chart: Chart) -> Figure:
    from bokeh.models import (
        BasicTicker,
        ColumnDataSource,
        DataRange1d,
        NumeralTickFormatter,
        PrintfTickFormatter,
        Range1d,
    )
    from bokeh.plotting import figure

    columns = ["time", *(s.column for s in chart.series)]
    if unknown := set(columns) - set(COLUMNS):
        raise ValueError(f"no such column: {sorted(unknown)}")
    source = ColumnDataSource({name: [] for name in columns}, name="source")
    y_range = DataRange1d(start=0, range_padding=0.12, min_interval=1)
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
    if chart.stacked:
        fig.varea_stack(
            [s.column for s in chart.series], x="time", color=[s.color for s in chart.series], alpha=0.85, source=source
        )
    elif len(chart.series) == 1:
        only = chart.series[0]
        fig.varea("time", 0, only.column, color=only.color, alpha=0.22, source=source)
        fig.line("time", only.column, color=only.color, line_width=1.8, source=source)
    else:
        for series, dash in zip(chart.series, ("solid", "dashed", "dotdash"), strict=False):
            fig.line("time", series.column, color=series.color, line_width=1.8, line_dash=dash, source=source)
    fig.xaxis.formatter = PrintfTickFormatter(format="%d s")
    fig.xaxis.ticker = BasicTicker(desired_num_ticks=5, min_interval=1)
    fig.yaxis.ticker = fig.ygrid.ticker = BasicTicker(desired_num_ticks=3)
    fig.yaxis.formatter = NumeralTickFormatter(format="0%" if chart.top == 1.0 else "0[.]0a")
    fig.axis.axis_line_color = None
    fig.axis.major_tick_line_color = None
    fig.axis.minor_tick_line_color = None
    fig.axis.major_label_text_font_size = "10px"
    fig.xgrid.grid_line_color = None
    return fig
