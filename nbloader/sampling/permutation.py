"""A random permutation of n indices that is computed, not stored.

A shuffled list of a hundred million indices takes gigabytes before the first batch (pytorch #50689). A permutation that
is computed by index takes no memory: index i is encrypted by a small block cipher (a Feistel network over 2k bits,
which is a permutation for every key), repeatedly until the result is below n (cycle walking).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nbloader._util.rng import mix

ROUNDS = 6
"""Rounds of the Feistel network."""
BLOCK = 4096
"""Indices computed at a time while iterating."""


class Permutation:
    """A pseudo-random permutation of 0 ... n - 1.

    Args:
        n: Number of integers, at least 1.
        seed: Selects the permutation.

    Raises:
        ValueError: `n` is less than 1.
    """

    def __init__(self, n: int, seed: int) -> None:
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        self._n = n
        self._half = np.uint64(max(1, -(-(n - 1).bit_length() // 2)))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = [np.uint64(mix(seed, number)) for number in range(ROUNDS)]

    def __len__(self) -> int:
        """Number of integers."""
        return self._n

    def __getitem__(self, positions: Any) -> Any:
        """The integers at these positions.

        Args:
            positions: An array of integers below n, any shape.

        Returns:
            An int64 array of the same shape.
        """
        values = self._encrypt(np.asarray(positions, np.uint64))
        while True:
            outside = values >= self._n
            if not outside.any():
                return values.astype(np.int64)
            values[outside] = self._encrypt(values[outside])

    def position(self, value: int) -> int:
        """Where an integer below n is: `self[self.position(value)] == value`. Nothing else is computed.

        Args:
            value: The integer.
        """
        found = np.array([value], np.uint64)
        while True:
            found = self._decrypt(found)
            if found[0] < self._n:
                return int(found[0])

    def __iter__(self) -> Iterator[int]:
        """All integers, as Python ints."""
        return self.iterate_from(0)

    def iterate_from(self, position: int) -> Iterator[int]:
        """The integers after the first `position`, as Python ints."""
        for block in self.blocks_from(position):
            yield from block.tolist()

    def blocks_from(self, position: int) -> Iterator[Any]:
        """The integers after the first `position`, as int64 arrays of at most `BLOCK`."""
        for start in range(position, self._n, BLOCK):
            yield self[np.arange(start, min(start + BLOCK, self._n))]

    def _encrypt(self, values: Any) -> Any:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ self._scrambled(right, key)
        return (left << self._half) | right

    def _decrypt(self, values: Any) -> Any:
        left, right = values >> self._half, values & self._mask
        for key in reversed(self._keys):
            left, right = right ^ self._scrambled(left, key), left
        return (left << self._half) | right

    def _scrambled(self, values: Any, key: Any) -> Any:
        """The function of a round."""
        z = (values ^ key) * np.uint64(0x9E3779B97F4A7C15)
        z ^= z >> np.uint64(29)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(32)
        return z & self._mask
