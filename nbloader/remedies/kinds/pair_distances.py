"""Distances between all pairs of points, by way of an array of all their differences."""

from __future__ import annotations

import ast
import importlib.util
from typing import NamedTuple

import numpy as np

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site, constant_of

LAST = (-1, 2)
"""The axis of the coordinates, in an array of the differences of all pairs."""
HELPER = '''\
def pair_distances(a, b, metric="euclidean"):
    """Distances of all rows of `a` from all rows of `b`: an array of shape (len(a), len(b))."""
    found = scipy.spatial.distance.cdist(a, b, metric)
    return found.astype(NUMPY.result_type(a, b, NUMPY.float16), copy=False)
'''


class PairDistances:
    """`np.linalg.norm(a[:, None] - b[None], axis=-1)`: SciPy computes distances without an array of differences."""

    name = "pair-distances"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        pairs = _assigned_pairs(site)
        found = [one for node in site.body if (one := _distances(site, node, pairs)) is not None]
        outermost = [one for one in found if not any(one.node in _inside(other.node) for other in found)]
        here = set(site.nodes)
        slow = [one for one in outermost if one.node in here or _is_assigned_here(one, here)]
        if not slow:
            return []
        edits = [Edit(one.node, one.text) for one in outermost]
        for name, pair in pairs.items():
            if pair.assigned is not None and _is_unused(site, name, pair.assigned, outermost):
                edits.append(Edit(pair.assigned, "# no array of all differences"))
        numpy = site.module("numpy", "np")
        imports = "\n".join(filter(None, (numpy.helper, "import scipy.spatial.distance")))
        missing = "" if importlib.util.find_spec("scipy") is not None else "scipy"
        return [
            Proposal(
                why="The differences of all pairs of points are written to an array, and squared and added up later.",
                instead="Compute the distances with SciPy, pair by pair.",
                code=site.rewritten(*edits),
                helper=f"{imports}\n\n{HELPER.replace('NUMPY', numpy.name)}",
                package=missing,
                short="Compute distances with scipy.spatial.distance.cdist",
            )
        ]


class _Pair(NamedTuple):
    """The difference of all pairs, `first[:, None] - second[None]`."""

    first: str
    second: str
    assigned: ast.stmt | None = None
    """The statement that assigns it to a variable; None if none does."""


class _Distances(NamedTuple):
    """An expression for all distances, and what to write instead."""

    node: ast.expr
    text: str
    pair: _Pair


def _assigned_pairs(site: Site) -> dict[str, _Pair]:
    """Return the variables that are assigned once, a difference of all pairs."""
    stored = [node.id for node in site.body if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    found = {}
    for statement in site.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, pair = statement.targets[0], _pair(site, statement.value, {})
            if isinstance(target, ast.Name) and pair is not None and stored.count(target.id) == 1:
                found[target.id] = pair._replace(assigned=statement)
    return found


def _is_unused(site: Site, name: str, assigned: ast.stmt, found: list[_Distances]) -> bool:
    """Whether a variable is used only in the expressions that are replaced."""
    replaced = {inner for one in found for inner in ast.walk(one.node)}
    within = set(ast.walk(assigned))
    uses = [node for node in site.body if isinstance(node, ast.Name) and node.id == name and node not in within]
    return all(node in replaced for node in uses)


def _is_assigned_here(found: _Distances, here: set[ast.AST]) -> bool:
    """Whether the slow line is the one that assigns the differences."""
    assigned = found.pair.assigned
    return isinstance(assigned, ast.Assign) and assigned.value in here


def _inside(node: ast.AST) -> set[ast.AST]:
    return set(ast.walk(node)) - {node}


def _distances(site: Site, node: ast.AST, pairs: dict[str, _Pair]) -> _Distances | None:
    """Return an expression for the distances, or squared distances, of all pairs; None for other code."""
    if not isinstance(node, ast.expr):
        return None
    metric, pair = "", None
    if isinstance(node, ast.Call) and site.target(node.func) is np.linalg.norm:
        pair = _pair(site, node.args[0], pairs) if _has_last_axis(node, given=1) and len(node.args) == 1 else None
    elif (squared := _rooted(site, node)) is not None:
        pair = _sum_of_squares(site, squared, pairs)
    else:
        metric, pair = ', "sqeuclidean"', _sum_of_squares(site, node, pairs)
    if pair is None:
        return None
    return _Distances(node, f"pair_distances({pair.first}, {pair.second}{metric})", pair)


def _rooted(site: Site, node: ast.expr) -> ast.expr | None:
    """Return what a square root is taken of."""
    if isinstance(node, ast.Call) and site.target(node.func) is np.sqrt and len(node.args) == 1:
        return node.args[0]
    power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    return node.left if power and constant_of(node.right) == 0.5 else None  # type: ignore[attr-defined]  # noqa: PLR2004


def _sum_of_squares(site: Site, node: ast.expr, pairs: dict[str, _Pair]) -> _Pair | None:
    """Return the pair in `(difference ** 2).sum(axis=-1)` or `np.sum(difference ** 2, axis=-1)`."""
    if not isinstance(node, ast.Call):
        return None
    if site.target(node.func) is np.sum:
        return _squared(site, node.args[0], pairs) if node.args and _has_last_axis(node, given=1) else None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "sum" and _has_last_axis(node, given=0):
        return _squared(site, node.func.value, pairs)
    return None


def _squared(site: Site, node: ast.expr, pairs: dict[str, _Pair]) -> _Pair | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and constant_of(node.right) == 2:  # noqa: PLR2004
        return _pair(site, node.left, pairs)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and ast.dump(node.left) == ast.dump(node.right):
        return _pair(site, node.left, pairs)
    if isinstance(node, ast.Call) and site.target(node.func) is np.square and len(node.args) == 1:
        return _pair(site, node.args[0], pairs)
    return None


def _pair(site: Site, node: ast.expr, pairs: dict[str, _Pair]) -> _Pair | None:
    """Return the pair in `first[:, None] - second[None]`, or behind a variable."""
    if isinstance(node, ast.Name):
        return pairs.get(node.id)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return None
    sides = {_axes(site, side): side.value for side in (node.left, node.right) if isinstance(side, ast.Subscript)}
    if sides.keys() != {(0, 1), (1, 0)}:
        return None
    return _Pair(site.text(sides[0, 1]), site.text(sides[1, 0]))


def _axes(site: Site, node: ast.Subscript) -> tuple[int, int] | None:
    """Return (0, 1) for `points[:, None]`, (1, 0) for `points[None]` or `points[None, :]`, None for other code."""
    index = node.slice
    parts = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    new = [_is_new_axis(site, part) for part in parts]
    whole = [isinstance(part, ast.Slice) and not (part.lower or part.upper or part.step) for part in parts]
    if [*whole[:1], *new[1:2]] == [True, True] and all(whole[2:]):
        return 0, 1
    return (1, 0) if new[0] and all(whole[1:]) else None


def _is_new_axis(site: Site, node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is None
    return isinstance(node, ast.Attribute) and node.attr == "newaxis" and site.target(node) is None


def _has_last_axis(call: ast.Call, *, given: int) -> bool:
    """Whether a call sums over the last of three axes, and has no other options.

    Args:
        call: The call.
        given: Number of its arguments before the axis.
    """
    axes = call.args[given:] + [keyword.value for keyword in call.keywords if keyword.arg == "axis"]
    return len(axes) == 1 and len(call.args) + len(call.keywords) == given + 1 and constant_of(axes[0]) in LAST


REMEDY = PairDistances()
