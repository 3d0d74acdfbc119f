"""None, and in the row of a table whatever else stands for a missing value."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.problems import MISSING, Form

SIGNS = ("NAType", "NaTType")
"""Types of pandas with the single value that is missing."""


class Nothing(Kind):
    """The absence of a value."""

    name = "none"
    compared_as = "value"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is None, or missing in a table."""
        return value.content is None or (value.context.tabular and _is_missing(value.content))

    def describe(self) -> None:
        """Say so."""
        self.field.summary = "missing" if self.context.tabular else "None"
        self.field.absent = True

    def form(self) -> Form:
        """Return no form of its own for a value that is missing: the values of a column have one form."""
        return Form(self.field.path, MISSING, "") if self.context.tabular else super().form()


def _is_missing(content: Any) -> bool:
    if isinstance(content, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(content))
    if isinstance(content, (float, np.floating)):
        return bool(np.isnan(content))
    return type(content).__name__ in SIGNS
