"""Faults that give wrong data without an error: there is one warning for each, and none without a fault."""

from __future__ import annotations

import functools
import itertools
import os
import random
import warnings

import numpy as np
import pytest
import torch
from datasets import Numbers
from iterables import Range, Unsharded
from torch.utils import data as theirs

import nbloader
from nbloader import DataLoader

PERSISTENT = {"num_workers": 1, "persistent_workers": True}


def said(loader, epochs=2):
    """The texts of the warnings of some epochs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            list(loader)
    assert all(warning.filename == __file__ for warning in caught), "the warning points to the loop"
    return [str(warning.message) for warning in caught]


# ---- attributes of a dataset whose workers persist


class Transform:
    def __init__(self):
        self.strength = 1


class Epochs(Numbers):
    epoch = 0
    _salt = 1

    def __init__(self):
        super().__init__(4)
        self.mode = None
        self.transforms = [Transform(), functools.partial(int, Transform())]
        self.config = {"crop": 3, "cache": {}}
        self.weights = np.zeros(3)
        self.files = ["a"]
        self.rng = np.random.default_rng(0)
        self.generator = None
        self._length = None
        self._file = None
        self._cache = {}

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, i):
        return self.epoch


CHANGES = {
    "epoch": lambda d: d.set_epoch(3),
    "_salt": lambda d: setattr(d, "_salt", 2),
    "mode": lambda d: setattr(d, "mode", "test"),
    "limit": lambda d: setattr(d, "limit", 3),
    "transforms[0].strength": lambda d: setattr(d.transforms[0], "strength", 2),
    "transforms[1].args[0].strength": lambda d: setattr(d.transforms[1].args[0], "strength", 2),
    "config['crop']": lambda d: d.config.update(crop=4),
    "weights": lambda d: d.weights.fill(1),
    "files": lambda d: d.files.append("b"),
    "transforms": lambda d: setattr(d, "transforms", []),
}
NO_CHANGES = {
    "nothing": lambda _d: None,
    "equal": lambda d: d.set_epoch(0),
    "a cache": lambda d: (d._cache.update({1: 2}), d.config["cache"].update({1: 2})),
    "a generator": lambda d: d.rng.random(),
    "created when needed": lambda d: (setattr(d, "_length", 4), setattr(d, "_file", object())),
    "private, new": lambda d: setattr(d, "_handle", 3),
}


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("inside", [False, True], ids=["itself", "in a subset"])
def test_a_change_that_does_not_reach_persistent_workers_is_named_once(path, inside):
    dataset = Epochs()
    outer = theirs.Subset(dataset, range(3)) if inside else dataset
    with DataLoader(outer, 2, **PERSISTENT) as loader:
        assert said(loader) == []
        CHANGES[path](dataset)
        (text,) = said(loader)
        assert f"`{'dataset.' if inside else ''}{path}`" in text
        assert "persistent_workers" in text
        assert "loader.reload()" in text
        loader.reload()
        assert said(loader) == []


@pytest.mark.parametrize("change", NO_CHANGES.values(), ids=NO_CHANGES)
def test_a_change_of_no_consequence_is_not_named(change):
    dataset = Epochs()
    with DataLoader(dataset, 2, **PERSISTENT) as loader:
        assert said(loader) == []
        change(dataset)
        assert said(loader) == []


@pytest.mark.parametrize("how", [{}, {"num_workers": 1}, {**PERSISTENT, "workers": "thread"}])
def test_a_change_that_reaches_the_workers_is_not_named(how):
    dataset = Epochs()
    with DataLoader(dataset, 2, **how) as loader:
        assert said(loader) == []
        dataset.set_epoch(1)
        assert said(loader) == []
        assert {int(x) for batch in loader for x in batch} == {1}


def test_the_change_of_each_epoch_is_named_with_its_values_and_can_be_silenced():
    dataset = Epochs()
    with DataLoader(dataset, 2, **PERSISTENT) as loader:
        list(loader)
        dataset.set_epoch(1)
        with pytest.warns(UserWarning, match=r"^`epoch` \(from 0 to 1\) of the dataset \(Epochs\) changed"):
            list(loader)
        for epoch in range(2, 4):
            dataset.set_epoch(epoch)
            assert said(loader, 1) == []
    with DataLoader(dataset, 2, **PERSISTENT) as loader:
        list(loader)
        dataset.set_epoch(9)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "`epoch`")
            list(loader)


def test_a_change_of_the_class_is_named(monkeypatch):
    with DataLoader(Epochs(), 2, **PERSISTENT) as loader:
        list(loader)
        monkeypatch.setattr(Epochs, "epoch", 7)
        with pytest.warns(UserWarning, match=r"`epoch` \(from 0 to 7\)"):
            list(loader)


def test_a_warning_that_is_an_error_costs_no_batch():
    dataset = Epochs()
    with DataLoader(dataset, 2, **PERSISTENT) as loader:
        list(loader)
        dataset.set_epoch(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="`epoch`"):
                iter(loader)
            assert len(list(loader)) == 2


# ---- generators


class Draws(Numbers):
    """Draws one number from its generator for each sample."""

    def __init__(self, rng):
        super().__init__(16)
        self.rng = rng

    def __getitem__(self, i):
        return self.draw(self.rng)

    @staticmethod
    def draw(rng):
        return torch.rand((), generator=rng) if isinstance(rng, torch.Generator) else rng.random()


class DrawsInside(Draws):
    def __init__(self):
        super().__init__(None)
        self.transforms = [{"noise": functools.partial(self.draw, np.random.default_rng(1))}]

    def __getitem__(self, i):
        return self.transforms[0]["noise"]()


MODULE_GENERATOR = random.Random(4)


class DrawsFromModule(Numbers):
    def __getitem__(self, i):
        return MODULE_GENERATOR.random()


class DrawsFromClass(Numbers):
    shared = np.random.RandomState(2)

    def __getitem__(self, i):
        return self.shared.random()


class DrawsDifferentAmounts(Draws):
    def __getitem__(self, i):
        return self.rng.random(1 + i % 3).sum()


class AwaitsAndDraws(Draws):
    async def __getitem__(self, i):
        return self.draw(self.rng)


EQUAL = {
    "default_rng": (lambda: Draws(np.random.default_rng(0)), "`rng`", "numpy.random.default_rng(info.seed)"),
    "RandomState": (lambda: Draws(np.random.RandomState(0)), "`rng`", "numpy.random.RandomState(info.seed)"),
    "random": (lambda: Draws(random.Random(0)), "`rng`", "random.Random(info.seed)"),
    "torch": (lambda: Draws(torch.Generator()), "`rng`", "worker_init_fn"),
    "inside": (DrawsInside, "`transforms[0]['noise'].args[0]`", "worker_init_fn"),
    "module": (lambda: DrawsFromModule(16), "`MODULE_GENERATOR`", "worker_init_fn"),
    "class": (lambda: DrawsFromClass(16), "`shared`", "worker_init_fn"),
    "amounts": (lambda: DrawsDifferentAmounts(np.random.default_rng(0)), "`rng`", "worker_init_fn"),
    "asynchronous": (lambda: AwaitsAndDraws(np.random.default_rng(0)), "`rng`", "worker_init_fn"),
    "subset": (lambda: theirs.Subset(Draws(random.Random(0)), range(12)), "`dataset.rng`", "worker_init_fn"),
}


@pytest.mark.parametrize("make", EQUAL)
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=["", "persistent"])
def test_a_generator_that_gives_equal_numbers_in_all_workers_is_named_once(make, options):
    dataset, path, remedy = EQUAL[make]
    with DataLoader(dataset(), 2, num_workers=2, **options) as loader:
        (text,) = said(loader, 3)
        assert f"The random generator {path} of the dataset" in text
        assert remedy in text


def test_the_remedies_for_a_generator_work():
    def init(_worker):
        info = torch.utils.data.get_worker_info()
        info.dataset.rng = np.random.default_rng(info.seed)

    with DataLoader(Draws(np.random.default_rng(0)), 2, num_workers=2, worker_init_fn=init) as loader:
        assert said(loader) == []
        assert len({float(x) for batch in loader for x in batch}) == 16


class DrawsInInit(Draws):
    """Uses its generator in the notebook only."""

    def __init__(self):
        super().__init__(np.random.default_rng(0))
        self.order = self.rng.permutation(16).tolist()

    def __getitem__(self, i):
        return self.order[i]


class SeedsForEachSample(Draws):
    def __getitem__(self, i):
        self.rng.seed(i)
        return self.draw(self.rng)


class MakesOneForEachSample(Numbers):
    def __getitem__(self, i):
        return np.random.default_rng(i).random()


class MakesItsOwn(Draws):
    """Makes a generator in each worker."""

    def __getitem__(self, i):
        if self.rng is None:
            self.rng = np.random.default_rng(theirs.get_worker_info().id)
        return self.rng.random()


class DrawsGlobally(Numbers):
    def __getitem__(self, i):
        return random.random() + np.random.rand() + torch.rand(()).item()


FINE = {
    "in __init__": DrawsInInit,
    "seeded for each sample": lambda: SeedsForEachSample(random.Random(0)),
    "made for each sample": lambda: MakesOneForEachSample(16),
    "made in the worker": lambda: MakesItsOwn(None),
    "global": lambda: DrawsGlobally(16),
}


@pytest.mark.parametrize("make", FINE.values(), ids=FINE)
def test_a_generator_that_does_no_harm_is_not_named(make):
    with DataLoader(make(), 2, num_workers=2) as loader:
        assert said(loader) == []


@pytest.mark.parametrize("how", [{}, {"num_workers": 1}, {"num_workers": 2, "workers": "thread"}])
def test_a_generator_of_which_there_is_one_copy_is_not_named(how):
    with DataLoader(Draws(np.random.default_rng(0)), 2, **how) as loader:
        assert said(loader) == []


# ---- streams


class Records(Unsharded):
    """Yields all samples in each worker: arrays, texts, or without batches."""

    def __iter__(self):
        for i in range(self.n):
            yield {"x": np.full(3, i), "name": f"record {i}", "pair": (i, torch.ones(2) * i)}


@pytest.mark.parametrize("dataset", [Unsharded(12), Records(12)], ids=["numbers", "records"])
@pytest.mark.parametrize("size", [None, 1, 3, 8])
def test_workers_that_each_yield_the_whole_stream_are_told_once(dataset, size):
    with DataLoader(dataset, size, num_workers=2, collate_fn=None if size is None else list) as loader:
        (text,) = said(loader)
        assert "each iterates over the whole dataset" in text
        assert f"({type(dataset).__name__})" in text
        assert "itertools.islice(samples, info.id, None, info.num_workers)" in text


class AsksNbloader(Unsharded):
    """Shards by nbloader's function; asks torch's, and yields the same on purpose."""

    def __iter__(self):
        info = nbloader.get_worker_info()
        return itertools.islice(super().__iter__(), info.id, None, info.num_workers)


class OnPurpose(Unsharded):
    def __iter__(self):
        self.worker = theirs.get_worker_info().id
        return super().__iter__()


class ByProcess(Unsharded):
    def __iter__(self):
        return (i + os.getpid() for i in super().__iter__())


class Constant(Unsharded):
    def __iter__(self):
        return iter([torch.zeros(2)] * self.n)


class Shuffled(Unsharded):
    def __iter__(self):
        return iter(random.sample(range(1000), self.n))


class Opaque(Unsharded):
    """Samples of a type that is not compared."""

    def __iter__(self):
        return (Numbers(i) for i in range(self.n))


SHARDED = [Range, AsksNbloader, OnPurpose, ByProcess, Constant, Shuffled, Opaque]


@pytest.mark.parametrize("cls", SHARDED)
def test_workers_that_yield_parts_of_a_stream_are_not_told(cls):
    with DataLoader(cls(12), 3, num_workers=2, collate_fn=list) as loader:
        assert said(loader) == []


def test_worker_init_fn_may_shard_a_stream():
    def init(worker):
        info = theirs.get_worker_info()
        info.dataset.n = 5 + worker

    with DataLoader(Unsharded(12), 3, num_workers=2, worker_init_fn=init) as loader:
        assert said(loader) == []


@pytest.mark.parametrize("how", [{}, {"num_workers": 1}])
def test_one_worker_may_yield_the_whole_stream(how):
    with DataLoader(Unsharded(12), 3, **how) as loader:
        assert said(loader) == []


# ---- methods that are bypassed


class Bulk(Numbers):
    def __getitems__(self, indices):
        return [-i for i in indices]


class Doubled(theirs.Subset):
    """A subset that changes samples. Newer versions of torch refuse it in `Subset.__init__`."""

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, i):
        return 2 * super().__getitem__(i)


class DoubledBoth(Doubled):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class DoubledTogether(Doubled):
    def __getitems__(self, indices):
        return [2 * sample for sample in self.dataset.__getitems__([self.indices[i] for i in indices])]


class SwitchedOff(Doubled):
    __getitems__ = None


class Wrapper:
    """Gives the attributes of the dataset inside."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getattr__(self, name):
        if name.startswith("__") and name != "__getitems__":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return 2 * self.dataset[i]


