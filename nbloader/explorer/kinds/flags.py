"""Flags: a line of yes or no, such as an attention mask, or which steps of a series were measured."""

from __future__ import annotations

import numpy as np

from nbloader.explorer.field import FEW
from nbloader.explorer.kinds.base import Cover, Kind, Value
from nbloader.explorer.kinds.tokens import SURE as TOKENS

NAMES = ("mask", "token_type_ids")
"""Words in the names of fields whose numbers 0 and 1 are flags. Without such a name, flags are booleans."""


class Flags(Kind):
    """A strip of cells, the darker the more flags of a cell are set."""

    name = "flags"
    compared_as = "signal"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the array is a line of booleans, or of 0 and 1 where the name says that these are flags."""
        return value.numbers.size > FEW and (value.numbers.dtype.kind == "b" or value.named(NAMES)) and cls.fits(value)

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether the array is a line of nothing but 0 and 1."""
        array = value.numbers
        return 0 < array.size == max(array.shape) and bool(((array == 0) | (array == 1)).all())

    def describe(self) -> None:
        """Compute the share of flags that are set in each cell."""
        flags, field, view = self.value.numbers.reshape(-1) != 0, self.field, self.context.view
        field.summary = f"{np.count_nonzero(flags):,} of {flags.size:,} set"
        if view.scan:
            return
        cells = np.array_split(flags, min(view.points, flags.size))
        field.data["cells"] = [round(float(cell.mean()), 3) for cell in cells]
        field.drawn = True

    def cover(self) -> Cover:
        """Return that flags are second to a picture. An attention mask does not represent the text beside it."""
        return Cover.WAVE if self.value.neighbors.keys().isdisjoint(TOKENS) else Cover.OTHER
