"""The loop that fetches the samples of a batch, without workers."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbloader.workers.fetcher import fetch_each
from nbloader.workers.status import SHARED_STATUS_SIZE, LocalStatus, SharedStatus, WorkerAbandonedError

pytestmark = pytest.mark.unit
STATUSES = {
    "local": lambda: LocalStatus(1),
    "shared": lambda: SharedStatus.at(ctypes.create_string_buffer(SHARED_STATUS_SIZE)),
}


class Watched:
    """Notes the position that the status shows while each sample is fetched; some samples raise."""

    def __init__(self, status, bad=()):
        self.status = status
        self.bad = bad
        self.seen = []

    def __getitem__(self, key):
        self.seen.append(self.status.position)
        if key in self.bad:
            raise KeyError(key)
        return key


@pytest.mark.parametrize("kind", STATUSES)
@given(keys=st.lists(st.integers(0, 9), min_size=1, max_size=20), bad=st.sets(st.integers(0, 9)), data=st.data())
def test_the_position_is_that_of_the_sample_that_is_being_fetched(kind, keys, bad, data):
    status = STATUSES[kind]()
    source = Watched(status, bad)
    replaced = []
    given_keys = data.draw(st.sampled_from([keys, tuple(keys), dict(enumerate(keys)).values()]))
    batch = fetch_each(
        source.__getitem__,
        given_keys,
        batched=True,
        status=status,
        on_error=lambda position, _: replaced.append(position),
    )
    assert source.seen == list(range(len(keys)))
    wrong = [position for position, key in enumerate(keys) if key in bad]
    assert replaced == wrong == [failure.position for failure in batch.failed]
    assert batch.samples == [None if key in bad else key for key in keys]
    assert 0 <= batch.slowest < len(keys)
    assert batch.begin <= batch.end


@pytest.mark.parametrize("kind", STATUSES)
def test_the_position_stays_at_a_sample_that_raised(kind):
    status = STATUSES[kind]()
    with pytest.raises(KeyError):
        fetch_each(Watched(status, {7}).__getitem__, [5, 6, 7, 8], batched=True, status=status, on_error="raise")
    assert status.position == 2


@pytest.mark.parametrize("bad", [(), (1,)])
def test_an_abandoned_worker_fetches_no_other_sample(bad):
    status = LocalStatus(1)

    class Abandoned(Watched):
        def __getitem__(self, key):
            if key == 1:
                status.abandon()
            return super().__getitem__(key)

    source = Abandoned(status, bad)

    def fetch():
        fetch_each(source.__getitem__, range(4), batched=True, status=status, on_error="skip")

    with pytest.raises(WorkerAbandonedError):
        fetch()
    with pytest.raises(WorkerAbandonedError):
        fetch()
    assert len(source.seen) == 2
