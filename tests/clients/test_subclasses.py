"""Idioms of programs that subclass torch's loader."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from idioms import Squares, Stream, plain, same_as_torch
from torch.utils import data as theirs
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _InfiniteConstantSampler

from nbloader import DataLoader

ONE_WORKER = {"num_workers": 1}
THREAD = {"num_workers": 1, "workers": "thread"}


class Repeated:
    """As timm's and ultralytics' `_RepeatSampler`: the batches of a batch sampler, for ever."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


def test_the_iterator_of_a_subclass_is_used():
    """PyG's NodeLoader: `_get_iterator` wraps the iterator; what it wraps is what the loop gets."""

    def idiom(loader_class, **how):
        class Doubling(loader_class):
            def _get_iterator(self):
                return (2 * batch for batch in super()._get_iterator())

        loader = Doubling(Squares(), 4, **how)
        return [list(loader), list(loader)]

    assert same_as_torch(idiom, {}, THREAD)[0] == [[0, 2, 8, 18], [32, 50, 72, 98]]


class Collating(DataLoader):
    """PyG: the collate function is a method of the loader, so the loader is within its own arguments."""

    def __init__(self, dataset, offset, **arguments):
        self.offset = offset  # before the constructor
        super().__init__(dataset, collate_fn=self.collate, **arguments)

    def collate(self, samples):
        return torch.tensor(samples) + self.offset


def test_a_collate_function_that_is_a_method_of_the_loader_runs_in_workers():
    with Collating(Squares(), 100, batch_size=4, num_workers=1) as loader:
        assert plain(list(loader)) == [[100, 101, 104, 109], [116, 125, 136, 149]]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_loader_within_its_own_arguments_can_be_copied_and_pickled(duplicate):
    with Collating(Squares(), 100, batch_size=4) as loader:
        loader._private, loader.public = "kept", [1]
        with duplicate(loader) as other:
            assert type(other) is Collating
            assert (other.offset, other._private, other.public) == (100, "kept", [1])
            assert plain(list(other)) == plain(list(loader))
            if duplicate is not copy.copy:
                assert other.collate_fn.__self__ is other
            loader.num_workers = 2
            assert other.num_workers == 0


def test_the_batch_sampler_is_replaced_while_the_mark_of_initialization_is_cleared():
    """timm's MultiEpochsDataLoader: one iterator for all epochs."""

    def idiom(loader_class, **how):
        class MultiEpochs(loader_class):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self._DataLoader__initialized = False
                self.batch_sampler = Repeated(self.batch_sampler)
                self._DataLoader__initialized = True
                self.iterator = super().__iter__()

            def __len__(self):
                return len(self.batch_sampler.sampler)

            def __iter__(self):
                for _ in range(len(self)):
                    yield next(self.iterator)

        loader = MultiEpochs(Squares(), 3, **how)
        with pytest.raises(ValueError, match="batch_sampler attribute should not be set"):
            loader.batch_sampler = None
        return [list(loader), list(loader)]

    assert same_as_torch(idiom, {}, THREAD) == [[[0, 1, 4], [9, 16, 25], [36, 49]]] * 2


def test_an_infinite_loader_is_reset():
    """ultralytics' InfiniteDataLoader: `reset()` after the dataset was changed, and `__del__` ends the workers."""

    def idiom(loader_class, **how):
        class Infinite(loader_class):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
                self.iterator = super().__iter__()

            def __len__(self):
                return len(self.batch_sampler.sampler)

            def __iter__(self):
                for _ in range(len(self)):
                    yield next(self.iterator)

            def reset(self):
                self.iterator = self._get_iterator()

        loader = Infinite(Squares(), 4, **how)
        before = [next(iter(loader)), list(loader)]
        loader.reset()
        after = list(loader)
        for worker in getattr(loader.iterator, "_workers", ()):
            assert worker.is_alive()
            worker.terminate()
        getattr(loader.iterator, "_shutdown_workers", list)()
        return before, after

    same_as_torch(idiom, {}, ONE_WORKER)


def test_attributes_are_set_before_the_constructor_and_under_any_name():
    def idiom(loader_class):
        class Named(loader_class):
            def __init__(self, dataset):
                self.dataset, self.batch_size, self.num_workers, self.prefetch_factor = "other", 7, 3, 5
                self.extra = "before"
                super().__init__(dataset, batch_size=4)
                self.events, self.trace, self.step, self.pause = [], "a trace", 1, False

        loader = Named(Squares())
        return (
            list(loader), loader.extra, loader.batch_size, loader.num_workers, loader.prefetch_factor,
            loader.events, loader.trace, loader.step, loader.pause,
        )  # fmt: skip

    same_as_torch(idiom)


