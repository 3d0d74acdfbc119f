"""What a sampler draws reaches the dataset as it is, and a fault of an index is an error of its batch."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch
from datasets import Numbers, wait_for
from same import assert_same
from torch.utils import data as theirs

from nbloader import DataLoader, DatasetTransferError, LoaderTimeoutError, WorkerDiedError
from nbloader import events as ev

ROWS = np.arange(100)
KINDS = {
    "in process": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "workers": "thread"},
    "forked": {"num_workers": 1, "multiprocessing_context": "fork"},
}
WORKERS = pytest.mark.parametrize("workers", KINDS.values(), ids=KINDS)


class Rows(Numbers):
    """Returns what `__getitems__` was given, next to each sample."""

    def __getitems__(self, indices):
        items = indices if hasattr(indices, "__iter__") else [0]
        return [(type(indices).__name__, str(indices), int(i) if type(i) is not str else i) for i in items]


class Row:
    """An index of a user's class."""

    def __init__(self, number):
        self.number = number

    def __int__(self):
        return self.number

    def __repr__(self):
        return f"Row({self.number})"


class Rows64(list):
    """A list of a user's class."""


DRAWN = {
    "array": lambda: list(ROWS[:6].reshape(3, 2)),
    "array of small integers": lambda: list(np.arange(6, dtype=np.uint8).reshape(3, 2)),
    "array of objects": lambda: [np.array([Row(1), Row(2)])],
    "matrix": lambda: [np.array([1, 2], np.int32), np.array([], int)],
    "tensor": lambda: list(torch.arange(6).reshape(3, 2)),
    "range": lambda: [range(3), range(5, 1, -2)],
    "tuple": lambda: [(1, 2), (3,)],
    "list of a class": lambda: [Rows64([1, 2])],
    "dict": lambda: [{1: "a", 2: "b"}],
    "set": lambda: [frozenset({3})],
    "text": lambda: ["ab", "c"],
    "slice": lambda: [slice(0, 4), slice(4, 6)],
    "integer": lambda: [4, 5],
}


@WORKERS
@pytest.mark.parametrize("drawn", DRAWN.values(), ids=DRAWN)
def test_getitems_gets_what_the_batch_sampler_has_drawn(drawn, workers):
    arguments = {"batch_sampler": drawn(), "collate_fn": list}
    with DataLoader(Rows(9), **arguments, **workers) as loader:
        assert_same(list(loader), list(theirs.DataLoader(Rows(9), **arguments)))


class Whole:
    """A batch of a class of the user, without a length."""

    def __init__(self, rows):
        self.rows = rows

    def __eq__(self, other):
        return type(other) is Whole and self.rows == other.rows

    __hash__ = None


RETURNED = {
    "list": lambda rows: rows,
    "tuple": tuple,
    "columns": lambda rows: {"rows": torch.tensor(rows)},
    "array": np.array,
    "tuple of columns": lambda rows: (torch.tensor(rows), "names"),
    "object without a length": Whole,
    "number": sum,
}


class Returns(Numbers):
    def __init__(self, n, convert):
        super().__init__(n)
        self.convert = convert

    def __getitems__(self, indices):
        return self.convert([2 * i for i in indices])


class ReturnsAsynchronously(Returns):
    async def __getitems__(self, indices):
        return super().__getitems__(indices)


def as_it_is(batch):
    return batch


@WORKERS
@pytest.mark.parametrize("convert", RETURNED.values(), ids=RETURNED)
@pytest.mark.parametrize("kind", [Returns, ReturnsAsynchronously], ids=["plain", "asynchronous"])
def test_getitems_may_return_whatever_the_collate_function_takes(convert, kind, workers):
    arguments = {"batch_size": 4, "collate_fn": as_it_is}
    with DataLoader(kind(9, convert), **arguments, **workers) as loader:
        assert_same(list(loader), list(theirs.DataLoader(Returns(9, convert), **arguments)))
        assert [e.samples for e in loader.events.history if isinstance(e, ev.BatchRecord)] == [4, 4, 1]


