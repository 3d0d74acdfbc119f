"""Items of a list that are searched for each sample by a field, such as the boxes of an image, among all items."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nbloader.remedies.changes import changed_by_class
from nbloader.remedies.kinds.list_membership import MANY, PLAIN, PLAIN_CODE
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import UNKNOWN, Edit, Site

HELPER = (
    f"_groups = {{}}\n{PLAIN_CODE}"
    '''
def items_with(items, name, value):
    """The items of a list with a value in one field, in their order. The list is grouped once per process."""
    if type(value) not in _plain:  # objects such as tensors can be equal to a field, but are not found in a dict
        return items
    key = id(items), len(items), name
    if key not in _groups:
        groups = {}
        for item in items:
            groups.setdefault(FIELD, []).append(item)
        _groups[key] = items, groups
    return _groups[key][1].get(value, ())
'''
)


class FilteredList:
    """`for a in self.boxes: if a["image"] == x:`, `[a for a in self.boxes if a.image == x]`: a dict has the groups."""

    name = "filtered-list"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        found = next((one for part in _loops(site) if (one := _filtered(site, part)) is not None), None)
        if found is None:
            return []
        items = site.text(found.items)
        np = site.module("numpy", "np")
        field = "getattr(item, name)" if found.is_attribute else "item[name]"
        helper = HELPER.replace("NUMPY", np.name).replace("FIELD", field)
        code = site.rewritten(Edit(found.items, f"items_with({items}, {found.name!r}, {site.text(found.value)})"))
        return [
            Proposal(
                why=f"Each sample compares a field of all {found.length:,} items of {items} with a value.",
                instead=(
                    f"Group the items by {found.name!r} once, in __init__ or as below. Later changes of the list do "
                    "not reach the groups."
                ),
                code=code,
                helper=f"{np.helper}\n\n{helper}".lstrip(),
                short=f"Group {items} by {found.name!r} once",
            )
        ]


class _Loop(NamedTuple):
    """`for target in items: if test: ...`, as a statement or in a comprehension."""

    target: ast.expr
    items: ast.expr
    test: ast.expr
    skips: bool
    """Whether an item is skipped if the test is true."""
    around: ast.AST
    """The only code that may use the variables of the loop, or change those of the test."""


class _Filtered(NamedTuple):
    """What could be grouped."""

    items: ast.expr
    length: int
    name: str | int
    """The field."""
    is_attribute: bool
    value: ast.expr


def _loops(site: Site) -> Iterator[_Loop]:
    """Yield the loops whose first line or test is the slow line, if they do nothing with the other items."""
    here = set(site.nodes)
    for node in site.body:
        if isinstance(node, ast.For) and isinstance(node.body[0], ast.If) and not node.body[0].orelse:
            first = node.body[0]
            skips = isinstance(first.body[0], ast.Continue)
            whole = skips or len(node.body) == 1
            if whole and (node.iter in here or first.test in here):
                yield _Loop(node.target, node.iter, first.test, skips, node)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)) and node in here:
            part = node.generators[0]
            if part.ifs and not part.is_async:
                yield _Loop(part.target, part.iter, part.ifs[0], False, node)


def _filtered(site: Site, loop: _Loop) -> _Filtered | None:
    items = site.target(loop.items)
    if type(items) not in (list, tuple) or len(items) < MANY or changed_by_class(site).is_read(site, loop.items):
        return None
    test = loop.test  # of several conditions, only the first one is evaluated for each item
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or if loop.skips else ast.And):
        test = test.values[0]
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    if not isinstance(test.ops[0], ast.NotEq if loop.skips else ast.Eq):
        return None
    variables = _names(loop.target)
    if isinstance(loop.around, ast.For) and _is_used_elsewhere(site, loop.around, variables):
        return None
    for side, value in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        field = _field(loop.target, side)
        if field is not None and _is_fixed(value, loop.around) and _are_plain(items, *field):
            return _Filtered(loop.items, len(items), *field, value)
    return None


def _field(target: ast.expr, node: ast.expr) -> tuple[str | int, bool] | None:
    """Return the field of an item that an expression reads, and whether it is an attribute; None if it reads none."""
    if isinstance(target, ast.Tuple) and isinstance(node, ast.Name):
        names = [part.id if isinstance(part, ast.Name) else "" for part in target.elts]
        return (names.index(node.id), False) if node.id in names else None
    if not isinstance(target, ast.Name) or not isinstance(node, (ast.Subscript, ast.Attribute)):
        return None
    if not isinstance(node.value, ast.Name) or node.value.id != target.id:
        return None
    if isinstance(node, ast.Attribute):
        return node.attr, True
    index = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return (index, False) if type(index) in (str, int) else None  # type: ignore[return-value]


def _is_fixed(value: ast.expr, around: ast.AST) -> bool:
    """Whether a value is the same for all items, and can be computed before the loop without other effects."""
    plain = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context)
    if isinstance(value, ast.Constant) or not all(isinstance(node, plain) for node in ast.walk(value)):
        return False
    stored = {n.id for n in ast.walk(around) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return not _names(value) & stored


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _is_used_elsewhere(site: Site, loop: ast.For, variables: set[str]) -> bool:
    inside = set(ast.walk(loop))
    return any(isinstance(node, ast.Name) and node.id in variables for node in site.body if node not in inside)


def _are_plain(items: Sequence[Any], name: str | int, is_attribute: bool) -> bool:
    """Whether all items have the field, with values that a dict finds."""
    for item in items:
        try:
            value = getattr(item, str(name), UNKNOWN) if is_attribute else item[name]
        except (KeyError, IndexError, TypeError):
            return False
        if type(value) not in PLAIN:
            return False
    return True


REMEDY = FilteredList()
