"""Worker threads: the same batches as from processes, nothing copied, and all threads end with their loader."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import threading
import time
import traceback

import numpy as np
import pytest
import torch
from datasets import (
    Images,
    Numbers,
    Raises,
    Slow,
    Structured,
    begin,
    flat,
    run_script,
    wait_for,
    without_address,
)
from same import assert_same
from test_loader import events, squares

from nbloader import DataLoader, LoaderTimeoutError, WorkerDiedError, get_worker_info
from nbloader import events as ev
from nbloader.workers.message_queue import MessageQueue

pytestmark = pytest.mark.portable


def threaded(dataset, *args, num_workers=2, **kwargs):
    return DataLoader(dataset, *args, num_workers=num_workers, workers="thread", **kwargs)


def worker_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("nbloader-worker")]


class Gate(Numbers):
    """Waits at index `bad` until the gate is opened."""

    def __init__(self, n=40, bad=5):
        super().__init__(n, bad=bad)
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.closed = True
        self.fetched: list[int] = []

    def __getitem__(self, i):
        if i == self.bad and self.closed:
            self.reached.set()
            self.opened.wait(60)
        self.fetched.append(i)
        return i


# ---- batches


@pytest.mark.parametrize(
    ("dataset", "args", "kwargs"),
    [
        (Numbers(40), (7,), {}),
        (Numbers(3), (None,), {}),
        (Numbers(9), (), {"batch_sampler": [[3, 1], [4], [1, 5, 8]]}),
        (Numbers(9), (3,), {"collate_fn": squares}),
        (Images(12), (4,), {}),
        (Structured(8), (3,), {}),
        (Structured(2), (None,), {}),
        (torch.utils.data.TensorDataset(torch.arange(6), torch.rand(6, 3)), (4,), {}),
        ([1, 2.5, 3, 4], (2,), {}),
    ],
    ids=without_address,
)
def test_batches_are_those_of_torch(dataset, args, kwargs):
    with threaded(dataset, *args, num_workers=3, **kwargs) as loader:
        for _ in range(2):
            assert_same(list(loader), list(torch.utils.data.DataLoader(dataset, *args, **kwargs)))


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch": 0},
        {"prefetch": 1},
        {"prefetch_factor": 5},
        {"persistent_workers": True},
        {"timeout": 60},
        {"output": "numpy"},
    ],
    ids=str,
)
def test_options_do_not_change_the_batches(options):
    with threaded(Images(30), 4, **options) as loader:
        for _ in range(2):
            for images, indices in loader:
                assert all((image == int(i)).all() for image, i in zip(images, indices, strict=True))
            assert [i for r in loader.events.batches()[-8:] for i in [r.index]] == list(range(8))


@pytest.mark.parametrize(
    "options",
    [{"workers": "fibre"}, {"multiprocessing_context": "spawn"}],
    ids=str,
)
def test_arguments_that_do_not_apply_to_threads_are_rejected_by_name(options):
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=name) as raised:
        DataLoader(Numbers(3), num_workers=1, **{"workers": "thread", **options})
    assert repr(value) in str(raised.value)


def test_batches_are_in_order_whatever_the_delays():
    class Jittery(Numbers):
        def __getitem__(self, i):
            time.sleep(0.02 if i % 7 == 0 else 0.0005)
            return i

    with threaded(Jittery(120), 3, num_workers=4) as loader:
        assert flat(loader) == list(range(120))
    with threaded(Jittery(60), 3, num_workers=4, in_order=False) as loader:
        assert sorted(flat(loader)) == list(range(60))


def test_the_dataset_is_neither_pickled_nor_copied():
    class Locked(Numbers):
        def __init__(self, n):
            super().__init__(n, lock=threading.Lock(), seen=[])

        def __getitem__(self, i):
            with self.lock:
                self.seen.append(i)
            return lambda: i

    dataset = Locked(12)
    with threaded(dataset, 3, collate_fn=list) as loader:
        assert [f() for batch in loader for f in batch] == list(range(12))
    assert sorted(dataset.seen) == list(range(12))


def test_indices_need_not_be_pickled():
    class Key:
        def __init__(self, i):
            self.i = i

        def __reduce__(self):
            raise TypeError("not picklable")

    class Keyed(Numbers):
        def __getitem__(self, key):
            return key.i

    with threaded(Keyed(4), batch_sampler=[[Key(1), Key(2)], [Key(3)]]) as loader:
        assert flat(loader) == [1, 2, 3]


def test_two_concurrent_iterators_and_one_left_early_yield_their_own_batches():
    with threaded(Slow(40, wait=0.001), 2) as loader:
        for number, _batch in enumerate(loader):
            if number == 3:
                break
        older = iter(loader)
        start = flat([next(older), next(older)])
        assert flat(loader) == list(range(40))
        assert start + flat(older) == list(range(40))


# ---- random numbers


def of_worker():
    """The generators that a sample draws from: those of its worker if there are some, else the global ones."""
    info = get_worker_info()
    return None if info is None else info.rng


class Interleaved(Numbers):
    """Draws from the generators of its worker, and yields to the other threads between any two draws."""

    def __getitem__(self, i):
        own = of_worker()
        draw = random if own is None else own.random_generator
        generator = None if own is None else own.torch_generator
        drawn = [draw.random(), draw.gauss(0, 1)]
        time.sleep(0)
        drawn.append(torch.rand((), generator=generator).item())
        time.sleep(0)
        return i, *drawn, draw.randint(0, 10**6), torch.randperm(50, generator=generator)[0].item()


def test_numbers_of_the_workers_generators_are_the_same_in_threads_in_processes_and_inline():
    epochs = {}
    for kind, workers in (("process", 0), ("process", 2), ("thread", 1), ("thread", 5)):
        torch.manual_seed(5)
        with DataLoader(Interleaved(48), 3, shuffle=True, num_workers=workers, workers=kind) as loader:
            epochs[kind, workers] = [[x.tolist() for x in batch] for _ in range(2) for batch in loader]
    first = epochs["process", 0]
    for key, epoch in epochs.items():
        assert epoch == first, key


def test_numpys_generator_of_a_worker_is_seeded_for_each_batch_and_stays_the_same_object():
    class Draws(Numbers):
        def __getitem__(self, i):
            time.sleep(0.001)
            generator = get_worker_info().rng.numpy_generator
            return i, generator.random(), id(generator), threading.get_ident()

    epochs = []
    for workers in (1, 3):
        torch.manual_seed(5)
        with threaded(Draws(40), 2, num_workers=workers) as loader:
            epochs.append([[x.tolist() for x in batch] for batch in loader])
        pairs = {pair for batch in epochs[-1] for pair in zip(batch[2], batch[3], strict=True)}
        assert len(pairs) == len({thread for _generator, thread in pairs})
    assert [batch[:2] for batch in epochs[0]] == [batch[:2] for batch in epochs[1]]
    assert len({x for batch in epochs[0] for x in batch[1]}) == 40


def test_worker_threads_change_nothing_of_random_numpy_and_torch():
    def everything():
        worker = torch.utils.data._utils.worker
        modules = (random, np.random, torch.random, torch, torch.utils.data, worker)
        values = {(module.__name__, name): value for module in modules for name, value in vars(module).items()}
        states = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()
        collate = dict(torch.utils.data._utils.collate.default_collate_fn_map)
        return values, states, collate, worker.get_worker_info.__code__

    with threaded(Slow(20), 2, collate_fn=lambda samples: get_worker_info().rng.random_generator.random()) as loader:
        epoch = iter(loader)
        next(epoch)
        before = everything()
        list(epoch)
        assert everything() == before


def test_a_loader_inside_a_worker_thread_leaves_the_generators_of_the_thread_as_they_are():
    class Nested(Numbers):
        def __getitem__(self, i):
            before = get_worker_info().rng.random_generator.random()
            with DataLoader(Interleaved(4), 2, generator=torch.Generator().manual_seed(i)) as inner:
                drawn = [float(x) for batch in inner for column in batch[1:3] for x in column]
            return before, *drawn, get_worker_info().rng.random_generator.random()

    epochs = []
    for workers in (1, 3):
        torch.manual_seed(2)
        with threaded(Nested(12), 2, num_workers=workers) as loader:
            epochs.append([[x.tolist() for x in batch] for batch in loader])
    assert epochs[0] == epochs[1]


def test_get_worker_info_works_in_threads_and_torchs_function_returns_none():
    class Asks(Numbers):
        def __getitem__(self, i):
            time.sleep(0.002)
            info = get_worker_info()
            assert info.dataset is self
            assert torch.utils.data.get_worker_info() is None
            return info.id, info.num_workers, info.seed - info.id, threading.get_ident()

    with threaded(Asks(40), 2, num_workers=3, dispatch="round_robin") as loader:  # each worker gets some
        batches = list(loader)
        assert get_worker_info() is None
    ids, workers, seeds, threads = map(torch.cat, zip(*batches, strict=True))
    assert set(ids.tolist()) == {0, 1, 2}
    assert set(workers.tolist()) == {3}
    assert len(set(seeds.tolist())) == 1
    assert len(set(zip(ids.tolist(), threads.tolist(), strict=True))) == 3
    assert threading.get_ident() not in threads.tolist()


class AsksTorch(torch.utils.data.IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return iter(range(8) if info is None else range(info.id, 8, info.num_workers))


def test_a_stream_that_cannot_know_its_shard_in_threads_causes_a_warning():
    with (
        threaded(AsksTorch(), 2) as loader,
        pytest.raises(UserWarning, match=r"AsksTorch\) has not called nbloader.get_worker_info\(\)"),
    ):
        list(loader)
    with DataLoader(AsksTorch(), 2, num_workers=2) as loader:
        assert sorted(flat(loader)) == list(range(8))
    with threaded(AsksTorch(), 2, num_workers=1) as loader:
        assert flat(loader) == list(range(8))


# ---- errors


class Odd(Exception):
    """Can be neither pickled nor copied."""

    def __init__(self, where):
        super().__init__("odd")
        self.where = where

    def __reduce__(self):
        raise TypeError("not picklable")


def raises_oddly():
    raise Odd(threading.current_thread())


def test_the_original_exception_is_raised_with_its_traceback_and_the_epoch_continues():
    class Fails(Numbers):
        def __getitem__(self, i):
            if i == 7:
                raises_oddly()
            return i

    with threaded(Fails(20), 4) as loader:
        epoch = iter(loader)
        assert flat([next(epoch)]) == [0, 1, 2, 3]
        with pytest.raises(Odd) as raised:
            next(epoch)
        assert raised.value.where.name.startswith("nbloader-worker")
        text = "".join(traceback.format_exception(raised.value))
        assert "raises_oddly()" in text
        assert "sample 7 of batch 1" in text
        assert flat(epoch) == list(range(8, 20))
        (failed,) = events(loader, ev.BatchFailed)
        assert (failed.sample, failed.index) == (7, 1)
        assert "Odd: odd" in failed.error


def test_errors_in_collate_fn_and_without_batching_are_described():
    def fails(samples):
        raise ValueError("no")

    with threaded(Numbers(4), 2, collate_fn=fails) as loader, pytest.raises(ValueError, match="no") as raised:
        next(iter(loader))
    assert "collating batch 0" in raised.value.__notes__[0]
    with threaded(Raises(4, bad=0, error=KeyError), None) as loader, pytest.raises(KeyError) as raised:
        next(iter(loader))
    assert "fetching 0" in raised.value.__notes__[0]


def test_a_stop_iteration_does_not_end_the_epoch_silently():
    with threaded(Raises(8, bad=2, error=StopIteration), 2) as loader:
        epoch = iter(loader)
        next(epoch)
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(epoch)
        assert flat(epoch) == [4, 5, 6, 7]


def test_an_error_in_worker_init_fn_keeps_its_type():
    def fails(worker):
        raise Odd(worker)

    with threaded(Numbers(8), 2, worker_init_fn=fails) as loader:
        with pytest.raises(Odd) as raised:
            list(loader)
        assert raised.value.where in (0, 1)
        loader.worker_init_fn = None
        assert flat(loader) == list(range(8))


def test_a_thread_that_ends_is_replaced_and_a_batch_that_ends_three_fails(capsys):
    class Leaves(Numbers):
        def __getitem__(self, i):
            if i == 5 and not self.left:
                self.left.append(i)
                raise SystemExit(3)
            if i == 13:
                raise KeyboardInterrupt
            return i

    with threaded(Leaves(20, left=[]), 2) as loader:
        epoch = iter(loader)
        assert flat(next(epoch) for _ in range(6)) == list(range(12))
        with pytest.raises(WorkerDiedError, match="batch 6") as raised:
            next(epoch)
        assert "KeyboardInterrupt" in str(raised.value)
        assert flat(epoch) == list(range(14, 20))
        died = [event for event in events(loader, ev.WorkerDied) if not event.expected]
        assert sorted(event.exitcode for event in died) == [1, 1, 1, 3]
    assert "KeyboardInterrupt" in capsys.readouterr().err


# ---- control


def test_a_stuck_thread_is_replaced_at_once_and_its_result_is_discarded():
    dataset = Gate(40, bad=5)
    with threaded(dataset, 2, persistent_workers=True) as loader:
        epoch = iter(loader)
        got = flat([next(epoch), next(epoch)])
        assert dataset.reached.wait(90)
        (stuck,) = [w.worker for w in loader.stats().workers if w.sample == 5]
        dataset.closed = False
        loader.restart_workers([stuck])
        got += flat(epoch)
        assert got == list(range(40))
        assert len(worker_threads()) == 3
        dataset.opened.set()
        wait_for(lambda: len(worker_threads()) == 2)
        assert dataset.fetched.count(5) == 2
        assert flat(loader) == list(range(40))
        assert [e.reason for e in events(loader, ev.WorkerDied)] == ["restarted by request"]


def test_an_abandoned_thread_ends_before_its_next_sample():
    dataset = Gate(40, bad=4)
    with threaded(dataset, 4, num_workers=1, prefetch=1) as loader:
        epoch = iter(loader)
        next(epoch)
        assert dataset.reached.wait(90)
        loader.close()
    (abandoned,) = worker_threads()
    dataset.opened.set()
    abandoned.join(90)
    assert dataset.fetched == [0, 1, 2, 3, 4]


def test_repeated_restarts_lose_nothing():
    with threaded(Slow(300, wait=0.001), 3, num_workers=3) as loader:
        got = []
        for number, batch in enumerate(loader):
            got.append(batch)
            if number % 2:
                loader.restart_workers([number % 3])
        assert flat(got) == list(range(300))


def test_the_number_of_workers_changes_within_an_epoch():
    with threaded(Slow(200, wait=0.002), 2, num_workers=1, persistent_workers=True) as loader:
        epoch = iter(loader)
        got = [next(epoch) for _ in range(5)]
        loader.num_workers = 5
        wait_for(lambda: len(worker_threads()) == 5)
        got += [next(epoch) for _ in range(20)]
        loader.num_workers = 2
        got += list(epoch)
        assert flat(got) == list(range(200))
        wait_for(lambda: len(worker_threads()) == 2)


def test_reload_replaces_the_dataset():
    with threaded(Numbers(6), 2) as loader:
        list(loader)
        loader.reload([x * 10 for x in range(6)])
        assert flat(loader) == [0, 10, 20, 30, 40, 50]
        assert loader.stats().deaths == 0


def test_pause_lasts_until_resume():
    dataset = Numbers(40)
    with threaded(dataset, 2) as loader:
        epoch = iter(loader)
        next(epoch)
        loader.pause()
        wait_for(lambda: loader.stats().state == "paused")
        timer = threading.Timer(0.2, loader.resume)
        before = time.monotonic()
        timer.start()
        next(epoch)
        assert time.monotonic() - before > 0.1
        timer.join()


def test_a_timeout_names_worker_and_sample():
    dataset = Gate(12, bad=3)
    with threaded(dataset, 2, timeout=0.3) as loader:
        epoch = begin(loader)
        next(epoch)
        assert dataset.reached.wait(90)
        with pytest.raises(LoaderTimeoutError, match="at sample 3"):
            next(epoch)
        dataset.opened.set()
        got = []
        for _ in range(5):
            wait_for(lambda: loader.stats().ready)  # on a busy machine the timeout is short
            got.append(next(epoch))
        assert flat(got) == list(range(2, 12))
        assert next(epoch, None) is None


# ---- monitoring


def test_threads_appear_in_stats_and_records_like_processes():
    dataset = Gate(20, bad=2)
    with threaded(dataset, 2, num_workers=2) as loader:
        epoch = iter(loader)
        next(epoch)
        assert dataset.reached.wait(90)
        by_sample = {w.sample: w for w in loader.stats().workers}
        assert by_sample[2].state == "fetching"
        assert by_sample[2].pid == os.getpid()
        assert by_sample[2].kind == "thread"
        assert by_sample[2].batch == 1
        dataset.opened.set()
        list(epoch)
        records = loader.events.batches()
        started = events(loader, ev.WorkerStarted)
    assert [r.index for r in records] == list(range(10))
    for r in records:
        stamps = [r.dispatched, r.fetch_begin, r.fetched, r.collated, r.received, r.in_order, r.delivered, r.returned]
        assert stamps == sorted(stamps)
        assert (r.worker in (0, 1), r.transport, r.pid, r.samples) == (True, "local", os.getpid(), 2)
    assert [e.pid for e in started] == [os.getpid()] * 2


def test_no_message_of_several_threads_is_lost():
    message_queue = MessageQueue()
    messages: list[int] = []

    def fill(me):
        for i in range(2000):
            message_queue.put((me, i))

    threads = [threading.Thread(target=fill, args=(me,)) for me in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while len(messages) < 6000 and time.monotonic() < deadline:
        messages += message_queue.take(1)
    for thread in threads:
        thread.join()
    assert sorted(messages) == [(me, i) for me in range(3) for i in range(2000)]
    assert all([i for who, i in messages if who == me] == list(range(2000)) for me in range(3))
    assert message_queue.take(0) == []
    message_queue.close()


def readable(message_queue):
    return bool(select.select([message_queue], [], [], 0)[0])


def test_a_message_that_is_added_while_others_are_taken_is_taken_too_or_wakes_again(monkeypatch):
    message_queue = MessageQueue()
    clear = message_queue._wakeup.clear

    def meanwhile():
        message_queue.put("second")
        clear()
        message_queue.put("third")

    message_queue.put("first")
    monkeypatch.setattr(message_queue._wakeup, "clear", meanwhile)
    assert message_queue.take(0) == ["first", "second", "third"]
    monkeypatch.undo()
    message_queue.take(0)
    assert not readable(message_queue)
    message_queue.put("fourth")
    assert readable(message_queue)
    message_queue.close()


# ---- ending


def test_the_threads_of_an_unreferenced_loader_end():
    loader = threaded(Numbers(10), 2, persistent_workers=True)
    list(loader)
    assert len(worker_threads()) == 2
    del loader
    gc.collect()
    wait_for(lambda: not worker_threads())


def test_there_is_no_thread_before_the_first_epoch_or_after_close():
    with threaded(Slow(30), 2, num_workers=4) as loader:
        assert not worker_threads()
        epoch = iter(loader)
        next(epoch)
        assert len(worker_threads()) == 4
    assert not worker_threads()
    loader.close()


def test_a_loader_works_after_a_dropped_iterator_and_an_interrupt():
    with threaded(Slow(60), 2) as loader:
        epoch = iter(loader)
        next(epoch)
        loader.on_wait(interrupt_once := Interrupt())
        with contextlib.suppress(KeyboardInterrupt):
            list(epoch)
        assert interrupt_once.done
        assert flat(loader) == list(range(60))


class Interrupt:
    done = False

    def __call__(self):
        if not self.done:
            self.done = True
            raise KeyboardInterrupt


def test_the_interpreter_exits_although_a_thread_hangs(tmp_path):
    done = run_script(
        """
        import threading, time
        from nbloader import DataLoader

        class Hangs:
            def __len__(self): return 8
            def __getitem__(self, i):
                if i == 5:
                    threading.Event().wait()
                return i

        loader = DataLoader(Hangs(), 2, num_workers=3, workers="thread")
        epoch = iter(loader)
        print(next(epoch).tolist(), next(epoch).tolist())
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1] [2, 3]\n", "")
