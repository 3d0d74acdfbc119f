"""Samples that are the same in each epoch, and fit into memory, can be made once: as rows, or as a shared list."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, default_collate

import nbloader
from nbloader.diagnose.what_if import Prediction
from nbloader.loader.all_samples import AllSamples
from nbloader.loader.remedy_search import Samples, search
from nbloader.metrics.hot_lines import HotLine, HotLines
from nbloader.remedies.difference import difference
from nbloader.remedies.site import NO_FACTS


class Made:
    """Samples that a function makes, slowly."""

    def __init__(self, make, length=64):
        self.make, self.length = make, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        time.sleep(0.001)
        return self.make(i, 0)


def own_collate(samples):
    """What may need the samples as they are."""
    return default_collate(samples)


def padded(samples):
    return torch.nn.utils.rnn.pad_sequence([sample["x"] for sample in samples]), [sample["name"] for sample in samples]


def counted(samples):
    """Change the samples, as a collate function may."""
    for sample in samples:
        np.add(sample, 1, out=sample)
    return default_collate(samples)


def cropped(samples):
    shortest = min(map(len, samples))
    for sample in samples:
        del sample[shortest:]
    return torch.tensor(samples)


def numbered(samples):
    for number, sample in enumerate(samples):
        sample.append(number)
    return torch.tensor([sum(sample) for sample in samples])


def rows(i, zero):
    return np.full((3, 4), i + zero, np.float32), torch.arange(i, i + 2), i, i / 7


def measured(dataset, count=8, collate_fn=default_collate):
    samples = Samples(dataset, collate_fn, (), iterable=False)
    usual = collate_fn is default_collate
    return AllSamples(dataset, samples.producer, range(count), 4, 60.0, makes_rows=usual)[0]


@pytest.mark.unit
@pytest.mark.parametrize("dataset", [Made(rows, 8), torch.utils.data.Subset(Made(rows, 9), range(1, 9))])
def test_arrays_and_numbers_are_measured_as_rows(dataset):
    found = measured(dataset).measured
    assert found.samples == 8
    assert found.difference.equal
    assert found.kept.nbytes == 8 * (3 * 4 * 4 + 2 * 8 + 8 + 8)
    assert 0 < found.after.seconds < found.before.seconds


def graph(i, _zero):
    return {"x": torch.full((i % 5, 3), float(i)), "name": str(i)}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("make", "collate_fn"),
    [
        (lambda i, _zero: {1: np.zeros(3), "y": i}, default_collate),
        (lambda i, _zero: {"x": {"y": i}}, default_collate),
        (lambda i, _zero: (np.zeros(3), str(i)), default_collate),
        (lambda i, _zero: (np.zeros(3), [i, i]), default_collate),
        (rows, own_collate),
        (graph, padded),
    ],
    ids=["key", "dicts", "text", "nested", "own collate", "shapes"],
)
def test_other_samples_are_measured_as_a_shared_list(make, collate_fn):
    found = measured(Made(make, 8), collate_fn=collate_fn)
    assert found.is_list
    assert found.measured.samples == 8
    assert found.measured.difference.equal
    assert 0 < found.measured.after.seconds < found.measured.before.seconds
    assert found.nbytes(80) == 10 * found.measured.kept.nbytes > 0
    assert found.making >= 0.001, "what a sample takes, without collating"


@pytest.mark.parametrize("collate_fn", [counted, numbered, cropped], ids=["array", "list", "shorter"])
def test_a_collate_function_may_change_the_samples(collate_fn):
    make = (lambda i, _zero: np.full(3, i)) if collate_fn is counted else (lambda i, _zero: list(range(i % 7 + 1)))
    with nbloader.DataLoader(Made(make, length=256), batch_size=8, num_workers=2, collate_fn=collate_fn) as loader:
        loader.profile_lines()
        expected = list(loader)
        found = loader.remedies()
    names = {"dataset": loader.dataset}
    exec(found[0].code, names)
    options = {"batch_size": 8, "collate_fn": collate_fn}
    with nbloader.DataLoader(names["dataset"], num_workers=1, persistent_workers=True, **options) as made:
        for _epoch in range(3):
            assert difference(expected, list(made)).equal


class Reused(Made):
    """Each sample is the same buffer, with which a loop may be content if batches have one sample."""

    buffer = np.zeros(3)

    def __getitem__(self, i):
        time.sleep(0.001)
        self.buffer[:] = i
        return self.buffer


@pytest.mark.unit
@pytest.mark.parametrize("collate_fn", [default_collate, own_collate])
def test_samples_in_one_buffer_are_not(collate_fn, caplog):
    samples = Samples(Reused(None), collate_fn, (), iterable=False)
    with caplog.at_level("DEBUG", logger="nbloader.loader.all_samples"):
        tried = AllSamples(samples.dataset, samples.producer, range(8), 1, 60.0, collate_fn is default_collate)
        assert tried[0] is None
    assert not caplog.records, "nothing was raised"


@pytest.mark.unit
@pytest.mark.parametrize(
    "make",
    [
        lambda _i, _zero: (np.random.random(3), 1),
        lambda i, _zero: (torch.rand(3), i),
        lambda i, _zero: (np.zeros(i), i),
        lambda i, zero: (i, 1 / zero if i > 4 else i),
    ],
    ids=["random", "torch random", "shapes without a collate function for them", "raises"],
)
def test_other_samples_are_not(make, caplog):
    with caplog.at_level("DEBUG", logger="nbloader.loader.all_samples"):
        assert measured(Made(make, 8)) is None
    raised = [record.exc_info[1] for record in caplog.records]
    assert all(isinstance(error, (ZeroDivisionError, RuntimeError)) for error in raised), raised


class Epochs(Made):
    """Its samples depend on an attribute that a loop changes."""

    epoch = 0


class Generator(Made):
    """It has a generator, which rarely matters."""

    def __init__(self, make, length):
        super().__init__(make, length)
        self.rng = np.random.default_rng(0)


class Seeded(Made):
    """Its samples depend on the worker."""

    def __getitem__(self, i):
        return rows(i, 0 if nbloader.get_worker_info() is None else 1)


class Whole(Made):
    """It makes batches, in which a sample may depend on the others."""

    def __getitems__(self, indices):
        return [self[i] for i in indices]


def rare(i, _zero):
    return (-i if np.random.random() < 1e-9 else i), i


@pytest.mark.unit
@pytest.mark.parametrize(
    "dataset",
    [
        Epochs(rows, 8),
        Generator(rows, 8),
        Seeded(rows, 8),
        Whole(rows, 8),
        torch.utils.data.Subset(torch.utils.data.Subset(Epochs(rows, 9), range(8)), range(8)),
        Made(rare, 8),
    ],
    ids=["epoch", "generator", "worker", "batches", "subset", "rare draws"],
)
def test_samples_that_may_change_are_not_made_once_even_if_they_were_equal(dataset):
    assert measured(dataset) is None


KINDS = {
    "tuple": rows,
    "dict": lambda i, zero: dict(zip(("image", "ids", "label", "weight"), rows(i, zero), strict=True)),
    "array": lambda i, _zero: np.full((3, 4), i % 200, np.uint8),
    "number": lambda i, _zero: i / 7,
    "graph": graph,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_gives_the_same_batches_and_is_the_first_remedy(kind, monkeypatch):
    monkeypatch.setattr("nbloader.loader.remedy_search.ENOUGH", 1e9)  # whatever a cache gains on this machine
    dataset = Made(KINDS[kind], length=512)
    collate_fn = padded if kind == "graph" else None
    with nbloader.DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=collate_fn) as loader:
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
    with nbloader.DataLoader(names["dataset"], batch_size=8, collate_fn=collate_fn) as made:
        assert difference(expected, list(made)).equal


class Stream(IterableDataset):
    def __iter__(self):
        return map(Made(rows).__getitem__, range(64))


class Unsized:
    """A dataset without a length."""

    def __init__(self, make):
        self.made = Made(make)

    def __getitem__(self, i):
        return self.made[i]


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Made(rows), {"batch_size": None}),
        (Stream(), {}),
        (Made(rows), {"worker_init_fn": print}),
        (Made(rows), {"sampler": range(32)}),
        (Unsized(rows), {"sampler": range(64)}),
    ],
    ids=["samples", "iterable", "worker_init_fn", "a part", "no length"],
)
def test_it_is_not_proposed_where_samples_may_change_or_are_not_all(dataset, options):
    with nbloader.DataLoader(dataset, **{"batch_size": 8, "num_workers": 1} | options) as loader:
        loader.profile_lines()
        for _ in loader:
            pass
        assert "all-samples" not in [one.name for one in loader.remedies()]


def not_predicted(_saved, change, *, unlocks):
    return Prediction(change=change, measured=1.0, reason=f"the test has no epoch ({unlocks})")


def own_line(share):
    """What nbloader itself does, as a line."""
    line = {"source": "", "place": "nbloader", "function": "fetching", "file": "<nbloader>", "line": 0}
    return HotLine(share=share, computing=share, waiting=0.0, total=share, **line)


@pytest.mark.unit
@pytest.mark.parametrize("lines", [(), (own_line(0.9),)], ids=["not measured", "none of the user's"])
def test_it_is_proposed_where_no_line_of_the_users_code_takes_the_time(lines):
    facts = NO_FACTS._replace(samples=64, seconds=0.001)
    samples = Samples(Made(rows, 64), default_collate, range(64), iterable=False, facts=facts)

    def found(samples):
        return search(HotLines(lines=lines, samples=100), samples, list, not_predicted)

    assert [one.name for one in found(samples)] == ["all-samples"] * len(lines)
    assert not found(samples._replace(dataset=torch.zeros(64, 3))), "such batches are gathered already"
    if lines:
        assert "90% of the workers' time: fetching (nbloader)" in str(found(samples))


def predicted(speedup):
    def predict(_saved, change, *, unlocks):
        return Prediction(change=change, measured=1.0, speedup=speedup, low=speedup, high=speedup, reason=str(unlocks))

    return predict


@pytest.mark.unit
@pytest.mark.parametrize(("speedup", "names"), [(1.0, []), (3.0, ["all-samples"])])
def test_it_is_not_proposed_where_the_loop_would_not_be_faster(speedup, names):
    facts = NO_FACTS._replace(samples=64, seconds=0.001)
    samples = Samples(Made(rows, 64), default_collate, range(64), iterable=False, facts=facts)
    found = search(HotLines(lines=(own_line(0.9),), samples=100), samples, list, predicted(speedup))
    assert [one.name for one in found] == names


class Padding(Made):
    """Samples of several lengths; its own method makes batches of them."""

    def pad(self, samples):
        return torch.nn.utils.rnn.pad_sequence(samples)


@pytest.mark.unit
def test_a_collate_function_of_the_dataset_is_kept():
    dataset = Padding(lambda i, _zero: torch.arange(i % 5 + 1), 64)
    facts = NO_FACTS._replace(samples=64, seconds=0.001)
    samples = Samples(dataset, dataset.pad, range(64), iterable=False, facts=facts)
    (found,) = search(HotLines(lines=(own_line(0.9),), samples=100), samples, list, not_predicted)
    names = {"dataset": dataset}
    exec(found.code, names)
    assert names["collate_fn"] == dataset.pad, "the list has no such method"
    assert names["collate_fn"]([names["dataset"][3], names["dataset"][0]]).shape == (4, 2)


def test_it_is_not_proposed_where_batches_are_gathered_already():
    dataset = torch.utils.data.TensorDataset(torch.zeros(20_000, 2), torch.zeros(20_000))
    with nbloader.DataLoader(dataset, batch_size=50, num_workers=1) as loader:
        loader.profile_lines()
        for _ in loader:
            pass
        assert not loader.remedies()
