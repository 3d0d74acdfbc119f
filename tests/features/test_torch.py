"""Features of torch.utils.data.DataLoader, compared with torch's own wherever possible."""

from __future__ import annotations

import collections
import copy
import inspect
import multiprocessing
import pathlib
import pickle
import re
import warnings
from typing import Any, NamedTuple

import light
import numpy as np
import pytest
import torch
from datasets import Deadly, Numbers, Slow, all_pids, flat, run_script, sigkill, wait_for
from same import assert_same
from torch.utils import data as theirs

from nbloader import DataLoader, DatasetTransferError, get_worker_info
from nbloader.device import placement

RNG = np.random.default_rng(3)


def same_as_torch(dataset, how, *args, **kwargs):
    """Compare our epoch with torch's; return ours."""
    with DataLoader(dataset, *args, **kwargs, **how) as loader:
        ours = list(loader)
    assert_same(ours, list(theirs.DataLoader(dataset, *args, **kwargs)))
    return ours


# ---- the constructor


def test_every_argument_of_torch_has_the_same_position_and_default():
    ours, torchs = (inspect.signature(cls.__init__).parameters for cls in (DataLoader, theirs.DataLoader))
    assert list(ours)[: len(torchs)] == list(torchs)
    for name, parameter in torchs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"batch_size": None}, {"batch_sampler": [[1]]}])
def test_a_loader_has_the_attributes_of_torchs(arguments):
    one, other = DataLoader(Numbers(4), **arguments), theirs.DataLoader(Numbers(4), **arguments)
    with one:
        assert isinstance(one, theirs.DataLoader)
        for name in (
            "batch_size", "num_workers", "prefetch_factor", "pin_memory", "pin_memory_device", "timeout", "drop_last",
            "worker_init_fn", "generator", "persistent_workers", "in_order", "multiprocessing_context", "collate_fn",
        ):  # fmt: skip
            assert getattr(one, name) == getattr(other, name), name
        for name in ("sampler", "batch_sampler"):
            assert type(getattr(one, name)) is type(getattr(other, name)), name
        assert one._auto_collation == other._auto_collation


@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset"])
def test_attributes_that_torch_forbids_to_set_cannot_be_set(name):
    with DataLoader(Numbers(4)) as loader, pytest.raises(ValueError, match=f"{name} attribute should not be set"):
        setattr(loader, name, {})


def test_classes_of_the_main_program_reach_the_workers_of_a_process_that_multiprocessing_has_spawned(tmp_path):
    """The recipe for distributed training: each rank is spawned, and the main module is then named `__mp_main__`."""
    done = run_script(
        """
        import collections
        import torch.multiprocessing
        from nbloader import DataLoader

        Pair = collections.namedtuple("Pair", "index square")

        class NoSuchSquare(Exception):
            pass

        class Squares:
            def __len__(self):
                return 4
            def __getitem__(self, i):
                if i < 0:
                    raise NoSuchSquare(i)
                return square(i)

        def square(i):
            return Pair(i, i * i)

        def main(rank):
            for batch_sampler in [[0, 1], [2, 3]], [[-1]]:
                try:
                    with DataLoader(Squares(), batch_sampler=batch_sampler, num_workers=1) as loader:
                        print(*[(type(batch) is Pair, batch.square.tolist()) for batch in loader])
                except NoSuchSquare as error:
                    print(error.args)

        if __name__ == "__main__":
            torch.multiprocessing.spawn(main, nprocs=1)
        """,
        tmp_path,
        warnings="ignore",
    )
    assert (done.stdout.splitlines(), done.stderr) == (["(True, [0, 1]) (True, [4, 9])", "(-1,)"], "")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_start_with_the_method_of_the_context(method):
    with DataLoader(Numbers(6), 2, num_workers=1, multiprocessing_context=multiprocessing.get_context(method)) as one:
        assert flat(one) == list(range(6))
        assert one.multiprocessing_context.get_start_method() == method


def test_too_many_workers_give_the_warning_of_torch():
    with pytest.warns(UserWarning, match="excessive worker creation might get DataLoader running slow") as caught:
        DataLoader(Numbers(4), num_workers=2000).close()
    assert [w.filename for w in caught] == [__file__]


