"""A loop of Python that computes one number at a time, where NumPy computes a whole array or Numba compiles it."""

from __future__ import annotations

import ast
import itertools

from nbloader._util.format import percent
from nbloader.remedies.compiled import compiled_loops, is_installed
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site
from nbloader.remedies.vectorize import (
    FOLDS,
    CannotVectorizeError,
    is_float,
    vectorized_comprehension,
    vectorized_loop,
)

WHY = "This loop takes many small steps, each of them in Python."
INSTEAD = "Let NumPy compute the whole array at once."
BITS = " Its integers have 64 bits: larger results would be wrong."
SHORT = "Compute the whole array with NumPy instead of a Python loop"
COMPILE = (
    "Compile it with Numba. The first call takes seconds. Make one sample or batch in the notebook before the loop, "
    "and forked workers need not compile it again."
)
SHORT_COMPILE = "Compile the loop with Numba"
MAKES_ARRAYS = ("array", "asarray", "tensor", "as_tensor")
"""Functions that take an array as well as a list of numbers."""
NESTED = 2
"""Number of loops around a line from which it is certain that its loops, not what it calls, take the time."""


class PythonLoop:
    """`out[i, j] = table[x[i, j]]` in two loops, `sum(v * v for v in x)`, `np.array([v / 255 for v in x])`."""

    name = "python-loop"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        np = site.module("numpy", "np")
        loops = [
            node for node in site.body
            if isinstance(node, ast.For) and node.lineno <= site.number <= (node.end_lineno or node.lineno)
        ]  # fmt: skip
        loops.sort(key=lambda node: node.lineno)
        for loop in loops:
            try:
                texts = [vectorized_loop(loop, np.name, item) for item in ("", ".item()")]
            except CannotVectorizeError:
                continue
            codes = [site.rewritten(Edit(loop, text)) for text in dict.fromkeys(texts)]
            instead = INSTEAD + _warning(loop)
            nested = isinstance(loop.body[0], ast.For)  # of one loop, the code alone does not tell whether it is long
            written = [
                Proposal(WHY, instead, code, np.helper, must_help=True, short=SHORT, is_certain=nested)
                for code in codes
            ]
            return [*written, *_compiled(site, loops)]
        found = _comprehensions(site, np.name)
        if found:
            return [
                Proposal(
                    WHY,
                    INSTEAD + _warning(edit.node),
                    site.rewritten(edit),
                    np.helper,
                    must_help=True,
                    short=SHORT,
                    is_certain=False,
                )
                for edit in found
            ]
        return _compiled(site, loops)


def _compiled(site: Site, loops: list[ast.For]) -> list[Proposal]:
    """Return what Numba makes faster; or else what to do in words."""
    missing = "" if is_installed() else "numba"
    ways = compiled_loops(site)
    found = ways[0][-1:] if missing and ways else [*itertools.chain.from_iterable(ways)]
    warning = _warning(loops[0]) if loops else ""
    written = [
        Proposal(
            WHY, COMPILE + warning, one.code, one.helper, package=missing,
            short=SHORT_COMPILE, is_certain=False, fallback=number > 0,
        )
        for number, one in enumerate(found)
    ]  # fmt: skip
    return [*written, *_in_words(site, len(loops))]


def _in_words(site: Site, loops: int) -> list[Proposal]:
    """Return what to say if no code is known, or if it raises: why the line is slow, if its loops are."""
    computes = any(isinstance(node, ast.BinOp) for node in site.nodes)
    if loops < NESTED or not computes or any(_takes_time(site, node) for node in site.nodes):
        return []
    share = percent(site.line.share)
    why = f"This line takes {share} of the workers' time: {loops} loops run it for one number at a time."
    instead = (
        "Write it with NumPy for whole arrays, or compile the loops with numba.njit. nbloader has found no such code "
        "for it."
    )
    return [Proposal(why, instead, untried="no faster code was found")]


def _takes_time(site: Site, node: ast.AST) -> bool:
    """Whether a node calls something that may take longer than the loops around it."""
    if not isinstance(node, ast.Call):
        return False
    called = site.target(node.func)
    return getattr(called, "__module__", "") != "math" and called not in (min, max, abs, int, float)


def _warning(code: ast.AST) -> str:
    """Return a sentence about large integers if the code multiplies what may be integers; otherwise ""."""
    products = [node for node in ast.walk(code) if isinstance(node, ast.BinOp)]
    return BITS if any(isinstance(one.op, (ast.Mult, ast.Pow)) and not is_float(one) for one in products) else ""


def _comprehensions(site: Site, np: str) -> list[Edit]:
    """Return what could be written instead of a comprehension on the slow line."""
    calls = {id(node.args[0]): node for node in site.body if isinstance(node, ast.Call) and len(node.args) == 1}
    for node in site.nodes:
        if not isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            continue
        try:
            array = vectorized_comprehension(node, np)
        except CannotVectorizeError:
            continue
        around = calls.get(id(node))
        fold = FOLDS.get(around.func.id) if around is not None and isinstance(around.func, ast.Name) else None
        if around is not None and fold is not None:
            folded = f"({array}).{fold}()"
            return [Edit(around, folded), Edit(around, f"{folded}.item()")]
        if isinstance(node, ast.ListComp) and around is not None and _last_name(around.func) in MAKES_ARRAYS:
            return [Edit(node, f"({array})")]
        if isinstance(node, ast.ListComp):
            return [Edit(node, f"({array})"), Edit(node, f"({array}).tolist()"), Edit(node, f"list({array})")]
    return []


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


REMEDY = PythonLoop()
