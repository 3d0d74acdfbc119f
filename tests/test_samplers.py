"""Random orders: torch's for small datasets, a computed permutation for large ones."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbloader.sampling import samplers
from nbloader.sampling.permutation import Permutation

pytestmark = pytest.mark.unit


@given(n=st.integers(1, 5000), seed=st.integers(0, 2**64 - 1))
def test_a_permutation_contains_every_integer_once(n, seed):
    assert sorted(Permutation(n, seed)) == list(range(n))


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1), st.data())
@settings(max_examples=40, deadline=None)
def test_the_position_of_an_integer_in_a_permutation(n, seed, data):
    value = data.draw(st.integers(0, n - 1))
    permutation = Permutation(n, seed)
    assert permutation[np.array([permutation.position(value)])].tolist() == [value]


@given(n=st.integers(2, 10**15), seed=st.integers(0, 2**63), start=st.integers(0, 10**15))
def test_a_large_permutation_stays_in_range_without_duplicates(n, seed, start):
    start %= n
    positions = np.arange(start, min(n, start + 500))
    values = Permutation(n, seed)[positions]
    assert ((values >= 0) & (values < n)).all()
    assert len(set(values.tolist())) == len(positions)


def test_different_seeds_give_uncorrelated_orders():
    first, second = (np.array(list(Permutation(10_000, seed))) for seed in (1, 2))
    assert (first == second).mean() < 0.002
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_a_computed_permutation_is_uniform(seed):
    # The first quarter of the positions is spread evenly over the four quarters of values (5 standard deviations).
    n = 40_000
    counts = np.bincount(Permutation(n, seed)[np.arange(n // 4)] // (n // 4), minlength=4)
    assert abs(counts - n / 16).max() < 5 * (n / 16 * 0.75) ** 0.5
    # Adjacent positions are uncorrelated.
    values = np.array(list(Permutation(n, seed)))
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


class OfLength:
    """A dataset with a length and no samples."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


def test_a_small_dataset_is_shuffled_as_in_torch():
    ours, _batches = samplers.make_samplers(
        OfLength(100),
        batch_size=10,
        shuffle=True,
        sampler=None,
        batch_sampler=None,
        last_batch="keep",
        group=1,
        generator=torch.Generator().manual_seed(3),
    )
    theirs = torch.utils.data.RandomSampler(OfLength(100), generator=torch.Generator().manual_seed(3))
    assert list(ours) == list(theirs)


def test_a_hundred_million_samples_are_shuffled_without_delay():
    made, batches = samplers.make_samplers(
        OfLength(100_000_000),
        batch_size=32,
        shuffle=True,
        sampler=None,
        batch_sampler=None,
        last_batch="keep",
        group=1,
        generator=torch.Generator().manual_seed(3),
    )
    first = next(iter(batches))
    assert len(set(first)) == 32
    assert all(0 <= index < 100_000_000 for index in first)
    assert list(itertools.islice(made, 32)) != first, "each epoch has its own order"
    assert len(batches) == 3_125_000
