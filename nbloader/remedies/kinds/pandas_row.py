"""A row of a data frame for each sample: pandas creates a Series, and converts each value to a common type."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

COLUMNS = '''\
_columns = {}

def columns_of(frame):
    """The columns of a data frame as arrays, converted once per process."""
    if id(frame) not in _columns:
        _columns[id(frame)] = frame, {name: frame[name].to_numpy() for name in frame}
    return _columns[id(frame)][1]

def row_of(frame, position):
    return {name: values[position] for name, values in columns_of(frame).items()}
'''
VALUES = '''\
_values = {}

def values_of(frame):
    """The values of a data frame as one array, converted once per process."""
    if id(frame) not in _values:
        _values[id(frame)] = frame, frame.to_numpy()
    return _values[id(frame)][1]
'''


class PandasRow:
    """`frame.iloc[i]`: arrays answer the same question about a hundred times as fast."""

    name = "pandas-row"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        rows = [found for node in site.nodes if (found := _row(node)) is not None]
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
            if isinstance(owner, ast.Subscript):  # a column
                edits.append(Edit(row, f"{frame}.to_numpy()[{position}]"))
            elif around is not None and around.attr in ("values", "to_numpy"):
                whole = called.get(id(around), around)
                edits.append(Edit(whole, f"values_of({frame})[{position}]"))
                helpers[VALUES] = None
            else:
                edits.append(Edit(row, f"row_of({frame}, {position})"))
                helpers[COLUMNS] = None
        return [Proposal(why, instead, site.rewritten(*edits), "\n\n".join(helpers))]


class _Row(NamedTuple):
    """`frame.iloc[i]`."""

    node: ast.Subscript
    frame: ast.expr


def _row(node: ast.AST) -> _Row | None:
    if not isinstance(node, ast.Subscript) or isinstance(node.slice, (ast.Slice, ast.Tuple, ast.List)):
        return None
    indexer = node.value
    return _Row(node, indexer.value) if isinstance(indexer, ast.Attribute) and indexer.attr == "iloc" else None


REMEDY = PandasRow()