class Raises(Returns):
    """Batches with row 4 raise; a batch of one is of the kind that the test asks for."""

    def __getitems__(self, indices):
        if 4 in indices:
            raise OSError("row 4")
        return super().__getitems__(indices)


class RaisesAsynchronously(Raises):
    async def __getitems__(self, indices):
        return super().__getitems__(indices)


@WORKERS
@pytest.mark.parametrize("name", ["columns", "tuple of columns", "object without a length"])
@pytest.mark.parametrize("kind", [Raises, RaisesAsynchronously], ids=["plain", "asynchronous"])
def test_a_part_of_a_batch_is_never_taken_for_a_sample(kind, name, workers):
    """With `on_error`, samples are fetched one by one after their batch has raised."""
    with DataLoader(kind(6, RETURNED[name]), 3, collate_fn=as_it_is, on_error="skip", **workers) as loader:
        (first,) = loader
        assert_same([first], list(theirs.DataLoader(Returns(3, RETURNED[name]), 3, collate_fn=as_it_is)))
        stats = loader.stats()
    assert stats.skipped == 3
    assert "it must return a list of samples" in repr(stats.failed_samples)


def test_an_iterator_is_passed_as_a_list():
    with DataLoader(Rows(9), batch_sampler=[iter([1, 2])], collate_fn=list) as loader:
        assert list(loader) == [[("list", "[1, 2]", 1), ("list", "[1, 2]", 2)]]


class OwnBuffer:
    """Yields the same array each time, with other numbers."""

    def __init__(self, make):
        self.buffer = make([0, 0])

    def __iter__(self):
        for batch in range(4):
            self.buffer[:] = batch
            yield self.buffer

    def __len__(self):
        return 4


@WORKERS
@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["array", "tensor"])
def test_a_batch_sampler_may_reuse_its_array(make, workers):
    with DataLoader(Rows(9), batch_sampler=OwnBuffer(make), collate_fn=list, **workers) as loader:
        assert [[sample[2] for sample in batch] for batch in loader] == [[i, i] for i in range(4)]


class Computes(Rows):
    """Computes with an array; raises for some rows."""

    def __getitems__(self, indices):
        rows = (indices + 10).tolist()
        if 13 in rows:
            raise OSError("no row 13")
        return rows


class ComputesAsynchronously(Computes):
    async def __getitems__(self, indices):
        return super().__getitems__(indices)


@WORKERS
@pytest.mark.parametrize("dataset", [Computes(9), ComputesAsynchronously(9)], ids=["plain", "asynchronous"])
@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_on_error_fetches_the_samples_of_an_array_one_by_one(convert, dataset, workers):
    batches = list(convert(ROWS[:6].reshape(3, 2)))
    seen = []

    def replace(index, error):
        seen.append((int(index), str(error)))
        return -1

    with DataLoader(dataset, batch_sampler=batches, on_error="skip", **workers) as loader:
        assert [batch.tolist() for batch in loader] == [[10, 11], [12], [14, 15]]
    in_this_process = workers.get("workers") == "thread" or not workers
    with DataLoader(dataset, batch_sampler=batches, on_error=replace, **workers) as loader:
        assert [batch.tolist() for batch in loader] == [[10, 11], [12, -1], [14, 15]]
    assert seen == ([(3, "no row 13")] if in_this_process else [])


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=["in process", "processes"])
def test_a_chunk_and_a_replayed_batch_get_arrays_too(workers):
    with DataLoader(Computes(9), batch_sampler=[ROWS[4:8], ROWS[:4]], chunk_size=2, **workers) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == loader.replay(0, 0).batch.tolist() == [14, 15, 16, 17]
        assert loader.replay(0, 0).indices == [4, 5, 6, 7]
        with pytest.raises(OSError, match="no row 13"):
            next(batches)
    with DataLoader(Computes(9), batch_sampler=[ROWS[4:8]], **workers) as loader:
        assert [batch.tolist() for batch in loader] == [loader.replay(0, 0).batch.tolist()] == [[14, 15, 16, 17]]


# ---- indices that cannot be unpickled


