"""Numbers: those of Python, and arrays without axes."""

from __future__ import annotations

import math

from nbloader._util.format import clean
from nbloader.explorer.field import LABEL_NAMES, SUMMARY
from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.problems import Form


class Number(Kind):
    """One number, with a histogram over the samples."""

    name = "number"
    caption = 1
    compared_as = "value"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is a number."""
        return value.number is not None

    def describe(self) -> None:
        """Format the number."""
        number, field = self.value.number, self.field
        digits = ".10g" if self.context.view.full else ".4g"
        field.summary = clean(format(number, digits) if isinstance(number, float) else str(number), SUMMARY)
        if isinstance(number, (bool, int, float)) and math.isfinite(number):
            field.value = number

    def form(self) -> Form:
        """Return the type only."""
        return Form(self.field.path, self.field.type, "")

    def label(self) -> str | None:
        """Return the number, if the field has the name of a label."""
        named = self.field.path.rpartition(".")[2] in LABEL_NAMES
        return clean(self.field.summary, SUMMARY) if named else None
