"""A cache of samples: memory that processes share, and a folder if one is configured or such memory is missing."""

from __future__ import annotations

import logging
import os
import tempfile
from typing import Any, NamedTuple

import numpy as np

from nbloader._platform import HAS_FILE_LOCKS, available_memory
from nbloader._util.signals import raised_by_handler
from nbloader._util.user_warning import warn
from nbloader.cache.disk_store import DamagedError, DiskStore
from nbloader.cache.entry import Entry, Found, decode, encode
from nbloader.cache.memory_store import MemoryStore
from nbloader.events.gauges import CacheGauge

log = logging.getLogger(__name__)

MEMORY_SHARE = 4
"""Unless configured, the cache takes at most 1/`MEMORY_SHARE` of the memory that is available when it is created."""
MEMORY_UNKNOWN = 1 << 30
"""Bytes of memory for the cache if the system does not report how much is available."""
DISK = 20_000_000_000
"""Maximum bytes on disk, unless configured."""
MISSING: Any = object()
"""Returned in place of a value that is not in the cache."""


class CacheOptions(NamedTuple):
    """See `configure_cache`."""

    memory: int | None = None
    directory: str | None = None
    disk: int = DISK

    def to_bytes(self) -> bytes:
        """The options as bytes for other processes."""
        return b"" if self.directory is None else b"%d:%s" % (self.disk, os.fsencode(self.directory))

    @classmethod
    def from_bytes(cls, data: bytes) -> CacheOptions:
        """Rebuild the options in another process."""
        disk, separator, directory = data.partition(b":")
        if not separator:
            return cls()
        return cls(None, os.fsdecode(directory), int(disk))


def _limit(options: CacheOptions, used: int = 0) -> int:
    """Return how many bytes of memory the entries may take.

    Args:
        options: The options.
        used: Bytes that the entries take now.
    """
    if options.memory is not None:
        return options.memory
    left = available_memory()
    return MEMORY_UNKNOWN if left is None else (used + left) // MEMORY_SHARE


class Copy(NamedTuple):
    """A copy of a value."""

    entry: Entry
    """The copy as an entry. It shares the memory of its arrays with `value`."""
    value: Any


