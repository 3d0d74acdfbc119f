"""Chunks of a batch that several workers produce, and the batches that the loop gets."""

from __future__ import annotations

import gc
import os
import random

import numpy as np
import pytest
import torch
from datasets import Deadly, Numbers, Raises, all_pids, flat, sigkill, wait_for
from same import assert_same
from stand_in import StandIn
from torch.utils import data as theirs

from nbloader import DataLoader, get_worker_info
from nbloader import events as ev
from nbloader.device import placement


@pytest.fixture(params=[{"num_workers": 2}, {"num_workers": 2, "workers": "thread"}, {"num_workers": 0}], ids=str)
def who(request):
    return request.param


class Rows(Numbers):
    """Large samples of several parts; those from `other` on have another dtype."""

    def __init__(self, n, other=10**9):
        super().__init__(n)
        self.other = other

    def __getitem__(self, i):
        kind = np.float32 if i < self.other else np.float64
        return {"x": np.full(2000, i, kind), "t": torch.full((300,), i), "name": str(i), "i": i}


def expected(dataset, *args, **kwargs):
    return list(theirs.DataLoader(dataset, *args, **kwargs))


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_uneven_batches_of_a_batch_sampler_are_split_too(workers):
    batches = [list(range(9)), [5], list(range(20, 60)), [3, 1], list(range(16))]
    dataset = Rows(60)
    with DataLoader(dataset, batch_sampler=batches, chunk_size=4, num_workers=2, workers=workers) as loader:
        for _ in range(2):
            assert_same(list(loader), expected(dataset, batch_sampler=batches))
        assert len(loader) == 5


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_kept_batches_stay_unchanged_and_dropped_batches_free_their_segments(output):
    dataset = Rows(96)
    with DataLoader(dataset, 16, chunk_size=4, num_workers=2, output=output, persistent_workers=True) as loader:
        list(loader)
        wait_for(lambda: sum(w.state != "starting" for w in loader.stats().workers) == 2)
        for _ in range(2):
            kept = list(loader)
            if output == "numpy":
                kept = [{k: torch.as_tensor(v) if k in "xt" or k == "i" else v for k, v in b.items()} for b in kept]
            assert_same(kept, expected(dataset, 16))
        del kept
        for _ in range(5):
            for batch in loader:
                assert batch["x"][:, 0].tolist() == batch["i"].tolist()
        assert mapped_segments(loader) <= 48, "an epoch has 24 chunks: two epochs' worth is kept at most"


def mapped_segments(loader):
    return sum(len(handle.segments._maps) for handle in loader._engine._group.pool.handles.values())


