"""Stack samples that workers report: which lines of code they execute, and how often."""

from __future__ import annotations

from typing import NamedTuple

STAGE_FILE = "<nbloader>"
"""File name in a `CodeLine` that represents work of nbloader itself, such as the default collation."""


class CodeLine(NamedTuple):
    """A line of code on a call stack."""

    file: str
    """`co_filename` of the code object."""
    function: str
    line: int


class StackCount(NamedTuple):
    """Number of samples in which a worker had a certain call stack."""

    stack: tuple[CodeLine, ...]
    """The lines from `__getitem__` (or `collate_fn`, ...) to the innermost frame."""
    computing: float
    """Number of samples in which the worker was running."""
    waiting: float
    """Number of the other samples."""
    queued: float = 0.0
    """The part of `waiting` in which the worker was ready to run but had no core."""
