"""Which parts of a value a function uses, such as one page of a volume that it has read. Pure."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nbloader.remedies.site import Site

MEASURES = frozenset({"shape", "ndim", "dtype"})
"""Attributes of arrays, mapped files and HDF5 datasets that are known without reading them."""


class Parts(NamedTuple):
    """The parts of a value that a function uses."""

    taken: list[ast.Subscript]
    """What takes them."""
    assigned: ast.Assign | None = None
    """The statement that gives the value a name; None if a part is taken from the expression itself."""
    is_measured: bool = False
    """Whether the function also uses the shape, the length or the type of the value."""


def parts_of(site: Site, value: ast.expr) -> Parts | None:
    """Return the parts of a value that a function uses; None if it does something else with it, such as to change it.

    Args:
        site: The slow line, in its function.
        value: The expression that returns the value.
    """
    parts = [node for node in site.body if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)]
    direct = [node for node in parts if node.value is value]
    if direct:
        return Parts(direct)
    statement = site.statement(value)
    if not isinstance(statement, ast.Assign) or statement.value is not value or len(statement.targets) != 1:
        return None
    name = statement.targets[0]
    if not isinstance(name, ast.Name):
        return None
    taken = [node for node in parts if _is(node.value, name)]
    measured = [node for node in site.body if _measures(node, name)]
    mentioned = sum(1 for node in site.body if _is(node, name))
    if not taken or mentioned != 1 + len(taken) + len(measured):
        return None
    return Parts(taken, statement, bool(measured))


def first_index(node: ast.Subscript) -> tuple[ast.expr, list[ast.expr]]:
    """Return the index of the first axis, and those of the others: `k` and `[y, x]` of `volume[k, y, x]`."""
    first, *others = node.slice.elts if isinstance(node.slice, ast.Tuple) and node.slice.elts else [node.slice]
    return first, others


def _is(node: ast.AST, name: ast.Name) -> bool:
    return isinstance(node, ast.Name) and node.id == name.id


def _measures(node: ast.AST, name: ast.Name) -> bool:
    """Whether a node is `name.shape` or the like, or `len(name)`."""
    if isinstance(node, ast.Attribute):
        return node.attr in MEASURES and _is(node.value, name)
    length = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"
    return length and len(node.args) == 1 and _is(node.args[0], name)  # type: ignore[attr-defined]
