"""Point clouds: positions in space, with colors or other numbers, in no particular order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import clean, plural
from nbloader._util.png import png
from nbloader.explorer.field import SUMMARY
from nbloader.explorer.kinds.base import NO_NUMBERS, Kind, Value
from nbloader.explorer.pictures import BYTE, LABEL_COLORS, Picture, Pixels
from nbloader.explorer.strokes import dot
from nbloader.explorer.values import CARD_ELEMENTS, thinned

NAMES = ("point", "cloud", "xyz", "lidar", "velodyne", "pcd", "vertices", "coords")
"""Words in the names of fields that may be point clouds."""
LEAST, LEAST_UNNAMED = 32, 256
"""Minimum number of points, with such a name and without."""
MAX_COLUMNS = 12
MAX_POINTS = 20_000
"""Maximum number of points that are drawn."""
ROUGH = 0.7
"""Mean step between points, as a share of what it is in a random order, above which they are in no order. A series of
three measurements, which also has three columns, has smaller steps."""
AZIMUTH, ELEVATION = 0.6, 0.45
"""Direction of view, in radians."""
TAILS = (0.5, 99.5)
"""Percentiles between which all is in the picture: a few points far away do not make the others small."""
LOW_COLOR, HIGH_COLOR = (42, 96, 190), (240, 170, 40)
MAX_LABELS = 256
"""Maximum number of distinct labels of points."""


class Cloud(Kind):
    """Points that can be turned; without colors or labels of their own, their color is their height."""

    name = "cloud"
    compared_as = "signal"
    varies = True

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether there are many points with three or more numbers, and a name or no order in them."""
        points = _points(value.numbers)
        if points.ndim != 2:
            return False
        if value.named(NAMES):
            return len(points) >= LEAST
        return len(points) >= LEAST_UNNAMED and value.numbers.shape[1] == 3 and _is_rough(points)

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether there are points with three or more numbers."""
        return _points(value.numbers).ndim == 2

    def describe(self) -> None:
        """Draw the points from a fixed direction, and attach them for turning."""
        points, field, view = _points(self.value.numbers), self.field, self.context.view
        field.summary = plural(len(points), "point")
        if view.scan:
            return
        label_name, labels = self._labels(len(points))
        places, colors = _drawn(points, labels)
        if not len(places):
            return
        if self.context.draws_picture:
            side = min(view.side, 512)
            self.context.show(field, Picture(png(_picture(places, colors, side)), side, side, ""))
        if view.full:
            field.data["places"] = self.context.attach(np.ascontiguousarray(places, "<f4").tobytes())
            field.data["colors"] = self.context.attach(np.ascontiguousarray(colors).tobytes())
            field.data |= {"azimuth": AZIMUTH, "elevation": ELEVATION}
        shown = f"{plural(len(places), 'point')} of {len(points):,} drawn; " if len(places) < len(points) else ""
        if _has_colors(points):
            field.note = f"{shown}colors are columns 3 to 5"
        else:
            field.note = f"{shown}the color is {'the height' if labels is None else f'the label in {label_name}'}"

    def _labels(self, count: int) -> tuple[str, NDArray[Any] | None]:
        """Return name and content of the first field beside the points that is a label for each of them."""
        for name, part in self.value.neighbors.items():
            labels = Value(name, part, self.context).numbers
            if is_a_label_each(labels) and labels.size == count:
                return clean(name, SUMMARY), labels
        return "", None


def is_a_label_each(array: NDArray[Any]) -> bool:
    """Return whether an array is a line of whole numbers, of which few are distinct."""
    if array.ndim != 1 or array.dtype.kind not in "biu":
        return False
    return len(np.unique(thinned(array, CARD_ELEMENTS))) <= MAX_LABELS


def labels_points(value: Value) -> bool:
    """Return whether a value is a label for each point of a cloud beside it."""
    labels = value.numbers
    if labels.size < LEAST or not is_a_label_each(labels):
        return False
    beside = (Value(name, part, value.context) for name, part in value.neighbors.items() if part is not value.content)
    return any(len(_points(other.numbers)) == labels.size and Cloud.recognizes(other) for other in beside)


def _points(array: NDArray[Any]) -> NDArray[Any]:
    """Return points and their numbers; an array with another number of axes if there are none."""
    if array.ndim != 2 or array.dtype.kind != "f":
        return NO_NUMBERS
    if 3 <= array.shape[1] <= MAX_COLUMNS:
        return array
    return array.T if 3 <= array.shape[0] <= 6 and array.shape[1] >= LEAST else NO_NUMBERS


def _is_rough(points: NDArray[Any]) -> bool:
    """Whether the points are in no order: a step to the next one is as large as one to any other."""
    some = points[: 4 * LEAST_UNNAMED].astype(np.float64)
    if not np.isfinite(some).all():
        return False
    steps, spread = np.abs(np.diff(some, axis=0)).mean(axis=0), some.std(axis=0)
    return bool((spread > 0).all() and (steps > ROUGH * spread).all())


def _has_colors(points: NDArray[Any]) -> bool:
    """Whether three columns behind the positions are colors, as fractions or as bytes."""
    if points.shape[1] < 6:
        return False
    colors = points[:, 3:6]
    low, high = float(np.nanmin(colors)), float(np.nanmax(colors))
    return low >= 0 and (high <= 1 or (high > BYTE / 2 and high <= BYTE and bool((colors == np.rint(colors)).all())))


def _drawn(points: NDArray[Any], labels: NDArray[Any] | None) -> tuple[NDArray[np.float64], Pixels]:
    """Return the positions to draw, most of them between -1 and 1, and their colors."""
    kept = np.flatnonzero(np.isfinite(points).all(axis=1))
    kept = kept[:: max(1, -(-len(kept) // MAX_POINTS))]
    points = points[kept]
    if not len(points):
        return np.empty((0, 3)), np.empty((0, 3), np.uint8)
    places = points[:, :3].astype(np.float64)
    low, high = np.percentile(places, TAILS, axis=0)
    half = float((high - low).max()) / 2 or 1.0
    places = (places - (low + high) / 2) / half
    if _has_colors(points):
        colors = points[:, 3:6].astype(np.float64)
        return places, np.rint(colors * (BYTE if colors.max() <= 1 else 1)).astype(np.uint8)
    if labels is not None:
        return places, LABEL_COLORS[1:][labels[kept].astype(np.int64) % (len(LABEL_COLORS) - 1)]
    depth = (high - low)[2] / (2 * half) or 1.0
    share = np.clip((places[:, 2:] / depth + 1) / 2, 0, 1)
    return places, np.rint((1 - share) * LOW_COLOR + share * np.array(HIGH_COLOR)).astype(np.uint8)


def _picture(places: NDArray[np.float64], colors: Pixels, side: int) -> Pixels:
    """Return the points as seen from the fixed direction, the nearest ones above the others; transparent elsewhere."""
    x, y, z = places.T
    right = x * np.cos(AZIMUTH) - y * np.sin(AZIMUTH)
    away = x * np.sin(AZIMUTH) + y * np.cos(AZIMUTH)
    up = z * np.cos(ELEVATION) + away * np.sin(ELEVATION)
    near = z * np.sin(ELEVATION) - away * np.cos(ELEVATION)
    image = np.zeros((side, side, 4), np.uint8)
    scale, radius = side / 2.7, 0 if side < 256 and len(places) > 500 else 1
    for at in np.argsort(near):
        dot(image, side / 2 + scale * right[at], side / 2 - scale * up[at], radius, (*colors[at], BYTE))
    return image
