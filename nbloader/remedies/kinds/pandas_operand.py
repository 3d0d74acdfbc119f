"""Arithmetic with a Series of pandas that is the same for all samples, such as the mean of each column."""

from __future__ import annotations

import ast
import sys

from nbloader.remedies.kinds import pandas_row
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

ARRAY = '''\
_arrays = {}

def array_of(series):
    """The values of a Series of pandas as an array, converted once per process."""
    if id(series) not in _arrays:
        _arrays[id(series)] = series, series.to_numpy()
    return _arrays[id(series)][1]
'''
WHY = "pandas aligns the labels and creates a Series for each operation, which takes longer than the arithmetic."
INSTEAD = "Calculate with arrays: convert what is the same for all samples once."


class PandasOperand:
    """`(values - self.mean) / self.std`: the same numbers as arrays."""

    name = "pandas-operand"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. A row of a data frame comes first: without it, this may gain nothing."""
        pandas = sys.modules.get("pandas")
        if pandas is None or pandas_row.REMEDY.propose(site):
            return []
        operands = [
            side
            for node in site.nodes
            if isinstance(node, ast.BinOp)
            for side in (node.left, node.right)
            if isinstance(side, (ast.Name, ast.Attribute)) and isinstance(site.target(side), pandas.Series)
        ]
        if not operands:
            return []
        np = site.module("numpy", "np")
        edits = [Edit(side, f"array_of({site.text(side)})") for side in operands]
        converted = _converted(site, operands[0])
        edits += [Edit(node, f"{np.name}.asarray({name})") for node, name in converted]
        helper = "\n\n".join(filter(None, (np.helper if converted else "", ARRAY)))
        return [
            Proposal(
                WHY, INSTEAD, site.rewritten(*edits), helper, must_be_equal=True,
                short="Convert the Series to arrays once",
            )
        ]  # fmt: skip


def _converted(site: Site, operand: ast.expr) -> list[tuple[ast.expr, str]]:
    """Return where the variable that is assigned is converted to an array, such as `x.values`, which arrays lack."""
    statement = site.statement(operand)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return []
    name = statement.targets[0].id
    called = {id(node.func): node for node in site.body if isinstance(node, ast.Call) and not node.args}
    return [
        (node if node.attr == "values" else called.get(id(node), node), name)
        for node in site.body
        if isinstance(node, ast.Attribute)
        and node.attr in ("values", "to_numpy")
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    ]


REMEDY = PandasOperand()
