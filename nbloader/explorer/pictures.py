"""Converts arrays to pictures: which axes are rows, columns and channels, and how values become brightness."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import number
from nbloader._util.png import png
from nbloader.explorer.values import CARD_ELEMENTS, figures_of, thinned, unit_range

Layout: TypeAlias = Literal["HW", "HWC", "CHW"]
Pixels: TypeAlias = "NDArray[np.uint8]"

CHANNELS = (1, 3, 4)
MIN_SIDE = 8
"""Minimum height and width of an array that is taken for a picture because of its shape."""
MANY_CHANNELS, TIMES = 16, 20
"""An array of at most so many lines that are so many times as long is no picture: an ECG has twelve."""
BYTE, SHORT = 255, 65535
INVALID = (214, 39, 140)
"""Color of a pixel that is NaN or infinite."""
LABEL_COLORS = np.array(
    [
        (0, 0, 0), (59, 143, 214), (224, 138, 30), (26, 158, 119), (209, 87, 58), (138, 102, 232), (199, 107, 176),
        (168, 160, 60), (124, 196, 238), (120, 84, 60), (255, 214, 90), (70, 110, 70),
    ],
    np.uint8,
)  # fmt: skip
"""Colors of labels, of pixels or of boxes; the first one is the background."""


class Picture(NamedTuple):
    """An array as the browser gets it."""

    png: bytes
    width: int
    """Width of the array; the PNG may be smaller."""
    height: int
    note: str
    """How values became brightness; empty for bytes."""


class Limits(NamedTuple):
    """Which values are black and white."""

    low: float
    high: float
    note: str
    """Names them."""


NARROW = 0.1
"""How far outside of 0 to 1 floats of a picture may be: resampling exceeds the range of what was resampled."""


def has_long_lines(shape: tuple[int, ...]) -> bool:
    """Return whether an array with two axes has the shape of a measurement with several channels."""
    return min(shape) <= MANY_CHANNELS and max(shape) >= TIMES * min(shape)


def layout_of(shape: tuple[int, ...], *, least: int = MIN_SIDE) -> Layout | None:
    """Return which axes of an array are rows, columns and channels; None if it does not look like a picture.

    Args:
        shape: Shape of the array.
        least: Minimum height and width.
    """
    if len(shape) == 2 and min(shape) >= least:
        return None if least > 1 and has_long_lines(shape) else "HW"
    if len(shape) == 3:
        first, middle, last = shape
        if last in CHANNELS and min(first, middle) >= least:
            return "HWC"
        if first in CHANNELS and min(middle, last) >= least:
            return "CHW"
    return None


def slice_axis(shape: tuple[int, ...]) -> int:
    """Return the axis along which an array with three axes is a stack of pictures.

    It is the first one, unless the last one is much shorter than both others: bands of a satellite's picture, or slices
    of a scan, after rows and columns.
    """
    first, middle, last = shape
    return 2 if min(first, middle) >= MIN_SIDE and 2 * last <= min(first, middle) else 0


def has_slices(shape: tuple[int, ...]) -> bool:
    """Whether an array with these axes is a stack of pictures.

    Args:
        shape: Shape of an array that is not a picture itself.
    """
    if len(shape) == 3 and min(shape) > 1 and slice_axis(shape) == 2:
        return True
    return len(shape) >= 3 and (min(shape[-2:]) >= MIN_SIDE or layout_of(shape[-3:]) == "HWC")


def rows_columns(array: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return the array with the channels last."""
    if layout == "HW":
        return array[:, :, None]
    return array if layout == "HWC" else np.moveaxis(array, 0, 2)


def picture_of(array: NDArray[Any], layout: Layout, side: int, limits: Limits | None = None) -> Picture | None:
    """Draw an array as a picture; None if its elements are not numbers.

    Args:
        array: An array of numbers.
        layout: Layout of its axes.
        side: Maximum width and height of the PNG.
        limits: Which values are black and white; None for those that `limits_of` finds.
    """
    pixels = rows_columns(array, layout)
    height, width = pixels.shape[:2]
    converted = _to_bytes(shrink(pixels, side), pixels, limits)
    if converted is None:
        return None
    image, note = converted
    return Picture(png(image), width, height, note)


def limits_of(array: NDArray[Any], *, colored: bool = False) -> Limits | None:
    """Return which values of a picture or a stack of them are black and white; None if they are not numbers.

    Args:
        array: The picture or the stack.
        colored: Whether a picture has several channels.
    """
    figures = figures_of(thinned(array, CARD_ELEMENTS))
    if figures is None:
        return None
    if figures.minimum is None or figures.maximum is None:
        return Limits(0.0, 1.0, "no finite value")
    if array.dtype.kind not in "iu" and not colored and 1 + NARROW < figures.maximum <= BYTE and not _is_whole(array):
        return _own_range(figures.minimum, figures.maximum)  # of a measurement, such as a depth in meters
    return _range(figures.minimum, figures.maximum, array.dtype)


