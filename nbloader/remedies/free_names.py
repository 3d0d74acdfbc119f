"""Names for a helper's functions that nothing beside the user's function has."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from types import CodeType, FunctionType
from typing import Any

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site


def with_free_names(site: Site, proposal: Proposal) -> Proposal | None:
    """Return a proposal whose helper replaces nothing of the user.

    Args:
        site: The slow line.
        proposal: The proposal.

    Returns:
        The proposal, in which names that are taken have got a number; None if the function itself uses one of them. A
        helper that was pasted before is left out.
    """
    helper, code = proposal.helper, proposal.code
    there = _pasted_before(site.function, helper)
    if there:
        names = " and ".join(f"`{name}`" for name in there)
        return proposal._replace(
            helper="", instead=f"{proposal.instead} {names} {'is' if len(there) == 1 else 'are'} there."
        )
    for name in taken_names(site.function, helper):
        if re.search(_word(name), site.source):
            return None
        used = "\n".join((site.source, helper, code, *site.function.__globals__))
        free = next(new for number in range(2, len(used)) if (new := f"{name}_{number}") not in used)
        helper, code = (re.sub(_word(name), free, text) for text in (helper, code))
    return proposal._replace(helper=helper, code=code)


def _pasted_before(function: FunctionType, helper: str) -> list[str]:
    """Return the functions of a helper if all of them stand beside a function already, with the same code."""
    if not helper:
        return []
    names = [node.name for node in ast.parse(helper).body if isinstance(node, ast.FunctionDef)]
    before = function.__globals__
    after = dict(before)
    if not names or not all(name in before for name in names):
        return []
    with contextlib.suppress(ImportError):
        exec(compile(helper, "<nbloader remedy>", "exec"), after)  # noqa: S102 - of a remedy
    new = [name for name in names if after[name] is not before[name]]
    same = [name for name in new if _code(before[name]) == _code(after[name]) is not None]
    return names if len(same) == len(names) else []


def _word(name: str) -> str:
    return rf"\b{re.escape(name)}\b"


def taken_names(function: FunctionType, helper: str) -> list[str]:
    """Return the names beside a function that a helper's code would replace with something else.

    Functions with the same code are what was pasted before.
    """
    before = function.__globals__
    after = dict(before)
    with contextlib.suppress(ImportError):
        exec(compile(helper, "<nbloader remedy>", "exec"), after)  # noqa: S102 - of a remedy
    replaced = [name for name, value in before.items() if after[name] is not value]
    functions = [name for name in replaced if callable(after[name])]
    pasted = functions and all(_code(before[name]) == _code(after[name]) for name in functions)
    return [] if pasted else replaced


def _code(function: Any) -> tuple[Any, ...] | None:
    """Return what a function does, below its decorators; None if it is something else."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else _does(code)


def _does(code: CodeType) -> tuple[Any, ...]:
    """Return what code does, wherever it stands."""
    constants = (_does(one) if isinstance(one, CodeType) else (type(one), one) for one in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, *constants
