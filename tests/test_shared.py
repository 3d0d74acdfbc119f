"""Large arrays of a dataset are shared between the workers; the dataset object itself is never changed."""

from __future__ import annotations

import contextlib
import copy
import mmap
import os
import pathlib
import pickle
import queue
import re
import sys
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
import torch

import nbloader
from nbloader import DataLoader
from nbloader.shm.dataset_store import file_of
from nbloader.transport.dataset_payload import MAX_FILES, SharedPickle, load_shared

BIG = 100_000


def load(pickled: SharedPickle):
    return load_shared(pickled.files())


class Holder:
    def __init__(self, **parts):
        self.__dict__.update(parts)


def test_large_arrays_are_sent_beside_the_pickle_and_small_ones_inside():
    obj = {"large": np.arange(100_000), "small": np.arange(10), "f": np.asfortranarray(np.random.rand(300, 400))}
    pickled = SharedPickle(obj)
    assert pickled.files().pickle.nbytes < 5_000
    copy = load(pickled)
    assert all((copy[k] == obj[k]).all() and copy[k].dtype == obj[k].dtype for k in obj)
    assert copy["f"].flags.f_contiguous


def test_without_large_arrays_nothing_is_shared():
    pickled = SharedPickle([1, "a", np.arange(3)])
    assert pickled.files().spans == ()
    assert load(pickled)[:2] == [1, "a"]


def test_large_arrays_are_copied_on_write():
    array = np.zeros(100_000)
    pickled = SharedPickle(array)
    one, two = load(pickled), load(pickled)
    one[:] = 1
    assert (two == 0).all()
    assert (array == 0).all()
    assert (load(pickled) == 0).all()


def test_workers_get_the_array_as_it_was_when_the_first_of_them_received_it():
    array = np.zeros(100_000)
    pickled = SharedPickle(array)
    pickled.files()
    array[:] = 5
    assert (load(pickled) == 0).all()


def test_lambdas_and_local_classes_can_be_sent():
    class Local:
        factor = 3

        def __getitem__(self, i):
            times = lambda x: x * self.factor  # noqa: E731 - it is a lambda that is to travel
            return times(i)

    assert load(SharedPickle(Local()))[4] == 12


def test_the_shared_memory_is_freed_with_the_pickle():
    pickled = SharedPickle(np.zeros(100_000))
    (fd,) = pickled.files().fds
    assert pickled.files().fds == (fd,)
    ref = weakref.ref(pickled)
    del pickled
    assert ref() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_large_tensors_are_shared_like_arrays():
    pickled = SharedPickle({"a": torch.arange(100_000), "b": torch.ones(300, 400, dtype=torch.bfloat16).T})
    assert pickled.files().pickle.nbytes < 5_000
    copy = load(pickled)
    assert torch.equal(copy["a"], torch.arange(100_000))
    assert copy["b"].dtype == torch.bfloat16
    assert copy["b"].shape == (400, 300)
    copy["a"][:] = 0
    assert load(pickled)["a"][1] == 1


def test_a_large_pickle_is_written_once_to_a_memory_file():
    parts = [bytes([i]) * 4_000_000 for i in range(4)], "text" * 1_000_000, list(range(100_000)), np.arange(BIG)
    tracemalloc.start()
    try:
        pickled = SharedPickle(parts)
        files = pickled.files()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12e6, "it is not in this process's own memory, only what pickle needs for 100,000 objects"
    assert files.pickle.nbytes > 20e6
    one, two = load(pickled), load(pickled)
    assert one[:3] == two[:3] == parts[:3]
    assert (one[3] == parts[3]).all()


def test_a_large_pickle_beyond_the_memory_that_is_left_raises(monkeypatch):
    monkeypatch.setattr("nbloader.shm.segment.available_memory", lambda: 10_000_000)
    with pytest.raises(MemoryError, match="MB of shared memory could not be allocated"):
        SharedPickle(b"x" * 20_000_000)


def test_what_cannot_be_pickled_raises():
    with pytest.raises((TypeError, pickle.PicklingError)):
        SharedPickle(i for i in range(3))


