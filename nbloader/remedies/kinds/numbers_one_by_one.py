"""Numbers that are taken out of a tensor or an array one by one."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class NumbersOneByOne:
    """`[x.item() for x in values]`, `[float(x) for x in values]`: one call converts all of them."""

    name = "numbers-one-by-one"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        np = site.module("numpy", "np")
        edits = []
        for node in site.nodes:
            found = _converted(node)
            if found is not None:
                comprehension, values, dtype = found
                arguments = ", ".join(filter(None, (site.text(values), dtype)))
                edits.append(Edit(comprehension, f"{np.name}.asarray({arguments}).tolist()"))
        if not edits:
            return []
        return [
            Proposal(
                why="Each number becomes a tensor or NumPy scalar of its own before it becomes a Python number.",
                instead="Convert all of them in one call, or keep the array.",
                code=site.rewritten(*edits),
                helper=np.helper,
                short="Convert all numbers in one call",
            )
        ]


class _Converted(NamedTuple):
    comprehension: ast.ListComp
    values: ast.expr
    dtype: str
    """Type to which each value is converted; "" if that depends on the values."""


def _converted(node: ast.AST) -> _Converted | None:
    """Return the parts of `[x.item() for x in values]` or `[float(x) for x in values]`; None for other code."""
    if not isinstance(node, ast.ListComp) or len(node.generators) != 1 or node.generators[0].ifs:
        return None
    loop, call = node.generators[0], node.elt
    if not isinstance(call, ast.Call) or not isinstance(loop.target, ast.Name):
        return None
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "item" and not call.args:
        given, dtype = function.value, ""
    elif isinstance(function, ast.Name) and function.id in ("float", "int") and len(call.args) == 1:
        given, dtype = call.args[0], function.id
    else:
        return None
    same = isinstance(given, ast.Name) and given.id == loop.target.id and not _is_text(loop.iter)
    return _Converted(node, loop.iter, dtype) if same else None


def _is_text(values: ast.expr) -> bool:
    """Whether an expression splits a text: its parts are strings."""
    called = {node.func.attr for node in ast.walk(values) if isinstance(node, ast.Call) and hasattr(node.func, "attr")}
    return not called.isdisjoint({"split", "rsplit", "splitlines", "findall"})


REMEDY = NumbersOneByOne()
