"""Iterable datasets: the batches and the order of torch's loader; none is lost or repeated, whatever workers do."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings

import numpy as np
import pytest
import torch
from datasets import all_pids, wait_for
from iterables import (
    Broken,
    Configured,
    Counting,
    Cursor,
    Deadly,
    Hangs,
    Plain,
    Raises,
    Range,
    Sized,
    StatefulDataset,
    Tidy,
    Uneven,
    Unsavable,
    Unsharded,
    WhoAmI,
    configure,
)
from same import assert_same

from nbloader import DataLoader, DatasetTransferError, get_worker_info
from nbloader import events as ev
from nbloader.scheduler import dispatcher
from nbloader.workers import iterable_fetcher


def plain(batches):
    """Batches as Python objects, so that they can be compared."""
    return [b.tolist() if isinstance(b, (torch.Tensor, np.ndarray)) else plain(b) if isinstance(b, list) else b
            for b in batches]  # fmt: skip


def round_robin(shards):
    """The batches of all shards in the documented order."""
    longest = max(map(len, shards), default=0)
    return [shard[k] for k in range(longest) for shard in shards if k < len(shard)]


def batches_of(samples, size, drop_last=False):
    cut = [samples[i : i + size] for i in range(0, len(samples), size)]
    return [b for b in cut if len(b) == size or not drop_last]


KINDS = [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}]
"""Inline, worker processes, worker threads."""


# ---- without faults


@pytest.mark.parametrize("kind", KINDS, ids=["inline", "process", "thread"])
@pytest.mark.parametrize("prefetch", [None, 3])
def test_processes_threads_and_the_inline_pool_yield_the_same_batches(kind, prefetch):
    shards = kind.get("num_workers", 1)
    want = round_robin([batches_of(list(range(s, 23, shards)), 4) for s in range(shards)])
    options = {**kind} if prefetch is None else {**kind, "prefetch": prefetch}
    with DataLoader(Plain(23), 4, generator=torch.Generator().manual_seed(5), **options) as loader:
        got = [plain(loader) for _ in range(2)]
        assert [[batch[0] for batch in epoch] for epoch in got] == [want, want]
        for number, batch in enumerate(loader):
            if kind and number % 2:
                loader.restart_workers()
            assert plain(batch)[0] == want[number]
    if prefetch and not kind:
        return  # a thread that is no worker: it has only the global generators
    with DataLoader(
        Plain(23), 4, generator=torch.Generator().manual_seed(5), num_workers=kind.get("num_workers", 0)
    ) as loader:
        assert [plain(loader) for _ in range(2)] == got, "including random numbers"


@pytest.mark.parametrize("kind", KINDS[1:], ids=["process", "thread"])
def test_worker_init_fn_may_set_up_shards_and_an_epoch_may_be_left(kind, tmp_path):
    want = round_robin([batches_of(list(range(s, min(s + 5, 13))), 2) for s in (3, 8)])
    with DataLoader(Configured(3, 13), 2, worker_init_fn=configure, **kind) as loader:
        assert [plain(loader) for _ in range(3)] == [want] * 3
    with DataLoader(Tidy(10**9, folder=str(tmp_path)), 2, **kind) as loader:
        next(iter(loader))
        wait_for(lambda: list(tmp_path.iterdir()), "the release of an iterator")
        assert next(iter(loader)).tolist() == [0, 2]


def test_the_dataset_itself_is_iterated_without_workers():
    for ahead in (0, 3):
        with DataLoader((i * i for i in range(5)), 3, prefetch=ahead) as loader:
            assert plain(loader) == [[0, 1, 4], [9, 16]]
        dataset = Counting()
        with DataLoader(dataset, None, prefetch=ahead) as loader:
            assert [list(loader), list(loader), dataset.epochs] == [[1], [2], 2]


@pytest.mark.parametrize("kind", KINDS[1:], ids=["process", "thread"])
def test_num_workers_may_change_within_an_epoch_and_the_shards_with_the_next(kind):
    dataset = Uneven(9, 5, 14, 11)

    def want(shards):
        return round_robin([batches_of([(s, i) for i in range(n)], 2) for s, n in enumerate(dataset.lengths[:shards])])

    with DataLoader(dataset, 2, collate_fn=list, **kind) as loader:
        for before, after in ((2, 4), (4, 1), (1, 3), (3, 2)):
            got = []
            for number, batch in enumerate(loader):
                got.append(batch)
                if number == 2:
                    loader.num_workers = after
            assert got == want(before)
            assert loader.num_workers == after
        assert list(loader) == want(2)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shards_take_turns_as_with_torch(workers, drop_last):
    shards = max(workers, 1)
    want = round_robin([batches_of(list(range(s, 23, shards)), 4, drop_last) for s in range(shards)])
    with DataLoader(Range(23), 4, num_workers=workers, drop_last=drop_last) as loader:
        assert [plain(loader) for _ in range(3)] == [want] * 3
    if workers < 2:
        assert want == plain(torch.utils.data.DataLoader(Range(23), 4, drop_last=drop_last))


@pytest.mark.parametrize("lengths", [(7, 0, 2), (0, 0, 0), (0, 9, 1), (1, 1, 20)])
def test_uneven_shards_are_exhausted_one_after_the_other(lengths):
    want = round_robin([batches_of([(s, i) for i in range(n)], 2) for s, n in enumerate(lengths)])
    for ahead in ({}, {"prefetch": 0}, {"prefetch": 1}, {"prefetch": 30}):
        with DataLoader(Uneven(*lengths), 2, num_workers=3, collate_fn=list, **ahead) as loader:
            assert list(loader) == want


@pytest.mark.parametrize("workers", [0, 2])
def test_without_batching_samples_are_yielded_one_by_one(workers):
    with DataLoader(Range(9), None, num_workers=workers) as loader:
        assert list(loader) == list(range(9))
    with DataLoader(Range(9), None, num_workers=workers, collate_fn=str) as loader:
        assert list(loader) == list("012345678")


def test_each_worker_yields_everything_if_the_dataset_does_not_shard():
    with DataLoader(Range(4), None, num_workers=1, workers="thread") as loader:
        list(loader)  # uses get_worker_info() in this process, which says nothing about the workers forked from it
    with (
        DataLoader(Unsharded(4), 2, num_workers=2) as loader,
        pytest.warns(UserWarning, match="The workers yield the same samples"),
    ):
        assert plain(loader) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_an_object_with_iter_only_is_an_iterable_dataset():
    with DataLoader({3, 1, 2}, 2) as loader:
        assert plain(loader) == [[1, 2], [3]]
    with DataLoader((i * i for i in range(5)), 3) as loader:
        assert plain(loader) == [[0, 1, 4], [9, 16]]
        with pytest.warns(UserWarning, match="dataset is a generator, which can be iterated once"):
            assert plain(loader) == []
    with (
        DataLoader((i for i in range(5)), 3, num_workers=1, multiprocessing_context="forkserver") as loader,
        pytest.raises(DatasetTransferError, match="generator"),
    ):
        iter(loader)
    with DataLoader((i for i in range(5)), 3, num_workers=1) as loader:  # each epoch has a copy, as in torch
        assert [plain(loader), plain(loader)] == [[[0, 1, 2], [3, 4]]] * 2
    with (
        DataLoader((i for i in range(5)), 3, num_workers=2) as loader,
        pytest.raises(DatasetTransferError, match="each of them would yield all of its samples"),
    ):
        iter(loader)


def test_random_numbers_belong_to_the_batch_whichever_worker_produces_it():
    def drawn(workers, generator):
        with DataLoader(
            Plain(20), 3, num_workers=workers, generator=torch.Generator().manual_seed(generator)
        ) as loader:
            return [plain(loader) for _ in range(2)]

    zero, one = drawn(0, 1), drawn(1, 1)
    assert zero == one
    assert zero[0] != zero[1]
    assert drawn(3, 1) == drawn(3, 1) != drawn(3, 2)
    numbers = [x for epoch in drawn(3, 1) for batch in epoch for x in batch[1]]
    assert len(set(numbers)) == len(numbers), "no two samples are augmented in the same way"


def test_worker_init_fn_may_configure_shards_as_in_torch():
    with DataLoader(Configured(3, 14), 2, num_workers=3, worker_init_fn=configure) as loader:
        want = round_robin([batches_of(list(range(s, min(s + 4, 14))), 2) for s in (3, 7, 11)])
        assert [plain(loader) for _ in range(3)] == [want] * 3


@pytest.mark.parametrize(("workers", "persistent", "epochs"), [(0, False, [1, 2, 3]), (1, False, [1, 1, 1]),
                                                               (1, True, [1, 2, 3])])  # fmt: skip
def test_an_epoch_starts_on_a_fresh_copy_unless_workers_persist_as_in_torch(workers, persistent, epochs):
    with DataLoader(Counting(), None, num_workers=workers, persistent_workers=persistent) as loader:
        assert [list(loader) for _ in range(3)] == [[n] for n in epochs]


def test_a_worker_knows_its_shard_and_its_dataset():
    with DataLoader(WhoAmI(), None, num_workers=2) as loader:
        ours, theirs = [list(loader) for _ in range(2)], None
        for epoch in ours:
            assert [(*x[:2], x[3]) for x in epoch] == [(0, 2, True), (1, 2, True)] * 2
            theirs = [epoch[2][2], epoch[3][2]]
            assert theirs[1] == theirs[0] + 1
            assert [epoch[0][2], epoch[1][2]] == theirs
    with DataLoader(WhoAmI(), None) as loader:
        assert list(loader) == [None, None]
    assert get_worker_info() is None


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch_factor": 5},
                                     {"multiprocessing_context": "spawn"}, {"persistent_workers": True},
                                     {"timeout": 60}, {"output": "numpy"}], ids=str)  # fmt: skip
def test_options_do_not_change_the_batches(options):
    with DataLoader(Range(30), 4, num_workers=2, **options) as loader:
        want = round_robin([batches_of(list(range(s, 30, 2)), 4) for s in range(2)])
        assert [plain(loader) for _ in range(2)] == [want] * 2


def test_every_batch_is_delivered_once_without_order():
    with DataLoader(Uneven(40, 3, 17), 2, num_workers=3, in_order=False, collate_fn=list) as loader:
        got = [sample for batch in loader for sample in batch]
    assert sorted(got) == [(s, i) for s, n in enumerate((40, 3, 17)) for i in range(n)]


def test_the_collated_batches_are_those_of_torch():
    with DataLoader(Plain(10), 4, num_workers=1) as loader:
        ours = [batch[0] for batch in loader]
    assert_same(ours, [batch[0] for batch in torch.utils.data.DataLoader(Range(10), 4, collate_fn=both)])


def both(samples):
    return torch.utils.data.default_collate([(i, 0) for i in samples])


# ---- len


def test_the_length_is_that_of_the_dataset_as_in_torch():
    for args in ({"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}):
        dataset = Sized(10, says=10)
        with DataLoader(dataset, **args) as loader:
            assert len(loader) == len(torch.utils.data.DataLoader(dataset, **args))
            started = loader.events.subscribe()
            assert len(list(loader)) == len(loader)
            (begun,) = [e for e in started.drain() if isinstance(e, ev.EpochStarted)]
            assert begun.batches == len(loader)
    with DataLoader(Range(10)) as loader, pytest.raises(TypeError, match=r"Range.*has no len"):
        len(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wrong_length_warns_after_len_was_called(workers):
    with DataLoader(Sized(10, says=8), 2, num_workers=workers) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(loader)
        assert len(loader) == 4
        epoch = iter(loader)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = [next(epoch) for _ in range(4 if workers == 0 else 3)]
        with pytest.warns(UserWarning, match=r"was reported to be 8\(when accessing.*but (9|10) samples have been"):
            got += list(epoch)
        assert sorted(x for b in plain(got) for x in b) == list(range(10))


# ---- errors


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_raised_with_its_sample_and_the_rest_is_delivered(workers):
    with DataLoader(Raises(20, bad=8), 2, num_workers=workers) as loader:
        for _ in range(2):
            epoch, got = iter(loader), []
            with pytest.raises(ValueError, match="sample 8 is bad") as caught:
                got.extend(epoch)
            where = "sample 4 of shard 0 of batch" if workers else "sample 8 of batch 4"
            assert where in caught.value.__notes__[0]
            got += epoch
            assert sorted(x for b in plain(got) for x in b) == sorted(set(range(20)) - {8})


@pytest.mark.parametrize("workers", [0, 1])
def test_a_generator_that_raises_is_exhausted(workers):
    with DataLoader(Broken(10, bad=4), 2, num_workers=workers) as loader:
        epoch = iter(loader)
        assert plain([next(epoch), next(epoch)]) == [[0, 1], [2, 3]]
        with pytest.raises(KeyError, match="no 4"):
            next(epoch)
        assert list(epoch) == []


def test_a_batch_that_cannot_be_collated_raises_and_the_next_one_is_delivered():
    with DataLoader(Range(6), 2, num_workers=1, collate_fn=fussy) as loader:
        epoch = iter(loader)
        assert next(epoch) == [0, 1]
        with pytest.raises(RuntimeError, match="not these"):
            next(epoch)
        assert list(epoch) == [[4, 5]]


def fussy(samples):
    if samples == [2, 3]:
        raise RuntimeError("not these")
    return samples


# ---- faults


@pytest.mark.parametrize("bad", [0, 6, 25, 26, 59])
def test_a_worker_that_dies_within_a_shard_changes_nothing(tmp_path, bad):
    def epoch(flag, generator=1):
        generator = torch.Generator().manual_seed(generator)
        dataset = Deadly(60, bad=bad, flag=str(flag))
        with DataLoader(dataset, 3, num_workers=2, generator=generator) as loader:
            return plain(loader)

    expected = epoch(tmp_path / "flag")
    (tmp_path / "flag").touch()
    assert epoch(tmp_path / "flag") == expected
    assert not (tmp_path / "flag").exists()


@pytest.mark.parametrize("dataset", [Plain(200), StatefulDataset(200), Cursor(200, None), Unsavable(200, None)],
                         ids=lambda d: type(d).__name__)  # fmt: skip
def test_workers_that_are_killed_repeatedly_change_nothing(dataset, monkeypatch):
    monkeypatch.setattr(dispatcher, "MAX_DEATHS", 10_000)  # on a busy machine, one batch may meet three of the kills

    def epochs(kill):
        with DataLoader(
            dataset, 3, num_workers=2, generator=torch.Generator().manual_seed(3), max_restarts=10_000
        ) as loader:
            got = []
            for _ in range(2):
                for number, batch in enumerate(loader):
                    got.append(plain(batch))
                    if kill and number % 11 == 4:
                        running = all_pids(loader)
                        with contextlib.suppress(ProcessLookupError):  # its restart has just been carried out
                            os.kill(running[number % 2], signal.SIGKILL)
                    if kill and number % 11 == 9:
                        loader.restart_workers([number % 2])
            return got

    assert epochs(True) == epochs(False)


def test_a_stateful_iterator_resumes_at_its_state(tmp_path, monkeypatch):
    monkeypatch.setattr(iterable_fetcher, "STATE_SHARE", 0)  # report the state with each batch

    def count(dataset, log):
        log.write_text("")
        with DataLoader(dataset(1000, str(log)), 10, num_workers=1, prefetch=8, workers="thread") as loader:
            epoch = iter(loader)
            for _ in range(80):
                next(epoch)
            loader.restart_workers()
            assert sum(len(batch[0]) for batch in epoch) == 200
        return len(log.read_text().splitlines())

    assert 1000 <= count(Cursor, tmp_path / "log") < 1500, "only prefetched batches are produced again"
    assert count(Unsavable, tmp_path / "log") >= 1800


def test_a_stuck_worker_is_restarted_and_its_shard_continues(tmp_path):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    with DataLoader(Hangs(40, bad=13, flag=str(flag), hung=str(hung)), 2, num_workers=2, prefetch_factor=4) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        wait_for(hung.exists, "the hang")
        flag.unlink()
        loader.restart_workers([1])
        got += epoch
    assert plain(got) == round_robin([batches_of(list(range(s, 40, 2)), 2) for s in range(2)])


# ---- several iterators


@pytest.mark.parametrize("workers", [0, 2])
def test_two_concurrent_iterators_are_both_complete(workers):
    with DataLoader(Range(30), 2, num_workers=workers) as loader:
        want = plain(loader)
        pairs = list(zip(loader, loader, strict=True))
        assert plain([a for a, _ in pairs]) == plain([b for _, b in pairs]) == want


def test_an_iterator_that_is_dropped_is_released_in_the_workers(tmp_path):
    with DataLoader(Tidy(10**9, folder=str(tmp_path)), 2, num_workers=2, persistent_workers=True) as loader:
        for number, _batch in enumerate(loader):
            if number == 5:
                break
        assert wait_for(lambda: len(list(tmp_path.iterdir())) == 2, "the release of both iterators")
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted(map(str, all_pids(loader)))
        assert next(iter(loader)).tolist() == [0, 2]


def test_an_epoch_after_one_left_early_is_complete():
    with DataLoader(Range(40), 2, num_workers=2) as loader:
        want = plain(loader)
        for leave_at in range(5):
            kept = iter(loader)
            for _ in range(leave_at):
                next(kept)
            assert plain(loader) == want
            assert plain(kept) == want[leave_at:]


# ---- other datasets, loaders in workers


def test_a_new_dataset_within_an_epoch_continues_at_the_same_position():
    with DataLoader(Range(40), 2, num_workers=2, prefetch=0) as loader:
        epoch = iter(loader)
        next(epoch)
        loader.reload(Range(44))
        got = [x for batch in plain(epoch) for x in batch]
        assert sorted([*got, 0, 2]) == list(range(44))
        assert len(plain(loader)) == 22


class Inner(Range):
    """Has a loader without workers inside a worker: `get_worker_info()` of the worker does not change."""

    def __iter__(self):
        with DataLoader(Range(4), 2) as loader:
            inner = plain(loader)
        yield inner, get_worker_info().id


def test_a_loader_inside_a_worker_sees_the_workers_shard():
    with DataLoader(Inner(0), None, num_workers=2) as loader:
        assert list(loader) == [[[[0, 2]], 0], [[[1, 3]], 1]]


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_raise_may_be_skipped_or_replaced(workers):
    for on_error, instead in (("skip", []), (lambda index, _error: -100 - index[0] if workers else -100 - index, None)):
        with DataLoader(Raises(20, bad=8), 2, num_workers=workers, on_error=on_error) as loader:
            got = [x for b in plain(loader) for x in b]
            number = 4 if workers else 8  # of the sample in its shard
            failed = loader.stats().failed_samples
            assert [str(sample.sample) for sample in failed] == ["4 of shard 0" if workers else "8"]
        assert sorted(got) == sorted([*range(8), *range(9, 20), *([-100 - number] if instead is None else instead)])
    with DataLoader(Broken(10, bad=4), 2, num_workers=workers, on_error="skip") as loader:
        want = [0, 1, 2, 3] if workers == 0 else [0, 2, 1, 3, 5, 7, 9]
        assert [x for b in plain(loader) for x in b] == want, "a generator that has raised is exhausted"


@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
@pytest.mark.parametrize("ahead", [{"prefetch_factor": 1}, {"prefetch_factor": 2}, {"prefetch": 1}, {}], ids=str)
def test_a_loop_may_be_left_and_restarted_at_any_point(kind, ahead):
    """Tasks that a worker had not begun when the loop was left occupied the window forever."""
    with DataLoader(Range(20), 4, **ahead, **kind) as loader:
        whole = plain(loader)
        for taken in (1, 0, 3, 1, 2, 0):
            batches = iter(loader)
            assert plain(next(batches) for _ in range(taken)) == whole[:taken]
        del batches
        assert plain(loader) == whole
