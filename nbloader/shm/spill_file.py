"""What a pickler writes to: small pickles stay in memory, large ones go to a memory file while they are written."""

from __future__ import annotations

import mmap
import os
import weakref

from nbloader.shm.segment import CHECK_FROM, check_memory, new_file, no_memory, seal

SPILL_FROM = 1 << 20
"""Pickles from this size on are in a memory file, bytes; smaller ones are sent to each worker in its first message."""
CHECK_EVERY = 64 << 20
"""Bytes after which the memory that is left is checked again."""
ENDS = 256 * 1024
"""Size of each end of a large pickle that is searched for the modules that it needs, bytes."""


class SpillFile:
    """A file object that is written to once.

    A pickle of 200 MB would otherwise be in memory three times: in the pickler's buffer, in the bytes that it returns,
    and in each message to a worker. Objects of 64 KiB and more are written by `pickle` without a copy of its own.
    """

    def __init__(self) -> None:
        import hashlib  # 3 ms, which workers do without

        self.fd = -1
        """The memory file; -1 while the content is small."""
        self.size = 0
        """Bytes written."""
        self._buffer = bytearray()
        self._checked = 0
        self._hash = hashlib.sha256(usedforsecurity=False)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append.

        Raises:
            MemoryError: There is not that much memory left.
        """
        view = memoryview(data).cast("B")
        self.size += view.nbytes
        if self.size < SPILL_FROM:
            self._buffer += view
            return view.nbytes
        if self.fd < 0 or self.size - self._checked >= CHECK_EVERY:
            check_memory(max(CHECK_FROM, view.nbytes))
            self._checked = self.size
        if self.fd < 0:
            self.fd = new_file()
            self._finalizer = weakref.finalize(self, os.close, self.fd)
            self._append(memoryview(self._buffer))
            self._buffer = bytearray()
        self._append(view)
        return view.nbytes

    def _append(self, view: memoryview) -> None:
        self._hash.update(view)
        while view.nbytes:
            try:
                view = view[os.write(self.fd, view) :]
            except OSError as error:
                raise no_memory(self.size, error.strerror or "unknown reason") from error

    def finish(self) -> bytes:
        """Nothing more follows. Returns the content, or nothing if it is in the file."""
        if self.fd >= 0:
            seal(self.fd)
        return bytes(self._buffer)

    def view(self) -> memoryview:
        """The content, if it is in the file."""
        return memoryview(mmap.mmap(self.fd, self.size, prot=mmap.PROT_READ))

    @property
    def digest(self) -> bytes:
        """Equal for equal contents of a file; empty for a small content."""
        return self._hash.digest() if self.fd >= 0 else b""

    @property
    def ends(self) -> bytes:
        """The first and the last bytes of a file: there a pickle has the code of the notebook, not in the data."""
        return os.pread(self.fd, ENDS, 0) + os.pread(self.fd, ENDS, max(0, self.size - ENDS))

    def close(self) -> None:
        """Release the memory of the file; processes that have it mapped keep it."""
        if self.fd >= 0:
            self._finalizer()
            self.fd = -1
