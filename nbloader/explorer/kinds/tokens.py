"""Token ids of a text, which a tokenizer turns into words."""

from __future__ import annotations

from typing import Any

from nbloader._util.format import clean, plural
from nbloader.explorer.field import SUMMARY
from nbloader.explorer.kinds.base import Cover, Kind, Value
from nbloader.explorer.texts import joined, printable

NAMES = ("input_ids", "token_ids", "tokens", "decoder_input_ids", "ids", "labels", "target_ids")
"""Names of fields that may be token ids."""
SURE = ("input_ids", "token_ids", "decoder_input_ids", "target_ids")
"""Names of fields that are token ids even if there is no tokenizer."""
IGNORED = -100
"""The number of torch's losses for a token that does not count."""
MAX_TOKENS = 600
"""Maximum number of tokens that are decoded one by one."""
CARD_TOKENS = 80
LEAST = 4
"""Minimum number of whole numbers without a name that a tokenizer decodes."""


class Tokens(Kind):
    """The decoded text, and its tokens one by one; without a tokenizer, the numbers."""

    name = "tokens"
    caption = 2
    compared_as = "signal"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value has the name of token ids, or could be some where the dataset has a tokenizer.

        Labels beside token ids are a number for each token, if not token ids themselves.
        """
        if not cls.fits(value):
            return False
        beside_tokens = not value.neighbors.keys().isdisjoint(SURE)
        if value.name in SURE or (value.name == "labels" and beside_tokens):
            return True
        if value.context.tokenizer is None:
            return False
        unnamed = value.name.isdecimal() or not value.name
        return (unnamed and value.numbers.size >= LEAST) or (value.name in NAMES and value.name != "labels")

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether the value is an array or a list of whole numbers that are not negative, or ignored."""
        array = value.numbers
        if array.ndim == 2 and array.shape[0] == 1:
            array = array[0]
        return array.ndim == 1 and array.dtype.kind in "iu" and bool(((array >= 0) | (array == IGNORED)).all())

    def describe(self) -> None:
        """Decode the tokens."""
        ids = [int(number) for number in self.value.numbers.reshape(-1)]
        view, field = self.context.view, self.field
        field.facts["tokens"] = len(ids)
        field.summary = plural(len(ids), "token")
        if view.scan:
            return
        kept = [number for number in ids if number >= 0][: MAX_TOKENS if view.full else CARD_TOKENS]
        note, text = "", ""
        if self.context.tokenizer is None:
            note = "no tokenizer was found: pass explore(..., tokenizer=...) to see words"
        else:
            try:
                text = self.context.tokenizer.decode(kept)
            except Exception as error:  # noqa: BLE001 - of another library, for ids that may be none of its own
                note = f"not decoded: {clean(f'{type(error).__name__}: {error}')}"
        if text:
            field.text = printable(str(text))[: view.characters]
            field.summary = clean(f"{field.summary}: {text}", SUMMARY)
        else:
            field.text = " ".join(map(str, ids[: MAX_TOKENS if view.full else CARD_TOKENS]))[: view.characters]
        if view.full and text:
            field.data["tokens"] = [[number, _piece(self.context.tokenizer, number)] for number in ids[:MAX_TOKENS]]
        ignored = len(ids) - sum(number >= 0 for number in ids)
        field.note = joined(
            note,
            f"{ignored:,} of them are ignored ({IGNORED})" if ignored else "",
            f"the first {MAX_TOKENS} are shown" if view.full and len(ids) > MAX_TOKENS else "",
        )

    def cover(self) -> Cover:
        """Return that tokens are a text."""
        return Cover.TEXT


def _piece(tokenizer: Any, number: int) -> str:
    """Return the text of one token; "" for one that is ignored or has none."""
    if number < 0:
        return ""
    try:
        return printable(str(tokenizer.decode([number])))[:SUMMARY]
    except Exception:  # noqa: BLE001 - of another library
        return ""
