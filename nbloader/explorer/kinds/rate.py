"""The sampling rate beside a waveform."""

from __future__ import annotations

from nbloader.explorer.kinds.audio import RATE_NAMES, WAVE_NAMES, Sound
from nbloader.explorer.kinds.base import Value
from nbloader.explorer.kinds.number import Number


class Rate(Number):
    """A sampling rate. The waveform says it, too, so a caption has it last."""

    name = "rate"
    caption = 4

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is the rate of a sound in the same container."""
        if value.number is None:
            return False
        beside = value.neighbors
        if value.name in RATE_NAMES:
            names = [name for name in WAVE_NAMES if name in beside]
        else:
            names = [str(int(value.name) - 1)] if value.name.isdecimal() else []
        return any(
            Sound.of(Value(name, beside[name], value.context, neighbors=beside, key=name)) is not None
            for name in names
            if name in beside
        )

    def describe(self) -> None:
        """Add the unit."""
        super().describe()
        self.field.summary = f"{self.field.value:,.10g} Hz"
