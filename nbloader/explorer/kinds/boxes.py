"""Bounding boxes of objects in a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import clean
from nbloader.explorer.field import SUMMARY, Field
from nbloader.explorer.kinds.base import NO_NUMBERS, Drawn, Kind, Value
from nbloader.explorer.pictures import LABEL_COLORS, Pixels
from nbloader.explorer.strokes import thickness
from nbloader.explorer.values import as_array

MAX_BOXES = 1000
"""Maximum number of boxes that are drawn."""
CLASS_NAMES = ("labels", "label", "category", "categories", "category_id", "class", "classes", "class_labels")
"""Names of fields beside boxes that may number the class of each box."""
NORMALIZED = 1.5
"""Coordinates up to this one are fractions of width and height."""


class Boxes(Kind):
    """Boxes over the first picture of the sample, in another color for each class, or for each box."""

    name = "boxes"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether there are rows of four numbers, and a name or a picture in which they are boxes.

        Rows of five, as for YOLO, are a class and the center and size as fractions.
        """
        if _has_no_rows(value):
            return "box" in value.name
        array = value.numbers
        if array.ndim == 1:
            return array.size == 4 and "box" in value.name and bool(value.context.pictures)
        if array.ndim != 2 or array.dtype.kind not in "iuf":
            return False
        if array.shape[1] == 5:
            return bool(value.context.pictures) and _is_yolo(array)
        return array.shape[1] == 4 and ("box" in value.name or _in_picture(value))

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether there are rows of four numbers, or of five as for YOLO."""
        array = value.numbers
        if array.dtype.kind not in "iuf":
            return False
        return (array.ndim == 1 and array.size == 4) or (array.ndim == 2 and array.shape[1] in (4, 5))

    def describe(self) -> None:
        """Count the boxes."""
        count = 0 if _has_no_rows(self.value) else len(np.atleast_2d(self.value.numbers))
        self.field.summary = f"{count:,} {'box' if count == 1 else 'boxes'}" if count else "no boxes"

    def belongs_to(self, picture: Field) -> bool:  # noqa: ARG002 - to the first picture
        """Return that any picture will do, unless there is nothing to draw over it."""
        return not _has_no_rows(self.value)

    def draw_over(self, pixels: Pixels, picture: Field) -> Drawn:
        """Draw the outlines of the boxes over the picture."""
        rows = np.atleast_2d(self.value.numbers)
        classes, how = _classes(self.value, len(rows)), ""
        if rows.shape[1] == 5:
            classes, rows, how = rows[:, 0], rows[:, 1:], "cxcywh"
        size = picture.size or (pixels.shape[1], pixels.shape[0])
        corners, note = corners_of(self.value.content, rows, self.value.path, size, how)
        scale = np.array([pixels.shape[1] / size[0], pixels.shape[0] / size[1]] * 2)
        if classes.size:
            note += "; a color for each class"
        return Drawn(boxes_over(pixels, corners * scale, classes), note)


def boxes_over(image: Pixels, corners: NDArray[np.float64], classes: NDArray[Any] = NO_NUMBERS) -> Pixels:
    """Draw outlines of boxes over a picture.

    Args:
        image: The picture, which is modified.
        corners: Left, top, right and bottom of each box, in pixels of `image`.
        classes: A whole number for each box, which determines its color; empty for another color for each box.
    """
    height, width = image.shape[:2]
    thick = thickness(image)
    for at, box in enumerate(corners):
        left, right = (int(np.clip(x, 0, width - 1)) for x in (box[0], box[2]))
        top, bottom = (int(np.clip(y, 0, height - 1)) for y in (box[1], box[3]))
        color = LABEL_COLORS[1 + (int(classes[at]) if classes.size else at) % (len(LABEL_COLORS) - 1)]
        image[top : top + thick, left : right + 1] = color
        image[max(0, bottom - thick + 1) : bottom + 1, left : right + 1] = color
        image[top : bottom + 1, left : left + thick] = color
        image[top : bottom + 1, max(0, right - thick + 1) : right + 1] = color
    return image


def corners_of(
    value: Any, boxes: NDArray[Any], path: str, size: tuple[int, int], stated: str = ""
) -> tuple[NDArray[np.float64], str]:
    """Return boxes as left, top, right, bottom in pixels of the picture, and a phrase that names the assumed format.

    torchvision's boxes state their format. For others, the name of the field may state it ("boxes_xywh", COCO's
    "bbox"); otherwise the second pair is the opposite corner if it is to the right of and below the first in every box.

    Args:
        value: What the boxes were made of, which may state its format.
        boxes: Four numbers for each box.
        path: The field.
        size: Width and height of the picture.
        stated: The format, if it is known: "xyxy", "xywh" or "cxcywh".
    """
    corners = np.nan_to_num(boxes[:MAX_BOXES].astype(np.float64))
    stated = stated or clean(getattr(getattr(value, "format", None), "value", "") or "", SUMMARY).lower()
    names = path.lower()
    if not stated:
        stated = next((form for form in ("xyxy", "cxcywh", "xywh") if form in names), "")
    if not stated:
        opposite = bool((corners[:, 2:] >= corners[:, :2]).all()) and "bbox" not in names
        stated = "xyxy" if opposite else "xywh"
    if stated == "xywh":
        corners[:, 2:] += corners[:, :2]
    elif stated == "cxcywh":
        half = corners[:, 2:] / 2
        corners = np.concatenate([corners[:, :2] - half, corners[:, :2] + half], axis=1)
    if corners.size and corners.max() <= NORMALIZED:  # normalized coordinates: fractions of width and height
        corners *= np.array([*size, *size], np.float64)
        stated += ", as fractions of the size"
    return corners, f"read as {stated}"


def _classes(value: Value, count: int) -> NDArray[Any]:
    """Return the classes beside the boxes; an empty array if there are none."""
    for name in CLASS_NAMES:
        classes = as_array(value.neighbors[name]) if name in value.neighbors else None
        if classes is not None and classes.shape == (count,) and classes.dtype.kind in "iu":
            return classes
    return NO_NUMBERS


def _has_no_rows(value: Value) -> bool:
    """Whether these are the boxes of a picture without objects: an array with the columns of boxes, but no rows."""
    return (
        value.array is not None and value.array.ndim == 2 and len(value.array) == 0 and value.array.shape[1] in (4, 5)
    )


def _is_yolo(array: NDArray[Any]) -> bool:
    """Whether each row has a class, and a center and a size as fractions."""
    classes, rest = array[:, 0], array[:, 1:]
    whole = bool((classes == np.rint(classes)).all() and (classes >= 0).all())
    return (
        array.dtype.kind == "f" and whole and bool((rest >= 0).all() and (rest <= 1).all() and (rest[:, 2:] > 0).all())
    )


def _in_picture(value: Value) -> bool:
    """Whether all rows are left, top, right and bottom of a box in a picture of the sample, in pixels."""
    array = value.numbers
    if not value.context.pictures or len(array) > MAX_BOXES:
        return False
    width, height = value.context.pictures[0].size
    boxes = array.astype(np.float64)
    inside = (boxes >= 0).all() and (boxes[:, [0, 2]] <= width).all() and (boxes[:, [1, 3]] <= height).all()
    return bool(inside and (boxes[:, 2:] > boxes[:, :2]).all() and boxes.max() > NORMALIZED)
