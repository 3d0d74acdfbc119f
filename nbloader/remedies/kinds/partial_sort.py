"""All values are sorted, for the first or the last few of them."""

from __future__ import annotations

import ast

import numpy as np

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site, constant_of

HELPER = '''\
def part_of_argsort(values, *index):
    """As NUMPY.argsort(values)[index], but only that part is sorted."""
    values = NUMPY.asarray(values)
    first, end = index[-1].start, index[-1].stop
    few = values.shape[-1] // 4
    if values.ndim == len(index) and end is not None and 0 < end <= few and (first is None or first >= 0):
        part = NUMPY.argpartition(values, end - 1)[..., :end]
    elif values.ndim == len(index) and end is None and -few <= first < 0:
        part = NUMPY.argpartition(values, first)[..., first:]
    else:
        return NUMPY.argsort(values)[index]
    order = NUMPY.argsort(NUMPY.take_along_axis(values, part, -1))
    return NUMPY.take_along_axis(part, order, -1)[index]
'''


class PartialSort:
    """`np.argsort(x)[:k]`, `sorted(x)[:k]`: finding the first few takes less time than sorting all."""

    name = "partial-sort"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        numpy = site.module("numpy", "np")
        parts = [part for node in site.nodes if (part := _of_argsort(site, node)) is not None]
        if parts:
            helper = f"{numpy.helper}\n\n{HELPER.replace('NUMPY', numpy.name)}".lstrip()
            return [_proposal(site, parts, helper, "np.argpartition", " Of equal values, it may take others.")]
        heap = site.module("heapq", "heapq")
        edits = [edit for node in site.nodes if (edit := _of_sorted(site, node, heap.name)) is not None]
        return [_proposal(site, edits, heap.helper, "heapq.nsmallest")] if edits else []


def _proposal(site: Site, edits: list[Edit], helper: str, function: str, note: str = "") -> Proposal:
    return Proposal(
        why="All values are sorted, although only a few of them are used.",
        instead=f"Find those with `{function}`, and sort only them.{note}",
        code=site.rewritten(*edits),
        helper=helper,
        must_be_equal=True,
        must_help=True,
        short=f"Sort only the values that are used, with {function}",
    )


def _of_argsort(site: Site, node: ast.AST) -> Edit | None:
    """Rewrite code that takes the first or last indices of `np.argsort`, along the last axis; None for other code."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Call):
        return None
    call = node.value
    index = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if site.target(call.func) is not np.argsort or not call.args or isinstance(call.args[0], ast.Starred):
        return None
    axes = [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg == "axis")]
    if len(axes) != len(call.args) + len(call.keywords) - 1 or any(
        constant_of(a) not in (-1, len(index) - 1) for a in axes
    ):
        return None
    if len(axes) > 1 or not all(isinstance(part, ast.Slice) and part.step is None for part in index):
        return None
    *rows, last = index
    if any(part.lower or part.upper for part in rows) or not (last.lower or last.upper):  # type: ignore[attr-defined]
        return None
    bounds = (one and site.text(one) for one in (last.lower, last.upper))  # type: ignore[attr-defined]
    slices = [*("slice(None)" for _row in rows), f"slice({', '.join(map(str, bounds))})"]
    return Edit(node, f"part_of_argsort({', '.join([site.text(call.args[0]), *slices])})")


def _of_sorted(site: Site, node: ast.AST, heapq: str) -> Edit | None:
    """Rewrite `sorted(values)[:count]`; None for other code."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Call) or len(node.value.args) != 1:
        return None
    call, index = node.value, node.slice
    if site.target(call.func) is not sorted or not isinstance(index, ast.Slice) or index.step or index.lower:
        return None
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    reverse = constant_of(options.pop("reverse")) if "reverse" in options else False
    if index.upper is None or options.keys() - {"key"} or not isinstance(reverse, bool):
        return None
    count = constant_of(index.upper)
    if isinstance(count, int) and count < 0:
        return None
    name = "nlargest" if reverse else "nsmallest"
    key = f", key={site.text(options['key'])}" if "key" in options else ""
    return Edit(node, f"{heapq}.{name}({site.text(index.upper)}, {site.text(call.args[0])}{key})")


REMEDY = PartialSort()
