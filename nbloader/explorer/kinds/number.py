"""Numbers: those of Python, and arrays without axes."""

from __future__ import annotations

import math

from nbloader._util.format import clean
from nbloader.explorer.field import LABEL_NAMES, SUMMARY
from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.problems import Form

LARGE, HUGE = 1e4, 1e10
"""Between these, a card shows a number without an exponent: 193500 and not 1.935e+05."""


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
        field.summary = clean(
            format(number, self._digits(number)) if isinstance(number, float) else str(number), SUMMARY
        )
        if isinstance(number, (bool, int, float)) and math.isfinite(number):
            field.value = number

    def _digits(self, number: float) -> str:
        """Return how to format a number: with few digits on a card, and all digits before the decimal point."""
        if self.context.view.full:
            return ".10g"
        return ".0f" if LARGE <= abs(number) < HUGE else ".4g"

    def form(self) -> Form:
        """Return the type only."""
        return Form(self.field.path, self.field.type, "")

    def label(self) -> str | None:
        """Return the number, if the field has the name of a label."""
        named = self.field.path.rpartition(".")[2] in LABEL_NAMES
        return clean(self.field.summary, SUMMARY) if named else None
