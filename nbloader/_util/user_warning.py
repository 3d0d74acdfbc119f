"""Warnings that point to the user's line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_OWN = {__name__.partition(".")[0], "functools"}  # functools: attributes that are computed on first use


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the innermost frame that is not nbloader's own.

    Args:
        message: The text.
        category: Its class.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OWN:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
