"""One field of a sample, as it is sent to the browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nbloader._util.format import number, percent
from nbloader.explorer.problems import Check
from nbloader.explorer.values import ArrayFigures

SUMMARY = 80
"""Maximum length of a summary, in characters."""
FEW = 6
"""Maximum number of elements of an array that its summary shows."""
CARD_FIELDS = 24
"""Maximum number of fields of a card: the first leaves."""
LABEL_NAMES = ("label", "labels", "target", "targets", "class", "category", "y", "1", "")
"""Names of fields to which the dataset's `classes` apply; "" is for a sample that is itself a number."""


@dataclass(slots=True)
class Field:
    """One field of a sample, as it is sent to the browser."""

    path: str
    kind: str
    """Name of the kind, which draws it."""
    type: str
    summary: str = ""
    """One short line."""
    value: bool | float | str | None = None
    """A number, or the name of a label, for tables; None for anything else."""
    depth: int = 0
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    nbytes: int = 0
    note: str = ""
    """How it was drawn, or what was left out."""
    text: str = ""
    """The full text or repr of a field that has one."""
    figures: ArrayFigures | None = None
    facts: dict[str, float | str] = field(default_factory=dict)
    """For tables and histograms: shape, mean, minimum, maximum, length."""
    picture: int = -1
    """Index of the buffer with the picture as PNG; -1 if there is none."""
    size: tuple[int, int] | None = None
    """Width and height of the picture in the sample, in pixels."""
    data: dict[str, Any] = field(default_factory=dict)
    """JSON values for the JavaScript half of the kind, of bounded size."""
    drawn: bool = False
    """Whether the JavaScript half has something to draw on a card; otherwise the card shows the text or the summary."""
    absent: bool = False
    """Whether there is no value, and so nothing for captions and tables."""
    container: bool = False
    """Whether the fields that follow are parts of this one."""


@dataclass(slots=True)
class Description:
    """A sample as it is sent to the browser."""

    fields: list[Field] = field(default_factory=list)
    buffers: list[bytes] = field(default_factory=list)
    cover: int = -1
    """Index of the field that represents the sample in the gallery; -1 if there is none."""
    caption: list[int] = field(default_factory=list)
    """Indices of the fields whose summaries are below it."""
    nbytes: int = 0
    left_out: int = 0
    """Number of fields beyond `MAX_FIELDS`."""
    check: Check | None = None
    """What a scan has found."""


def figure_lines(figures: ArrayFigures) -> list[str]:
    """Format the statistics of an array as lines of text."""
    lines = []
    if figures.minimum is not None and figures.maximum is not None and figures.mean is not None:
        lines.append(f"{_extreme(figures.minimum)} to {_extreme(figures.maximum)}, mean {number(figures.mean)}")
    if figures.nan:
        lines.append(f"{percent(figures.nan)} NaN")
    if figures.inf:
        lines.append(f"{percent(figures.inf)} infinite")
    if figures.read < figures.count:
        lines.append(f"from {figures.read:,} of {figures.count:,} elements")
    return lines


def _extreme(value: float) -> str:
    """Format a whole number without decimals."""
    text = number(value)
    return text.removesuffix(".00").removesuffix(".0") if value.is_integer() else text


def to_json(item: Field) -> dict[str, Any]:
    """Convert a field to JSON values, leaving out empty ones."""
    out: dict[str, Any] = {"path": item.path, "kind": item.kind, "type": item.type, "summary": item.summary}
    for name in ("depth", "dtype", "nbytes", "note", "text", "size", "shape", "data", "drawn", "absent", "container"):
        value = getattr(item, name)
        if value:
            out[name] = value
    if item.value is not None:
        out["value"] = item.value
    if item.facts:
        out["facts"] = item.facts
    if item.shape is not None:
        out["shape"] = list(item.shape)
    if item.picture >= 0:
        out["picture"] = item.picture
    if item.figures is not None:
        out["figures"] = figure_lines(item.figures)
        out["histogram"] = list(item.figures.histogram)
        low, high = item.figures.minimum, item.figures.maximum
        out["range"] = [] if low is None or high is None else [_extreme(low), _extreme(high)]
    return out


def caption_text(item: Field) -> str:
    """Return what the caption of a card says about a field: a number says nothing without its name."""
    name = item.path.rpartition(".")[2]
    return f"{name} {item.summary}" if item.kind == "number" and name and not name.isdigit() else item.summary


def card_fields(fields: Sequence[Field]) -> list[Field]:
    """Return the fields of a card: the first leaves, and containers that have a drawing."""
    return [item for item in fields if item.drawn or not item.container][:CARD_FIELDS]


def shape_text(shape: Sequence[int]) -> str:
    """Format a shape: its lengths with multiplication signs between them; "scalar" if it has no dimensions."""
    return "\N{MULTIPLICATION SIGN}".join(map(str, shape)) or "scalar"