def test_errors_of_arguments_begin_like_those_of_torch():
    sampler = theirs.SequentialSampler(Numbers(4))
    batches = theirs.BatchSampler(sampler, 3, drop_last=False)
    for wrong in (
        {"num_workers": -1},
        {"timeout": -1},
        {"batch_size": None, "drop_last": True},
        {"sampler": sampler, "shuffle": True},
        {"batch_sampler": batches, "sampler": sampler, "shuffle": 3},
        {"batch_sampler": batches, "batch_size": 11},
        {"batch_sampler": batches, "drop_last": 3},
        {"batch_size": 0},
        {"prefetch_factor": 2},
        {"prefetch_factor": -1, "num_workers": 1},
        {"persistent_workers": True},
        {"num_workers": 0, "multiprocessing_context": "spawn"},
        {"num_workers": 1, "multiprocessing_context": "bad"},
        {"num_workers": 1, "multiprocessing_context": object()},
    ):
        with pytest.raises(Exception) as expected:
            theirs.DataLoader(Numbers(4), **wrong)
        with pytest.raises(type(expected.value)) as raised:
            DataLoader(Numbers(4), **wrong)
        begin = 22
        assert str(raised.value)[:begin] == str(expected.value)[:begin], wrong


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_epochs_draw_the_same_numbers_from_the_generator_as_those_of_torch(options):
    """The orders of all epochs, and what the program draws after them."""

    def drawn(cls, generator=None):
        torch.manual_seed(5)
        loader = cls(Numbers(30), 7, shuffle=True, generator=generator, **options)
        orders = [flat(loader) for _ in range(3)]
        getattr(loader, "close", lambda: None)()
        return orders, torch.rand(1, generator=generator)

    assert drawn(DataLoader) == drawn(theirs.DataLoader)
    seeded = torch.Generator().manual_seed
    assert drawn(DataLoader, seeded(3)) == drawn(theirs.DataLoader, seeded(3))


class Subclass(DataLoader):
    """A subclass whose constructor has other arguments."""

    def __init__(self, size, workers):
        super().__init__(Numbers(size), 3, shuffle=True, num_workers=workers, generator=torch.Generator())
        self.size = size


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_can_be_copied_and_pickled(duplicate, workers):
    with Subclass(10, workers) as loader:
        begun = iter(loader)
        first = flat([next(begun)])
        with duplicate(loader) as other:
            assert (type(other), other.size, other.num_workers) == (Subclass, 10, workers)
            assert sorted(flat(other)) == list(range(10))
        assert sorted(first + flat(begun)) == list(range(10))


# ---- errors


def test_an_iterator_cannot_be_pickled_as_in_torch():
    with DataLoader(Numbers(4)) as loader, pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(iter(loader))


def test_the_error_of_a_repeatedly_killed_worker_is_worded_as_in_torch():
    dataset = Deadly(4, bad=0, how=sigkill)
    with (
        DataLoader(dataset, 2, num_workers=1) as loader,
        pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: Killed"),
    ):
        list(loader)


def test_the_error_of_a_repeatedly_exiting_worker_is_worded_as_in_torch():
    dataset = Deadly(4, bad=0, how=Exit(7))
    with (
        DataLoader(dataset, 2, num_workers=1) as loader,
        pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"),
    ):
        list(loader)


class Exit:
    """A function that ends its process with an exit code."""

    def __init__(self, code):
        self.code = code

    def __call__(self):
        import os

        os._exit(self.code)


def test_the_error_of_a_timeout_is_worded_as_in_torch():
    with (
        DataLoader(Slow(4, wait=20), 2, num_workers=1, timeout=1) as loader,
        pytest.raises(RuntimeError, match=r"DataLoader timed out after \d+ seconds"),
    ):
        next(iter(loader))


class NotImplementedItems(theirs.Dataset):
    """`__getitem__` is torch's, which raises NotImplementedError."""

    def __len__(self):
        return 7


def test_each_failing_batch_raises_and_iteration_can_continue(how):
    errors = 0
    with DataLoader(NotImplementedItems(), 2, shuffle=True, **how) as loader:
        batches = iter(loader)
        while True:
            try:
                next(batches)
            except NotImplementedError:
                errors += 1
            except StopIteration:
                break
    assert errors == 4


def fail(_):
    raise RuntimeError("Error in worker_init_fn")


def test_an_error_in_worker_init_fn_is_raised(with_workers):
    with (
        DataLoader(Numbers(4), worker_init_fn=fail, **with_workers) as loader,
        pytest.raises(RuntimeError, match="Error in worker_init_fn"),
    ):
        list(loader)


# ---- fetching


class Bulk(Numbers):
    """`__getitems__` only."""

    def __getitem__(self, i):
        raise AssertionError("one by one")

    def __getitems__(self, indices):
        assert isinstance(indices, list)
        return [i * 10 for i in indices]


