"""Lines and dots on pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader.explorer.pictures import Pixels

LONGEST = 4096
"""Maximum number of dots of which a line consists."""


def thickness(image: Pixels) -> int:
    """Return how thick lines are, in pixels."""
    return max(1, round(int(max(image.shape[:2])) / 200))


def dot(image: Pixels, x: float, y: float, radius: int, color: Sequence[int] | NDArray[Any]) -> None:
    """Draw a square dot; nothing if it is outside of the picture or not finite."""
    height, width = image.shape[:2]
    if not (-radius <= x < width + radius and -radius <= y < height + radius):
        return
    left, top = round(x), round(y)
    image[max(0, top - radius) : max(0, top + radius + 1), max(0, left - radius) : max(0, left + radius + 1)] = color


def line(image: Pixels, start: Sequence[float], end: Sequence[float], color: Sequence[int] | NDArray[Any]) -> None:
    """Draw a line between two points, given as x and y; nothing if one of them is not finite."""
    ends = np.array([start, end], np.float64)
    if not np.isfinite(ends).all():
        return
    height, width = image.shape[:2]
    ends = np.clip(ends, -2 * max(height, width), 3 * max(height, width))
    steps = min(LONGEST, int(np.abs(ends[1] - ends[0]).max()) + 2)
    points = np.rint(ends[0] + np.linspace(0, 1, steps)[:, None] * (ends[1] - ends[0])).astype(np.int64)
    thick = thickness(image)
    for across in range(thick):
        for down in range(thick):
            x, y = points[:, 0] + across - thick // 2, points[:, 1] + down - thick // 2
            inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            image[y[inside], x[inside]] = color


def outline(image: Pixels, points: NDArray[Any], color: Sequence[int] | NDArray[Any]) -> None:
    """Draw a closed polygon.

    Args:
        image: The picture, which is modified.
        points: x and y of each corner, in pixels.
        color: Red, green and blue.
    """
    for at in range(len(points)):
        line(image, points[at - 1], points[at], color)
