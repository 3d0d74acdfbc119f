"""A loop over transforms, divided before the first one that draws random numbers."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nbloader.remedies.flow import draws, statements
from nbloader.remedies.site import Edit, Site


class _Applied(NamedTuple):
    """A statement that applies transforms one after the other."""

    value: str
    """The variable that is transformed."""
    transforms: str
    """The code of the list of transforms."""
    items: Sequence[Any]
    """The transforms."""
    before: str = ""
    """The statement that assigns the variable; "" if it has its value already."""
    after: str = ""
    """What is left of the statement; "" if nothing is."""


def with_first_transforms(site: Site, *, without: int = 0) -> Site:
    """Return the site with a loop of its own for the transforms before the first random one, if there are such.

    `for t in self.transforms: image = t(image)` and `self.transform(image)`, with a transform like `Compose`, are
    divided. The slow line is then one before the second loop, or stays what it is.

    Args:
        site: The slow line.
        without: Number of transforms before the first random one that stay in the second loop.
    """
    for stmt in statements(site):
        found = _loop(site, stmt) or _compose(site, stmt)
        if found is None:
            continue
        first = next((n for n, one in enumerate(found.items) if draws(one)), len(found.items)) - without
        if 0 < first < len(found.items):
            return _divided(site, stmt, found, first)
    return site


def _divided(site: Site, stmt: ast.stmt, found: _Applied, first: int) -> Site:
    names = [_free(site, name) for name in ("prepare", "augment")]
    loops = [
        f"for {name} in {found.transforms}[{part}]:\n    {found.value} = {name}({found.value})"
        for name, part in zip(names, (f":{first}", f"{first}:"), strict=True)
    ]
    code = "\n".join(filter(None, [found.before, *loops, found.after])) + "\n"
    lines = site.source.splitlines(keepends=True)
    end = stmt.end_lineno or stmt.lineno
    added = textwrap.indent(code, " " * stmt.col_offset).splitlines(keepends=True)
    source = "".join([*lines[: stmt.lineno - 1], *added, *lines[end:]])
    number = site.number
    if stmt.lineno <= number <= end:
        number = stmt.lineno
    elif number > end:
        number += len(added) - (end - stmt.lineno + 1)
    tree: Any = ast.parse(source).body[0]
    return replace(site, source=source, tree=tree, number=number)


def _free(site: Site, name: str) -> str:
    taken = {node.id for node in site.body if isinstance(node, ast.Name)}
    return f"{name}_" if name in taken else name


def _loop(site: Site, stmt: ast.stmt) -> _Applied | None:
    """Return what `for t in self.transforms: image = t(image)` applies; None if a statement is none like this."""
    if not isinstance(stmt, ast.For) or not isinstance(stmt.target, ast.Name) or stmt.orelse or len(stmt.body) != 1:
        return None
    inner = stmt.body[0]
    call: Any = getattr(inner, "value", None)
    items = site.target(stmt.iter)
    if not _in_place(inner, call) or ast.unparse(call.func) != stmt.target.id or not isinstance(items, (list, tuple)):
        return None
    return _Applied(ast.unparse(call.args[0]), site.text(stmt.iter), items)


def _compose(site: Site, stmt: ast.stmt) -> _Applied | None:
    """Return what the only `self.transform(image)` of a statement applies; None if there is none like this.

    The statement may be inside of `if self.transform:` or `if self.transform is not None:`.
    """
    inner = stmt
    if isinstance(stmt, ast.If) and len(stmt.body) == 1 and not stmt.orelse:
        inner = stmt.body[0]
    calls = [node for node in ast.walk(inner) if isinstance(node, ast.Call) and _transforms(site, node) is not None]
    if len(calls) != 1 or not isinstance(inner, (ast.Assign, ast.Return)) or site.in_loop_or_lambda(calls[0]):
        return None
    (call,) = calls
    name = ast.unparse(call.func)
    given = (name, f"{name} is not None")
    if isinstance(stmt, ast.If) and (ast.unparse(stmt.test) not in given or isinstance(inner, ast.Return)):
        return None
    transforms, items = f"{name}.transforms", _transforms(site, call) or ()
    argument = site.text(call.args[0])
    if _in_place(inner, call):
        return _Applied(argument, transforms, items)
    value = _free(site, "prepared")
    rest = textwrap.dedent(" " * inner.col_offset + site.rewritten(Edit(call, value), part=(inner, inner)))
    return _Applied(value, transforms, items, f"{value} = {argument}", rest)


def _transforms(site: Site, call: ast.Call) -> Sequence[Any] | None:
    """Return the transforms that a call applies, as far as the name of its class tells; None if it is none like this.

    A trial finds out whether it does more.
    """
    target = site.target(call.func)
    items = getattr(target, "transforms", None)
    known = type(target).__name__ in ("Compose", "Sequential", "Pipeline")
    if not known or not isinstance(items, (list, tuple)) or len(call.args) != 1 or call.keywords:
        return None
    return items if all(map(callable, items)) else None


def _in_place(stmt: ast.stmt, call: Any) -> bool:
    """Whether a statement is like `image = t(image)`."""
    if not isinstance(stmt, ast.Assign) or stmt.value is not call or not isinstance(call, ast.Call):
        return False
    single = len(stmt.targets) == len(call.args) == 1 and not call.keywords
    return single and isinstance(call.args[0], ast.Name) and ast.unparse(stmt.targets[0]) == call.args[0].id
