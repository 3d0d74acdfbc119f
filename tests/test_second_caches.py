"""Caches that cannot gain, and lines of code whose results a cache keeps already."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from test_remedies import profiled, result

import nbloader
from nbloader.remedies.results import RemedyResult
from nbloader.remedies.trial import Cost, Kept


def spelled(x):
    """Something slow."""
    return np.array([len(repr(n * float(x[0]))) for n in range(3000)])


class Noisy:
    """What is slow has an argument that is random in each epoch."""

    def __len__(self):
        return 200

    def __getitem__(self, i):
        x = np.arange(8.0) + i + random.random()
        return spelled(x)


def test_a_function_of_random_numbers_is_not_offered_to_the_cache_however_often_it_is_tried():
    with nbloader.DataLoader(Noisy(), batch_size=10, num_workers=1) as loader:
        for _again in range(2):
            found = profiled(loader).remedies(samples=20)
            assert not [one for one in found if one.name == "same-each-epoch"]
    assert "calls had the arguments of another one" in str(found)


class Histories:
    """A cached function calls a method, which is slow in the first epoch."""

    def __init__(self, history):
        self.history = history

    def __len__(self):
        return 20_000

    def hours(self, i):
        found = np.zeros(2000)
        for n in range(2000):
            found[n] = (n * i) % 7
        return found / 3600

    def __getitem__(self, i):
        return self.history(self, i) + random.random()


def test_what_a_cache_keeps_gets_no_second_cache_and_its_remedies_are_tried_without_it():
    pytest.importorskip("numba")

    @nbloader.cached(fixed=["dataset"])
    def history(dataset, i):
        return dataset.hours(i)

    with nbloader.DataLoader(Histories(history), batch_size=10, num_workers=1) as loader:
        loader.profile_lines()
        for _batch in loader:
            if loader.hot_lines().samples >= 20:
                break
        found = loader.remedies(samples=20)
    assert not [one for one in found if one.name == "same-each-epoch"]
    (best,) = (one for one in found if one.name == "python-loop")
    assert best.uncached
    assert best.gain > 3, "the cache, which has the samples by now, would hide it"
    assert "only the first epoch gains" in str(found)
    assert "in the loop" not in str(found), "what the cached function computes is no part of a sample"


@pytest.mark.unit
def test_a_cache_that_costs_more_in_the_first_epoch_than_several_epochs_gain_is_no_remedy():
    def cache(filling: float) -> RemedyResult:
        return result("cache", 1.25, saves="later", cached=Kept(9, 9, 9), filling=Cost(1.25 * filling, 0.0))

    assert cache(1.1).helps
    assert "first epoch takes" not in cache(1.1).measurement()
    assert cache(1.9).helps
    assert "The first epoch takes 1.9x as long." in cache(1.9).measurement()
    assert not cache(4.0).helps
    assert cache(4.0).outcome() == "1.25x, but the first epoch takes 4.0x as long"
    shared = replace(cache(4.0), shared_by=20.0)
    assert shared.helps, "then only some samples of the first epoch fill it"


class Crops:
    """An epoch has several crops of each picture: their index is reduced in a function that reads the picture."""

    pictures = tuple(f"picture {number}" for number in range(8))

    def __len__(self):
        return 20 * len(self.pictures)

    def read(self, i):
        i = i % len(self.pictures)
        name = self.pictures[i]
        return np.array([len(f"{name} {n}") for n in range(30_000)], np.uint8)

    def __getitem__(self, i):
        picture = self.read(i)
        begin = random.randrange(len(picture) - 100)
        return picture[begin : begin + 100].copy()


def test_no_result_is_kept_twice_where_several_arguments_lead_to_it():
    with nbloader.DataLoader(Crops(), batch_size=10, num_workers=1) as loader:
        found = profiled(loader).remedies(samples=30)
    (best,) = (one for one in found if one.name == "same-each-epoch")
    assert "(name)" in best.proposal.helper, "the picture, not the index of the sample"
    assert not best.gains_later, "20 samples share a result"
    assert best.kept_in_all < 20 * 30_000
    assert not best.once, "what the first samples compute, they compute for all workers"


@pytest.mark.unit
@pytest.mark.parametrize(("different", "repeats"), [(0, False), (9, False), (7, False), (6, True), (1, True)])
def test_large_results_repeat_if_they_are_fewer_than_arguments(different, repeats):
    large = Kept(90_000, 9, 9, 9, 9, different=different)
    assert result("cache", 2.0, saves="later", cached=large).repeats is repeats
    assert not result("cache", 2.0, saves="later", cached=large._replace(nbytes=9 * 4096)).repeats