def test_programs_find_the_private_names_of_torch():
    """ignite, HF datasets, Lightning's CombinedLoader and litdata look for them."""

    def idiom(loader_class):
        loader, streaming = loader_class(Squares(), 4), loader_class(Stream(), 4)
        iterator = iter(loader)
        next(iterator)
        return (
            loader._dataset_kind == _DatasetKind.Map, streaming._dataset_kind == _DatasetKind.Iterable,
            type(streaming.sampler) is _InfiniteConstantSampler, isinstance(iterator, _BaseDataLoaderIter),
            loader._auto_collation, loader._index_sampler is loader.batch_sampler, loader._iterator,
            streaming._IterableDataset_len_called, iterator._num_yielded, iterator._num_workers, len(iterator),
            hasattr(iterator, "_workers"), isinstance(iterator._base_seed, int), isinstance(loader, theirs.DataLoader),
        )  # fmt: skip

    same_as_torch(idiom)


def test_an_iterator_of_torchs_own_is_kept_while_its_workers_persist():
    """litdata and Lightning's tests return torch's iterator from `_get_iterator`. Here one without processes."""

    def idiom(loader_class):
        class OfTorch(loader_class):
            made = 0

            def _get_iterator(self):
                self.made += 1
                return _BaseDataLoaderIter(self)

        loader = OfTorch(Squares(), 4, num_workers=1, persistent_workers=True)
        kept = iter(loader)
        results = [iter(loader) is kept, loader._iterator is kept, loader.made]
        loader._iterator = None
        return results, iter(loader) is kept, loader.made, len(kept)

    same_as_torch(idiom)


def test_workers_are_shut_down_through_the_iterator_and_start_again():
    with DataLoader(Squares(), 4, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        workers = iterator._workers
        iterator._shutdown_workers()
        for worker in workers:
            worker.join(90)
            assert not worker.is_alive()
        assert list(iterator) == []
        assert plain(list(loader)) == [[0, 1, 4, 9], [16, 25, 36, 49]]


def test_a_shell_takes_the_class_of_the_loader_that_it_wraps():
    """Accelerate's DataLoaderAdapter, and how its subclasses are pickled: with Python's own `__reduce__`."""

    def idiom(loader_class):
        class Adapter:
            def __init__(self, dataset, _device=None, _rng_types=None, **kwargs):
                self.base_dataloader = loader_class(dataset, **kwargs)

            def __getattr__(self, name):
                if name == "base_dataloader":
                    raise AttributeError
                return getattr(self.base_dataloader, name)

            @property
            def __class__(self):
                return self.base_dataloader.__class__

            def __len__(self):
                return len(self.base_dataloader)

        class Shard(Adapter):
            def __init__(self, *args, iteration=0, **kwargs):
                super().__init__(*args, **kwargs)
                self.iteration = iteration

            def __iter__(self):
                self.iteration += 1
                yield from self.base_dataloader

            def __reduce__(self):
                return (Shard, *super().__reduce__()[1:])

        shard = Shard(Squares(), batch_size=4)
        epochs = [list(shard), list(shard)]
        rebuild, arguments, state = shard.__reduce__()
        other = rebuild(*arguments)
        getattr(other, "__setstate__", vars(other).update)(pickle.loads(pickle.dumps(state)))  # as an unpickler does
        others = [list(shell) for shell in (other, copy.copy(shard), copy.deepcopy(shard))]
        return (
            epochs, others, other.iteration, isinstance(shard, loader_class), shard.num_workers, shard.batch_size,
            shard.prefetch_factor, len(shard), shard.drop_last, shard.multiprocessing_context,
        )  # fmt: skip

    same_as_torch(idiom)


def test_a_batch_sampler_wraps_the_loader_and_is_shuffled_by_epoch():
    """DDP: a DistributedSampler, `loader.sampler.set_epoch(e)`, and a batch sampler around it."""

    def idiom(loader_class, **how):
        sampler = theirs.DistributedSampler(range(12), num_replicas=2, rank=1, shuffle=True, seed=3)
        loader = loader_class(Squares(12), 4, sampler=sampler, **how)
        other = loader_class(Squares(12), batch_sampler=BatchSampler(sampler, 2, drop_last=True), **how)
        epochs = []
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            epochs += [list(loader), list(other), len(loader), len(other)]
        return epochs

    same_as_torch(idiom, {}, THREAD)


@pytest.mark.filterwarnings("default:This DataLoader will create")
def test_more_workers_than_cores_are_warned_of_where_torch_warns(monkeypatch):
    """Lightning's tests replace `os.cpu_count`."""
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 1)

    def idiom(loader_class):
        with pytest.warns(UserWarning, match="This DataLoader will create 2 worker processes in total") as caught:
            loader_class(Squares(), num_workers=2)
        loader_class(Squares(), num_workers=1)
        return len(caught), str(caught[0].message)

    same_as_torch(idiom)


def test_what_torch_refuses_to_assign_is_refused():
    def idiom(loader_class):
        loader = loader_class(Squares(), 4)
        refused = []
        for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
            with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
                setattr(loader, name, None)
            refused.append(name)
        loader.collate_fn = max
        loader.pin_memory = loader.in_order = False
        loader.timeout = 0
        return refused, list(loader), type(loader.sampler) is SequentialSampler

    same_as_torch(idiom)
