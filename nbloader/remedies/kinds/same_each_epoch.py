"""Work that gives the same result in each epoch: the last remedy, for lines that are slow for other reasons."""

from __future__ import annotations

import ast

from nbloader._platform import available_memory
from nbloader._util.format import megabytes
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

PART = 4
"""The samples must fit into this part of the memory that is available, as the cache does by default."""


class SameEachEpoch:
    """`nbloader.cached`: what does not depend on random numbers is computed once for all epochs and workers."""

    name = "same-each-epoch"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        needed, available = site.facts.samples * site.facts.nbytes, available_memory()
        if not needed or (available is not None and needed > available // PART):
            return []
        for value in _values(site):
            proposal = self._proposal(site, value, needed)
            if proposal is not None:
                return [proposal]
        return []

    @staticmethod
    def _proposal(site: Site, value: ast.expr, needed: int) -> Proposal | None:
        given = _Arguments(site)
        body = given.visit(ast.parse(ast.unparse(value), mode="eval").body)
        local = [name for name in site.local(body) if name not in given.names]
        if given.impossible or (site.owner is not None and site.instance in local):
            return None  # its argument would be the whole dataset
        names = given.names | {name: name for name in local}
        module = site.module("nbloader", "nbloader")
        imports = f"{module.helper}\n\n" if module.helper else ""
        function = f"def same_each_epoch({', '.join(names)}):\n    return {ast.unparse(body)}\n"
        code = site.rewritten(Edit(value, f"same_each_epoch({', '.join(names.values())})"))
        why = "This part of the sample is the same in each epoch, but it is computed every time."
        instead = (
            f"Keep its results in memory that all workers share. All samples together take about {megabytes(needed)}; "
            "with nbloader.configure_cache(directory=...), they are kept on the disk, too."
        )
        return Proposal(why, instead, code, f"{imports}@{module.name}.cached\n{function}", saves="later")


class _Arguments(ast.NodeTransformer):
    """Makes arguments of the attributes of `self` in an expression, and of the items of such attributes.

    Args:
        site: The slow line.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self.names: dict[str, str] = {}
        """Expressions by the names of the arguments."""
        self.impossible = False
        """Whether there is a method of `self`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace `self.path` by `path`."""
        return self._argument(node, node.attr) if self._is_own(node) else self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace `self.paths[i]` by an argument: a key of all paths would be computed for each sample."""
        if isinstance(node.value, ast.Attribute) and self._is_own(node.value):
            return self._argument(node, f"one_of_{node.value.attr}")
        return self.generic_visit(node)

    def _is_own(self, node: ast.Attribute) -> bool:
        if self._site.owner is None or not isinstance(node.value, ast.Name) or node.value.id != self._site.instance:
            return False
        self.impossible |= callable(getattr(type(self._site.owner), node.attr, None))
        return True

    def _argument(self, node: ast.Attribute | ast.Subscript, name: str) -> ast.Name:
        text = ast.unparse(node)
        while name in self._site.function.__code__.co_varnames or self.names.get(name, text) != text:
            name += "_"
        self.names[name] = text
        return ast.Name(name, node.ctx)


def _values(site: Site) -> list[ast.expr]:
    """Return the expressions on the slow line that are assigned or returned, and that call something."""
    found: list[ast.expr] = []
    for node in site.body:
        if not isinstance(node, (ast.Assign, ast.Return)) or node.value is None:
            continue
        if not node.lineno <= site.number <= (node.end_lineno or node.lineno):
            continue
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        found += [part for part in parts if any(isinstance(inner, ast.Call) for inner in ast.walk(part))]
    return [part for part in found if part.lineno <= site.number <= (part.end_lineno or part.lineno)]


REMEDY = SameEachEpoch()
