"""Sequences that are padded value by value, or list by list, in Python."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

PADDED = '''\
def padded_array(rows, value, length):
    """The rows as one array, filled with a value up to a length."""
    arrays = [{np}.asarray(row) for row in rows]
    shape = (len(arrays), length, *arrays[0].shape[1:]) if arrays else (0, length)
    out = {np}.full(shape, value, arrays[0].dtype if arrays else None)
    for position, row in enumerate(arrays):
        out[position, : len(row)] = row
    return out
'''
WHY = "The sequences are padded in Python, value by value."
INSTEAD = "Allocate the padded array once, and copy each sequence into its row."
SHORT = "Copy each sequence into a padded array in one step"


class PythonPadding:
    """`[x + [0] * (n - len(x)) for x in rows]`, and loops that assign `out[i, j] = value`."""

    name = "python-padding"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        np, torch = site.module("numpy", "np"), site.module("torch", "torch")
        read = [value for node in site.nodes if (value := _assigned(site, node)) is not None]
        lists = [found for node in dict.fromkeys((*site.nodes, *read)) if (found := _padded(node)) is not None]
        if lists:
            edits = []
            for comprehension, value, length in lists:
                rows = site.text(comprehension.generators[0].iter)
                edits.append(Edit(comprehension, f"padded_array({rows}, {site.text(value)}, {site.text(length)})"))
            helper = "\n\n".join(part for part in (np.helper, PADDED.format(np=np.name)) if part)
            return [Proposal(WHY, INSTEAD, site.rewritten(*edits), helper, short=SHORT)]
        loops = [
            node for node in site.body
            if isinstance(node, ast.For) and node.lineno <= site.number <= (node.end_lineno or 0) and _copies(node)
        ]  # fmt: skip
        if not loops:
            return []
        proposals = []
        for module, convert in ((np, "asarray"), (torch, "as_tensor")):
            edits = []
            for loop in loops:
                target, values = _copies(loop)  # type: ignore[misc]
                row, copied = site.text(target), site.text(values)
                edits.append(Edit(loop, f"{row}[: len({copied})] = {module.name}.{convert}({copied})"))
            proposals.append(Proposal(WHY, INSTEAD, site.rewritten(*edits), module.helper, short=SHORT))
        return proposals


def _assigned(site: Site, node: ast.AST) -> ast.expr | None:
    """Return what a variable that a node reads has been assigned, if that is certain; None for other nodes."""
    if not isinstance(node, ast.Name):
        return None
    stores = [one for one in site.body if isinstance(one, ast.Name) and one.id == node.id and one is not node]
    stores = [one for one in stores if not isinstance(one.ctx, ast.Load)]
    statement = site.statement(stores[0]) if len(stores) == 1 else None
    return statement.value if isinstance(statement, ast.Assign) and statement.targets == stores else None


def _padded(node: ast.AST) -> tuple[ast.ListComp, ast.expr, ast.expr] | None:
    """Return a padding comprehension, the value that it fills with, and the length; None if the node is none."""
    if not isinstance(node, ast.ListComp) or len(node.generators) != 1 or node.generators[0].ifs:
        return None
    elt, row = node.elt, node.generators[0].target
    if not (isinstance(row, ast.Name) and isinstance(elt, ast.BinOp) and isinstance(elt.op, ast.Add)):
        return None
    fill, values = elt.right, elt.left
    if isinstance(values, ast.Call) and isinstance(values.func, ast.Attribute) and values.func.attr == "tolist":
        values = values.func.value
    if not (isinstance(values, ast.Name) and values.id == row.id):
        return None
    if not (isinstance(fill, ast.BinOp) and isinstance(fill.op, ast.Mult) and isinstance(fill.left, ast.List)):
        return None
    missing = fill.right
    if len(fill.left.elts) != 1 or not (isinstance(missing, ast.BinOp) and isinstance(missing.op, ast.Sub)):
        return None
    return node, fill.left.elts[0], missing.left


def _copies(loop: ast.For) -> tuple[ast.expr, ast.expr] | None:
    """Return the row and the values of `for j, value in enumerate(values): row[j] = value`; None for other loops."""
    called, names, body = loop.iter, loop.target, loop.body
    if not (isinstance(called, ast.Call) and isinstance(called.func, ast.Name) and called.func.id == "enumerate"):
        return None
    if len(called.args) != 1 or not isinstance(names, ast.Tuple) or len(names.elts) != 2:  # noqa: PLR2004
        return None
    position, value = names.elts
    if len(body) != 1 or not isinstance(body[0], ast.Assign) or not isinstance(body[0].targets[0], ast.Subscript):
        return None
    assigned = body[0].value
    if not (isinstance(position, ast.Name) and isinstance(value, ast.Name) and isinstance(assigned, ast.Name)):
        return None
    target: ast.expr = body[0].targets[0].value
    index: ast.expr = body[0].targets[0].slice
    if isinstance(index, ast.Tuple) and len(index.elts) == 2:  # noqa: PLR2004
        target, index = ast.Subscript(target, index.elts[0], ast.Load()), index.elts[1]
    if assigned.id != value.id or not (isinstance(index, ast.Name) and index.id == position.id):
        return None
    return target, called.args[0]


REMEDY = PythonPadding()
