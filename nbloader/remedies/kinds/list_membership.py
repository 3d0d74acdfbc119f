"""A value that is looked up in a long list: it is compared with each item."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from nbloader.remedies.changes import changed_by_class
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

MANY = 50
"""Number of items from which the call of `contains` is faster than a list."""
PLAIN = {str, bytes, bool, int, np.str_, *(np.dtype(kind).type for kind in np.typecodes["AllInteger"])}
"""Types of which equal values have the same hash, and so do tuples of them. Subclasses may compare in another way."""
PLAIN_CODE = """\
_plain = {str, bytes, bool, int, NUMPY.str_, *(NUMPY.dtype(kind).type for kind in NUMPY.typecodes["AllInteger"])}
"""
"""`PLAIN`, as code to paste."""
HELPER = (
    f"_positions = {{}}\n{PLAIN_CODE}"
    '''
def positions_of(values):
    """The first position of each item of a list, found once per process."""
    key = id(values), len(values)
    if key not in _positions:
        _positions[key] = values, {item: n for n, item in reversed(list(enumerate(values)))}
    return _positions[key][1]

def is_plain(value):
    """Whether a value has a place in a dict. Tensors can be equal to an item, but are not found in a dict."""
    return type(value) in _plain or (type(value) is tuple and _plain.issuperset(map(type, value)))

def contains(values, value):
    """Whether a value is in a list."""
    return value in (positions_of(values) if is_plain(value) else values)

def position_of(values, value):
    """The first position of a value in a list."""
    positions = positions_of(values) if is_plain(value) else {}
    return positions[value] if value in positions else values.index(value)
'''
)


class ListMembership:
    """`x in self.names`, `self.names.index(x)`: a set or a dict answers at once.

    All lookups of a function are replaced together: `x in self.names` and `self.names.index(x)` share one dict.
    """

    name = "list-membership"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        found = _lookups(site)
        here = set(site.nodes)
        is_here = any(lookup.node in here for lookup in found)
        if not is_here:  # the profiler may charge a lookup to the next line that calls something
            before = {node for code in _directly_before(site) for node in ast.walk(code)}
            if not any(lookup.node in before for lookup in found):
                return []
        edits = [
            Edit(lookup.node, f"{lookup.function}({site.text(lookup.container)}, {site.text(lookup.value)})")
            for lookup in found
        ]
        np = site.module("numpy", "np")
        longest = max(found, key=lambda lookup: lookup.length)
        name = site.text(longest.container)
        same = [lookup for lookup in found if site.text(lookup.container) == name]
        kind = "dict" if any(lookup.kind == "dict" for lookup in same) else "set"
        together = f" The code below replaces {len(found)} lookups of this function." if len(found) > 1 else ""
        return [
            Proposal(
                why=f"A value is looked up in {name}, and so compared with each of {longest.length:,} items.",
                instead=f"Look it up in a {kind}, made in __init__, or once as below if no item is replaced.{together}",
                code=site.rewritten(*edits),
                helper=f"{np.helper}\n\n{HELPER.replace('NUMPY', np.name)}".lstrip(),
                must_help=not is_here,
                short=f"Look values up in a {kind} instead of a list",
                is_certain=is_here,
            )
        ]


def _lookups(site: Site) -> list[_Lookup]:
    """Return the lookups of the function. One inside the value of another one is left as it is."""
    found: list[_Lookup] = []
    inside: set[ast.AST] = set()
    for node in site.body:
        lookup = None if node in inside else _lookup(site, node)
        if lookup is not None:
            found.append(lookup)
            inside |= set(ast.walk(node))
    return found


def _directly_before(site: Site) -> Iterator[ast.AST]:
    """Return the code before the slow line's statement, back to the last one that calls something.

    Of a statement with a body, this is its condition.
    """
    statements = [node for node in site.body if isinstance(node, ast.stmt) and node is not site.tree]
    slow = max((node.lineno for node in statements if node.lineno <= site.number), default=0)
    before = sorted((node for node in statements if node.lineno < slow), key=lambda node: -node.lineno)
    for node in before:
        code = getattr(node, "test", None) if hasattr(node, "body") else node
        if code is not None:
            yield code
            if any(isinstance(inner, ast.Call) for inner in ast.walk(code)):
                return


class _Lookup(NamedTuple):
    """A value is looked up in a list."""

    node: ast.expr
    container: ast.expr
    value: ast.expr
    length: int
    kind: str
    """What to use instead, such as "set"."""
    function: str
    """What to call instead, of `HELPER`, with "not" if that is needed."""


def _lookup(site: Site, node: ast.AST) -> _Lookup | None:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        container, value, kind = node.comparators[0], node.left, "set"
        function = "contains" if isinstance(node.ops[0], ast.In) else "not contains"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_index(node):
        container, value, kind, function = node.func.value, node.args[0], "dict", "position_of"
    else:
        return None
    values = site.target(container)
    if not _is_list(values) or changed_by_class(site).is_read(site, container):
        return None
    return _Lookup(node, container, value, len(values), kind, function)


def _is_index(call: ast.Call) -> bool:
    return getattr(call.func, "attr", "") == "index" and len(call.args) == 1 and not call.keywords


def _is_list(values: Any) -> bool:
    """Whether values are a long list, and a set with the items answers as the list does."""
    if type(values) not in (list, tuple) or len(values) < MANY:
        return False
    kinds = {type(item) for item in values}
    if tuple in kinds:
        kinds |= {type(part) for item in values if type(item) is tuple for part in item}
    return PLAIN.issuperset(kinds - {tuple})


REMEDY = ListMembership()
