"""A segment goes back when the last array on it dies, and never before; datasets share their arrays."""

from __future__ import annotations

import errno
import functools
import gc
import itertools
import mmap
import os
import pathlib
import pickle
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nbloader import shm
from nbloader.shm import SegmentMaps, SegmentPool, SharedPickle, aligned, anonymous_file, load_shared, segment_size


class Lender:
    """Both sides of one worker's segments, as the worker and the notebook's process use them."""

    def __init__(self):
        self.pool, self.maps = SegmentPool(), SegmentMaps()
        self.count = 0

    def send(self, value: int, nbytes: int = 40_000):
        """A batch full of `value`, as an array on lent memory."""
        self.pool.give_back(self.maps.take_returned())
        number, memory, fd = self.pool.take(nbytes)
        if fd is not None:
            self.maps.add(number, fd)
            self.count += 1
        np.frombuffer(memory, np.uint8)[:nbytes] = value
        return np.ndarray((nbytes,), np.uint8, self.maps.lend(number, nbytes))


@pytest.fixture
def lender():
    lender = Lender()
    yield lender
    gc.collect()


class Leases(RuleBasedStateMachine):
    """Batches are kept, viewed, dropped; whatever is kept stays as it was."""

    def __init__(self):
        super().__init__()
        self.lender = Lender()
        self.kept: list[tuple[int, list[object]]] = []
        self.sent = 0
        self.most = 0

    @rule(nbytes=st.sampled_from([10_000, 40_000, 41_000]))
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
        assert len(self.lender.maps._lent) == len(self.kept)
        assert self.lender.count <= 3 * self.most, "segments of one size are used again"

    def teardown(self):
        self.kept.clear()
        assert not self.lender.maps._lent


Leases.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLeases = Leases.TestCase


