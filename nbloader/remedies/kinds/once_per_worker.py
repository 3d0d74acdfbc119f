"""Something that each worker reads or computes anew when it makes its first sample."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from nbloader.remedies.constants import ITERATORS
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site

WHY = "This runs once per worker, for its first sample, and again in each epoch whose workers are new."
PERSISTENT = "Set persistent_workers=True, so that it runs only in the first epoch."
IN_INIT = " Or move it to __init__, which runs once, before the workers start."
UNTRIED = "a trial measures the samples after the first one"


class OncePerWorker:
    """`if self.rows is None: self.rows = self.read()`: workers that stay alive, or `__init__`, save it."""

    name = "once-per-worker"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        if site.owner is None or not (_is_guarded(site) or _is_called_guarded(site)):
            return []
        holds = any(_called(node) in ITERATORS for node in _values(site))  # workers cannot share an open file
        return [Proposal(WHY, PERSISTENT + ("" if holds else IN_INIT), untried=UNTRIED, alone=True)]


def _is_guarded(site: Site) -> bool:
    """Whether the slow line is inside `if self.rows is None:` or the like, which assigns `self.rows`."""
    return any(
        part.lineno <= site.number <= (part.end_lineno or part.lineno)
        for guard in _guards(site.tree)
        for part in guard.body
    )


def _is_called_guarded(site: Site) -> bool:
    """Whether methods call the function only inside such a condition."""
    calls, guarded = 0, 0
    for tree in _methods(type(site.owner)):
        calls += _uses(tree, site.tree.name)
        guarded += sum(_uses(part, site.tree.name) for guard in _guards(tree) for part in guard.body)
    return 0 < calls == guarded


def _uses(node: ast.AST, method: str) -> int:
    return sum(isinstance(one, ast.Attribute) and one.attr == method for one in ast.walk(node))


def _values(site: Site) -> Iterator[ast.expr]:
    """Yield what is kept: what the conditions assign, and what the function returns."""
    for guard in _guards(site.tree):
        yield from (node.value for part in guard.body for node in ast.walk(part) if isinstance(node, ast.Assign))
    yield from (node.value for node in site.body if isinstance(node, ast.Return) and node.value is not None)


def _called(node: ast.expr) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _guards(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.If]:
    """Yield conditions such as `if self.rows is None:` or `if not hasattr(self, "rows"):` that assign `self.rows`."""
    instance = tree.args.args[0].arg if tree.args.args else ""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and (name := _missing(node.test)):
            stored = [one for part in node.body for one in ast.walk(part) if isinstance(one, ast.Attribute)]
            if any(isinstance(one.ctx, ast.Store) and ast.unparse(one) == f"{instance}.{name}" for one in stored):
                yield node


def _missing(test: ast.expr) -> str:
    """Return the attribute whose absence a condition tests; "" if it tests something else."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and isinstance(test.left, ast.Attribute):
        (right,) = test.comparators[:1]
        return test.left.attr if isinstance(right, ast.Constant) and right.value is None else ""
    if not isinstance(test, ast.UnaryOp) or not isinstance(test.op, ast.Not):
        return ""
    if isinstance(test.operand, ast.Attribute):
        return test.operand.attr
    if isinstance(test.operand, ast.Call) and _called(test.operand) == "hasattr" and len(test.operand.args) > 1:
        name = test.operand.args[1]
        return str(name.value) if isinstance(name, ast.Constant) else ""
    return ""


def _methods(cls: type) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for base in cls.__mro__:
        for value in list(vars(base).values()):
            if not inspect.isfunction(value):
                continue
            try:
                (tree,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
            except (OSError, TypeError, SyntaxError, ValueError):
                continue
            if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield tree


REMEDY = OncePerWorker()
