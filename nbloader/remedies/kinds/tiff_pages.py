"""A page of a TIFF file, for which all pages are read."""

from __future__ import annotations

import ast
import os

from nbloader.remedies import flow
from nbloader.remedies.moved import are_whole_lines
from nbloader.remedies.parts import Parts, can_read_later, first_index, is_number, parts_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class TiffPages:
    """`tifffile.imread(path)[k]`: with `key=k`, only this page is read and decoded.

    A file may have several series, of which `imread` returns the first one: without `series=0`, `key` would count the
    pages of all of them. `int(k)` refuses lists, whose only page would lose its first axis.
    """

    name = "tiff-pages"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        calls = [call for call in site.calls("tifffile.imread", anywhere=True) if len(call.args) == 1]
        edits = [edit for call in calls if not call.keywords for edit in _by_page(site, call)]
        if not edits:
            return []
        return [
            Proposal(
                why="All pages of the file are read and decoded, although the sample needs only some of them.",
                instead="Read only these pages: `key` is a page's number in the first series, which imread returns.",
                code=_without_blank_lines(site.rewritten(*edits)),
                must_be_equal=True,
                short="Read single pages with tifffile.imread(..., key=...)",
                is_certain=bool(site.calls("tifffile.imread")),
                shortens_waits=True,
            )
        ]


def _by_page(site: Site, call: ast.Call) -> list[Edit]:
    """Return the edits that read each page where it is used; none if more than pages is used."""
    parts = parts_of(site, call)
    if parts is None or parts.is_measured or parts.is_changed:
        return []
    if not all(_is_page(first_index(part)[0]) for part in parts.taken):
        return []
    if parts.assigned is not None and not _can_go(site, parts, parts.assigned):
        return []
    edits = [] if parts.assigned is None else [Edit(parts.assigned, "")]
    for part in parts.taken:
        page, others = first_index(part)
        rest = f"[{', '.join(map(site.text, others))}]" if others else ""
        key = site.text(page) if is_number(page) else f"int({site.text(page)})"
        read = f"{site.text(call.func)}({site.text(call.args[0])}, key={key}, series=0)"
        edits.append(Edit(part, f"{read}{rest}"))
    return edits


def _is_page(index: ast.expr) -> bool:
    """Whether an index may be the number of a page. A slice of one page would have another shape."""
    number = not isinstance(index, ast.Constant) or type(index.value) is int
    return number and not isinstance(index, (ast.Slice, ast.Starred, ast.List, ast.ListComp, ast.Compare))


def _can_go(site: Site, parts: Parts, assigned: ast.Assign) -> bool:
    """Whether the file can be read later: its statement is one of several lines, and the path stays the same."""
    names = site.local(assigned.value)
    stored = [node.id for node in site.body if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    after = [part for part in parts.taken if part.lineno > assigned.lineno]
    blocks = [getattr(node, field, None) for node in site.body for field in ("body", "orelse", "finalbody")]
    alone = any(block == [assigned] for block in blocks)
    same = all(stored.count(name) <= (name not in flow.parameters(site)) for name in names)
    if any(isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) for node in site.body):
        return False  # it may be a part of the path
    calls = [node for node in ast.walk(assigned.value) if isinstance(node, ast.Call) and node is not assigned.value]
    repeatable = all(site.target(call.func) is os.path.join for call in calls)  # not a random choice
    same &= repeatable and can_read_later(site, parts)
    return same and not alone and after == parts.taken and are_whole_lines(site, [assigned])


def _without_blank_lines(code: str) -> str:
    """Return code without the lines of which only the indentation is left."""
    lines = code.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() or not line.strip("\r\n"))


REMEDY = TiffPages()
