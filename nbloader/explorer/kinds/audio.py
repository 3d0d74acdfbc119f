"""Sounds: a waveform and its sampling rate, in one mapping as in Hugging Face datasets, or beside each other."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import number
from nbloader.explorer.field import shape_text
from nbloader.explorer.kinds.base import NO_NUMBERS, Cover, Kind, Value
from nbloader.explorer.texts import joined
from nbloader.explorer.values import as_array, envelope

RATE_NAMES = ("sampling_rate", "sample_rate", "rate", "sr", "fs")
WAVE_NAMES = ("array", "waveform", "audio", "wave", "samples", "speech", "input_values")
OTHER_NAMES = ("path", "bytes", "file", "filename", "name", "id")
"""Other names in a mapping that is one sound. With more than these it is a sample, of which a sound is a part."""
USUAL_RATES = (4_000, 8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 192_000)
"""Numbers that are a rate if they follow a waveform in a tuple, as in torchaudio's datasets."""
LEAST = 128
"""Minimum length of a waveform in a tuple."""
MAX_RATE = 10_000_000
DEFAULT_RATE = 16_000
"""The rate of a waveform that the user calls a sound, if none is beside it."""
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
    def of(cls, value: Value) -> Sound | None:
        """Return the sound that a value is: a mapping, or a waveform beside its rate; None if it is none."""
        content = value.content
        if isinstance(content, Mapping):
            return _in_mapping(content)
        beside = value.neighbors
        if value.name in WAVE_NAMES:
            return _sound(content, next((beside[name] for name in RATE_NAMES if name in beside), None))
        shape = getattr(content, "shape", None)
        if not (value.name.isdecimal() and isinstance(shape, tuple) and len(shape) in (1, 2) and max(shape) >= LEAST):
            return None
        rate = beside.get(str(int(value.name) + 1))
        return _sound(content, rate) if isinstance(rate, int) and rate in USUAL_RATES else None

    @property
    def channel(self) -> NDArray[Any]:
        """The first channel."""
        if self.waves.ndim == 1:
            return self.waves
        return self.waves[0] if self.waves.shape[0] <= MAX_CHANNELS else self.waves[:, 0]


def _in_mapping(content: Mapping[Any, Any]) -> Sound | None:
    if not all(name in (*RATE_NAMES, *WAVE_NAMES, *OTHER_NAMES) for name in content):
        return None
    rate = next((content[name] for name in RATE_NAMES if name in content), None)
    return _sound(next((content[name] for name in WAVE_NAMES if name in content), None), rate)


def _sound(waves: Any, rate: Any) -> Sound | None:
    if waves is None or rate is None:
        return None
    array, stated = as_array(waves), as_array(rate) if not isinstance(rate, (int, float)) else np.asarray(rate)
    if array is None or stated is None or stated.size != 1 or stated.dtype.kind not in "iuf":
        return None
    if array.ndim not in (1, 2) or array.dtype.kind not in "iuf" or not array.size:
        return None
    stated_rate = float(stated.reshape(-1)[0])
    return Sound(array, int(stated_rate)) if 1 <= stated_rate <= MAX_RATE else None


class Audio(Kind):
    """A sound that can be played."""

    name = "audio"
    compared_as = "signal"
    varies = True

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        waves = value.numbers if _is_wave(value.numbers) else NO_NUMBERS
        self._sound = Sound.of(value) or Sound(waves, DEFAULT_RATE)

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is a mapping with a waveform and a sampling rate, or a waveform beside its rate."""
        return Sound.of(value) is not None

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether the value is a sound, or an array of one or two axes."""
        return Sound.of(value) is not None or _is_wave(value.numbers)

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
            assumed = "" if Sound.of(self.value) else f"a rate of {rate:,} Hz is assumed"
            field.note = joined(assumed, f"the first {SECONDS} s can be played" if seconds > SECONDS else "")

    def cover(self) -> Cover:
        """Return that a wave is second to a picture."""
        return Cover.WAVE if self.field.drawn else Cover.OTHER


def _is_wave(array: NDArray[Any]) -> bool:
    return array.ndim in (1, 2) and array.dtype.kind in "iuf" and array.size > 0


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
