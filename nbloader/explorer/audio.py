"""Finds sounds in samples, and encodes them for the browser."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader.explorer.values import as_array

RATE_NAMES = ("sampling_rate", "sample_rate", "rate")


def sound_of(value: Mapping[Any, Any]) -> tuple[NDArray[Any], int] | None:
    """Return the waveform and sampling rate of a mapping that holds a sound, as in Hugging Face datasets; else None."""
    rate = next((value[name] for name in RATE_NAMES if name in value), None)
    waves = next((value[name] for name in ("array", "waveform", "audio", "wave", "samples") if name in value), None)
    if rate is None or waves is None:
        return None
    array, stated = as_array(waves), as_array(rate) if not isinstance(rate, int) else np.asarray(rate)
    if array is None or stated is None or stated.size != 1 or array.ndim not in (1, 2) or array.dtype.kind not in "iuf":
        return None
    sampling_rate = int(stated.reshape(-1)[0])
    return (array, sampling_rate) if sampling_rate > 0 and array.size else None


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
