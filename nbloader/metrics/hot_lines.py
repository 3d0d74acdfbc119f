"""Finds the lines of code that workers spend their time on, from stack samples of all workers. Pure.

    workers: StackCount ... -> LineProfile.add() -> find_hot_lines() -> HotLines

Each sample is attributed to the innermost line of the user's own code. The time of a library therefore counts towards
the line that calls it.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from nbloader._util.format import clean, percent, plural
from nbloader.events.stack_samples import STAGE_FILE, CodeLine, StackCount

MAX_STACKS = 2000
"""Maximum number of different stacks that a profile keeps. Further stacks are reduced to their outermost line."""
SHOWN = 12
"""Number of lines in the text form."""
_WIDTH = 60
"""Maximum width of a line's text, and of its place, in characters."""
_NOTABLE = 0.01
"""Smallest share of waiting for a core that is shown."""

_Counts: TypeAlias = "dict[tuple[CodeLine, ...], StackCount]"


class LineProfile:
    """Merges the samples of all workers. Thread-safe; the number of stacks is limited.

    Args:
        enough: Number of samples that an epoch has to have. If it has fewer, those of the epochs before it count, too.
    """

    def __init__(self, enough: int = 0) -> None:
        self._lock = threading.Lock()
        self._enough = enough
        self._epochs: collections.deque[_Counts] = collections.deque([{}])  # the newest last
        self._begins = False  # whether the next sample is the first one of an epoch

    @property
    def is_current(self) -> bool:
        """Whether the newest samples are of the newest epoch; false until that has a sample."""
        return not self._begins

    def begin_epoch(self) -> None:
        """Begin another epoch. With its first sample, forget the epochs that do not count any more."""
        with self._lock:
            self._begins = True

    def add(self, counts: Iterable[StackCount]) -> None:
        """Add samples."""
        counts = list(counts)
        with self._lock:
            if counts and self._begins:
                self._begins = False
                while sum(map(_samples, list(self._epochs)[1:])) >= max(1, self._enough):
                    self._epochs.popleft()
                if self._epochs[-1]:
                    self._epochs.append({})
            _merge(self._epochs[-1], counts)

    def clear(self) -> None:
        """Forget all samples."""
        with self._lock:
            self._epochs = collections.deque([{}])
            self._begins = False

    def stacks(self) -> tuple[StackCount, ...]:
        """Return all stacks, most frequent first."""
        merged: _Counts = {}
        with self._lock:
            for epoch in reversed(self._epochs):
                if merged and _samples(merged) >= self._enough:
                    break
                _merge(merged, epoch.values())
        return tuple(sorted(merged.values(), key=lambda s: (-s.computing - s.waiting, s.stack)))


def _merge(counts: _Counts, others: Iterable[StackCount]) -> None:
    for other in others:
        stack = other.stack
        key = stack if stack in counts or len(counts) < MAX_STACKS else stack[:1]
        counts[key] = _plus(counts.get(key) or StackCount(key, 0.0, 0.0), other)


def _samples(counts: _Counts) -> float:
    return sum(count.computing + count.waiting for count in counts.values())


