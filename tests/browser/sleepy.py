"""A dataset with one sample that hangs once: the first worker that fetches it sleeps for an hour."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np


class Sleepy:
    """Samples are their own index.

    Args:
        length: Samples.
        hang_at: Index of the sample that hangs.
        mark: A file that is created when the sample is fetched for the first time; must not exist yet.
        pace: Seconds that every other sample takes.
    """

    def __init__(self, length: int, hang_at: int, mark: Path, pace: float = 0.01) -> None:
        self.length, self.hang_at, self.mark, self.pace = length, hang_at, mark, pace

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        if index == self.hang_at and not self.mark.exists():
            self.mark.touch()
            time.sleep(3600)
        time.sleep(self.pace)
        return np.full(8, index)