def test_locks_of_threads_become_new_ones_and_those_of_the_notebook_stay_as_they_are():
    """A worker has none of the notebook's threads, so nobody would release a lock that one of them holds."""
    lock, rlock, event, jobs, local = (
        threading.Lock(),
        threading.RLock(),
        threading.Event(),
        queue.Queue(3),
        threading.local(),
    )
    holder = Holder(lock=lock, again=lock, rlock=rlock, condition=threading.Condition(lock), event=event, jobs=jobs)
    holder.semaphore, holder.local = threading.BoundedSemaphore(2), local
    event.set()
    jobs.put("job")
    local.opened = ["a"]
    before = dict(vars(holder))
    with lock, rlock, holder.semaphore:
        copy = load(SharedPickle(holder))
        assert lock.locked()
    assert vars(holder) == before
    assert copy.lock is copy.again is copy.condition._lock is not lock
    with copy.condition, copy.rlock, copy.semaphore:  # none of them is held
        assert copy.lock.locked()
        assert not lock.locked()
    assert copy.event.is_set()
    assert copy.event is not event
    copy.jobs.put("another", timeout=1)
    assert [copy.jobs.get(timeout=1), copy.jobs.get(timeout=1)] == ["job", "another"]
    assert jobs.qsize() == 1
    assert copy.local.opened == ["a"]


# ---- the dataset of the notebook is left alone