def _plus(one: StackCount, other: StackCount) -> StackCount:
    """Add the samples of another stack."""
    return StackCount(
        one.stack, one.computing + other.computing, one.waiting + other.waiting, one.queued + other.queued
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HotLine:
    """A line of code, and the share of the workers' time that it takes."""

    share: float
    """Share of the samples in which this was the innermost line of the user's own code, 0 to 1."""
    computing: float
    """The part of `share` in which the worker used a core: CPU time."""
    waiting: float
    """The part of `share` in which the worker waited for a disk, a network, a lock, a sleep or a core."""
    queued: float = 0.0
    """The part of `waiting` in which the worker was ready to run but had no core."""
    total: float
    """Share of the samples in which the line was on the stack. Includes the user's functions that it calls."""
    source: str
    """The text of the line; "" if unknown."""
    place: str
    """Where the line is, such as "cell 4 line 12" or "data.py:12"."""
    function: str
    """The function that contains the line."""
    file: str
    """`co_filename` of the code object."""
    line: int
    """Line number in the file or cell; 0 for work of nbloader itself."""

    def __str__(self) -> str:
        """Return the shares, the text and the place as one line of text."""
        parts = describe_split(self)
        return f"{percent(self.share)}  {self.source or self.function}  ({self.place}; {parts})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotLines:
    """The lines that workers spend their time on, largest share first. `print` shows a table."""

    lines: tuple[HotLine, ...] = ()
    samples: int = 0
    """Number of samples. Each sample is the stack of a busy worker at one moment."""
    computing: float = 0.0
    """Share of the samples in which the worker used a core: CPU time."""
    waiting: float = 0.0
    """Share of the samples in which the worker waited."""
    queued: float = 0.0
    """The part of `waiting` in which the worker was ready to run but had no core."""
    profiling: bool = False
    """Whether samples are taken all the time while an epoch runs, and not only while its loop waits."""
    stacks: tuple[StackCount, ...] = ()
    """The sampled stacks, such as for a flame graph, most frequent first."""
    elsewhere: str = ""
    """What takes the time if fetching does not: the sampler or the loop's own code, as sentences; "" if it does."""
    missed: int = 0
    """See `SlowLine.missed`."""

    def find(self, line: HotLine | str | int) -> HotLine:
        """Find a line by its place or number.

        Args:
            line: Such as "cell 4 line 12" or "data.py:12", or 12 if only one sampled line has that number.

        Raises:
            ValueError: No line matches, or several lines do.
        """
        if isinstance(line, HotLine):
            return line
        # Several functions may share a line: the first has the largest share.
        found = {x.place: x for x in reversed(self.lines) if x.line and line in (x.place, x.line)}
        if len(found) != 1:
            known = ", ".join(repr(x.place) for x in self.lines[:SHOWN] if x.line) or "none: call profile_lines() first"
            count = "several lines are" if found else "no line is"
            raise ValueError(f"{count} {line!r}; lines that were sampled: {known}")
        return next(iter(found.values()))

    def on_stack(self, line: HotLine) -> StackCount:
        """Return the shares of samples, computing and waiting, in which a line was on the stack."""
        key = (line.file, line.line)
        found = [s for s in self.stacks if any((x.file, x.line) == key for x in s.stack)]
        samples = sum(s.computing + s.waiting for s in self.stacks) or 1
        return StackCount(
            (),
            sum(s.computing for s in found) / samples,
            sum(s.waiting for s in found) / samples,
            sum(s.queued for s in found) / samples,
        )

    def __iter__(self) -> Iterator[HotLine]:
        """Iterate over the lines, largest share first."""
        return iter(self.lines)

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self.lines)

    def __getitem__(self, position: int) -> HotLine:
        """Return a line by position; the line at 0 has the largest share."""
        return self.lines[position]

    def __repr__(self) -> str:
        """A table of the first lines."""
        return str(self)

    def __str__(self) -> str:
        """A table of the first lines."""
        if not self.lines:
            if self.elsewhere:
                return f"No lines were sampled, because fetching is not the bottleneck. {self.elsewhere}"
            if self.profiling:
                return "No samples of the workers' lines yet."
            return (
                "No lines were sampled: workers are sampled while a loop waits for them, or all the time after "
                "loader.profile_lines()."
            )
        split = describe_split(self)
        rows = [("share", "computing", "waiting", "line", "place")]
        rows += [_row(line) for line in self.lines[:SHOWN]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = [
            f"{share:>{widths[0]}}  {computing:>{widths[1]}}  {waiting:>{widths[2]}}  {source:<{widths[3]}}  {place}"
            for share, computing, waiting, source, place in rows
        ]
        more = len(self.lines) - SHOWN
        return "\n".join(
            [
                f"Where the workers' time goes, {plural(self.samples, 'sample')}: {split}",
                *table,
                *([f"and {plural(more, 'more line')}"] if more > 0 else []),
                *([f"But fetching is not the bottleneck. {self.elsewhere}"] if self.elsewhere else []),
            ]
        )


def describe_split(part: HotLine | HotLines) -> str:
    """Describe how some time is divided, such as "40% computing, 60% waiting (50% for a core)"."""
    core = f" ({percent(part.queued)} for a core)" if part.queued >= _NOTABLE else ""
    return f"{percent(part.computing)} computing, {percent(part.waiting)} waiting{core}"


def _row(line: HotLine) -> tuple[str, str, str, str, str]:
    place = line.place if line.file == STAGE_FILE else f"{line.place}, in {line.function}"
    source, place = clean(line.source or line.function, _WIDTH), clean(place, _WIDTH)
    return percent(line.share), percent(line.computing), percent(line.waiting), source, place


def blamed_line(stack: tuple[CodeLine, ...], is_library: Callable[[str], bool]) -> CodeLine:
    """Return the line to which a sample is attributed: the innermost line of the user's own code.

    If the stack contains no such line, its innermost line is returned. If several functions on the stack share the line
    (a generator expression, a lambda), the entry of the outermost function is returned.

    Args:
        stack: The lines from the outermost to the innermost.
        is_library: Returns whether a file is not the user's own code.
    """
    found = next((line for line in reversed(stack) if not is_library(line.file)), stack[-1])
    return next(line for line in stack if (line.file, line.line) == (found.file, found.line))


def find_hot_lines(
    stacks: tuple[StackCount, ...],
    *,
    profiling: bool,
    is_library: Callable[[str], bool],
    source: Callable[[str, int], str],
    place: Callable[[str, int], str],
) -> HotLines:
    """Attribute samples to lines.

    Args:
        stacks: The sampled stacks.
        profiling: See `HotLines`.
        is_library: Returns whether a file is not the user's own code.
        source: Returns the text of a line.
        place: Returns where a line is, as in `HotLine.place`.
    """
    own: dict[CodeLine, StackCount] = {}
    total: collections.Counter[CodeLine] = collections.Counter()
    for count in stacks:
        blamed = blamed_line(count.stack, is_library)
        own[blamed] = _plus(own.get(blamed) or StackCount((blamed,), 0.0, 0.0), count)
        for line in set(count.stack):
            total[line] += count.computing + count.waiting  # type: ignore[assignment]
    whole = functools.reduce(_plus, stacks, StackCount((), 0.0, 0.0))
    samples = whole.computing + whole.waiting
    lines = [
        HotLine(
            share=(count.computing + count.waiting) / samples,
            computing=count.computing / samples,
            waiting=count.waiting / samples,
            queued=count.queued / samples,
            total=total[line] / samples,
            source="" if line.file == STAGE_FILE else source(line.file, line.line),
            place="nbloader" if line.file == STAGE_FILE else place(line.file, line.line),
            function=line.function,
            file=line.file,
            line=line.line,
        )
        for line, count in own.items()
        if count.computing + count.waiting > 0
    ]
    return HotLines(
        lines=tuple(sorted(lines, key=lambda x: (-x.share, x.file, x.line, x.function))),
        samples=round(samples),
        computing=whole.computing / samples if samples else 0.0,
        waiting=whole.waiting / samples if samples else 0.0,
        queued=whole.queued / samples if samples else 0.0,
        profiling=profiling,
        stacks=stacks,
    )
