"""A dataset for the tests of the explorer: one sample of each kind of data that has a drawing of its own."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

SIDE = 128
Y, X = np.mgrid[:SIDE, :SIDE]
DISC = np.hypot(X - 50, Y - 60) < 26
BAR = (np.abs(X - 98) < 10) & (np.abs(Y - 70) < 40)


def picture() -> np.ndarray:
    """A disc and a bar before a gradient."""
    image = np.stack([40 + X, 60 + Y // 2, 120 - X // 3], axis=2).astype(np.uint8)
    image[DISC], image[BAR] = (230, 160, 60), (90, 200, 190)
    return image


def surface(count: int = 4000) -> np.ndarray:
    """Points on a ring in space."""
    random = np.random.default_rng(0)
    around, along = random.uniform(0, 2 * np.pi, (2, count))
    radius = 3 + np.cos(around)
    return np.stack([radius * np.cos(along), radius * np.sin(along), np.sin(around)], axis=1).astype(np.float32)


def tomogram() -> np.ndarray:
    """Air, tissue and bone in Hounsfield units."""
    z, y, x = np.mgrid[:40, :96, :96]
    far = np.sqrt((x - 48) ** 2 + (y - 48) ** 2 + (2 * z - 40) ** 2)
    scan = np.where(far < 40, 40 + 30 * np.sin(x / 5), -1000)
    return np.where((far > 34) & (far < 40), 900, scan).astype(np.int16)


def file_of(image: np.ndarray) -> bytes:
    """An encoded picture."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG")
    return file.getvalue()


class Words:
    """A tokenizer."""

    words = ("the", "loader", "reads", "samples", "while", "a", "cell", "of", "your", "notebook", "is", "busy")

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.words[number % len(self.words)] for number in ids)


class EveryKind:
    """One sample of each kind."""

    tokenizer = Words()

    def __init__(self) -> None:
        time = np.linspace(0, 12, 400)
        image = picture()
        ring = np.arange(12)
        flow = np.stack([(Y - 64) / 8, (64 - X) / 8]).astype(np.float32)
        boxes = [[24, 34, 76, 86], [88, 30, 108, 110]]
        objects = [
            {"bbox": [24, 34, 52, 52], "category": "disc", "segmentation": [[24, 60, 50, 34, 76, 60, 50, 86]]},
            {"bbox": [88, 30, 20, 80], "category": "bar", "keypoints": [98, 34, 2, 98, 70, 2, 98, 106, 2]},
        ]
        self.samples: list[Any] = [
            (image, DISC + 2 * BAR.astype(np.int64)),
            (image, {"masks": np.stack([DISC, BAR]).astype(np.uint8), "boxes": np.array(boxes)}),
            (image, objects),
            {"image": image, "keypoints": np.array([[50, 34], [50, 86], [24, 60], [76, 60]]), "flow": flow},
            (np.stack([np.sin(time * 40), np.cos(time)]).astype(np.float32), 16_000, "a word"),
            np.stack([np.sin(time * at) for at in range(1, 6)], axis=1),
            {"points": surface()},
            {"edge_index": np.stack([np.concatenate([ring, ring[:6]]), np.concatenate([(ring + 1) % 12, ring[6:]])]),
             "x": np.eye(4)[ring % 4]},
            {"scan": tomogram()},
            np.stack([np.roll(image, 3 * at, axis=1) for at in range(24)]),
            {"input_ids": np.arange(40), "labels": np.where(np.arange(40) < 20, -100, np.arange(40))},
            {"jpg": file_of(image), "cls": b"3"},
            {"pulse": np.sin(time * 3) ** 9},
        ]  # fmt: skip

    def __len__(self) -> int:
        return len(self.samples) + 1

    def __getitem__(self, index: int) -> Any:
        if index == len(self.samples):
            return Raising(x=1)
        return self.samples[index]


class Raising(dict):
    """A mapping whose values cannot be read."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError("gone")
