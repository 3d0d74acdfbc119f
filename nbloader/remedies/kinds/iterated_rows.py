"""A loop over the rows of a data frame with `iterrows`: pandas creates a Series for each row."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class IteratedRows:
    """`for i, row in frame.iterrows()`: dicts of the same values take a fraction of the time."""

    name = "iterated-rows"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        found = [loop for node in site.body if (loop := _loop(site, node)) is not None]
        if not any(_contains(loop.around, site.number) for loop in found):
            return []
        return [
            Proposal(
                why="For each row, pandas creates a Series and converts the values of all columns to a common type.",
                instead="Loop over dicts, or over the columns as arrays.",
                code=site.rewritten(*(edit for loop in found for edit in loop.edits)),
                must_be_equal=True,
                short="Loop over dicts instead of `iterrows`",
            )
        ]


class _Loop(NamedTuple):
    """A loop or comprehension over the rows of a data frame."""

    around: ast.stmt | ast.expr
    edits: list[Edit]


def _loop(site: Site, node: ast.AST) -> _Loop | None:
    """Return a loop whose rows are used only by the names of their columns; None for other code."""
    if isinstance(node, ast.For):
        return _rewritten(site, node, node.target, node.iter)
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)) and len(node.generators) == 1:
        return _rewritten(site, node, node.generators[0].target, node.generators[0].iter)
    return None


def _rewritten(site: Site, around: ast.stmt | ast.expr, target: ast.expr, rows: ast.expr) -> _Loop | None:
    if not isinstance(rows, ast.Call) or rows.args or rows.keywords:
        return None
    if not isinstance(rows.func, ast.Attribute) or rows.func.attr != "iterrows":
        return None
    names = target.elts if isinstance(target, ast.Tuple) else []
    if len(names) != 2 or not all(isinstance(name, ast.Name) for name in names):  # noqa: PLR2004 - index and row
        return None
    index, row = (name.id for name in names if isinstance(name, ast.Name))
    uses = [node for node in site.body if isinstance(node, ast.Name) and node.id == row and node not in names]
    by_name = [
        node.value for node in ast.walk(around)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_name(node.slice)
    ]  # fmt: skip
    if not all(use in by_name for use in uses):  # a method or a position of the Series, or it is used later
        return None
    frame = site.text(rows.func.value)
    records = f"{frame}.to_dict('records')"
    used = any(isinstance(node, ast.Name) and node.id == index and node not in names for node in site.body)
    if used:
        computed = not isinstance(rows.func.value, (ast.Name, ast.Attribute))  # once, also if it draws random rows
        pairs = f"{frame}.to_dict('index').items()" if computed else f"zip({frame}.index, {records})"
        return _Loop(around, [Edit(rows, pairs)])
    return _Loop(around, [Edit(target, row), Edit(rows, records)])


def _is_name(node: ast.expr) -> bool:
    """Whether what stands in brackets is the name of a column: not a list, and not a number, which is a position."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, (ast.Name, ast.Attribute))


def _contains(node: ast.stmt | ast.expr, number: int) -> bool:
    return node.lineno <= number <= (node.end_lineno or node.lineno)


REMEDY = IteratedRows()