class Box(tuple):
    """`pickle` calls `__new__` with the tuple."""

    __slots__ = ()

    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))


class Bad(Row):
    """Pickled by this process; unpickling calls `_unpickled` in the worker."""

    def __reduce__(self):
        return self._unpickled, ()

    @staticmethod
    def _unpickled():
        raise ValueError("no such row")


class BadImport(Bad):
    @staticmethod
    def _unpickled():
        import no_such_module  # noqa: F401


class BadRecursion(Bad):
    @staticmethod
    def _unpickled():
        return BadRecursion._unpickled()


class BadExit(Bad):
    @staticmethod
    def _unpickled():
        os._exit(7)


class BadHang(Bad):
    @staticmethod
    def _unpickled():
        time.sleep(3600)


CAUSES = {
    Bad: "ValueError: no such row",
    BadImport: "ModuleNotFoundError: No module named 'no_such_module'",
    BadRecursion: "RecursionError: maximum recursion depth exceeded",
}


class Integers(Numbers):
    def __getitem__(self, i):
        return int(i[0] if isinstance(i, tuple) else i)


class Awaited(Numbers):
    async def __getitem__(self, i):
        return int(i)


def outcomes(loader):
    """The batches of an epoch, as lists, and its errors."""
    iterator, got = iter(loader), []
    while True:
        try:
            got.append(next(iterator).tolist())
        except StopIteration:
            return got
        except DatasetTransferError as error:
            got.append(error)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [(Integers(9), {}), (Integers(9), {"chunk_size": 1}), (Awaited(9), {"concurrency": 3})],
    ids=["plain", "chunks", "asynchronous"],
)
@pytest.mark.parametrize("bad", CAUSES)
def test_an_index_that_cannot_be_unpickled_is_an_error_of_its_batch(bad, dataset, options):
    with DataLoader(dataset, 2, sampler=[0, 1, bad(2), 3, 4, 5], num_workers=2, **options) as loader:
        first, error, last = outcomes(loader)
        assert (first, last) == ([0, 1], [4, 5])
        assert bad.__name__ in str(error)
        assert CAUSES[bad] in str(error)
        assert error.__notes__[0].endswith("while fetching [Row(2), 3]")
        assert CAUSES[bad] in str(error.__cause__)
        assert loader.stats().restarts == 0


def test_a_class_that_pickle_calls_with_too_few_arguments_is_named():
    with (
        DataLoader(Integers(9), 2, sampler=[Box(i, i) for i in range(4)], num_workers=2) as loader,
        pytest.raises(DatasetTransferError, match=r"of type Box, .*__new__\(\) missing 1 required positional argument"),
    ):
        list(loader)


def test_an_index_without_batches_and_an_array_of_objects():
    with DataLoader(Integers(9), None, sampler=[1, Bad(2), 3], num_workers=1) as loader:
        iterator = iter(loader)
        assert next(iterator) == 1
        with pytest.raises(DatasetTransferError, match="of type Bad"):
            next(iterator)
        assert next(iterator) == 3
    with (
        DataLoader(Integers(9), batch_sampler=[np.array([Bad(1)])], num_workers=1) as loader,
        pytest.raises(DatasetTransferError, match=r"of type ndarray.*no such row"),
    ):
        list(loader)


def test_an_index_that_ends_workers_is_found_after_three_of_them():
    with DataLoader(Integers(9), 2, sampler=[0, 1, BadExit(2), 3, 4, 5], num_workers=2) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        with pytest.raises(WorkerDiedError, match="batch 1"):
            next(iterator)
        assert loader.stats().restarts <= 6


def test_a_batch_whose_index_hangs_is_named_and_its_worker_can_be_restarted():
    with DataLoader(Integers(9), 2, sampler=[0, 1, BadHang(2), 3], num_workers=1, timeout=1) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        wait_for(lambda: loader.stats().workers[0].batch == 1)
        wait_for(lambda: "_unpickled" in loader.stack(0))  # it may not be there yet
        with pytest.raises(LoaderTimeoutError, match="batch 1"):
            next(iterator)
