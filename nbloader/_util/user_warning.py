"""Issues warnings that point to a line of the user's code."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_OWN = {__name__.partition(".")[0], "functools"}  # functools: frames of cached properties


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the innermost frame outside nbloader.

    Args:
        message: The text of the warning.
        category: The class of the warning.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OWN:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
