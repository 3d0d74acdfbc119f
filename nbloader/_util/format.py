"""Formats numbers and untrusted text for display: short figures, and strings that are safe for a page or a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CLIP = 200
"""Default maximum length, in characters, of displayed text that comes from a sample, a worker or an error."""

CRASH = "Fatal Python error: "
"""Prefix of the first line of a crash report written by Python's `faulthandler`."""
_MODULES = "Extension modules: "
"""Prefix of the last line of such a report, which lists dozens of modules."""


# Each entry: the smallest absolute value to which it applies, and a format with about three significant digits.
_NUMBERS = ((1e15, ".2e"), (99.95, ",.0f"), (9.995, ".1f"), (0.0995, ".2f"), (0.0005, ".3f"))
# Each entry: the time in seconds below which it applies, the number of units per second, and the name of the unit.
_SHORT = ((0.9995e-3, 1e6, "us"), (0.9995, 1e3, "ms"))
_LONG = 99.95
_MINUTE = _HOUR = 60
_UNITS = ((1e9, "GB"), (1e6, "MB"), (0, "kB"))
_ALMOST_NOTHING = 0.005
_MOST_CONSUMABLE = 10_000
WHOLE_SECONDS = 2.0
"""Age from which it is shown in whole seconds, seconds."""


def number(value: float) -> str:
    """Format with about three significant digits: 1234 -> "1,234", 18.34 -> "18.3", 0.0512 -> "0.051"."""
    size = abs(value)
    for least, form in _NUMBERS:
        if size >= least:
            return format(value, form)
    return "0" if size >= 0 else str(value)


def consumable(rate: float) -> str:
    """Format how many batches per second a loop could consume. Steps of less than 0.1 ms are not measured precisely."""
    return number(rate) if rate <= _MOST_CONSUMABLE else f"over {_MOST_CONSUMABLE:,}"


def percent(share: float) -> str:
    """Format a fraction from 0 to 1 as "62%"; a positive fraction that would round to 0 becomes "< 1%"."""
    return "< 1%" if 0 < share < _ALMOST_NOTHING else f"{100 * share:.0f}%"


def factor(value: float, form: str = ".1f") -> str:
    """Format how many times as much something is: 3.94 -> "3.9x". `form` is the format of the number."""
    return f"{value:{form}}x"


def duration(seconds: float) -> str:
    """Format a time in a suitable unit: "350 us", "20.7 ms", "3.2 s", "3 min 20 s", "2 h 05 min"."""
    for limit, scale, unit in _SHORT:
        if seconds < limit:
            return f"{number(round(seconds * scale, 3))} {unit}"
    if seconds < _LONG:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE)
    if minutes < _HOUR:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // _HOUR:,} h {minutes % _HOUR:02d} min"


def age(seconds: float) -> str:
    """Format how long something has lasted so far: in tenths of a second, from two seconds on in whole seconds.

    It is rounded down. Ages that are shown side by side agree, and change no more often than a person can read.
    """
    tenths, whole = int(round(10 * seconds, 6)), int(seconds)
    if seconds < WHOLE_SECONDS:
        return f"{tenths / 10:.1f} s" if tenths else "< 0.1 s"
    return f"{whole} s" if whole < _LONG else duration(whole)


def megabytes(count: float) -> str:
    """Format a number of bytes in decimal units: "812 kB", "38.2 MB", "1.24 GB"."""
    scale, unit = next((scale, unit) for scale, unit in _UNITS if count >= scale or not scale)
    return f"{number(count / (scale or 1e3))} {unit}"


def plural(count: int, noun: str) -> str:
    """Format a count: "1 worker", "2 workers", "3 batches"."""
    if count == 1:
        return f"{count:,} {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith(('ch', 's')) else 's'}"


def text_table(rows: Sequence[Sequence[str]], left: tuple[int, ...]) -> str:
    """Format rows as aligned columns. Columns whose index is in `left` are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def clean(value: Any, limit: int = CLIP) -> str:
    """Convert any object to a single line of at most `limit` printable characters.

    Control characters (NUL, terminal escapes, newlines) and lone surrogates, which cannot be encoded, become the
    Unicode replacement character. The result is not escaped for HTML.
    """
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception:  # noqa: BLE001 - the user's __str__ may raise anything; a report must not fail
        text = f"<{type(value).__name__}>"
    cut = len(text) > limit
    text = text[: limit - 1] if cut else text
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text + "\N{HORIZONTAL ELLIPSIS}" if cut else text


def final_message(text: str) -> str:
    """Return the last line of a process's output, cleaned; after a crash, the error and its innermost frame."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    crash = next((i for i in reversed(range(len(lines))) if lines[i].startswith(CRASH)), None)
    if crash is None:
        return clean(lines[-1], CLIP) if lines else ""
    where = next((line for line in lines[crash:] if line.startswith("File ")), "")
    return clean(f"{lines[crash]}{': ' * bool(where)}{where}", CLIP)


def tail(text: str, limit: int = CLIP) -> list[str]:
    """Return the last lines of a text, cleaned, with at most `limit` characters in total.

    The end is kept because it is the most informative part of a traceback.
    """
    kept = "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith(_MODULES))
    return [clean(line, limit) for line in kept[-limit:].splitlines() if line.strip()]
