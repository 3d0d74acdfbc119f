"""None."""

from __future__ import annotations

from nbloader.explorer.kinds.base import Kind, Value


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
        self.field.summary = "None"
        self.field.absent = True
