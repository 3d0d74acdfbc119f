"""The reorder buffer returns every item once and in order, whatever the order of arrival."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbloader.scheduler.iteration import ReorderBuffer

pytestmark = pytest.mark.unit

PERMUTATIONS = st.integers(0, 40).flatmap(lambda n: st.permutations(range(n)))


@given(PERMUTATIONS, st.integers(0, 5))
def test_items_leave_in_order_as_soon_as_all_earlier_ones_arrived(order, first):
    buffer: ReorderBuffer[str] = ReorderBuffer(first=first)
    arrived: set[int] = set()
    out = []
    for number in order:
        freed = buffer.put(number + first, f"item {number}")
        arrived.add(number)
        missing = next(n for n in range(len(order) + 1) if n not in arrived)
        assert buffer.missing == missing + first
        assert buffer.reordering == len(arrived) - missing
        assert freed == [f"item {n}" for n in range(missing - len(freed), missing)]
        out += freed
    assert out == [f"item {n}" for n in range(len(order))]


@given(PERMUTATIONS)
def test_without_order_items_leave_in_the_order_of_arrival(order):
    buffer: ReorderBuffer[int] = ReorderBuffer(in_order=False)
    for number in order:
        assert buffer.put(number, number) == [number]
        assert buffer.reordering == 0
    assert buffer.missing == len(order)


@given(PERMUTATIONS, st.booleans(), st.data())
def test_a_number_is_accepted_only_once(order, in_order, data):
    buffer: ReorderBuffer[int] = ReorderBuffer(in_order=in_order)
    arrived = []
    for number in order:
        assert not buffer.has(number)
        buffer.put(number, number)
        arrived.append(number)
        again = data.draw(st.sampled_from(arrived))
        assert buffer.has(again)
        with pytest.raises(ValueError, match=f"item {again} has arrived before"):
            buffer.put(again, -1)


@given(PERMUTATIONS, st.booleans())
def test_drain_returns_what_has_not_left(order, in_order):
    buffer: ReorderBuffer[int] = ReorderBuffer(in_order=in_order)
    out = [item for number in order[: len(order) // 2] for item in buffer.put(number, number)]
    assert sorted(out + buffer.drain()) == sorted(order[: len(order) // 2])
    assert (buffer.reordering, buffer.drain()) == (0, [])


@given(PERMUTATIONS, st.sets(st.integers(0, 40)), st.booleans(), st.integers(0, 40))
def test_forgotten_items_are_accepted_again_once(order, gaps, in_order, taken):
    buffer: ReorderBuffer[int] = ReorderBuffer(in_order=in_order)
    left = []
    for number in order[: len(order) // 2]:
        left += buffer.skip(number) if number in gaps else buffer.put(number, number)
    gaps &= set(order[: len(order) // 2])
    order = [number for number in order if number not in gaps]
    out = left[:taken]
    buffer.forget(left[taken:] + buffer.drain())
    assert [n for n in order if buffer.has(n)] == [n for n in order if n in out]
    for number in order:
        if number not in out:
            out += buffer.put(number, number)
    assert sorted(out) == sorted(order)
    assert out == sorted(order) or not in_order
    assert all(buffer.has(number) for number in gaps)


@given(PERMUTATIONS, st.sets(st.integers(0, 40)), st.booleans())
def test_no_item_waits_for_a_skipped_number(order, gaps, in_order):
    buffer: ReorderBuffer[int] = ReorderBuffer(in_order=in_order)
    freed = []
    arrived = set()
    for number in order:
        freed += buffer.skip(number) if number in gaps else buffer.put(number, number)
        arrived.add(number)
        assert buffer.has(number)
        assert buffer.missing == next(n for n in range(len(order) + 1) if n not in arrived)
        if in_order:
            assert freed == [n for n in range(buffer.missing) if n not in gaps]
            assert buffer.reordering + len(freed) == len(arrived - gaps)
    assert sorted(freed) == [n for n in range(len(order)) if n not in gaps]
    assert buffer.drain() == []
    for number in order:
        with pytest.raises(ValueError, match="has arrived before"):
            buffer.skip(number)