class Rows:
    """Rows of one array."""

    def __init__(self, rows=64):
        self.x = np.arange(rows * BIG // 8, dtype=np.float64).reshape(rows, -1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


def first_of(loader):
    return [float(row[0]) for batch in loader for row in batch]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_loader_never_replaces_an_array_of_the_dataset(persistent):
    dataset = Rows()
    array, address, expected = id(dataset.x), dataset.x.ctypes.data, dataset.x[:, 0].tolist()
    with DataLoader(dataset, 8, num_workers=2, persistent_workers=persistent) as loader:
        assert first_of(loader) == expected
        for _ in range(3):
            assert first_of(loader) == expected
        dataset.x[:, 0] = -1
        loader.reload()
        assert first_of(loader) == [-1] * len(expected)
        with DataLoader(dataset, 8, num_workers=1) as other:
            assert first_of(other) == [-1] * len(expected)
    assert (id(dataset.x), dataset.x.ctypes.data) == (array, address)
    assert dataset.x[1, 1] == expected[1] + 1


class Losses:
    """Keeps statistics of each sample, as curriculum learning does."""

    def __init__(self, n):
        self.x = np.arange(n)
        self.loss = np.zeros(n)  # 64 kB and more: large enough to be shared

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return int(self.x[i])


@contextlib.contextmanager
def iterated_elsewhere(dataset):
    """Another loader iterates the dataset in a thread."""
    stop = threading.Event()

    def iterate():
        with DataLoader(dataset, 512, num_workers=1) as other:
            while not stop.is_set():
                for _ in other:
                    if stop.is_set():
                        break

    thread = threading.Thread(target=iterate)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("change", ["nothing", "reload", "refresh", "second loader"])
def test_statistics_kept_in_an_array_of_the_dataset_are_right(change):
    n = 16_384
    dataset = Losses(n)
    beside = iterated_elsewhere(dataset) if change == "second loader" else contextlib.nullcontext()
    with beside, DataLoader(dataset, 256, num_workers=2) as loader:
        for _epoch in range(3):
            dataset.loss = np.zeros(n)
            for number, batch in enumerate(loader):
                for i in batch.tolist():
                    dataset.loss[i] += i + 1
                if change == "reload" and number == 7:
                    loader.reload()
            assert (dataset.loss == np.arange(1, n + 1)).all()
            if change == "refresh":
                loader.refresh()


def test_a_shared_array_is_the_same_file_in_every_loader():
    holder = Holder(x=nbloader.share(np.arange(BIG)), y=nbloader.share(np.ones(BIG)))
    old = SharedPickle(holder)
    new = SharedPickle(holder)
    assert inodes(new) == inodes(old)
    assert (load(new).x == np.arange(BIG)).all()
    del old
    assert (load(SharedPickle(holder)).y == 1).all(), "the file lives as long as the arrays on it"


def inodes(pickled):
    """The files of the arrays."""
    files = pickled.files()
    return {os.fstat(files.fds[span.file]).st_ino for span in files.spans}


def test_writes_to_a_shared_array_are_private_to_the_process():
    holder = Holder(x=nbloader.share(np.zeros(BIG)))
    pickled = SharedPickle(holder)
    theirs = load(pickled)
    holder.x[:10] = 1
    theirs.x[10:20] = 2
    assert (theirs.x[:10] == 0).all()
    assert (holder.x[:10] == 1).all()
    assert (holder.x[10:] == 0).all()
    assert load(pickled).x.sum() == 0
    twin = copy.deepcopy(holder)
    twin.x[:] = 7
    assert holder.x.sum() == 10


def test_later_workers_see_what_the_notebook_has_written():
    holder = Holder(x=nbloader.share(np.zeros(BIG)), y=nbloader.share(np.arange(BIG)))
    old = SharedPickle(holder)
    before = inodes(old)
    holder.x[BIG // 2] = 5
    new = SharedPickle(holder)
    assert load(new).x[BIG // 2] == 5
    assert load(old).x[BIG // 2] == 0
    assert len(inodes(new) & before) == 1, "what was not written to stays where it is"


def test_memory_is_freed_with_its_last_user():
    def files():
        return len(re.findall("memfd:nbloader|/nbloader-", pathlib.Path("/proc/self/maps").read_text()))

    before = files()
    holder = Holder(x=nbloader.share(np.zeros(BIG)))
    pickled = SharedPickle(holder)
    _, fd = pickled.files().fds
    del pickled
    view = holder.x[3:]
    del holder
    assert view.sum() == 0
    assert files() == before + 1
    os.fstat(fd)
    del view
    assert files() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


# ---- share


@pytest.mark.parametrize(
    "array", [np.arange(BIG), np.arange(12.0).reshape(3, 4).T, np.arange(BIG)[::3], np.zeros((0, 3))]
)
def test_share_returns_an_equal_array_in_shared_memory(array):
    shared = nbloader.share(array)
    assert shared.dtype == array.dtype
    assert (shared == array).all()
    assert shared.shape == array.shape
    assert not np.shares_memory(shared, array)
    assert shared.flags.writeable


class Keeps:
    """Sums of the rows of an array. Keeps the rows, or copies of them."""

    def __init__(self, rows, keep):
        self.rows, self.keep, self.kept = rows, keep, []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        self.kept.append(self.keep(self.rows[i]))
        return self.kept[-1].sum()


@pytest.mark.linux("pages of files are not counted as private")
@pytest.mark.skipif(not pathlib.Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(("keep", "own"), [(np.asarray, False), (np.copy, True)])
def test_a_shared_array_is_not_counted_as_private_memory_of_the_only_worker_that_reads_it(keep, own):
    rows = nbloader.share(np.ones((40, 250_000)))
    with DataLoader(Keeps(rows, keep), 8, num_workers=1, persistent_workers=True) as loader:
        list(loader)
        (worker,) = loader.stats().workers
    assert (worker.private > rows.nbytes / 2) is own, worker


def test_neither_a_shared_array_nor_a_view_of_it_is_copied_for_workers():
    data = nbloader.share(np.arange(BIG))
    holder = Holder(x=data, part=data[BIG // 2 :])
    pickled = SharedPickle(holder)
    assert inodes(pickled) == {os.fstat(file_of(data.base).fd).st_ino}
    theirs = load(pickled)
    assert (theirs.x == data).all()
    assert (theirs.part == data[BIG // 2 :]).all()


@pytest.mark.parametrize("wrong", [{1, 2}, np.array([None, 1]), torch.zeros(3)])
def test_share_takes_arrays_of_numbers_lists_and_dicts(wrong):
    with pytest.raises(
        TypeError, match="share takes a NumPy array of numbers, a list, a tuple, an iterator or a dict, not"
    ):
        nbloader.share(wrong)


def test_files_beyond_the_limit_of_a_worker_are_copied_into_one():
    arrays = [nbloader.share(np.full(BIG // 8, i)) for i in range(70)]
    pickled = SharedPickle(arrays)
    assert len(pickled.files().fds) <= MAX_FILES
    assert [int(a[0]) for a in load(pickled)] == list(range(70))


# ---- tensors after share_memory_()


def test_a_tensor_in_shared_memory_is_the_same_memory_in_workers():
    tensor = torch.zeros(BIG).share_memory_()
    pickled = SharedPickle({"t": tensor, "part": tensor[BIG // 2 :]})
    theirs = load(pickled)
    theirs["t"][0] = 3
    theirs["part"][0] = 4
    assert (tensor[0], tensor[BIG // 2]) == (3, 4), "as with torch's own workers"
    tensor[1] = 5
    assert theirs["t"][1] == 5


class Counting:
    """Counts how often each sample was fetched, in any process."""

    def __init__(self):
        self.asked = torch.zeros(BIG, dtype=torch.int64).share_memory_()

    def __len__(self):
        return 16

    def __getitem__(self, i):
        self.asked[i] += 1
        return i


def test_writes_of_workers_to_a_shared_tensor_are_seen_by_all():
    dataset = Counting()
    with DataLoader(dataset, 4, num_workers=2) as loader:
        assert sum(len(batch) for batch in loader) == 16
    assert dataset.asked[:17].tolist() == [1] * 16 + [0]


# ---- np.memmap


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(BIG, dtype=np.int32).reshape(-1, 100))
    return path


@pytest.mark.parametrize(
    "mode", ["r", "r+", pytest.param("c", marks=pytest.mark.linux("it is known which pages were written to"))]
)
def test_a_memmap_is_read_from_its_file(file, mode):
    x = np.load(file, mmap_mode=mode)
    parts = [x, x[100:300], x[:, 3:50:2], x[7], x.T, x[5:6, 5:6], np.broadcast_to(x[:1], (3, 100), subok=True), x[::2]]
    pickled = SharedPickle(parts)
    assert pickled.files().pickle.nbytes < 10_000
    assert pickled.files().spans == ()
    for mine, theirs in zip(parts, load(pickled), strict=True):
        assert (theirs == mine).all()
        assert (theirs.dtype, theirs.shape, theirs.flags.writeable) == (mine.dtype, mine.shape, mine.flags.writeable)
    assert type(load(pickled)[0]) is np.memmap
    assert load(pickled)[0].mode == mode


def test_a_memmap_that_was_created_is_not_emptied_and_is_the_same_file(tmp_path):
    x = np.memmap(tmp_path / "new", np.int32, "w+", shape=(BIG,))
    x[:] = 7
    theirs = load(SharedPickle(x))
    assert (theirs == 7).all()
    theirs[3] = 8
    assert x[3] == 8


def test_changes_to_a_copy_on_write_memmap_are_sent(file):
    x = np.load(file, mmap_mode="c")
    x[0, 0] = 77
    pickled = SharedPickle(x)
    assert load(pickled)[0, 0] == 77
    assert np.load(file)[0, 0] == 0
    assert pickled.files().pickle.nbytes < 10_000, "once for all workers"


REPLACED = pytest.param("replaced", marks=pytest.mark.linux("it is known which file is mapped"))


@pytest.mark.parametrize("what", ["deleted", REPLACED, "renamed"])
def test_the_data_of_a_memmap_whose_file_is_gone_is_sent(file, what):
    x = np.load(file, mmap_mode="r")
    if what == "deleted":
        file.unlink()
    elif what == "replaced":
        other = file.with_name("other.npy")
        np.save(other, np.zeros_like(x))
        other.rename(file)
    else:
        file.rename(file.with_suffix(".renamed"))
    assert (load(SharedPickle(x)) == np.arange(BIG).reshape(-1, 100)).all()


def test_a_file_that_is_replaced_later_raises_instead_of_giving_other_data(file):
    pickled = SharedPickle(np.load(file, mmap_mode="r"))
    other = file.with_name("other.npy")
    np.save(other, np.zeros((10, 10)))
    other.rename(file)
    with pytest.raises(FileNotFoundError, match="is not the file that"):
        load(pickled)


def test_an_anonymous_memmap_and_an_array_on_one_can_be_sent(file):
    x = np.load(file, mmap_mode="r")
    plain = np.asarray(x)
    with mmap.mmap(-1, 800_000) as memory:
        anonymous = np.frombuffer(memory, np.int64)
        anonymous[:] = 5
        theirs = load(SharedPickle([plain, anonymous]))
        assert (theirs[0] == x).all()
        assert (theirs[1] == 5).all()
        del anonymous


class AttrDict(dict):
    """Attributes are items."""

    __getattr__ = dict.__getitem__


class SelfFilling(dict):
    """A missing attribute is created."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.setdefault(name, SelfFilling())


PICKLES = pytest.mark.skipif(sys.version_info < (3, 11), reason="pickle asks it for a missing __getstate__")


@pytest.mark.parametrize("kind", [pytest.param(AttrDict, marks=PICKLES), SelfFilling])
def test_attribute_dictionaries_are_sent_as_they_are(kind):
    config = kind(size=3, inner=kind(name="x"))
    got = load(SharedPickle(Holder(config=config))).config
    assert got == config == kind(size=3, inner=kind(name="x"))
    assert got.inner.name == "x"


def test_a_dataset_with_attribute_dictionaries_is_loaded():
    class Configured:
        defaults = AttrDict(scale=2)

        def __init__(self):
            self.config = AttrDict(n=8)

        def __len__(self):
            return self.config.n

        def __getitem__(self, i):
            return i * self.defaults.scale

    with DataLoader(Configured(), 4, num_workers=1) as loader:
        assert torch.cat(list(loader)).tolist() == list(range(0, 16, 2))


def test_locks_of_the_fork_context_are_refused_with_what_to_use_instead():
    import multiprocessing

    with pytest.raises(TypeError, match=r"fork context .*get_context\('forkserver'\)"):
        SharedPickle(Holder(lock=multiprocessing.get_context("fork").Lock()))
