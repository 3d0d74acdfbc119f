"""The sample cache of this process, and how its workers share it.

    notebook: first use, or first worker -> SampleCache: memory (shared), and a folder on disk if one is configured
    worker:   share() -> options, and descriptors of the memory, sent with its first message -> install()

There is one cache per notebook: any number of loaders and functions share it. It exists as long as there is a cached
function.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from pathlib import Path
from typing import NamedTuple

from nbloader._platform import when_forked
from nbloader._util.format import megabytes
from nbloader._util.validate import natural
from nbloader.cache.memory_store import MemoryStore
from nbloader.cache.sample_cache import DISK, CacheOptions, SampleCache
from nbloader.events.gauges import CacheGauge

log = logging.getLogger(__name__)

_lock = threading.RLock()  # reentrant: a function may be garbage-collected while the lock is held
_cache: SampleCache | None = None
_options = CacheOptions()
_users = 0
"""Number of cached functions."""
_is_worker = False


def configure_cache(
    memory: int | None = None, directory: str | os.PathLike[str] | None = None, disk: int = DISK
) -> None:
    """Set the limits of the cache that all functions marked with `nbloader.cached` share.

    The limits take effect at once, including in running workers. Omitted arguments are reset to their defaults.

    Args:
        memory: Maximum bytes of memory for entries, for all processes together; each entry takes a multiple of 4 KiB.
            0 keeps nothing in memory. The default is a quarter of the memory that is available now, or when the first
            cached function is called. The cache never takes more than the memory that is available.
        directory: A folder in which entries are also kept, so that they survive a restart. None for memory only. No
            one else may have write access to the folder, because its files are unpickled.
        disk: Maximum bytes of files in the folder. The limit is approximate.

    Raises:
        TypeError: A limit is not an int.
        ValueError: A limit is negative.
    """
    global _options  # noqa: PLW0603 - one per process
    if memory is not None:
        memory = natural("memory", memory, "0 keeps nothing in memory")
    disk = natural("disk", disk, "it is a number of bytes")
    folder = None if directory is None else str(Path(os.fsdecode(directory)).expanduser().absolute())
    with _lock:
        _options = CacheOptions(memory, folder, disk)
        if _cache is not None:
            _cache.configure(_options)
        elif _users:
            current()
            _close_if_unused()


def current() -> SampleCache:
    """Return the cache of this process. Creates it if there is none yet."""
    global _cache  # noqa: PLW0603 - one per process
    if _cache is None:
        with _lock:
            if _cache is None:
                _cache = SampleCache.create(_options)
                log.debug("created a cache of samples: %s", _describe(_cache))
    return _cache


def _describe(cache: SampleCache) -> str:
    return "no memory" if cache.memory is None else f"{megabytes(cache.memory.limit)} of memory"


def add_user(user: object) -> None:
    """Register a cached function; it is unregistered when it is garbage-collected."""
    global _users  # noqa: PLW0603 - one per process
    with _lock:
        _users += 1
    weakref.finalize(user, _remove_user).atexit = False


def _remove_user() -> None:
    global _users  # noqa: PLW0603 - one per process
    with _lock:
        _users -= 1
    _close_if_unused()


def _close_if_unused() -> None:
    """Close the cache if there is no cached function. The last one may be collected while a cache is created for it."""
    global _cache
    with _lock:
        if _users or _is_worker or _cache is None:
            return
        cache, _cache = _cache, None
    cache.close()


class SharedCache(NamedTuple):
    """What a worker needs to use the cache of the notebook's process."""

    options: bytes
    """The options; empty if the memory has them."""
    files: tuple[int, ...]
    """The descriptors of the files of the `MemoryStore`; none if processes share a folder only."""


def share() -> SharedCache | None:
    """Return what the next worker needs; None if no function is cached. Creates the cache if there is none yet.

    The descriptors stay open while there is a cache.
    """
    if not (_users or _is_worker):
        return None
    cache = current()
    _close_if_unused()
    if cache is not _cache:
        return None
    if cache.memory is None:
        return SharedCache(cache.options.to_bytes(), ())
    return SharedCache(b"", (cache.memory.index_fd, cache.memory.data_fd))


def install(shared: SharedCache) -> None:
    """In a worker: use the cache of the notebook's process.

    Args:
        shared: What `share` returned in the notebook's process. The cache owns these descriptors.
    """
    global _cache, _is_worker  # noqa: PLW0603 - one per process
    with _lock:
        _is_worker = True
        memory = None
        try:
            memory = MemoryStore([*shared.files]) if shared.files else None
        except OSError:
            log.warning("this worker has no cache of samples", exc_info=True)
        _cache = SampleCache(memory, CacheOptions.from_bytes(shared.options))


def gauge() -> CacheGauge | None:
    """Return the contents of the cache and its counters; None if there is no cache."""
    with _lock:
        return None if _cache is None else _cache.gauge()


def _after_fork() -> None:
    global _cache, _lock  # noqa: PLW0603 - one per process
    _lock = threading.RLock()
    if _cache is not None and _cache.memory is not None:
        try:
            _cache.memory.after_fork()
        except OSError:  # too many open files: functions compute without a cache
            _cache = SampleCache(None, CacheOptions())


when_forked(after_in_child=_after_fork)
