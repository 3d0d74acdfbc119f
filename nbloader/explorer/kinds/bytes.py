"""Bytes, such as a file that was not decoded."""

from __future__ import annotations

from nbloader._util.format import clean, plural
from nbloader.explorer.field import SUMMARY
from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.texts import long_repr, printable
from nbloader.explorer.view import FULL_TEXT


class Bytes(Kind):
    """Bytes, of which the beginning is shown: as a text, if they are one."""

    name = "bytes"
    compared_as = "text"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is bytes."""
        return isinstance(value.content, (bytes, bytearray))

    def describe(self) -> None:
        """Count the bytes."""
        content = self.value.content
        size = plural(len(content), "byte")
        self.field.nbytes = len(content)
        text = _text(bytes(content[:FULL_TEXT]))
        self.field.summary = clean(f"{text} ({size})", SUMMARY) if text else size
        if self.context.view.full:
            self.field.text = printable(text) if text else long_repr(bytes(content[:FULL_TEXT]))


def _text(content: bytes) -> str:
    """Return bytes as a text, if they are one without control characters; else ""."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return ""
    return text if text.replace("\n", "").replace("\t", "").isprintable() else ""
