"""Signals: arrays with one long axis, such as a sequence, the channels of a measurement, a window of a time series."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import plural
from nbloader.explorer.field import FEW
from nbloader.explorer.kinds.base import NO_NUMBERS, Cover, Kind, Value
from nbloader.explorer.kinds.cloud import labels_points
from nbloader.explorer.kinds.tokens import SURE as TOKENS
from nbloader.explorer.pictures import has_long_lines
from nbloader.explorer.values import envelope

MAX_CHANNELS = 8
"""Maximum length of an axis that is taken for channels, and maximum number of channels that are drawn."""
LEAST_STEPS = 16
"""Minimum number of steps of an array that has its channels last: a shorter one is a table of rows."""


class Signal(Kind):
    """Waves, one below the other."""

    name = "signal"
    compared_as = "signal"
    varies = True

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the array is a line of more than a few numbers, or has few lines.

        Edges and labels of points are in no order, and are no signals.
        """
        return "edge_index" not in value.name and _lines(value.numbers).size > FEW and not labels_points(value)

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether the array has one axis or two."""
        return value.numbers.ndim in (1, 2) and value.numbers.size > 0

    def describe(self) -> None:
        """Draw the envelopes."""
        array, field, view = self.value.numbers, self.field, self.context.view
        lines = _lines(array)
        if not lines.size:  # the user calls it a signal: the long axis is time
            lines = np.atleast_2d(array if array.ndim == 1 or array.shape[0] <= array.shape[1] else array.T)
        field.summary = self.value.shape_and_type
        drawn = lines[:MAX_CHANNELS]
        if view.scan:
            return
        waves = [envelope(np.abs(line) if line.dtype.kind == "c" else line, view.points) for line in drawn]
        if any(waves):
            field.data["waves"] = waves
            field.drawn = True
        if len(lines) > 1:
            first = f"the first {len(drawn)} of " if len(drawn) < len(lines) else ""
            field.note = f"{first}{plural(len(lines), 'channel')}, each from its minimum to its maximum"

    def cover(self) -> Cover:
        """Return that a wave is second to a picture. An attention mask does not represent the text beside it."""
        if self.value.numbers.dtype.kind in "biu" and not self.value.neighbors.keys().isdisjoint(TOKENS):
            return Cover.OTHER
        return Cover.WAVE if self.field.drawn else Cover.OTHER


def _lines(array: NDArray[Any]) -> NDArray[Any]:
    """Return channels and their numbers along the long axis; no numbers if the array has another shape."""
    if max(array.shape) == array.size:
        return array.reshape(1, -1)
    if array.ndim != 2:
        return NO_NUMBERS
    rows, columns = array.shape
    if has_long_lines(array.shape):
        return array if rows < columns else array.T
    if rows <= MAX_CHANNELS < columns:
        return array
    return array.T if columns <= MAX_CHANNELS and rows >= LEAST_STEPS else NO_NUMBERS
