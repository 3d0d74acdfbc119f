"""None, which is a missing value in the row of a table."""

from __future__ import annotations

from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.problems import MISSING, Form


class Nothing(Kind):
    """The absence of a value."""

    name = "none"
    compared_as = "value"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is None."""
        return value.content is None

    def describe(self) -> None:
        """Say so."""
        self.field.summary = "missing" if self.context.tabular else "None"
        self.field.absent = True

    def form(self) -> Form:
        """Return no form of its own for a value that is missing: the values of a column have one form."""
        return Form(self.field.path, MISSING, "") if self.context.tabular else super().form()