class NoBulk(Numbers):
    """`__getitems__` is None, as in datasets that switch it off."""

    __getitems__ = None


def test_getitems_fetches_a_whole_batch(how):
    assert [b.tolist() for b in same_as_torch(Bulk(5), how, 2)] == [[0, 10], [20, 30], [40]]
    assert [b.tolist() for b in same_as_torch(NoBulk(5), how, 2)] == [[0, 1], [2, 3], [4]]


class Indexed(Numbers):
    """Accepts any index."""

    def __getitem__(self, index):
        return torch.as_tensor(index)


class ListSampler(theirs.Sampler):
    """Yields lists of indices, for loading in bulk without automatic batching."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for part in torch.randperm(self.n).split(4):
            yield part.tolist()

    def __len__(self):
        return (self.n + 3) // 4


def test_a_sampler_can_yield_lists_without_automatic_batching(how):
    with DataLoader(Indexed(35), batch_size=None, sampler=ListSampler(35), **how) as loader:
        assert not loader._auto_collation
        assert set(torch.cat(list(loader)).tolist()) == set(range(35))


def test_a_dataset_that_grows_makes_a_longer_epoch(how):
    dataset = [torch.ones(4) for _ in range(4)]
    with DataLoader(dataset, **how) as loader, DataLoader(dataset, shuffle=True, **how) as shuffled:
        assert (len(loader), len(shuffled)) == (4, 4)
        dataset.append(torch.ones(4))
        assert (len(loader), len(shuffled)) == (5, 5)
        assert (len(list(loader)), len(list(shuffled))) == (5, 5)


def numbers_and_names(n):
    return [{"x": torch.full((2,), float(i)), "name": str(i)} for i in range(n)]


@pytest.mark.parametrize(
    "dataset",
    [
        theirs.TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6)),
        theirs.Subset(Numbers(20), [3, 1, 4, 1, 5]),
        theirs.Subset(theirs.TensorDataset(torch.arange(6)), [5, 0, 2]),
        theirs.ConcatDataset([[0, 1, 2], [], [10, 11]]),
        theirs.TensorDataset(torch.arange(3)) + theirs.TensorDataset(torch.arange(4)),
        theirs.StackDataset(Numbers(5), theirs.TensorDataset(torch.rand(5, 2))),
        theirs.StackDataset(image=torch.rand(5, 2), label=list(range(5))),
        theirs.random_split(Numbers(9), [0.5, 0.5], generator=torch.Generator().manual_seed(1))[1],
        numbers_and_names(5),
        range(7),
        torch.arange(6).view(3, 2),
        np.arange(6).reshape(3, 2),
    ],
    ids=lambda d: type(d).__name__,
)
def test_datasets_of_torch_give_the_same_batches_as_in_torch(dataset, how):
    same_as_torch(dataset, how, 2)
    same_as_torch(dataset, how, None)


# ---- order


@pytest.mark.parametrize(
    "sampler",
    [
        theirs.SequentialSampler(Numbers(9)),
        theirs.RandomSampler(Numbers(9), generator=torch.Generator().manual_seed(1)),
        theirs.RandomSampler(Numbers(9), replacement=True, num_samples=20),
        theirs.RandomSampler(Numbers(9), num_samples=20),
        theirs.SubsetRandomSampler([2, 4, 6]),
        theirs.SubsetRandomSampler(torch.tensor([2, 4, 6])),
        theirs.WeightedRandomSampler([0.1, 0.9, 0.4, 3.0], 12),
        theirs.WeightedRandomSampler([0.1, 0.9, 0.4, 3.0], 3, replacement=False),
        theirs.DistributedSampler(Numbers(9), 2, 1),
        theirs.DistributedSampler(Numbers(9), 2, 0, shuffle=False, drop_last=True),
        range(2, 8),
        (3, 1, 4),
        np.array([3, 1, 4]),
        torch.tensor([3, 1, 4]),
    ],
    ids=lambda s: type(s).__name__,
)
def test_every_sampler_gives_the_same_order_as_in_torch(sampler, how):
    expected = []
    for _ in range(2):
        torch.manual_seed(5)
        if hasattr(sampler, "generator") and sampler.generator is not None:
            sampler.generator.manual_seed(1)
        expected.append(flat(theirs.DataLoader(Numbers(9), 2, sampler=sampler)))
    assert expected[0] == expected[1]
    torch.manual_seed(5)
    if hasattr(sampler, "generator") and sampler.generator is not None:
        sampler.generator.manual_seed(1)
    with DataLoader(Numbers(9), 2, sampler=sampler, **how) as loader:
        assert len(loader) == -(-len(sampler) // 2)
        assert flat(loader) == expected[0]


def test_batch_samplers_may_be_of_any_kind(how):
    batches = [(0, 1), [2, 3, 4], (5, 6), torch.tensor([7, 8]), np.array([1])]
    with DataLoader(Numbers(9), batch_sampler=batches, **how) as loader:
        assert [b.tolist() for b in loader] == [[0, 1], [2, 3, 4], [5, 6], [7, 8], [1]]


def test_distributed_samplers_partition_the_samples_and_shuffle_by_epoch(how):
    parts = [theirs.DistributedSampler(Numbers(10), 2, rank, seed=3) for rank in range(2)]
    orders = []
    for epoch in range(2):
        seen = []
        for part in parts:
            part.set_epoch(epoch)
            with DataLoader(Numbers(10), 2, sampler=part, **how) as loader:
                seen += flat(loader)
        assert sorted(seen) == list(range(10))
        orders.append(seen)
    assert orders[0] != orders[1]


def test_the_generator_determines_the_order_as_in_torch(how):
    orders = []
    for cls, arguments in ((DataLoader, how), (DataLoader, how), (theirs.DataLoader, {})):
        loader = cls(Numbers(20), 4, shuffle=True, generator=torch.Generator().manual_seed(42), **arguments)
        orders.append([flat(loader), flat(loader)])
    assert orders[0] == orders[1] == orders[2]


# ---- workers


class Informed(Numbers):
    """Each sample describes the worker that produced it."""

    def __getitem__(self, i):
        one, other = theirs.get_worker_info(), get_worker_info()
        assert (one.id, one.seed, one.num_workers) == (other.id, other.seed, other.num_workers)
        return one.id, one.num_workers, self.value


def configure(worker):
    """A `worker_init_fn` as in torch's documentation: configures the worker's copy of the dataset."""
    info = theirs.get_worker_info()
    assert info.id == worker < info.num_workers
    assert info.seed == torch.initial_seed()
    info.dataset.value = worker * 100
    for name in ("id", "num_workers", "seed", "dataset"):
        assert f"{name}=" in repr(info)


def test_worker_info_and_worker_init_fn_work_as_in_torch():
    assert theirs.get_worker_info() is None
    dataset = Informed(12)
    with DataLoader(dataset, 2, num_workers=2, worker_init_fn=configure) as loader:
        for ids, of, values in loader:
            assert of.tolist() == [2, 2]
            assert values.tolist() == [i * 100 for i in ids.tolist()]
    assert not hasattr(dataset, "value")
    assert theirs.get_worker_info() is None


def test_worker_info_has_the_worker_method_of_newer_versions_of_torch():
    if not hasattr(theirs._utils.worker.WorkerInfo, "worker_method"):
        pytest.skip("this version of torch has no worker_method")
    collate = lambda _samples: theirs.get_worker_info().worker_method  # noqa: E731
    with DataLoader(Numbers(2), 2, collate_fn=collate, num_workers=1) as loader:
        assert list(loader) == ["multiprocessing"]


class Seeds(Numbers):
    def __getitem__(self, i):
        return torch.initial_seed()


def seed_12345(_):
    torch.manual_seed(12345)


def test_a_seed_set_by_worker_init_fn_is_kept(with_workers):
    with DataLoader(Seeds(8), 2, worker_init_fn=seed_12345, **with_workers) as loader:
        assert {int(seed) for batch in loader for seed in batch} == {12345}


def test_iterator_workers_look_like_processes_that_can_be_killed_and_joined():
    """Programs use torch's `iterator._workers`. A worker that is killed that way is replaced."""
    loader = DataLoader(Slow(40, wait=0.002), 2, num_workers=2)
    batches = iter(loader)
    seen = flat([next(batches)])
    workers = batches._workers
    assert [worker.pid for worker in workers] == all_pids(loader)
    assert all(worker.is_alive() and worker.exitcode is None and worker.daemon for worker in workers)
    workers[0].kill()
    workers[0].join(90)
    assert not workers[0].is_alive()
    assert workers[0].exitcode in (-9, None)  # a busy fork server may report it too late
    assert repr(workers[0]) == f"<nbloader-worker-0 pid={workers[0].pid} exitcode={workers[0].exitcode}>"
    assert seen + flat(batches) == list(range(40))
    last = batches._workers
    del batches, loader
    for worker in last:
        worker.join(90)
        assert not worker.is_alive()
        worker.terminate()


