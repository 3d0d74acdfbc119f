"""Idioms of datasets, samplers, collate functions and functions that run in workers."""

from __future__ import annotations

import copy
import functools
import warnings
from types import SimpleNamespace

import pytest
import torch
from idioms import SizedStream, Squares, Stream, plain, same_as_torch
from torch.utils import data as theirs

from nbloader import DataLoader

THREAD = {"num_workers": 1, "workers": "thread"}


# ---- datasets


class ResumableByOthers(theirs.IterableDataset):
    """litdata and mosaicml-streaming: `state_dict()` takes arguments. It is not resumable by a loader, no more."""

    def __iter__(self):
        return iter(range(6))

    def state_dict(self, num_samples_yielded, num_workers, batch_size):
        raise AssertionError((num_samples_yielded, num_workers, batch_size))

    def load_state_dict(self, state):
        raise AssertionError(state)


def test_a_stream_whose_state_needs_arguments_is_iterated():
    def idiom(loader_class, **how):
        return list(loader_class(ResumableByOthers(), 4, **how))

    same_as_torch(idiom, {}, THREAD)
    with DataLoader(ResumableByOthers(), 4) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.warns(UserWarning, match=r"state_dict\(\) raised TypeError.*resumed by skipping"):
            loader.state_dict()


class SamplerOfOthers(theirs.Sampler):
    def __iter__(self):
        return iter([3, 1, 2])

    def __len__(self):
        return 3

    def state_dict(self, consumed):
        raise AssertionError(consumed)

    def load_state_dict(self, state):
        raise AssertionError(state)


def test_a_sampler_whose_state_needs_arguments_is_iterated():
    def idiom(loader_class, **how):
        return list(loader_class(Squares(), 2, sampler=SamplerOfOthers(), **how))

    same_as_torch(idiom, {}, THREAD)
    with DataLoader(Squares(), 2, sampler=SamplerOfOthers()) as loader:
        next(iter(loader))
        with pytest.raises(TypeError, match=r"SamplerOfOthers.state_dict\(\) raised TypeError"):
            loader.state_dict()


def test_an_empty_dataset_gives_an_empty_epoch():
    def idiom(loader_class, **how):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(loader_class([], 4, **how)), len(loader_class([]))

    assert same_as_torch(idiom, {}, THREAD) == [[], 0]


def test_the_length_of_a_stream_is_its_datasets_and_a_longer_one_is_warned_of():
    def idiom(loader_class):
        class Longer(SizedStream):
            def __len__(self):
                return 5

        loader = loader_class(Longer(6), 1)  # torch counts batches in the warning, and ours samples
        assert list(loader), "nobody has asked for the length"
        lengths = len(loader), len(loader_class(SizedStream(5), 2, drop_last=True)), len(loader_class(SizedStream(5)))
        with pytest.warns(UserWarning, match=r"Length of IterableDataset.*reported to be 5.*6 samples"):
            batches = list(loader)
        with pytest.raises(TypeError, match=r"has no len\(\)|__len__"):
            len(loader_class(Stream()))
        return batches, lengths

    same_as_torch(idiom)


class Described(Squares):
    """webdataset and HF datasets: the worker's dataset is reached by `get_worker_info().dataset`."""

    def __getitem__(self, i):
        info = theirs.get_worker_info()
        return -1 if info is None else info.dataset.n * 100 + info.id * 10 + info.num_workers


def set_length(_worker_id, n, *, twice):
    theirs.get_worker_info().dataset.n = n * (1 + twice)


def test_a_partial_function_prepares_the_dataset_of_each_worker():
    init = functools.partial(set_length, n=2, twice=True)
    with DataLoader(Described(3), 3, worker_init_fn=init, num_workers=1) as loader:
        assert plain(list(loader)) == [[401, 401, 401]]
    with DataLoader(Described(2), 2) as loader:
        assert plain(list(loader)) == [[-1, -1]]


class Outer(theirs.Dataset):
    """A dataset within another one: the inner one asks for the worker."""

    def __init__(self):
        self.inner = Described(2)

    def __len__(self):
        return 2

    def __getitem__(self, i):
        outer = theirs.get_worker_info()
        return outer.dataset.inner is self.inner, outer.id


def test_a_nested_dataset_is_that_of_the_worker():
    with DataLoader(Outer(), 2, num_workers=1) as loader:
        assert plain(list(loader)) == [[[True, True], [0, 0]]]


def test_a_stream_splits_itself_between_workers():
    with DataLoader(Stream(8), 2, num_workers=2) as loader:
        assert plain(list(loader)) == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_a_list_of_indices_is_read_by_one_call():
    """HF datasets, and torch's Subset: `__getitems__`."""

    def idiom(loader_class, **how):
        class Table(Squares):
            def __getitems__(self, indices):
                return [("many", i) for i in indices]

        subset = theirs.Subset(Table(), [5, 3, 1])
        return list(loader_class(Table(3), 2, **how)), list(loader_class(subset, 2, **how))

    same_as_torch(idiom, {}, THREAD)


