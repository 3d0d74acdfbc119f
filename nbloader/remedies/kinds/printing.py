"""Output for each sample."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class Printing:
    """`print(...)` in `__getitem__`: what workers print travels to the notebook."""

    name = "printing"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        printed = {id(call) for call in site.calls("print")}
        found = [node for node in site.body if isinstance(node, ast.Expr) and id(node.value) in printed]
        if not found:
            return []
        why = "Each sample prints, and what workers print is sent to the notebook."
        code = site.rewritten(*(Edit(node, "pass") for node in found))
        return [Proposal(why, "Remove the call.", code, short="Remove the print call")]


REMEDY = Printing()