def test_iterator_workers_have_their_pids_at_once():
    with DataLoader(WorkerIds(8), num_workers=2) as loader:
        batches = iter(loader)
        asked = [worker.pid for worker in batches._workers]
        assert asked == all_pids(loader)
        assert flat(i for _, i in batches) == list(range(8))


def test_iterator_workers_include_threads_and_do_not_exist_without_workers():
    with DataLoader(Numbers(4), num_workers=1, workers="thread") as loader:
        batches = iter(loader)
        (worker,) = batches._workers
        worker.terminate()  # a thread cannot be ended, and this process must not be
        assert worker.is_alive()
        assert flat(batches) == [0, 1, 2, 3]
    worker.join(90)
    assert not worker.is_alive()
    with DataLoader(Numbers(4)) as loader:
        assert not hasattr(iter(loader), "_workers")


class HeldUp(Numbers):
    """Sample `held` waits for a file."""

    held = 2

    def __getitem__(self, i):
        wait_for(lambda: i != self.held or pathlib.Path(self.file).exists(), "the file")
        return i


def test_with_in_order_false_a_slow_sample_delays_only_what_its_worker_holds(with_workers, tmp_path):
    """That is one other batch, as in torch."""
    with DataLoader(HeldUp(30, file=str(tmp_path / "go")), in_order=False, **with_workers) as loader:
        for _ in range(2):
            batches = iter(loader)
            others = flat(next(batches) for _ in range(28))
            assert 2 not in others
            (tmp_path / "go").touch()
            assert sorted(others + flat(batches)) == list(range(30))
            (tmp_path / "go").unlink()


