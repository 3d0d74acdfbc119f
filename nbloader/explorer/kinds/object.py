"""Anything else."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid

import numpy as np

from nbloader._util.format import clean
from nbloader.explorer.field import SUMMARY
from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.texts import long_repr, short_repr

PLAIN = (dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64, decimal.Decimal, uuid.UUID)
"""Types whose string is shown and not their repr. Dates and times are sorted by it, durations by their seconds."""

ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")
"""Where an object is in memory. It says nothing about the sample, and would make a class of each object."""


class Object(Kind):
    """The repr of an object, or the string of a date, a time or a decimal number."""

    name = "object"

    @classmethod
    def recognizes(cls, value: Value) -> bool:  # noqa: ARG003 - the same in all samples
        """Return True: this kind is the last one."""
        return True

    def describe(self) -> None:
        """Show the repr or the string."""
        array = self.value.array
        content = self.value.content if array is None else array[()]
        if isinstance(content, PLAIN):
            self.field.summary = clean(content, SUMMARY)
            if isinstance(content, decimal.Decimal) and content.is_finite():
                self.field.value = float(content)
            elif isinstance(content, dt.timedelta):
                self.field.value = content.total_seconds()
            elif isinstance(content, np.timedelta64):
                self.field.value = _seconds(content)
            return
        self.field.summary = ADDRESS.sub("", short_repr(content))
        self.field.text = long_repr(content) if self.context.view.full else ""


def _seconds(duration: np.timedelta64) -> float | None:
    """Return the length of a duration; None if it has no unit, or one of no fixed length, or is not a time."""
    if np.isnat(duration) or np.datetime_data(duration)[0] in ("generic", "Y", "M"):
        return None
    return float(duration / np.timedelta64(1, "s"))
