"""A value that is looked up in a long list: it is compared with each item."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

import numpy as np

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

MANY = 20
"""Number of items from which a set is faster than a list in any case."""
SETS = '''\
_sets = {}

def set_of(values):
    """The values as a set, made once per process."""
    key = id(values), len(values)
    if key not in _sets:
        _sets[key] = values, frozenset(values)
    return _sets[key][1]
'''
POSITIONS = '''\
_positions = {}

def positions_of(values):
    """The first position of each value, found once per process."""
    key = id(values), len(values)
    if key not in _positions:
        _positions[key] = values, {value: n for n, value in reversed(list(enumerate(values)))}
    return _positions[key][1]
'''


class ListMembership:
    """`x in self.names`, `self.names.index(x)`: a set or a dict answers at once."""

    name = "list-membership"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        edits: list[Edit] = []
        found: list[_Lookup] = []
        for node in site.nodes:
            lookup = _lookup(site, node)
            if lookup is None:
                continue
            found.append(lookup)
            container = site.text(lookup.container)
            if not lookup.helper:  # a display of constants
                edits.append(Edit(lookup.container, f"{{{container[1:-1].strip()}}}"))
            elif isinstance(node, ast.Call):
                edits.append(Edit(node, f"positions_of({container})[{site.text(node.args[0])}]"))
            else:
                edits.append(Edit(lookup.container, f"set_of({container})"))
        if not found:
            return []
        longest = max(found, key=lambda lookup: lookup.length)
        name = site.text(longest.container) if longest.helper else "a list"
        return [
            Proposal(
                why=f"A value is looked up in {name}, and so compared with each of {longest.length:,} items.",
                instead=f"Look it up in a {longest.kind}, made in __init__, or once per process as below.",
                code=site.rewritten(*edits),
                helper="\n\n".join(dict.fromkeys(lookup.helper for lookup in found if lookup.helper)),
                short=f"Look values up in a {longest.kind} instead of a list",
            )
        ]


class _Lookup(NamedTuple):
    """A value is looked up in a list."""

    container: ast.expr
    length: int
    kind: str
    """What to use instead, such as "set"."""
    helper: str
    """See `Proposal`; "" if the list is written out."""


def _lookup(site: Site, node: ast.AST) -> _Lookup | None:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        container, kind, helper = node.comparators[0], "set", SETS
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_index(node):
        container, kind, helper = node.func.value, "dict", POSITIONS
    else:
        return None
    if isinstance(container, (ast.List, ast.Tuple)):
        plain = kind == "set" and all(isinstance(item, ast.Constant) for item in container.elts)
        return _Lookup(container, len(container.elts), kind, "") if plain and len(container.elts) >= MANY else None
    values = site.target(container)
    return _Lookup(container, len(values), kind, helper) if _is_list(values) else None


def _is_index(call: ast.Call) -> bool:
    return getattr(call.func, "attr", "") == "index" and len(call.args) == 1 and not call.keywords


def _is_list(values: Any) -> bool:
    """Whether values are a long list whose items can be in a set."""
    if not isinstance(values, (list, tuple)) or len(values) < MANY:
        return False
    return isinstance(values[0], (str, bytes, int, float, tuple, np.generic))


REMEDY = ListMembership()
