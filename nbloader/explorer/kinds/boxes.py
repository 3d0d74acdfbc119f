"""Bounding boxes of objects in a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import clean
from nbloader.explorer.field import SUMMARY, Field
from nbloader.explorer.kinds.base import Drawn, Kind, Value
from nbloader.explorer.pictures import LABEL_COLORS, Pixels

MAX_BOXES = 1000
"""Maximum number of boxes that are drawn."""


class Boxes(Kind):
    """Boxes over the first picture of the sample."""

    name = "boxes"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the name says so, and the array has rows of four numbers."""
        array = value.numbers
        return "box" in value.name and array.ndim == 2 and array.shape[1] == 4

    def describe(self) -> None:
        """Count the boxes."""
        count = len(self.value.numbers)
        self.field.summary = f"{count:,} {'box' if count == 1 else 'boxes'}"

    def belongs_to(self, picture: Field) -> bool:  # noqa: ARG002 - to the first picture
        """Return that any picture will do."""
        return True

    def draw_over(self, pixels: Pixels, picture: Field) -> Drawn:
        """Draw the outlines of the boxes over the picture."""
        width, height = picture.size or pixels.shape[1::-1]
        corners, how = _corners(self.value.content, self.value.numbers, self.value.path, (width, height))
        scale = np.array([pixels.shape[1] / width, pixels.shape[0] / height] * 2)
        return Drawn(boxes_over(pixels, corners * scale), how)


def boxes_over(image: Pixels, corners: NDArray[np.float64]) -> Pixels:
    """Draw outlines of boxes over a picture.

    Args:
        image: The picture, which is modified.
        corners: Left, top, right and bottom of each box, in pixels of `image`.
    """
    height, width = image.shape[:2]
    thick = max(1, round(max(height, width) / 200))
    for at, box in enumerate(corners):
        left, right = (int(np.clip(x, 0, width - 1)) for x in (box[0], box[2]))
        top, bottom = (int(np.clip(y, 0, height - 1)) for y in (box[1], box[3]))
        color = LABEL_COLORS[1 + at % (len(LABEL_COLORS) - 1)]
        image[top : top + thick, left : right + 1] = color
        image[max(0, bottom - thick + 1) : bottom + 1, left : right + 1] = color
        image[top : bottom + 1, left : left + thick] = color
        image[top : bottom + 1, max(0, right - thick + 1) : right + 1] = color
    return image


def _corners(value: Any, boxes: NDArray[Any], path: str, size: tuple[int, int]) -> tuple[NDArray[np.float64], str]:
    """Return boxes as left, top, right, bottom in pixels of the picture, and a phrase that names the assumed format.

    torchvision's boxes state their format. For others, the name of the field may state it ("boxes_xywh", COCO's
    "bbox"); otherwise the second pair is the opposite corner if it is to the right of and below the first in every box.
    """
    corners = np.nan_to_num(boxes[:MAX_BOXES].astype(np.float64))
    stated = clean(getattr(getattr(value, "format", None), "value", "") or "", SUMMARY).lower()
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
    if corners.size and corners.max() <= 1.5:  # normalized coordinates: fractions of width and height
        corners *= np.array([*size, *size], np.float64)
        stated += ", as fractions of the size"
    return corners, f"read as {stated}"
