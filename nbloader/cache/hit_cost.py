"""What a hit of the cache of samples costs on this machine: measured, for predictions."""

from __future__ import annotations

import functools
import hashlib
import statistics
import time

import numpy as np

from nbloader.cache.digest import SIZE, Digester
from nbloader.cache.memory_store import MemoryStore
from nbloader.cache.sample_cache import MISSING, CacheOptions, SampleCache

HITS = 15
"""Hits that are measured."""
ROOM = 1 << 20
"""Bytes of the cache that is measured, beside those of the entry."""
SMALLEST, LARGEST = 6, 1 << 22
"""The smallest entry that is measured, as a power of two, and bytes of the largest one: larger ones cost in
proportion."""


def hit_seconds(nbytes: float) -> float | None:
    """CPU time of a call of a cached function whose value is in memory, seconds.

    The first call for a size measures it with a cache of its own, within a few milliseconds.

    Args:
        nbytes: Size of the value.

    Returns:
        None if there is no shared memory.
    """
    size = min(1 << max(SMALLEST, round(nbytes).bit_length()), LARGEST)
    small, large = _measure(1 << SMALLEST), _measure(size)
    return None if small is None or large is None else small + max(0.0, large - small) * nbytes / size


@functools.lru_cache(maxsize=64)
def _measure(nbytes: int) -> float | None:
    try:
        memory = MemoryStore.create(2 * nbytes + ROOM)
    except OSError:
        return None
    try:
        cache = SampleCache(memory, CacheOptions())
        cache.put(_key(), np.zeros(nbytes, np.uint8), 10**9, "")
        took = []
        for _ in range(HITS):
            begin = time.thread_time_ns()
            value = cache.get(_key())
            took.append(time.thread_time_ns() - begin)
            if value is MISSING:
                return None
        return statistics.median(took) / 1e9
    finally:
        memory.close()


def _key() -> bytes:
    """As for a function of the name of a file."""
    digest = Digester(files=True).digest("a/path/of/a/file/that/does/not/exist.jpg")
    return hashlib.sha256(digest, usedforsecurity=False).digest()[:SIZE]