class SecondShardHeldUp(theirs.IterableDataset):
    """Five samples per worker; worker 1 first waits for a file."""

    def __init__(self, file):
        self.file = file

    def __iter__(self):
        worker = get_worker_info().id
        wait_for(lambda: worker == 0 or pathlib.Path(self.file).exists(), "the file")
        for i in range(5):
            yield worker, i


@pytest.mark.parametrize("options", [{}, {"prefetch_factor": 2}, {"dispatch": "round_robin"}], ids=str)
def test_with_in_order_false_a_slow_shard_does_not_delay_others(with_workers, tmp_path, options):
    data = SecondShardHeldUp(str(tmp_path / "go"))
    with DataLoader(data, in_order=False, **with_workers, **options) as loader:
        batches = iter(loader)
        others = [(worker.item(), i.item()) for worker, i in (next(batches) for _ in range(5))]
        assert others == [(0, i) for i in range(5)]
        (tmp_path / "go").touch()
        assert [(worker.item(), i.item()) for worker, i in batches] == [(1, i) for i in range(5)]


class WorkerIds(Numbers):
    """Sample i is (worker id, i)."""

    def __getitem__(self, i):
        return get_worker_info().id, i


def test_round_robin_assigns_batch_i_to_worker_i_modulo_their_number(with_workers):
    """As torch's loader always does."""
    with DataLoader(WorkerIds(30), dispatch="round_robin", **with_workers) as loader:
        for epoch in range(3):
            assert [(worker.item(), i.item()) for worker, i in loader] == [(i % 2, i) for i in range(30)]
            if epoch == 1:
                loader.restart_workers()
    with DataLoader(WorkerIds(30), dispatch="round_robin", prefetch_factor=2, **with_workers) as loader:
        batches = iter(loader)
        assert next(batches)[0].item() == 0
        loader.num_workers = 3
        got = [(worker.item(), i.item()) for worker, i in batches]
        assert [i for _, i in got] == list(range(1, 30))
        assert got[-12:] == [(i % 3, i) for i in range(18, 30)]


class WorkerIdsHeldUp(HeldUp):
    def __getitem__(self, i):
        return get_worker_info().id, super().__getitem__(i)


def test_round_robin_with_in_order_false_does_not_hand_over_the_batches_behind_a_slow_one(with_workers, tmp_path):
    """As in torch: the other worker continues, and the slow worker's batches come last."""
    data = WorkerIdsHeldUp(10, held=0, file=str(tmp_path / "go"))
    with DataLoader(data, in_order=False, dispatch="round_robin", **with_workers) as loader:
        batches = iter(loader)
        others = [(worker.item(), i.item()) for worker, i in (next(batches) for _ in range(8))]
        assert sorted(others) == [(1, i) for i in (1, 3, 4, 5, 6, 7, 8, 9)]
        (tmp_path / "go").touch()
        assert [(worker.item(), i.item()) for worker, i in batches] == [(0, 0), (0, 2)]


# ---- iterables that can be iterated once


