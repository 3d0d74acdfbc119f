"""Names for a helper's functions that nothing beside the user's function has."""

from __future__ import annotations

import contextlib
import inspect
import re
from types import FunctionType
from typing import Any

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site


def with_free_names(site: Site, proposal: Proposal) -> Proposal | None:
    """Return a proposal whose helper replaces nothing of the user.

    Args:
        site: The slow line.
        proposal: The proposal.

    Returns:
        The proposal, in which names that are taken have got a number; None if the function itself uses one of them.
    """
    helper, code = proposal.helper, proposal.code
    for name in taken_names(site.function, helper):
        if re.search(_word(name), site.source):
            return None
        used = "\n".join((site.source, helper, code, *site.function.__globals__))
        free = next(new for number in range(2, len(used)) if (new := f"{name}_{number}") not in used)
        helper, code = (re.sub(_word(name), free, text) for text in (helper, code))
    return proposal._replace(helper=helper, code=code)


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


def _code(function: Any) -> bytes | None:
    """Return the code of a function, below its decorators; None if it is something else."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else code.co_code
