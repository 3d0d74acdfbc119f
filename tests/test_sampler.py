"""The order of samples: torch's where it is stored, a computed permutation where the dataset is large."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbloader.sampling import samplers
from nbloader.sampling.permutation import Permutation

pytestmark = pytest.mark.unit


@given(n=st.integers(1, 5000), seed=st.integers(0, 2**64 - 1))
def test_a_permutation_has_every_integer_once(n, seed):
    assert sorted(Permutation(n, seed)) == list(range(n))


@given(n=st.integers(2, 10**15), seed=st.integers(0, 2**63), start=st.integers(0, 10**15))
def test_a_permutation_of_any_size_stays_in_range_and_repeats_nothing(n, seed, start):
    start %= n
    positions = np.arange(start, min(n, start + 500))
    values = Permutation(n, seed)[positions]
    assert ((values >= 0) & (values < n)).all()
    assert len(set(values.tolist())) == len(positions)


def test_seeds_give_unrelated_orders():
    first, second = (np.array(list(Permutation(10_000, seed))) for seed in (1, 2))
    assert (first == second).mean() < 0.002
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_a_computed_order_is_as_even_as_a_drawn_one(seed):
    # where a quarter of the positions lands: each quarter of the values gets its share, within 5 standard deviations
    n = 40_000
    counts = np.bincount(Permutation(n, seed)[np.arange(n // 4)] // (n // 4), minlength=4)
    assert abs(counts - n / 16).max() < 5 * (n / 16 * 0.75) ** 0.5
    # neighbours are not neighbours any more
    values = np.array(list(Permutation(n, seed)))
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


class Claims:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


def test_a_small_dataset_is_shuffled_as_torch_shuffles_it():
    ours, _batches = samplers.make_samplers(
        Claims(100),
        batch_size=10,
        shuffle=True,
        sampler=None,
        batch_sampler=None,
        last_batch="keep",
        group=1,
        generator=torch.Generator().manual_seed(3),
    )
    theirs = torch.utils.data.RandomSampler(Claims(100), generator=torch.Generator().manual_seed(3))
    assert list(ours) == list(theirs)


def test_a_hundred_million_samples_are_shuffled_at_once():
    made, batches = samplers.make_samplers(
        Claims(100_000_000),
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
    assert list(itertools.islice(made, 32)) != first, "each epoch has an order of its own"
    assert len(batches) == 3_125_000
