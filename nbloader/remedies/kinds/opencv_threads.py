"""OpenCV computes with several threads in each worker, which compete for the cores."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class OpencvThreads:
    """Calls of OpenCV: as many threads as cores, in each worker."""

    name = "opencv-threads"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        called = [site.target(node.func) for node in site.nodes if isinstance(node, ast.Call)]
        cv2 = site.module("cv2", "cv2")
        if cv2.helper or not any((getattr(obj, "__module__", "") or "").startswith("cv2") for obj in called):
            return []
        threads = site.facts.opencv_threads
        if f"{cv2.name}.setNumThreads" in site.source or (threads is not None and threads <= 1):
            return []
        body = [node for node in site.tree.body if not _is_docstring(node)]
        if not body or body[0].lineno == site.tree.lineno:
            return []
        first = Edit(body[0], f"{cv2.name}.setNumThreads(0)", before=True)
        why = "In each worker, OpenCV uses as many threads as there are cores, and these compete for the cores."
        short = "Use one thread of OpenCV per worker"
        instead = "Let OpenCV use one thread: here, or in worker_init_fn, once per worker."
        return [Proposal(why, instead, site.rewritten(first), saves="threads", short=short, is_certain=False)]


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


REMEDY = OpencvThreads()
