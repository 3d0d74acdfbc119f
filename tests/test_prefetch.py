"""How far ahead batches are requested, and when stealing is worth it: the numbers of the default policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbloader.scheduler.prefetch import (
    DEEP_BYTES,
    DEEP_QUEUE,
    DEEPEST_QUEUE,
    EXTENSION_BATCHES,
    EXTENSION_BYTES,
    UNWATCHED,
    PrefetchPolicy,
)

pytestmark = pytest.mark.unit

MS = 1_000_000


@given(workers=st.integers(1, 64), factor=st.integers(0, 9), total=st.none() | st.integers(0, 99))
def test_the_window_is_shared_by_the_workers(workers, factor, total):
    policy = PrefetchPolicy(workers, prefetch_factor=factor, prefetch=total)
    assert policy.window == (factor * workers if total is None else total)
    assert policy.prefetches == (policy.window > 0)
    assert policy.queue_depth >= 1
    assert policy.queue_depth * workers >= policy.window
    policy.resize(1)
    assert policy.window == (factor if total is None else total)
    policy.set_window(3)
    assert policy.window == policy.queue_depth == 3


@pytest.mark.parametrize(
    ("nbytes", "produce_ns", "window"),
    [(1000, MS, 2 * DEEPEST_QUEUE), (1000, 3 * MS, 4), (1 << 20, MS, 4)],
    ids=["small and fast", "slow", "large"],
)
def test_the_window_grows_while_batches_are_small_and_fast(nbytes, produce_ns, window):
    policy = PrefetchPolicy(2, prefetch_factor=2, adaptive=True)
    policy.observe(nbytes, produce_ns)
    policy.adapt()
    assert policy.window == window
    policy.observe(1 << 30, MS)
    policy.adapt()
    assert policy.window == 4
    fixed = PrefetchPolicy(2, prefetch_factor=2)
    fixed.observe(nbytes, produce_ns)
    fixed.adapt()
    assert fixed.window == 4


def test_a_consumer_waits_for_fast_batches_in_groups():
    policy = PrefetchPolicy(1, prefetch_factor=2, adaptive=True)
    policy.observe(1000, MS // 10)
    assert policy.group(16) == 1, "while the window is shallow"
    policy.adapt()
    assert [policy.group(held) for held in (16, 8, 3, 0)] == [6, 4, 1, 1]
    slower = PrefetchPolicy(1, prefetch_factor=2, adaptive=True)
    slower.observe(1000, MS)
    slower.adapt()
    assert slower.group(16) == 1


def test_small_fast_batches_arrive_unwatched_while_workers_have_others_queued():
    policy = PrefetchPolicy(2, prefetch_factor=2, adaptive=True)
    policy.observe(1000, MS // 2)  # one every 0.25 ms
    assert policy.unwatched(32) == 0, "while the window is shallow"
    policy.adapt()
    assert policy.unwatched(32) == UNWATCHED
    assert policy.unwatched(8) == pytest.approx(0.001), "workers keep half of what they hold"
    assert [policy.unwatched(held) for held in (3, 1, 0)] == [0, 0, 0], "fewer than two would arrive"
    slower = PrefetchPolicy(1, prefetch_factor=2, adaptive=True)
    slower.observe(1000, int(1.5 * MS))
    slower.adapt()
    assert slower.unwatched(32) == 0
    waiting = PrefetchPolicy(2, prefetch_factor=2, adaptive=True, concurrency=100)
    waiting.observe(1000, MS // 2)
    waiting.adapt()
    assert waiting.unwatched(32) == 0, "many samples of an asynchronous dataset are in flight"


def test_a_chosen_prefetch_factor_ends_the_adaptation():
    policy = PrefetchPolicy(2, prefetch_factor=2, adaptive=True)
    policy.observe(1000, MS)
    policy.adapt()
    policy.set_window(5)
    policy.adapt()
    assert policy.window == 10


def test_batches_are_requested_in_groups_except_beyond_the_window():
    policy = PrefetchPolicy(2, prefetch_factor=16)
    assert [policy.refill_size(room, 0) for room in (0, 1, 3, 4, 32)] == [0, 0, 0, 4, 32]
    assert [policy.refill_size(room, extension=2) for room in (1, 2, 3)] == [1, 2, 0]


def test_a_deep_window_is_extended_by_several_batches_at_once():
    assert [PrefetchPolicy(2, prefetch_factor=factor).extension_step for factor in (1, 2, 16)] == [1, 1, 4]


@given(nbytes=st.integers(0, 1 << 32), workers=st.integers(1, 16))
def test_the_extension_of_the_window_is_bounded_in_batches_and_bytes(nbytes, workers):
    policy = PrefetchPolicy(workers)
    policy.observe(nbytes, MS)
    extension = policy.extended_window - policy.window
    assert 0 <= extension <= EXTENSION_BATCHES * workers
    assert extension * nbytes <= EXTENSION_BYTES


def test_a_batch_in_chunks_counts_with_its_whole_size():
    policy = PrefetchPolicy(1)
    policy.observe(EXTENSION_BYTES // 8, MS, chunks=4)
    assert policy.extended_window - policy.window == 2


@pytest.mark.parametrize(("produce_ns", "steal", "queue"), [(MS // 10, 10, 22), (MS, 1, 4), (50 * MS, 1, 2)])
def test_fast_batches_are_stolen_and_queued_in_larger_numbers(produce_ns, steal, queue):
    policy = PrefetchPolicy(2)
    policy.observe(1000, produce_ns)
    assert (policy.min_steal, policy.sufficient_queue) == (steal, queue)


def test_half_of_a_deep_window_is_requested_at_once():
    policy = PrefetchPolicy(2, adaptive=True)
    policy.observe(1000, MS // 20)
    policy.adapt()
    half = policy.window // 2
    assert half == DEEPEST_QUEUE
    assert [policy.refill_size(room, 0) for room in (half - 1, half)] == [0, half]


@pytest.mark.parametrize(
    ("workers", "nbytes", "deep_bytes", "window"),
    [
        (2, 2000, None, 2 * DEEPEST_QUEUE),
        (2, 400_000, None, DEEP_BYTES // 400_000),
        (100, 400_000, None, 100 * DEEP_QUEUE),
        (12, 1 << 19, EXTENSION_BYTES, EXTENSION_BYTES >> 19),
    ],
    ids=["small batches", "as many as there is memory for", "never fewer than usual", "more memory"],
)
def test_as_many_batches_are_requested_as_fit_into_memory(workers, nbytes, deep_bytes, window):
    policy = PrefetchPolicy(workers, adaptive=True, deep_bytes=deep_bytes)
    for size in (1000, nbytes, nbytes):  # they grow
        policy.observe(size, MS // 20)
        policy.adapt()
    assert policy.window == window


def test_before_the_first_batch_any_number_is_worth_stealing():
    assert PrefetchPolicy(2).min_steal == 1


def test_the_production_time_is_a_running_mean():
    policy = PrefetchPolicy(1)
    for _ in range(50):
        policy.observe(1000, MS)
    policy.observe(1000, 5 * MS)
    assert policy.fast, "one slow batch does not make the others slow"
    for _ in range(50):
        policy.observe(1000, 9 * MS)
    assert not policy.fast
