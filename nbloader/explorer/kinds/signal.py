"""Signals: arrays with one long axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import plural
from nbloader.explorer.field import FEW
from nbloader.explorer.kinds.base import Cover, Kind, Value
from nbloader.explorer.values import envelope

MAX_CHANNELS = 8
"""Maximum number of rows of a table that are taken for the channels of a signal."""


class Signal(Kind):
    """A wave: of several channels, the first one."""

    name = "signal"
    compared_as = "signal"
    varies = True

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the array is a line of more than a few numbers, or has few lines."""
        array = value.numbers
        return _line(array).size > FEW

    def describe(self) -> None:
        """Draw the envelope."""
        array, field, view = self.value.numbers, self.field, self.context.view
        line = _line(array)
        field.summary = self.value.shape_and_type
        if not view.scan and (points := envelope(np.abs(line) if line.dtype.kind == "c" else line, view.points)):
            field.data["points"] = points
            field.drawn = True
        if line.size < array.size:
            field.note = f"the first of {plural(array.shape[0], 'channel')} is drawn"

    def cover(self) -> Cover:
        """Return that a wave is second to a picture."""
        return Cover.WAVE if self.field.drawn else Cover.OTHER


def _line(array: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers along the only axis, or the first channel; no numbers if the array has another shape."""
    if max(array.shape) == array.size:
        return array.reshape(-1)
    channels = array.ndim == 2 and array.shape[0] <= MAX_CHANNELS < array.shape[1]
    return array[0] if channels else array.reshape(-1)[:0]
