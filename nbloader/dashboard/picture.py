"""The dashboard as a static picture: HTML and SVG that need no kernel, no script and no network.

It has the structure and the styles of the live view, so that one can take the other's place. Under 100 kB whatever the
loader did: the plots are thinned, the table is cut, and every text from outside has a bounded length.
"""

from __future__ import annotations

import itertools
import math
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbloader.dashboard import lanes_svg
from nbloader.dashboard.payload import WORKER_COLUMNS
from nbloader.dashboard.plots import HEIGHT, SECONDS_AT_LEAST, SECONDS_SHOWN, Chart, charts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nbloader.dashboard.payload import Columns
    from nbloader.dashboard.spans import Row

POINTS = 110
"""Points drawn of each line."""
ROWS = 64
"""Workers listed."""
CELLS_FROM = 8
"""Of more workers each is a cell in the path."""
SAMPLES, LINES = 10, 24
"""Samples of a kind and lines of the log that are listed, the last ones."""
KEYS = {
    "fetch": "fetches",
    "collate": "collates",
    "order": "made, waits for an earlier batch",
    "pin": "is pinned",
    "upload": "is uploaded",
    "wait": "your loop waits",
    "step": "your loop works",
}

_WIDTH = 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 8, 8, 18


@cache
def _styles() -> str:
    text = (Path(__file__).parent / "dashboard.css").read_text("utf-8")
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)).strip()


def html(
    name: str, view: dict[str, Any], points: Columns, rows: Iterable[Row] = (), lines: Iterable[Sequence[Any]] = ()
) -> str:
    """Draw the picture.

    Args:
        name: Identity of the dashboard, by which its live views hide the picture.
        view: As made by `payload.view_of`.
        points: As made by `payload.columns_of`.
        rows: Of the timeline, as made by `spans.Spans`.
        lines: Of the log: time in ms, kind, text.

    Returns:
        A fragment of HTML with its own styles. All texts are escaped.
    """
    progress, charts = view["progress"], charts_of(placed=view["placed"])
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
            "</div>",
            _section("Path of a batch", _path_boxes(view["path"])),
            _section("Timeline", _timeline(rows, view)),
            _section("Workers", _table(view["workers"]), view["workers"]),
            _section(
                "Plots over time",
                f'<div class="nbl-charts">{"".join(_chart(chart, points, view["stages"]) for chart in charts)}</div>',
            ),
            _section("Samples", _samples(view["samples"]), folded=True),
            _section("Events", _log(list(lines)[-LINES:]), folded=True),
            f'<p class="nbl-notes">{escape(" · ".join(view["notes"]))}</p></div>',
        )
    )


def _section(title: str, body: str, there: object = True, *, folded: bool = False) -> str:
    if not body or not there:
        return ""
    return (
        f'<details class="nbl-section"{"" if folded else " open"}><summary><span class="nbl-title">{title}</span>'
        f'</summary><div class="nbl-body">{body}</div></details>'
    )


def _path_boxes(path: dict[str, Any]) -> str:
    boxes = []
    for box in path["boxes"]:
        marks = (f" nbl-{box['mark']}" if box["mark"] else "") + (" nbl-off" if box["off"] else "")
        inside = _crew(path) if box["id"] == "workers" else _tokens(box, path["wanted"])
        boxes.append(
            f'<div class="nbl-box nbl-box-{box["id"]}{marks}"><div class="nbl-box-title">{escape(box["title"])}</div>'
            f'{inside}<div class="nbl-note">{escape(box["note"])}</div>'
            f'<div class="nbl-alarm">{escape(box["alarm"])}</div></div>'
        )
    return f'<div class="nbl-path">{"".join(boxes)}</div>'


def _crew(path: dict[str, Any]) -> str:
    members = "".join(
        f'<div class="nbl-member nbl-{_look(w["state"])}"><i>{w["id"]}</i>{_tokens(w, path["wanted"])}</div>'
        for w in path["crew"][:ROWS]
    )
    cells = " nbl-cells" if len(path["crew"]) > CELLS_FROM else ""
    return f'<div class="nbl-crew{cells}">{members}</div>'


