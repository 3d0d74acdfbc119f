"""Which parts of a value a function uses, such as one page of a volume that it has read. Pure."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nbloader.remedies import flow
from nbloader.remedies.changes import changed_in_place, root_of
from nbloader.remedies.site import Site

MEASURES = frozenset({"shape", "ndim", "dtype"})
"""Attributes of arrays, mapped files and HDF5 datasets that are known without reading them."""
COPIES = frozenset({"astype", "copy", "tolist", "item"})
"""Methods whose results share no memory with their object."""


class Parts(NamedTuple):
    """The parts of a value that a function uses."""

    taken: list[ast.Subscript]
    """What takes them."""
    assigned: ast.Assign | None = None
    """The statement that gives the value a name; None if a part is taken from the expression itself."""
    is_measured: bool = False
    """Whether the function also uses the shape, the length or the type of the value."""
    is_changed: bool = False
    """Whether a part may be changed in place, and used again as another part, with which it shares memory."""


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
    return Parts(taken, statement, bool(measured), _is_changed(site, name, statement, taken))


def can_read_later(site: Site, parts: Parts) -> bool:
    """Whether a value can be read where its parts are used, instead of where it gets its name.

    What is around the assignment is then around the parts, too: a `with` statement that closes the file, or a `try`
    statement that handles errors of reading.
    """
    if parts.assigned is None:
        return True
    blocks = flow.around(site, parts.assigned, (ast.With, ast.AsyncWith, *flow.TRIES))
    later = any(flow.around(site, part, flow.LATER) for part in parts.taken)
    return not later and all(set(ast.walk(block)).issuperset(parts.taken) for block in blocks)


def first_index(node: ast.Subscript) -> tuple[ast.expr, list[ast.expr]]:
    """Return the index of the first axis, and those of the others: `k` and `[y, x]` of `volume[k, y, x]`."""
    first, *others = node.slice.elts if isinstance(node.slice, ast.Tuple) and node.slice.elts else [node.slice]
    return first, others


def is_number(index: ast.expr) -> bool:
    """Whether an index is an integer that the code names."""
    value = index.operand if isinstance(index, ast.UnaryOp) else index
    return isinstance(value, ast.Constant) and type(value.value) is int


def _is(node: ast.AST, name: ast.Name) -> bool:
    return isinstance(node, ast.Name) and node.id == name.id


def _measures(node: ast.AST, name: ast.Name) -> bool:
    """Whether a node is `name.shape` or the like, or `len(name)`."""
    if isinstance(node, ast.Attribute):
        return node.attr in MEASURES and _is(node.value, name)
    length = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"
    return length and len(node.args) == 1 and _is(node.args[0], name)  # type: ignore[attr-defined]


def _is_changed(site: Site, name: ast.Name, assigned: ast.Assign, taken: list[ast.Subscript]) -> bool:
    """Whether something that shares memory with a value may be changed, and its parts are used more than once."""
    again = any(site.loops_around(part) > site.loops_around(assigned) for part in taken)
    if len(taken) == 1 and not again:
        return False
    names = {name.id}
    while more := _other_names(site, names) - names:
        names |= more
    roots = [root_of(changed) for changed in changed_in_place(site.tree)]
    return any(root is not None and root.id in names for root in roots)


def _other_names(site: Site, names: set[str]) -> set[str]:
    """Return the names of what is made from values with some names, and may share memory with them."""
    found: set[str] = set()
    target: ast.AST
    for node in site.body:
        if isinstance(node, ast.For):
            target, value = node.target, node.iter
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            target, value = node, node.value
        else:
            continue
        if not _is_new(value) and not names.isdisjoint(flow.read([value])):
            found |= set(flow.assigned([target]))
    return found


def _is_new(value: ast.expr) -> bool:
    """Whether an expression makes an array of its own."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Attribute) and value.func.attr in COPIES and not value.keywords
    return isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Compare))
