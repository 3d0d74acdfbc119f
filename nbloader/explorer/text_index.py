"""Texts of the samples that were read, for searching: at most `MAX_CHARACTERS` in all, the newest samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nbloader._util.format import clean

MAX_CHARACTERS = 50_000_000
AROUND = 40
"""Number of characters that are shown on each side of what was found."""


class TextIndex:
    """The texts, by dataset index."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._characters = 0

    def add(self, index: int, fields: Iterable[Mapping[str, Any]]) -> None:
        """Add the texts among the fields of a sample.

        Args:
            index: Dataset index of the sample.
            fields: Its fields as JSON values.
        """
        self.drop(index)
        parts = [field.get("text") or _label(field) for field in fields]
        text = "\n".join(part for part in parts if part)
        if not text:
            return
        self._texts[index] = text
        self._characters += len(text)
        while self._characters > MAX_CHARACTERS:
            self.drop(next(iter(self._texts)))

    def drop(self, index: int) -> None:
        """Forget a sample."""
        self._characters -= len(self._texts.pop(index, ""))

    def search(self, words: str, more: Mapping[int, str]) -> dict[int, str]:
        """Return the samples whose texts contain all words in any case, with the text around the first word.

        Args:
            words: Words with spaces between them.
            more: Further texts, by dataset index.
        """
        wanted = words.lower().split()
        if not wanted:
            return {}
        found = {}
        for index in sorted({*self._texts, *more}):
            text = "\n".join(filter(None, (self._texts.get(index), more.get(index))))
            lower = text.lower()
            if all(word in lower for word in wanted):
                at = lower.find(wanted[0])
                begin, end = max(0, at - AROUND), at + len(wanted[0]) + AROUND
                found[index] = clean(
                    ("\u2026" if begin else "") + text[begin:end] + ("\u2026" if end < len(text) else "")
                )
        return found


def _label(field: Mapping[str, Any]) -> str:
    """Return the name of a class; "" for a number."""
    value = field.get("value")
    return value if isinstance(value, str) else ""
