"""Memory files that are written once and then only read, by this process and by workers."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

from nbloader._platform import mapped, new_file, seal
from nbloader._platform.descriptors import close_all
from nbloader.shm.segment import CHECK_FROM, check_memory, no_memory


class MemoryFile:
    """A memory file that is written from its beginning to its end, and then sealed. It exists as long as this object.

    `pickle` can write to it: a pickle of 200 MB is then in memory once, since `pickle` does not copy objects of 64 KiB
    and more.
    """

    def __init__(self) -> None:
        self.size = 0
        """Number of bytes written."""
        self._unchecked = 0
        """Number of bytes written since the available memory was last checked."""
        self._file: list[int] = []
        weakref.finalize(self, close_all, self._file)
        new_file(self._file)

    @property
    def fd(self) -> int:
        """Descriptor of the file."""
        return self._file[0]

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append data.

        Raises:
            MemoryError: Not enough memory is left.
        """
        left = memoryview(data).cast("B")
        written = left.nbytes
        self.size += written
        self._unchecked += written
        if self._unchecked >= CHECK_FROM:
            check_memory(self._unchecked)
            self._unchecked = 0
        while left.nbytes:
            try:
                left = left[os.write(self.fd, left) :]
            except OSError as error:
                raise no_memory(self.size, error.strerror or "unknown reason") from error
        return written

    def add(self, piece: memoryview) -> int:
        """Append data on pages of its own. Returns where it begins.

        Raises:
            MemoryError: Not enough memory is left.
        """
        self.write(bytes(-self.size % mmap.PAGESIZE))
        start = self.size
        self.write(piece)
        return start

    def seal(self) -> None:
        """Let nobody write to the file any more."""
        seal(self.fd)

    def map(self) -> Any:
        """Map the file copy-on-write. Returns memory to build arrays on, which keeps the file alive."""
        memory = mapped(self.fd, self.size, private=True)
        memory.file = self
        return memory
