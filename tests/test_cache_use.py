"""Whether a cached function that never finds a result is told from one whose cache is filling."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import nbloader
from nbloader.events.gauges import CacheGauge
from nbloader.loader.cache_use import CacheUse


def cache(hits, misses, entries):
    return CacheGauge(hits, misses, 0, entries, 0, 0, 0, 0.0, "")


def used(*epochs, now, reload=False):
    """What is said of an epoch after others, each with the cache at its beginning and at its end, and how it ended."""
    use = CacheUse()
    for began, ended, reason in epochs[:-1]:
        use.epoch_began(began)
        use.epoch_ended(reason, ended)
    if reload:
        use.code_changed()
    use.epoch_began(epochs[-1])
    return use.missed(now)


FILLED = cache(0, 100, 100)
FIRST = (None, FILLED, "exhausted")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("epochs", "now", "reload", "missed"),
    [
        ((FIRST, FILLED), cache(0, 150, 150), False, 50),
        ((FIRST, FILLED), cache(0, 105, 105), False, 0),  # too few to be sure
        ((FIRST, FILLED), cache(1, 150, 150), False, 0),  # one was found
        ((FIRST, FILLED), cache(0, 150, 150), True, 0),  # the code is new
        ((FILLED,), cache(0, 150, 150), False, 0),  # the first epoch of this loader
        (((None, FILLED, "abandoned"), FILLED), cache(0, 150, 150), False, 0),  # others are due now
        ((FIRST, cache(0, 100, 5)), cache(0, 200, 10), False, 0),  # most results are not kept
        ((FIRST, cache(0, 100, 0)), cache(0, 200, 0), False, 0),  # none is
        (((cache(9, 9, 0), cache(9, 9, 0), "exhausted"), cache(9, 9, 0)), cache(9, 99, 90), False, 0),  # nothing was
        ((FIRST, FILLED), None, False, 0),
        (
            ((cache(10**6, 10**6, 9), cache(10**6, 10**6 + 100, 109), "exhausted"), cache(10**6, 10**6 + 100, 109)),
            cache(10**6, 10**6 + 150, 159), False, 50,
        ),  # of other loaders
    ],
)  # fmt: skip
def test_calls_are_in_vain_if_an_epoch_of_the_same_samples_finds_none_of_many_results(epochs, now, reload, missed):
    assert used(*epochs, now=now, reload=reload) == missed


@pytest.mark.unit
def test_what_other_loaders_find_after_the_epoch_does_not_count():
    use = CacheUse()
    use.epoch_began(None)
    use.epoch_ended("exhausted", FILLED)
    use.epoch_began(FILLED)
    use.epoch_ended("exhausted", cache(0, 200, 200))
    later = cache(1000, 9000, 9000)
    assert (use.missed(later), use.hits(later)) == (100, 0)


def work(i, noise):
    digest = hashlib.sha256()
    for _ in range(3000):
        digest.update(b"%d %f" % (i, noise) * 100)
    return len(digest.hexdigest())


def noisy(varies):
    """A dataset whose cached function gets other arguments in each epoch, or the same ones."""
    cached = nbloader.cached(work)

    class Noisy:
        def __len__(self):
            return 64

        def __getitem__(self, i):
            return cached(i, np.random.random() if varies else 0.0)

    return Noisy()


@pytest.mark.parametrize("varies", [True, False])
def test_a_cache_that_never_finds_a_result_is_named_from_the_second_epoch_on(varies):
    said = "none of 64 cached calls in this epoch found an earlier result"
    with nbloader.DataLoader(noisy(varies), batch_size=4, num_workers=1) as loader:
        loader.profile_lines()
        for epoch in range(2):
            for _ in loader:
                pass
            verdict = loader.stats().epoch_verdict
            named = said in verdict.sentence
            assert named == (varies and epoch == 1) or "cores" in verdict.cause  # other programs may have them
        if varies:
            assert "it is cached in vain" in str(loader.remedies())
