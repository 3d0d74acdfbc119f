"""A JPEG photograph that PIL decodes at its full size, although the sample needs a small picture."""

from __future__ import annotations

import ast
from pathlib import Path

from nbloader._util.attributes import attributes_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

DECODING = ("convert", "resize", "load", "crop", "thumbnail", "tobytes", "rotate", "transpose")
"""Methods of a picture that decode it, if nothing before them has."""
JPEG = frozenset({".jpg", ".jpeg", ".jpe"})
OTHERS = frozenset({".png", ".tif", ".tiff", ".bmp", ".webp", ".gif", ".ppm", ".pgm"})
CLOSER = 2
"""A picture that is decoded at this many times the size, at least, differs less from what was resized before."""


class FullSizeJpeg:
    """`Image.open(path).convert("RGB").resize(...)`: the decoder can produce a smaller picture, in less time."""

    name = "full-size-jpeg"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. PIL decodes when pixels are asked for, so the slow line need not be the one that opens."""
        opened = [call for call in site.calls("PIL.Image.open", anywhere=True) if not site.in_loop_or_lambda(call)]
        resized = [call for call in site.methods("resize", "thumbnail", anywhere=True) if call.args]
        sizes = [size for call in resized if (size := site.size(call.args[0])) is not None]
        needed = sizes[0] if sizes else site.facts.picture
        decodes = bool(site.methods(*DECODING) or any(isinstance(node, ast.Call) for node in site.nodes))
        if (
            not opened
            or needed is None
            or not decodes
            or _has_other_files(site)
            or site.methods("draft", anywhere=True)
        ):
            return []
        why = f"The photograph is decoded at its full size, but the sample needs {needed[0]} x {needed[1]} pixels."
        instead = (
            "Let the JPEG decoder produce a smaller image and compute no more than that. Pixels differ slightly, as "
            "with another resampling filter. Other formats are not affected."
        )
        short, certain = "Decode JPEGs at the size that is used", bool(site.methods(*DECODING))
        proposals = []
        for times in (CLOSER, 1):
            size = (needed[0] * times, needed[1] * times)
            edits = [edit for call in opened for edit in _drafted(site, call, size)]
            code = site.rewritten(*edits)
            proposals.append(Proposal(why, instead, code, must_differ=True, short=short, is_certain=certain))
        return proposals


def _has_other_files(site: Site) -> bool:
    """Whether the lists of the dataset name pictures, and none of the first ones is a JPEG file."""
    lists = [value for value in attributes_of(site.owner).values() if isinstance(value, list) and value]
    firsts = [value[0][0] if isinstance(value[0], tuple) and value[0] else value[0] for value in lists]
    endings = {Path(first).suffix.lower() for first in firsts if isinstance(first, (str, Path))}
    return bool(endings & OTHERS) and endings.isdisjoint(JPEG)


def _drafted(site: Site, call: ast.Call, size: tuple[int, int]) -> list[Edit]:
    """Return the edits that ask for a smaller picture right after it was opened."""
    modes = [site.text(used.args[0]) for used in site.methods("convert", anywhere=True) if used.args]
    mode = modes[0] if modes and modes[0] in ('"RGB"', "'RGB'", '"L"', "'L'") else "None"
    statement = site.statement(call)
    if isinstance(statement, ast.With):
        for item in statement.items:
            if item.context_expr is call and isinstance(item.optional_vars, ast.Name):
                return [Edit(statement.body[0], f"{item.optional_vars.id}.draft({mode}, {size})", before=True)]
        return []
    name = "opened"
    return [
        Edit(statement, f"{name} = {site.text(call)}\n{name}.draft({mode}, {size})", before=True),
        Edit(call, name),
    ]


REMEDY = FullSizeJpeg()
