"""A segment is returned when the last array on it is collected, and never before."""

from __future__ import annotations

import errno
import functools
import gc
import itertools
import mmap
import os
import pathlib
import re
import threading
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from datasets import Images, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nbloader import DataLoader
from nbloader.engine import idle as idle_watch
from nbloader.shm import segment
from nbloader.shm.segment import SegmentReader, SegmentWriter, aligned, anonymous_file, segment_size
from nbloader.workers.cluster.incoming import IncomingBatches


class Lender:
    """Both ends of one worker's segments, as the worker and the notebook's process use them."""

    def __init__(self):
        self.writer, self.reader = SegmentWriter(self.announce, self.retire), SegmentReader()
        self.count = 0

    def announce(self, number, fd):
        self.reader.add(number, fd)
        self.count += 1

    def retire(self, numbers):
        for number in numbers:
            self.reader.forget(number)

    def take_back(self):
        """As before each batch."""
        self.writer.discard(self.reader.take_inherited())
        self.writer.give_back(self.reader.take_returned())

    def passes(self, seconds):
        """As if this time had passed since each of the free segments was used."""
        free = self.writer._free
        free._free = [each._replace(since=each.since - seconds) for each in free._free]

    def rest(self):
        """As at the end of an epoch."""
        self.take_back()
        self.writer.rest()

    def commit(self, value: int, nbytes: int) -> int:
        """Write a batch full of `value`. Returns the number of its segment."""
        self.take_back()
        block = self.writer.begin(nbytes)
        np.frombuffer(block.memory, np.uint8)[:nbytes] = value
        return block.number

    def send(self, value: int, nbytes: int = 40_000):
        """A batch full of `value`, as an array on lent memory."""
        return np.ndarray((nbytes,), np.uint8, lend(self.reader, self.commit(value, nbytes), nbytes))


def lend(reader, number, nbytes):
    """Memory that returns its segment when it is dropped."""
    memory = reader.view(number, nbytes)
    reader.lend(number, memory)
    return memory


def forked(monkeypatch):
    """As if this process had been forked."""
    monkeypatch.setattr(segment._forks, "count", segment._forks.count + 1)


def mappings():
    """Number of memory files that are mapped in this process."""
    return len(re.findall("memfd:nbloader|/nbloader-", pathlib.Path("/proc/self/maps").read_text()))


@pytest.fixture
def lender():
    lender = Lender()
    yield lender
    gc.collect()


class Leases(RuleBasedStateMachine):
    """Batches are kept, viewed and dropped; kept ones stay unchanged."""

    def __init__(self):
        super().__init__()
        self.lender = Lender()
        self.kept: list[tuple[int, list[object]]] = []
        self.sent = 0
        self.most = 0

    @rule(data=st.data())
    def a_while_passes(self, data):
        self.lender.passes(data.draw(st.sampled_from([0.1, segment.KEEP, 3 * segment.KEEP])))

    @rule()
    def the_epoch_is_over(self):
        self.lender.rest()
        assert len(self.lender.reader._maps) <= len(self.kept) + 1, "one is kept"

    @rule(nbytes=st.sampled_from([20_000, 40_000, 41_000]))
    def a_batch_comes(self, nbytes):
        value = self.sent = (self.sent + 1) % 251
        self.kept.append((value, [self.lender.send(value, nbytes)]))
        self.most = max(self.most, len(self.kept))

    @precondition(lambda self: self.kept)
    @rule(
        data=st.data(), how=st.sampled_from(["slice", "tensor", "tensor slice", "memoryview", "reshape", "numpy of it"])
    )
    def a_view_is_made_and_its_parent_dropped(self, data, how):
        _value, views = self.kept[data.draw(st.integers(0, len(self.kept) - 1))]
        array = np.asarray(views.pop())
        views.append(
            {
                "slice": lambda: array[5:-5],
                "tensor": functools.partial(torch.from_numpy, array),
                "tensor slice": lambda: torch.from_numpy(array)[3:].view(-1)[1:],
                "memoryview": lambda: memoryview(array)[2:],
                "reshape": lambda: array[: len(array) // 4 * 4].reshape(2, -1).T.ravel(order="K"),
                "numpy of it": torch.from_numpy(array)[1:].numpy,
            }[how]()
        )

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def a_batch_is_dropped(self, data):
        self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1)))

    @invariant()
    def what_is_kept_is_as_it_was(self):
        for value, views in self.kept:
            for view in views:
                array = np.asarray(view)
                assert array.min() == array.max() == value

    @invariant()
    def what_is_dropped_is_lent_no_more(self):
        assert len(self.lender.reader._lent) == len(self.kept)
        assert len(self.lender.reader._maps) <= 3 * self.most, "segments of one size are used again"
        assert self.lender.reader._maps.keys() == self.lender.writer._maps.keys()

    def teardown(self):
        self.kept.clear()
        assert not self.lender.reader._lent


