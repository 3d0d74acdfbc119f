"""Arrays of any other shape, and arrays of anything but numbers: statistics and a histogram of the elements."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from nbloader._util.format import clean
from nbloader.explorer.field import FEW, SUMMARY
from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.texts import long_repr


class Array(Kind):
    """The elements of a short array; of a longer one, its shape."""

    name = "array"
    compared_as = "signal"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is an array with axes."""
        return value.array is not None and value.array.ndim > 0

    def describe(self) -> None:
        """List the elements."""
        array, field, view = self.value.array, self.field, self.context.view
        if array is None:
            return
        field.summary = self.value.shape_and_type
        if not array.size:
            field.summary = "no elements"
        elif not self.value.numbers.size:
            field.text = long_repr(array) if view.full else ""
        elif not view.full or max(array.shape) == array.size:
            field.summary = _few_numbers(array) or field.summary
        else:
            field.text = long_repr(array)


def _few_numbers(array: NDArray[Any]) -> str:
    """Format a short array; empty for a longer one."""
    if array.size > FEW:
        return ""
    try:
        return clean("[" + ", ".join(f"{value:.4g}" for value in array.reshape(-1).tolist()) + "]", SUMMARY)
    except (TypeError, ValueError):  # elements that do not support this format
        return ""
