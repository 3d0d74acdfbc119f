"""Programs that use, or replace, private names of torch's iterator."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import warnings
import weakref

import numpy as np
import pytest
import torch
from idioms import Squares, Stream, plain, same_as_torch
from torch.utils import data as theirs
from torch.utils.data import dataloader as of_torch
from torch.utils.data._utils import fetch

from nbloader import DataLoader
from nbloader.engine import torch_names

THREAD = {"num_workers": 1, "workers": "thread"}
PROCESS = {"num_workers": 2}
HOW = pytest.mark.parametrize("how", [{}, THREAD, PROCESS], ids=["in process", "thread", "processes"])
Base = of_torch._BaseDataLoaderIter


def wrap(monkeypatch, name, around, cls=Base):
    """Replace a method of torch's by one that calls `around(original, iterator, ...)`."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(*args, **kwargs):
        return around(original, *args, **kwargs)

    monkeypatch.setattr(cls, name, method)


# ---- attributes


def names_of_torch():
    names = set()
    for cls in (Base, of_torch._SingleProcessDataLoaderIter, of_torch._MultiProcessingDataLoaderIter):
        names |= {*vars(cls), *re.findall(r"self\.(_\w+)", inspect.getsource(cls))}
    return sorted(name for name in names if not name.startswith("__"))


def test_each_private_name_of_torchs_iterator_works_or_raises():
    provided = {
        "_workers", "_num_workers", "_num_yielded", "_base_seed", "_index_sampler", "_sampler_iter", "_next_index",
        "_next_data", "_shutdown_workers",
    }  # fmt: skip
    with DataLoader(Squares(), 4, **THREAD) as loader:
        iterator = iter(loader)
        assert isinstance(iterator, Base)
        for name in {*names_of_torch(), *torch_names.MISSING}:
            assert hasattr(iterator, name) == (name in provided), name
            if name not in provided:
                with pytest.raises(AttributeError, match=f"nbloader's iterator does not have '{name}'.* Instead, .*"):
                    getattr(iterator, name)
            if name != "_shutdown_workers":
                with pytest.raises(AttributeError, match=name):
                    setattr(iterator, name, None)


def test_batches_are_skipped_by_taking_them_from_the_sampler():
    """`for _ in range(done): next(iterator._sampler_iter)`, after a restart in the middle of an epoch."""

    def idiom(loader_class, **how):
        iterator = iter(loader_class(Squares(), 2, shuffle=True, generator=torch.Generator().manual_seed(3), **how))
        skipped = [next(iterator._sampler_iter), iterator._next_index()]
        return skipped, list(iterator), iterator._num_yielded, iterator._index_sampler.batch_size

    same_as_torch(idiom, {})


def test_all_batches_are_taken_from_the_sampler():
    def idiom(loader_class, **how):
        iterator = iter(loader_class(Squares(), 3, **how))
        first, rest = iterator._next_data(), list(iterator._sampler_iter)
        return first, rest, list(iterator)

    same_as_torch(idiom, {})


@HOW
@pytest.mark.parametrize("first", [0, 3])
def test_skipped_batches_count_as_delivered_in_the_state_and_in_replays(first, how):
    with DataLoader(list(range(200)), 2, shuffle=True, prefetch=None if not how else 2, **how) as loader:
        iterator = iter(loader)
        got = [next(iterator).tolist() for _ in range(first)]
        skipped = [next(iterator._sampler_iter) for _ in range(4)]
        got += [next(iterator).tolist() for _ in range(5)]
        skipped += [next(iterator._sampler_iter) for _ in range(2)]
        got += [next(iterator).tolist() for _ in range(9)]
        state = loader.state_dict()
        rest = [batch.tolist() for batch in iterator]
        assert len(got) + len(skipped) + len(rest) == 100
        assert sorted(itertools.chain(*got, *skipped, *rest)) == list(range(200))
        assert [loader.replay(0, n).batch.tolist() for n in range(len(got + rest))] == got + rest
        assert [list(record.indices) for record in loader.events.batches()] == got + rest
        with DataLoader(list(range(200)), 2, shuffle=True, **how) as other:
            other.load_state_dict(state)
            assert [batch.tolist() for batch in other] == rest


def test_batches_without_indices_cannot_be_skipped():
    with DataLoader(Stream(), 2) as loader, pytest.raises(AttributeError, match="iterable dataset"):
        next(iter(loader)._sampler_iter)
    with DataLoader.from_source(lambda n: [1] * n, 2) as loader, pytest.raises(AttributeError, match="from_source"):
        next(iter(loader)._sampler_iter)


# ---- methods


@HOW
def test_init_is_wrapped_to_skip_batches_after_a_recovery(how, monkeypatch):
    """SpeechBrain's SaveableDataLoader."""

    def recover(original, iterator, loader, *args):
        original(iterator, loader, *args)
        for done in range(vars(loader).pop("skip_to", 0)):
            next(iterator._sampler_iter)
            iterator._num_yielded = done + 1

    def reset(original, iterator, loader, first_iter=False):
        if not first_iter:
            original(iterator, loader, first_iter)

    wrap(monkeypatch, "__init__", recover)
    wrap(monkeypatch, "_reset", reset)

    def idiom(loader_class, **how):
        loader = loader_class(Squares(), 2, shuffle=True, **how)
        loader.skip_to = 3
        iterator = iter(loader)
        got = [next(iterator), iterator._num_yielded, *iterator, iterator._num_yielded]
        return got, list(loader), torch.rand(3)  # the base seed is drawn once

    same_as_torch(idiom, how)