def test_an_abandoned_epoch_frees_its_segments_at_once():
    """A batch and its chunks refer to each other: its memory was kept until the next garbage collection."""
    gc.collect()
    gc.disable()
    try:
        with DataLoader(Rows(96), 16, chunk_size=4, num_workers=2, persistent_workers=True) as loader:
            list(loader)
            for _ in range(10):
                batches = iter(loader)
                next(batches)
                wait_for(lambda: loader.stats().ready >= 2)
                del batches
                wait_for(lambda: loader.stats().ready == 0)
            list(loader)
            assert mapped_segments(loader) < 100
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_batches_whose_dtype_changes_in_the_middle_of_an_epoch_are_joined(workers):
    for other in (22, 32):
        dataset = Rows(64, other=other)
        with DataLoader(dataset, 8, chunk_size=2, num_workers=2, workers=workers) as loader:
            for _ in range(2):
                batches = iter(loader)
                for number, theirs_ in enumerate(Rows(64, other=other // 8 * 8)[i] for i in range(0, 64, 8)):
                    if number == 2 and other == 22:  # samples of two dtypes make no batch, split or not
                        batch = next(batches)
                        assert batch["i"].tolist() == list(range(16, 24))
                        continue
                    batch = next(batches)
                    assert batch["x"].dtype == torch.as_tensor(theirs_["x"]).dtype
                    assert batch["x"][:, -1].tolist() == batch["i"].tolist() == list(range(number * 8, number * 8 + 8))


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_restarts_breaks_and_kept_batches_do_not_mix(workers):
    dataset = Rows(128)
    kept = []
    with DataLoader(dataset, 16, chunk_size=4, num_workers=2, shuffle=True, workers=workers) as loader:
        for epoch in range(6):
            for number, batch in enumerate(loader):
                kept.append(batch)
                if number == 2 and epoch % 2:
                    loader.restart_workers([epoch // 2 % 2])
                if number == 4 and epoch % 3 == 0:
                    break
        assert sorted(flat([b["i"] for b in kept[-8:]])) == list(range(128))
    for batch in kept:
        assert batch["x"][:, 0].tolist() == batch["x"][:, -1].tolist() == batch["i"].tolist()
        assert batch["t"][:, 7].tolist() == [int(name) for name in batch["name"]] == batch["i"].tolist()


class DeadlyRows(Deadly):
    def __getitem__(self, i):
        super().__getitem__(i)
        return np.full(4000, i, "f4")


def test_a_worker_that_dies_with_a_chunk_loses_no_sample(tmp_path):
    flag = tmp_path / "once"
    flag.touch()
    dataset = DeadlyRows(64, bad=37, how=sigkill, flag=str(flag))
    with DataLoader(dataset, 16, chunk_size=4, num_workers=2) as loader:
        for _ in range(2):
            assert [b[:, -1].tolist() for b in loader] == [list(range(i, i + 16)) for i in range(0, 64, 16)]
        died = [event for event in loader.events.recent() if isinstance(event, ev.WorkerDied) and not event.expected]
        assert len(died) == 1
        assert 2 in died[0].batches, "batches are reported, not chunks"
        assert loader.stats().restarts == 1


def test_records_and_statistics_count_batches(who):
    with DataLoader(Rows(40), 8, chunk_size=2, **who) as loader:
        list(loader)
        records = [event for event in loader.events.recent() if isinstance(event, ev.BatchRecord)]
        assert [(r.index, r.samples, r.indices[0]) for r in records] == [(i, 8, 8 * i) for i in range(5)]
        for r in records:
            assert r.nbytes >= 8 * (2000 * 4 + 300 * 8)
            assert r.requested <= r.dispatched or r.dispatched <= r.fetch_begin
            assert r.dispatched <= r.fetch_begin <= r.fetched <= r.collated <= r.received <= r.in_order <= r.delivered
        assert loader.stats().batches_done == 5
        assert loader.stats().samples_done == 40


def test_a_sample_that_raises_is_reported_once_with_its_position_in_the_batch(who):
    with DataLoader(Raises(24, bad=13, error=KeyError), 8, chunk_size=2, **who) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == list(range(8))
        with pytest.raises(KeyError) as raised:
            next(batches)
        assert "sample 13 of batch 1" in raised.value.__notes__[0]
        assert [b.tolist() for b in batches] == [list(range(16, 24))]
        failed = [event for event in loader.events.recent() if isinstance(event, ev.BatchFailed)]
        assert [(event.index, event.sample) for event in failed] == [(1, 13)]


class Bad(Numbers):
    """Every sample whose number is in `bad` raises."""

    bad = frozenset({3, 8, 9, 16, 17, 18, 19, 20, 21, 22, 23})

    def __getitem__(self, i):
        if i in self.bad:
            raise ValueError(i)
        return i


def test_skipped_samples_leave_the_others_in_their_batches(who):
    with DataLoader(Bad(32), 8, chunk_size=2, on_error="skip", **who) as loader:
        assert [b.tolist() for b in loader] == [
            [0, 1, 2, 4, 5, 6, 7], [10, 11, 12, 13, 14, 15], [24, 25, 26, 27, 28, 29, 30, 31],
        ]  # fmt: skip
        assert loader.stats().skipped == len(Bad.bad)


def test_chunk_size_works_with_the_other_options(who):
    dataset = Rows(48)
    with DataLoader(dataset, 8, chunk_size=2, in_order=False, **who) as loader:
        batches = list(loader)
        assert all(batch["i"].tolist() == list(range(b := batch["i"][0].item(), b + 8)) for batch in batches)
        assert sorted(flat([batch["i"] for batch in batches])) == list(range(48))
    with DataLoader(dataset, 8, chunk_size=2, device=["cpu", "cpu"], **who) as loader:
        groups = list(loader)
        assert [[batch["i"][0].item() for batch in group] for group in groups] == [[0, 8], [16, 24], [32, 40]]
    with DataLoader(dataset, 8, chunk_size=8, **who) as loader:
        assert_same(list(loader), expected(dataset, 8))


def test_after_reload_no_batch_mixes_the_datasets():
    class Valued(Numbers):
        def __init__(self, n, value):
            super().__init__(n)
            self.value = value

        def __getitem__(self, i):
            return np.full(5000, self.value, "f4")

    with DataLoader(Valued(128, 1), 16, chunk_size=4, num_workers=2) as loader:
        list(loader)
        seen = []
        for number, batch in enumerate(loader):
            seen.append(set(batch.unique().tolist()))
            if number == 2:
                loader.reload(Valued(128, 2), keep=False)
        assert seen == [{1}] * 3 + [{2}] * 5


def test_one_step_delivers_one_batch():
    with DataLoader(Numbers(64), 8, chunk_size=2, num_workers=2) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == list(range(8))
        loader.pause()
        wait_for(lambda: loader.stats().state == "paused", "the pause")
        for number in (1, 2, 3):
            loader.step()
            assert next(batches)[0] == 8 * number
        assert loader.stats().state == "paused"
        loader.resume()
        assert len(list(batches)) == 4


def test_every_worker_takes_part_in_one_batch():
    with DataLoader(Workplaces(64), 64, chunk_size=8, num_workers=4, prefetch=0, persistent_workers=True) as loader:
        list(loader)
        workers = all_pids(loader)
        (batch,) = loader
        assert set(batch.tolist()) == set(workers)


class Workplaces(Numbers):
    """Each sample is the pid of its worker; slow enough that all workers take part."""

    def __getitem__(self, i):
        import time

        time.sleep(0.01)
        return os.getpid()


class Random(Numbers):
    """Samples that depend on the seed."""

    def __getitem__(self, i):
        info = get_worker_info()
        own = None if info is None else info.rng
        draw, generator = (random, None) if own is None else (own.random_generator, own.torch_generator)
        return torch.rand(40_000, generator=generator), draw.random(), i


def test_all_kinds_of_workers_produce_the_same_batches():
    epochs = []
    for arguments in (
        {"num_workers": 2}, {"num_workers": 1}, {"num_workers": 0}, {"num_workers": 0, "prefetch": 2},
        {"num_workers": 2, "workers": "thread"},
    ):  # fmt: skip
        torch.manual_seed(3)
        with DataLoader(Random(24), 8, True, chunk_size=2, **arguments) as loader:
            epochs.append([list(loader), list(loader)])
    for other in epochs[1:]:
        assert_same(other, epochs[0])


def test_a_batch_without_samples_is_one_error_and_the_others_come(who):
    batches = [[0, 1], [], [2, 3]]
    for chunk_size in (None, 1):
        with DataLoader(Numbers(4), batch_sampler=batches, chunk_size=chunk_size, **who) as loader:
            epoch = iter(loader)
            assert next(epoch).tolist() == [0, 1]
            with pytest.raises(IndexError, match="the batch is empty"):
                next(epoch)
            assert next(epoch).tolist() == [2, 3]
        with DataLoader(Numbers(4), batch_sampler=batches, chunk_size=chunk_size, collate_fn=len, **who) as loader:
            assert list(loader) == [2, 0, 2]


@pytest.mark.parametrize("way", ["registered", "copied", "pageable"])
def test_a_batch_of_chunks_is_uploaded_as_one(way, who):
    """Its chunks are joined first, in memory that is not pinned."""
    device = StandIn(way=way)
    with DataLoader(Rows(64), 8, chunk_size=2, device=device, pin_memory=False, **who) as loader:
        for _ in range(2):
            kept = list(loader)
            device.synchronize()
            assert_same(kept, expected(Rows(64), 8))
            gc.collect()
    assert not [what for what, _address in device.log if what == "unregistered while it is read"]


def test_a_batch_of_chunks_is_pinned_once(who, monkeypatch):
    pinned = []
    empty_like = torch.empty_like

    def pinned_like(tensor, **options):
        if options.pop("pin_memory", False):
            pinned.append(tensor.shape[0])
        return empty_like(tensor, **options)

    monkeypatch.setattr(placement, "accelerator_type", lambda: "cuda")
    with DataLoader(Rows(32), 8, chunk_size=2, pin_memory=True, **who) as loader:
        monkeypatch.undo()
        monkeypatch.setattr(torch, "empty_like", pinned_like)
        assert_same(list(loader), expected(Rows(32), 8))
    assert pinned == [8] * 12, "three tensors of four batches"
