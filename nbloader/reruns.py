"""Cells that are run again: the loaders that they made before give up their workers soon.

A notebook's output history, tracebacks and other variables keep old loaders alive, and nobody iterates them again. Two
loaders of one run are both wanted, also where one line made them: a helper that is called for training and for
validation, a dict comprehension.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nbloader.engine import Engine
    from nbloader.local import LocalEngine


class _Line(NamedTuple):
    """A line of a cell, in one run of it."""

    file: str
    number: int
    run: int


_lines: weakref.WeakKeyDictionary[Engine | LocalEngine, _Line] = weakref.WeakKeyDictionary()


def supersede_older(engine: Engine | LocalEngine) -> None:
    """A loader is being made: those that an earlier run of the same line made are not wanted any more."""
    line = _line()
    if line is None:
        return
    for older, its in list(_lines.items()):
        if its[:2] == line[:2] and its.run != line.run:
            older.supersede()
    _lines[engine] = line


def _line() -> _Line | None:
    """Where the notebook stands; None where there is no notebook, or on a thread that runs nothing of it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return None
    outermost = None
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is shell.user_global_ns:
            outermost = frame
        frame = frame.f_back
    return outermost and _Line(outermost.f_code.co_filename, outermost.f_lineno, shell.execution_count)
