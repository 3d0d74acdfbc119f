"""What a search for better settings has tried, as HTML with a plot, for notebooks. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from nbloader._util import palette
from nbloader._util.format import number, percent
from nbloader.diagnose.tune import Setting, Trial, outcome
from nbloader.report.render import html_table

WIDTH, HEIGHT = 660, 230
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 16, 48
"""Margins of the plot, pixels."""
TICKS = 4
"""Maximum number of ticks of the axis."""
ERRORS = 2
"""Standard errors that a bar extends to either side: measurements whose bars overlap may be equal."""
COLUMNS = ("tried", "batches/s", "loop waits", "")
_GREY = "rgba(128,128,128,.35)"


def html_of(trials: Sequence[Trial], best: Trial | None, start: Setting, chosen: Setting, summary: str) -> str:
    """The table and the plot of what was tried, and the line of code to write down.

    Args:
        trials: In the order in which they were measured.
        best: The fastest.
        start: The setting before the search.
        chosen: The setting to write down.
        summary: What was found.
    """
    rows = [
        [
            escape(str(trial.setting)),
            f"{number(trial.measured.rate)} &plusmn; {number(ERRORS * trial.measured.error * trial.measured.rate)}",
            percent(trial.measured.wait_share),
            outcome(trial, best, trials),
        ]
        for trial in trials
    ]
    found = f"{plot(trials, best, start)}{html_table(COLUMNS, rows, left=(0, 3))}" if trials else ""
    code = f"DataLoader(..., {chosen})"
    return (
        f'<div style="font:13px/1.45 var(--jp-ui-font-family,system-ui,sans-serif);max-width:{WIDTH}px;'
        f'color:var(--jp-ui-font-color1,inherit);font-variant-numeric:tabular-nums">{found}'
        f'<div style="margin:8px 0 4px">{escape(summary)}</div>'
        f'<code style="user-select:all">{escape(code)}</code></div>'
    )


def plot(trials: Sequence[Trial], best: Trial | None, start: Setting) -> str:
    """The rate of each setting with its error, as SVG for light and dark pages. Fewer workers are on the left."""
    ordered = sorted(trials, key=lambda trial: (trial.setting.num_workers, trial.setting.prefetch_factor or 0))
    top = max(trial.measured.rate * (1 + ERRORS * min(1.0, trial.measured.error)) for trial in trials) * 1.08
    step = (WIDTH - LEFT - RIGHT) / len(ordered)

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(rate, 0.0), top) / top

    parts = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="{_GREY}"/>'
        f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        for tick in _ticks(top)
    ]
    before = next((trial for trial in trials if trial.setting == start), None)
    if before is not None:
        at = y(before.measured.rate)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="currentColor" '
            f'stroke-dasharray="5 4" opacity=".6"><title>before: {escape(str(start))}</title></line>'
        )
    for position, trial in enumerate(ordered):
        parts.append(_mark(trial, outcome(trial, best, trials), LEFT + (position + 0.5) * step, y))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Batches per second by setting" '
        f'style="width:100%;height:auto;display:block" font-size="11" fill="currentColor">'
        f'<text x="{LEFT}" y="{TOP - 5}" opacity=".7">batches per second; dashed: before</text>{"".join(parts)}</svg>'
    )


def _ticks(top: float) -> list[float]:
    """Round numbers from 0 on."""
    size = 10.0 ** math.floor(math.log10(top)) if top > 0 else 1.0
    unit = next(size * share for share in (0.1, 0.2, 0.5, 1, 2, 5) if top / (size * share) <= TICKS)
    return [unit * i for i in range(int(top / unit) + 1)]


def _mark(trial: Trial, word: str, x: float, y: Callable[[float], float]) -> str:
    """A dot with its error, and the setting below it."""
    m, setting = trial.measured, trial.setting
    error = ERRORS * m.rate * min(1.0, m.error)
    color = {"best": palette.GOOD, "faster": palette.STAGES["fetch"]}.get(word, palette.OTHER)
    tip = f"{setting}: {number(m.rate)} batches/s, loop waits {percent(m.wait_share)}, {word}"
    window = "" if setting.prefetch_factor is None else f"prefetch {setting.prefetch_factor}"
    window = ", ".join(part for part in (window, setting.kind) if part)
    workers = f"{setting.num_workers} worker{'' if setting.num_workers == 1 else 's'}"
    weight = "bold" if word == "best" else "normal"
    label = f'text-anchor="middle" font-weight="{weight}"'
    fill = color if word in ("best", "faster") else "none"
    return (
        f"<g><title>{escape(tip)}</title>"
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y(m.rate - error):.1f}" y2="{y(m.rate + error):.1f}" stroke="{color}" '
        f'stroke-width="2"/><circle cx="{x:.1f}" cy="{y(m.rate):.1f}" r="{6 if word == "best" else 4.5}" fill="{fill}" '
        f'stroke="{color}" stroke-width="2"/>'
        f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" {label}>{workers}</text>'
        f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 33}" {label} opacity=".7">{window}</text></g>'
    )
