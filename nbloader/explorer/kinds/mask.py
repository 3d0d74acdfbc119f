"""Masks: labels of the pixels of a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util.png import png
from nbloader.explorer import pictures
from nbloader.explorer.field import Field
from nbloader.explorer.kinds.base import Drawn, Kind, Value
from nbloader.explorer.pictures import LABEL_COLORS, Picture, Pixels
from nbloader.explorer.values import CARD_ELEMENTS, thinned

NAMES = ("mask", "seg", "annotation", "label")
"""Words in the names of fields that may be masks."""
MAX_LABELS = 256
"""Maximum number of distinct values of a mask."""


class Mask(Kind):
    """A mask: in colors, and over the picture of the same size."""

    name = "mask"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the name says so, and the array is a grid of few distinct whole numbers."""
        array = value.numbers
        named = any(word in value.name for word in NAMES)
        return named and not value.is_pil and pictures.layout_of(array.shape) == "HW" and is_mask(array)

    def describe(self) -> None:
        """Draw the labels in colors."""
        array = self.value.numbers
        self.field.summary = self.value.shape_and_type
        self.field.size = (array.shape[1], array.shape[0])
        if self.context.draws_picture:
            self.context.show(self.field, _picture(array, self.context.view.side))

    def belongs_to(self, picture: Field) -> bool:
        """Return whether the picture has the same size."""
        return picture.size == self.field.size

    def draw_over(self, pixels: Pixels, picture: Field) -> Drawn:  # noqa: ARG002 - both have the same size
        """Draw the labels as colors over the picture."""
        return Drawn(mask_over(pixels, self.value.numbers))


def is_mask(array: NDArray[Any]) -> bool:
    """Whether a two-dimensional array has few distinct whole numbers, like labels."""
    if array.dtype.kind not in "biu":
        return False
    return len(np.unique(thinned(array, CARD_ELEMENTS))) <= MAX_LABELS


def colored_labels(mask: NDArray[Any]) -> Pixels:
    """Return the labels of a mask as colors; 0 is black."""
    labels = mask.astype(np.int64)
    return LABEL_COLORS[np.where(labels == 0, 0, (labels - 1) % (len(LABEL_COLORS) - 1) + 1)]


def mask_over(image: Pixels, mask: NDArray[Any]) -> Pixels:
    """Draw labels as colors over a picture of the same proportions."""
    height, width = image.shape[:2]
    rows = np.arange(height) * mask.shape[0] // height
    columns = np.arange(width) * mask.shape[1] // width
    labels = mask[np.ix_(rows, columns)]
    mixed = (image.astype(np.uint16) + colored_labels(labels)) // 2
    return np.where((labels != 0)[:, :, None], mixed.astype(np.uint8), image)


def _picture(array: NDArray[Any], side: int) -> Picture:
    labels = pictures.shrink(array[:, :, None], side, average=False)[:, :, 0]
    note = f"{len(np.unique(array))} labels in color; 0 is black"
    return Picture(png(colored_labels(labels)), array.shape[1], array.shape[0], note)
