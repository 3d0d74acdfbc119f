"""What to say about the slowest line if there is no remedy for it."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from nbloader._util.code_places import is_library, place_of, source_line
from nbloader._util.format import clean, percent
from nbloader.diagnose.parts import MAJORITY
from nbloader.events.stack_samples import CodeLine
from nbloader.metrics.hot_lines import HotLine, HotLines, blamed_line
from nbloader.remedies.kept_samples import Held, calls_kept, keep_less
from nbloader.remedies.site import Site

NOTABLE = 0.01
"""Smallest share of CPU time in libraries that is named."""
SHOWN = 80
"""Maximum length of a line in a message, characters."""
NEXT = 2
"""Number of further lines that are named if nothing makes the slowest one faster."""
SPREAD = 1.5
"""If all lines of a function take this many times as long as its slowest one, they are named together."""
OFTEN = 10
"""The number of calls for a sample is named if it is at least this one."""
MOSTLY = 0.95
"""A share from which on it is called "nearly all"."""


def why_none(
    slowest: HotLine, sites: Sequence[Site], hot: HotLines, remains: Sequence[str], min_share: float, cache: Held
) -> str:
    """Say that there is no remedy for the slowest line, and what remains.

    Args:
        slowest: The line.
        sites: The slow lines whose functions were found.
        hot: All lines.
        remains: What else the user can do, as clauses.
        min_share: Lines with a smaller share are not named.
        cache: What the cache of samples held before the trials.
    """
    what = f"`{clean(slowest.source or slowest.function, SHOWN)}` ({slowest.place})"
    found = f"{hot.elsewhere} nbloader has no ready code that makes {what} faster".lstrip()
    what_remains = f"What remains: {', or '.join(remains)}." if remains and not hot.elsewhere else ""
    here = [site for site in sites if site.line is slowest]
    kept = next((name for site in here for name in calls_kept(site)), "")
    if hot.missed and (kept or any(site.is_kept for site in here)):
        return (
            f"{found}: it is cached in vain, since none of {hot.missed:,} calls in this epoch found an earlier "
            "result. Remove nbloader.cached, or pass arguments that come again, with what is random outside."
        )
    if any(site.is_kept for site in here):
        return f"{found}: a cache keeps its results, so it runs once for each of them. {what_remains}".rstrip()
    if kept and not cache.is_filled:
        return (
            f"{found}: the cache of `{clean(kept, SHOWN)}` has few results yet. From the second epoch on, it has them."
        )
    if kept:
        less = keep_less(here[0], cache.each)
        return f"{found}: it takes copies from the cache of `{clean(kept, SHOWN)}`. What remains: {less}"
    shares = _in_libraries(slowest, hot)
    most = max(shares, key=shares.__getitem__, default="")
    inside = ""
    if sum(shares.values()) >= NOTABLE:
        inside = most if shares[most] >= MAJORITY else ""
        share = shares[inside] if inside else sum(shares.values())
        much = "nearly all" if share >= MOSTLY else f"at least {share:.0%}"
        found += f", and {much} of its CPU time is spent inside {inside or 'libraries'}"
    hint = _hint(here, inside)
    whole = _whole_function(slowest, here, hot)
    return " ".join(filter(None, [f"{found}.", whole, hint, what_remains, _next_lines(slowest, hot, min_share)]))


def _whole_function(slowest: HotLine, here: Sequence[Site], hot: HotLines) -> str:
    """Say what all lines of the slowest line's function take, and how often it runs for a sample."""
    lines = [line for line in hot if (line.file, line.function) == (slowest.file, slowest.function)]
    share, name = sum(line.share for line in lines), slowest.function.rpartition(".")[2]
    text = f"All lines of `{name}` take {percent(share)}." if share >= SPREAD * slowest.share else ""
    code = here[0].function.__code__ if here else None
    calls = 0 if code is None else here[0].facts.calls.get((code.co_filename, code.co_firstlineno), 0)
    if calls >= OFTEN:
        caller = _caller(slowest, hot)
        where = f", mostly from `{clean(source_line(*caller), SHOWN)}` ({place_of(*caller)})" if caller else ""
        often = f"`{name}` runs {calls:,} times for a sample{where}: call it less often, or once for whole arrays."
        return f"{text} {often}".lstrip()
    return text


def _caller(slowest: HotLine, hot: HotLines) -> tuple[str, int] | None:
    """Return the file and the number of the user's line that calls the function of a line most; None if unknown."""
    callers: dict[tuple[str, int], float] = defaultdict(float)
    for count in hot.stacks:
        for outer, inner in pairwise(count.stack):
            if (inner.file, inner.function) == (slowest.file, slowest.function) and not is_library(outer.file):
                callers[outer.file, outer.line] += count.computing + count.waiting
    return max(callers, key=callers.__getitem__, default=None)


def _hint(here: Sequence[Site], inside: str) -> str:
    """Say what often helps with such a line."""
    if inside == "pandas":
        return (
            "Data frames are slow for small questions: compute with NumPy arrays, and convert, group or sort in "
            "__init__ what is the same for all samples."
        )
    if inside and inside != "numpy" and inside not in sys.stdlib_module_names:
        return f"Call {inside} for less: for smaller arrays, or once for what several samples share."
    if any(_calls_compiled(site) for site in here):
        return "It calls a compiled function. The first call in each process compiles it, which takes seconds."
    if any(_is_in_loop(site) for site in here):
        return "It runs in a Python loop: a few NumPy calls on whole arrays often take a fraction of the time."
    return ""


def _calls_compiled(site: Site) -> bool:
    """Whether the slow line calls a function that Numba compiles."""
    return any(isinstance(node, ast.Call) and hasattr(site.target(node.func), "py_func") for node in site.nodes)


def _is_in_loop(site: Site) -> bool:
    """Whether the slow line is inside a loop over the elements of a sample, or begins one."""
    loops = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    return any(
        isinstance(node, loops) and node.lineno <= site.number <= (node.end_lineno or node.lineno) for node in site.body
    )


def _next_lines(slowest: HotLine, hot: HotLines, min_share: float) -> str:
    """Name the lines that take most time after the slowest one."""
    own = [line for line in hot if line is not slowest and not is_library(line.file)]
    others = [line for line in own if line.share >= min_share][:NEXT]
    named = (f"{percent(line.share)} `{clean(line.source or line.function, SHOWN)}` ({line.place})" for line in others)
    return f"The next lines are {' and '.join(named)}." if others else ""


def _in_libraries(line: HotLine, hot: HotLines) -> dict[str, float]:
    """Return the shares of a line's CPU time in packages whose Python code it calls; they may call more in C."""
    own = [count for count in hot.stacks if _is_at(blamed_line(count.stack, is_library), line)]
    deeper = [count for count in own if not _is_at(count.stack[-1], line)]
    whole = sum(count.computing for count in own) or 1.0
    shares: dict[str, float] = defaultdict(float)
    for count in deeper:
        shares[_package(count.stack[-1].file)] += count.computing / whole
    return shares


def _package(file: str) -> str:
    """Return the name of the package that a file belongs to; "" if it is not imported here."""
    modules = list(sys.modules.items())
    return next((name for name, module in modules if getattr(module, "__file__", None) == file), "").partition(".")[0]


def _is_at(code: CodeLine, line: HotLine) -> bool:
    return (code.file, code.line) == (line.file, line.line)
