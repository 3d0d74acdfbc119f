"""Encoded sounds and videos, which the browser decodes and plays."""

from __future__ import annotations

from nbloader.explorer.encoded import HEAD, bytes_in, format_of
from nbloader.explorer.kinds.base import Cover, Kind, Value

LARGEST = 8 << 20
"""Maximum number of bytes that are sent to the browser."""


class Media(Kind):
    """A player."""

    name = "media"
    compared_as = "signal"

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self._data = bytes_in(value.content) or b""

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value has the bytes of a sound or a video."""
        data = bytes_in(value.content)
        found = None if data is None else format_of(data[:HEAD])
        return found is not None and found.family != "picture"

    def describe(self) -> None:
        """Attach the file."""
        play(self, self._data)

    def cover(self) -> Cover:
        """Return that a sound is as good as a wave."""
        return Cover.WAVE


def play(kind: Kind, data: bytes) -> None:
    """Fill in the field of a sound or a video.

    Args:
        kind: The kind that describes it.
        data: The file.
    """
    found, field = format_of(data[:HEAD]), kind.field
    if found is None:
        return
    field.summary = field.summary or f"{found.name}, {len(data):,} bytes"
    field.nbytes = len(data)
    if not kind.context.view.full:
        return
    if len(data) > LARGEST:
        field.note = f"not played: it has more than {LARGEST >> 20} MB"
        return
    field.data |= {"file": kind.context.attach(data), "mime": found.mime, "family": found.family}
