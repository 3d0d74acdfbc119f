"""Key points of objects: joints, landmarks, corners."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import plural
from nbloader.explorer.field import Field
from nbloader.explorer.kinds.base import NO_NUMBERS, Drawn, Kind, Value
from nbloader.explorer.pictures import LABEL_COLORS, Pixels
from nbloader.explorer.strokes import dot, line, thickness

NAMES = ("keypoint", "key_point", "kpt", "landmark", "joint")
"""Words in the names of fields that may be key points."""
MAX_POINTS = 2000
COCO = (
    (0, 1), (0, 2), (1, 3), (2, 4), (5, 6), (5, 7), (7, 9), (6, 8), (8, 10), (5, 11), (6, 12), (11, 12), (11, 13),
    (13, 15), (12, 14), (14, 16),
)  # fmt: skip
"""Which of the 17 key points of a person in COCO are connected."""


class Keypoints(Kind):
    """Points over the first picture of the sample, in another color for each object."""

    name = "keypoints"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the name says so, there is a picture, and the array has points with two or three numbers."""
        return value.named(NAMES) and bool(value.context.pictures) and _objects(value).ndim == 3

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether the array has points with two or three numbers."""
        return _objects(value).ndim == 3

    def describe(self) -> None:
        """Count the points."""
        objects = _objects(self.value)
        of = f" of {plural(len(objects), 'object')}" if len(objects) > 1 else ""
        self.field.summary = plural(int(_visible(objects).sum()), "key point") + of

    def belongs_to(self, picture: Field) -> bool:
        """Return whether the other field is a picture."""
        return picture.size is not None

    def draw_over(self, pixels: Pixels, picture: Field) -> Drawn:
        """Draw dots, and lines between the joints of a person in COCO's order."""
        height, width = pixels.shape[:2]
        objects = _objects(self.value)
        places = np.nan_to_num(objects[:, :, :2].astype(np.float64))
        fractions = bool(places.size) and float(np.abs(places).max()) <= 1.5
        places *= np.array([width, height]) / ((1, 1) if fractions else (picture.size or (width, height)))
        draw_keypoints(pixels, places, _visible(objects))
        return Drawn(pixels, "read as fractions of the size" if fractions else "read as pixels")


def draw_keypoints(pixels: Pixels, places: NDArray[np.float64], visible: NDArray[np.bool_]) -> None:
    """Draw points over a picture.

    Args:
        pixels: The picture, which is modified.
        places: Objects, points, and x and y in pixels.
        visible: Objects, points: whether a point is drawn.
    """
    thick = thickness(pixels)
    for at, (points, shown) in enumerate(zip(places, visible, strict=True)):
        color = LABEL_COLORS[1 + at % (len(LABEL_COLORS) - 1)]
        if len(points) == 17:
            for first, second in COCO:
                if shown[first] and shown[second]:
                    line(pixels, points[first], points[second], color)
        for x, y in itertools.islice(points[shown], MAX_POINTS):
            dot(pixels, x, y, thick + 1, (255, 255, 255))
            dot(pixels, x, y, thick, color)


def objects_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return key points as objects, points, numbers; an array with another number of axes if they are none.

    Args:
        array: Points of one object or of several, or COCO's flat list of x, y and visibility.
    """
    if array.ndim == 1 and array.size and array.size % 3 == 0:
        return array.reshape(1, -1, 3)
    if array.ndim == 2 and array.shape[1] in (2, 3):
        return array[None]
    if array.ndim == 2 and array.shape[1] % 3 == 0:
        return array.reshape(len(array), -1, 3)
    return array if array.ndim == 3 and array.shape[2] in (2, 3) else NO_NUMBERS


def _objects(value: Value) -> NDArray[Any]:
    return objects_of(value.numbers) if value.numbers.dtype.kind in "iuf" else NO_NUMBERS


def _visible(objects: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which points to draw: a third number of 0 says that a point is not in the picture."""
    finite: NDArray[np.bool_] = np.isfinite(objects[:, :, :2]).all(axis=2)
    if objects.shape[2] == 3:
        finite &= objects[:, :, 2] > 0
    return finite
