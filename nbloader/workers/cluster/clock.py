"""The clock of another machine, mapped to that of this process. Pure."""

from __future__ import annotations

DRIFT = 100e-6
"""The most by which two clocks drift apart, in seconds per second: quartz clocks stay within half of that."""


class ClockOffset:
    """The offset of another clock: its reading minus that of this process at the same moment.

    A call gives bounds: it was sent before it was received there, and its reply was sent there before it was received
    here. The bounds of all calls hold together, if older ones are widened by what the clocks may have drifted since.
    """

    def __init__(self) -> None:
        self._low = 0.0
        self._high = 0.0
        self._at: int | None = None

    def observe(self, sent: int, received_there: int, sent_there: int, received: int) -> None:
        """Learn from a call. All times in ns.

        Args:
            sent: When it was made, by this clock.
            received_there: When it was received, by the other clock.
            sent_there: When its result was sent, by the other clock.
            received: When that was received, by this clock.
        """
        low, high = sent_there - received, received_there - sent + DRIFT * (received - sent)
        if self._at is not None:
            drift = DRIFT * max(0, received - self._at)
            self._low, self._high = max(low, self._low - drift), min(high, self._high + drift)
        if self._at is None or self._low > self._high:  # the latter: a clock has jumped
            self._low, self._high = low, high
        self._at = received

    @property
    def known(self) -> bool:
        """Whether there was a call."""
        return self._at is not None

    @property
    def offset(self) -> int:
        """Ns to subtract from a reading of the other clock."""
        return round((self._low + self._high) / 2)

    @property
    def error(self) -> int:
        """The most by which `offset` may be wrong, ns."""
        return round((self._high - self._low) / 2)

    def here(self, reading: int) -> int:
        """A reading of the other clock, as a reading of this one; 0 stays 0, for "never"."""
        return reading - self.offset if reading else 0
