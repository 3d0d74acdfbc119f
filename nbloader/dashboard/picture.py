"""The dashboard as a static picture: HTML and SVG that need no kernel, no script and no network.

It has the structure and the styles of the live view, so that one can take the other's place. Under 100 kB whatever the
loader did: the plots are thinned, the table is cut, and every text from outside has a bounded length.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbloader.dashboard.payload import WORKER_COLUMNS
from nbloader.dashboard.plots import CHARTS, HEIGHT, SECONDS_AT_LEAST, SECONDS_SHOWN, Chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbloader.dashboard.payload import Columns

POINTS = 160
"""Points drawn of each line."""
ROWS = 64
"""Workers listed."""

_WIDTH = 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 8, 8, 18


@cache
def _styles() -> str:
    return (Path(__file__).parent / "dashboard.css").read_text("utf-8")


def html(name: str, view: dict[str, Any], points: Columns) -> str:
    """Draw the picture.

    Args:
        name: Identity of the dashboard, by which its live views hide the picture.
        view: As made by `payload.view_of`.
        points: As made by `payload.columns_of`.

    Returns:
        A fragment of HTML with its own styles. All texts are escaped.
    """
    progress = view["progress"]
    return "".join(
        (
            f'<div class="nbl nbl-picture" data-nbl="{escape(name)}" role="group" aria-label="nbloader, last state">',
            f"<style>{_styles()}</style>",
            f'<p class="nbl-verdict">{escape(view["verdict"])}</p>',
            f'<div class="nbl-progress"><span class="nbl-chip">picture · {escape(view["state"])}</span>',
            f'<div class="nbl-bar"><span style="width:{100 * (progress["share"] or 0):.1f}%">',
            f"</span></div><span>{escape(progress['text'])}</span></div>",
            '<div class="nbl-tiles">',
            *(_tile(tile) for tile in view["tiles"]),
            '</div><div class="nbl-charts">',
            *(_chart(chart, points, view["stages"]) for chart in CHARTS),
            "</div>",
            _table(view["workers"]),
            f'<p class="nbl-notes">{escape(" · ".join(view["notes"]))}</p></div>',
        )
    )


def _tile(tile: dict[str, str]) -> str:
    return (
        f'<div class="nbl-tile"><div class="nbl-label">{escape(tile["label"])}</div><div class="nbl-value">'
        f'{escape(tile["value"])} <span class="nbl-unit">{escape(tile["unit"])}</span></div>'
        f'<div class="nbl-note">{escape(tile["note"])}</div></div>'
    )


def _table(workers: list[dict[str, Any]]) -> str:
    if not workers:
        return ""
    busy = ("fetching", "collating", "sending")
    rows = []
    for worker in workers[:ROWS]:
        look = "busy" if worker["state"] in busy else worker["state"].replace(" ", "-")
        first, state, *rest = (escape(cell) for cell in worker["cells"])
        cells = "".join(f"<td>{cell}</td>" for cell in rest)
        rows.append(
            f'<tr class="nbl-{escape(look)}"><th scope="row">{first}</th><td class="nbl-state">{state}</td>{cells}</tr>'
        )
    if len(workers) > ROWS:
        rows.append(f"<tr><td>… {len(workers) - ROWS} more</td></tr>")
    head = "".join(f'<th scope="col">{name}</th>' for name in WORKER_COLUMNS)
    return f'<div class="nbl-scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _chart(chart: Chart, points: Columns, medians: dict[str, str]) -> str:
    keys = "".join(
        f'<span class="nbl-key" style="--nbl-key:{s.color}">{s.label} {escape(medians.get(s.stage, ""))}</span>'
        for s in chart.series
        if s.label
    )
    return (
        f'<figure class="nbl-chart"><figcaption>{chart.title}<div class="nbl-keys"><span>{chart.unit}</span>{keys}'
        f"</div></figcaption>"
        f'<div class="nbl-plot">{_plot(chart, points)}</div></figure>'
    )


def _plot(chart: Chart, points: Columns) -> str:
    times = [t or 0.0 for t in points["time"]] or [0.0]
    if not points["time"]:
        points = {key: [0.0] for key in points}
    first = next(i for i, t in enumerate(times) if t >= times[-1] - SECONDS_SHOWN)
    shown = range(first, len(times), max(1, math.ceil((len(times) - first) / POINTS)))
    x_values = [times[i] for i in shown]
    lines = [[points[s.column][i] or 0.0 for i in shown] for s in chart.series]
    if chart.stacked:
        for below, line in itertools.pairwise(lines):
            line[:] = [a + b for a, b in zip(below, line, strict=True)]
    top = chart.top or _nice(max((v for line in lines for v in line), default=1.0))

    span = max(x_values[-1] - x_values[0], SECONDS_AT_LEAST)
    xs = [_LEFT + (_WIDTH - _LEFT - _RIGHT) * (t - x_values[0]) / span for t in x_values]

    def y(value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * min(value / top, 1.0)

    out = [f'<svg viewBox="0 0 {_WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{chart.title}">']
    out += [
        f'<line class="nbl-grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        for v in (0, top / 2, top)
    ]
    base = [0.0] * len(xs)
    for series, line in zip(chart.series, lines, strict=True):
        if chart.stacked or len(lines) == 1:
            area = _path(xs, [y(v) for v in line]) + " L" + _path(xs[::-1], [y(v) for v in base[::-1]])[1:] + "Z"
            out.append(f'<path d="{area}" fill="{series.color}" fill-opacity="{0.85 if chart.stacked else 0.22}"/>')
        if not chart.stacked:
            out.append(
                f'<path d="{_path(xs, [y(v) for v in line])}" fill="none" stroke="{series.color}" stroke-width="1.8"/>'
            )
        else:
            base = line
    for value in (0, top / 2, top):
        label = f"{100 * value:.0f}%" if chart.top == 1.0 else f"{value:g}"
        out.append(f'<text x="{_LEFT - 5}" y="{y(value) + 3:.1f}" text-anchor="end">{label}</text>')
    for x, time, anchor in ((_LEFT, x_values[0], "start"), (_WIDTH - _RIGHT, x_values[0] + span, "end")):
        out.append(f'<text x="{x}" y="{HEIGHT - 4}" text-anchor="{anchor}">{time:.0f} s</text>')
    out.append("</svg>")
    return "".join(out)


def _path(xs: Sequence[float], ys: Sequence[float]) -> str:
    return "M" + " L".join(f"{x:.0f} {y:.1f}" for x, y in zip(xs, ys, strict=True))


def _nice(value: float) -> float:
    """Give the next number that is round enough for an axis to end at."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999)
