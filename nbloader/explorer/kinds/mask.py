"""Masks: labels of the pixels of a picture, or one layer of pixels for each object."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import plural
from nbloader._util.png import png
from nbloader.explorer import pictures
from nbloader.explorer.field import Field
from nbloader.explorer.kinds.base import NO_NUMBERS, Drawn, Kind, Value
from nbloader.explorer.pictures import LABEL_COLORS, Picture, Pixels
from nbloader.explorer.values import CARD_ELEMENTS, thinned

NAMES = ("mask", "seg", "annotation", "label")
"""Words in the names of fields that may be masks."""
OTHER_NAMES = ("depth", "disparity", "height", "alpha", "gray", "grey", "edge", "noise", "flow")
"""Words in the names of fields that are no masks unless the user says so, even beside a picture of the same size."""
MAX_LABELS = 256
"""Maximum number of distinct values of a mask."""
FEW_LABELS = 64
"""Maximum number of distinct values of a mask whose name does not say what it is: a photograph has more."""
MAX_LAYERS = 256
"""Maximum number of objects with a layer of their own."""
MAP_MODES = ("1", "L", "P", "I", "I;16")
"""Modes of Pillow's images with one number for each pixel."""


class Mask(Kind):
    """A mask: in colors, and over the picture of the same size."""

    name = "mask"

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self._grid = _grid(value)

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the array has few distinct whole numbers, and a name or a picture of the same size."""
        grid = _grid(value)
        if grid.ndim not in (2, 3) or value.named(OTHER_NAMES):
            return False
        size, named = (grid.shape[-1], grid.shape[-2]), value.named(NAMES)
        if grid.ndim == 3:  # a layer for each object
            if not named and not value.beside_picture(size):
                return False
            layered = named or grid.dtype.kind == "b" or is_one_hot(grid)
            return layered and is_binary(grid) and (_has_layers_first(value) or not _is_plain_picture(grid))
        if named and not value.is_pil:
            return is_mask(grid) or (grid.dtype.kind == "f" and is_binary(grid))
        if not (named or value.beside_picture(size, other=NAMES)):
            return False
        if grid.dtype.kind == "f":
            return value.beside_picture(size, channels=3) and is_binary(grid)
        return is_mask(grid, MAX_LABELS if _is_palette(value) else FEW_LABELS)

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether the array has rows and columns of whole numbers, or layers of two distinct numbers."""
        grid = _grid(value)
        return is_mask(grid) if grid.ndim == 2 else grid.ndim == 3 and is_binary(grid)

    @property
    def array(self) -> NDArray[Any]:
        """The labels or the layers, with the axes that they have in the sample."""
        return self._grid if self.value.is_pil else self.value.numbers

    def describe(self) -> None:
        """Draw the labels in colors."""
        grid, side = self._grid, self.context.view.side
        self.field.summary = self.value.shape_and_type
        if grid.ndim == 3:
            self.field.summary = plural(len(grid), "object")
        elif not self.context.view.scan:
            self.field.summary = f"mask, {_count_labels(grid)}"
        height, width = grid.shape[-2:]
        self.field.size = (width, height)
        if self.context.draws_picture:
            labels = _small(grid, side)
            shown = plural(len(grid), "object") if grid.ndim > 2 else _count_labels(grid)
            picture = Picture(png(colored_labels(labels)), width, height, f"{shown} in color; 0 is black")
            self.context.show(self.field, picture)

    def belongs_to(self, picture: Field) -> bool:
        """Return whether the picture has the same size."""
        return picture.size == self.field.size

    def draw_over(self, pixels: Pixels, picture: Field) -> Drawn:  # noqa: ARG002 - both have the same size
        """Draw the labels as colors over the picture."""
        return Drawn(mask_over(pixels, _small(self._grid, max(pixels.shape[:2]))))


def _grid(value: Value) -> NDArray[Any]:
    """Return the array of labels, without an axis of a single channel; an array without axes if there is none.

    Layers of objects are along the first axis, wherever they are in the sample.
    """
    if value.is_pil:
        mode = getattr(value.content, "mode", "")
        return np.asarray(value.content) if mode in MAP_MODES else NO_NUMBERS
    array = value.numbers
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    elif array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    elif array.ndim == 3 and not _has_layers_first(value):
        array = np.moveaxis(array, 2, 0)
    usable = array.ndim in (2, 3) and array.dtype.kind in "biuf" and min(array.shape[-2:]) >= pictures.MIN_SIDE
    return array if usable and (array.ndim == 2 or len(array) <= MAX_LAYERS) else NO_NUMBERS


def _has_layers_first(value: Value) -> bool:
    """Whether the layers of an array with three axes are along the first one, and not along the last one.

    A picture of the same height and width decides. Without one, layers are last if the last axis is much shorter.
    """
    first, middle, last = value.numbers.shape
    if value.beside_picture((last, middle)):
        return True
    return not value.beside_picture((middle, first)) and pictures.slice_axis((first, middle, last)) == 0


def _is_plain_picture(layers: NDArray[Any]) -> bool:
    """Whether layers that are along the last axis may be channels: bytes that are 0 and 255, or equal ones."""
    small = thinned(layers, CARD_ELEMENTS)
    if not small.any():
        return False
    equal = len(layers) in pictures.CHANNELS and all(np.array_equal(layers[0], layer) for layer in layers[1:])
    return equal or bool(layers.dtype.kind != "b" and small.max() > 1)


def _is_palette(value: Value) -> bool:
    return getattr(value.content, "mode", "") == "P"


def _count_labels(grid: NDArray[Any]) -> str:
    return plural(len(np.unique(grid)), "label")


def is_mask(array: NDArray[Any], limit: int = MAX_LABELS) -> bool:
    """Whether a two-dimensional array has few distinct whole numbers, like labels."""
    if array.dtype.kind not in "biu":
        return False
    return len(np.unique(thinned(array, CARD_ELEMENTS))) <= limit


def is_binary(array: NDArray[Any]) -> bool:
    """Whether an array has no numbers but 0 and 1, or bytes that are 0 and 255."""
    if array.dtype.kind == "b":
        return True
    found = np.unique(thinned(array, CARD_ELEMENTS))
    return bool(np.isin(found, (0, 1)).all() or (array.dtype == np.uint8 and np.isin(found, (0, 255)).all()))


def is_one_hot(layers: NDArray[Any]) -> bool:
    """Whether each pixel is in exactly one layer, and at least two layers have pixels."""
    step = max(1, layers.size // CARD_ELEMENTS)
    columns = layers.reshape(len(layers), -1)[:, ::step] != 0
    return bool((columns.sum(axis=0) == 1).all() and columns.any(axis=1).sum() > 1)


def _small(grid: NDArray[Any], side: int) -> NDArray[Any]:
    """Return labels of at most `side` by `side` pixels: of layers, the number of the last one that has the pixel."""
    factor = max(1, -(-max(grid.shape[-2:]) // side))
    small = grid[..., ::factor, ::factor]
    if small.ndim == 2:
        return small
    labels = np.zeros(small.shape[1:], np.int64)
    for at, layer in enumerate(small, start=1):
        labels[layer != 0] = at
    return labels


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
