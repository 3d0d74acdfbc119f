"""Texts about any object: bounded in length, safe for JSON and HTML, and without an exception."""

from __future__ import annotations

import reprlib
from typing import Any

from nbloader._util.format import clean
from nbloader.explorer.field import SUMMARY
from nbloader.explorer.view import FULL_TEXT

_short = reprlib.Repr()
_short.maxstring = _short.maxother = SUMMARY
_long = reprlib.Repr()
_long.maxstring = _long.maxother = FULL_TEXT
_long.maxlist = _long.maxtuple = _long.maxdict = _long.maxset = 100


def printable(text: str) -> str:
    """Make a string safe for JSON and HTML: control characters and lone surrogates become visible."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def type_name(value: Any) -> str:
    """Return the name of an object's type, with the package that defines it."""
    cls = type(value)
    module = cls.__module__.partition(".")[0]
    return clean(cls.__qualname__ if module in ("builtins", "__main__") else f"{module}.{cls.__name__}", SUMMARY)


def short_repr(value: Any) -> str:
    """Return the repr of an object in one line of at most `SUMMARY` characters."""
    return clean(_repr(_short, value), SUMMARY)


def long_repr(value: Any) -> str:
    """Return the repr of an object, of at most `FULL_TEXT` characters."""
    return printable(_repr(_long, value)[:FULL_TEXT])


def _repr(brief: reprlib.Repr, value: Any) -> str:
    try:
        return brief.repr(value)
    except Exception as error:  # noqa: BLE001 - the user's __repr__ may raise anything
        return f"<{type_name(value)}; its repr raises {type(error).__name__}>"


def joined(*parts: str) -> str:
    """Join notes; empty ones are left out."""
    return "; ".join(filter(None, parts))
