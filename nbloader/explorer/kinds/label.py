"""Integers that number a class of the dataset, and short arrays of them."""

from __future__ import annotations

from nbloader._util.format import clean
from nbloader.explorer.field import SUMMARY
from nbloader.explorer.kinds.base import Kind, Value, without_numbers
from nbloader.explorer.problems import Form

MAX_LABELS = 40
"""Maximum number of labels in an array."""


class Label(Kind):
    """The name of a class, or the names of several."""

    name = "label"
    caption = 0
    compared_as = "value"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the dataset has a name for the number, or names for the elements of this field."""
        if value.number is not None:
            return value.context.class_name(value.path, value.number) is not None
        array, context = value.numbers, value.context
        if array.ndim != 1 or array.dtype.kind not in "iu" or not 0 < array.size <= MAX_LABELS:
            return False
        if value.path in context.names or without_numbers(value.path) in context.names:
            return True
        numbers, count = array.tolist(), len(array)

        def known(number: int) -> bool:
            return context.class_name(value.path, number) is not None

        a_flag_for_each_class = count > 2 and set(numbers) <= {0, 1} and known(count - 1) and not known(count)
        return value.key != "" and not a_flag_for_each_class and all(map(known, numbers))

    def describe(self) -> None:
        """Look up the names."""
        context, path, number = self.context, self.value.path, self.value.number
        if number is None:
            names = [context.class_name(path, at) or str(at) for at in self.value.numbers.tolist()]
            self.field.value = self.field.summary = clean(", ".join(names), SUMMARY)
        else:
            name = context.class_name(path, number)
            self.field.value, self.field.summary = name, clean(f"{name} ({number})", SUMMARY)
        context.labeled = True

    def form(self) -> Form:
        """Return the type only: the number of labels may vary."""
        return Form(self.field.path, self.field.type, "")

    def label(self) -> str:
        """Return the name."""
        return clean(self.field.value, SUMMARY)
