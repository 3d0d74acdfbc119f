"""A whole array is computed, and only a part of it is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nbloader.remedies import flow
from nbloader.remedies.moved import are_whole_lines
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

ARRAYS = ("numpy.array", "numpy.asarray")
"""Functions whose results can be cropped, also if their arguments cannot."""


class CropFirst:
    """`image = (image / 255 - MEAN) / STD`, and later `image[top:bottom, left:right]`: the part is taken first.

    This is right if each value of the result depends on the same place of the array alone. A trial compares the values.
    """

    name = "crop-first"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        crop = _crop(site)
        if crop is None:
            return []
        codes = dict.fromkeys(_rewritten(site, crop))
        return [
            Proposal(
                why=f"All of `{crop.name}` is computed here, although only `{site.text(crop.node)}` is used later.",
                instead="Take this part first, and compute only that.",
                code=code,
                must_help=True,
                must_be_equal=True,
                short="Crop first, then compute",
                is_certain=False,
            )
            for code in codes
        ]


class _Crop(NamedTuple):
    """A part of an array that is taken after the array was computed."""

    name: str
    """The variable with the array."""
    node: ast.Subscript
    steps: list[int]
    """Positions of the statements that assign the variable."""
    end: int
    """Position of the statement that takes the part."""


def _crop(site: Site) -> _Crop | None:
    """Return the part that is used of what the slow line computes; None if all of it is used."""
    body = flow.statements(site)
    slow = next((stmt for stmt in body if stmt.lineno <= site.number <= (stmt.end_lineno or 0)), None)
    names = [] if slow is None else flow.assigned([slow])
    for end, stmt in enumerate(body):
        for node in ast.walk(stmt):
            if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or not _is_part(node):
                continue
            name = node.value.id
            steps = [place for place, one in enumerate(body[:end]) if name in flow.assigned([one])]
            uses = [one for one in ast.walk(stmt) if isinstance(one, ast.Name) and one.id == name]
            loaded = [one for one in uses if isinstance(one.ctx, ast.Load)]
            later = name in flow.read(body[end + 1 :]) and name not in flow.assigned([stmt])
            if name in names and len(loaded) == 1 and not later and isinstance(stmt, ast.Assign):
                return _Crop(name, node, steps, end)
    return None


def _is_part(node: ast.Subscript) -> bool:
    """Whether an index has only slices, of which one has limits."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    slices = [part for part in parts if isinstance(part, ast.Slice)]
    rest = [part for part in parts if not isinstance(part, ast.Slice)]
    dots = all(isinstance(part, ast.Constant) and part.value is Ellipsis for part in rest)
    return dots and any(part.lower or part.upper for part in slices) and not any(part.step for part in slices)


def _rewritten(site: Site, crop: _Crop) -> Iterator[str]:
    """Return the function with the part taken earlier: the earliest place first."""
    body = flow.statements(site)
    for place in crop.steps:
        moved = _moved(site, body, crop, place)
        if moved is None or not are_whole_lines(site, [body[place]]):
            continue
        limits = "".join(f"{site.text(one)}\n" for one in moved)
        last = [Edit(crop.node, crop.name)]
        gone = [Edit(one, "pass") for one in moved]
        part = site.text(crop.node)[len(site.text(crop.node.value)) :]
        arrays = [call for call in ast.walk(body[place]) if isinstance(call, ast.Call) and call in _arrays(site)]
        free = crop.name not in flow.read(moved)
        if arrays and free:
            inside = [Edit(arrays[-1], f"{site.text(arrays[-1])}{part}")]
            before = [Edit(body[place], limits.rstrip("\n"), before=True)] if limits else []
            yield _without_pass(site.rewritten(*before, *inside, *last, *gone))
        following = next(one for one in body[place + 1 :] if one not in moved)
        early = f"{limits}{crop.name} = {crop.name}{part}"
        if following is not body[crop.end]:
            yield _without_pass(site.rewritten(Edit(following, early, before=True), *last, *gone))


def _arrays(site: Site) -> list[ast.Call]:
    return site.calls(*ARRAYS, anywhere=True)


def _without_pass(code: str) -> str:
    """Remove the lines from which statements were moved."""
    return "".join(line for line in code.splitlines(keepends=True) if line.strip() != "pass")


def _moved(site: Site, body: Sequence[ast.stmt], crop: _Crop, place: int) -> list[ast.stmt] | None:
    """Return the statements that compute the limits and that stand after a place; None if they cannot be moved."""
    between = list(body[place + 1 : crop.end])
    needed = set(flow.read([crop.node.slice]))
    chosen: list[ast.stmt] = []
    for stmt in reversed(between):
        if needed.isdisjoint(flow.assigned([stmt])):
            continue
        chosen.insert(0, stmt)
        needed |= set(flow.read([stmt]))
    rest = [stmt for stmt in between if stmt not in chosen]
    others = set(flow.assigned(rest)) - {crop.name}
    if crop.name in flow.assigned(chosen) or needed & others or not all(are_whole_lines(site, [one]) for one in chosen):
        return None
    draws = any(flow.is_random(site, [one]) for one in chosen)
    if draws and any(flow.is_random(site, [one]) for one in rest):
        return None  # the numbers would be drawn in another order
    return chosen if all(isinstance(one, ast.Assign) for one in chosen) else None


REMEDY = CropFirst()
