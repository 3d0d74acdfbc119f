"""A page of a TIFF file, for which all pages are read."""

from __future__ import annotations

import ast

from nbloader.remedies import flow
from nbloader.remedies.moved import are_whole_lines
from nbloader.remedies.parts import Parts, first_index, parts_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class TiffPages:
    """`tifffile.imread(path)[k]`: with `key=k`, only this page is read and decoded."""

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
                instead="Read only these pages: `key` is the number of a page.",
                code=_without_blank_lines(site.rewritten(*edits)),
                must_be_equal=True,
                short="Read single pages with tifffile.imread(..., key=...)" if site.calls("tifffile.imread") else "",
                shortens_waits=True,
            )
        ]


def _by_page(site: Site, call: ast.Call) -> list[Edit]:
    """Return the edits that read each page where it is used; none if more than pages is used."""
    parts = parts_of(site, call)
    if parts is None or parts.is_measured or not all(_is_page(first_index(part)[0]) for part in parts.taken):
        return []
    if parts.assigned is not None and not _can_go(site, parts, parts.assigned):
        return []
    edits = [] if parts.assigned is None else [Edit(parts.assigned, "")]
    for part in parts.taken:
        page, others = first_index(part)
        rest = f"[{', '.join(map(site.text, others))}]" if others else ""
        edits.append(Edit(part, f"{site.text(call.func)}({site.text(call.args[0])}, key={site.text(page)}){rest}"))
    return edits


def _is_page(index: ast.expr) -> bool:
    """Whether an index may be the number of a page. A slice of one page would have another shape."""
    number = not isinstance(index, ast.Constant) or type(index.value) is int
    return number and not isinstance(index, (ast.Slice, ast.Starred, ast.List))


def _can_go(site: Site, parts: Parts, assigned: ast.Assign) -> bool:
    """Whether the file can be read later: its statement is one of several lines, and the path stays the same."""
    names = site.local(assigned.value)
    stored = [node.id for node in site.body if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    after = [part for part in parts.taken if part.lineno > assigned.lineno]
    blocks = [getattr(node, field, None) for node in site.body for field in ("body", "orelse", "finalbody")]
    alone = any(block == [assigned] for block in blocks)
    same = all(stored.count(name) <= (name not in flow.parameters(site)) for name in names)
    return same and not alone and after == parts.taken and are_whole_lines(site, [assigned])


def _without_blank_lines(code: str) -> str:
    """Return code without the lines of which only the indentation is left."""
    lines = code.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() or not line.strip("\r\n"))


REMEDY = TiffPages()
