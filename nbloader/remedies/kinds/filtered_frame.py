"""Rows of a data frame that are searched for each sample by a value in a column, which compares the whole column."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from nbloader.remedies import flow
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

HELPER = '''\
_rows_of = {}

def rows_with(frame, columns, values, condition=None):
    """The rows of a data frame with some values in columns. Where they are is found once per process."""
    key = id(frame), *columns
    if key not in _rows_of:
        by = columns[0] if len(columns) == 1 else columns
        _rows_of[key] = frame, frame.groupby(by, sort=False, observed=True).indices
    rows = _rows_of[key][1].get(values[0] if len(columns) == 1 else tuple(values))
    if rows is not None:
        part = frame.take(rows)
    else:  # no row has these values, or they are of another type
        part = frame
        for column, value in zip(columns, values):
            part = part[part[column] == value]
    return part if condition is None else part[condition(part)]
'''
COLUMN = '''\
_places = {}

def column_with(frame, columns, values, wanted):
    """A column of the rows of a data frame with some values in other columns. The rows are found once per process."""
    key = id(frame), *columns
    if key not in _places:
        by = columns[0] if len(columns) == 1 else columns
        _places[key] = frame, frame.groupby(by, sort=False, observed=True).indices
        _places.setdefault(id(frame), (frame, {name: frame[name].to_numpy() for name in frame}))
    rows = _places[key][1].get(values[0] if len(columns) == 1 else tuple(values))
    if rows is None:  # no row has these values, or they are of another type
        for column, value in zip(columns, values):
            frame = frame[frame[column] == value]
        return frame[wanted].to_numpy()
    return _places[id(frame)][1][wanted][rows]
'''
BETWEEN = frozenset({"between", "isin", "notna", "notnull", "isna", "isnull"})
"""Methods of a column that say something about each row by itself."""


class FilteredFrame:
    """`frame[(frame["item"] == x) & ...]`: the rows of each value are found once."""

    name = "filtered-frame"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        found = [one for node in site.body if (one := _filtered(site, node)) is not None]
        here = set(site.nodes)
        if not any(one.node in here or (one.mask is not None and one.mask.value in here) for one in found):
            return []
        taken = [_column_of(site, one) for one in found]
        edits = [column or Edit(one.node, one.text) for one, column in zip(found, taken, strict=True)]
        edits += [Edit(one.mask, "# rows are looked up by their values") for one in found if one.mask is not None]
        frame, columns = found[0].frame, found[0].columns
        by = repr(columns[0] if len(columns) == 1 else columns)
        why = (
            f"Each sample compares whole columns of the data frame with {'a value' if len(columns) == 1 else 'values'}."
        )
        instead = (
            f"Find the rows of each value once, in __init__ with {frame}.groupby({by}).indices, or as below. "
            "Later changes of the data frame are not noticed."
        )
        helpers = [COLUMN] if any(taken) else []
        helpers += [HELPER] if not all(taken) else []
        helper = "\n\n".join(helpers)
        return [
            Proposal(why, instead, site.rewritten(*edits), helper, short=f"Look up the rows of the data frame by {by}")
        ]


class _Filtered(NamedTuple):
    """`frame[(frame[column] == value) & condition]`."""

    node: ast.Subscript
    frame: str
    columns: list[str]
    text: str
    """What to write instead."""
    mask: ast.Assign | None
    """The statement that assigns the conditions to a variable; None if they stand in the brackets."""
    wanted: str = ""
    """The column in `frame.loc[conditions, column]`; "" if it is the whole rows."""


def _filtered(site: Site, node: ast.AST) -> _Filtered | None:
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return None
    owner, test, wanted = node.value, node.slice, ""
    if isinstance(owner, ast.Attribute) and owner.attr == "loc":
        owner = owner.value
        if isinstance(test, ast.Tuple) and isinstance(column := test.elts[-1], ast.Constant):
            test, wanted = test.elts[0], str(column.value)
    if type(site.target(owner)).__name__ != "DataFrame":
        return None
    frame, mask = site.text(owner), None
    if isinstance(test, ast.Name):
        mask = _assigned(site, test)
        if mask is None:
            return None
        test = mask.value
    conditions = list(_conjunction(test))
    equal = [(one, _equality(site, one, frame)) for one in conditions]
    rest = [one for one, pair in equal if pair is None]
    pairs = [pair for _one, pair in equal if pair is not None]
    if not pairs or not all(_is_row_by_row(site, one, frame) for one in rest):
        return None
    columns = [column for column, _value in pairs]
    arguments = [frame, repr(columns), f"[{', '.join(value for _column, value in pairs)}]"]
    if rest:
        name = next(one for n in itertools.count() if not re.search(rf"\b{(one := 'rows' + '_' * n)}\b", site.source))
        arguments.append(f"lambda {name}: {' & '.join(_of_part(site, one, frame, name) for one in rest)}")
    rows = f"rows_with({', '.join(arguments)})"
    return _Filtered(node, frame, columns, rows + (f"[{wanted!r}]" if wanted else ""), mask, wanted)


def _column_of(site: Site, found: _Filtered) -> Edit | None:
    """Return what to write instead of one column of the filtered rows as an array, or of its first value.

    These are `.values`, `.to_numpy()`, `.tolist()`, `.iloc[0]` and `.item()` of the column.
    """
    outer = {id(child): node for node in site.body for child in ast.iter_child_nodes(node)}
    column = found.node if found.wanted else outer.get(id(found.node))
    name = found.wanted or (_column(site, column, site.text(found.node)) if isinstance(column, ast.expr) else "")
    frame = site.target(ast.parse(found.frame, mode="eval").body)
    if not name or name not in getattr(frame, "columns", ()) or "lambda" in found.text:
        return None
    rows = found.text.removesuffix(f"[{name!r}]")
    array = rows.replace("rows_with(", "column_with(", 1)[:-1] + f", {name!r})"
    taken = outer.get(id(column))
    if not isinstance(taken, ast.Attribute):
        return None
    around = outer.get(id(taken))
    if taken.attr == "values":
        return Edit(taken, array)
    if taken.attr in ("to_numpy", "tolist", "item") and isinstance(around, ast.Call) and not around.args:
        return Edit(around, array + {"to_numpy": "", "tolist": ".tolist()", "item": ".item()"}[taken.attr])
    if taken.attr == "iloc" and isinstance(around, ast.Subscript) and ast.unparse(around.slice) == "0":
        return Edit(around, f"{array}[0]")
    return None


def _assigned(site: Site, name: ast.Name) -> ast.Assign | None:
    """Return the statement before, in the same block, that assigns a variable which is used only once."""
    uses = [node for node in site.body if isinstance(node, ast.Name) and node.id == name.id]
    statement = site.statement(name)
    for outer in site.body:
        block: Any = getattr(outer, "body", [])
        if not isinstance(block, list) or statement not in block or len(uses) != 2:  # noqa: PLR2004 - stored and read
            continue
        before = block[: block.index(statement)]
        for number, one in enumerate(before):
            if isinstance(one, ast.Assign) and len(one.targets) == 1 and one.targets[0] in uses:
                changed = set(flow.assigned(before[number + 1 :]))
                return one if changed.isdisjoint(flow.read([one.value])) else None
    return None


def _conjunction(test: ast.expr) -> Iterator[ast.expr]:
    """Return the conditions that are combined with `&`."""
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.BitAnd):
        yield from _conjunction(test.left)
        yield from _conjunction(test.right)
    else:
        yield test


def _equality(site: Site, test: ast.expr, frame: str) -> tuple[str, str] | None:
    """Return the column and the value of `frame[column] == value`; None for other conditions."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return None
    sides = (test.left, test.comparators[0])
    for side, other in (sides, sides[::-1]):
        column = _column(site, side, frame)
        if column and frame not in site.text(other) and not isinstance(other, ast.Constant):
            return column, site.text(other)
    return None


