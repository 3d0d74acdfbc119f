"""A row of a data frame for each sample: pandas creates a Series, and converts each value to a common type."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nbloader.remedies import flow
from nbloader.remedies.frames import COLUMNS_OF
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

ROW_OF = """
def row_of(frame, position):
    return {name: values[position] for name, values in columns_of(frame).items()}
"""
COLUMNS = COLUMNS_OF + ROW_OF
VALUES = '''\
_values = {}

def values_of(frame):
    """The values of a data frame as one array, converted once per process."""
    if id(frame) not in _values:
        _values[id(frame)] = frame, frame.to_numpy()
    return _values[id(frame)][1]
'''

PART = '''\
_parts_of_frames = {}

def part_of(frame, columns):
    """Some columns of a data frame as one array, converted once per process."""
    key = id(frame), str(columns)
    if key not in _parts_of_frames:
        _parts_of_frames[key] = frame, frame[columns].to_numpy()
    return _parts_of_frames[key][1]
'''
WITHOUT = '''\
_values_without = {}

def values_without(frame, columns):
    """The values of the other columns of a data frame as one array, converted once per process."""
    key = id(frame), str(columns)
    if key not in _values_without:
        _values_without[key] = frame, frame.drop(columns=columns).to_numpy()
    return _values_without[key][1]
'''


class PandasRow:
    """`frame.iloc[i]`: arrays answer the same question about a hundred times as fast."""

    name = "pandas-row"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        rows = [found for node in site.nodes if (found := _row(node)) is not None] or _assigned_rows(site)
        rows = [row for row in rows if _lasts(site, row.frame)]
        if not rows:
            return []
        why = "For each row, pandas creates a Series and converts the values of all columns to a common type."
        instead = "Convert the columns to arrays once, and index those. Sequences of Python objects stay as they are."
        outer = {id(node.value): node for node in site.nodes if isinstance(node, ast.Attribute)}
        called = {id(node.func): node for node in site.nodes if isinstance(node, ast.Call)}
        edits: list[Edit] = []
        helpers: dict[str, None] = {}
        for row, owner in rows:
            frame, position = site.text(owner), site.text(row.slice)
            around = outer.get(id(row))
            if isinstance(owner, ast.Subscript) or _is_column(site, owner):
                edits.append(Edit(row, f"{frame}.to_numpy()[{position}]"))
            elif around is not None and around.attr in ("values", "to_numpy"):
                whole = called.get(id(around), around)
                edits.append(Edit(whole, f"values_of({frame})[{position}]"))
                helpers[VALUES] = None
            else:
                edits.append(Edit(row, f"row_of({frame}, {position})"))
                helpers[COLUMNS] = None
            dropped = _dropped(site, row)
            edits += [Edit(node, f"values_without({frame}, {columns})[{position}]") for node, columns in dropped]
            if dropped:
                helpers[WITHOUT] = None
            parts = _parts(site, row)
            edits += [Edit(node, f"part_of({frame}, {site.text(node.slice)})[{position}]") for node in parts]
            if parts:
                helpers[PART] = None
        short = "Convert the data frame to arrays once"
        return [Proposal(why, instead, site.rewritten(*edits), "\n\n".join(helpers), short=short)]


class _Row(NamedTuple):
    """`frame.iloc[i]`."""

    node: ast.Subscript
    frame: ast.expr


def _lasts(site: Site, owner: ast.expr) -> bool:
    """Whether something may be the same data frame for all samples: the result of a call or of a filter is another one.

    What is converted once is kept, by its identity.
    """
    if isinstance(owner, ast.Subscript):
        return isinstance(owner.slice, ast.Constant) and _lasts(site, owner.value)
    if isinstance(owner, ast.Attribute):
        return _lasts(site, owner.value)
    if not isinstance(owner, ast.Name):
        return False
    values = [node.value for node in site.body if isinstance(node, ast.Assign) and owner.id in flow.assigned([node])]
    return all(isinstance(value, (ast.Name, ast.Attribute)) and _lasts(site, value) for value in values)


def _is_column(site: Site, owner: ast.expr) -> bool:
    """Whether an attribute is a column of a data frame."""
    return isinstance(owner, ast.Attribute) and type(site.target(owner.value)).__name__ == "DataFrame"


def _assigned_rows(site: Site) -> list[_Row]:
    """Return the rows that variables of the slow line have been assigned: each operation on a row takes time, too."""
    read = {node.id for node in site.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    found = []
    for statement in site.body:
        if isinstance(statement, ast.Assign) and (row := _row(statement.value)) is not None:
            target = statement.targets[0]
            if isinstance(target, ast.Name) and target.id in read and not isinstance(row.frame, ast.Subscript):
                found.append(row)
    return found


def _parts(site: Site, row: ast.Subscript) -> list[ast.Subscript]:
    """Return where several columns of a row are used, if the row is assigned to a variable: `row[self.columns]`."""
    statement = site.statement(row)
    if not isinstance(statement, ast.Assign) or statement.value is not row:
        return []
    name = site.text(statement.targets[0])
    return [
        node
        for node in site.body
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and site.text(node.value) == name
        and (isinstance(node.slice, ast.List) or isinstance(site.target(node.slice), list))
    ]


class _Dropped(NamedTuple):
    """`row.drop(columns).values`."""

    node: ast.expr
    columns: str


def _dropped(site: Site, row: ast.Subscript) -> list[_Dropped]:
    """Return where the values of some columns of a row are used, if the row is assigned to a variable."""
    statement = site.statement(row)
    if not isinstance(statement, ast.Assign) or statement.value is not row:
        return []
    name = site.text(statement.targets[0])
    calls = {id(node.func): node for node in site.body if isinstance(node, ast.Call)}
    found = []
    for node in site.body:
        if not isinstance(node, ast.Attribute) or node.attr not in ("values", "to_numpy"):
            continue
        call = node.value
        if not isinstance(call, ast.Call) or not call.args or site.text(call.func) != f"{name}.drop":
            continue
        whole = calls.get(id(node), node)
        if isinstance(whole, ast.Attribute) or not (whole.args or whole.keywords):
            found.append(_Dropped(whole, site.text(call.args[0])))
    return found


def _row(node: ast.AST) -> _Row | None:
    if not isinstance(node, ast.Subscript) or isinstance(node.slice, (ast.Slice, ast.Tuple, ast.List)):
        return None
    indexer = node.value
    return _Row(node, indexer.value) if isinstance(indexer, ast.Attribute) and indexer.attr == "iloc" else None


REMEDY = PandasRow()
