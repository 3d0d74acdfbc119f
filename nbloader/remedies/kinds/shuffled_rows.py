"""Rows of an array that are shuffled one by one, with a copy of each."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class ShuffledRows:
    """`np.random.shuffle(points)`: a permutation moves all rows in one step, and draws the same random numbers."""

    name = "shuffled-rows"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        calls = [call for call in site.calls("numpy.random.shuffle") if len(call.args) == 1]
        statements = [site.statement(call) for call in calls]
        whole = [one for one in statements if isinstance(one, ast.Expr) and one.value in calls]
        if not whole or len(whole) != len(calls):
            return []
        edits = []
        for call in calls:
            rows, shuffle = site.text(call.args[0]), site.text(call.func)
            permutation = f"{shuffle.removesuffix('shuffle')}permutation"
            edits.append(Edit(call, f"{rows}[:] = {rows}[{permutation}(len({rows}))]"))
        return [
            Proposal(
                why="numpy.random.shuffle moves one row of a large array after the other.",
                instead="Draw a permutation of the row numbers, and index with it. The random numbers stay the same.",
                code=site.rewritten(*edits),
                must_help=True,
                must_be_equal=True,
                short="Shuffle rows with a permutation",
                is_certain=False,
            )
        ]


REMEDY = ShuffledRows()
