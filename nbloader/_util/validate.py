"""Checks of argument values that several packages share."""

from __future__ import annotations

import operator
from typing import Any


def natural(name: str, value: Any, hint: str) -> int:
    """Check an argument that must be a non-negative integer of any kind, such as NumPy's.

    Args:
        name: The argument's name, for the message.
        value: What the user passed.
        hint: Ends the message about a negative value: what the smallest value means, or what to use instead.

    Returns:
        The value as an `int`.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is negative.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}: {value!r}")
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"{name} option should be non-negative, not {number}; {hint}")
    return number


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Check an argument that must be one of a few strings.

    Raises:
        ValueError: It is not.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
