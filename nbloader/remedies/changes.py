"""What code changes in place, and what it takes from something that gives another result each time. Pure."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from nbloader.remedies.site import UNKNOWN, Site

CHANGES = frozenset(
    {"append", "extend", "insert", "add", "update", "remove", "pop", "clear", "sort", "reverse", "fill", "setdefault"}
)
"""Methods that change their object. Those of tensors whose names end with "_" do so, too."""
FILLS = frozenset({"shuffle", "heappush", "heappop", "heapify", "insort", "insort_left", "insort_right", "copyto"})
"""Functions that change their first argument."""
TAKES = frozenset(
    {"pop", "popleft", "popitem", "get_nowait", "readline", "readlines", "recv", "fetchone", "fetchmany", "fetchall"}
)
"""Methods that take something out of their object, which then gives another result the next time."""
SETS_UP = frozenset({"__init__", "__new__", "__post_init__", "__setstate__"})
"""Methods that run before the first sample."""


class Changed(NamedTuple):
    """What the methods of a class change in place once samples are made."""

    attributes: frozenset[str]
    """Attributes of `self`."""
    names: frozenset[str]
    """Global variables."""

    def is_read(self, site: Site, node: ast.AST) -> bool:
        """Whether some code reads any of it."""
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and one.id in self.names:
                return True
            own = isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == site.instance
            if own and one.attr in self.attributes:  # type: ignore[attr-defined]
                return True
        return False


def is_change(method: str) -> bool:
    """Whether a method of this name changes its object."""
    return method in CHANGES or (method.endswith("_") and not method.endswith("__"))


def changed_in_place(node: ast.AST) -> Iterator[ast.expr]:
    """Return the expressions whose objects some code changes in place."""
    for inner in ast.walk(node):
        part = isinstance(inner, (ast.Subscript, ast.Attribute)) and isinstance(inner.ctx, (ast.Store, ast.Del))
        if isinstance(inner, ast.AugAssign):
            yield inner.target
        elif part or (isinstance(inner, ast.keyword) and inner.arg == "out"):
            yield inner.value  # type: ignore[attr-defined]
        elif isinstance(inner, ast.Call):
            if isinstance(inner.func, ast.Attribute) and is_change(inner.func.attr):
                yield inner.func.value
            if _called(inner) in FILLS and inner.args:
                yield inner.args[0]


def root_of(node: ast.AST) -> ast.Name | None:
    """Return the variable that an expression such as `self.tables[0].rows` begins with; None if there is none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def changes_shared(site: Site, node: ast.AST) -> bool:
    """Whether code changes something that remains after the call: an attribute of `self`, or a global variable."""
    return any(_is_shared(site, one) for one in changed_in_place(node))


def takes_shared(site: Site, node: ast.AST) -> bool:
    """Whether code takes the next item, line or message of something that remains after the call."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and (source := _taken_from(inner)) is not None and _is_shared(site, source):
            return True
        if isinstance(inner, (ast.Name, ast.Attribute)):
            value = site.target(inner)
            if not isinstance(value, type) and hasattr(type(value), "__next__"):
                return True
    return False


def changed_by_class(site: Site) -> Changed:
    """Return what the function, and the methods of its class, change in place once samples are made.

    Private methods that only `__init__` calls run before that.
    """
    attributes: set[str] = set()
    names: set[str] = set()
    for tree in (site.tree, *_methods_in_use(type(site.owner) if site.owner is not None else object)):
        instance = tree.args.args[0].arg if tree.args.args else ""
        aliases = _aliases(tree)
        for expression in changed_in_place(tree):
            resolved = _resolved(expression, aliases)
            root = root_of(resolved)
            if root is None:
                continue
            if root.id == instance:
                parts = [one for one in ast.walk(resolved) if isinstance(one, ast.Attribute)]
                attributes |= {one.attr for one in parts if one.value is root}
            elif not isinstance(site.target(root), (ModuleType, type)):
                names |= {root.id} - _variables(tree)
    return Changed(frozenset(attributes), frozenset(names))


def _taken_from(call: ast.Call) -> ast.expr | None:
    """Return what a call takes something from; None if it takes nothing."""
    if isinstance(call.func, ast.Name):
        return call.args[0] if call.func.id == "next" and call.args else None
    if not isinstance(call.func, ast.Attribute):
        return None
    by_place = bool(call.args) and not (isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, int))
    looks_up = call.func.attr in ("get", "read") and by_place  # of a dict or an archive, not of a queue or a stream
    takes = call.func.attr in TAKES or (call.func.attr in ("get", "read") and not looks_up)
    return call.func.value if takes else None


def _is_shared(site: Site, expression: ast.expr) -> bool:
    """Whether an expression stands for an attribute of the first parameter, or for something global."""
    if isinstance(expression, ast.Name) and isinstance(expression.ctx, ast.Store):
        return False  # `path += ".jpg"` assigns another object
    resolved = _resolved(expression, _aliases(site.tree))
    root = root_of(resolved)
    if root is None:
        return False
    return root.id == site.instance or not (
        site.target(root) is UNKNOWN or isinstance(site.target(resolved), (ModuleType, type))
    )


def _aliases(tree: ast.AST) -> dict[str, ast.expr]:
    """Return the variables that are assigned once, and stand for a part of something else, with that."""
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, (ast.For, ast.comprehension)):
            target, value = node.target, node.iter
        else:
            continue
        if isinstance(target, ast.Name) and root_of(value) is not None and stored.count(target.id) == 1:
            found[target.id] = value
    return found


def _resolved(expression: ast.expr, aliases: dict[str, ast.expr]) -> ast.expr:
    """Return an expression, or, if it begins with another name for something, what it is a part of."""
    seen: set[str] = set()
    while (root := root_of(expression)) is not None and root.id in aliases and root.id not in seen:
        seen.add(root.id)
        expression = aliases[root.id]
    return expression


def _variables(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    shared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return given | (stored - shared)


def _methods_in_use(cls: type) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the methods of a class except those that run before the first sample."""
    found = [tree for base in cls.__mro__ for function in _functions(base) if (tree := _parsed(function)) is not None]
    names = [{node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} for tree in found]
    before, private = set(SETS_UP), set(SETS_UP)
    while private:
        used_before: set[str] = set()
        used_later: set[str] = set()
        for tree, used in zip(found, names, strict=True):
            (used_before if tree.name in before else used_later).update(used)
        private = {name for name in used_before - used_later - before if name.startswith("_")}
        before |= private
    return [tree for tree in found if tree.name not in before]


def _functions(cls: type) -> Iterable[FunctionType]:
    for value in list(vars(cls).values()):
        parts: list[Any] = [value]
        if isinstance(value, property):
            parts = [value.fget, value.fset, value.fdel]
        elif isinstance(value, (staticmethod, classmethod)):
            parts = [value.__func__]
        elif isinstance(value, functools.cached_property):
            parts = [value.func]
        for part in parts:
            function = inspect.unwrap(part) if callable(part) else None
            if isinstance(function, FunctionType):
                yield function


def _parsed(function: FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return tree if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
