"""Proposals that call a function once per process instead of once per sample."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


def keep_results(
    site: Site, calls: Sequence[ast.Call], *, why: str, instead: str, short: str, is_certain: bool = True, kept: int = 8
) -> list[Proposal]:
    """Propose to call a function once for each combination of its arguments, and to keep what it returns.

    Args:
        site: The slow line.
        calls: The calls, of one function.
        why: See `Proposal`.
        instead: See `Proposal`.
        short: See `Proposal`.
        is_certain: See `Proposal`.
        kept: Number of results that each worker keeps.
    """
    if not calls:
        return []
    if all(id(call) in (members := members_of(site)) for call in calls):
        code, helper = _keep_members(site, [members[id(call)] for call in calls], kept)
    else:
        name, helper = _keeper(site, calls[0], kept, "*args, **kwargs", "{}(*args, **kwargs)")
        code = site.rewritten(*(Edit(call.func, name) for call in calls))
    return [
        Proposal(
            why, instead, code, helper, must_be_equal=True, short=short, is_certain=is_certain, shortens_waits=True
        )
    ]


def members_of(site: Site) -> dict[int, ast.Subscript]:
    """Return what takes one member of what an expression returns, as `load(path)["x"]` does, by the expression."""
    return {
        id(node.value): node
        for node in site.body
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    }


def _keep_members(site: Site, members: Sequence[ast.Subscript], kept: int) -> tuple[str, str]:
    """Return the code that keeps members, and its helper: an archive decodes one each time that it is asked for it."""
    calls = [member.value for member in members if isinstance(member.value, ast.Call)]
    name, helper = _keeper(site, calls[0], kept, "member, *args, **kwargs", "{}(*args, **kwargs)[member]")
    edits = []
    for member, call in zip(members, calls, strict=True):
        arguments = [site.text(part) for part in (member.slice, *call.args, *call.keywords)]
        edits.append(Edit(member, f"{name}({', '.join(arguments)})"))
    return site.rewritten(*edits), helper


class _Keeper(NamedTuple):
    """A function that keeps what another one returns."""

    name: str
    helper: str
    """Its definition."""


def _keeper(site: Site, call: ast.Call, kept: int, parameters: str, result: str) -> _Keeper:
    function = site.text(call.func)
    assigned = site.statement(call)
    target = assigned.targets[0] if isinstance(assigned, ast.Assign) else None
    parts = [function.rpartition(".")[2].lower(), *([target.id] if isinstance(target, ast.Name) else [])]
    name = "_".join(["kept", *parts])  # a pasted function of the same name would share its results
    tools = site.module("functools", "functools")
    imports = f"{tools.helper}\n\n" if tools.helper else ""
    body = f"def {name}({parameters}):\n    return {result.format(function)}\n"
    return _Keeper(name, f"{imports}@{tools.name}.lru_cache(maxsize={kept})\n{body}")