def numbers(n):
    yield from range(n)


@pytest.mark.parametrize(
    ("name", "make", "of"),
    [
        ("sampler", lambda: numbers(4), "generator"),
        ("sampler", lambda: iter([3, 1]), "list_iterator"),
        ("batch_sampler", lambda: ([i] for i in range(3)), "generator"),
        ("batch_sampler", lambda: map(list, [[1], [2]]), "map"),
    ],
)
def test_an_exhausted_sampler_gives_an_empty_epoch_as_in_torch_with_a_warning(name, make, of, how):
    with DataLoader(Numbers(4), **{name: make()}, **how) as loader:
        assert flat(loader) == flat(theirs.DataLoader(Numbers(4), **{name: make()}))
        with pytest.warns(UserWarning, match=f"had no batches: {name} is a {of}, which can be iterated once") as caught:
            assert list(loader) == []
        assert [w.filename for w in caught] == [__file__]


def test_a_generator_as_dataset_is_read_once_in_this_process_and_refused_with_workers(with_workers):
    for ahead in ({}, {"prefetch": 2}):
        with DataLoader(numbers(5), 2, **ahead) as loader:
            assert [b.tolist() for b in loader] == [[0, 1], [2, 3], [4]]
            with pytest.warns(UserWarning, match="had no batches: dataset is a generator"):
                assert list(loader) == []
    with (
        DataLoader(numbers(5), 2, **with_workers) as loader,
        pytest.raises(DatasetTransferError, match=r"dataset.*generator"),
    ):
        list(loader)


# ---- collating


MIXED = [
    [1, 2.5], [2.5, 1], [True, 2], [2, True], [True, 0.5], [0.5, True], [0.1, 2**60], [2**53 + 1, 0.1], [-1, 1e300],
]  # fmt: skip


@pytest.mark.parametrize("samples", MIXED, ids=str)
def test_numbers_of_mixed_types_are_collated_as_in_torch(samples, how):
    again = [*samples, 7, 8, 1, 2.5, *samples]
    same_as_torch(again, how, 2)


class Point:
    def __init__(self, x):
        self.x = x


def collate_points(batch, *, collate_fn_map):
    return torch.tensor([p.x for p in batch]) + 1000


def collate_shifted(batch, *, collate_fn_map):
    return torch.tensor(batch) + 5


class Points(Numbers):
    def __getitem__(self, i):
        return {"point": Point(i), "i": i}


def test_functions_in_default_collate_fn_map_reach_the_workers(how, monkeypatch):
    known = theirs._utils.collate.default_collate_fn_map
    monkeypatch.setitem(known, Point, collate_points)
    same_as_torch(Points(4), how, 2)
    monkeypatch.setitem(known, int, collate_shifted)
    assert [b["i"].tolist() for b in same_as_torch(Points(4), how, 2)] == [[5, 6], [7, 8]]


def test_collate_functions_of_torch_can_be_passed_explicitly(how):
    same_as_torch(numbers_and_names(5), how, 2, collate_fn=theirs.default_collate)
    same_as_torch([np.ones(3), 2, "x"], how, None, collate_fn=theirs.default_convert)
    same_as_torch([np.ones(3), 2, "x"], how, 2, collate_fn=theirs.default_convert)  # lists of what the samples are
    same_as_torch([[1, 2], np.ones((2, 3)), ["x", "y"]], how, None, collate_fn=theirs.default_collate)


def shared_memory_and_worker(samples):
    batch = theirs.default_collate(samples)
    return batch.is_shared(), theirs.get_worker_info() is not None, batch.tolist()


def test_default_collate_in_a_collate_fn_does_not_use_shared_memory_of_torch(with_workers):
    """In torch's workers it creates files in /dev/shm, which is small in containers."""
    with DataLoader(torch.arange(8), 2, collate_fn=shared_memory_and_worker, **with_workers) as loader:
        known = "workers" not in with_workers  # torch's function returns None in threads
        assert list(loader) == [(False, known, [i, i + 1]) for i in range(0, 8, 2)]


def test_samples_that_cannot_be_stacked_raise_the_error_of_torch(how):
    for samples in ([torch.tensor(1), 2], [torch.ones(2), torch.ones(3)], [np.ones(2), "x"], [{"a": 1}, {"b": 1}]):
        with pytest.raises(Exception) as expected:
            list(theirs.DataLoader(samples, 2))
        with DataLoader(samples, 2, **how) as loader, pytest.raises(type(expected.value)) as raised:
            list(loader)
        assert str(raised.value)[:30] == str(expected.value)[:30]


