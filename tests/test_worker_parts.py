"""Each epoch begins in workers as in torch's: with the dataset as it was sent, and a call of `worker_init_fn`."""

from __future__ import annotations

import collections
import functools
import random
import threading

import numpy as np
import pytest
import torch
from datasets import Numbers, flat, wait_for
from torch.utils.data import IterableDataset

from nbloader import DataLoader, get_worker_info
from nbloader._util import rng
from nbloader.workers.reachable import holds_generator


class Counter(Numbers):
    """Counts its samples, in the copy of its worker."""

    calls = 0

    def __getitem__(self, i):
        self.calls += 1
        self.array[0] += 1
        return self.calls, int(self.array[0]), self.made


class Stream(IterableDataset):
    calls = 0

    def __iter__(self):
        self.calls += 1
        yield self.calls, self.calls, self.made


def set_made(_worker):
    """Counts its calls for one copy of the dataset."""
    dataset = get_worker_info().dataset
    dataset.made = getattr(dataset, "made", 0) + 1


def values(loader, epochs=3):
    return [[tuple(map(int, sample)) for sample in loader] for _ in range(epochs)]


def counter(n, **attributes):
    dataset = Counter(n)
    dataset.array = np.zeros(100_000, np.int32)  # large enough for shared memory
    vars(dataset).update(attributes)
    return dataset


@pytest.mark.parametrize("cache", [0, 100_000], ids=["small", "takes long to rebuild"])
def test_each_epoch_begins_with_the_dataset_as_it_was_sent_and_a_call_of_worker_init_fn(cache):
    dataset = counter(3, cache=[str(i) for i in range(cache)])
    with DataLoader(dataset, None, num_workers=1, worker_init_fn=set_made) as loader:
        assert values(loader) == [[(1, 1, 1), (2, 2, 1), (3, 3, 1)]] * 3
        dataset.calls = 5  # a change in this process still reaches the workers
        assert values(loader, 1) == [[(6, 1, 1), (7, 2, 1), (8, 3, 1)]]


def test_persistent_workers_keep_their_dataset_and_are_initialized_once():
    options = {"num_workers": 1, "worker_init_fn": set_made, "persistent_workers": True}
    with DataLoader(counter(2), None, **options) as loader:
        assert values(loader, 2) == [[(1, 1, 1), (2, 2, 1)], [(3, 3, 1), (4, 4, 1)]]


def test_each_epoch_of_an_iterable_dataset_begins_on_a_new_copy():
    with DataLoader(Stream(), None, num_workers=1, worker_init_fn=set_made) as loader:
        assert values(loader) == [[(1, 1, 1)]] * 3


