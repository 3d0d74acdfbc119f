"""A random permutation of n indices that is computed instead of stored.

A shuffled list of a hundred million indices takes gigabytes before the first batch (pytorch #50689). A permutation that
is computed by index takes no memory. Index i is encrypted with a small block cipher: a Feistel network over 2k bits,
which is a permutation for every key. This is repeated until the result is below n (cycle walking).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nbloader._util.rng import mix

ROUNDS = 6
"""Rounds of the Feistel network."""
BLOCK = 4096
"""Number of indices that are computed at a time during iteration."""


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
        """Return the integers at these positions.

        Args:
            positions: An array of integers below n, of any shape.

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
        """Return the position of an integer below n: `self[self.position(value)] == value`. Computes nothing else.

        Args:
            value: The integer.
        """
        found = np.array([value], np.uint64)
        while True:
            found = self._decrypt(found)
            if found[0] < self._n:
                return int(found[0])

    def __iter__(self) -> Iterator[int]:
        """Iterate over all integers, as Python ints."""
        return self.iterate_from(0)

    def iterate_from(self, position: int) -> Iterator[int]:
        """Skip the first `position` integers and iterate over the rest, as Python ints."""
        for block in self.blocks_from(position):
            yield from block.tolist()

    def blocks_from(self, position: int) -> Iterator[Any]:
        """Skip the first `position` integers and yield the rest, as int64 arrays of at most `BLOCK` integers."""
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
        """Compute the round function of the Feistel network."""
        z = (values ^ key) * np.uint64(0x9E3779B97F4A7C15)
        z ^= z >> np.uint64(29)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(32)
        return z & self._mask
