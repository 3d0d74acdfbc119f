"""The timeline as a still drawing: SVG of bounded size, of the rows that the live view draws. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from nbloader.dashboard.spans import LOOP, PIN, UPLOAD, WORKER
from nbloader.report.slices import KINDS

if TYPE_CHECKING:
    from nbloader.dashboard.spans import Row

SECONDS = 30
"""Drawn: the last ones."""
BLOCKS = 400
"""Blocks drawn at most, about 45 bytes each; shorter ones are put together."""
LANES = 65

_WIDTH, _GUTTER, _AXIS, _TOP = 1000, 64, 16, 4

_Lane = tuple[int, str, int]
"""Where among the lanes, as in `_PLACES`; which device; which loop or worker."""
_PLACES = (LOOP, UPLOAD, PIN, WORKER)
"""From the top: against the path of a batch."""


def timeline(rows: Iterable[Row], pauses: Iterable[Sequence[float]] = ()) -> str:
    """Draw the last 30 seconds of a timeline, up to its last batch.

    Args:
        rows: As made by `spans.Spans`.
        pauses: When the loader was paused: begin and end of each, ms.

    Returns:
        An `svg` element; "" when nothing was delivered yet.
    """
    rows, pauses = list(rows), list(pauses)
    end = max((row[7] for row in rows), default=0.0)
    begin = max(end - 1e3 * SECONDS, min((row[5] for row in rows if row[5]), default=0.0))
    if end <= begin:
        return ""
    lanes = sorted({_lane(row) for row in rows if row[7] >= begin})[:LANES]
    height = max(6, min(18, 400 // len(lanes)))
    scale = (_WIDTH - _GUTTER) / (end - begin)
    least = 1.0
    while True:
        paths, count = _blocks(rows, pauses, lanes, begin, scale, height, least)
        if count <= BLOCKS:
            break
        least *= 2
    total = _TOP + height * len(lanes) + _AXIS
    every = -(-10 // height)
    labels = "".join(
        f'<text x="0" y="{_TOP + height * i + height * 0.7:.0f}">{_label(lane)}</text>'
        for i, lane in enumerate(lanes)
        if not i % every
    )
    span = (end - begin) / 1e3
    ends = f'<text x="{_GUTTER}" y="{total - 4}">{span:.3g} s before</text>'
    ends += f'<text x="{_WIDTH}" y="{total - 4}" text-anchor="end">last batch</text>'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {total}" role="img" aria-label="Timeline of the last {span:.3g} seconds">'
        f"{paths}{labels}{ends}</svg>"
    )


def _lane(row: Row) -> _Lane:
    kind, who = row[0], row[1]
    return (_PLACES.index(kind), who if kind == UPLOAD else "", who if kind in (LOOP, WORKER) else 0)


def _label(lane: _Lane) -> str:
    place, device, number = lane
    return {
        LOOP: "your loop" if number == 0 else f"loop {number + 1}",
        UPLOAD: escape(f"to {device}"[:13]),
        PIN: "pin",
        WORKER: f"worker {number}" if number >= 0 else "in process",
    }[_PLACES[place]]


def _spans(row: Row, pauses: list[Sequence[float]]) -> list[tuple[str, float, float]]:
    kind, (a, b, c) = row[0], row[5:8]
    if kind == LOOP:
        return [*(("wait", *part) for part in _outside(a, b, pauses)), ("step", b, c)]
    if kind in (PIN, UPLOAD):
        return [("pin" if kind == PIN else "upload", a, b)]
    order = [("order", row[8], row[9])] if row[4] == 1 and row[9] > row[8] else []
    return [("fetch", a, b), ("collate", b, c), *order]


def _outside(begin: float, end: float, pauses: list[Sequence[float]]) -> Iterator[tuple[float, float]]:
    for a, b in pauses:
        if a < end and b > begin:
            yield begin, a
            begin = b
    yield begin, end


def _blocks(
    rows: list[Row], pauses: list[Sequence[float]], lanes: list[_Lane], begin: float, scale: float, height: int,
    least: float,
) -> tuple[str, int]:  # fmt: skip
    """One path per kind; blocks of a kind and lane closer than `least` pixels are one."""
    tops = {lane: _TOP + height * i for i, lane in enumerate(lanes)}
    pieces: dict[str, list[str]] = {kind: [] for kind in KINDS}
    pending: dict[tuple[str, int], list[float]] = {}

    def flush(kind: str, top: int) -> None:
        block = pending.pop((kind, top), None)
        if block is not None:
            deep, y = (height * 0.22, top + height * 0.72) if kind == "order" else (height * 0.62, top + 1.0)
            pieces[kind].append(f"M{block[0]:.1f} {y:.1f}h{block[1] - block[0]:.1f}v{deep:.1f}H{block[0]:.1f}z")

    for row in sorted(rows, key=lambda row: row[5]):
        top = tops.get(_lane(row))
        if top is None or row[7] < begin:
            continue
        for kind, left, right in _spans(row, pauses):
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
