"""A photograph that OpenCV decodes at its full size, although the sample needs a small picture."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

SHORT = "Decode photographs at a part of their size"
REDUCED = (2, 4, 8)
"""How many times smaller OpenCV can decode a picture."""


class OpencvSize:
    """`cv2.imread(path)` and `cv2.resize(...)`: OpenCV can decode at 1/2, 1/4 or 1/8 of the size."""

    name = "opencv-size"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. One proposal for each size: the fastest one whose pixels are close is taken."""
        cv2 = site.module("cv2", "cv2")
        read = [call for call in self._called(site, "imread", "imdecode") if self._in_color(site, call)]
        resizes = bool(self._called(site, "resize")) or site.facts.picture is not None
        if cv2.helper or not read or not resizes:
            return []
        why = "The photograph is decoded at its full size, and made smaller afterwards."
        proposals = []
        for times in REDUCED:
            instead = f"Decode it at 1/{times} of its size (IMREAD_REDUCED_COLOR_{times}), which takes less time."
            edits = []
            for call in read:
                flag, paths = f"{cv2.name}.IMREAD_REDUCED_COLOR_{times}", [site.text(part) for part in call.args[:1]]
                edits.append(Edit(call, f"{site.text(call.func)}({', '.join([*paths, flag])})"))
            code = site.rewritten(*edits)
            proposals.append(Proposal(why, instead, code, must_differ=True, short=SHORT, is_certain=False))
        return proposals

    @staticmethod
    def _called(site: Site, *names: str) -> list[ast.Call]:
        """Return the calls of functions of OpenCV. They are built-in functions, whose module is not always named."""
        found = []
        for node in site.body:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
                owner = site.target(node.func.value)
                if getattr(owner, "__name__", "") == "cv2":
                    found.append(node)
        return found

    @staticmethod
    def _in_color(site: Site, call: ast.Call) -> bool:
        """Whether a call decodes to three channels of 8 bits."""
        flags = call.args[1:]
        return not flags or site.text(flags[0]).endswith("IMREAD_COLOR")


REMEDY = OpencvSize()
