"""Samples that are the same in each epoch, and fit into memory, can be made once, as rows of tensors."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, default_collate

import nbloader
from nbloader.loader.all_samples import AllSamples
from nbloader.loader.remedy_search import Produce, Samples
from nbloader.remedies.difference import difference


class Made:
    """Samples that a function makes, slowly."""

    def __init__(self, make, length=64):
        self.make, self.length = make, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        time.sleep(0.0004)
        return self.make(i, 0)


def rows(i, zero):
    return np.full((3, 4), i + zero, np.float32), torch.arange(i, i + 2), i, i / 7


def measured(make, count=8):
    dataset = Made(make, count)
    return AllSamples(Produce(Samples(dataset, default_collate, (), iterable=False)), range(count))[0]


@pytest.mark.unit
def test_arrays_and_numbers_are_measured_as_rows():
    found = measured(rows).measured
    assert found.samples == 8
    assert found.difference.equal
    assert found.kept.nbytes == 8 * (3 * 4 * 4 + 2 * 8 + 8 + 8)
    assert 0 < found.after.seconds < found.before.seconds


@pytest.mark.unit
@pytest.mark.parametrize(
    "make",
    [
        lambda _i, _zero: (np.random.random(3), 1),
        lambda i, _zero: (torch.rand(3), i),
        lambda i, _zero: (np.zeros(i), i),
        lambda i, _zero: {1: np.zeros(3), "y": i},
        lambda i, _zero: {"x": {"y": i}},
        lambda i, _zero: (np.zeros(3), str(i)),
        lambda i, _zero: (np.zeros(3), [i, i]),
        lambda i, zero: (i, 1 / zero if i > 4 else i),
    ],
    ids=["random", "torch random", "shapes", "key", "dicts", "text", "nested", "raises"],
)
def test_other_samples_are_not(make):
    assert measured(make) is None


KINDS = {
    "tuple": rows,
    "dict": lambda i, zero: dict(zip(("image", "ids", "label", "weight"), rows(i, zero), strict=True)),
    "array": lambda i, _zero: np.full((3, 4), i % 200, np.uint8),
    "number": lambda i, _zero: i / 7,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_gives_the_same_batches_and_is_the_first_remedy(kind):
    dataset = Made(KINDS[kind], length=512)
    with nbloader.DataLoader(dataset, batch_size=8, num_workers=2) as loader:
        loader.profile_lines()
        expected = list(loader)
        found = loader.remedies()
    first = found[0]
    assert first.name == "all-samples"
    assert first.gain > 10
    assert "The samples are equal." in str(found)
    assert "once, before the loader is made" in str(found)
    names = {"dataset": dataset, "DataLoader": nbloader.DataLoader}
    exec(first.code, names)
    with nbloader.DataLoader(names["dataset"], batch_size=8) as made:
        assert difference(expected, list(made)).equal


def own_collate(samples):
    """What may need the samples as they are."""
    return default_collate(samples)


class Stream(IterableDataset):
    def __iter__(self):
        return map(Made(rows).__getitem__, range(64))


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Made(rows), {"collate_fn": own_collate}),
        (Made(rows), {"batch_size": None}),
        (Stream(), {}),
    ],
    ids=["collate_fn", "samples", "iterable"],
)
def test_it_is_not_proposed_where_a_loader_does_not_take_rows(dataset, options):
    with nbloader.DataLoader(dataset, **{"batch_size": 8, "num_workers": 1} | options) as loader:
        loader.profile_lines()
        for _ in loader:
            pass
        assert "all-samples" not in [one.name for one in loader.remedies()]