@HOW
def test_next_is_timed(how, monkeypatch):
    calls = []

    def timed(original, iterator):
        batch = original(iterator)
        calls.append(iterator._num_yielded)
        return batch

    wrap(monkeypatch, "__next__", timed)
    wrap(monkeypatch, "__iter__", lambda original, iterator: original(iterator))

    def idiom(loader_class, **how):
        calls.clear()
        loader = loader_class(Squares(), 4, **how)
        return list(loader), list(loader), list(calls)

    assert plain(same_as_torch(idiom, how)[2]) == [1, 2, 1, 2]


@HOW
def test_next_of_the_iterators_with_and_without_workers_is_wrapped(how, monkeypatch):
    wrap(
        monkeypatch, "__next__", lambda original, it: original(it) + 1000, of_torch._SingleProcessDataLoaderIter
    )  # fmt: skip
    wrap(monkeypatch, "__next__", lambda original, it: original(it) + 2000, of_torch._MultiProcessingDataLoaderIter)
    with DataLoader(Squares(2), 2, **how) as loader:
        assert plain(list(loader)) == [[2000, 2001] if how else [1000, 1001]]


def test_next_is_replaced_and_uses_the_dataset(monkeypatch):
    """InfoBatch's: the samples are (index, data), and the dataset is told the indices."""

    def next_(iterator):
        with torch.autograd.profiler.record_function(iterator._profile_name):
            if iterator._sampler_iter is None:
                iterator._reset()
            indices, data = iterator._next_data()
            iterator._num_yielded += 1
            iterator._dataset.active = indices
            return data

    monkeypatch.setattr(Base, "__next__", next_)

    class Indexed(Squares):
        def __getitem__(self, i):
            return i, super().__getitem__(i)

    def idiom(loader_class, **how):
        dataset = Indexed()
        return [(batch, dataset.active.clone()) for batch in loader_class(dataset, 4, **how)]

    same_as_torch(idiom, {})


@HOW
@pytest.mark.parametrize("dataset", [Squares(), np.arange(9), Stream()], ids=["map", "array", "iterable"])
def test_a_tracer_sees_the_indices_of_each_batch(dataset, how, monkeypatch):
    seen = []

    def traced(original, iterator):
        indices = original(iterator)
        seen.append(indices)
        return indices

    wrap(monkeypatch, "_next_index", traced)

    def idiom(loader_class, **how):
        seen.clear()
        got = list(loader_class(dataset, 2, **how))
        return got, seen[: len(got)]

    same_as_torch(idiom, THREAD if isinstance(dataset, Stream) and how else how)


def test_indices_are_changed(monkeypatch):
    wrap(monkeypatch, "_next_index", lambda original, iterator: original(iterator)[:1])

    def idiom(loader_class, **how):
        return list(loader_class(Squares(), 4, **how))

    same_as_torch(idiom, {}, PROCESS)


def test_a_change_without_effect_is_an_error(monkeypatch):
    for name, value in {"_collate_fn": list, "_sampler_iter": iter([[1]]), "_index_sampler": [[1]]}.items():
        with monkeypatch.context() as patched, DataLoader(Squares(), 4) as loader:

            def change(original, iterator, loader, name=name, value=value):
                original(iterator, loader)
                setattr(iterator, name, value)

            wrap(patched, "__init__", change)
            with pytest.raises(AttributeError, match=f"'{name}' of torch's iterator"):
                iter(loader)
            assert loader.generator is None


def test_a_loop_that_is_left_ends_the_iteration_at_once(monkeypatch):
    wrap(monkeypatch, "__next__", lambda original, iterator: original(iterator))
    with DataLoader(Squares(), 1, **THREAD) as loader:
        iterator = iter(loader)
        next(iterator)
        reference = weakref.ref(iterator)
        del iterator
        assert reference() is None
        assert len(list(loader)) == 8


@pytest.mark.parametrize(
    ("cls", "name", "shown"),
    [
        (fetch._MapDatasetFetcher, "fetch", "_MapDatasetFetcher.fetch"),
        (of_torch._MultiProcessingDataLoaderIter, "_try_put_index", "_MultiProcessingDataLoaderIter._try_put_index"),
        (of_torch._SingleProcessDataLoaderIter, "_next_data", "_SingleProcessDataLoaderIter._next_data"),
        (theirs.DataLoader, "__iter__", "DataLoader.__iter__"),
    ],
)
def test_there_is_one_warning_for_a_method_that_is_not_called(cls, name, shown, monkeypatch):
    monkeypatch.setattr(torch_names, "_warned", set())
    with DataLoader(Squares(), 4) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(loader)
        wrap(monkeypatch, name, lambda original, *args: original(*args), cls)
        with pytest.warns(UserWarning, match=rf"has replaced {shown}, which .* no effect") as caught:
            list(loader)
        assert [warning.filename for warning in caught] == [__file__]
        list(loader)
