"""Cells that are run again: the loaders that they made before give up their workers soon.

A notebook's output history, tracebacks and other variables keep old loaders alive, and nobody iterates them again. Two
loaders of one run are both wanted, also where one line made them: a helper that is called for training and for
validation, a dict comprehension.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nbloader.engine.engine import Engine
    from nbloader.engine.inline_engine import LocalEngine


class _Origin(NamedTuple):
    """What makes a loader, in one run of a cell."""

    place: tuple[str, ...]
    """The cell, as the notebook knows it though it is edited; else the line of code, which tells a cell by its text."""
    run: int


_origins: weakref.WeakKeyDictionary[Engine | LocalEngine, _Origin] = weakref.WeakKeyDictionary()


def supersede_older(engine: Engine | LocalEngine) -> None:
    """A loader is being made: those that an earlier run of the same cell made are not wanted any more."""
    origin = _origin()
    if origin is None:
        return
    for older, its in list(_origins.items()):
        if its.place == origin.place and its.run != origin.run:
            older.supersede()
    _origins[engine] = origin


def _origin() -> _Origin | None:
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
    if outermost is None:
        return None
    place: tuple[str, ...] = outermost.f_code.co_filename, str(outermost.f_lineno)
    asked: dict[str, Any] = getattr(shell, "get_parent", dict)() or {}  # what the notebook asked for, to run this cell
    cell = asked.get("metadata", {}).get("cellId")
    return _Origin((cell,) if cell else place, shell.execution_count)
