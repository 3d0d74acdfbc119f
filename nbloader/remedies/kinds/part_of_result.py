"""A large array that a function computes, of which its caller takes a part."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import NamedTuple

from nbloader._util.format import megabytes
from nbloader.remedies import flow
from nbloader.remedies.parts import MEASURES
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site


class PartOfResult:
    """`image = self.load(path)`, `image[y : y + 256, x : x + 256]`: take the part first, and compute only that."""

    name = "part-of-result"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. The size of a part is not measured: that of a sample stands for it."""
        code = site.function.__code__
        place = code.co_filename, code.co_firstlineno
        sizes = next((one.nbytes for one in site.facts.returned if (one.file, one.line) == place), ())
        for part in _parts(site):
            nbytes = sizes[part.position] if part.position < len(sizes) else 0
            if nbytes > 2 * site.facts.nbytes:  # bytes of a part may become numbers of twice the size
                name, caller = site.tree.name, part.caller
                why = (
                    f"`{name}` returns {megabytes(nbytes)}, and `{caller}` takes a part of it: a sample has "
                    f"{megabytes(site.facts.nbytes)}."
                )
                instead = (
                    f"Crop first, then compute, if the result does not depend on the rest: tell `{name}` which part to "
                    "read, or to cut out before it computes."
                )
                return [Proposal(why, instead, untried="it changes two functions")]
        return []


class _Part(NamedTuple):
    """A part of a result that a function takes."""

    caller: str
    position: int
    """Place of the result in the tuple that is returned; 0 if it is no tuple."""


def _parts(site: Site) -> Iterator[_Part]:
    """Yield the parts that other functions of the same file, or cell, take of what a function returns."""
    try:
        lines, _first = inspect.findsource(site.function)
        functions = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.FunctionDef)]
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    for function in functions:
        for node in ast.walk(function):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not _calls(node.value, site.tree.name):
                continue
            target = node.targets[0]
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for position, name in enumerate(names):
                if isinstance(name, ast.Name) and _is_cropped(function, node, name.id):
                    yield _Part(function.name, position)


def _calls(node: ast.expr, name: str) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return name == (called.id if isinstance(called, ast.Name) else getattr(called, "attr", ""))


def _is_cropped(function: ast.FunctionDef, assigned: ast.Assign, name: str) -> bool:
    """Whether a function takes only parts of a variable that it has assigned: slices whose place varies."""
    inside = list(ast.walk(function))
    measured = {node.value for node in inside if isinstance(node, ast.Attribute) and node.attr in MEASURES}
    reads = [
        node for node in inside
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        and node.lineno > assigned.lineno and node not in measured
    ]  # fmt: skip
    reads.sort(key=lambda node: (node.lineno, node.col_offset))
    cropped = {node.value for node in inside if isinstance(node, ast.Subscript) and _varies(node.slice)}
    if not reads or reads[0] not in cropped:
        return False
    again = any(
        isinstance(node, ast.Assign) and reads[0] in ast.walk(node.value) and name in flow.assigned(node.targets)
        for node in inside
    )
    return again or cropped.issuperset(reads)


def _varies(index: ast.expr) -> bool:
    """Whether an index has slices whose bounds are computed: a part with constant bounds is the same each time."""
    slices = [node for node in ast.walk(index) if isinstance(node, ast.Slice)]
    return any(isinstance(node, ast.Name) for part in slices for node in ast.walk(part))


REMEDY = PartOfResult()
