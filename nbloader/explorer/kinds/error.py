"""Values that raise when they are described."""

from __future__ import annotations

import traceback

from nbloader._util.format import clean
from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.view import FULL_TEXT


class Failure(Kind):
    """What was raised, by the value, by a renderer or by another kind.

    Args:
        value: The value.
        error: What was raised.
    """

    name = "error"

    def __init__(self, value: Value, error: Exception) -> None:
        super().__init__(value)
        self._error = error

    @classmethod
    def recognizes(cls, value: Value) -> bool:  # noqa: ARG003 - no value is of this kind
        """Return False: a value is of this kind once describing it has failed."""
        return False

    def describe(self) -> None:
        """Show the error and its traceback."""
        error = self._error
        self.field.summary = clean(f"{type(error).__name__}: {error}")
        self.field.text = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-FULL_TEXT:]
