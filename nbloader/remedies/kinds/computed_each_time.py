"""A constant that is computed for each sample, such as a window, a grid, a lookup table or a sorted list."""

from __future__ import annotations

import ast
import dis
from types import FunctionType
from typing import Any

from nbloader.remedies.constants import Constant, constant_parts
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site

WHY = "This does not depend on the index, but it is computed again for each sample."
INSTEAD = "Compute it once, in __init__ or as below. All samples then share one object, so do not modify it."
SHORT = "Compute the constant once per worker"


class ComputedEachTime:
    """`np.hanning(self.n)`, `sorted(self.names)`, `{name: n for n, name in enumerate(self.names)}`: computed once."""

    name = "computed-each-time"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        parts = [part for part in constant_parts(site) if not (part.reads or _is_kept(site, part))]
        found = [part.proposal(site, WHY, INSTEAD, SHORT, is_certain=False) for part in parts]
        return [proposal for proposal in found if proposal is not None]


def _is_kept(site: Site, part: Constant) -> bool:
    """Whether what is computed is a call of a function that keeps results in a dict of its module."""
    calls = [node for node in part.nodes if isinstance(node, ast.Call)]
    return any(_fills_dict(site.target(call.func)) for call in calls)


def _fills_dict(called: Any) -> bool:
    """Whether a function looks for a key in a global dict, and assigns to one."""
    if not isinstance(called, FunctionType):
        return False
    done = {instruction.opname for instruction in dis.get_instructions(called)}
    named = any(isinstance(called.__globals__.get(name), dict) for name in called.__code__.co_names)
    return named and {"CONTAINS_OP", "STORE_SUBSCR"} <= done


REMEDY = ComputedEachTime()
