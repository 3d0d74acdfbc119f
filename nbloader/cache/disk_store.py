"""The cache on disk: one file per entry. It survives a restart, and all processes that use the same folder share it.

    folder/v1/3f/3f9a...: header with a checksum | meta | buffers

A file is written under another name and then renamed, so that a reader finds a full entry or none, whatever happens to
the writer. Nothing is locked or mapped: two processes that write the same entry write the same file, also on different
machines, and a file that is cut short while it is read is an error of this entry and not the end of the process. A file
that is damaged nevertheless (by a full disk or a crash of the machine) is detected by its checksum and deleted, and its
value is computed again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nbloader._platform import others_can_write
from nbloader.cache.entry import Entry, Found, allocate, sizes
from nbloader.cache.policy import worth

VERSION = "v1"
_HEADER = struct.Struct("<8s16sQQII")
"""Magic; key; size of what follows; cost in us; size of the meta part; checksum of what follows."""
_MAGIC = b"nblcache"
_TEMPORARY = ".tmp"
ABANDONED = 3600
"""Seconds after which a temporary file is assumed to be left over from a process that died."""
DAY = 86_400
KEPT_DAYS = 7.0
"""Days without use after which an entry begins to lose its worth."""
FREED = 0.1
"""Fraction of the limit that is freed when the limit is reached, because finding the least useful files is slow."""
SCAN_EVERY = 0.05
"""Fraction of the limit that a process writes before it checks the size of the folder again."""


class DamagedError(Exception):
    """A file of the cache does not hold what was written."""


class StoredFile(NamedTuple):
    """A file of the cache, or a temporary file that was never renamed."""

    path: str
    nbytes: int
    """Size of the file, bytes."""
    used: float
    """When the file was last used, seconds since 1970."""


class DiskStore:
    """The cache in a folder.

    Args:
        folder: The folder; created if it does not exist.
        limit: Maximum total size of the files, bytes.

    Raises:
        OSError: The folder cannot be created or read, or other users can write to it: reading an entry unpickles it.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._root = str(Path(folder) / VERSION)
        Path(self._root).mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(os.lstat(self._root), self._root)
        self.nbytes = 0
        """Size of all files at the last scan, plus that of the files written since."""
        self._written = limit
        """Bytes written since the last scan. Starts at the limit, so that the first `put` scans the folder."""
        self._temporary = 0

    def get(self, key: bytes) -> Found | None:
        """Return an entry, or None if there is none.

        Args:
            key: 16 bytes.

        Raises:
            DamagedError: The file was damaged; it has been deleted.
            OSError: The file cannot be read.
        """
        path = self._path(key)
        try:
            with Path(path).open("rb") as file:
                found = _read(file, key)
        except FileNotFoundError:
            return None
        except DamagedError:
            _delete(path)
            raise DamagedError(path) from None
        with contextlib.suppress(OSError):  # a read-only folder works, too
            os.utime(path)
        return found

    def put(self, key: bytes, entry: Entry, cost_ns: int) -> None:
        """Write an entry, and drop others if the limit is exceeded.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """
        if entry.nbytes > self.limit:
            return
        path = self._path(key)
        checksum = zlib.crc32(entry.meta)
        for buffer in entry.buffers:
            checksum = zlib.crc32(buffer, checksum)
        header = _HEADER.pack(_MAGIC, key, entry.nbytes, cost_ns // 1000, len(entry.meta), checksum)
        self._temporary += 1
        temporary = f"{path}.{os.getpid()}.{id(self)}.{self._temporary}{_TEMPORARY}"
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            _write(temporary, [header, entry.meta, *entry.buffers])
            Path(temporary).replace(path)
        except BaseException:
            _delete(temporary)
            raise
        self._written += len(header) + entry.nbytes
        self.nbytes += len(header) + entry.nbytes
        if self._written >= SCAN_EVERY * self.limit or self.nbytes > self.limit:
            self.tidy()

    def tidy(self) -> None:
        """Measure the size of the folder, and delete the least useful files if it exceeds the limit."""
        now, files = time.time(), []
        for file in self._files():
            if not file.path.endswith(_TEMPORARY):
                files.append(file)
            elif now - file.used > ABANDONED:
                _delete(file.path)
        total = sum(file.nbytes for file in files)
        if total > self.limit:
            costs = np.array([_cost(file.path) for file in files], np.float64)
            nbytes = np.array([file.nbytes for file in files], np.int64)
            days = np.array([max(0.0, now - file.used) / DAY for file in files])
            for number in np.argsort(worth(costs, nbytes, days, KEPT_DAYS), kind="stable"):
                if total <= self.limit * (1 - FREED):
                    break
                total -= files[number].nbytes
                _delete(files[number].path)
        self.nbytes, self._written = total, 0

    def _files(self) -> Iterator[StoredFile]:
        with os.scandir(self._root) as folders:
            for folder in folders:
                if not folder.is_dir(follow_symlinks=False):
                    continue
                with contextlib.suppress(OSError), os.scandir(folder.path) as files:  # it was deleted just now
                    for file in files:
                        with contextlib.suppress(OSError):
                            status = file.stat()
                            yield StoredFile(file.path, status.st_size, status.st_mtime)

    def _path(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._root}/{name[:2]}/{name}"


def _check_owner(status: os.stat_result, path: str) -> None:
    """Raise PermissionError if another user may have written to a file or folder."""
    if others_can_write(status):
        reason = "other users can write to it, and the entries of a cache are unpickled"
        raise PermissionError(errno.EPERM, reason, path)


def _read(file: BufferedReader, key: bytes) -> Found:
    status = os.fstat(file.fileno())
    _check_owner(status, key.hex())
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise DamagedError
    magic, stored_key, size, cost, meta_size, checksum = _HEADER.unpack(header)
    if magic != _MAGIC or stored_key != key or status.st_size != _HEADER.size + size or meta_size > size:
        raise DamagedError
    meta = file.read(meta_size)
    if sum(sizes(meta)) != size - meta_size:
        raise DamagedError
    buffers, found = allocate(meta), zlib.crc32(meta)
    for buffer in buffers:
        if file.readinto(buffer) < len(buffer):
            raise DamagedError
        found = zlib.crc32(buffer, found)
    if found != checksum:
        raise DamagedError
    return Found(meta, buffers, cost)


def _write(path: str, parts: list[Any]) -> None:
    with open(path, "xb", opener=_private) as file:
        file.writelines(parts)


def _private(path: str, flags: int) -> int:
    """Open a file that only this user can access, whatever the umask is."""
    return os.open(path, flags, 0o600)


def _cost(path: str) -> int:
    """Return the cost that is stored in the header of a file; 0 if the file is damaged."""
    try:
        with Path(path).open("rb", buffering=0) as file:
            header = file.read(_HEADER.size)
        cost: int = _HEADER.unpack(header)[3]
    except (OSError, struct.error):
        return 0
    return cost


def _delete(path: str) -> None:
    with contextlib.suppress(OSError):  # another process has deleted it
        Path(path).unlink()
