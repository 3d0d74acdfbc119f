"""Reads and writes lists of buffers at a position of a file."""

from __future__ import annotations

import os
from typing import Any


def read_into(fd: int, buffers: list[Any], offset: int, size: int) -> bool:
    """Read bytes into buffers. Return False if the file has fewer bytes, or the total size of the buffers differs."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    if sum(view.nbytes for view in views) != size:
        return False
    for view in views:
        left = view
        while left.nbytes:
            got = os.preadv(fd, [left], offset)
            if not got:
                return False
            offset += got
            left = left[got:]
    return True


def write_all(fd: int, parts: list[Any], offset: int) -> None:
    """Write buffers one after the other."""
    for left in [memoryview(part).cast("B") for part in parts if len(part)]:
        while left.nbytes:
            written = os.pwrite(fd, left, offset)
            offset += written
            left = left[written:]  # noqa: PLW2901 - what is left of it
