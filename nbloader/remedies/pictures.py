"""The picture in two samples that differs most: before, after, and the difference. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbloader._util.png import png
from nbloader.remedies.difference import array_of

SIDE = 320
"""Maximum width and height of a picture; of larger ones, every second or third pixel is left."""
CHANNELS = (1, 3, 4)
MIN_SIDE = 8
BATCHES = 4
"""Number of axes of a batch of pictures."""


class Pictures(NamedTuple):
    """A picture of both codes, as PNG files."""

    before: bytes
    after: bytes
    difference: bytes
    """The absolute difference, made brighter so that the largest one is white."""
    brighter: float
    """How many times brighter."""
    mean: float
    """Mean absolute difference, as a share of the range of values: the larger, the more different."""


def pictures_of(before: Any, after: Any) -> Pictures | None:
    """Return the picture that differs most in two samples or batches; None if no picture differs.

    Args:
        before: The sample of the present code.
        after: The sample of the rewritten code.
    """
    worst: tuple[float, NDArray[Any], NDArray[Any]] | None = None
    for one, other in _pairs(before, after):
        for old, new in _pictures(one, other):
            mean = float(np.abs(old.astype(np.float32) - new.astype(np.float32)).mean())
            mean /= float(np.ptp(old)) or 1.0
            if mean and (worst is None or mean > worst[0]):
                worst = mean, old, new
    return None if worst is None else _drawn(*worst)


def size_of(value: Any) -> tuple[int, int] | None:
    """Return the width and height of a picture; None if the value is none."""
    array = array_of(value)
    picture = None if array is None or array.ndim != BATCHES - 1 else _channels_last(array)
    return None if picture is None else (picture.shape[1], picture.shape[0])


def _pairs(before: Any, after: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    one, other = array_of(before), array_of(after)
    if one is not None and other is not None:
        if one.shape == other.shape and one.dtype.kind in "uif" and other.dtype.kind in "uif":
            yield one, other
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before:
            yield from _pairs(before[key], after.get(key))
    elif isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        for pair in zip(before, after):  # noqa: B905 - the difference names unequal lengths
            yield from _pairs(*pair)


def _pictures(one: NDArray[Any], other: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    if one.ndim == BATCHES:
        for pair in zip(one, other, strict=True):
            yield from _pictures(*pair)
        return
    old, new = (_channels_last(one), _channels_last(other)) if one.ndim == BATCHES - 1 else (None, None)
    if old is not None and new is not None:
        yield old, new


def _channels_last(array: NDArray[Any]) -> NDArray[Any] | None:
    if array.shape[0] in CHANNELS and array.shape[2] not in CHANNELS:
        found: NDArray[Any] = np.moveaxis(array, 0, 2)
    elif array.shape[2] in CHANNELS:
        found = array
    else:
        return None
    return found if min(found.shape[:2]) >= MIN_SIDE else None


def _drawn(mean: float, old: NDArray[Any], new: NDArray[Any]) -> Pictures:
    step = -(-max(old.shape[:2]) // SIDE)
    old, new = (np.nan_to_num(one[::step, ::step, :3].astype(np.float32)) for one in (old, new))
    low, high = (0.0, 255.0) if 1 < old.max() <= 255 and old.min() >= 0 else (float(old.min()), float(old.max()))  # noqa: PLR2004
    apart = np.abs(old - new)
    largest = float(apart.max()) or 1.0
    span = (high - low) or 1.0
    pixels = [np.clip((one - low) / span, 0, 1) for one in (old, new)]
    drawn = [np.rint(255 * one).astype(np.uint8) for one in (*pixels, apart / largest)]
    return Pictures(png(drawn[0]), png(drawn[1]), png(drawn[2]), span / largest, mean)
