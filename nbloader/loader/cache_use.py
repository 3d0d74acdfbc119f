"""What the newest epoch has found in the sample cache."""

from __future__ import annotations

from nbloader.events.gauges import CacheGauge

EXPECTED = 10
"""Calls are said to find nothing if this many of them would find a result, had all had the arguments of an earlier one.
Their chance to miss them all is e to the minus `EXPECTED`."""
NO_CACHE = CacheGauge(0, 0, 0, 0, 0, 0, 0, 0.0, "")


class CacheUse:
    """Counts the hits and misses of an epoch, and finds out whether the cache is of any use.

    All loaders share the cache, so that a hit of another loader hides that this one has none.
    """

    def __init__(self) -> None:
        self._before: CacheGauge = NO_CACHE
        """The cache when the newest epoch began."""
        self._after: CacheGauge | None = None
        """The cache when it ended; None until then."""
        self._earlier: CacheGauge = NO_CACHE
        """The cache when the epoch before began."""
        self._repeats = False
        """Whether the epoch before was complete, with the same code, so that every sample was computed before."""
        self._complete = False
        """The same for the newest epoch and the next one."""

    def epoch_began(self, cache: CacheGauge | None) -> None:
        """Note what is in the cache."""
        self._earlier, self._before, self._after = self._before, cache or NO_CACHE, None
        self._repeats, self._complete = self._complete, False

    def epoch_ended(self, reason: str, cache: CacheGauge | None) -> None:
        """Note what is in the cache, and whether the loop has seen all samples. For the reason, see `EpochEnded`."""
        self._after = cache
        self._complete = reason == "exhausted"

    def code_changed(self) -> None:
        """Note that results of before are not those of cached functions any more."""
        self._repeats = self._complete = False

    def hits(self, cache: CacheGauge | None) -> int:
        """Return the number of hits in the newest epoch.

        Args:
            cache: The cache now.
        """
        return (self._after or cache or self._before).hits - self._before.hits

    def missed(self, cache: CacheGauge | None) -> int:
        """Return the number of misses in the newest epoch if there are too many for chance and no hit; else 0.

        Args:
            cache: The cache now.
        """
        if not self._repeats or self.hits(cache):
            return 0
        before, earlier = self._before, self._earlier
        misses = (self._after or cache or before).misses - before.misses
        computed, kept = before.misses - earlier.misses, before.entries - earlier.entries
        return misses if misses * kept >= EXPECTED * computed > 0 else 0
