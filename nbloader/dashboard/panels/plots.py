"""Plots over time and the histogram of production times, which `dashboard/charts.py` describes.

The live view draws them with Bokeh in the browser: plots.js adds the values to documents that `dashboard/figures.py`
builds. The static form draws them as SVG.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from nbloader._util.format import number
from nbloader.dashboard.charts import (
    AREA_ALPHA,
    HEIGHT,
    HISTOGRAM_TITLE,
    HISTOGRAM_UNIT,
    SECONDS_AT_LEAST,
    STACK_ALPHA,
    Axis,
    Chart,
    Columns,
    bars_of,
    charts_of,
    columns_of,
    numeric_columns,
    x_axis,
    y_axes,
)
from nbloader.dashboard.figures import live_figure
from nbloader.dashboard.panels.base import Frame, Panel, Reply, section

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl
    from nbloader.metrics.snapshot import Point, Snapshot


STATIC_POINTS = 110
"""Approximate number of points of each line in the static form."""


class Plots(Panel):
    """Bokeh plots, drawn when the panel is unfolded for the first time. Points are sent as news."""

    name = "plots"
    title = "Plots over time"
    unfolded = False

    def __init__(self) -> None:
        self._points: Sequence[Point] = ()
        self._sent_until = float("-inf")
        self._device, self._new = False, True
        self._x, self._y = Axis(0, SECONDS_AT_LEAST), dict[str, list[Axis]]()

    def news(self, frame: Frame) -> list[Any]:
        """Return the new points of this frame, as columns."""
        self._points = frame.points
        start = bisect.bisect_right(frame.points, self._sent_until, key=lambda p: p.time)
        points = frame.points[start:]
        if not points:
            return []
        self._new, self._sent_until = True, points[-1].time
        return [columns_of(points)]

    def history(self) -> list[Any]:
        """Return all points, as columns."""
        return [columns_of(self._points)] if self._points else []

    def payload(self, frame: Frame) -> dict[str, Any]:
        """Return the axes, the legends, and the histogram."""
        device = bool(frame.snapshot.pinned or frame.snapshot.device)
        if self._new or device != self._device:
            self._new, self._device = False, device
            self._x = x_axis([p.time for p in (*frame.points[:1], *frame.points[-1:])])
            shown = numeric_columns([p for p in frame.points if p.time >= self._x.begin])
            self._y = {chart.name: y_axes(chart, shown) for chart in charts_of(device=device)}
        return {
            "x": self._x,
            "y": self._y,
            "legend": _legend(frame.snapshot),
            "bars": list(map(dataclasses.asdict, bars_of(frame.snapshot.make_times))),
        }

    def respond(self, request: Mapping[str, Any], loader: LoaderControl) -> Reply | None:  # noqa: ARG002 - it is not asked
        """Return the Bokeh documents to draw with. The first call imports Bokeh."""
        if request.get("name") != "figures":
            return None
        return Reply(documents(device=self._device))

    def html(self, payload: dict[str, Any]) -> str:
        """Return the charts as SVG."""
        columns = columns_of(self._points)
        charts = "".join(_chart_html(chart, columns, payload) for chart in charts_of(device=self._device))
        return section(self.title, f'<div class="nbl-charts">{charts}{_bars_html(payload["bars"])}</div>')


def documents(*, device: bool) -> dict[str, Any]:
    """Build the Bokeh documents to draw with and their captions, as JSON values.

    Args:
        device: Whether batches are pinned or uploaded.
    """
    from bokeh.embed import json_item

    charts = [
        {
            "name": chart.name,
            "title": chart.title,
            "unit": chart.unit,
            "oneOf": chart.one_of,
            "series": [
                {"label": s.label, "color": s.color, "stage": s.stage, "optional": s.optional}
                for s in chart.series
                if s.label
            ],
            "item": json_item(live_figure(chart)),
        }
        for chart in charts_of(device=device)
    ]
    return {"charts": charts, "histogram": {"title": HISTOGRAM_TITLE, "unit": HISTOGRAM_UNIT}}


def _legend(s: Snapshot) -> dict[str, dict[str, str]]:
    return {
        stage.name: {
            "median": number(stage.p50),
            "tip": f"p50 {number(stage.p50)} ms, p95 {number(stage.p95)} ms, p99 {number(stage.p99)} ms "
            "over the last 200 batches",
        }
        for stage in s.stages
    }


# --- the static form

_WIDTH = 480
_THOUSAND = 1000
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 8, 8, 18


def _chart_html(chart: Chart, columns: Columns, payload: dict[str, Any]) -> str:
    medians = payload["legend"]
    svg = _plot_svg(chart, columns, Axis(*payload["x"]), Axis(*payload["y"][chart.name][0]))
    keys = "".join(
        f'<span class="nbl-key" style="--nbl-key:{s.color}">{s.label} '
        f"{escape(medians[s.stage]['median']) if s.stage in medians else ''}</span>"
        for s in chart.shown
        if s.label and (s.stage in medians or not s.optional)
    )
    return (
        f'<figure class="nbl-chart"><figcaption>{chart.title}<div class="nbl-keys"><span>{chart.unit}</span>{keys}'
        f'</div></figcaption><div class="nbl-plot">{svg}</div></figure>'
    )


def _plot_svg(chart: Chart, columns: Columns, x: Axis, y: Axis) -> str:
    top = chart.top or y.end
    times = [t or 0.0 for t in columns["time"]]
    first = next((i for i, t in enumerate(times) if t >= x.begin), 0)
    picked = range(first, len(times), max(1, math.ceil((len(times) - first) / STATIC_POINTS)))
    lines = [[columns[s.column][i] or 0.0 for i in picked] for s in chart.shown]
    if chart.stacked:
        for below, line in itertools.pairwise(lines):
            line[:] = [a + b for a, b in zip(below, line, strict=True)]

    def across(time: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (time - x.begin) / (x.end - x.begin)

    def up(value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * min(value / top, 1.0)

    xs = [across(times[i]) for i in picked]
    out = [f'<svg viewBox="0 0 {_WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{chart.title}">']
    out += [
        f'<line class="nbl-grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(v):.1f}" y2="{up(v):.1f}"/>'
        for v in (0, top / 2, top)
    ]
    base = [0.0] * len(xs)
    for s, line in zip(chart.shown, lines, strict=True):
        ys = [up(v) for v in line]
        if xs and (chart.stacked or chart.filled):
            area = _polyline(xs, ys) + " L" + _polyline(xs[::-1], [up(v) for v in base[::-1]])[1:] + "Z"
            alpha = STACK_ALPHA if chart.stacked else AREA_ALPHA
            out.append(f'<path d="{area}" fill="{s.color}" fill-opacity="{alpha}"/>')
        if xs and not chart.stacked:
            out.append(f'<path d="{_polyline(xs, ys)}" fill="none" stroke="{s.color}" stroke-width="1.8"/>')
        base = line if chart.stacked else base
    for value in (0, top / 2, top):
        label = f"{100 * value:.0f}%" if chart.is_share else _tick_label(value)
        out.append(f'<text x="{_LEFT - 5}" y="{up(value) + 3:.1f}" text-anchor="end">{label}</text>')
    for time, anchor in ((x.begin, "start"), (x.end, "end")):
        out.append(f'<text x="{across(time):.0f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{time:.0f} s</text>')
    out.append("</svg>")
    return "".join(out)


def _tick_label(value: float) -> str:
    return f"{value / _THOUSAND:g}k" if value >= _THOUSAND else f"{value:g}"


def _polyline(xs: Sequence[float], ys: Sequence[float]) -> str:
    return "M" + " L".join(f"{x:.0f} {y:.1f}" for x, y in zip(xs, ys, strict=True))


def _bars_html(bars: Sequence[Mapping[str, Any]]) -> str:
    if not bars:
        return ""
    highest = max(bar["count"] for bar in bars) or 1
    drawn = "".join(
        f'<div title="{escape(bar["tip"])}"><i style="height:{86 * bar["count"] / highest:.0f}px"></i>'
        f"<span>{bar['label']}</span></div>"
        for bar in bars
    )
    return (
        f'<figure class="nbl-chart"><figcaption>{HISTOGRAM_TITLE}'
        f'<div class="nbl-keys"><span>{HISTOGRAM_UNIT}</span></div></figcaption>'
        f'<div class="nbl-plot nbl-bars">{drawn}</div></figure>'
    )
