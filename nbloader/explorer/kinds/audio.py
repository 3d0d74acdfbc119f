"""Sounds: a waveform and its sampling rate in one mapping, as in Hugging Face datasets."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import number
from nbloader.explorer.field import shape_text
from nbloader.explorer.kinds.base import NO_NUMBERS, Cover, Kind, Value
from nbloader.explorer.values import as_array, envelope

RATE_NAMES = ("sampling_rate", "sample_rate", "rate")
WAVE_NAMES = ("array", "waveform", "audio", "wave", "samples")
SECONDS = 60
"""Maximum length, in seconds, of the sound that is sent to the browser."""
MAX_CHANNELS = 8
"""Maximum length of the first axis of a waveform that is taken for its channels."""


class Sound(NamedTuple):
    """A waveform."""

    waves: NDArray[Any]
    """Its samples, with or without an axis for channels."""
    rate: int
    """Samples per second."""

    @classmethod
    def of(cls, value: Any) -> Sound | None:
        """Return the sound that a mapping holds; None if it holds none."""
        if not isinstance(value, Mapping):
            return None
        rate = next((value[name] for name in RATE_NAMES if name in value), None)
        waves = next((value[name] for name in WAVE_NAMES if name in value), None)
        if rate is None or waves is None:
            return None
        array, stated = as_array(waves), as_array(rate) if not isinstance(rate, int) else np.asarray(rate)
        if array is None or stated is None or stated.size != 1:
            return None
        if array.ndim not in (1, 2) or array.dtype.kind not in "iuf" or not array.size:
            return None
        sampling_rate = int(stated.reshape(-1)[0])
        return cls(array, sampling_rate) if sampling_rate > 0 else None

    @property
    def channel(self) -> NDArray[Any]:
        """The first channel."""
        if self.waves.ndim == 1:
            return self.waves
        return self.waves[0] if self.waves.shape[0] <= MAX_CHANNELS else self.waves[:, 0]


class Audio(Kind):
    """A sound that can be played."""

    name = "audio"
    compared_as = "signal"
    varies = True

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self._sound = Sound.of(value.content) or Sound(NO_NUMBERS, 1)

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is a mapping with a waveform and a sampling rate."""
        return Sound.of(value.content) is not None

    @property
    def array(self) -> NDArray[Any]:
        """The waveform."""
        return self._sound.waves

    def describe(self) -> None:
        """Draw the first channel, and attach it as a file."""
        channel, rate, field, view = self._sound.channel, self._sound.rate, self.field, self.context.view
        seconds = channel.size / rate
        field.summary = f"{number(seconds)} s at {rate:,} Hz"
        field.facts |= {"shape": shape_text(self._sound.waves.shape), "seconds": seconds, "rate": rate}
        if view.scan:
            return
        if points := envelope(channel, view.points):
            field.data["points"] = points
            field.drawn = True
        if view.full:
            field.data["sound"] = self.context.attach(wave_file(channel[: rate * SECONDS], rate))
            field.note = f"the first {SECONDS} s can be played" if seconds > SECONDS else ""

    def cover(self) -> Cover:
        """Return that a wave is second to a picture."""
        return Cover.WAVE if self.field.drawn else Cover.OTHER


def wave_file(channel: NDArray[Any], rate: int) -> bytes:
    """Encode a sound as a 16-bit WAV file."""
    if channel.dtype == np.int16:
        data = channel
    else:
        values = np.nan_to_num(channel.astype(np.float64))
        peak = float(np.abs(values).max(initial=0.0)) if channel.dtype.kind in "iu" else 1.0
        data = np.rint(np.clip(values / (peak or 1.0), -1, 1) * 32767).astype(np.int16)
    body = data.astype("<i2").tobytes()
    return b"RIFF" + struct.pack("<I", 36 + len(body)) + b"WAVEfmt " + struct.pack(
        "<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16
    ) + b"data" + struct.pack("<I", len(body)) + body  # fmt: skip
