"""Chunks of a batch that several workers write side by side: offsets, arenas, and the batches that the loop gets."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Deadly, Numbers, Raises, all_pids, flat, sigkill, wait_for
from hypothesis import given
from hypothesis import strategies as st
from same import assert_same
from stand_in import StandIn
from torch.utils import data as theirs

from nbloader import DataLoader, get_worker_info
from nbloader import events as ev
from nbloader.batch.chunk_arena import (
    ARENA_FROM,
    ArenaAllocator,
    ChunkSlot,
    ChunkWriter,
    MemoryArena,
    RowWriter,
    ThreadChunkWriter,
    place_rows,
)
from nbloader.batch.collate import Plan
from nbloader.batch.header import BatchHeader
from nbloader.batch.payload import LocalPayload
from nbloader.batch.rebuild import builder
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.shm import segment
from nbloader.shm.arena import ArenaWriter
from nbloader.shm.segment import anonymous_file, mapped

# ---- offsets

LEAVES = st.sampled_from([
    lambda i: i,
    float,
    lambda i: bool(i % 2),
    lambda i: f"name {i}",
    lambda i: np.full((3, 2), i, "i2"),
    lambda i: np.full((), i),
    lambda i: np.zeros((0, 4)),
    lambda i: torch.full((5,), i, dtype=torch.bfloat16),
    lambda i: torch.full((2, 1), i, dtype=torch.complex64),
])  # fmt: skip
SAMPLES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: lambda i: [part(i) for part in parts]),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(
            lambda parts: lambda i: {key: part(i) for key, part in parts.items()}
        ),
    ),
    max_leaves=5,
)


@given(sample=SAMPLES, size=st.integers(1, 9), chunk=st.integers(1, 4))
def test_chunks_written_side_by_side_equal_the_batch_collated_at_once(sample, size, chunk):
    samples = [sample(i) for i in range(size)]
    plan = Plan(samples)
    expected = bytearray(max(plan.nbytes, 1))
    plan.fill(expected)
    assert place_rows(plan.tree, size, size, 0) == (plan.tree, plan.nbytes)
    writer = ChunkWriter()
    fd = anonymous_file(max(plan.nbytes, 1))
    memory = mapped(fd, max(plan.nbytes, 1))
    writer.arenas.add(7, fd)
    writer._rows = {0: RowWriter(plan.tree)}
    for _again in range(2):  # planned, then by the cached layout
        extras = []
        for start in range(0, size, chunk):
            part = samples[start : start + chunk]
            written = writer.write(part, ChunkSlot(list(range(len(part))), 7, 0, start, size))
            assert written is not None
            extras.append(written.extras)
        joined = [[value for part in column for value in part] for column in zip(*extras, strict=True)]
        assert bytes(memory)[: plan.nbytes] == bytes(expected)[: plan.nbytes]
        assert_same(builder(plan.tree, "torch")(memory, joined), builder(plan.tree, "torch")(expected, joined))


def test_a_chunk_with_another_layout_is_not_written_to_the_arena():
    writer = ChunkWriter()
    writer.arenas.add(0, anonymous_file(4096))
    writer._rows = {3: RowWriter(Plan([np.zeros(4)]).tree)}
    good, other = [np.ones(4)] * 2, [np.ones(5)] * 2
    assert writer.write(good, ChunkSlot([0, 1], 0, 3, 0, 2)) is not None
    for samples, slot in (
        (other, ChunkSlot([0, 1], 0, 3, 0, 2)),
        ([torch.ones(4)] * 2, ChunkSlot([0, 1], 0, 3, 0, 2)),
        (good, ChunkSlot([0, 1, 2], 0, 3, 0, 3)),
        (good, ChunkSlot([0, 1], 1, 3, 0, 2)),
        (good, ChunkSlot([0, 1], 0, 4, 0, 2)),
    ):
        assert writer.write(samples, slot) is None
    assert writer.write(good, ChunkSlot([0, 1], 0, 3, 0, 2)) is not None


# ---- arenas


class Workers:
    """Records which workers have which arenas."""

    def __init__(self, *uids):
        self.uids = frozenset(uids)
        self.have = {}
        self.writer = ArenaWriter(lambda: self.uids, self.announce, self.retire)
        self.allocator = ArenaAllocator("numpy", self.writer)
        layout = SimpleNamespace(tree=pickle.dumps(Plan([np.zeros(1024)]).tree))
        self.allocator.learn(SimpleNamespace(layout=layout))

    def announce(self, number, fd):
        os.fstat(fd)
        self.have[number] = self.uids
        return self.uids

    def retire(self, number, uids):
        assert self.have.pop(number) == uids

    def begin(self, size=16):
        batch = ChunkedBatch(Task(0, 0, list(range(size)), 0), 4)
        batch.split(0)
        batch.arena = self.allocator.allocate(size)
        return batch


def test_unused_arenas_are_freed():
    workers = Workers(1, 2)
    batches = [workers.begin() for _ in range(5)]
    for batch in batches:
        batch.arena.give_back()
    del batches, batch
    workers.writer.rest()
    assert len(workers.have) == len(workers.writer.reader._maps) == 1
    kept = [workers.begin() for _ in range(3)]
    for batch in kept:
        batch.arena.give_back()
    for _ in range(3):
        workers.writer._free._next_check = 0.0
        batch = workers.begin()
        batch.arena.give_back()
    assert len(workers.have) == len(workers.writer.reader._maps) == len(workers.writer._sizes) == 1


def test_an_arena_is_reused_when_nobody_views_the_batch():
    workers = Workers(1, 2)
    for _ in range(5):
        workers.begin().arena.give_back()
    held = [workers.begin().arena for _ in range(3)]
    views = [arena._lend(100) for arena in held]
    del held
    assert len(workers.have) == 3
    del views
    gc.collect()  # a batch and its chunks refer to each other
    assert workers.begin().arena.block.number in workers.have
    assert len(workers.have) == 3


def test_an_arena_that_a_worker_may_still_write_to_is_never_reused():
    workers = Workers(1, 2)
    abandoned = workers.begin()
    number = abandoned.arena.block.number
    del abandoned
    gc.collect()
    repeated = workers.begin()
    assert repeated.arena.block.number != number
    assert number not in workers.have
    second = repeated.chunks[1]
    assert workers.allocator.slot(second, 1)[0] == ChunkSlot([4, 5, 6, 7], repeated.arena.block.number, 0, 4, 16)
    assert workers.allocator.slot(second, 2) is None
    repeated.arena.give_back()
    assert workers.begin().arena.block.number not in {number, repeated.arena.block.number}


def test_a_worker_that_starts_later_gets_arenas_that_are_created_later():
    workers = Workers(1, 2)
    batch = workers.begin()
    assert workers.allocator.slot(batch.chunks[0], 3) is None
    batch.arena.give_back()
    workers.uids = frozenset({1, 3})
    again = workers.begin()
    assert again.arena.block.number != batch.arena.block.number
    assert workers.allocator.slot(again.chunks[0], 3) is not None
    assert workers.allocator.slot(again.chunks[0], 2) is None


def test_small_batches_and_batches_of_unknown_layout_get_no_arena():
    assert Workers(1).begin(size=ARENA_FROM // 8192 - 1).arena is None
    assert ArenaAllocator("numpy", Workers(1).writer).allocate(100) is None


def test_an_arena_that_cannot_be_mapped_is_retired(monkeypatch):
    workers = Workers(1, 2)

    def no_memory(_fd, _size):
        raise OSError(errno.ENOMEM, "no mappings left")

    with monkeypatch.context() as patch:
        patch.setattr(segment, "mapped", no_memory)
        assert workers.begin().arena is None
    assert workers.have == {}
    assert workers.begin().arena is not None


# ---- threads


def memory_arena(rows: int = 32, chunk_size: int = 8) -> MemoryArena:
    return MemoryArena(rows, chunk_size, 100, "numpy")


def chunk(number: int, count: int = 8) -> Task:
    return Task(0, 0, list(range(count)), 0, job=100 + number)


def test_threads_write_to_one_block_of_memory_in_any_order():
    arena, writers = memory_arena(), [ThreadChunkWriter() for _ in range(2)]
    payloads = {}
    for number in (2, 0, 3, 1):
        samples = [{"x": np.full(1000, number * 8 + i, "i8"), "name": str(number * 8 + i)} for i in range(8)]
        written = writers[number % 2].write(samples, chunk(number), arena)
        assert written is not None
        payloads[number] = LocalPayload(
            None, BatchHeader(*(0,) * 6, 8, *(0,) * 7), 0, in_arena=True, extras=written.extras
        )
    batch = arena.open([payloads[number] for number in range(4)])
    assert batch["x"][:, 7].tolist() == list(range(32))
    assert batch["name"] == [str(i) for i in range(32)]
    assert arena.read(payloads[2], 16)["x"][:, 0].tolist() == list(range(16, 24))


def test_a_chunk_that_is_produced_again_is_not_written_where_another_thread_may_still_write():
    arena, writer = memory_arena(), ThreadChunkWriter()
    samples = [np.zeros(1000) for _ in range(8)]
    assert writer.write(samples, chunk(1), arena) is not None
    assert ThreadChunkWriter().write(samples, chunk(1), arena) is None
    assert writer.write(samples, chunk(2), arena) is not None


@pytest.mark.parametrize(
    "samples",
    [[np.zeros(10)] * 8, [np.zeros(1000)] * 7, [{1, 2}] * 8, ["a"] * 8],
    ids=["small", "some left out", "not known", "no arrays"],
)
def test_a_chunk_that_does_not_fit_gets_memory_of_its_own(samples):
    class Unknown(list):
        pass

    if isinstance(samples[0], set):
        samples = [Unknown([1])] * 8
    assert ThreadChunkWriter().write(samples, chunk(0), memory_arena()) is None


def test_a_chunk_with_another_layout_than_the_first_gets_memory_of_its_own():
    arena, one, other = memory_arena(), ThreadChunkWriter(), ThreadChunkWriter()
    assert one.write([np.zeros(1000)] * 8, chunk(0), arena) is not None
    assert other.write([np.zeros(2000)] * 8, chunk(1), arena) is None
    arena = memory_arena()
    assert other.write([np.zeros(1000)] * 8, chunk(0), arena) is None, "it still has the previous layout"
    assert other.write([np.zeros(1000)] * 8, chunk(0), memory_arena()) is not None


# ---- in the loop


@pytest.fixture(params=[{"num_workers": 2}, {"num_workers": 2, "workers": "thread"}, {"num_workers": 0}], ids=str)
def who(request):
    return request.param


@pytest.mark.parametrize("arguments", [{"num_workers": 2, "workers": "thread"}, {"num_workers": 0}], ids=str)
def test_in_this_process_the_large_arrays_of_a_batch_are_views_of_the_arena(arguments):
    with DataLoader(Rows(64), 16, chunk_size=4, output="numpy", **arguments) as loader:
        for batch in loader:
            assert isinstance(batch["x"].base, bytearray), "joined chunks would have memory of their own"
            assert len(batch["x"].base) > batch["x"].nbytes + batch["t"].nbytes
            assert [len(batch[name].base) for name in "ti"] == [batch["t"].nbytes, batch["i"].nbytes]


class Rows(Numbers):
    """Large samples of several parts; those from `other` on have another layout."""

    def __init__(self, n, other=10**9):
        super().__init__(n)
        self.other = other

    def __getitem__(self, i):
        kind = np.float32 if i < self.other else np.float64
        return {"x": np.full(2000, i, kind), "t": torch.full((300,), i), "name": str(i), "i": i}


def expected(dataset, *args, **kwargs):
    return list(theirs.DataLoader(dataset, *args, **kwargs))


def arenas(loader):
    return loader._engine._group.pool._arenas


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_uneven_batches_of_a_batch_sampler_are_split_too(workers):
    batches = [list(range(9)), [5], list(range(20, 60)), [3, 1], list(range(16))]
    dataset = Rows(60)
    with DataLoader(dataset, batch_sampler=batches, chunk_size=4, num_workers=2, workers=workers) as loader:
        for _ in range(2):
            assert_same(list(loader), expected(dataset, batch_sampler=batches))
        assert len(loader) == 5


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_kept_batches_stay_unchanged_and_dropped_batches_free_their_arenas(output, monkeypatch):
    monkeypatch.setattr(segment, "KEEP", 3600.0)  # no arena is returned to the system because the machine is busy
    poisoned = set()
    poison = ArenaWriter.poison
    monkeypatch.setattr(ArenaWriter, "poison", lambda self, block: (poisoned.add(block.number), poison(self, block)))
    dataset = Rows(96)
    with DataLoader(dataset, 16, chunk_size=4, num_workers=2, output=output, persistent_workers=True) as loader:
        list(loader)
        wait_for(lambda: sum(w.state != "starting" for w in loader.stats().workers) == 2)
        for _ in range(2):  # both workers have these arenas
            kept = list(loader)
            if output == "numpy":
                kept = [{k: torch.as_tensor(v) if k in "xt" or k == "i" else v for k, v in b.items()} for b in kept]
            assert_same(kept, expected(dataset, 16))
        assert arenas(loader)._created > 4
        del kept
        made, lost = arenas(loader)._created, len(poisoned)
        for _ in range(5):
            for batch in loader:
                assert batch["x"][:, 0].tolist() == batch["i"].tolist()
        # A chunk that is given to a worker for the second time costs the arena of its batch. An epoch of 6 batches,
        # with those that the loop still holds, occupies at most 8.
        enough = max(made, lost + 8) + len(poisoned) - lost
        assert arenas(loader)._created <= enough < made + 30, "arenas are reused"


def test_an_abandoned_epoch_frees_its_arenas_at_once():
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
            assert len(arenas(loader).reader._maps) < 20
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_a_layout_that_changes_in_mid_epoch_costs_only_a_copy(workers):
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
    """From the arena that workers wrote: pinned where it lies, or copied once."""
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

    def pin_memory(tensor):
        pinned.append(tensor.shape[0])
        return tensor.clone()

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with DataLoader(Rows(32), 8, chunk_size=2, pin_memory=True, **who) as loader:
        monkeypatch.undo()
        monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
        assert_same(list(loader), expected(Rows(32), 8))
    assert pinned == [8] * 12, "three tensors of four batches"
