"""Bytes, such as a file that was not decoded."""

from __future__ import annotations

from nbloader._util.format import plural
from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.texts import long_repr
from nbloader.explorer.view import FULL_TEXT


class Bytes(Kind):
    """Bytes, of which the beginning is shown."""

    name = "bytes"
    compared_as = "text"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is bytes."""
        return isinstance(value.content, (bytes, bytearray))

    def describe(self) -> None:
        """Count the bytes."""
        content = self.value.content
        self.field.summary = plural(len(content), "byte")
        self.field.nbytes = len(content)
        if self.context.view.full:
            self.field.text = long_repr(bytes(content[:FULL_TEXT]))
