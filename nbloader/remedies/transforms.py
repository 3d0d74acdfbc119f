"""A loop over transforms, divided before the first one that draws random numbers."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nbloader.remedies.flow import draws, statements
from nbloader.remedies.site import UNKNOWN, Site


class _Applied(NamedTuple):
    """A statement that applies transforms one after the other."""

    value: str
    """The variable that is transformed."""
    transforms: ast.expr
    """The list of transforms, or what applies them."""
    items: Sequence[Any]
    """The transforms."""
    attribute: str = ""
    """The attribute that has the list, such as `.transforms` of `Compose`."""


def with_first_transforms(site: Site) -> Site:
    """Return the site with a loop of its own for the transforms before the first random one, if there are such.

    `for t in self.transforms: image = t(image)` and `image = self.transform(image)`, with a transform like `Compose`,
    are divided. The slow line is then one before the second loop, or stays what it is.
    """
    for stmt in statements(site):
        found = _loop(site, stmt) or _compose(site, stmt)
        if found is None:
            continue
        first = next((n for n, one in enumerate(found.items) if draws(one)), len(found.items))
        if 0 < first < len(found.items):
            return _divided(site, stmt, found, first)
    return site


def _divided(site: Site, stmt: ast.stmt, found: _Applied, first: int) -> Site:
    transforms = site.text(found.transforms) + found.attribute
    taken = {node.id for node in site.body if isinstance(node, ast.Name)}
    names = [name if name not in taken else f"{name}_" for name in ("prepare", "augment")]
    loops = "".join(
        f"for {name} in {transforms}[{part}]:\n    {found.value} = {name}({found.value})\n"
        for name, part in zip(names, (f":{first}", f"{first}:"), strict=True)
    )
    lines = site.source.splitlines(keepends=True)
    end = stmt.end_lineno or stmt.lineno
    added = textwrap.indent(loops, " " * stmt.col_offset).splitlines(keepends=True)
    source = "".join([*lines[: stmt.lineno - 1], *added, *lines[end:]])
    number = site.number
    if stmt.lineno <= number <= end:
        number = stmt.lineno
    elif number > end:
        number += len(added) - (end - stmt.lineno + 1)
    tree: Any = ast.parse(source).body[0]
    return replace(site, source=source, tree=tree, number=number)


def _loop(site: Site, stmt: ast.stmt) -> _Applied | None:
    """Return what `for t in self.transforms: image = t(image)` applies; None if a statement is none like this."""
    if not isinstance(stmt, ast.For) or not isinstance(stmt.target, ast.Name) or stmt.orelse or len(stmt.body) != 1:
        return None
    value = _applied(stmt.body[0])
    call: Any = getattr(stmt.body[0], "value", None)
    items = site.target(stmt.iter)
    if not value or ast.unparse(call.func) != stmt.target.id or not isinstance(items, (list, tuple)):
        return None
    return _Applied(value, stmt.iter, items)


def _compose(site: Site, stmt: ast.stmt) -> _Applied | None:
    """Return what `image = self.transform(image)` applies; None if a statement is none like this."""
    value = _applied(stmt)
    call: Any = getattr(stmt, "value", None)
    target = site.target(call.func) if value else UNKNOWN
    items = getattr(target, "transforms", None)
    if not isinstance(items, (list, tuple)) or not all(map(callable, items)) or not _only_applies(target):
        return None
    return _Applied(value, call.func, items, ".transforms")


def _applied(stmt: ast.stmt) -> str:
    """Return the variable of a statement such as `image = t(image)`; "" if it is none like this."""
    if not isinstance(stmt, ast.Assign) or len(stmt.targets) != 1 or not isinstance(stmt.targets[0], ast.Name):
        return ""
    name, call = stmt.targets[0].id, stmt.value
    single = isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords
    return name if single and ast.unparse(call.args[0]) == name else ""  # type: ignore[attr-defined]


def _only_applies(transform: Any) -> bool:
    """Whether a transform does no more than apply its transforms, as far as its name tells. A trial finds the rest."""
    return type(transform).__name__ in ("Compose", "Sequential", "Pipeline")
