"""Functions that remedies add to the user's code: there is nothing to make faster in them."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Sequence

from nbloader.remedies.remedy import Remedy
from nbloader.remedies.site import Site


def is_pasted(site: Site, remedies: Sequence[Remedy]) -> bool:
    """Whether the function of a slow line has been pasted from a remedy. Its name does not count."""
    return _body(site.tree) in _bodies(tuple(type(remedy).__module__ for remedy in remedies))


@functools.cache
def _bodies(modules: tuple[str, ...]) -> frozenset[str]:
    """Return what the functions do that the remedies of some modules consist of."""
    return frozenset(_body(tree) for module in modules for tree in _functions(module))


def _functions(module: str) -> Iterator[ast.FunctionDef]:
    """Yield the functions in the texts of a module."""
    for text in vars(sys.modules[module]).values():
        if not isinstance(text, str) or "def " not in text:
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:  # it is prose, or has parts to fill in
            continue
        yield from (node for node in tree.body if isinstance(node, ast.FunctionDef))


def _body(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return "\n".join(map(ast.unparse, tree.body))
