"""Map readings of another machine's clock to the clock of this process. The code has no side effects."""

from __future__ import annotations

DRIFT = 100e-6
"""Maximum drift between two clocks, in seconds per second. Quartz clocks stay within half of that."""


class ClockOffset:
    """The offset of another clock: its reading minus the reading of this process's clock at the same moment.

    Each call gives bounds for the offset: the call was sent here before it was received there, and the reply was sent
    there before it was received here. The bounds of all calls can be combined, if older bounds are widened by the
    maximum drift since.
    """

    def __init__(self) -> None:
        self._low = 0.0
        self._high = 0.0
        self._at: int | None = None

    def observe(self, sent: int, received_there: int, sent_there: int, received: int) -> None:
        """Update the bounds with the times of a call, all in ns.

        Args:
            sent: When the call was made, by this clock.
            received_there: When the call was received, by the other clock.
            sent_there: When the result was sent, by the other clock.
            received: When the result was received, by this clock.
        """
        low, high = sent_there - received, received_there - sent + DRIFT * (received - sent)
        if self._at is not None:
            drift = DRIFT * max(0, received - self._at)
            self._low, self._high = max(low, self._low - drift), min(high, self._high + drift)
        if self._at is None or self._low > self._high:  # the bounds contradict each other if a clock has jumped
            self._low, self._high = low, high
        self._at = received

    @property
    def offset(self) -> int:
        """The offset to subtract from a reading of the other clock, ns."""
        return round((self._low + self._high) / 2)

    @property
    def error(self) -> int:
        """The maximum error of `offset`, ns."""
        return round((self._high - self._low) / 2)

    def here(self, reading: int) -> int:
        """Convert a reading of the other clock to a reading of this clock. 0 means "never" and stays 0."""
        return reading - self.offset if reading else 0
