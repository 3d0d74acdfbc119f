"""The file that a pickler writes to: small pickles stay in memory, large ones are written to a memory file."""

from __future__ import annotations

import mmap
import os
import weakref

from nbloader._platform import new_file, seal
from nbloader._platform.descriptors import close_all
from nbloader.shm.segment import CHECK_FROM, check_memory, no_memory

SPILL_FROM = 1 << 20
"""Pickles of at least this size, in bytes, are kept in a memory file; each worker gets smaller ones in a message."""
CHECK_EVERY = 64 << 20
"""Number of bytes after which the available memory is checked again."""
ENDS = 256 * 1024
"""Number of bytes at each end of a large pickle that are searched for the modules that the pickle needs."""


class SpillFile:
    """A file object that is written once.

    Without it, a pickle of 200 MB would be in memory three times: in the pickler's buffer, in the bytes that the
    pickler returns, and in each message to a worker. `pickle` writes objects of 64 KiB and more without copying them.
    """

    def __init__(self) -> None:
        import hashlib  # takes 3 ms; workers do not need it

        self.size = 0
        """Number of bytes written."""
        self._buffer = bytearray()
        self._file: list[int] = []
        weakref.finalize(self, close_all, self._file)
        self._checked = 0
        self._hash = hashlib.sha256(usedforsecurity=False)

    @property
    def fd(self) -> int:
        """Descriptor of the memory file; -1 while the content is small."""
        return self._file[0] if self._file else -1

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append data.

        Raises:
            MemoryError: Not enough memory is left.
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
            new_file(self._file)
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
        """Finish writing. Returns the content, or empty bytes if the content is in the file."""
        if self.fd >= 0:
            seal(self.fd)
        return bytes(self._buffer)

    def view(self) -> memoryview:
        """Map the file and return its content. The content must be in the file."""
        return memoryview(mmap.mmap(self.fd, self.size, prot=mmap.PROT_READ))

    @property
    def digest(self) -> bytes:
        """Hash of the content of a file, equal for equal contents; empty if the content is small."""
        return self._hash.digest() if self.fd >= 0 else b""

    @property
    def ends(self) -> bytes:
        """The first and the last bytes of the file: a pickle has the notebook's code there, not among the data."""
        return os.pread(self.fd, ENDS, 0) + os.pread(self.fd, ENDS, max(0, self.size - ENDS))

    def close(self) -> None:
        """Release the memory of the file. Processes that have mapped the file keep it."""
        close_all(self._file)
