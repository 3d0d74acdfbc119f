"""Pictures that look alike: the same one in another size, with another brightness, compressed once more.

A look is a difference hash without a model: the picture in gray, shrunk to `SIDE + 1` by `SIDE` pixels; a bit says
whether a pixel is brighter than its left neighbor, compared with the median of these differences. Two pictures look
alike if few of the bits that either has set differ. Equal pixels and gradients set no bits, so pictures with such a
background are compared by what is before it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from nbloader.explorer.pictures import Pixels

SIDE = 16
"""Height of the shrunk picture in pixels, and number of comparisons in a line."""
STEP = 2.0
"""By how much a pixel must be brighter than its neighbor, of 255: noise of a plain area sets no bits."""
FEWEST = 24
"""Minimum number of bits of a picture that is compared: those with fewer show next to nothing."""
DIFFERENT = 0.12
"""Largest share of the set bits that may differ."""
BANDS = 16
"""Number of parts of a look. Pictures with an equal part are compared: up to `BANDS - 1` bits that differ are found."""
LARGEST = 400
"""Maximum number of pictures with an equal part that are compared with each other."""


def look_of(pixels: Pixels) -> str:
    """Return the look of a picture as hexadecimal digits; "" if it shows next to nothing.

    Args:
        pixels: Height, width, and three channels of bytes.
    """
    gray = pixels.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    small = _shrunk(_shrunk(gray, SIDE).T, SIDE + 1).T
    steps = small[:, 1:] - small[:, :-1]
    bits = steps - np.median(steps) > STEP
    return "" if np.count_nonzero(bits) < FEWEST else np.packbits(bits).tobytes().hex()


def _shrunk(lines: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return `count` averages of the lines of an array, each of an equal share of them."""
    edges = np.linspace(0, len(lines), count + 1)
    sums = np.concatenate([np.zeros((1, lines.shape[1])), np.cumsum(lines, axis=0)])
    below = np.minimum(edges.astype(np.int64), len(lines) - 1)
    at_edges = sums[below] + (edges - below)[:, None] * lines[below]
    shrunk: NDArray[np.float64] = np.diff(at_edges, axis=0) * (count / len(lines))
    return shrunk


def alike(looks: Mapping[int, str]) -> list[list[int]]:
    """Return groups of pictures that look alike, each in the order of the indices.

    Args:
        looks: Looks by dataset index, in the order of the indices; "" for none.
    """
    indices = [index for index, look in looks.items() if look]
    if not indices:
        return []
    codes = np.stack([np.frombuffer(bytes.fromhex(looks[index]), np.uint8) for index in indices])
    bits = np.unpackbits(codes, axis=1)
    groups = _Groups(len(indices))
    for members in _candidates(codes):
        for place, at in enumerate(members[:-1]):
            others = np.array(members[place + 1 :])
            differing = np.count_nonzero(bits[at] != bits[others], axis=1)
            either = np.count_nonzero(bits[at] | bits[others], axis=1)
            for other in others[differing <= DIFFERENT * either].tolist():
                groups.join(at, other)
    return [[indices[at] for at in group] for group in groups.listed() if len(group) > 1]


def _candidates(codes: NDArray[np.uint8]) -> Iterator[list[int]]:
    """Yield the positions of pictures with an equal part: two of them may look alike."""
    for band in np.split(codes, BANDS, axis=1):
        buckets: dict[bytes, list[int]] = collections.defaultdict(list)
        for at, part in enumerate(band):
            if part.any():
                buckets[part.tobytes()].append(at)
        yield from (members for members in buckets.values() if 1 < len(members) <= LARGEST)


class _Groups:
    """Disjoint groups of numbers, which are joined.

    Args:
        count: Number of the numbers, each of which is a group at first.
    """

    def __init__(self, count: int) -> None:
        self._leaders = list(range(count))

    def _leader(self, at: int) -> int:
        while self._leaders[at] != at:
            self._leaders[at] = self._leaders[self._leaders[at]]
            at = self._leaders[at]
        return at

    def join(self, one: int, other: int) -> None:
        """Join the groups of two numbers."""
        first, second = sorted((self._leader(one), self._leader(other)))
        self._leaders[second] = first

    def listed(self) -> list[list[int]]:
        """Return the groups."""
        groups: dict[int, list[int]] = collections.defaultdict(list)
        for at in range(len(self._leaders)):
            groups[self._leader(at)].append(at)
        return list(groups.values())
