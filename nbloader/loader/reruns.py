"""Stops the workers of loaders that earlier runs of a notebook cell created, soon after the cell is run again.

The notebook's output history, tracebacks and other variables keep old loaders alive although they are no longer
iterated. Loaders created by the same run of a cell do not affect each other, even if the same line created them
(in a helper function that is called for training and for validation, or in a dict comprehension).
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any, NamedTuple

from nbloader.engine.local_engine import AnyEngine


class _Origin(NamedTuple):
    """Where a loader was created."""

    cell: str
    """The cell's id, which stays the same when the cell is edited. If there is no id: the file name, which depends on
    the cell's text."""
    line: int
    """The line in the file; 0 if the cell has an id."""
    run: int
    """The notebook's execution count."""

    def is_same_cell(self, other: _Origin) -> bool:
        """Whether both loaders were created by the same cell, or by the same line of it."""
        return (self.cell, self.line) == (other.cell, other.line)


_origins: weakref.WeakKeyDictionary[AnyEngine, _Origin] = weakref.WeakKeyDictionary()


def supersede_older(engine: AnyEngine) -> None:
    """Register a new loader's engine, and tell those of earlier runs of the same cell that they are superseded.

    Args:
        engine: AnyEngine of the loader that is being created.
    """
    origin = _current_origin()
    if origin is None:
        return
    for older, its_origin in list(_origins.items()):
        if its_origin.is_same_cell(origin) and its_origin.run != origin.run:
            older.supersede()
    _origins[engine] = origin


def succeed(old: AnyEngine, new: AnyEngine) -> None:
    """Register that a loader has replaced its engine: the new one belongs to the same run of the same cell.

    Args:
        old: The engine that is replaced.
        new: The engine that replaces it.
    """
    origin = _origins.pop(old, None)
    if origin is not None:
        _origins[new] = origin


def _current_origin() -> _Origin | None:
    """The running cell; None outside a notebook, or on a thread that does not run a cell."""
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
    request: dict[str, Any] = getattr(shell, "get_parent", dict)() or {}  # the front end's request to run this cell
    cell_id = request.get("metadata", {}).get("cellId")
    if cell_id:
        return _Origin(cell_id, 0, shell.execution_count)
    return _Origin(outermost.f_code.co_filename, outermost.f_lineno, shell.execution_count)
