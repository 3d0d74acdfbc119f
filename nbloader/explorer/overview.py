"""Finds what looks like a picture in a sample, before its values are described one by one.

A grid of whole numbers beside a picture of the same size is a mask, whatever its name: kinds ask for these pictures.
Only shapes are looked at: no value is converted or copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nbloader.explorer.pictures import CHANNELS, layout_of

MAX_PARTS = 40
"""Maximum number of parts of a container that are looked at."""
MAX_DEPTH = 3


class PictureIn(NamedTuple):
    """A value of the sample with the shape of a picture."""

    path: str
    size: tuple[int, int]
    """Width and height in pixels."""
    channels: int


def pictures_in(sample: Any) -> tuple[PictureIn, ...]:
    """Return what looks like a picture in a sample: images of Pillow, and arrays with rows, columns and channels."""
    return tuple(_pictures("", sample, 0))


def _pictures(path: str, value: Any, depth: int) -> Iterator[PictureIn]:
    bands = getattr(value, "getbands", None)
    if callable(bands):
        yield PictureIn(path, tuple(value.size), len(bands()))
        return
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and all(isinstance(length, int) for length in shape):
        layout = layout_of(tuple(shape))
        if layout is not None:
            height, width = shape[1:] if layout == "CHW" else shape[:2]
            channels = {"HW": 1, "CHW": shape[0], "HWC": shape[-1]}[layout]
            yield PictureIn(path, (int(width), int(height)), int(channels) if channels in CHANNELS else 1)
        return
    if depth < MAX_DEPTH:
        for name, part in _parts(value):
            yield from _pictures(f"{path}.{name}" if path else name, part, depth + 1)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(name), value[name]) for name in list(value)[:MAX_PARTS]]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=False))[:MAX_PARTS]
    if isinstance(value, (list, tuple)):
        return [(str(at), part) for at, part in enumerate(value[:MAX_PARTS])]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)[:MAX_PARTS]]
    return []
