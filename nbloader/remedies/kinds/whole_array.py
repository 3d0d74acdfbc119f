"""A part of an array, for which the whole file is read."""

from __future__ import annotations

import ast

from nbloader.remedies.parts import parts_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class WholeArray:
    """`np.load(path)[y : y + 64, x : x + 64]`: a mapped file is read where it is needed."""

    name = "whole-array"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        np = site.module("numpy", "np")
        loads = [
            call for call in site.calls("numpy.load", anywhere=True)
            if call.args and not any(keyword.arg == "mmap_mode" for keyword in call.keywords)
        ]  # fmt: skip
        edits = [edit for call in loads for edit in _mapped(site, call, np.name)]
        if not edits:
            return []
        return [
            Proposal(
                why="The whole file is read, although the sample is a part of it.",
                instead="Map the file: only the pages that are needed are read. It must be a .npy file.",
                code=site.rewritten(*edits),
                helper=np.helper,
                short='Map the file with np.load(..., mmap_mode="r")',
                is_certain=bool(site.calls("numpy.load")),
                shortens_waits=True,
            )
        ]


def _mapped(site: Site, call: ast.Call, np: str) -> list[Edit]:
    """Return the edits that map a file and copy the parts that are used; none if something else is done with it."""
    arguments = ", ".join([*(site.text(part) for part in (*call.args, *call.keywords)), 'mmap_mode="r"'])
    mapped = f"{site.text(call.func)}({arguments})"
    parts = parts_of(site, call)
    if parts is None or parts.is_changed or any(map(_is_member, parts.taken)):
        return []
    if parts.assigned is None:
        return [Edit(part, _copied(np, part, f"{mapped}[{site.text(part.slice)}]")) for part in parts.taken]
    return [Edit(call, mapped), *(Edit(part, _copied(np, part, site.text(part))) for part in parts.taken)]


def _copied(np: str, part: ast.Subscript, text: str) -> str:
    """Return the copy of a part. One that may be a number, such as a label, remains a number."""
    array = any(isinstance(node, ast.Slice) for node in ast.walk(part.slice))
    return f"{np}.array({text})" if array else f"{np}.array({text})[()]"


def _is_member(node: ast.Subscript) -> bool:
    """Whether it takes an array out of an archive: `np.load(path)["x"]`."""
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)


REMEDY = WholeArray()
