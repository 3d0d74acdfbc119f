"""Encoded pictures, sounds and videos: recognized by their first bytes, and decoded where Python can.

Datasets that do not decode (WebDataset, LMDB, Hugging Face with `decode=False`) have samples of bytes.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from nbloader._util.format import clean
from nbloader.explorer.values import as_array

HEAD = 32
"""Number of bytes from which the format is recognized."""
Family: TypeAlias = Literal["picture", "sound", "video"]


class Format(NamedTuple):
    """A format of files."""

    name: str
    mime: str
    family: Family


_STARTS = (
    (b"\xff\xd8\xff", Format("JPEG", "image/jpeg", "picture")),
    (b"\x89PNG\r\n\x1a\n", Format("PNG", "image/png", "picture")),
    (b"GIF8", Format("GIF", "image/gif", "picture")),
    (b"II*\0", Format("TIFF", "image/tiff", "picture")),
    (b"MM\0*", Format("TIFF", "image/tiff", "picture")),
    (b"ID3", Format("MP3", "audio/mpeg", "sound")),
    (b"fLaC", Format("FLAC", "audio/flac", "sound")),
    (b"OggS", Format("Ogg", "audio/ogg", "sound")),
    (b"\x1aE\xdf\xa3", Format("WebM", "video/webm", "video")),
)


def format_of(head: bytes) -> Format | None:
    """Return the format of a file that begins with these bytes; None if it is no picture, sound or video."""
    if head[:4] == b"RIFF":
        if head[8:12] == b"WEBP":
            return Format("WebP", "image/webp", "picture")
        return Format("WAV", "audio/wav", "sound") if head[8:12] == b"WAVE" else None
    if head[4:8] == b"ftyp":
        return Format("MP4", "video/mp4", "video")
    return next((found for start, found in _STARTS if head.startswith(start)), None)


def bytes_in(value: Any) -> bytes | None:
    """Return the bytes of a file that a value holds; None if it holds none.

    Args:
        value: Bytes, an array of bytes with one axis, or Hugging Face's mapping of "bytes" and "path".
    """
    if isinstance(value, Mapping) and set(value) == {"bytes", "path"}:
        value = value["bytes"]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if type(value).__name__ not in ("ndarray", "Tensor") or getattr(value, "ndim", 0) != 1:
        return None
    if str(value.dtype).removeprefix("torch.") != "uint8":
        return None
    array = as_array(value)
    return None if array is None or format_of(array[:HEAD].tobytes()) is None else array.tobytes()


class Decoded(NamedTuple):
    """A value after its bytes were decoded, or as it is."""

    value: Any
    note: str


def decoded(value: Any) -> Decoded:
    """Decode a picture or a WAV file. What is none, or cannot be decoded, is returned as it is; a note says why."""
    data = bytes_in(value)
    found = None if data is None else format_of(data[:HEAD])
    if data is None or found is None or not (found.family == "picture" or found.name == "WAV"):
        return Decoded(value, "")
    try:
        content = _picture(data) if found.family == "picture" else _sound(data)
    except ModuleNotFoundError:
        return Decoded(value, f"{found.name}, which Pillow would decode: it is not installed")
    except Exception as error:  # noqa: BLE001 - a decoder may raise anything for a broken file
        return Decoded(data, f"cannot be decoded as {found.name}: {clean(f'{type(error).__name__}: {error}')}")
    return Decoded(content, f"decoded from {len(data):,} bytes of {found.name}")


def _picture(data: bytes) -> Any:
    from PIL import Image

    picture = Image.open(io.BytesIO(data))
    picture.load()
    return picture


def _sound(data: bytes) -> dict[str, Any]:
    """Decode a WAV file of whole numbers.

    Raises:
        wave.Error: It has another encoding.
    """
    with wave.open(io.BytesIO(data)) as file:
        width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
        frames = file.readframes(file.getnframes())
    kind = {1: "u1", 2: "<i2", 4: "<i4"}.get(width)
    if kind is None:
        raise wave.Error(f"samples of {width} bytes")
    samples = np.frombuffer(frames, np.dtype(kind)).reshape(-1, channels).T
    if width == 1:
        samples = samples.astype(np.int16) - 128
    return {"array": np.ascontiguousarray(samples), "sampling_rate": rate}