def _is_row_by_row(site: Site, test: ast.expr, frame: str) -> bool:
    """Whether a condition compares one column with something else than the data frame."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Invert):
        return _is_row_by_row(site, test.operand, frame)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        sides = [test.left, test.comparators[0]]
        columns = [side for side in sides if _column(site, side, frame)]
        return bool(columns) and all(frame not in site.text(side) for side in sides if side not in columns)
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and test.func.attr in BETWEEN:
        given = [*test.args, *(keyword.value for keyword in test.keywords)]
        return bool(_column(site, test.func.value, frame)) and all(frame not in site.text(one) for one in given)
    return False


def _of_part(site: Site, test: ast.expr, frame: str, name: str) -> str:
    """Return a condition about another data frame than the whole one."""
    owners = [
        node for node in ast.walk(test) if isinstance(node, (ast.Name, ast.Attribute)) and site.text(node) == frame
    ]
    return f"({site.rewritten(*(Edit(node, name) for node in owners), part=(test, test))})"


def _column(site: Site, node: ast.expr, frame: str) -> str:
    """Return the name of the column that an expression takes from a data frame; "" if it is none."""
    if isinstance(node, ast.Attribute):
        return node.attr if site.text(node.value) == frame else ""
    if not isinstance(node, ast.Subscript) or site.text(node.value) != frame:
        return ""
    name = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return name if isinstance(name, str) else ""


REMEDY = FilteredFrame()
