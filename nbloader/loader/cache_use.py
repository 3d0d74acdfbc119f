"""What the newest epoch has found in the sample cache."""

from __future__ import annotations

from nbloader.events.gauges import CacheGauge

EXPECTED = 10
"""Calls are said to find nothing if this many of them would find a result, had all had the arguments of an earlier one.
Their chance to miss them all is e to the minus `EXPECTED`."""


class CacheUse:
    """Counts the hits and misses of an epoch, and finds out whether the cache is of any use.

    All loaders share the cache, so that a hit of another loader hides that this one has none.
    """

    def __init__(self) -> None:
        self._before: CacheGauge | None = None
        """The cache when the newest epoch began."""
        self._repeats = False
        """Whether the epoch before was complete, with the same code, so that every sample was computed before."""
        self._complete = False
        """The same for the newest epoch and the next one."""

    def epoch_began(self, cache: CacheGauge | None) -> None:
        """Note what is in the cache."""
        self._before = cache
        self._repeats, self._complete = self._complete, False

    def epoch_ended(self, reason: str) -> None:
        """Note whether the loop has seen all samples. For the argument, see `EpochEnded`."""
        self._complete = reason == "exhausted"

    def code_changed(self) -> None:
        """Note that results of before are not those of cached functions any more."""
        self._repeats = self._complete = False

    def hits(self, cache: CacheGauge | None) -> int:
        """Return the number of hits in the newest epoch.

        Args:
            cache: The cache now.
        """
        if cache is None:
            return 0
        return cache.hits - (0 if self._before is None else self._before.hits)

    def missed(self, cache: CacheGauge | None) -> int:
        """Return the number of misses in the newest epoch if there are too many for chance and no hit; else 0.

        Args:
            cache: The cache now.
        """
        before = self._before
        if cache is None or before is None or not self._repeats or self.hits(cache):
            return 0
        misses = cache.misses - before.misses
        is_sure = misses * before.entries >= EXPECTED * (before.hits + before.misses) > 0
        return misses if is_sure else 0