Leases.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLeases = Leases.TestCase


class Free(RuleBasedStateMachine):
    """`FreeSegments` against a model: when each segment was used last."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.free = segment.FreeSegments()
        self.used: dict[int, float] = {}  # the free ones: when they came back
        self.sizes: dict[int, int] = {}
        self.out: list[int] = []

    @rule(size=st.sampled_from([1, 2, 3, 8]))
    def one_is_wanted(self, size):
        number = self.free.take(size)
        fits = [n for n in self.used if size <= self.sizes[n] <= 2 * size]
        if number is None:
            assert not fits
            number = len(self.sizes)
            self.sizes[number] = size
        else:
            best = min(self.sizes[n] for n in fits)
            assert self.sizes[number] == best
            newest = max(self.used[n] for n in fits if self.sizes[n] == best)
            assert self.used.pop(number) == newest, "the most recently used"
        self.out.append(number)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def one_comes_back(self, data):
        number = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.now += 0.01
        self.free.put(number, self.sizes[number], self.now)
        self.used[number] = self.now

    @rule(part=st.sampled_from([0.3, 0.7, 1.5]))
    def a_while_passes(self, part):
        self.now += part * segment.KEEP
        for number in self.free.unused(self.now):
            assert self.now - self.used.pop(number) >= segment.KEEP, "it was needed a moment ago"

    @rule()
    def nothing_is_wanted_for_long(self):
        for _ in range(2):
            self.now += segment.KEEP
            for number in self.free.unused(self.now):
                del self.used[number]
        assert not self.used, "all that are free were given back"

    @rule()
    def the_epoch_is_over(self):
        newest = max(self.used, key=self.used.get, default=None)
        for number in self.free.all_but_one():
            del self.used[number]
        assert list(self.used) == [newest][: len(self.used)]
        assert len(self.used) <= 1


Free.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestFree = Free.TestCase


def test_what_a_forked_process_may_view_is_not_written_again(lender, monkeypatch):
    kept, dropped = lender.send(1), lender.send(2)
    forked(monkeypatch)
    del dropped
    after = lender.send(3)  # lent after the fork
    assert lender.count == 3
    assert (kept == 1).all()
    del kept, after
    assert (lender.send(4) == 4).all()
    assert lender.count == 3
    assert len(lender.reader._maps) == len(lender.writer._maps) == 1, "the others are released"


def test_a_segment_for_another_machine_that_a_forked_process_may_view_is_not_written_again(monkeypatch):
    batches = IncomingBatches()
    block = batches.begin(40_000)
    lent = lend(batches.reader, block.number, 40_000)
    forked(monkeypatch)
    del lent
    other = batches.begin(40_000)
    assert other.number != block.number
    assert len(batches.reader._maps) == 1, "the other one is released"
    lend(batches.reader, other.number, 40_000)  # and dropped at once
    assert batches.begin(40_000).number == other.number


def test_small_batches_lie_side_by_side_in_memory_that_is_released_with_the_last_of_them(lender, monkeypatch):
    reader = lender.reader
    assert reader.store(memoryview(b"")).nbytes == 0
    before = mappings()
    bodies = [bytes([i % 251]) * (3000 + i) for i in range(100)]
    kept = [np.frombuffer(reader.store(memoryview(body)), np.uint8) for body in bodies]
    assert [array.tobytes() for array in kept] == bodies
    assert all(array.ctypes.data % segment.ALIGN == 0 for array in kept)
    assert mappings() - before <= 100 * 3200 // segment.SLAB_SIZE + 2
    del kept[:60]
    assert [array.tobytes() for array in kept] == bodies[60:]
    kept.clear()
    assert mappings() - before <= 1, "the current one is kept"
    monkeypatch.setattr(segment, "anonymous_file", Mock(side_effect=MemoryError))
    blocks = [reader.store(memoryview(body)) for body in bodies]
    assert bytearray in map(type, blocks), "there is no more shared memory"
    assert [bytes(block) for block in blocks] == bodies
    assert reader.store(memoryview(bytes(segment.SLAB_SIZE + 1))) == bytes(segment.SLAB_SIZE + 1)


@given(st.integers(0, 10**9))
def test_a_segment_is_a_little_larger_than_its_batch(nbytes):
    size = segment_size(nbytes)
    assert size >= max(nbytes, 1)
    assert size <= max(mmap.PAGESIZE, nbytes + nbytes // 8 + mmap.PAGESIZE)
    assert size % mmap.PAGESIZE == 0
    assert aligned(nbytes) % 64 == 0
    assert 0 <= aligned(nbytes) - nbytes < 64


def test_the_most_recently_used_segment_is_reused(lender):
    batches = [lender.send(i) for i in range(4)]
    last = batches[1].__array_interface__["data"]
    del batches[1]
    again = lender.send(9)
    assert again.__array_interface__["data"] == last
    assert lender.count == 4


def test_segments_that_a_late_batch_needed_are_freed(lender):
    batches = [lender.send(i) for i in range(20)]
    assert len(lender.reader._maps) == 20
    late, rest = batches[:2], batches[2:]
    del batches, rest
    for i in range(4):
        lender.passes(2 * segment.KEEP)
        del late[0]
        late.append(lender.send(20 + i))
    assert len(lender.reader._maps) <= 4
    assert [batch.min() for batch in late] == [batch.max() for batch in late] == [22, 23]


def test_a_thread_may_drop_batches(lender):
    batches: list[np.ndarray] = []
    go, stop = threading.Semaphore(0), threading.Event()

    def drop():
        while not stop.is_set():
            go.acquire()
            if batches:
                batches.pop()

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(3000):
        batches.append(lender.send(i % 251, 20_000))
        kept = batches[-4:]
        go.release()
        assert all(k.min() == k.max() for k in kept)
        del kept
    stop.set()
    go.release(3)
    for thread in threads:
        thread.join()
    batches.clear()
    assert not lender.reader._lent
    assert lender.count < 3000
    free = itertools.chain(lender.reader.take_returned(), (each.number for each in lender.writer._free._free))
    assert sorted(free) == list(range(lender.count)), "each segment is free, once"


def test_batches_beyond_the_limit_on_mappings_are_copied(lender, monkeypatch):
    monkeypatch.setattr(segment, "MAX_LENT", 3)
    batches = [lender.send(i) for i in range(20)]
    assert len(lender.reader._lent) == 3
    assert lender.count == 4, "a segment that was copied out is free at once"
    assert all((batch == i).all() for i, batch in enumerate(batches))
    assert batches[-1].flags.writeable


def test_kept_batches_hold_no_descriptors(lender):
    descriptors = len(os.listdir("/proc/self/fd"))
    kept = [lender.send(i, 20_000) for i in range(100)]
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert all((batch == i).all() for i, batch in enumerate(kept))


@pytest.mark.linux("memory files are memfds")
def test_kept_batches_outlive_the_worker_and_are_unmapped_when_dropped(lender):
    gc.collect()  # what earlier tests left in cycles
    before = mappings()
    kept = [lender.send(i) for i in range(5)]
    assert mappings() == before + 10, "mapped on both sides"
    views = [batch[3:7] for batch in kept]
    del kept
    lender.writer, lender.reader = SegmentWriter(lender.announce, lender.retire), SegmentReader()
    gc.collect()
    assert mappings() == before + 5
    assert [view.tolist() for view in views] == [[i] * 4 for i in range(5)]
    del views
    gc.collect()
    assert mappings() == before


def test_the_segment_of_a_discarded_batch_is_returned(lender):
    lender.reader.discard(lender.commit(0, 40_000))
    lender.send(1)
    assert lender.count == 1


def test_the_segment_of_an_aborted_batch_is_reused(lender):
    descriptors = len(os.listdir("/proc/self/fd"))
    aborted = lender.writer.begin(40_000)
    lender.writer.abort(aborted)
    assert lender.commit(1, 40_000) == aborted.number
    assert lender.count == 1
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_small_batch_has_no_segment(lender):
    block = lender.writer.begin(segment.INLINE_LIMIT - 1)
    assert (block.number, len(block.memory)) == (segment.NO_SEGMENT, segment.INLINE_LIMIT - 1)
    lender.writer.abort(block)
    assert lender.count == 0


@pytest.mark.linux("memory files are memfds")
def test_too_many_open_files_is_not_reported_as_exhausted_memory(monkeypatch):
    def refused(*_args):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", refused)
    with pytest.raises(OSError, match="open files"):
        anonymous_file(100)


@pytest.mark.linux("memory files are memfds")
def test_exhausted_memory_raises_an_error_with_advice(monkeypatch):
    with pytest.raises(
        MemoryError, match=r"1,152,921,504.* MB .*could not be allocated \([\d,]+ MB are left\).*batch_size"
    ):
        anonymous_file(1 << 60)

    def no_space(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(MemoryError, match=r"0.1 MB .*could not be allocated \(No space left on device\)"):
        anonymous_file(100_000)


def test_idle_workers_free_memory_when_another_loader_begins_an_epoch():
    with (
        DataLoader(Images(160), 16, num_workers=2, persistent_workers=True) as idle,
        DataLoader(Images(16), 8, num_workers=1) as busy,
    ):
        assert len(list(idle)) == 10

        def segments():
            return sum(len(handle.segments._maps) for handle in idle._engine._group.pool.handles.values())

        assert segments() > 4
        for _batch in busy:
            wait_for(lambda: segments() <= 2, "each worker keeps one at most")
        assert len(list(idle)) == 10


@pytest.mark.parametrize("chunk", [None, 8])
def test_workers_free_memory_between_epochs_and_the_next_epoch_is_right(chunk, monkeypatch):
    monkeypatch.setattr(idle_watch, "MEMORY_RELEASE_DELAY", 0.1)
    with DataLoader(Images(160), 16, num_workers=2, chunk_size=chunk, persistent_workers=True) as loader:

        def segments():
            pool = loader._engine._group.pool
            return sum(len(reader._maps) for reader in [handle.segments for handle in pool.handles.values()])

        kept = list(loader)
        assert segments() > 2  # how many depends on which worker produced what
        wait_for(lambda: segments() <= len(kept), "segments of kept batches stay")
        for _ in range(2):
            again = list(loader)
            for first, second in zip(kept, again, strict=True):
                assert torch.equal(first[0], second[0])
                assert torch.equal(first[1], second[1])
            del again, first, second
        assert [int(images[-1, -1, -1]) for images, _labels in kept] == list(range(15, 160, 16))
        kept.clear()
        list(loader)
        wait_for(lambda: segments() <= 3, "one per writer is kept")
