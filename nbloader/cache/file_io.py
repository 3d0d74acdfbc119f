"""Reads and writes lists of buffers at a position of a file."""

from __future__ import annotations

import os
from typing import Any

IOV = 512
"""Maximum number of buffers per system call."""


def read_into(fd: int, buffers: list[Any], offset: int, size: int) -> bool:
    """Read bytes into buffers. Return False if the file has fewer bytes, or the total size of the buffers differs."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    if sum(view.nbytes for view in views) != size:
        return False
    while views:
        got = os.preadv(fd, views[:IOV], offset)
        if not got:
            return False
        offset += got
        _advance(views, got)
    return True


def write_all(fd: int, parts: list[Any], offset: int) -> None:
    """Write buffers one after the other."""
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    while views:
        written = os.pwritev(fd, views[:IOV], offset)
        offset += written
        _advance(views, written)


def _advance(views: list[memoryview], count: int) -> None:
    """Remove the first bytes of a list of buffers."""
    done = 0
    while done < len(views) and count >= views[done].nbytes:
        count -= views[done].nbytes
        done += 1
    del views[:done]
    if count:
        views[0] = views[0][count:]
