"""Windows of values: which of them are black and white when a picture or a volume is drawn.

Pictures of bytes and of floats from 0 to 1 have one. Others can be seen from their minimum to their maximum, or without
the darkest and the brightest hundredth. A tomogram, whose values are Hounsfield units, has the windows of radiology.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import number
from nbloader.explorer.pictures import Limits, limits_of
from nbloader.explorer.values import CARD_ELEMENTS, numbers

AIR, DENSE = -900, 150
"""In Hounsfield units, a tomogram has at least air, and something denser than water."""
HIGHEST = 20_000
"""Maximum of what is taken for Hounsfield units: metal."""
TISSUES = (("soft tissue", 40, 400), ("lung", -600, 1500), ("bone", 400, 1800), ("brain", 40, 80))
"""Windows of a tomogram: name, level and width in Hounsfield units."""
TAILS = (1, 99)
"""Percentiles that are black and white in the window without tails."""


_ONE = ("drawn from 0 to 1", "drawn from -1 to 1", "drawn from 0 to 255", "constant", "no ")
"""Beginnings of the notes of pictures that have one window."""


def windows_of(array: NDArray[Any]) -> list[tuple[str, Limits]]:
    """Return the windows in which an array can be seen, by name, the default one first; none if there is no choice.

    Args:
        array: A picture or a stack of pictures with a single channel.
    """
    if array.dtype.kind not in "iuf" or array.dtype == np.uint8:
        return []
    limits, values = limits_of(array), numbers(array, CARD_ELEMENTS)
    if limits is None or values is None or limits.note.startswith(_ONE):
        return []
    finite = values[np.isfinite(values)]
    low, high = (float(edge) for edge in np.percentile(finite, TAILS))
    every = ("all values", limits)
    tails = [("1 to 99%", Limits(low, high, f"drawn from {number(low)} to {number(high)}"))] if low < high else []
    if not (finite.min() <= AIR and DENSE <= finite.max() <= HIGHEST):
        return [every, *tails]
    tissues = [
        (name, Limits(level - width / 2, level + width / 2, f"{name}: level {level}, width {width}"))
        for name, level, width in TISSUES
    ]
    return [*tissues, every, *tails]
