"""Anything else."""

from __future__ import annotations

from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.texts import long_repr, short_repr


class Object(Kind):
    """The repr of an object."""

    name = "object"

    @classmethod
    def recognizes(cls, value: Value) -> bool:  # noqa: ARG003 - the same in all samples
        """Return True: this kind is the last one."""
        return True

    def describe(self) -> None:
        """Show the repr."""
        array = self.value.array
        content = self.value.content if array is None else array[()]
        self.field.summary = short_repr(content)
        self.field.text = long_repr(content) if self.context.view.full else ""
