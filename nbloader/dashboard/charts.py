"""Describe the plots over time and the histogram of production times: series, colours, axes and values. Pure.

`panels/plots.py` draws them in the browser and as SVG, `figures.py` draws them with Bokeh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from nbloader._util import palette
from nbloader._util.format import number
from nbloader.metrics.snapshot import STAGES

if TYPE_CHECKING:
    from nbloader.metrics.snapshot import Histogram, Point

Columns: TypeAlias = dict[str, list[Any]]
"""Maps the name of each column to its values. All columns have the same length."""

COLUMNS = (
    "time", "in_flight", "reordering", "ready", "batches_per_second", "samples_per_second", "mb_per_second",
    "wait_share", *(f"stage_{name}" for name in STAGES),
)  # fmt: skip
"""Columns of numbers. `time` is in seconds, `wait_share` is from 0 to 1, stages are in milliseconds."""

TIPS = tuple(f"tip_{name}" for name in STAGES)
"""Columns of text: p50, p95 and p99 of each stage at that time."""

SECONDS_SHOWN = 120
"""Longest time that the plots show, seconds: the last two minutes."""

SECONDS_AT_LEAST = 10
"""Shortest time axis, seconds."""

HEIGHT = 118
"""Height of a plot, pixels."""

BARS = 7
"""Number of bars of the histogram that are labelled."""

AREA_ALPHA, STACK_ALPHA = 0.22, 0.85
"""Opacity of the area below a line, and of stacked areas."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line or area of a plot."""

    column: str
    """One of `COLUMNS`."""
    label: str
    color: str
    stage: str = ""
    """Name of the stage whose median is shown beside the label; "" if there is none."""

    @property
    def optional(self) -> bool:
        """Whether the live view hides its label until a batch has passed its stage."""
        return self.stage == "transfer"


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot over time."""

    name: str
    title: str
    unit: str
    """Text beside the title."""
    series: tuple[Series, ...]
    stacked: bool = False
    top: float | None = None
    """Upper end of the y axis; None if it follows the data."""
    one_of: bool = False
    """Whether it shows one series at a time, initially the first, because the series have different units."""

    @property
    def shown(self) -> tuple[Series, ...]:
        """The series that are visible initially."""
        return self.series[:1] if self.one_of else self.series

    @property
    def is_share(self) -> bool:
        """Whether its values are shares from 0 to 1, labelled as percentages."""
        return self.top == 1.0

    @property
    def filled(self) -> bool:
        """Whether the area below its line is filled."""
        return len(self.shown) == 1


CHARTS = (
    Chart(
        "queues",
        "Queue depths",
        "batches",
        (
            Series("in_flight", "in flight", palette.STAGES["fetch"]),
            Series("reordering", "reordering", palette.STAGES["reorder"]),
            Series("ready", "ready", palette.STAGES["collate"]),
        ),
    ),
    Chart(
        "stages",
        "Latency by stage",
        "ms per batch; numbers: median of the last 200",
        tuple(
            Series(f"stage_{name}", name, palette.STAGES[name], name)
            for name in ("queue", "fetch", "collate", "transport", "transfer", "reorder", "ready")
        ),
        stacked=True,
    ),
    Chart(
        "wait",
        "Loop waiting",
        "share of the time since the point before",
        (Series("wait_share", "", palette.WAIT),),
        top=1.0,
    ),
    Chart(
        "rate",
        "Throughput",
        "per second",
        (
            Series("batches_per_second", "batches", palette.STAGES["collate"]),
            Series("samples_per_second", "samples", palette.STAGES["fetch"]),
            Series("mb_per_second", "MB", palette.STAGES["transport"]),
        ),
        one_of=True,
    ),
    Chart(
        "device",
        "Pinning and upload",
        "ms per batch, concurrent with other stages; numbers: median of the last 200",
        tuple(Series(f"stage_{name}", name, palette.STAGES[name], name) for name in ("pin", "upload")),
    ),
)
"""All charts, in the order in which they are drawn."""


class Axis(NamedTuple):
    """The visible interval of an axis."""

    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the histogram."""

    label: str
    """Text below the bar; "" if there is none."""
    count: int
    tip: str


HISTOGRAM_TITLE, HISTOGRAM_UNIT = "Production time", "number of batches, the last 500"


def charts_of(*, device: bool) -> tuple[Chart, ...]:
    """Return the charts that have data to show.

    Args:
        device: Whether batches are pinned or uploaded.
    """
    return tuple(chart for chart in CHARTS if device or chart.name != "device")


def columns_of(points: Sequence[Point]) -> Columns:
    """Convert points to columns, one for each of `COLUMNS` and `TIPS`. Values that are not finite become None."""
    columns: Columns = {
        name: [round(v, 4) if math.isfinite(v) else None for v in column]
        for name, column in numeric_columns(points).items()
    }
    for i, name in enumerate(TIPS):
        columns[name] = [" / ".join(map(number, p.spread[i])) if p.spread else "" for p in points]
    return columns


def numeric_columns(points: Sequence[Point]) -> Columns:
    """Convert points to columns, one for each of `COLUMNS`, without changing the values."""
    rows = [
        (p.time, p.in_flight, p.reordering, p.ready, p.batches_per_second, p.samples_per_second, p.mb_per_second,
         p.wait_share, *p.stages)
        for p in points
    ]  # fmt: skip
    values = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    return {name: list(column) for name, column in zip(COLUMNS, values, strict=True)}


def x_axis(times: Sequence[float]) -> Axis:
    """Compute the time axis for points at these times, in seconds."""
    first, last = (times[0], times[-1]) if times else (0.0, 0.0)
    begin = max(first, last - SECONDS_SHOWN)
    return Axis(round(begin, 3), round(max(last, begin + SECONDS_AT_LEAST), 3))


def y_axes(chart: Chart, columns: Columns) -> list[Axis]:
    """Compute the y axis of a chart. A chart that shows one series at a time gets an axis for each series."""
    if chart.top is not None:
        return [Axis(0, chart.top * 1.04)]
    columns_shown = [[v if math.isfinite(v) else 0.0 for v in columns[s.column]] for s in chart.series]
    if chart.stacked:
        columns_shown = [[sum(values) for values in zip(*columns_shown, strict=True)]]
    elif not chart.one_of:
        columns_shown = [[value for column in columns_shown for value in column]]
    return [Axis(0, _round_up(max(column, default=0.0))) for column in columns_shown]


def bars_of(times: Histogram) -> list[Bar]:
    """Create the bars of the histogram of production times."""
    edges = [number(ms) for ms in times.edges]
    every = max(1, math.ceil(len(edges) / BARS))
    return [
        Bar(
            "" if i % every else edges[i] if i else f"{edges[i]} ms", count, f"{edges[i]} to {edges[i + 1]} ms: {count}"
        )
        for i, count in enumerate(times.counts)
    ]


def _round_up(value: float) -> float:
    """Round up to a number that suits as the end of an axis."""
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999)