def _is_whole(array: NDArray[Any]) -> bool:
    """Whether floats are whole numbers, as those of a converted image are."""
    part = thinned(array, CARD_ELEMENTS)
    finite = part[np.isfinite(part)]
    return bool((finite == np.rint(finite)).all())


def _to_bytes(small: NDArray[Any], whole: NDArray[Any], limits: Limits | None) -> tuple[Pixels, str] | None:
    """Convert values to brightness, and describe how.

    Args:
        small: The pixels to convert.
        whole: All pixels, whose range determines the scale.
        limits: Which values are black and white; None for a range of all pixels.
    """
    if limits is None and small.dtype == np.uint8:
        return small, ""
    if small.dtype == np.bool_:
        return small.astype(np.uint8) * np.uint8(BYTE), "False is black"
    if small.dtype.kind == "c":
        small, limits = _magnitude(small)
    limits = limits or limits_of(whole, colored=whole.shape[2] > 1)
    if limits is None:
        return None
    low, high, note = limits
    with np.errstate(all="ignore"):
        values = small.astype(np.float64)
    image = np.rint(unit_range(values, low, high) * BYTE).astype(np.uint8)
    invalid = ~np.isfinite(values).all(axis=2)
    if invalid.any():
        if image.shape[2] == 1:
            image = np.repeat(image, 3, axis=2)
        image[invalid, :3] = INVALID
        note += "; not finite: pink"
    return image, note


def _magnitude(pixels: NDArray[Any]) -> tuple[NDArray[Any], Limits]:
    """Return the logarithm of the magnitude of complex numbers. A few are often a thousand times the others."""
    with np.errstate(all="ignore"):
        magnitude = np.abs(pixels).astype(np.float64)
        positive = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
        logarithm = np.log1p(magnitude / (np.median(positive) if positive.size else 1.0))
        high = float(logarithm[np.isfinite(logarithm)].max(initial=0.0))
    return logarithm, Limits(0.0, high or 1.0, "logarithm of the magnitude")


def _range(low: float, high: float, dtype: np.dtype[Any]) -> Limits:
    """Return which values are black and white: a range usual for the type if the values fill it, else their own."""
    if dtype.kind in "iu":
        if low >= 0 and high <= BYTE and high > 1:
            return Limits(0.0, BYTE, "drawn from 0 to 255")
        if dtype == np.uint16 and high > SHORT // 4:
            return Limits(0.0, SHORT, "drawn from 0 to 65535")
    elif (low >= 0 and high <= 1) or (low >= -NARROW and 1 / 2 < high <= 1 + NARROW):
        return Limits(0.0, 1.0, "drawn from 0 to 1")
    elif low >= -1 - NARROW and high <= 1 + NARROW:
        return Limits(-1.0, 1.0, "drawn from -1 to 1")
    elif low >= 0 and BYTE / 8 < high <= BYTE:
        return Limits(0.0, BYTE, "drawn from 0 to 255")
    return _own_range(low, high)


def _own_range(low: float, high: float) -> Limits:
    if low == high:
        return Limits(low - 1, high + 1, f"constant {number(low)}")
    return Limits(low, high, f"drawn from {number(low)} to {number(high)}")


def shrink(pixels: NDArray[Any], side: int, *, average: bool = True) -> NDArray[Any]:
    """Reduce the size to at most `side`, by averaging blocks of pixels.

    Args:
        pixels: Height, width, channels.
        side: Maximum height and width.
        average: Whether to average blocks; otherwise one pixel of each block is taken, for labels.
    """
    height, width = pixels.shape[:2]
    factor = -(-max(height, width) // side)
    if factor <= 1:
        return pixels
    coarse = max(1, factor // 4) if average else factor  # averaging a sixteenth of a large picture is enough
    pixels = pixels[::coarse, ::coarse]
    height, width = pixels.shape[:2]
    factor = -(-max(height, width) // side)
    down, across = min(factor, height), min(factor, width)
    if not average or factor <= 1 or pixels.dtype == np.bool_ or pixels.dtype.kind == "c":
        return pixels[::down, ::across]
    height, width = height // down * down, width // across * across
    blocks = pixels[:height, :width].reshape(height // down, down, width // across, across, pixels.shape[2])
    with np.errstate(all="ignore"):
        if pixels.dtype.kind in "iu":
            blocks = blocks.astype(np.float64)
            return np.asarray(blocks.mean(axis=(1, 3)).astype(pixels.dtype))
        return np.asarray(blocks.astype(np.float64).mean(axis=(1, 3)))


def to_rgb(array: NDArray[Any], layout: Layout, side: int, limits: Limits | None = None) -> Pixels | None:
    """Return the pixels of a picture in three channels, for drawing on them."""
    pixels = rows_columns(array, layout)
    converted = _to_bytes(shrink(pixels, side), pixels, limits)
    if converted is None:
        return None
    image = converted[0]
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[:, :, :3].copy()
