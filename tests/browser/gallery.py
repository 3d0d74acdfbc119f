"""Samples for the tests of the explorer: pictures that are drawn, with labels, boxes, and some that fail."""

from __future__ import annotations

import time
from typing import Any

import numpy as np


class Shapes:
    """Pictures of a disc or a square; one sample raises, one hangs, one has markup in its text.

    Args:
        length: Samples.
        raise_at: Index of the sample that raises.
        hang_at: Index of the sample that hangs.
    """

    classes = ("disc", "square")

    def __init__(self, length: int, raise_at: int = -1, hang_at: int = -1) -> None:
        self.length, self.raise_at, self.hang_at = length, raise_at, hang_at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.raise_at:
            raise OSError(2, "truncated file", f"/data/{index}.jpg")
        if index == self.hang_at:
            time.sleep(3600)
        y, x = np.mgrid[:96, :128]
        label = index % 2
        center_x, center_y, radius = 40 + 7 * (index % 8), 30 + 5 * (index % 7), 18 + index % 9
        distance = (
            np.hypot(x - center_x, y - center_y) if label == 0 else np.maximum(abs(x - center_x), abs(y - center_y))
        )
        inside = distance < radius
        image = np.stack([x * 2, y * 2, np.full_like(x, index * 23 % 256)], axis=2).astype(np.uint8)
        image[inside] = (250, 200 - index % 100, 60)
        brightness = np.random.uniform(0.3, 1.0)
        box = [center_x - radius, center_y - radius, center_x + radius, center_y + radius]
        return {
            "image": (image * brightness).astype(np.uint8),
            "label": label,
            "mask": inside.astype(np.int64),
            "boxes": np.array([box], np.float32),
            "text": f"<script>window.hacked = 1</script> shape {index}",
            "wave": np.sin(np.arange(400) / (3 + index % 20)).astype(np.float32),
            "meta": {"night": bool(index % 3), "exposure": 1 / (1 + index)},
        }
