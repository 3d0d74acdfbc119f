"""A simulated disk that counts what is read from it: unit 10 compares formats with it, the same on each machine."""

from __future__ import annotations

import io
import operator
from typing import NamedTuple

PAGE = 4096
"""Bytes of a page."""
JUMP = 10.0
"""Milliseconds for finding a file, or for a read that does not begin where the one before it ended."""
BANDWIDTH = 100_000
"""Bytes that are read in a millisecond."""


class Counts(NamedTuple):
    """What was read since the last `Disk.reset()`."""

    opens: int = 0
    """Times that a file was opened."""
    reads: int = 0
    """Times that the program read from a file."""
    asked: int = 0
    """Bytes that the program got."""
    pages: int = 0
    """Pages that came from the disk, and not from the page cache."""
    jumps: int = 0
    """Pages that did not follow the page that was read before. The first page after an open is one."""

    @property
    def bytes(self) -> int:
        """Bytes that came from the disk."""
        return self.pages * PAGE

    @property
    def milliseconds(self) -> float:
        """What a disk with moving parts needs for that."""
        return JUMP * (self.opens + self.jumps) + self.bytes / BANDWIDTH


class Disk:
    """Files in memory, with the costs of a disk.

    It reads whole pages, and does not read ahead.

    Args:
        cache: How many pages the page cache holds. It drops the page that was not used for the longest time. None: all.
    """

    def __init__(self, cache: int | None = None) -> None:
        self.cache = cache
        self.counts = Counts()
        self._files: dict[str, bytes] = {}
        self._first: dict[str, int] = {}
        """The page at which each file begins."""
        self._cached: dict[int, None] = {}
        """The pages in the cache. The last one was used last."""
        self._head: int | None = None
        """The page after the one that was read last."""

    def write(self, name: str, data: bytes) -> None:
        """Store a file behind all others. Nothing of it is in the cache."""
        self._first[name] = sum(map(pages_of, map(len, self._files.values())))
        self._files[name] = bytes(data)

    @property
    def written(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self._files.values()))

    def open(self, name: str) -> File:
        """Open a file for reading."""
        data = self._files[name]
        self._add(opens=1)
        self._head = None
        return File(self, name, data)

    def reset(self) -> None:
        """Forget what was counted. The page cache stays as it is."""
        self.counts = Counts()

    def drop_cache(self) -> None:
        """Empty the page cache."""
        self._cached.clear()

    def _add(self, **more: int) -> None:
        self.counts = Counts(
            **{
                name: value + more.get(name, 0)
                for name, value in self.counts._asdict().items()
            }
        )

    def _touch(self, name: str, start: int, size: int) -> None:
        """Count a read of the program, and get the pages that are not in the cache."""
        missing = jumps = 0
        first = self._first[name]
        for page in (
            range(first + start // PAGE, first + pages_of(start + size)) if size else ()
        ):
            cached = page in self._cached
            self._cached.pop(page, None)
            self._cached[page] = None
            if cached:
                continue
            missing += 1
            jumps += page != self._head
            self._head = page + 1
            if self.cache is not None and len(self._cached) > self.cache:
                del self._cached[next(iter(self._cached))]
        self._add(reads=1, asked=size, pages=missing, jumps=jumps)


class File(io.RawIOBase):
    """A file of a `Disk`, open for reading. Libraries can read from it as from any file in binary mode."""

    def __init__(self, disk: Disk, name: str, data: bytes) -> None:
        self._disk, self._data, self._at = disk, data, 0
        self.name = name

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another position. Nothing is read."""
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}
        # An unsigned integer of NumPy would wrap around below.
        at = starts[whence] + operator.index(offset)
        if at < 0:
            raise ValueError(f"a file has no position {at}")
        self._at = at
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read that many bytes, or all that are left."""
        size = -1 if size is None else operator.index(size)
        end = None if size < 0 else self._at + size
        part = self._data[self._at : end]
        self._disk._touch(self.name, self._at, len(part))
        self._at += len(part)
        return part

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read into a buffer."""
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)


def pages_of(size: int) -> int:
    """How many pages that many bytes take."""
    return -(-size // PAGE)
