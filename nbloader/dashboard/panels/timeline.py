"""Timeline of recent activity: what each lane did, and when. `report/timeline.py` creates the rows."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from nbloader.dashboard.panels.base import Frame, Panel, section
from nbloader.events import BatchRecord, EpochEnded, EpochStarted, LoopStopped, WorkerDied
from nbloader.metrics.aggregator import LIVE
from nbloader.metrics.stage_times import returned_at
from nbloader.report import timeline as description
from nbloader.report.slices import KINDS, Lane, LaneKind, loop_lane, worker_lane

if TYPE_CHECKING:
    from nbloader.metrics.snapshot import Snapshot
    from nbloader.report.timeline import Row

SECONDS, KEPT_SECONDS = 30, 120
"""Maximum number of seconds that the timeline shows: of a running epoch, and of an epoch that has ended."""
PAUSES, PAUSES_NS = 40, 120 * 10**9
"""Maximum number of pauses that are drawn (the most recent ones), and their maximum age, ns."""
BLOCKS = 400
"""Maximum number of bars in the static form, about 45 bytes each. Neighbors are merged to stay within the limit."""
LANES = 65
"""Maximum number of lanes in the static form."""
_WIDTH, _GUTTER, _AXIS, _TOP = 1000, 84, 16, 4
_LEAST = 0.4
"""Width of the narrowest bar, pixels."""


class Timeline(Panel):
    """A canvas that can be zoomed and panned. Its rows are sent as news."""

    name = "timeline"
    title = "Timeline"

    def __init__(self) -> None:
        self._timeline = description.Timeline()
        self._frame: Frame | None = None
        self._newest: EpochStarted | None = None
        self._ended: EpochEnded | None = None
        """The end of the newest epoch; None while it runs."""
        self._stop: LoopStopped | None = None
        """The error or interrupt that stopped the loop of that epoch; None if there is none or the loop went on."""
        self._losses = False

    def news(self, frame: Frame) -> list[Any]:
        """Return rows for the batches of this frame."""
        self._frame = frame
        for event in frame.events:
            self._timeline.pauses.note(event)
            if isinstance(event, EpochStarted) and (self._newest is None or event.epoch > self._newest.epoch):
                self._newest, self._ended, self._stop = event, None, None
            elif isinstance(event, EpochEnded) and self._newest is not None and event.epoch == self._newest.epoch:
                self._ended = event
            elif isinstance(event, LoopStopped) and self._newest is not None and event.epoch == self._newest.epoch:
                self._stop = event
            elif isinstance(event, BatchRecord) and self._stop is not None and event.requested > self._stop.time:
                self._stop = None
        begin = frame.now - KEPT_SECONDS * 10**9
        records = [e for e in frame.events if isinstance(e, BatchRecord) and returned_at(e) > begin]
        deaths = [e for e in frame.events if isinstance(e, WorkerDied) and e.time > begin]
        rows = self._timeline.take(records, frame.snapshot.made, deaths)
        self._losses = self._losses or any(row.lost for row in rows)
        return [self._row_json(row, frame) for row in rows]

    def history(self) -> list[Any]:
        """Return the rows that are kept."""
        return [] if self._frame is None else [self._row_json(row, self._frame) for row in self._timeline.rows]

    def _row_json(self, row: Row, frame: Frame) -> dict[str, Any]:
        """Convert a row to JSON. Blocks are `[kind, begin, end]`, times in ms; the end is null while a block lasts."""
        entry: dict[str, Any] = {
            "lane": row.lane.label,
            "key": f"{row.epoch}/{row.batch}/{row.lost}",
            "blocks": [[b.kind, frame.ms(b.begin), frame.ms(b.end) if b.end else None] for b in row.blocks],
            "tip": row.tip,
        }
        if row.epoch >= 0:
            entry["batch"] = [row.epoch, row.batch]
        if row.stall:
            entry["stall"] = {"at": frame.ms(row.stalled_until), "label": description.stall_label(row)}
        return entry

    def payload(self, frame: Frame) -> dict[str, Any]:
        """Return the legend, the lanes, the pauses, and the blocks that have begun but not ended."""
        s = frame.snapshot
        device = bool(s.pinned or s.device)
        nodes = {w.worker: w.node for w in s.workers if w.node}
        pauses = self._timeline.pauses.between(frame.now - PAUSES_NS, frame.now)[-PAUSES:]
        return {
            "kinds": [
                {"name": kind.name, "label": kind.label, "color": kind.color, "below": kind.below}
                for kind in KINDS.values()
                if (device or not kind.device)
                and (self._losses or not kind.loss)
                and (s.workers or not kind.below)
                and (nodes or not kind.remote)
            ],
            "lanes": _lane_labels(self._timeline.lanes(w.worker for w in s.workers), nodes),
            **({"nodes": sorted(set(nodes.values()))} if nodes else {}),
            "pauses": [[frame.ms(begin), frame.ms(end)] for begin, end in pauses],
            "open": list(_open_blocks(s, frame)),
            "live": s.state in LIVE,
            "seconds": SECONDS,
            "epoch": self._epoch_span(frame),
        }

    def _epoch_span(self, frame: Frame) -> list[float | None] | None:
        """Begin and end of the newest epoch, ms. None before the first epoch; the end is None while the epoch runs."""
        if self._newest is None:
            return None
        end = self._ended if self._stop is None or frame.snapshot.state in LIVE else self._stop
        return [frame.ms(self._newest.time), None if end is None else frame.ms(end.time)]

    def html(self, payload: dict[str, Any]) -> str:
        """Return the last seconds as SVG."""
        drawn = svg(self._timeline.rows, 0 if self._newest is None else self._newest.time)
        keys = "".join(
            f'<span class="nbl-key" style="--nbl-key:{kind["color"]}">{kind["label"]}</span>'
            for kind in payload["kinds"]
        )
        return section(self.title, drawn and f'<div class="nbl-keys">{keys}</div><div class="nbl-frame">{drawn}</div>')


def _lane_labels(lanes: Sequence[Lane], nodes: Mapping[int, str]) -> list[str]:
    """Label the lanes from top to bottom. Workers on other machines are below the name of their machine.

    Args:
        lanes: The lanes.
        nodes: The machine of each worker that runs on another machine.
    """

    def node_of(lane: Lane) -> str:
        return nodes.get(lane.number, "") if lane.kind is LaneKind.WORKER else ""

    labels: list[str] = []
    node = ""
    for lane in sorted(lanes, key=lambda lane: (node_of(lane), lane)):
        if node_of(lane) != node:
            node = node_of(lane)
            labels.append(node)
        labels.append(lane.label)
    return labels


def _open_blocks(s: Snapshot, frame: Frame) -> Iterator[dict[str, Any]]:
    """Yield the blocks that the workers and the loop have begun but not ended."""

    def since(seconds: float) -> float:
        return round(frame.ms(frame.now) - 1e3 * seconds, 1)

    if s.state in ("running", "starting"):
        lane = loop_lane(0).label
        if s.waiting is not None:
            yield {"lane": lane, "kind": "wait", "begin": since(s.waiting)}
        elif s.at is not None and s.at_for is not None:
            yield {"lane": lane, "kind": "step", "begin": since(s.at_for)}
    for w in s.workers:
        if w.batch_age is not None:
            kind = "collate" if w.state == "collating" else "fetch"
            yield {
                "lane": worker_lane(w.worker).label, "kind": kind, "begin": since(w.batch_age), "stuck": w.stuck
            }  # fmt: skip


# --- the static form


class _Area(NamedTuple):
    """Layout and scale of a static timeline."""

    begin: int
    """Left end, perf_counter ns."""
    pixels_per_ns: float
    lane_height: int
    tops: dict[Lane, int]

    def x(self, ns: int) -> float:
        return _GUTTER + max(0, ns - self.begin) * self.pixels_per_ns


class _Band(NamedTuple):
    """The body of a lane, or the thin strip below it."""

    top: int
    below: bool


class _Bar(NamedTuple):
    """A colored bar of the drawing; positions in pixels."""

    left: float
    right: float
    kind: str


def svg(rows: Iterable[Row], epoch: int = 0) -> str:
    """Draw the newest epoch of a timeline, at most its last two minutes, as SVG of bounded size.

    Args:
        rows: The rows of a `report.timeline.Timeline`.
        epoch: When the epoch began, perf_counter ns; 0 if unknown.

    Returns:
        An `svg` element; "" if there is nothing to draw yet.
    """
    rows = list(rows)
    end = max((row.end for row in rows), default=0)
    begin = max(end - KEPT_SECONDS * 10**9, epoch, min((row.begin for row in rows), default=0))
    if end <= begin:
        return ""
    rows = sorted((row for row in rows if row.end >= begin), key=lambda row: row.begin)
    lanes = sorted({row.lane for row in rows})[:LANES]
    height = max(6, min(18, 400 // len(lanes)))
    tops = {lane: _TOP + height * i for i, lane in enumerate(lanes)}
    area = _Area(begin, (_WIDTH - _GUTTER) / (end - begin), height, tops)
    bands = _bands(rows, area)
    size = 1.0
    while True:
        bars = {band: list(_joined(own, size)) for band, own in bands.items()}
        if sum(map(len, bars.values())) <= BLOCKS:
            break
        size *= 2
    paths = "".join(_path(kind, bars, height) for kind in KINDS)
    total = _TOP + height * len(lanes) + _AXIS
    every = -(-10 // height)
    labels = "".join(
        f'<text x="0" y="{top + height * 0.7:.0f}">{escape(lane.label)}</text>'
        for i, (lane, top) in enumerate(tops.items())
        if not i % every
    )
    span = (end - begin) / 1e9
    axis = f'<text x="{_GUTTER}" y="{total - 4}">\N{MINUS SIGN}{span:.3g} s</text>'
    axis += f'<text x="{_WIDTH}" y="{total - 4}" text-anchor="end">last batch</text>'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {total}" role="img" aria-label="Timeline of the last {span:.3g} seconds">'
        f"{paths}{labels}{axis}</svg>"
    )


def _bands(rows: Iterable[Row], area: _Area) -> dict[_Band, list[_Bar]]:
    """Return the visible blocks of each band as bars, from left to right."""
    bands: dict[_Band, list[_Bar]] = collections.defaultdict(list)
    for row in rows:
        top = area.tops.get(row.lane)
        if top is None:
            continue
        for kind, begin, end in row.blocks:
            if end > max(begin, area.begin):
                bands[_Band(top, KINDS[kind].below)].append(_Bar(area.x(begin), area.x(end), kind))
    return {band: sorted(bars) for band, bars in bands.items()}


def _joined(bars: Iterable[_Bar], size: float) -> Iterator[_Bar]:
    """Merge neighbors until they are `size` pixels wide. Each kind keeps its share of the width."""
    group: list[_Bar] = []
    for bar in bars:
        if group and (group[-1].right - group[0].left >= size or bar.left - group[-1].right > size):
            yield from _merged(group)
            group = []
        group.append(bar)
    yield from _merged(group)


def _merged(group: Sequence[_Bar]) -> Iterator[_Bar]:
    if len(group) == 1:
        (bar,) = group
        yield bar._replace(right=max(bar.right, bar.left + _LEAST))
        return
    left = group[0].left if group else 0.0
    for kind in KINDS:
        width = sum(bar.right - bar.left for bar in group if bar.kind == kind)
        if width >= _LEAST:
            yield _Bar(left, left + width, kind)
        left += width


def _path(kind: str, bars: Mapping[_Band, Iterable[_Bar]], height: int) -> str:
    """Draw all bars of a kind as one path."""
    pieces = []
    for band, own in bars.items():
        deep, y = (height * 0.22, band.top + height * 0.72) if band.below else (height * 0.62, band.top + 1.0)
        pieces += [
            f"M{left:.1f} {y:.1f}h{right - left:.1f}v{deep:.1f}H{left:.1f}z" for left, right, k in own if k == kind
        ]
    return f'<path fill="{KINDS[kind].color}" d="{"".join(pieces)}"/>' if pieces else ""
