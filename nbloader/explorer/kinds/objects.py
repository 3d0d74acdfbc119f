"""Lists of annotated objects, as in COCO: a box, an outline or a mask, key points and a category for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nbloader._util.format import clean, plural
from nbloader.explorer.field import SUMMARY, Field
from nbloader.explorer.kinds.base import Drawn, Kind, Value
from nbloader.explorer.kinds.boxes import boxes_over, corners_of
from nbloader.explorer.kinds.keypoints import draw_keypoints, objects_of
from nbloader.explorer.kinds.mask import mask_over
from nbloader.explorer.pictures import LABEL_COLORS, Pixels
from nbloader.explorer.run_lengths import decode, is_run_lengths
from nbloader.explorer.strokes import outline
from nbloader.explorer.texts import joined, short_repr
from nbloader.explorer.values import as_array

BOX_NAMES = ("bbox", "box", "bounding_box")
OUTLINE_NAMES = ("segmentation", "polygon", "outline")
MASK_NAMES = ("segmentation", "mask")
LABEL_NAMES = ("category", "category_id", "label", "class", "name", "labels")
MAX_OBJECTS = 300
"""Maximum number of objects that are drawn."""
MAX_ROWS, MAX_COLUMNS, MAX_CELL = 50, 8, 40
"""Limits of the table of objects: lines, columns, and characters of a cell."""


class Objects(Kind):
    """A table of objects, which are drawn over the first picture of the sample."""

    name = "objects"
    caption = 0

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is a list of mappings that have a box."""
        content = value.content
        if not isinstance(content, (list, tuple)) or not content:
            return False
        return all(isinstance(part, Mapping) for part in content) and any(name in content[0] for name in BOX_NAMES)

    def describe(self) -> None:
        """Count the objects by their category, and list them."""
        content, field = self.value.content, self.field
        labels = [label for label, _number in map(self._label, range(len(content))) if label]
        counts = Counter(labels).most_common()
        kinds = ", ".join(f"{count} {label}" for label, count in counts)
        field.summary = clean(plural(len(content), "object") + (f": {kinds}" if kinds else ""), SUMMARY)
        field.facts["objects"] = len(content)
        if not self.context.view.full:
            return
        columns = list(dict.fromkeys(clean(name, MAX_CELL) for part in content[:MAX_ROWS] for name in part))
        field.data["columns"] = columns[:MAX_COLUMNS]
        field.data["rows"] = [self._cells(at, columns[:MAX_COLUMNS]) for at in range(min(len(content), MAX_ROWS))]
        if len(content) > MAX_ROWS:
            field.note = f"the first {MAX_ROWS} of {plural(len(content), 'object')} are listed"

    def belongs_to(self, picture: Field) -> bool:
        """Return whether the other field is a picture."""
        return picture.size is not None

    def draw_over(self, pixels: Pixels, picture: Field) -> Drawn:
        """Draw masks, boxes, outlines and key points over the picture."""
        size = picture.size or (pixels.shape[1], pixels.shape[0])
        scale = np.array([pixels.shape[1] / size[0], pixels.shape[0] / size[1]])
        pixels, problem = self._masks_over(pixels)
        for at, part in enumerate(self.value.content[:MAX_OBJECTS]):
            for points in _outlines(part):
                outline(pixels, points * scale, LABEL_COLORS[1 + self._color(at) % (len(LABEL_COLORS) - 1)])
            joints = as_array(part.get("keypoints"))
            objects = np.empty(0) if joints is None else objects_of(joints)
            if objects.ndim == 3 and objects.shape[2] == 3:
                draw_keypoints(pixels, objects[:, :, :2] * scale, objects[:, :, 2] > 0)
        boxes = [(at, box) for at, part in enumerate(self.value.content[:MAX_OBJECTS]) for box in _boxes(part)]
        if not boxes:
            return Drawn(pixels, problem)
        name = next(name for name in BOX_NAMES if name in self.value.content[0])
        corners, how = corners_of(None, np.array([box for _at, box in boxes]), f"{self.field.path}.{name}", size)
        colors = np.array([self._color(at) for at, _box in boxes])
        return Drawn(boxes_over(pixels, corners * np.tile(scale, 2), colors), joined(how, problem))

    def _masks_over(self, pixels: Pixels) -> tuple[Pixels, str]:
        """Draw the masks of the objects; where several have a pixel, that of the last one.

        Returns:
            The picture, and what is wrong with the last mask that cannot be drawn; "" if all can.
        """
        problem = ""
        height, width = pixels.shape[:2]
        labels = np.zeros((height, width), np.int64)
        rows, columns = np.arange(height), np.arange(width)
        for at, part in enumerate(self.value.content[:MAX_OBJECTS]):
            try:
                for mask in _masks(part):
                    shown = mask[np.ix_(rows * mask.shape[0] // height, columns * mask.shape[1] // width)]
                    labels[shown != 0] = 1 + self._color(at) % (len(LABEL_COLORS) - 1)
            except (TypeError, ValueError, OverflowError) as error:
                problem = clean(str(error))
        return (mask_over(pixels, labels) if labels.any() else pixels), problem

    def _label(self, at: int) -> tuple[str, Any]:
        """Return the name of an object's category and its number; "" if it has none."""
        part = self.value.content[at]
        for name in LABEL_NAMES:
            number = part.get(name)
            if isinstance(number, str):
                return clean(number, MAX_CELL), number
            number = _plain(number)
            if isinstance(number, int) and not isinstance(number, bool):
                named = self.context.class_name(f"{self.field.path}.{name}".lstrip("."), number)
                return named or f"of {name.removesuffix('_id')} {number}", number
        return "", None

    def _color(self, at: int) -> int:
        label, number = self._label(at)
        return number if isinstance(number, int) else sum(map(ord, label)) if label else at

    def _cells(self, at: int, columns: list[str]) -> list[str]:
        part = self.value.content[at]
        texts = []
        for name in columns:
            number = _plain(part.get(name))
            named = self.context.class_name(f"{self.field.path}.{name}".lstrip("."), number)
            texts.append(clean(named or ("" if name not in part else _text(part[name])), MAX_CELL))
        return texts


def _plain(value: Any) -> Any:
    """Convert a number of NumPy or torch to one of Python."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _text(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    array = as_array(value) if isinstance(value, (list, tuple)) else None
    if array is not None and array.ndim == 1 and array.size <= 6:
        return ", ".join(f"{number:.4g}" for number in array.tolist())
    return value if isinstance(value, str) else short_repr(value)


def _boxes(part: Mapping[str, Any]) -> Iterator[list[float]]:
    for name in BOX_NAMES:
        box = as_array(part[name]) if name in part else None
        if box is not None and box.shape == (4,) and box.dtype.kind in "iuf":
            yield box.tolist()
            return


def _masks(part: Mapping[str, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the masks of an object: run lengths, as in COCO, or arrays of height and width."""
    for name in MASK_NAMES:
        mask = part.get(name)
        array = decode(mask) if is_run_lengths(mask) else as_array(mask) if name == "mask" else None
        if array is not None and array.ndim == 2 and array.size and array.dtype.kind in "biu":
            yield array


def _outlines(part: Mapping[str, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the polygons of an object: lists of x and y, one after another, as in COCO."""
    for name in OUTLINE_NAMES:
        polygons = part.get(name)
        if not isinstance(polygons, (list, tuple)):
            continue
        flat = polygons and not isinstance(polygons[0], (list, tuple))
        for polygon in [polygons] if flat else polygons:
            points = as_array(polygon)
            if points is not None and points.dtype.kind in "iuf" and points.size % 2 == 0 and points.size:
                yield points.astype(np.float64).reshape(-1, 2)