class CustomList(list):
    pass


class CustomDict(dict):
    pass


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize(
    "samples",
    [
        [CustomDict(a=1, b=2), CustomDict(a=3, b=4)],
        [CustomList([1, 2, 3]), CustomList([4, 5, 6])],
        [range(2), range(2)],
        [Pair(Pair(1, -1), "x"), Pair(Pair(2, -2), "y")],
        [collections.OrderedDict(b=1, a=2), collections.OrderedDict(b=3, a=4)],
        [(1, 2.0, True, "s", b"b", None.__class__.__name__)] * 2,
        [np.float16(1), np.float16(2)],
        [np.bool_(True), np.bool_(False)],
        [torch.tensor(1), torch.tensor(2)],
    ],
    ids=lambda s: type(s[0]).__name__,
)
def test_containers_and_scalars_get_the_same_types_as_in_torch(samples, how):
    (batch,) = same_as_torch(samples, how, 2)
    (expected,) = theirs.DataLoader(samples, 2)
    assert type(batch) is type(expected)


# Those below a byte and the raw bits cannot be filled with values; the quantized ones have a test of their own.
DTYPES = [
    dtype
    for dtype in dict.fromkeys(d for d in vars(torch).values() if isinstance(d, torch.dtype))
    if not re.match(r"torch\.(q?u?int[1-7]$|qint|quint|bits)", str(dtype))
]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_tensors_of_every_dtype_equal_those_of_torch(dtype, from_a_worker):
    (expected,) = theirs.DataLoader([of_dtype(dtype)] * 2, 2)
    batch = from_a_worker(dtype)
    assert (batch.dtype, batch.shape) == (expected.dtype, expected.shape)
    assert bytes_of(batch) == bytes_of(expected)


def bytes_of(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).tolist()


def of_dtype(dtype):
    return torch.ones(2, 3 * dtype.itemsize, dtype=torch.uint8).view(dtype).clone()


LAYOUTS = {
    "strided": torch.arange(24.0).view(4, 6)[::2, ::3],
    "transposed": torch.arange(24.0).view(4, 6).t(),
    "expanded": torch.ones(1).expand(3, 4),
    "zero-size": torch.empty(0, 3),
    "0-d": torch.tensor(2.5),
    "channels last": torch.rand(1, 3, 4, 4).to(memory_format=torch.channels_last)[0],
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "negative": torch.tensor([1 + 2j]).conj().imag,
    "parameter": torch.nn.Parameter(torch.ones(2)).detach(),
    "big-endian": np.arange(3, dtype=">f8").astype("<f8"),
    "backwards": np.arange(6.0)[2:].copy(),
    "Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


@pytest.fixture(scope="module")
def from_a_worker():
    """Returns the batch of two samples of a kind. One worker produces all of them: its start takes longest."""
    samples = {**{dtype: of_dtype(dtype) for dtype in DTYPES}, **LAYOUTS}
    made = {}
    with DataLoader(
        list(samples.values()), batch_sampler=[[i, i] for i in range(len(samples))], num_workers=1
    ) as loader:
        batches = iter(loader)
        for kind in samples:
            try:
                made[kind] = next(batches)
            except Exception as error:  # raised in the test of this kind
                made[kind] = error

    def get(kind):
        if isinstance(made[kind], Exception):
            raise made[kind]
        return made[kind]

    return get


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_of_any_layout_equal_those_of_torch(name, from_a_worker):
    (expected,) = theirs.DataLoader([LAYOUTS[name]] * 2, 2)
    assert_same(from_a_worker(name), expected)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_and_nested_tensors_are_refused_by_default_as_in_torch(how):
    for sample in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), nested()):
        with (
            DataLoader([sample, sample], 2, **how) as loader,
            pytest.raises(RuntimeError, match="not currently supported by the default collate_fn"),
        ):
            list(loader)


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


@pytest.mark.filterwarnings("ignore:.*(nested|[Ss]parse|quantize_per_tensor|TypedStorage).*")  # torch's own
@pytest.mark.parametrize("layout", ["coo", "csr", "nested", "quantized"])
def test_sparse_nested_and_quantized_tensors_pass_through_a_collate_fn(layout, how):
    sample = {
        "coo": lambda: torch.eye(3).to_sparse(),
        "csr": lambda: torch.eye(3).to_sparse_csr(),
        "nested": nested,
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    }[layout]()
    with DataLoader([sample, sample], 2, collate_fn=list, **how) as loader:
        (batch,) = loader
    for tensor in batch:
        assert tensor.layout == sample.layout
        if layout == "nested":
            assert [t.tolist() for t in tensor.unbind()] == [[1, 1], [1, 1, 1]]
        else:
            assert (tensor.dtype, tensor.shape) == (sample.dtype, sample.shape)
            dense = torch.Tensor.dequantize if layout == "quantized" else torch.Tensor.to_dense
            assert dense(tensor).tolist() == dense(sample).tolist()


