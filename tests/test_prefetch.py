"""How far ahead batches are requested, and how many of them a worker holds: the numbers of the default policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbloader.scheduler.prefetch import BLOCKED_TIMES, MAX_DEPTH, MIN_DEPTH, WINDOW_BYTES, Window

pytestmark = pytest.mark.unit

MS = 1_000_000


def measured(nbytes: int, produce_ns: int, workers: int = 2, **options: int) -> Window:
    """A window without arguments of the user, after a batch."""
    window = Window(workers, adaptive=True, **options)
    window.observe(nbytes, produce_ns)
    return window


@given(workers=st.integers(1, 64), factor=st.integers(0, 9), total=st.none() | st.integers(0, 99))
def test_what_the_user_sets_is_requested_whatever_batches_cost(workers, factor, total):
    window = Window(workers, prefetch_factor=factor, prefetch=total)
    for nbytes, produce_ns in ((1000, 1000), (1 << 30, 50 * MS)):
        window.observe(nbytes, produce_ns)
        assert window.size == (factor * workers if total is None else total)
        assert window.prefetches == (window.size > 0)
        assert window.room(window.size, blocked=9) == (0 if window.size else 1)
        assert window.depth() >= 1
        assert window.depth() * workers >= window.size
    window.resize(1)
    assert window.size == (factor if total is None else total)
    window.set_size(3)
    assert window.size == window.depth() == 3


@pytest.mark.parametrize(
    ("nbytes", "produce_ns", "depth"),
    [(1000, MS // 20, MAX_DEPTH), (1000, MS // 2, 4), (1000, 50 * MS, MIN_DEPTH), (1 << 30, MS // 20, MIN_DEPTH)],
    ids=["tiny", "as many as take 2 ms", "slow", "large"],
)
def test_a_worker_holds_what_takes_two_milliseconds(nbytes, produce_ns, depth):
    window = measured(nbytes, produce_ns)
    assert (window.depth(), window.size) == (depth, 2 * depth)


def test_before_the_first_batch_a_worker_holds_one():
    assert Window(4, adaptive=True).depth() == 1
    assert Window(4, adaptive=True).size == 4 * MIN_DEPTH


@given(nbytes=st.integers(0, 1 << 32), produce_ns=st.integers(1, 100 * MS), workers=st.integers(1, 32))
def test_the_window_is_bounded_in_batches_and_bytes(nbytes, produce_ns, workers):
    window = measured(nbytes, produce_ns, workers)
    assert MIN_DEPTH * workers <= window.size <= MAX_DEPTH * workers
    assert (window.size - MIN_DEPTH * workers) * nbytes <= WINDOW_BYTES


@given(nbytes=st.integers(0, 1 << 32), blocked=st.integers(0, 10_000), outstanding=st.integers(0, 10_000))
def test_batches_that_one_batch_blocks_do_not_count_up_to_a_credit_of_batches_and_bytes(nbytes, blocked, outstanding):
    window = measured(nbytes, 50 * MS)
    room = window.room(outstanding, blocked)
    assert room <= max(1, window.size + blocked - outstanding)
    beyond = outstanding + room - max(outstanding, window.size)
    assert beyond <= BLOCKED_TIMES * window.size
    assert beyond * nbytes <= WINDOW_BYTES
    assert room or outstanding, "one batch is always requested"


def test_without_a_blocked_batch_the_window_is_filled_in_groups_where_it_is_deep():
    deep, shallow = measured(1000, MS // 20), measured(1000, 50 * MS)
    assert [shallow.room(outstanding, 0) for outstanding in (0, 3, 4)] == [4, 1, 0]
    half = (deep.size - 2 * MIN_DEPTH) // 2
    assert [deep.room(deep.size - room, 0) for room in (half - 1, half, deep.size)] == [0, half, deep.size]


def test_a_chosen_prefetch_factor_ends_the_adaptation():
    window = measured(1000, MS // 20)
    window.set_size(5)
    window.observe(1000, MS // 20)
    assert window.size == 10


def test_a_batch_in_chunks_counts_with_its_whole_size():
    whole, chunked = measured(WINDOW_BYTES // 8, MS // 20), Window(2, adaptive=True)
    chunked.observe(WINDOW_BYTES // 32, MS // 20, chunks=4)
    assert (chunked.nbytes, chunked.size) == (whole.nbytes, whole.size)


def test_the_production_time_is_a_running_mean():
    window = Window(1, adaptive=True)
    for _ in range(50):
        window.observe(1000, MS // 4)
    window.observe(1000, 2 * MS)
    assert window.size > MIN_DEPTH, "one slow batch does not make the others slow"
    for _ in range(50):
        window.observe(1000, 9 * MS)
    assert window.size == MIN_DEPTH


def test_memory_limits_the_window_and_what_is_begun():
    window = measured(1000, MS // 20)
    assert window.limit(3)
    assert window.size == 3
    assert [window.affords(outstanding) for outstanding in (2, 3)] == [True, False]
    assert not window.limit(3), "no lower than before"
    assert not window.limit(None)
    assert window.size == window.planned == 2 * MAX_DEPTH


def test_an_asynchronous_worker_holds_the_batches_of_its_samples_in_flight_and_more_while_they_are_small():
    window = Window(2, concurrency=100)
    window.expect(10)
    assert window.depth() >= 100 // 10
    assert window.size >= 2 * 100 // 10
    few, many = window.depth(), 100 / 10
    assert few > 2 * many, "in the tail of a batch, few of its samples are in flight"
    window.observe(WINDOW_BYTES, MS)
    assert window.depth() == 10 + 2, "large batches"
