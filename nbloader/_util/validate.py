"""Argument checks that several subpackages share."""

from __future__ import annotations

import operator
from typing import Any


def natural(name: str, value: Any, hint: str) -> int:
    """Check that an argument is a non-negative integer of any type, such as a NumPy integer.

    Args:
        name: The argument's name, for the message.
        value: The value that the user passed.
        hint: End of the message about a negative value: what the smallest value means, or what to use instead.

    Returns:
        The value as an `int`.

    Raises:
        TypeError: The value is not an integer.
        ValueError: The value is negative.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}: {value!r}")
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"{name} option should be non-negative, not {number} ({hint})")
    return number


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Check that an argument is one of the allowed strings.

    Raises:
        ValueError: The value is not allowed.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