class SampleCache:
    """The cache of this process: memory first, then the disk.

    If memory or disk fails, that is reported once, and the cache continues without it.

    Args:
        memory: The part in shared memory; None if there is none.
        options: The options.
    """

    def __init__(self, memory: MemoryStore | None, options: CacheOptions) -> None:
        self.memory = memory
        self._disk: DiskStore | None = None
        self._disk_writable = True
        self._warned: set[Any] = set()
        self._version = -1
        self.options = options
        """The options; those in the memory count, if there is one."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if memory is None:
            self._open_disk(options)

    @classmethod
    def create(cls, options: CacheOptions) -> SampleCache:
        """Create the cache of a notebook's process."""
        if not HAS_FILE_LOCKS:
            cache = cls(None, CacheOptions())
            cache.configure(options)
            return cache
        memory = None
        try:
            memory = MemoryStore.create(_limit(options))
        except OSError as error:
            warn(
                f"nbloader does not cache samples in memory, because shared memory is not available ({error})",
                RuntimeWarning,
            )
        cache = cls(memory, options)
        if memory is not None:
            memory.config = options.to_bytes()
        return cache

    def configure(self, options: CacheOptions) -> None:
        """Change the options, in all processes; without memory, in this one and in workers that start later."""
        if self.memory is None:
            self.options = self._with_folder(options)
            self._open_disk(self.options)
            return
        self.memory.limit = _limit(options, used=self.memory.counters().nbytes)
        self.memory.config = options.to_bytes()

    def _with_folder(self, options: CacheOptions) -> CacheOptions:
        """Replace the memory by a temporary folder, unless a folder is configured. Its files stay in memory, mostly."""
        if options.directory is not None or HAS_FILE_LOCKS:
            return options
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="nbloader-cache-", ignore_cleanup_errors=True)
        return options._replace(directory=self._folder.name, disk=_limit(options))

    def get(self, key: bytes) -> Any:
        """Return the value that is stored under a key, or `MISSING` if there is none. Counts a hit or a miss."""
        disk = False
        found = None if self.memory is None else self.memory.get(key)
        if found is None and (store := self._current_disk()) is not None:
            found = self._read(store, key)
            disk = found is not None
        value = MISSING
        if found is not None:
            value = self._decode(found)
        hit = value is not MISSING
        if self.memory is not None:
            self.memory.count(hit=hit, disk=disk and hit, saved_us=found.cost if hit and found is not None else 0)
        if disk and hit and found is not None:
            self._put_in_memory(key, Entry(found.meta, [memoryview(part) for part in found.buffers]), found.cost * 1000)
        return value

    def copy(self, value: Any, name: str) -> Copy | None:
        """Return a copy of a value, made as a hit would make it; None, with a warning, if that is impossible.

        Args:
            value: What the function returned.
            name: Name of the function, for the warning.
        """
        try:
            entry = encode(value)
            arrays = [np.array(buffer, np.uint8) for buffer in entry.buffers]
            return Copy(Entry(entry.meta, [array.data for array in arrays]), decode(entry.meta, arrays))
        except Exception as error:  # the user's code: pickling and unpickling may raise anything
            if raised_by_handler(error):
                raise
            self.warn_once(
                name, f"what {name} returns is not cached: {type(value).__name__} cannot be pickled ({error})"
            )
            return None

    def put(self, key: bytes, entry: Entry, cost_ns: int) -> None:
        """Store a value.

        Args:
            key: 16 bytes.
            entry: The value.
            cost_ns: How long the function took, ns.
        """
        self._put_in_memory(key, entry, cost_ns)
        disk = self._current_disk()
        if disk is None or not self._disk_writable or entry.by_value:
            return
        try:
            disk.put(key, entry, cost_ns)
        except OSError as error:
            self._disk_writable = False
            self.warn_once(
                "disk",
                f"no more samples are stored in the cache folder {disk.folder}: {error.strerror or error}. Those that "
                "are there are used. Free some space, or choose another one: nbloader.configure_cache(directory=...)",
            )

    def warn_once(self, topic: Any, message: str) -> None:
        """Warn, once per process and topic."""
        if topic not in self._warned:
            self._warned.add(topic)
            warn(message, RuntimeWarning)

    def gauge(self) -> CacheGauge:
        """Return the contents of the cache and its counters, for all processes."""
        disk = self._current_disk()
        folder = "" if disk is None else disk.folder
        if self.memory is None:
            return CacheGauge(0, 0, 0, 0, 0, 0, 0, 0.0, folder)
        c = self.memory.counters()
        return CacheGauge(
            c.hits, c.misses, c.evictions, c.entries, c.nbytes, c.limit, c.disk_hits, c.saved_us / 1e6, folder
        )

    def close(self) -> None:
        """Release the memory, and delete the temporary folder."""
        if self.memory is not None:
            self.memory.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _decode(self, found: Found) -> Any:
        try:
            return decode(found.meta, found.buffers)
        except Exception as error:  # the user's code: a class of the value may have changed
            if raised_by_handler(error):
                raise
            log.debug("an entry of the cache could not be unpickled", exc_info=True)
            return MISSING

    def _put_in_memory(self, key: bytes, entry: Entry, cost_ns: int) -> None:
        if self.memory is None:
            return
        try:
            self.memory.put(key, entry, cost_ns)
        except OSError as error:
            self.warn_once(
                "memory", f"a sample was not cached, for lack of memory ({error.strerror or error}). "
                "To set a limit, call nbloader.configure_cache(memory=...)",
            )  # fmt: skip

    def _read(self, disk: DiskStore, key: bytes) -> Found | None:
        try:
            return disk.get(key)
        except DamagedError as error:
            self.warn_once("damaged", f"{error} in the cache of samples was damaged, so it is computed again")
        except OSError as error:
            self._disk = None
            self.warn_once("unreadable", f"the cache folder {disk.folder} cannot be read and is not used: {error}")
        return None

    def _current_disk(self) -> DiskStore | None:
        """Return the folder that is configured now; None if there is none."""
        memory = self.memory
        if memory is not None and (version := memory.config_version) != self._version:
            config = memory.config
            if config is not None:  # else it is being changed: the next access reads it again
                self._version = version
                self._open_disk(CacheOptions.from_bytes(config))
        return self._disk

    def _open_disk(self, options: CacheOptions) -> None:
        self._disk, self._disk_writable = None, True
        if options.directory is None:
            return
        try:
            self._disk = DiskStore(options.directory, options.disk)
        except OSError as error:
            self.warn_once(
                options.directory, f"samples are not cached on disk: the folder {options.directory} cannot be used "
                f"({error.strerror or error})",
            )  # fmt: skip
