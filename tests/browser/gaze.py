"""A worked example: a kind of value of the explorer, here gaze points, which are drawn over the picture of the sample.

A kind consists of two modules with the same name: this one and gaze.js.

This half runs in the explorer's workers. It recognizes the values, and turns each of them into a field: short strings
and other JSON values, and a picture.

To make it a kind of nbloader itself, move both modules to nbloader/explorer/kinds and add the class to `KINDS` there.
To use it from outside, register it before the explorer is opened, as in the last line.
"""

from __future__ import annotations

import numpy as np

from nbloader.explorer.field import Field
from nbloader.explorer.kinds import Drawn, Kind, Value, register
from nbloader.explorer.pictures import Pixels

COLOR = (255, 214, 90)


class Gaze(Kind):
    """Points in the first picture of the sample, as x and y in pixels."""

    name = "gaze"

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Whether a value is of this kind: by its name, its shape, its type, or its class."""
        return "gaze" in value.name and value.numbers.ndim == 2 and value.numbers.shape[1] == 2

    def describe(self) -> None:
        """Fill in the field. Shape, type and histogram of an array are added to it afterwards."""
        points = self.value.numbers
        self.field.summary = f"{len(points)} gaze points"
        self.field.data["corners"] = [points.min(axis=0).tolist(), points.max(axis=0).tolist()]

    def belongs_to(self, picture: Field) -> bool:
        """Whether to draw it over this picture. Optional, as `draw_over()`: most kinds have a drawing of their own."""
        return picture.size is not None

    def draw_over(self, pixels: Pixels, picture: Field) -> Drawn:
        """Draw it over a picture, which may be smaller than it is in the sample."""
        height, width = pixels.shape[:2]
        scale = np.array([width, height]) / (picture.size or (width, height))
        for x, y in np.rint(self.value.numbers * scale).astype(int):
            pixels[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2] = COLOR
        return Drawn(pixels)


register(Gaze)
