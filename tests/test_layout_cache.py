"""Batches with a cached layout equal those that are planned; batches with another layout are planned."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same import assert_same

from nbloader.batch.collate import Plan
from nbloader.batch.layout_cache import MAX_SIZES, LayoutCache
from nbloader.batch.rebuild import builder

pytestmark = pytest.mark.unit

LEAVES = (
    lambda i: np.full(3, i, np.float32),
    lambda i: np.full((2, 3), i, np.float32),
    lambda i: np.full((3, 2), i, np.float32),
    lambda i: np.full(3, i, np.float64),
    lambda i: np.full(3, i, np.float16),
    lambda i: np.full(3, i, ">f4"),
    lambda i: np.full(4, i, np.float32),
    lambda i: np.full((4, 6), i, np.float32)[:, ::2],
    lambda i: np.full(3, i % 2, bool),
    lambda i: np.full(16, i, np.float32),
    lambda i: np.full((4, 4), i, np.int32),
    lambda i: np.full((4, 8), i, np.int32)[:, ::2],
    lambda i: np.full(16, i, ">f4"),
    lambda i: np.zeros((0, 3), np.float32),
    lambda i: np.zeros((3, 0), np.float32),
    lambda i: np.array(i, np.float32),
    lambda i: np.ma.masked_array([i, 2], [True, False]),
    lambda i: i,
    float,
    lambda i: i % 2 == 0,
    lambda i: 2**70 + i,
    np.int32,
    np.float64,
    lambda i: f"text {i}",
    lambda i: b"bytes",
    lambda i: torch.full((3,), float(i)),
    lambda i: torch.full((3,), i),
    lambda i: torch.full((3,), float(i), dtype=torch.bfloat16),
    lambda i: torch.full((3,), float(i), requires_grad=True),
    lambda i: torch.full((2, 3), float(i)),
    torch.tensor,
)

structures = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.lists(inner, min_size=1, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    ),
    max_leaves=4,
)


def made(structure, i):
    if isinstance(structure, (tuple, list)):
        return type(structure)(made(part, i) for part in structure)
    if isinstance(structure, dict):
        return {key: made(part, i) for key, part in structure.items()}
    return structure(i)


def planned(samples):
    """The result of a plan: a batch, or the type and text of an error."""
    try:
        plan = Plan(samples)
        memory = bytearray(plan.nbytes)
        plan.fill(memory)
        return builder(plan.tree, "torch")(memory, plan.extras)
    except Exception as error:
        return type(error), str(error)


def filled(cache, samples):
    """The result with the cache, and whether the layout was cached."""
    entry = cache.get(len(samples))
    if entry is not None:
        fill, nbytes, tree = entry
        memory, extras = bytearray(b"\xa5" * nbytes), []
        try:
            fill(samples, memory, extras)
        except Exception:
            cache.forget(len(samples))
        else:
            return builder(tree, "torch")(memory, extras), True
    try:
        plan = Plan(samples)
    except Exception as error:
        return (type(error), str(error)), False
    memory = bytearray(plan.nbytes)
    try:
        plan.fill(memory)
    except Exception as error:
        return (type(error), str(error)), False
    cache.learn(plan, samples, plan.tree)
    return builder(plan.tree, "torch")(memory, plan.extras), False


@given(
    st.lists(structures, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.none() | st.tuples(st.integers(0, 2), structures))),
)
def test_in_any_sequence_of_batches_each_equals_the_planned_one(kinds, batches):
    """Batches of two or three structures in any order; in some of them one sample is of another structure."""
    cache = LayoutCache()
    for number, (kind, size, odd) in enumerate(batches):
        samples = [made(kinds[kind % len(kinds)], 10 * number + i) for i in range(size)]
        if odd is not None:
            samples[odd[0] % size] = made(odd[1], number)
        got, _ = filled(cache, samples)
        assert_same(got, planned(samples))


@pytest.mark.parametrize(
    "structure",
    [
        {"a": LEAVES[0], "b": (LEAVES[1], LEAVES[17]), "c": [LEAVES[23], LEAVES[18]]},
        (LEAVES[7], LEAVES[8], LEAVES[19], LEAVES[21], LEAVES[24]),
        (LEAVES[25], LEAVES[27], LEAVES[30]),
        {"a": LEAVES[9], "b": LEAVES[10], "c": LEAVES[9]},
        {"a": LEAVES[9], "b": LEAVES[11], "c": LEAVES[10]},
    ],
    ids=["dict", "tuple", "tensors", "small", "small and strided"],
)
def test_the_third_batch_of_a_layout_is_not_planned(structure):
    cache = LayoutCache()
    for number in range(4):
        samples = [made(structure, 10 * number + i) for i in range(3)]
        got, was_cached = filled(cache, samples)
        assert was_cached == (number > 1)
        assert_same(got, planned(samples))


def test_layouts_that_all_differ_are_never_cached():
    cache = LayoutCache()
    for number in range(10):
        _, was_cached = filled(cache, [np.zeros(number + 1, np.float32)] * 2)
        assert not was_cached


@pytest.mark.parametrize(
    "odd",
    [
        np.zeros(3, np.float64),
        np.zeros(2, np.float32),
        np.zeros((3, 1), np.float32),
        np.zeros(3, ">f4"),
        np.array(0, np.float32),
        np.ma.masked_array(np.zeros(3, np.float32), [True, False, True]),
        [0.0, 0.0, 0.0],
        torch.zeros(3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_different_array_is_noticed(odd, place):
    cache = LayoutCache()
    for _ in range(2):
        filled(cache, [np.ones(3, np.float32)] * 3)
    samples = [np.ones(3, np.float32)] * 3
    samples[place] = odd
    got, was_cached = filled(cache, samples)
    assert not was_cached
    assert_same(got, planned(samples))


SMALL = {"a": np.full(16, 1, np.float32), "b": np.full((4, 4), 2, np.int32), "c": np.full(16, 3, np.float32)}


@pytest.mark.parametrize(
    "odd",
    [
        SMALL | {"c": np.full(16, 4, np.int32)},
        SMALL | {"c": np.full(8, 4, np.float64)},
        SMALL | {"c": np.full(16, 4, ">f4")},
        SMALL | {"c": [4.0] * 16},
        SMALL | {"b": np.full((2, 8), 4, np.int32)},
        SMALL | {"b": np.full((4, 4), 4, np.int32, order="F")},
        SMALL | {"b": np.ma.masked_array(np.full((4, 4), 4, np.int32), True)},
        SMALL | {"d": np.zeros(16, np.float32)},
        {key: SMALL[key] for key in "cab"},
        {key: SMALL[key] for key in "ab"},
        collections.OrderedDict(SMALL),
        list(SMALL.values()),
    ],
    ids=lambda odd: " ".join(str(odd).split())[-60:],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_different_dict_of_small_arrays_is_noticed(odd, place):
    cache = LayoutCache()
    for _ in range(2):
        filled(cache, [SMALL] * 3)
    samples = [SMALL] * 3
    samples[place] = odd
    got, _was_cached = filled(cache, samples)
    assert_same(got, planned(samples))


def test_different_lengths_with_the_same_sum_are_noticed():
    cache = LayoutCache()
    for _ in range(2):
        filled(cache, [np.ones((3, 2), np.float32)] * 3)
    uneven = [np.ones((n, 2), np.float32) for n in (2, 4, 3)]
    (error, text), was_cached = filled(cache, uneven)
    assert not was_cached
    assert error is RuntimeError
    assert "equal size" in text


def test_the_cache_is_bounded():
    cache = LayoutCache()
    for size in range(1, 5 * MAX_SIZES):
        for _ in range(2):
            filled(cache, [1.0] * size)
    assert len(cache._trees) <= MAX_SIZES
    assert len(cache._known) <= MAX_SIZES
