"""The timeline as a still drawing: SVG of bounded size, of the rows that the live view draws. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbloader.dashboard.spans import Row

SECONDS = 30
"""Drawn: the last ones."""
BLOCKS = 400
"""Blocks drawn at most, about 45 bytes each; shorter ones are put together."""
LANES = 65

_WIDTH, _GUTTER, _AXIS, _TOP = 1000, 64, 16, 4
_KINDS = ("fetch", "collate", "order", "wait", "step")


def timeline(rows: Iterable[Row]) -> str:
    """Draw the last 30 seconds of a timeline, up to its last batch.

    Args:
        rows: As made by `spans.Spans`.

    Returns:
        An `svg` element; "" when nothing was delivered yet.
    """
    rows = list(rows)
    end = max((row[7] for row in rows), default=0.0)
    begin = max(end - 1e3 * SECONDS, min((row[5] for row in rows if row[5]), default=0.0))
    if end <= begin:
        return ""
    lanes = sorted({(1 - row[0], row[1]) for row in rows if row[7] >= begin})[:LANES]
    height = max(6, min(18, 400 // len(lanes)))
    scale = (_WIDTH - _GUTTER) / (end - begin)
    least = 1.0
    while True:
        paths, count = _blocks(rows, lanes, begin, scale, height, least)
        if count <= BLOCKS:
            break
        least *= 2
    total = _TOP + height * len(lanes) + _AXIS
    every = -(-10 // height)
    labels = "".join(
        f'<text x="0" y="{_TOP + height * i + height * 0.7:.0f}">{_label(lane)}</text>'
        for i, lane in enumerate(lanes)
        if i == 0 or not (i - 1) % every
    )
    span = (end - begin) / 1e3
    ends = f'<text x="{_GUTTER}" y="{total - 4}">{span:.3g} s before</text>'
    ends += f'<text x="{_WIDTH}" y="{total - 4}" text-anchor="end">last batch</text>'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {total}" role="img" aria-label="Timeline of the last {span:.3g} seconds">'
        f"{paths}{labels}{ends}</svg>"
    )


def _label(lane: tuple[int, int]) -> str:
    is_worker, number = lane
    if is_worker:
        return escape(f"worker {number}" if number >= 0 else "in process")
    return "your loop" if number == 0 else f"loop {number + 1}"


def _blocks(
    rows: list[Row], lanes: list[tuple[int, int]], begin: float, scale: float, height: int, least: float
) -> tuple[str, int]:
    """One path per kind; blocks of a kind and lane closer than `least` pixels are one."""
    tops = {lane: _TOP + height * i for i, lane in enumerate(lanes)}
    pieces: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    pending: dict[tuple[str, int], list[float]] = {}

    def flush(kind: str, top: int) -> None:
        block = pending.pop((kind, top), None)
        if block is not None:
            deep, y = (height * 0.22, top + height * 0.72) if kind == "order" else (height * 0.62, top + 1.0)
            pieces[kind].append(f"M{block[0]:.1f} {y:.1f}h{block[1] - block[0]:.1f}v{deep:.1f}H{block[0]:.1f}z")

    for row in sorted(rows, key=lambda row: row[5]):
        top = tops.get((1 - row[0], row[1]))
        if top is None or row[7] < begin:
            continue
        a, b, c = row[5:8]
        spans = [("wait", a, b), ("step", b, c)] if row[0] else [("fetch", a, b), ("collate", b, c)]
        if not row[0] and row[4] == 1 and row[9] > row[8]:
            spans.append(("order", row[8], row[9]))
        for kind, left, right in spans:
            if right <= left:
                continue
            x, until = (_GUTTER + max(0.0, t - begin) * scale for t in (left, right))
            until = max(until, x + 0.6)
            block = pending.get((kind, top))
            if block is not None and x - block[1] < least:
                block[1] = max(block[1], until)
                continue
            flush(kind, top)
            pending[kind, top] = [x, until]
    for kind, top in list(pending):
        flush(kind, top)
    count = sum(map(len, pieces.values()))
    return "".join(f'<path fill="var(--nbl-{k})" d="{"".join(d)}"/>' for k, d in pieces.items() if d), count