@given(st.integers(0, 10**9))
def test_a_segment_is_a_little_larger_than_its_batch(nbytes):
    size = segment_size(nbytes)
    assert size >= max(nbytes, 1)
    assert size <= max(mmap.PAGESIZE, nbytes + nbytes // 8 + mmap.PAGESIZE)
    assert size % mmap.PAGESIZE == 0
    assert aligned(nbytes) % 64 == 0
    assert 0 <= aligned(nbytes) - nbytes < 64


def test_the_most_recently_used_segment_is_used_again(lender):
    batches = [lender.send(i) for i in range(4)]
    last = batches[1].__array_interface__["data"]
    del batches[1]
    again = lender.send(9)
    assert again.__array_interface__["data"] == last
    assert lender.count == 4


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
    assert not lender.maps._lent
    assert lender.count < 3000
    free = itertools.chain(lender.maps.take_returned(), *lender.pool._free.values())
    assert sorted(free) == list(range(lender.count)), "each segment is free, once"


def test_beyond_the_bound_batches_are_copied_out(lender, monkeypatch):
    monkeypatch.setattr(shm, "MAX_LENT", 3)
    batches = [lender.send(i) for i in range(20)]
    assert len(lender.maps._lent) == 3
    assert lender.count == 4, "a segment that was copied out is free at once"
    assert all((batch == i).all() for i, batch in enumerate(batches))
    assert batches[-1].flags.writeable


def test_batches_that_are_kept_cost_no_descriptors(lender):
    descriptors = len(os.listdir("/proc/self/fd"))
    kept = [lender.send(i, 20_000) for i in range(100)]
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert all((batch == i).all() for i, batch in enumerate(kept))


def test_kept_batches_outlive_the_worker_and_unmapped_memory_is_given_back(lender):
    def mappings():
        return pathlib.Path("/proc/self/maps").read_text().count("memfd:nbloader")

    before = mappings()
    kept = [lender.send(i) for i in range(5)]
    assert mappings() == before + 10, "mapped on both sides"
    views = [batch[3:7] for batch in kept]
    del kept
    lender.pool, lender.maps = SegmentPool(), SegmentMaps()
    gc.collect()
    assert mappings() == before + 5
    assert [view.tolist() for view in views] == [[i] * 4 for i in range(5)]
    del views
    gc.collect()
    assert mappings() == before


def test_a_discarded_batch_gives_its_segment_back(lender):
    number, _memory, fd = lender.pool.take(40_000)
    lender.maps.add(number, fd)
    lender.maps.discard(number)
    lender.send(1)
    assert lender.count == 0


def test_memory_that_is_not_there_is_an_error_that_says_what_to_do(monkeypatch):
    with pytest.raises(MemoryError, match=r"1,152,921,504.* MB .*not there \([\d,]+ MB are left\).*batch_size"):
        anonymous_file(1 << 60)

    def no_space(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(MemoryError, match=r"0.1 MB .*not there \(No space left on device\)"):
        anonymous_file(100_000)


# ---- SharedPickle


def load(pickled: SharedPickle):
    fd = pickled.fd()
    return load_shared(pickled.data, pickled.spans, None if fd is None else os.dup(fd))


class Holder:
    def __init__(self, **parts):
        self.__dict__.update(parts)


def test_large_arrays_travel_beside_the_pickle_and_small_ones_in_it():
    obj = {"large": np.arange(100_000), "small": np.arange(10), "f": np.asfortranarray(np.random.rand(300, 400))}
    pickled = SharedPickle(obj)
    assert len(pickled.data) < 5_000
    copy = load(pickled)
    assert all((copy[k] == obj[k]).all() and copy[k].dtype == obj[k].dtype for k in obj)
    assert copy["f"].flags.f_contiguous


def test_without_large_arrays_nothing_is_shared():
    pickled = SharedPickle([1, "a", np.arange(3)])
    assert pickled.fd() is None
    assert load(pickled)[:2] == [1, "a"]


def test_large_arrays_are_copied_on_write():
    array = np.zeros(100_000)
    pickled = SharedPickle(array)
    one, two = load(pickled), load(pickled)
    one[:] = 1
    assert (two == 0).all()
    assert (array == 0).all()
    assert (load(pickled) == 0).all()


def test_the_pickle_is_of_the_moment_at_which_workers_get_it_first():
    array = np.zeros(100_000)
    pickled = SharedPickle(array)
    pickled.fd()
    array[:] = 5
    assert (load(pickled) == 0).all()


def test_lambdas_and_classes_of_functions_travel():
    class Local:
        factor = 3

        def __getitem__(self, i):
            times = lambda x: x * self.factor  # noqa: E731 - it is a lambda that is to travel
            return times(i)

    assert load(SharedPickle(Local()))[4] == 12


def test_the_shared_memory_goes_with_the_pickle():
    pickled = SharedPickle(np.zeros(100_000))
    fd = pickled.fd()
    assert fd == pickled.fd()
    ref = weakref.ref(pickled)
    del pickled
    assert ref() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_the_same_object_has_the_same_identity():
    holder = Holder(x=np.zeros(100_000), n=1)
    one, two = SharedPickle(holder), SharedPickle(holder)
    assert one.identity == two.identity
    one.fd()
    assert one.identity == two.identity
    holder.n = 2
    assert SharedPickle(holder).identity != two.identity


def test_another_array_in_the_place_of_one_that_is_gone_is_another_identity():
    """Its address may be the same."""
    holder = Holder(x=np.zeros(100_000))
    old = SharedPickle(holder)
    old.fd()
    for value in range(1, 50):
        holder.x = None
        holder.x = np.full(100_000, float(value))
        new = SharedPickle(holder)
        assert new.identity != old.identity
        new.fd()
        old = new


def test_large_tensors_are_shared_as_arrays_are():
    pickled = SharedPickle({"a": torch.arange(100_000), "b": torch.ones(300, 400, dtype=torch.bfloat16).T})
    assert len(pickled.data) < 5_000
    copy = load(pickled)
    assert torch.equal(copy["a"], torch.arange(100_000))
    assert copy["b"].dtype == torch.bfloat16
    assert copy["b"].shape == (400, 300)
    copy["a"][:] = 0
    assert load(pickled)["a"][1] == 1


def test_what_cannot_be_pickled_raises():
    with pytest.raises((TypeError, pickle.PicklingError)):
        SharedPickle(threading.Lock())
