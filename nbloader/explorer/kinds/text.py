"""Strings."""

from __future__ import annotations

from nbloader._util.format import clean
from nbloader.explorer.field import SUMMARY
from nbloader.explorer.kinds.base import Cover, Kind, Value
from nbloader.explorer.texts import printable

NAMES = ("id", "key", "__key__", "role")
"""Names of strings that name something: the sample, or who speaks in a chat."""


class Text(Kind):
    """A string, of which the beginning is shown."""

    name = "text"
    caption = 2
    compared_as = "text"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is a string."""
        return isinstance(value.content, str)

    def describe(self) -> None:
        """Cut the string."""
        text, limit = self.value.content, self.context.view.characters
        field = self.field
        field.summary = clean(text, SUMMARY)
        field.text = printable(text[:limit])
        field.nbytes = len(text.encode("utf-8", "surrogatepass"))
        field.facts["length"] = len(text)
        if self.context.view.full and len(text) > limit:
            field.note = f"the first {limit:,} of {len(text):,} characters"

    def cover(self) -> Cover:
        """Return that a text says more than a number, unless it is only the name of something."""
        name = self.value.name
        return Cover.OTHER if name in NAMES or name.endswith("_id") else Cover.TEXT