def test_two_iterations_at_a_time_have_a_dataset_each():
    with DataLoader(counter(4), None, num_workers=1, worker_init_fn=set_made) as loader:
        pairs = [(int(a[0]), int(b[0])) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [(n, n) for n in (1, 2, 3, 4)]


def test_the_seed_of_a_worker_changes_from_epoch_to_epoch():
    class Seed(Numbers):
        def __getitem__(self, i):
            return get_worker_info().seed, torch.utils.data.get_worker_info().seed

    torch.manual_seed(3)
    with DataLoader(Seed(2), None, num_workers=1) as loader:
        first, second = values(loader, 2)
    assert first[0][0] == first[1][1] != second[0][0] == second[1][1]


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_an_error_of_worker_init_fn_in_a_later_epoch_is_raised(workers, tmp_path):
    marker = tmp_path / "second epoch"

    def init(_worker):
        if marker.exists():
            raise KeyError("no such thing in the second epoch")

    with DataLoader(Numbers(4), None, num_workers=1, worker_init_fn=init, workers=workers) as loader:
        assert len(list(loader)) == 4
        marker.touch()
        with pytest.raises(KeyError, match="no such thing in the second epoch"):
            list(loader)
        marker.unlink()
        assert len(list(loader)) == 4


def test_an_error_in_the_set_up_of_a_worker_that_was_not_needed_is_raised(capsys):
    """Another worker has produced all batches: before the error the epoch may have ended, or not."""
    fails = threading.Event()

    def init(worker):
        if worker == 1:
            fails.wait()
            raise LookupError("no such shard")

    def fail():
        fails.set()
        wait_for(lambda: all(worker.state == "dead" for worker in loader.stats().workers))
        fails.clear()

    def has_noticed():
        return "LookupError: no such shard" in capsys.readouterr().err

    kinds = {"workers": "thread", "persistent_workers": True}  # they still start after an epoch
    try:
        with DataLoader(Numbers(4), 2, num_workers=2, worker_init_fn=init, **kinds) as loader:
            epoch = iter(loader)
            got = [next(epoch)]
            wait_for(lambda: loader.stats().workers[0].batches == 2)
            fail()
            got.append(next(epoch))
            with pytest.raises(LookupError, match="no such shard"):
                next(epoch)
            assert flat(got) == [0, 1, 2, 3]
            assert not has_noticed()

            assert flat(loader) == [0, 1, 2, 3]
            fail()
            wait_for(has_noticed)
            with pytest.raises(LookupError, match="no such shard"):
                iter(loader)

            assert flat(loader) == [0, 1, 2, 3]
            fail()
            loader.worker_init_fn = None
            loader.reload()
            assert flat(loader) == [0, 1, 2, 3]
    finally:
        fails.set()


# ---- what a dataset refers to: pure ---------------------------------------------------------------------------------


class Box:
    def __init__(self, *items):
        self.items = items


class Slotted:
    __slots__ = ("generator",)


class Keeps(Box):
    def use(self):
        self.generator = np.random.default_rng(1)


class MakesForEachSample(Box):
    def use(self, i):
        return np.random.default_rng(i).random()


class OfClass(Box):
    generator = np.random.RandomState(1)


def slotted():
    obj = Slotted()
    obj.generator = random.Random(1)
    return obj


def closure(value):
    return lambda: value


@pytest.mark.unit
@pytest.mark.parametrize("obj", [
    np.random.default_rng(1), np.random.RandomState(1), random.Random(1), torch.Generator(), np.random.PCG64(1),
    Box({"a": [Box(np.random.default_rng(1))]}), slotted(), Keeps(), OfClass(), closure(Box(random.Random(1))),
    functools.partial(print, random.Random(1)), random.Random(1).random, collections.deque([torch.Generator()]),
    Box(*range(100_000), {}).__class__(list(range(100_000)), [random.Random(1)]),
], ids=lambda obj: type(obj).__name__)  # fmt: skip
def test_generators_are_found(obj):
    assert holds_generator(None, obj)


@pytest.mark.unit
@pytest.mark.parametrize(
    "obj",
    [Box(np.zeros(3), "x", 1), MakesForEachSample(), random.random, np.random.rand, random.SystemRandom(), torch.rand,
     Box(torch.default_generator), torch.utils.data.TensorDataset(torch.zeros(3)), list(range(1000)), print, Box],
    ids=lambda obj: type(obj).__name__,
)  # fmt: skip
def test_what_draws_from_the_seeded_generators_or_not_at_all_holds_none(obj):
    assert not holds_generator(obj)


# ---- whether a generator was seeded: pure ---------------------------------------------------------------------------


@pytest.mark.unit
@pytest.mark.parametrize(("action", "seeded"), [
    (lambda: None, False),
    (lambda: torch.rand(3), False),
    (random.random, True),
    (np.random.rand, True),
    (lambda: torch.manual_seed(torch.initial_seed() % 2**32), False),
    (lambda: random.seed(torch.initial_seed() % 2**32), False),
    (lambda: np.random.seed(torch.initial_seed() % 2**32), False),
    (lambda: torch.manual_seed(1), True),
    (lambda: random.seed(1), True),
    (lambda: np.random.seed(1), True),
    (lambda: np.random.set_state(np.random.RandomState(1).get_state()), True),
])  # fmt: skip
@pytest.mark.parametrize("seed", [5, 2**62 + 12345])
def test_whether_worker_init_fn_seeded_a_generator(action, seeded, seed):
    with rng.PreservedRandomState():
        rng.seed_everything(seed)
        action()
        assert rng.was_seeded() == seeded
