"""Samples of what workers execute, as they report them."""

from __future__ import annotations

from typing import NamedTuple

STAGE_FILE = "<nbloader>"
"""The file of `CodeLine`s that stand for work of nbloader itself, such as the default collation."""


class CodeLine(NamedTuple):
    """A line that was on a stack."""

    file: str
    """`co_filename` of its code."""
    function: str
    line: int


class StackCount(NamedTuple):
    """How often a stack was found."""

    stack: tuple[CodeLine, ...]
    """From `__getitem__` (or `collate_fn`, ...) to the innermost frame."""
    computing: float
    """Samples in which the worker computed, or could have."""
    waiting: float
    """Samples in which it waited for something else than a core."""
