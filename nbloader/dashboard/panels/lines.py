"""The lines of code on which workers spend their time, as a table and a flame graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from nbloader._util.code_places import is_library, place_of, source_line
from nbloader._util.format import clean, percent, plural
from nbloader.dashboard.panels.base import Frame, Panel, section
from nbloader.events.stack_samples import STAGE_FILE, CodeLine
from nbloader.metrics.hot_lines import HotLine, HotLines, describe_split

COLUMNS = {
    "Share": "Share of the workers' time, including the libraries that the line calls",
    "Computing": "The part of it in which the worker used a core",
    "Waiting": "The part of it in which it waited: for a disk, a network, a lock, a sleep, a core",
    "Line": "A line of your code, or of a library if none of your code is on the stack",
    "Place": "Cell or file, and function",
}
"""Headings and their tooltips."""
ROWS = 10
"""Maximum number of lines in the table."""
BLOCKS, LEVELS = 100, 14
"""Maximum number of blocks and of levels in the flame graph."""
NARROWEST = 0.01
"""Width of the narrowest block, as a share of the graph."""
HINT = (
    "Finds the lines of __getitem__, collate_fn and the functions they call on which workers spend their time. Workers "
    "are sampled while the loop waits, or all the time, which takes less than 1% of it."
)
NOTHING_YET = "Sampling the workers while an epoch runs: nothing found yet."
_SOURCE, _PLACE, _LABEL = 100, 80, 60


class Lines(Panel):
    """The hottest lines and a flame graph, once sampling has been switched on."""

    name = "lines"
    title = "Lines of code"

    def payload(self, frame: Frame) -> dict[str, Any]:
        """Return the table and the blocks; both are empty without samples."""
        hot = frame.lines
        blocks = flame_blocks(hot)
        return {
            "profiling": hot.profiling,
            "hint": "" if hot.lines else NOTHING_YET if hot.profiling else HINT,
            "summary": _summary(hot),
            "first": _first(hot.lines[0]) if hot.lines else "",
            "columns": [*COLUMNS.items()],
            "rows": [_row(line) for line in hot.lines[:ROWS]],
            "levels": 1 + max((block.level for block in blocks), default=-1),
            "blocks": [[b.left, b.width, b.level, b.computing, b.label, b.tip] for b in blocks],
        }

    def html(self, payload: dict[str, Any]) -> str:
        """Return the table."""
        if not payload["rows"]:
            return ""
        head = "".join(f'<th scope="col" title="{escape(tip)}">{name}</th>' for name, tip in COLUMNS.items())
        rows = "".join(
            f"<tr><td>{share}</td><td>{computing}</td><td>{waiting}</td>"
            f'<td class="nbl-source">{escape(row["source"])}</td><td>{escape(row["place"])}</td></tr>'
            for row in payload["rows"]
            for share, computing, waiting in (row["shares"],)
        )
        table = f'<div class="nbl-scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        return section(self.title, f'<p class="nbl-label">{escape(payload["summary"])}</p>{table}')


def _summary(hot: HotLines) -> str:
    if not hot.lines:
        return ""
    return f"{plural(hot.samples, 'sample')} of busy workers: {describe_split(hot)}"


def _first(line: HotLine) -> str:
    return f"{percent(line.share)} {clean(line.source or line.function, _LABEL)} · {clean(line.place, _PLACE)}"


def _row(line: HotLine) -> dict[str, Any]:
    place = line.place if line.file == STAGE_FILE else f"{line.place}, {line.function}"
    return {
        "shares": [percent(line.share), percent(line.computing), percent(line.waiting)],
        "bars": [round(100 * line.computing, 1), round(100 * line.waiting, 1)],
        "source": clean(line.source or line.function, _SOURCE),
        "place": clean(place, _PLACE),
        "tip": f"{clean(line.file, _PLACE)}, line {line.line}; {percent(line.total)} with your functions that it calls",
    }


# ---- the flame graph ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """A line of code in the flame graph, drawn above the lines that it calls."""

    left: float
    """Left end, in percent of the graph."""
    width: float
    """Width, in percent of the graph."""
    level: int
    """Depth in the stack; 0 for the lines that nbloader calls."""
    computing: int
    """Percent of the block's samples in which the worker computed."""
    label: str
    tip: str


@dataclass(slots=True)
class _Node:
    computing: float = 0.0
    waiting: float = 0.0
    calls: dict[CodeLine, _Node] = field(default_factory=dict)

    @property
    def samples(self) -> float:
        return self.computing + self.waiting


def flame_blocks(hot: HotLines) -> list[Block]:
    """Build the blocks of a flame graph: the widest calls of each line, below the block of that line."""
    root = _Node()
    for count in hot.stacks:
        node = root
        for line in (None, *count.stack[:LEVELS]):
            node = node if line is None else node.calls.setdefault(line, _Node())
            node.computing += count.computing
            node.waiting += count.waiting
    blocks: list[Block] = []
    level: list[tuple[float, _Node]] = [(0.0, root)]
    for depth in range(LEVELS):
        level = [placed for left, node in level for placed in _draw_calls(blocks, node, left, depth, root.samples)]
    return blocks[:BLOCKS]


def _draw_calls(blocks: list[Block], node: _Node, left: float, level: int, samples: float) -> list[tuple[float, _Node]]:
    """Add blocks for the lines that a line calls, the widest first. Return their left ends and nodes."""
    placed = []
    for line, called in sorted(node.calls.items(), key=lambda item: (-item[1].samples, item[0])):
        share = called.samples / samples if samples else 0.0
        if share < NARROWEST:
            break
        computing = called.computing / called.samples
        blocks.append(
            Block(
                round(100 * left, 2), round(100 * share, 2), level, round(100 * computing), _label(line),
                f"{percent(share)}, of which {percent(computing)} computing\n{_place(line)}",
            )
        )  # fmt: skip
        placed.append((left, called))
        left += share
    return placed


def _label(line: CodeLine) -> str:
    """The text of a line of user code; for a line of a library, the name of its function."""
    text = "" if line.file == STAGE_FILE or is_library(line.file) else source_line(line.file, line.line)
    return clean(text or line.function, _LABEL)


def _place(line: CodeLine) -> str:
    if line.file == STAGE_FILE:
        return "in nbloader itself"
    return clean(f"{place_of(line.file, line.line)}, {line.function}", _PLACE)
