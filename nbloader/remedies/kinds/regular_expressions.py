"""Regular expressions that are compiled for each sample."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

FUNCTIONS = ("sub", "subn", "match", "fullmatch", "search", "findall", "finditer", "split")


class RegularExpressions:
    """`re.sub(pattern, ...)`: the module keeps 512 patterns, and looks each one up again."""

    name = "regular-expressions"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        edits = [Edit(call.func, "compiled") for call in site.calls("re.compile") if call.args]
        for function in FUNCTIONS:
            for call in site.calls(f"re.{function}"):
                if len(call.args) > 1:
                    edits += _of_pattern(site, call, function)
        if not edits:
            return []
        tools, re = site.module("functools", "functools"), site.module("re", "re")
        imports = "\n".join(part.helper for part in (tools, re) if part.helper)
        helper = f"{imports}\n\ncompiled = {tools.name}.lru_cache(maxsize=None)({re.name}.compile)\n".lstrip()
        return [
            Proposal(
                why="Each call looks up or compiles the pattern: re keeps 512 patterns.",
                instead="Compile it once, as a global variable or as below. Several patterns can be one: a|b|c.",
                code=site.rewritten(*edits),
                helper=helper,
                short="Compile each pattern once",
                is_certain=False,
            )
        ]


def _of_pattern(site: Site, call: ast.Call, function: str) -> list[Edit]:
    """Return the edits that make a call of a function of `re` one of the pattern's method.

    The other arguments are left as they are, because they may contain such calls, too.
    """
    flags = [keyword for keyword in call.keywords if keyword.arg == "flags"]
    pattern = ", ".join(site.text(part) for part in (call.args[0], *flags))
    edits = [Edit(call.func, f"compiled({pattern}).{function}"), Edit(_between(call.args[0], call.args[1]), "")]
    for keyword in flags:
        parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        others = [part for part in parts if _end(part) < _begin(keyword)]
        edits.append(Edit(_between(max(others, key=_end), keyword, whole=False), ""))
    return edits


def _begin(node: ast.expr | ast.keyword) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.keyword) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _between(first: ast.expr | ast.keyword, second: ast.expr | ast.keyword, *, whole: bool = True) -> ast.expr:
    """Return a node for a node and the text up to the next one; or, if not whole, for that text and the next one."""
    begin, end = (_begin(first), _begin(second)) if whole else (_end(first), _end(second))
    return ast.Constant(None, lineno=begin[0], col_offset=begin[1], end_lineno=end[0], end_col_offset=end[1])


REMEDY = RegularExpressions()
