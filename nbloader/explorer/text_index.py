"""Texts of the samples that were read, for searching: at most `MAX_CHARACTERS` in all, the newest samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    def get(self, index: int) -> str:
        """Return the text of a sample; "" if it has none."""
        return self._texts.get(index, "")

    def with_word(self, word: str) -> NDArray[np.int64]:
        """Return the indices of the samples whose texts contain a word, in any order.

        Args:
            word: A word in lower case.
        """
        return np.array([index for index, text in self._texts.items() if word in text.lower()], np.int64)


def excerpt(word: str, texts: Iterable[str]) -> str:
    """Return the text around a word in texts that may contain it, in one line."""
    text = " \u00b7 ".join(" ".join(text.split()) for text in filter(None, texts))
    at = max(0, text.lower().find(word.lower()))
    begin, end = max(0, at - AROUND), at + len(word) + AROUND
    return clean(("\u2026" if begin else "") + text[begin:end] + ("\u2026" if end < len(text) else ""))


def _label(field: Mapping[str, Any]) -> str:
    """Return the name of a class; "" for a number."""
    value = field.get("value")
    return value if isinstance(value, str) else ""
