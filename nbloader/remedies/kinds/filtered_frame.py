"""Rows of a data frame that are searched for each sample by a value in a column, which compares the whole column."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from nbloader._platform import available_memory
from nbloader.cache.sample_cache import MEMORY_SHARE
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

HELPER = '''\
_parts = {}

def rows_with(frame, column, value):
    """The rows of a data frame with a value in a column. The frame is split once per process."""
    key = id(frame), column
    if key not in _parts:
        _parts[key] = frame, dict(tuple(frame.groupby(column, sort=False, observed=True)))
    part = _parts[key][1].get(value)
    return frame[frame[column] == value] if part is None else part.copy()
'''


class FilteredFrame:
    """`frame[frame["item"] == x]`: a data frame that is split once by its column has the rows of each value."""

    name = "filtered-frame"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        found = [one for node in site.nodes if (one := _filtered(site, node)) is not None]
        if not found:
            return []
        edits = [Edit(one.node, f"rows_with({one.frame}, {one.column!r}, {one.value})") for one in found]
        frame, column = found[0].frame, found[0].column
        why = "Each sample compares the whole column of the data frame with a value."
        instead = (
            f"Split the data frame once, in __init__ with dict(tuple({frame}.groupby({column!r}))), or as below. "
            "The parts take as much memory as the data frame. Later changes of the data frame do not reach them."
        )
        short = f"Split the data frame by {column!r} once"
        return [Proposal(why, instead, site.rewritten(*edits), HELPER, short=short)]


class _Filtered(NamedTuple):
    """`frame[frame[column] == value]`."""

    node: ast.Subscript
    frame: str
    column: str
    value: str


def _filtered(site: Site, node: ast.AST) -> _Filtered | None:
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return None
    owner, test = node.value, node.slice
    if isinstance(owner, ast.Attribute) and owner.attr == "loc":
        owner = owner.value
    if not _fits(site.target(owner)) or not isinstance(test, ast.Compare):
        return None
    if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return None
    frame = site.text(owner)
    sides = (test.left, test.comparators[0])
    for side, other in (sides, sides[::-1]):
        column = _column(site, side, frame)
        if column and frame not in site.text(other) and not isinstance(other, ast.Constant):
            return _Filtered(node, frame, column, site.text(other))
    return None


def _fits(frame: Any) -> bool:
    """Whether an object is a data frame that each worker has memory for."""
    if type(frame).__name__ != "DataFrame":
        return False
    available = available_memory()
    return available is None or frame.memory_usage().sum() <= available // MEMORY_SHARE


def _column(site: Site, node: ast.expr, frame: str) -> str:
    """Return the name of the column that an expression takes from a data frame; "" if it is none."""
    if isinstance(node, ast.Attribute):
        return node.attr if site.text(node.value) == frame else ""
    if not isinstance(node, ast.Subscript) or site.text(node.value) != frame:
        return ""
    name = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return name if isinstance(name, str) else ""


REMEDY = FilteredFrame()