# ---- samplers


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: theirs.WeightedRandomSampler([0.1, 0.2, 0.7, 0.0], 6),
        lambda: theirs.RandomSampler(range(8), replacement=True, num_samples=40),
        lambda: theirs.RandomSampler(range(8), num_samples=11, generator=torch.Generator().manual_seed(4)),
        lambda: theirs.SubsetRandomSampler([1, 3, 5]),
        lambda: iter([3, 1, 2]),
        lambda: torch.tensor([2, 0]),
    ],
)
def test_samplers_of_torch_draw_what_they_draw_with_torchs_loader(sampler):
    def idiom(loader_class, **how):
        chosen = sampler()
        return list(loader_class(Squares(), 3, sampler=chosen, **how)), torch.rand(1)

    same_as_torch(idiom, {}, THREAD)


def test_a_batch_sampler_that_cannot_tell_its_length_is_iterated():
    """PyG's DynamicBatchSampler: its length is asked for only when the user does."""

    def idiom(loader_class, **how):
        class Dynamic(theirs.Sampler):
            def __iter__(self):
                yield [0]
                yield [1, 2, 3]

            def __len__(self):
                raise ValueError("the length is unknown before the end of the epoch")

        loader = loader_class(Squares(), batch_sampler=Dynamic(), **how)
        with pytest.raises(ValueError, match="length is unknown"):
            len(loader)
        return [batch for batch in loader], loader.batch_size, loader.drop_last  # noqa: C416 - list() asks for len()

    same_as_torch(idiom, {}, THREAD)


# ---- collate functions


class Bag:
    """A batch of a class of its own, which says how it is pinned: torch's documentation has this example."""

    def __init__(self, samples):
        self.samples = torch.tensor(samples)

    def pin_memory(self):
        self.samples = self.samples.pin_memory() if torch.accelerator.is_available() else self.samples
        return self


def test_a_collate_function_returns_an_object_of_its_own():
    def idiom(loader_class, **how):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without an accelerator nothing is pinned
            loader = loader_class(Squares(), 4, collate_fn=Bag, pin_memory=True, **how)
            return [(type(bag).__name__, bag.samples) for bag in loader]

    same_as_torch(idiom, {}, {"num_workers": 1})


def test_worker_functions_are_assigned_between_epochs():
    def idiom(loader_class, **how):
        loader = loader_class(Squares(), 4, **how)
        first = list(loader)
        loader.collate_fn = sum
        return first, list(loader)

    same_as_torch(idiom, {}, THREAD)


class Blocks(Squares):
    def __getitem__(self, i):
        return torch.full((5000,), float(i))


def is_of_torch(tensor):
    """Whether it lies in shared memory that torch itself has mapped, and can send."""
    return torch.UntypedStorage.is_shared(tensor.untyped_storage())


@pytest.mark.parametrize("size", [8, 8000])
def test_batches_of_worker_processes_are_in_shared_memory(size):
    """As with torch, programs ask `is_shared()`. It is right for views and copies, too."""
    samples = [(torch.ones(size), {"a": torch.ones(size), "b": torch.ones(size)}, torch.ones(1).bfloat16())] * 4
    bags = functools.partial(DataLoader, collate_fn=lambda samples: SimpleNamespace(tensors=samples[0][::2]))

    def is_shared(loader):
        batch = next(iter(loader))
        batch = batch.tensors if isinstance(batch, SimpleNamespace) else [batch[0], *batch[1].values(), batch[2]]
        assert not any(copied.is_shared() for tensor in batch for copied in (tensor.clone(), copy.deepcopy(tensor)))
        return {answer for tensor in batch for answer in (tensor.is_shared(), tensor[1:].is_shared())}

    for loader_class in (DataLoader, bags):
        with loader_class(samples, 4, num_workers=1) as loader:
            assert is_shared(loader) == {True}
        for how in ({}, {"num_workers": 1, "workers": "thread"}):
            with loader_class(samples, 4, **how) as loader:
                assert is_shared(loader) == {False}


def test_a_delivered_batch_is_moved_to_torchs_shared_memory():
    with DataLoader(Blocks(4), 4, num_workers=1) as loader:
        (batch,) = loader
        expected = batch.clone()
        assert not is_of_torch(batch)
        batch.share_memory_()
        assert is_of_torch(batch)
        assert batch.is_shared()
        assert torch.equal(batch, expected)


class Received:
    """Receives tensors from another process, adds 1 to each in place, and has their sums."""

    def __init__(self, queue):
        self.queue = queue

    def __len__(self):
        return 2

    def __getitem__(self, i):
        tensor = self.queue.get()
        tensor += 1
        return tensor.sum()


@pytest.mark.leaves_behind("multiprocessing's resource tracker")
def test_a_delivered_batch_is_sent_to_another_process_with_one_copy():
    """Sending it moves it to torch's shared memory; the other process maps that. Sent again, it is not copied."""
    queue = torch.multiprocessing.get_context("forkserver").Queue()
    with (
        DataLoader(Blocks(4), 4, num_workers=1) as loader,
        DataLoader(Received(queue), 1, num_workers=1, prefetch_factor=1) as receiver,
    ):
        (batch,) = loader
        expected = batch + 1
        views = batch[1:3], batch.T
        queue.put(batch)
        received = iter(receiver)
        assert next(received).item() == expected.sum()
        assert torch.equal(batch, expected)
        assert torch.equal(views[0], expected[1:3])
        assert is_of_torch(batch)
        place = batch.data_ptr()
        queue.put(views[1])
        assert next(received).item() == (expected + 1).sum()
        assert torch.equal(batch, expected + 1)
        assert batch.data_ptr() == place
    queue.close()
    queue.join_thread()
