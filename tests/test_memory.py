"""The window of requested batches follows the available memory, so that huge batches do not end a small container."""

from __future__ import annotations

import threading

import pytest
from datasets import Images
from test_dispatcher import Played

from nbloader import DataLoader
from nbloader.engine.memory import MemoryWatch
from nbloader.scheduler.prefetch import Load, Window

MB = 1 << 20
GB = 1 << 30


@pytest.mark.unit
def test_memory_is_measured_by_the_bytes_that_have_arrived_and_not_for_each_batch():
    watch = MemoryWatch(lambda: 80 * GB)
    assert watch.due(MB)
    assert watch.affordable(GB, 4) == 63  # of 84 GB; a quarter is left for everything else
    assert [watch.due(GB) for _ in range(10)] == [False] * 9 + [True]  # an eighth of what was available
    watch = MemoryWatch(lambda: MB)
    assert watch.due(GB)
    assert watch.affordable(GB, 0) == 1  # one batch always
    assert MemoryWatch(lambda: 0).affordable(GB, 16) == 12  # fewer than have used up the memory
    assert [watch.due(MB // 16) for _ in range(2)] == [False, True]


@pytest.mark.unit
def test_where_the_system_does_not_tell_there_is_no_limit():
    watch = MemoryWatch(lambda: None)
    assert watch.due(GB)
    assert watch.affordable(GB, 3) is None
    assert not any(watch.due(1000 * GB) for _ in range(100))


@pytest.mark.unit
def test_the_window_shrinks_to_what_is_affordable_and_grows_again():
    window = Window(Load(num_workers=4, adaptive=True))
    window.observe(GB, 10**9)
    assert window.limit(3)
    assert (window.plan.size, window.depth(0), window.room(3, blocked=2)) == (3, 1, 0)
    assert not window.limit(3)  # not lower than before
    assert window.limit(0)
    assert window.plan.size == 1
    assert not window.limit(8)
    assert (window.plan.size, window.depth(0)) == (8, 2)
    assert not window.limit(None)


@pytest.mark.unit
def test_what_was_requested_and_not_sent_waits_for_memory_except_for_the_next_batch():
    window = Window(Load(num_workers=3))
    dispatcher = Played(window)
    dispatcher.slots = 3
    for worker in range(3):
        dispatcher.worker_ready(worker, worker)
    dispatcher.open_iteration(0)
    for i in range(6):
        dispatcher.add(0, [i], 0)
    assert sum(len(assigned.tasks) for assigned in dispatcher.assignments()) == 3, "the size of a batch is not known"
    dispatcher.result(1, 0, 1, "1", 0)
    window.observe(GB, 10**9)
    window.limit(2)
    assert not dispatcher.assignments()  # in memory: 1, and soon 0 and 2
    dispatcher.result(0, 0, 0, "0", 0)
    for _ in range(2):
        dispatcher.take(0)
    dispatcher.result(2, 0, 2, "2", 0)
    assert [task.number for assigned in dispatcher.assignments() for task in assigned.tasks] == [3]
    dispatcher.take(0)
    window.limit(1)
    assert not dispatcher.assignments()
    dispatcher.worker_gone(0, blame=False)
    dispatcher.worker_ready(3, 0)
    assert [task.number for assigned in dispatcher.assignments() for task in assigned.tasks] == [3]


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_a_loader_with_little_memory_loads_few_batches_ahead_and_says_so_once(chunk_size, capsys):
    lock, begun, most, delivered = threading.Lock(), set(), [0], [0]

    class Counted(Images):
        def __getitem__(self, i):
            with lock:
                begun.add(i // 8)
                if delivered[0] > 16:
                    most[0] = max(most[0], len(begun) - delivered[0])
            return super().__getitem__(i)

    options = {"num_workers": 2, "workers": "thread", "prefetch_factor": 8, "chunk_size": chunk_size}
    with DataLoader(Counted(320), 8, **options) as loader:
        first = iter([250_000])  # two batches of 131 kB
        loader._engine._supervisor.memory = MemoryWatch(
            lambda: next(first, max(0, 500_000 - 131_072 * (len(begun) - delivered[0])))
        )
        numbers = []
        for batch in loader:
            numbers += batch[1].tolist()
            delivered[0] += 1
        assert numbers == list(range(320))
        assert loader.stats().window <= 5
    assert most[0] <= 6  # the limit counts what has arrived by then, and two threads have begun one each
    said = capsys.readouterr().err
    assert said.count("nbloader: a batch takes 131 kB, and 250 kB of memory is available, so ") == 1
    assert "ahead instead of 16. A smaller batch_size" in said
