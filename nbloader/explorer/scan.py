"""Decides which samples a scan of a dataset reads next. A state machine without I/O, threads or a clock."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

import numpy as np

AHEAD = 64
"""Maximum number of samples that are requested at a time. A pause takes effect after those that workers are reading."""


class Scan:
    """The samples that a scan has not read yet.

    Args:
        indices: Dataset indices of the samples, in order.
    """

    def __init__(self, indices: Iterable[int]) -> None:
        self._left = collections.deque(indices)
        self._reading: dict[int, None] = {}
        self._total = len(self._left)
        self._done = 0
        self.paused = False
        """Whether nothing is requested."""

    @property
    def left(self) -> int:
        """Number of samples that were not requested yet."""
        return len(self._left)

    @property
    def ended(self) -> bool:
        """Whether all were read."""
        return not (self._left or self._reading)

    def request(self) -> list[int]:
        """Return the samples to request now."""
        if self.paused or len(self._reading) > AHEAD // 2:
            return []
        chosen = [self._left.popleft() for _ in range(min(AHEAD - len(self._reading), len(self._left)))]
        self._reading.update(dict.fromkeys(chosen))
        return chosen

    def finish(self, index: int) -> None:
        """Count a sample that was read, or that could not be read."""
        if index in self._reading:
            del self._reading[index]
        elif index in self._left:  # it was being read when the scan was paused
            self._left.remove(index)
        else:
            return
        self._done += 1

    def pause(self, *, paused: bool) -> None:
        """Pause or resume. Samples that were requested but not read before a pause are requested again."""
        self.paused = paused
        if paused:
            self._left.extendleft(reversed(self._reading))
            self._reading.clear()

    def to_json(self) -> dict[str, Any]:
        """Return the progress, as JSON values."""
        return {
            "total": self._total,
            "done": self._done,
            "left": self.left,
            "reading": list(self._reading)[:8],
            "paused": self.paused,
        }


def spread(count: int, total: int) -> list[int]:
    """Return at most `count` of `total` dataset indices, which are spread evenly."""
    if count <= 0:
        return []
    found: list[int] = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64)).tolist()
    return found
