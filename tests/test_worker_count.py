"""The mean number of workers over an interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbloader.metrics.worker_count import WorkerCount

pytestmark = pytest.mark.unit

CHANGES = st.lists(st.tuples(st.integers(0, 50), st.sampled_from([-1, 1])), max_size=12).map(sorted)


@given(CHANGES, st.integers(0, 50), st.integers(1, 50), st.integers(0, 60))
def test_the_mean_is_that_of_all_moments(changes, begin, length, after):
    count, end = WorkerCount(), begin + length
    numbers, workers = [], 0
    for at, (time, change) in enumerate(changes):
        count.add(time, change)
        workers = max(0, workers + change)
        numbers += [workers] * ((changes[at + 1][0] if at + 1 < len(changes) else 200) - time)
    first = changes[0][0] if changes else 0
    moments = [numbers[t - first] if changes and t >= first else 0 for t in range(max(begin, after), end)]
    changed = any(max(begin, after) < time < end for time, _ in changes)
    found = count.mean(begin, end, after=after)
    if not changed or not sum(moments):
        assert found is None
    else:
        assert found == pytest.approx(sum(moments) / len(moments))
