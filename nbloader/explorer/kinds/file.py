"""Paths of files with a picture, a sound or a video, which are read."""

from __future__ import annotations

import os
from pathlib import Path

from nbloader._util.format import clean
from nbloader.explorer import pictures
from nbloader.explorer.encoded import HEAD, decoded, format_of
from nbloader.explorer.field import SUMMARY
from nbloader.explorer.kinds.base import Cover, Kind, Value
from nbloader.explorer.kinds.media import LARGEST, play
from nbloader.explorer.texts import printable
from nbloader.explorer.values import as_array

SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".wav", ".mp3", ".flac", ".ogg", ".mp4", ".webm",
)  # fmt: skip
LONGEST = 1024
"""Maximum length of a path, in characters."""
LARGEST_PICTURE = 64 << 20
"""Maximum size of a picture that is read, in bytes."""


class File(Kind):
    """The path, and what the file holds."""

    name = "file"
    caption = 2
    compared_as = "text"
    is_canvas = True

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is the path of a file that exists, with the ending of a picture, sound or video."""
        return _path(value) is not None

    def describe(self) -> None:
        """Read the file; a scan does not."""
        field, view, path = self.field, self.context.view, _path(self.value)
        text = os.fspath(self.value.content)
        field.summary, field.text = clean(text, SUMMARY), printable(text)
        if view.scan or path is None:
            return
        size = path.stat().st_size
        with path.open("rb") as file:
            found = format_of(file.read(HEAD))
            file.seek(0)
            if found is None or size > (LARGEST_PICTURE if found.family == "picture" else LARGEST):
                field.note = "not read: its format is not known" if found is None else f"not read: {size:,} bytes"
                return
            data = file.read()
        field.nbytes = size
        if found.family != "picture":
            play(self, data)
            return
        content, field.note = decoded(data)
        array = None if content is data else as_array(content.convert("RGB"))
        if array is not None and self.context.draws_picture:
            self._pixels = array
            self.context.show(field, pictures.picture_of(array, "HWC", view.side))
            field.note = f"read from the file of {size:,} bytes"

    def canvas(self) -> pictures.Pixels | None:
        """Return the picture as it is shown; None if it was not read."""
        if self.field.picture < 0:
            return None
        return pictures.to_rgb(self._pixels, "HWC", self.context.view.side)

    def cover(self) -> Cover:
        """Return that a picture represents the sample best, and that a path is a text."""
        return Cover.PICTURE if self.field.picture >= 0 else Cover.TEXT


def _path(value: Value) -> Path | None:
    content = value.content
    if not isinstance(content, (str, Path)):
        return None
    text = os.fspath(content)
    if len(text) > LONGEST or not text.lower().endswith(SUFFIXES) or "\0" in text:
        return None
    for path in (Path(text), Path(value.context.root, text)):
        try:
            if path.is_file():
                return path
        except OSError:  # a name that is too long for the file system
            return None
    return None
