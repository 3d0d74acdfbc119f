"""What is requested of a sample, and the limits of what is then described."""

from __future__ import annotations

from typing import NamedTuple

CARD_SIDE, FULL_SIDE = 192, 1024
"""Maximum width and height of a picture, in pixels."""
CARD_POINTS, FULL_POINTS = 96, 600
"""Maximum number of sections into which the envelope of a signal is divided."""
CARD_TEXT, SCAN_TEXT, FULL_TEXT = 240, 2_000, 20_000
"""Maximum lengths of strings, in characters: those of a scan can be searched. See also `SUMMARY`."""


class View(NamedTuple):
    """How a sample is to be described."""

    full: bool = False
    scan: bool = False
    """Collect only facts, from all elements, without drawing anything."""
    choices: tuple[tuple[str, int], ...] = ()
    """What the user chose to see of a field, by path: of a volume, the index of a slice."""

    @property
    def side(self) -> int:
        """Maximum width and height of a picture, in pixels."""
        return FULL_SIDE if self.full else CARD_SIDE

    @property
    def points(self) -> int:
        """Maximum number of sections of an envelope."""
        return FULL_POINTS if self.full else CARD_POINTS

    @property
    def characters(self) -> int:
        """Maximum length of a string."""
        return FULL_TEXT if self.full else SCAN_TEXT if self.scan else CARD_TEXT
