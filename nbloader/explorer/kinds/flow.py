"""Optical flow: for each pixel of a picture, how far it moves to the right and down."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import number
from nbloader._util.png import png
from nbloader.explorer import pictures
from nbloader.explorer.kinds.base import NO_NUMBERS, Kind, Value
from nbloader.explorer.pictures import BYTE, Picture, Pixels

NAMES = ("flow", "displacement", "motion")
"""Words in the names of fields that may be optical flow."""
SHARE = 99
"""Percentile of the lengths that has the strongest color: a few wrong pixels do not make the others pale."""


class Flow(Kind):
    """Directions as hues, and lengths as the strength of the color."""

    name = "flow"
    compared_as = "signal"
    varies = True

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether there are two floats for each pixel, and a name or a picture of the same size."""
        flow = _flow(value)
        if flow.ndim != 3:
            return False
        return value.named(NAMES) or value.beside_picture((flow.shape[1], flow.shape[0]), channels=3)

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether there are two floats for each pixel."""
        return _flow(value).ndim == 3

    def describe(self) -> None:
        """Draw the directions in colors."""
        flow = _flow(self.value)
        height, width = flow.shape[:2]
        self.field.summary = self.value.shape_and_type
        self.field.size = (width, height)
        if not self.context.draws_picture:
            return
        small = pictures.shrink(flow, self.context.view.side).astype(np.float64)
        longest = _longest(small)
        note = f"hue: direction (red to the right, green down); strongest color: {number(longest)} pixels or more"
        self.context.show(self.field, Picture(png(colored_flow(small, longest)), width, height, note))


def _flow(value: Value) -> NDArray[np.float64]:
    """Return the flow with its two directions last; an array with another number of axes if it is none."""
    array = value.numbers
    if array.ndim != 3 or array.dtype.kind != "f":
        return NO_NUMBERS
    if array.shape[2] == 2 and min(array.shape[:2]) >= pictures.MIN_SIDE:
        return array
    if array.shape[0] == 2 and min(array.shape[1:]) >= pictures.MIN_SIDE:
        return np.moveaxis(array, 0, 2)
    return NO_NUMBERS


def _longest(flow: NDArray[np.float64]) -> float:
    lengths = np.hypot(flow[:, :, 0], flow[:, :, 1])
    finite = lengths[np.isfinite(lengths)]
    return float(np.percentile(finite, SHARE)) if finite.size else 0.0


def colored_flow(flow: NDArray[np.float64], longest: float) -> Pixels:
    """Return directions as hues, over white where nothing moves.

    Args:
        flow: Height, width, and the distances to the right and down.
        longest: The length with the strongest color.
    """
    right, down = np.nan_to_num(flow[:, :, 0]), np.nan_to_num(flow[:, :, 1])
    strength = np.clip(np.hypot(right, down) / (longest or 1.0), 0, 1)[:, :, None]
    hue = np.arctan2(down, right) / (2 * np.pi) % 1.0
    sectors = (hue[:, :, None] * 6 + np.array([0.0, 4.0, 2.0])) % 6
    colors = np.clip(np.abs(sectors - 3) - 1, 0, 1)
    mixed = 1 - strength * (1 - colors)
    image: Pixels = np.rint(mixed * BYTE).astype(np.uint8)
    image[~np.isfinite(flow).all(axis=2)] = pictures.INVALID
    return image
