"""How to add a kind of worker: an executor of `concurrent.futures` as an example.

The example runs batches in an executor. An executor of a cluster (dask, ray) has the same interface: the function
`produce` would then run elsewhere, and its result would be pickled.

A kind of worker consists of three classes and a line in the registry:

    kind    creates the pool; a kind that runs elsewhere also overrides `pack`, to pickle the dataset
    pool    starts workers, submits tasks to them, and reports what happens
    handle  one worker
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import get_args

import pytest
import torch
from datasets import Augmented, Numbers, Raises, flat, wait_for
from iterables import Range

from nbloader import DataLoader, RayOptions
from nbloader import events as ev
from nbloader.workers import registry
from nbloader.workers.api import WorkerHandle, WorkerKind, WorkerPool
from nbloader.workers.message_queue import MessageQueue
from nbloader.workers.messages import BatchDone, WorkerGone, WorkerInitialized, WorkerLaunched
from nbloader.workers.producer import Producer
from nbloader.workers.status import LocalStatus
from nbloader.workers.thread_context import ThreadContext
from nbloader.workers.worker_info import WorkerInfo

# ---- the example ----------------------------------------------------------------------------------------------------


class ExecutorKind(WorkerKind):
    def create_pool(self):
        return ExecutorPool()


class ExecutorHandle(WorkerHandle):
    """One worker: here an executor with one thread."""

    def __init__(self, worker, spec, setup, messages):
        super().__init__(worker, spec.kind, LocalStatus(os.getpid()))
        self.mark_launched(os.getpid())
        self.info = WorkerInfo(worker, spec.num_workers, spec.seed + worker, setup.dataset)
        self.producer = Producer(
            setup.dataset, setup.collate_fn, self.status, spec, on_error=setup.on_error, worker=worker,
        )  # fmt: skip
        self.executor = ThreadPoolExecutor(1)
        self.futures: dict[tuple[int, int], Future] = {}
        self.messages = messages

    def submit(self, task):
        future = self.futures[task.epoch, task.job] = self.executor.submit(self.produce, task)
        future.add_done_callback(lambda _: self.futures.pop((task.epoch, task.job), None))

    def produce(self, task):
        """Runs in the executor."""
        self.status.epoch, self.status.job = task.epoch, task.job
        with ThreadContext(self.info) as context:
            context.seed(task.seed)
            outcome = self.producer.produce_outcome(task)
        self.messages.put(BatchDone(self.uid, task.epoch, task.job, outcome, self.producer.failed_samples))

    def kill(self):
        self.status.abandon()
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.messages.put(WorkerGone(self.uid, None))


class ExecutorPool(WorkerPool):
    def __init__(self):
        self._handles = {}
        self._messages = MessageQueue()

    @property
    def handles(self):
        return self._handles

    def fileno(self):
        return self._messages.fileno()

    def start(self, worker, spec, setup):
        handle = ExecutorHandle(worker, spec, setup, self._messages)
        self._handles[handle.uid] = handle
        self._messages.put(WorkerLaunched(handle.uid))
        self._messages.put(WorkerInitialized(handle.uid))
        return handle

    def submit(self, uid, tasks):
        for task in tasks:
            self._handles[uid].submit(task)
        return []  # no task was refused

    def cancel(self, uid, epoch, jobs):
        if uid not in self._handles:  # it has ended
            return
        for (of_epoch, job), future in list(self._handles[uid].futures.items()):
            if of_epoch == epoch and (jobs is None or job in jobs):
                future.cancel()

    def poll(self, timeout):
        messages = []
        for message in self._messages.take(timeout):
            handle = self._handles.get(message.uid)
            if handle is None:
                continue  # it has ended
            if isinstance(message, WorkerInitialized):
                handle.ready = True
            elif isinstance(message, WorkerGone):
                handle.mark_ended(message.exitcode)
                del self._handles[message.uid]
            messages.append(message)
        return messages

    def close(self, grace):
        messages = []
        for handle in self._handles.values():
            handle.kill()
        while self._handles:
            messages += self.poll(grace)
        return messages

    def dispose(self):
        self._messages.close()


@pytest.fixture(autouse=True)
def registered():
    registry.register("executor", ExecutorKind)
    yield
    registry.unregister("executor")


# ---- what it can do -------------------------------------------------------------------------------------------------


def test_the_names_for_type_checkers_are_those_of_the_kinds_of_nbloader():
    assert {"executor", *get_args(registry.Workers)} == set(registry.kind_names())


def test_a_registered_kind_of_worker_makes_epochs():
    with DataLoader(Numbers(40), 4, num_workers=2, workers="executor") as loader:
        for _ in range(2):
            assert flat(loader) == list(range(40))
        assert {worker.kind for worker in loader.stats().workers} == {"executor"}
        assert {record.worker for record in loader.events.batches()} <= {0, 1}


def test_its_batches_are_those_of_processes():
    epochs = []
    for kind in ("process", "executor"):
        torch.manual_seed(5)
        with DataLoader(Augmented(24), 4, shuffle=True, num_workers=2, workers=kind) as loader:
            # Not what was drawn from NumPy: threads have another kind of generator.
            epochs.append([[batch[column].tolist() for column in (0, 1, 3)] for batch in loader])
    assert epochs[0] == epochs[1]


def test_its_errors_are_raised_in_the_loop_and_it_goes_on():
    with DataLoader(Raises(12, bad=5, error=KeyError), 4, num_workers=2, workers="executor") as loader:
        epoch = iter(loader)
        assert flat([next(epoch)]) == [0, 1, 2, 3]
        with pytest.raises(KeyError):
            next(epoch)
        assert flat(epoch) == [8, 9, 10, 11]


def test_its_workers_are_restarted_and_resized_like_others():
    with DataLoader(Numbers(200), 2, num_workers=2, workers="executor") as loader:
        epoch = iter(loader)
        got = flat(next(epoch) for _ in range(10))
        loader.restart_workers()
        loader.num_workers = 3
        assert got + flat(epoch) == list(range(200))
        wait_for(lambda: len(loader.stats().workers) == 3)

        def reasons():
            return [event.reason for event in list(loader.events.history) if isinstance(event, ev.WorkerDied)]

        wait_for(lambda: len(reasons()) >= 2)  # they may be reported after the last batch
        assert reasons()[:2] == ["restarted by request"] * 2


def test_an_iterator_that_is_left_early_cancels_its_batches():
    with DataLoader(Numbers(400), 2, num_workers=2, workers="executor", chunk_size=1) as loader:
        for _batch in loader:
            break
        assert flat(loader) == list(range(400))


def test_what_others_ask_of_a_kind_are_its_attributes():
    with DataLoader(Numbers(8), 4, num_workers=1, workers="executor") as loader:
        assert flat(loader) == list(range(8))
        assert [worker.in_process for worker in loader.stats().workers] == [True]
        assert loader.replay(0, 1).batch.tolist() == [4, 5, 6, 7]
    with pytest.raises(ValueError, match="applies to worker processes: omit it with workers='executor'"):
        DataLoader(Numbers(8), num_workers=1, workers="executor", multiprocessing_context="fork")
    with pytest.raises(ValueError, match="applies to workers='ray': omit it with workers='executor'"):
        DataLoader(Numbers(8), num_workers=1, workers="executor", ray=RayOptions())
    with DataLoader(Numbers(8), 4, num_workers=1) as loader:
        assert flat(loader) == list(range(8))
        assert [worker.in_process for worker in loader.stats().workers] == [False]


def test_the_module_of_a_kind_is_imported_when_the_kind_is_used():
    registry.register("elsewhere", f"{__name__}:ExecutorKind")
    registry.register("misspelled", "os:path")
    try:
        assert registry.kind_class("elsewhere").__name__ == "ExecutorKind"
        with DataLoader(Numbers(8), 4, num_workers=1, workers="elsewhere") as loader:
            assert flat(loader) == list(range(8))
        with pytest.raises(TypeError, match="'os:path', which is not a WorkerKind"):
            DataLoader(Numbers(8), workers="misspelled")
    finally:
        registry.unregister("elsewhere")
        registry.unregister("misspelled")


def test_a_kind_that_reads_no_iterable_datasets_refuses_one():
    with pytest.raises(ValueError, match="workers='executor' cannot read an iterable dataset"):
        DataLoader(Range(8), 4, num_workers=1, workers="executor")


def test_a_kind_that_is_not_registered_is_refused_and_a_name_cannot_be_taken_twice():
    names = ", ".join(map(repr, registry.kind_names()))
    with pytest.raises(ValueError, match=f"{names}, not 'cluster'"):
        DataLoader(Numbers(4), num_workers=1, workers="cluster")
    with pytest.raises(ValueError, match="named 'thread' already"):
        registry.register("thread", ExecutorKind)
