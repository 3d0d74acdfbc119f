"""Measures the cost of a sample cache hit on this machine, for predictions."""

from __future__ import annotations

import functools
import hashlib
import statistics
import time

import numpy as np

from nbloader.cache.digest import SIZE, Walk
from nbloader.cache.entry import encode
from nbloader.cache.memory_store import MemoryStore
from nbloader.cache.sample_cache import MISSING, CacheOptions, SampleCache

HITS = 15
"""Number of hits that are measured."""
SMALLEST, LARGEST = 6, 1 << 22
"""Size of the smallest measured entry, as the base-2 logarithm of its bytes, and of the largest one, in bytes. The cost
of larger entries is proportional to their size."""


def hit_seconds(nbytes: float) -> float | None:
    """Return the CPU time of a call to a cached function whose value is in memory.

    The first call for a size measures the time with a temporary cache, which takes a few milliseconds.

    Args:
        nbytes: Size of the value.

    Returns:
        Seconds; None if there is no shared memory.
    """
    size = min(1 << max(SMALLEST, round(nbytes).bit_length()), LARGEST)
    small, large = _measure(1 << SMALLEST), _measure(size)
    return None if small is None or large is None else small + max(0.0, large - small) * nbytes / size


@functools.lru_cache(maxsize=64)
def _measure(nbytes: int) -> float | None:
    try:
        memory = MemoryStore.create(2 * LARGEST)
    except OSError:
        return None
    try:
        cache = SampleCache(memory, CacheOptions())
        cache.put(_key(), encode(np.zeros(nbytes, np.uint8)), 10**9)
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
    """Return a key, computed like that of a function whose argument is a file name."""
    walk = Walk()
    walk.visit(("a/path/of/a/file/that/does/not/exist.jpg",))
    return hashlib.sha256(walk.digest(), usedforsecurity=False).digest()[:SIZE]
