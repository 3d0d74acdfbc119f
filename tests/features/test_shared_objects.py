"""Objects that a dataset shares with its workers, as in torch: locks, values, queues, managers' proxies, tensors."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import shared_memory

import numpy as np
import pytest
import torch
from datasets import Numbers, flat
from light import RecordsPids

from nbloader import DataLoader, DatasetTransferError

METHODS = ["forkserver", "spawn", "fork"]


class Shared(Numbers):
    """Counts, records and sends the indices, with every kind of object that processes can share."""

    def __init__(self, n, context):
        super().__init__(n)
        self.count = context.Value("i", 0)
        self.array = context.Array("d", n)
        self.raw = context.RawArray("i", n)
        self.event = context.Event()
        self.queue = context.Queue()
        self.simple = context.SimpleQueue()
        self.lock = context.RLock()
        self.receiver, self.sender = context.Pipe(duplex=False)
        self.tensor = torch.zeros(n).share_memory_()
        self.rows = self.tensor[n // 2 :]

    def __getitem__(self, i):
        with self.count.get_lock():
            self.count.value += 1
        self.array[i] = i + 0.5
        self.raw[i] = 2 * i
        self.event.set()
        self.queue.put(i)
        with self.lock:
            self.sender.send(i)
        self.simple.put(i)
        self.tensor[i] += 1
        return i

    def close(self):
        self.queue.close()
        self.queue.join_thread()
        self.simple.close()
        self.receiver.close()
        self.sender.close()


@pytest.mark.leaves_behind("multiprocessing's own fork server or resource tracker, and the descriptors of its heap")
@pytest.mark.parametrize("method", METHODS)
def test_values_arrays_events_queues_pipes_and_shared_tensors_are_shared_by_all_workers(method):
    n = 8
    dataset = Shared(n, multiprocessing.get_context("forkserver"))
    with DataLoader(dataset, 2, num_workers=2, multiprocessing_context=method) as loader:
        for epoch in (1, 2):
            assert flat(loader) == list(range(n))
            assert dataset.count.value == n * epoch
            assert dataset.tensor.tolist() == [epoch] * n
            for get in (lambda: dataset.queue.get(timeout=90), dataset.receiver.recv, dataset.simple.get):
                assert sorted(get() for _ in range(n)) == list(range(n))
        assert dataset.rows.tolist() == [2] * (n // 2), "a view of a shared tensor views the shared memory"
        assert loader.stats().restarts == 0
    assert list(dataset.array) == [i + 0.5 for i in range(n)]
    assert list(dataset.raw) == [2 * i for i in range(n)]
    assert dataset.event.is_set()
    dataset.close()


class Weighted(Numbers):
    """Its samples depend on a tensor in shared memory."""

    def __init__(self, n):
        super().__init__(n)
        self.weight = torch.tensor([1.0]).share_memory_()

    def __getitem__(self, i):
        return i * self.weight.item()


def test_workers_see_writes_to_a_shared_tensor_and_its_replacement():
    dataset = Weighted(4)
    with DataLoader(dataset, 2, num_workers=2) as loader:
        assert flat(loader) == [0, 1, 2, 3]
        dataset.weight.fill_(2)
        assert flat(loader) == [0, 2, 4, 6]
        assert loader.stats().restarts == 0
        dataset.weight = torch.tensor([3.0]).share_memory_()
        assert flat(loader) == [0, 3, 6, 9]


def test_a_tensor_that_is_not_shared_is_copied():
    dataset = Weighted(4)
    dataset.weight = torch.ones(1)
    with DataLoader(dataset, 2, num_workers=1) as loader:
        assert flat(loader) == [0, 1, 2, 3]
        assert not dataset.weight.is_shared()
        (batch,) = DataLoader(torch.full((1, 1), 2.0), num_workers=1)
        dataset.weight = batch[0]  # in shared memory, but not in torch's
        assert flat(loader) == [0, 2, 4, 6]
        assert not torch.UntypedStorage.is_shared(batch.untyped_storage()), "it was moved"


@pytest.mark.leaves_behind("multiprocessing's resource tracker")
@pytest.mark.parametrize("method", METHODS)
def test_proxies_of_a_manager_work_in_workers(method):
    with multiprocessing.get_context("forkserver").Manager() as manager:
        produced_by = manager.dict()
        with DataLoader(RecordsPids(6, pids=produced_by), 2, num_workers=2, multiprocessing_context=method) as loader:
            assert flat(loader) == list(range(6))
        assert set(produced_by.keys()) == set(range(6))
        assert os.getpid() not in produced_by.values()


class OnSharedMemory(Numbers):
    def __init__(self, memory, n):
        super().__init__(n)
        self.memory = memory

    def __getitem__(self, i):
        return float(np.ndarray(self.n, np.float64, self.memory.buf)[i])


@pytest.mark.leaves_behind("multiprocessing's resource tracker")
def test_shared_memory_outlives_the_workers_that_attached_to_it():
    memory = shared_memory.SharedMemory(create=True, size=64)
    try:
        np.ndarray(8, np.float64, memory.buf)[:] = np.arange(8)
        for _ in range(2):
            with DataLoader(OnSharedMemory(memory, 8), 2, num_workers=2) as loader:
                assert flat(loader) == list(range(8))
        shared_memory.SharedMemory(memory.name).close()
    finally:
        memory.close()
        memory.unlink()


@pytest.mark.leaves_behind("a descriptor of multiprocessing's heap")
def test_locks_of_the_fork_context_are_refused_with_a_remedy():
    dataset = Numbers(4)
    dataset.count = multiprocessing.get_context("fork").Value("i", 0)
    with (
        DataLoader(dataset, num_workers=1, multiprocessing_context="forkserver") as loader,
        pytest.raises(DatasetTransferError, match=r"create it with multiprocessing.get_context\('forkserver'\)"),
    ):
        iter(loader)


class Many(Numbers):
    """Shares more descriptors than fit into one message, and a large array."""

    def __init__(self, n):
        super().__init__(n)
        self.tensors = [torch.full((3,), float(i)).share_memory_() for i in range(n)]
        self.large = np.zeros(1 << 16)

    def __getitem__(self, i):
        self.tensors[i] += 1
        return self.tensors[i][0] + self.large[i]


def test_any_number_of_descriptors_is_sent_to_each_worker_and_its_replacement():
    dataset = Many(40)
    with DataLoader(dataset, 4, num_workers=2) as loader:
        assert flat(loader) == [i + 1 for i in range(40)]
        loader.restart_workers()
        assert flat(loader) == [i + 2 for i in range(40)]
    assert [t[0].item() for t in dataset.tensors] == [i + 2 for i in range(40)]
