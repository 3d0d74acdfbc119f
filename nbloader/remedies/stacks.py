"""Which lines wait for which, as the sampled stacks show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from nbloader._util.code_places import is_library, place_of, source_line
from nbloader.cache import process_cache
from nbloader.events.stack_samples import CodeLine, StackCount
from nbloader.metrics.hot_lines import HotLine, HotLines
from nbloader.remedies.results import RemedyResult
from nbloader.remedies.site import Site

MIN_CALLING = 0.3
"""Lines that take at least this share with what they call are looked at, too."""
NEARLY_ALL = 0.95
"""Share of a line's time from which on it counts as all of it."""


def calling(hot: HotLines, lines: Sequence[HotLine]) -> list[HotLine]:
    """Return the line of each function that takes most with the functions that it calls, outermost functions first.

    Args:
        hot: All lines.
        lines: Lines that are looked at anyhow.
    """
    depth: dict[tuple[str, str], int] = {}
    for count in hot.stacks:
        for position, line in enumerate(count.stack):
            depth.setdefault((line.file, line.function), position)
    found = whole_lines(hot, lambda stack: {line for line in stack if not is_library(line.file)})
    most: dict[tuple[str, str], HotLine] = {}
    for one in sorted(found, key=lambda line: -line.share):
        most.setdefault((one.file, one.function), one)
    known = {(line.file, line.line) for line in lines}
    large = [one for one in most.values() if one.share >= MIN_CALLING and (one.file, one.line) not in known]
    return sorted(large, key=lambda line: depth[line.file, line.function])


def looping(hot: HotLines, lines: Sequence[HotLine]) -> list[HotLine]:
    """Return the lines of other functions that call the functions of slow lines: they may do so in a loop.

    Args:
        hot: All lines.
        lines: The slow lines.
    """
    slow = {(line.file, line.function) for line in lines}

    def callers(stack: Sequence[CodeLine]) -> set[CodeLine]:
        pairs = itertools.pairwise(stack)
        return {outer for outer, inner in pairs if (inner.file, inner.function) in slow and not is_library(outer.file)}

    known = {(line.file, line.line) for line in lines}
    found = [line for line in whole_lines(hot, callers) if line.share >= MIN_CALLING]
    return sorted((line for line in found if (line.file, line.line) not in known), key=lambda line: -line.share)


def whole_lines(hot: HotLines, of_stack: Callable[[Sequence[CodeLine]], Iterable[CodeLine]]) -> list[HotLine]:
    """Return lines with all that they call as their share.

    Args:
        hot: All lines.
        of_stack: Returns the lines of a stack that are asked for.
    """
    found: dict[CodeLine, list[StackCount]] = {}
    for count in hot.stacks:
        for line in of_stack(count.stack):
            found.setdefault(line, []).append(count)
    whole = sum(count.computing + count.waiting for count in hot.stacks) or 1.0
    lines = []
    for line, counts in found.items():
        computing, waiting = sum(count.computing for count in counts), sum(count.waiting for count in counts)
        lines.append(
            HotLine(
                share=(computing + waiting) / whole, computing=computing / whole, waiting=waiting / whole,
                total=(computing + waiting) / whole, source=source_line(line.file, line.line),
                place=place_of(line.file, line.line), function=line.function, file=line.file, line=line.line,
            )
        )  # fmt: skip
    return lines


def is_below(line: HotLine, caller: RemedyResult, hot: HotLines) -> bool:
    """Whether a line nearly always runs while lines that a remedy replaces, of another function, wait for it."""
    below = _share(hot, line, lambda one: _is_replaced(one, caller))
    return not is_same_function(line, caller.line) and below >= NEARLY_ALL


def is_same_function(one: HotLine, other: HotLine) -> bool:
    """Whether two lines are of the same function."""
    return (one.file, one.function) == (other.file, other.function)


def _is_replaced(code: CodeLine, remedy: RemedyResult) -> bool:
    same = (code.file, code.function) == (remedy.line.file, remedy.line.function)
    return same and (code.line in remedy.changed or code.line == remedy.line.line)


def is_at(code: CodeLine, line: HotLine) -> bool:
    """Whether a line of a stack is a certain one."""
    return (code.file, code.line) == (line.file, line.line)


class CachedCode:
    """Which lines run below a function of the user whose results `nbloader.cached` keeps.

    Args:
        hot: All lines.
        find: Finds the function of a line.
    """

    def __init__(self, hot: HotLines, find: Callable[[HotLine], Site | None]) -> None:
        self._hot = hot
        functions: dict[tuple[str, str], HotLine] = {}
        if process_cache.gauge() is not None:
            own = whole_lines(hot, lambda stack: {line for line in stack if not is_library(line.file)})
            functions = {(line.file, line.function): line for line in own}
        found = {key: find(line) for key, line in functions.items()}
        self._cached = {key for key, site in found.items() if site is not None and site.is_kept}

    def keeps(self, line: HotLine) -> bool:
        """Whether a line nearly always runs below such a function, or in it."""
        return _share(self._hot, line, lambda one: (one.file, one.function) in self._cached) >= NEARLY_ALL


def _share(hot: HotLines, line: HotLine, condition: Callable[[CodeLine], bool]) -> float:
    """Return the share of a line's time in which a line on the stack meets a condition."""
    own = [count for count in hot.stacks if any(is_at(one, line) for one in count.stack)]
    met = [count for count in own if any(map(condition, count.stack))]
    whole, part = (sum(count.computing + count.waiting for count in counts) for counts in (own, met))
    return part / whole if whole else 0.0
