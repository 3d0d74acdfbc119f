"""Work that gives the same result in each epoch, such as what comes before random augmentation."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nbloader._platform import available_memory
from nbloader.cache.sample_cache import MEMORY_SHARE
from nbloader.remedies import flow
from nbloader.remedies.changes import changed_in_place, root_of
from nbloader.remedies.kept_samples import is_filled
from nbloader.remedies.moved import Arguments, are_whole_lines, text_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import UNKNOWN, Edit, Site
from nbloader.remedies.transforms import with_first_transforms

WHY = "This part of the sample is the same in each epoch, but it is computed every time."
INSTEAD = (
    "Keep its results in memory that all workers share. The first epoch computes them, and gains only where samples "
    'share a result. To keep them between sessions, call nbloader.configure_cache(directory="cache") before the first '
    "epoch: they are also written to this folder, and later sessions read them from there."
)
SINGLE_ELEMENTS = 2
"""Number of loops inside which an expression is a single element, such as a pixel, which is too small for the cache."""
LOOKUP = 100e-6
"""What a cache needs at least to compare arguments and to return a result, seconds."""
FEW_ITEMS = 3
"""At most so many items of a result are kept instead of the whole."""
LIGHT = ("int", "len", "str", "float", "bool", "divmod", "min", "max", "range", "abs", "isinstance", "tuple", "dict")
LIGHT_METHODS = (
    "format",
    "join",
    "strip",
    "split",
    "replace",
    "get",
    "item",
    "append",
    "index",
    "startswith",
    "endswith",
)


class SameEachEpoch:
    """`nbloader.cached`: what does not depend on random numbers is computed once for all epochs and workers.

    What is kept contains the slow line and ends before the first statement that draws random numbers, or earlier. If
    such statements cannot be a function of their own, it is one expression.
    """

    name = "same-each-epoch"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        needed, available = site.facts.samples * site.facts.nbytes, available_memory()
        if not needed or (available is not None and needed > available // MEMORY_SHARE) or _are_short_calls(site):
            return []
        calls_kept = any(site.calls_kept(node) for node in site.nodes)
        if site.tree.name.startswith(("__getitems__", "__iter__", "__next__")) or _is_method_of_nothing(site):
            return []
        found, smaller = (
            _of_parts(with_first_transforms(site, without=without), minimum=2 if calls_kept else 1)
            for without in (0, 1)  # the last one often makes floats of bytes
        )
        if calls_kept:  # one cache may keep what is made of the results of another one, once that has them
            return found[:1] if is_filled() else []
        if found:  # the longest part, then shorter ones, which may take less memory, or be the same in each epoch
            several: dict[str, Proposal] = {}
            for one in (found[0], found[len(found) // 2], found[-1], *smaller[:1]):
                several.setdefault(one.helper, one)
            return list(several.values())
        return [proposal for value in _values(site) if (proposal := _of_value(site, value)) is not None][:1]


def _are_short_calls(site: Site) -> bool:
    """Whether a call of the function takes less time than the cache needs to compare its arguments."""
    code = site.function.__code__
    calls = site.facts.calls.get((code.co_filename, code.co_firstlineno), 0)
    return site.facts.seconds < calls * LOOKUP


class _Part(NamedTuple):
    """Statements of the function."""

    before: list[ast.stmt]
    kept: list[ast.stmt]
    after: list[ast.stmt]


def _is_method_of_nothing(site: Site) -> bool:
    return site.owner is None and site.instance == "self"  # its argument would be the whole dataset


def _parts(site: Site) -> Iterator[_Part]:
    """Return the parts that could be kept, the longest first. Each contains the slow line."""
    body = flow.statements(site)
    slow = next((n for n, stmt in enumerate(body) if stmt.lineno <= site.number <= (stmt.end_lineno or 0)), None)
    if slow is None:
        return
    drawn: set[str] = set()  # names whose values depend on random numbers
    keeps = []
    for number, stmt in enumerate(body):
        keeps.append(drawn.isdisjoint(flow.read([stmt])) and _can_keep(site, stmt, last=number == len(body) - 1))
        if not keeps[-1]:
            drawn |= set(flow.assigned([stmt]))
    first = slow
    while first and keeps[first - 1]:
        first -= 1
    end = first
    while end < len(body) and keeps[end]:
        end += 1
    while first < slow and _is_light(site, body[first]) and not _is_filled(body[first], body[first + 1 : end]):
        first += 1
    for cut in range(end, slow, -1):
        yield _Part(body[:first], body[first:cut], body[cut:])


def _can_keep(site: Site, stmt: ast.stmt, *, last: bool) -> bool:
    if last and isinstance(stmt, ast.Return) and stmt.value is not None:
        return flow.can_move(site, [stmt.value])
    return flow.can_move(site, [stmt])


def _is_filled(stmt: ast.stmt, later: Sequence[ast.stmt]) -> bool:
    """Whether later statements change what a statement assigns, as `append` does: then it is no argument for them."""
    roots = [root_of(node) for one in later for node in changed_in_place(one)]
    return not {root.id for root in roots if root is not None}.isdisjoint(flow.assigned([stmt]))


def _is_light(site: Site, stmt: ast.stmt) -> bool:
    """Whether a statement only looks something up, so that what it returns can be an argument of what is kept."""
    if not isinstance(stmt, (ast.Assign, ast.AnnAssign)) or any(map(_is_row, ast.walk(stmt))):
        return False
    for call in (node for node in ast.walk(stmt) if isinstance(node, ast.Call)):
        target = site.target(call.func)
        module = getattr(target, "__module__", "") or ""
        known = module in ("posixpath", "ntpath", "genericpath", "pathlib") or getattr(target, "__name__", "") in LIGHT
        method = isinstance(call.func, ast.Attribute) and call.func.attr in LIGHT_METHODS
        if not (method if target is UNKNOWN else known):
            return False
    return True


def _is_row(node: ast.AST) -> bool:
    """Whether an expression takes rows of a table: what they are takes longer to compare than where they are."""
    if not isinstance(node, ast.Subscript):
        return False
    indexer = isinstance(node.value, ast.Attribute) and node.value.attr in ("iloc", "loc")
    return indexer or any(isinstance(inner, ast.Compare) for inner in ast.walk(node.slice))


def _of_parts(site: Site, minimum: int) -> list[Proposal]:
    """Propose to keep each part that has at least so many statements, the longest first."""
    parts = [part for part in _parts(site) if len(part.kept) >= minimum]
    return [proposal for part in parts if (proposal := _of_part(site, part)) is not None]


def _of_part(site: Site, part: _Part) -> Proposal | None:
    """Propose to keep what some statements assign; None if they cannot be a function of their own."""
    if isinstance(site.tree, ast.AsyncFunctionDef) or not are_whole_lines(site, part.kept):
        return None
    available = {*flow.parameters(site), *flow.assigned(part.before), *site.function.__code__.co_freevars}
    given = Arguments(site, part.kept, available)
    if given.impossible:
        given = Arguments(site, part.kept, available, whole=True)
    later = flow.read(part.after)
    results = [name for name in flow.assigned(part.kept) if name in later]
    certain = flow.always_assigned(part.kept)
    returns = isinstance(part.kept[-1], ast.Return)
    names = given.names_with([one for one in results if one in available and one not in certain])
    if given.impossible or not (results or returns) or any(one not in certain and one not in names for one in results):
        return None
    names = dict(sorted(names.items(), key=lambda one: one[1] != site.instance))  # the whole object first
    items = [one for name in results if not returns for one in _items(site, part, name)]
    whole = [name for name in results if name not in {one.container for one in items}]
    text = text_of(site, part.kept, given.edits)
    text += "" if returns else f"\nreturn {', '.join([*whole, *dict.fromkeys(one.text for one in items)])}"
    call = f"{_name(site)}({', '.join(names.values())})"
    assigned = ", ".join([*whole, *dict.fromkeys(one.name for one in items)])
    call = f"return {call}" if returns else f"{assigned} = {call}"
    lines = site.rewritten(*(Edit(one.node, one.name) for one in items)).splitlines(keepends=True)
    first, last = part.kept[0].lineno - 1, part.kept[-1].end_lineno or part.kept[-1].lineno
    code = "".join([*lines[:first], " " * part.kept[0].col_offset + call + "\n", *lines[last:]])
    return _proposal(site, code, list(names), text, given.fixed, files=site.instance in names.values())


class _Item(NamedTuple):
    """An item of a result that is read later."""

    container: str
    """The variable with the item."""
    name: str
    """The variable that gets the item instead."""
    text: str
    """The item, as code."""
    node: ast.Subscript


def _items(site: Site, part: _Part, name: str) -> list[_Item]:
    """Return the items of a result that are read later, if nothing else of it is: a row of a table has many more."""
    nodes = list(flow.inside(part.after))
    reads = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    found = []
    for node in nodes:
        if not isinstance(node, ast.Subscript) or node.value not in reads or not isinstance(node.ctx, ast.Load):
            continue
        known = isinstance(node.slice, ast.Name) and isinstance(site.target(node.slice), (list, str))
        text = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        if (known or text) and not flow.around(site, node, flow.BRANCHES) and node.lineno == node.end_lineno:
            key = re.sub(r"\W+", "_", ast.unparse(node.slice)).strip("_").lower()
            found.append(_Item(name, f"{name}_{key}", ast.unparse(node), node))
    taken = {node.id for node in site.body if isinstance(node, ast.Name)}
    free = taken.isdisjoint(one.name for one in found)
    return found if len(found) == len(reads) and free and len({one.text for one in found}) <= FEW_ITEMS else []


def _of_value(site: Site, value: ast.expr) -> Proposal | None:
    """Propose to keep an expression; None if it cannot be a function of its own."""
    given = Arguments(site, [value], set(site.local(value)) | set(site.function.__code__.co_freevars))
    if given.impossible:
        return None
    names = given.names_with([])
    code = site.rewritten(Edit(value, f"{_name(site)}({', '.join(names.values())})"))
    text = site.rewritten(*given.edits, part=(value, value))
    text = f"return {text}" if "\n" not in text else f"return {ast.unparse(given.nodes[0])}"
    return _proposal(site, code, list(names), text, given.fixed)


def _proposal(
    site: Site, code: str, names: Sequence[str], text: str, fixed: Sequence[str], *, files: bool = False
) -> Proposal:
    """Return the proposal.

    Args:
        site: The slow line.
        code: The function with a call of what is kept.
        names: The arguments of what is kept.
        text: The code of what is kept.
        fixed: The arguments that are large.
        files: Whether the files that it reads are not known from its arguments.
    """
    short = f"Keep the results of `{site.tree.name}` with nbloader.cached"
    large = list(dict.fromkeys(name for name in fixed if name in names))
    helper = _function(site, names, text, large)
    changes = (
        f"{' and '.join(f'`{name}`' for name in large)} in place{', and of the files that it reads,' if files else ''}"
    )
    told = f" Changes of {changes} are not noticed." if large else ""
    return Proposal(WHY, INSTEAD + told, code, helper, saves="later", short=short, is_certain=False)


def _name(site: Site) -> str:
    """Return the name of the kept function: two methods of a class may have one each, and one may call another."""
    name = site.tree.name
    name = "same_each_epoch" if name.startswith("__") else f"same_each_epoch_{name.strip('_')}"
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(one for one in names if not re.search(rf"\b{one}\b", site.source))


def _function(site: Site, names: Sequence[str], text: str, fixed: Sequence[str]) -> str:
    module = site.module("nbloader", "nbloader")
    imports = f"{module.helper}\n\n" if module.helper else ""
    body = textwrap.indent(text, "    ")
    decorator = f"{module.name}.cached(fixed={list(fixed)!r})" if fixed else f"{module.name}.cached"
    return f"{imports}@{decorator}\ndef {_name(site)}({', '.join(names)}):\n{body}\n"


def _values(site: Site) -> list[ast.expr]:
    """Return the expressions on the slow line that are assigned or returned, and that call something.

    Of a call that is random, or that is of a method, these are its arguments.
    """
    found: list[ast.expr] = []
    for node in site.body:
        if isinstance(node, (ast.Assign, ast.Return)) and node.value is not None:
            found += node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    for value in found:
        if isinstance(value, ast.Call) and (flow.is_random(site, [value]) or _is_method(site, value.func)):
            found += [*value.args, *([value.func.value] if isinstance(value.func, ast.Attribute) else [])]
        elif isinstance(value, ast.Subscript) and flow.is_random(site, [value.slice]):
            found.append(value.value)
    return [
        value for value in found
        if value.lineno <= site.number <= (value.end_lineno or value.lineno)
        and any(isinstance(inner, ast.Call) for inner in ast.walk(value))
        and site.loops_around(value) < SINGLE_ELEMENTS
    ]  # fmt: skip


def _is_method(site: Site, function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return False
    return site.owner is not None and function.value.id == site.instance


REMEDY = SameEachEpoch()