# ---- pinning


class CustomBatch:
    def __init__(self, samples):
        self.tensor = torch.stack(samples)
        self.pinned = 0

    def pin_memory(self):
        self.pinned += 1
        return self


@pytest.mark.parametrize("how_many", [0, 2])
def test_custom_types_are_pinned_by_their_pin_memory_method(how_many, monkeypatch):
    monkeypatch.setattr(placement, "accelerator_type", lambda: "cuda")
    dataset = [torch.ones(2)] * 4
    with DataLoader(dataset, 2, collate_fn=CustomBatch, pin_memory=True, num_workers=how_many) as loader:
        monkeypatch.undo()
        assert [(batch.pinned, batch.tensor.shape) for batch in loader] == [(1, (2, 2))] * 2


# ---- from_torch


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 3, "drop_last": True},
        {"batch_size": 3, "shuffle": True},
        {"batch_size": None},
        {"sampler": [3, 1, 4], "batch_size": 2},
        {"batch_sampler": [[3, 1], [4]]},
        {"batch_size": 4, "collate_fn": sum},
        {"batch_size": 4, "num_workers": 1, "prefetch_factor": 3, "persistent_workers": True, "in_order": False},
        {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "spawn", "timeout": 30, "worker_init_fn": int},
    ],
    ids=str,
)
def test_from_torch_gives_the_batches_of_the_loader_of_torch(arguments):
    old = theirs.DataLoader(light.Numbers(11), generator=torch.Generator().manual_seed(4), **arguments)
    with DataLoader.from_torch(old) as loader:
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "in_order", "timeout", "worker_init_fn"):
            assert getattr(loader, name) == getattr(old, name)
        ours = list(loader)
    old.generator.manual_seed(4)
    expected = theirs.DataLoader(
        light.Numbers(11), generator=torch.Generator().manual_seed(4),
        **{k: v for k, v in arguments.items() if k in {"batch_size", "shuffle", "sampler", "batch_sampler",
                                                       "collate_fn", "drop_last"}},
    )  # fmt: skip
    assert_same(ours, list(expected))


def test_from_torch_accepts_changes_and_refuses_other_objects():
    old = theirs.DataLoader(Numbers(10), 5)
    with DataLoader.from_torch(old, num_workers=2, output="numpy") as loader:
        assert loader.num_workers == 2
        assert isinstance(next(iter(loader)), np.ndarray)
    with pytest.raises(TypeError, match=r"from_torch takes a torch.utils.data.DataLoader, not list: \[1\]"):
        DataLoader.from_torch([1])


def test_from_torch_copies_a_loader_of_ours():
    first = DataLoader(Numbers(10), 4, last_batch="rollover", num_workers=2, output="numpy", names=("x",), prefetch=3)
    with first, DataLoader.from_torch(first) as second, DataLoader.from_torch(first, num_workers=1) as third:
        assert type(second.batch_sampler) is type(first.batch_sampler)
        for name in ("num_workers", "prefetch_factor", "prefetch", "output", "names", "last_batch"):
            assert getattr(second, name) == getattr(first, name)
        assert third.num_workers == 1


def test_from_torch_reuses_a_distributed_sampler():
    """Lightning calls `set_epoch` of the sampler that it created."""
    sampler = theirs.DistributedSampler(Numbers(8), 2, 0, seed=1)
    with DataLoader.from_torch(theirs.DataLoader(Numbers(8), 2, sampler=sampler)) as loader:
        first = flat(loader)
        sampler.set_epoch(1)
        assert flat(loader) == list(sampler) != first


class Stream(theirs.IterableDataset):
    def __iter__(self):
        info = theirs.get_worker_info()
        return iter(range(10) if info is None else range(info.id, 10, info.num_workers))


@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 4}, {"batch_size": 4, "drop_last": True, "num_workers": 2}, {"batch_size": None}],
    ids=str,
)
def test_from_torch_accepts_a_loader_of_an_iterable_dataset(arguments):
    old = theirs.DataLoader(Stream(), **arguments)
    with DataLoader.from_torch(old) as loader, DataLoader.from_torch(loader) as again:
        assert_same(list(loader), list(old))
        assert_same(list(again), list(old))