BYPASSED = {
    "Doubled.__getitem__ is not called": Doubled(Numbers(8), range(4)),
    "Wrapper.__getitem__ is not called": Wrapper(Bulk(4)),
    "Bulk.__getitems__ is not called, because DoubledBoth": DoubledBoth(Bulk(8), range(4)),
    "Bulk.__getitems__ is not called, because SwitchedOff": SwitchedOff(Bulk(8), range(4)),
}


@pytest.mark.parametrize("text", BYPASSED)
@pytest.mark.parametrize("inside", [False, True], ids=["itself", "in a subset"])
@pytest.mark.parametrize("how", [{}, {"num_workers": 1}])
def test_a_method_that_is_bypassed_is_named_once(text, inside, how):
    dataset = theirs.Subset(BYPASSED[text], range(3)) if inside else BYPASSED[text]
    with DataLoader(dataset, 2, **how) as loader:
        (warning,) = said(loader)
        assert warning.startswith(text)
        assert "__getitems__" in warning


COMPLETE = {
    "bulk": Bulk(4),
    "a subset": theirs.Subset(Bulk(4), range(3)),
    "a subset of a subset": theirs.Subset(theirs.Subset(Numbers(4), range(3)), range(2)),
    "both methods": DoubledBoth(Numbers(8), range(4)),
    "calls the inner one": DoubledTogether(Bulk(8), range(4)),
    "switched off": SwitchedOff(Numbers(8), range(4)),
    "a subset of arrays": DoubledBoth(theirs.Subset(Numbers(8), range(6)), range(4)),
    "a wrapper of samples": Wrapper(Numbers(4)),
    "a list": [1, 2, 3],
    "stacked": theirs.StackDataset(Bulk(4), Numbers(4)),
}


@pytest.mark.parametrize("dataset", COMPLETE.values(), ids=COMPLETE)
def test_a_dataset_without_bypassed_methods_is_not_named(dataset):
    with DataLoader(dataset, 2) as loader:
        assert said(loader) == []
    with DataLoader(Doubled(Numbers(8), range(4)), None) as loader:
        assert said(loader) == [], "samples are fetched one by one"