def _tokens(box: dict[str, Any], wanted: int | None) -> str:
    tokens = "".join(f'<span class="nbl-token{" nbl-wanted" if n == wanted else ""}">{n}</span>' for n in box["tokens"])
    more = f'<span class="nbl-more">+{box["more"]}</span>' if box["more"] else ""
    return f'<span class="nbl-tokens">{tokens}{more}</span>'


def _timeline(rows: Iterable[Row], view: dict[str, Any]) -> str:
    drawn = lanes_svg.timeline(rows, view.get("pauses", ()))
    shown = KEYS if view["placed"] else {kind: word for kind, word in KEYS.items() if kind not in ("pin", "upload")}
    keys = "".join(f'<span class="nbl-key nbl-key-{kind}">{word}</span>' for kind, word in shown.items())
    return f'<div class="nbl-keys">{keys}</div><div class="nbl-frame">{drawn}</div>' if drawn else ""


def _samples(samples: dict[str, Any]) -> str:
    lists = []
    for title, items in (("Slowest, of the last three epochs", samples["slowest"]), ("Failed", samples["failed"])):
        if items:
            entries = "".join(
                f"<li><i>{escape(index)}</i><span>{escape(what)}</span>"
                f'<span class="nbl-note">{escape(where)}, {escape(who)}</span></li>'
                for index, what, where, who in items[:SAMPLES]
            )
            lists.append(f'<div><div class="nbl-box-title">{title}</div><ul class="nbl-samples">{entries}</ul></div>')
    return f'<div class="nbl-columns">{"".join(lists)}</div>' if lists else ""


def _log(lines: list[Sequence[Any]]) -> str:
    if not lines:
        return ""
    zero = lines[0][0]
    entries = "".join(
        f'<li class="nbl-line-{kind}"><span class="nbl-note">{(ms - zero) / 1e3:.2f} s</span>'
        f'<span class="nbl-kind">{kind}</span><span>{escape(text)}</span></li>'
        for ms, kind, text in reversed(lines)
    )
    return f'<ol class="nbl-log">{entries}</ol>'


def _look(state: str) -> str:
    return "busy" if state in ("fetching", "collating", "sending") else escape(state.replace(" ", "-"))


def _tile(tile: dict[str, str]) -> str:
    return (
        f'<div class="nbl-tile"><div class="nbl-label">{escape(tile["label"])}</div><div class="nbl-value">'
        f'{escape(tile["value"])} <span class="nbl-unit">{escape(tile["unit"])}</span></div>'
        f'<div class="nbl-note">{escape(tile["note"])}</div></div>'
    )


def _table(workers: list[dict[str, Any]]) -> str:
    if not workers:
        return ""
    rows = []
    for worker in workers[:ROWS]:
        first, state, *rest = (escape(cell) for cell in worker["cells"])
        head = f'<th scope="row">{first}</th><td class="nbl-state">{state}</td>'
        cells = "".join(f"<td>{cell}</td>" for cell in rest)
        rows.append(f'<tr class="nbl-{_look(worker["state"])}">{head}{cells}</tr>')
    if len(workers) > ROWS:
        rows.append(f"<tr><td>… {len(workers) - ROWS} more</td></tr>")
    head = "".join(f'<th scope="col">{name}</th>' for name in WORKER_COLUMNS)
    return f'<div class="nbl-scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _chart(chart: Chart, points: Columns, medians: dict[str, list[str]]) -> str:
    keys = "".join(
        f'<span class="nbl-key" style="--nbl-key:{s.color}">{s.label} {escape(medians.get(s.stage, [""])[0])}</span>'
        for s in (chart.series[:1] if chart.one_of else chart.series)
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
    series = chart.series[:1] if chart.one_of else chart.series
    lines = [[points[s.column][i] or 0.0 for i in shown] for s in series]
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
    for one, line in zip(series, lines, strict=True):
        if chart.stacked or len(lines) == 1:
            area = _path(xs, [y(v) for v in line]) + " L" + _path(xs[::-1], [y(v) for v in base[::-1]])[1:] + "Z"
            out.append(f'<path d="{area}" fill="{one.color}" fill-opacity="{0.85 if chart.stacked else 0.22}"/>')
        if not chart.stacked:
            out.append(
                f'<path d="{_path(xs, [y(v) for v in line])}" fill="none" stroke="{one.color}" stroke-width="1.8"/>'
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
