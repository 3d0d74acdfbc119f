"""Masks as lengths of runs, as COCO stores them: `{"size": [height, width], "counts": ...}`.

The pixels are counted column by column. The first run is background, and the others take turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

MAX_PIXELS = 1 << 26
"""Maximum number of pixels of a mask that is decoded."""


def is_run_lengths(content: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether an object is a mapping with the fields of such a mask."""
    return isinstance(content, Mapping) and "size" in content and "counts" in content


def decode(content: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return the mask as an array of height and width.

    Args:
        content: Its "size" is height and width. Its "counts" are the lengths, or a text with the lengths in
            pycocotools' form.

    Raises:
        ValueError: The lengths do not add up to the size, or there are too many pixels.
    """
    height, width = (int(side) for side in content["size"])
    counts = content["counts"]
    if isinstance(counts, bytes):
        counts = counts.decode("ascii")
    lengths = np.asarray(_unpacked(counts) if isinstance(counts, str) else counts, np.int64)
    if not 0 <= height * width <= MAX_PIXELS:
        raise ValueError(f"a mask of {height} x {width} pixels is too large to be drawn")
    if lengths.ndim != 1 or (lengths < 0).any() or lengths.sum() != height * width:
        raise ValueError(f"the run lengths of a mask do not add up to {height} x {width} pixels")
    flat = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    pixels: NDArray[np.bool_] = flat.reshape(width, height).T
    return pixels


def _unpacked(text: str) -> Sequence[int]:
    """Read lengths from a text: five bits in each character, the lowest first; the sixth says whether more follow.

    From the fourth length on, the number is the difference from the length before the previous one.
    """
    lengths: list[int] = []
    number = shift = 0
    for character in text:
        bits = ord(character) - 48
        number |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:  # negative
            number -= 1 << shift
        lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
        number = shift = 0
    return lengths
