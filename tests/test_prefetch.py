"""How far ahead batches are requested, and how many of them a worker holds: the numbers of the default policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbloader.sampling.samplers import may_learn
from nbloader.scheduler import prefetch
from nbloader.scheduler.prefetch import BLOCKED_TIMES, MAX_DEPTH, MIN_DEPTH, WINDOW_BYTES, Load, Plan, Window

pytestmark = pytest.mark.unit

MS = 1_000_000


def adaptive(workers=2, nbytes=1000, produce_ns=MS // 50):
    window = Window(Load(num_workers=workers, adaptive=True))
    window.observe(nbytes, produce_ns)
    return window


@given(workers=st.integers(1, 64), factor=st.integers(0, 9), total=st.none() | st.integers(0, 99))
def test_a_given_window_is_shared_by_the_workers_and_a_total_is_never_exceeded(workers, factor, total):
    window = Window(Load(num_workers=workers, prefetch_factor=factor, prefetch=total, strict=total is None))
    window.observe(1000, MS)
    assert window.plan.size == (factor * workers if total is None else total)
    assert window.prefetches == (window.plan.size > 0)
    assert window.depth(0) == window.depth(9) >= 1
    assert window.depth(0) * workers >= window.plan.size
    assert window.room(0, 0) == max(1, window.plan.size)
    assert all(window.room(max(1, window.plan.size), blocked) == 0 for blocked in (0, 1, window.plan.size))
    window.resize(1)
    assert window.plan.size == (factor if total is None else total)
    window.set_size(3)
    assert window.plan.size == window.depth(0) == 3


@pytest.mark.parametrize(
    ("nbytes", "produce_ns", "depth"),
    [
        (1000, MS // 50, MAX_DEPTH),
        (1000, MS // 4, 8),
        (1000, 3 * MS, MIN_DEPTH),
        (WINDOW_BYTES // 6, MS // 50, 3),
        (WINDOW_BYTES, MS // 50, MIN_DEPTH),
        (0, 0, MAX_DEPTH),
    ],
    ids=["small and fast", "2 ms", "slow", "as many as fit", "large", "empty"],
)
def test_a_worker_holds_what_takes_2_ms(nbytes, produce_ns, depth):
    window = adaptive(2, nbytes, produce_ns)
    assert (window.plan.size, window.depth(0)) == (2 * depth, depth)
    given_by_user = Window(Load(num_workers=2))
    given_by_user.observe(nbytes, produce_ns)
    assert given_by_user.plan.size == 2 * MIN_DEPTH


@given(
    workers=st.integers(1, 100), nbytes=st.integers(0, 1 << 32), produce_ns=st.integers(0, 10**10),
    outstanding=st.integers(1, 10_000), data=st.data(),
)  # fmt: skip
def test_blocked_batches_do_not_count_up_to_a_credit_of_batches_and_bytes(
    workers, nbytes, produce_ns, outstanding, data
):
    window = adaptive(workers, nbytes, produce_ns)
    blocked = data.draw(st.integers(0, outstanding - 1))
    after = outstanding + window.room(outstanding, blocked)
    assert after == outstanding or after <= window.plan.size + blocked
    beyond = after - window.plan.size
    if after > outstanding and beyond > 0:
        assert beyond <= BLOCKED_TIMES * window.plan.size
        assert beyond * nbytes <= WINDOW_BYTES
    assert MIN_DEPTH <= window.depth(blocked) <= MAX_DEPTH
    assert (window.depth(0) - MIN_DEPTH) * workers * nbytes <= WINDOW_BYTES


def test_until_the_size_of_a_batch_is_known_a_worker_holds_one():
    window = Window(Load(num_workers=2, adaptive=True))
    assert (window.plan.size, window.depth(0)) == (2 * MIN_DEPTH, 1)
    window.observe(1000, 9 * MS)
    assert window.depth(0) == MIN_DEPTH


def test_one_message_requests_several_batches_if_workers_hold_many():
    window = adaptive()
    step = window.plan.size // 2 - MIN_DEPTH
    assert [window.room(window.plan.size - free, 0) for free in (step - 1, step, step + 1)] == [0, step, step + 1]
    slow = adaptive(produce_ns=9 * MS)
    assert [slow.room(slow.plan.size - free, 0) for free in (0, 1, 2)] == [0, 1, 2]


def test_a_batch_in_chunks_counts_with_its_whole_size():
    window = Window(Load(num_workers=1, adaptive=True))
    window.observe(WINDOW_BYTES // 8, 9 * MS, chunks=4)
    assert window.room(99, blocked=99) == 0
    assert window.room(MIN_DEPTH, blocked=MIN_DEPTH - 1) == 1
    assert window.room(MIN_DEPTH + 2, blocked=MIN_DEPTH + 1) == 0


def test_a_chosen_prefetch_factor_ends_the_adaptation():
    window = adaptive()
    window.set_size(5)
    window.observe(1000, MS // 50)
    assert window.plan.size == 10
    window.set_size(MIN_DEPTH, adaptive=True)
    assert window.plan.size == 2 * MAX_DEPTH


def test_the_production_time_is_a_running_mean():
    window = adaptive(produce_ns=MS // 10)
    for _ in range(50):
        window.observe(1000, MS // 10)
    assert window.depth(0) == MAX_DEPTH
    window.observe(1000, MS // 2)
    assert window.depth(0) > MAX_DEPTH // 2, "one slow batch does not make the others slow"
    for _ in range(50):
        window.observe(1000, 9 * MS)
    assert window.depth(0) == MIN_DEPTH


def test_samplers_of_other_classes_may_learn_from_the_loop():
    torch_data = pytest.importorskip("torch.utils.data")

    class Learns:
        def __iter__(self):
            return iter([0])

    known = torch_data.SequentialSampler([0])
    assert not any(map(may_learn, (None, [0], iter([0]), known, torch_data.BatchSampler(known, 1, False))))
    assert all(map(may_learn, (Learns(), torch_data.BatchSampler(Learns(), 1, False))))


def as_torch(load: Load) -> Plan:
    """Plan that the workers hold what the user asked for, whatever a batch costs, and nothing beyond."""
    size = load.num_workers * load.prefetch_factor if load.prefetch is None else load.prefetch
    if load.affordable is not None:
        size = min(size, load.affordable)
    depth = max(1, -(-size // load.num_workers))
    return Plan(
        planned=size, size=size, blocked_size=size, credit=size, depth=depth, blocked_depth=depth, step=1,
    )  # fmt: skip


def test_another_policy_requests_nothing_while_batches_are_blocked(monkeypatch):
    monkeypatch.setattr(prefetch, "POLICY", as_torch)
    window = Window(Load(num_workers=2, prefetch_factor=3))
    window.observe(nbytes=1000, produce_ns=20_000)
    assert window.depth(blocked=5) == 3
    assert window.room(outstanding=6, blocked=5) == 0
    assert window.room(outstanding=4, blocked=0) == 2
