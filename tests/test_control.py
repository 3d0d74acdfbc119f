"""Commands to a running loader: resizing, prefetching, pausing, stepping; and the supervisor that executes them."""

from __future__ import annotations

import io
import sys
import threading

import numpy as np
import pytest
import torch
from datasets import Augmented, Hangs, Images, Numbers, Slow, flat, wait_for, worker_processes
from same import assert_same

from nbloader import DataLoader, LoaderClosedError
from nbloader import events as ev
from nbloader.engine.worker_output import WorkerOutput


def events(loader, kind):
    return [event for event in list(loader.events.history) if isinstance(event, kind)]


# ---- resizing


def test_the_number_of_workers_can_change_during_an_epoch():
    with DataLoader(Slow(240, wait=0.001), 2, num_workers=2, persistent_workers=True) as loader:
        got = []
        sizes = {10: 4, 30: 1, 50: 3, 52: 1, 54: 5, 90: 2}
        for number, batch in enumerate(loader):
            got.append(batch)
            if number in sizes:
                loader.num_workers = sizes[number]
                assert loader.num_workers == sizes[number]
        assert flat(got) == list(range(240))
        assert [(e.before, e.after) for e in events(loader, ev.WorkersResized)] == [
            (2, 4), (4, 1), (1, 3), (3, 1), (1, 5), (5, 2),
        ]  # fmt: skip
        wait_for(lambda: len(worker_processes()) == 2)
        stats = loader.stats()
        assert ([w.worker for w in stats.workers], stats.window, stats.deaths) == ([0, 1], 4, 0)
        assert flat(loader) == list(range(240))


def test_batches_do_not_depend_on_the_number_of_workers():
    def epoch(sizes):
        with DataLoader(Augmented(120), 2, num_workers=2, shuffle=True) as loader:
            torch.manual_seed(5)
            got = []
            for number, batch in enumerate(loader):
                got.append(batch)
                loader.num_workers = sizes.get(number, loader.num_workers)
            return got

    assert_same(epoch({}), epoch({3: 1, 9: 3, 20: 2, 30: 1}))


def test_batches_of_a_leaving_worker_are_produced_by_the_others(tmp_path):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()

    def shrink(loader):
        wait_for(hung.exists)
        (at,) = wait_for(lambda: [w.worker for w in loader.stats().workers if w.sample == 6])
        flag.unlink()
        if at == 0:  # the workers with the highest ids leave: let the one that hangs be among them
            loader.restart_workers(0)
        loader.num_workers = 1

    with DataLoader(Hangs(40, bad=6, flag=str(flag), hung=str(hung)), 2, num_workers=3) as loader:
        thread = threading.Thread(target=shrink, args=(loader,))
        thread.start()
        assert flat(loader) == list(range(40))
        thread.join()
        assert loader.stats().deaths == 0
        assert len(loader.stats().workers) == 1


def test_new_workers_are_assigned_batches_while_the_loop_waits(tmp_path):
    class Waits(Numbers):
        def __getitem__(self, i):
            (self.folder / str(i)).touch()
            wait_for((self.folder / "go").exists)
            return i

    with DataLoader(Waits(20, folder=tmp_path), 1, num_workers=1, prefetch_factor=1) as loader:

        def grow():
            wait_for((tmp_path / "0").exists)
            loader.num_workers = 4
            wait_for(lambda: len(list(tmp_path.iterdir())) == 4, "four samples in progress at once")
            (tmp_path / "go").touch()

        thread = threading.Thread(target=grow)
        thread.start()
        assert flat(loader) == list(range(20))
        thread.join()


def test_resizing_between_epochs_applies_to_the_next_epoch():
    with DataLoader(Numbers(20), 2, num_workers=1, persistent_workers=True) as loader:
        loader.num_workers = 3
        assert flat(loader) == list(range(20))
        wait_for(lambda: len(worker_processes()) == 3)
        loader.num_workers = 2
        wait_for(lambda: len(worker_processes()) == 2)
        assert flat(loader) == list(range(20))
        loader.num_workers = np.int64(2)  # torch accepts NumPy's integers too
        assert len(events(loader, ev.WorkersResized)) == 2, "the same number is no change"


def test_numpy_integers_are_accepted():
    with DataLoader(Numbers(8), 2, num_workers=np.int64(1), prefetch_factor=np.int32(3)) as loader:
        assert flat(loader) == list(range(8))
        assert (type(loader.num_workers), type(loader.prefetch_factor)) == (int, int)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_invalid_number_of_workers_is_an_error_and_changes_nothing(workers):
    with DataLoader(Numbers(8), 2, num_workers=workers) as loader:
        with pytest.raises(ValueError, match=r"num_workers.*-1"):
            loader.num_workers = -1
        for wrong in (True, 1.0, "3", None):
            with pytest.raises(TypeError, match="num_workers must be an int"):
                loader.num_workers = wrong
        assert loader.num_workers == workers
        assert flat(loader) == list(range(8))


def test_the_number_of_worker_threads_can_change_during_an_epoch():
    with DataLoader(Slow(120, wait=0.001), 2, num_workers=2, workers="thread") as loader:
        got = []
        sizes = {5: 4, 15: 1, 25: 3}
        for number, batch in enumerate(loader):
            got.append(batch)
            loader.num_workers = sizes.get(number, loader.num_workers)
        assert flat(got) == list(range(120))
        wait_for(lambda: len(loader.stats().workers) == 3)
        loader.step()
        assert next(iter(loader)).tolist() == [0, 1]
        loader.resume()


# ---- the prefetch window


def test_the_window_follows_prefetch_factor_and_the_number_of_workers():
    with DataLoader(Slow(200), 2, num_workers=2, prefetch=3) as loader:
        epoch = iter(loader)
        next(epoch)
        assert loader.stats().window == 3
        loader.num_workers = 4
        wait_for(lambda: len(loader.stats().workers) == 4)
        assert loader.stats().window == 3, "prefetch is a total"
        loader.prefetch_factor = 5
        assert loader.prefetch_factor == 5
        wait_for(lambda: loader.stats().window == 20)
        got = [next(epoch) for _ in range(8)]
        wait_for(lambda: (s := loader.stats()).in_flight + s.reordering + s.ready > 17)  # requested two at a time
        loader.prefetch_factor = 0
        wait_for(lambda: loader.stats().window == 0)
        got.extend(epoch)
        assert flat(got) == list(range(2, 200))


def test_an_invalid_prefetch_factor_is_an_error():
    with DataLoader(Numbers(8), 2, num_workers=1) as loader:
        with pytest.raises(ValueError, match=r"prefetch_factor.*-2"):
            loader.prefetch_factor = -2
        with pytest.raises(TypeError, match=r"prefetch_factor.*1\.5"):
            loader.prefetch_factor = 1.5
    with DataLoader(Numbers(8), 2) as loader:
        assert loader.prefetch_factor is None
        loader.prefetch_factor = 3
        assert flat(loader) == list(range(8)), "it has no effect without workers, as in torch"


# ---- stepping


def consume(loader):
    """Iterate on a thread; returns the list that it fills."""
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.extend(loader))
    thread.start()
    return got, thread


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_delivers_exactly_one_batch(workers):
    with DataLoader(Numbers(40), 2, num_workers=workers) as loader:
        loader.step()
        got, thread = consume(loader)
        for count in (1, 2, 3):
            wait_for(lambda count=count: len(got) == count)
            wait_for(lambda count=count: loader.stats().waiting_for == count)
            s = loader.stats()
            assert (s.state, s.batches_done, s.at, s.batches_per_second) == ("paused", count, None, 0)
            thread.join(0.05)
            assert len(got) == count, "exactly one was delivered"
            loader.step()
        wait_for(lambda: len(got) == 4)
        loader.step()
        loader.step()
        wait_for(lambda: len(got) == 6)
        loader.resume()
        thread.join()
        assert flat(got) == list(range(40))
        assert [len(events(loader, kind)) for kind in (ev.LoaderPaused, ev.LoaderResumed)] == [1, 1]


def test_a_step_advances_the_window_by_one_batch_and_nothing_else_moves():
    with DataLoader(Images(200), 2, num_workers=2, prefetch_factor=2) as loader:
        epoch = iter(loader)
        next(epoch)
        wait_for(lambda: (s := loader.stats()).ready >= 4 and not s.in_flight + s.reordering)
        loader.pause()
        ready = loader.stats().ready
        steps = ready + 4  # the window may have been extended while a batch was late
        for _ in range(steps):
            loader.step()
            next(epoch)
            ready = max(4, ready - 1)  # one replaces the one that was taken, unless there are more than 4
            wait_for(lambda ready=ready: (s := loader.stats()).ready == ready and not s.in_flight + s.reordering)
        s = loader.stats()
        assert (ready, s.window) == (4, 4)
        assert sum(w.batches for w in s.workers) == steps + 1 + s.ready, "produced, whether delivered or not"
        assert len({r.index for r in loader.events.batches()}) == steps


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_can_end_an_epoch_and_surplus_steps_do_not_carry_over(workers):
    with DataLoader(Numbers(4), 2, num_workers=workers) as loader:
        for _ in range(4):
            loader.step()
        assert flat(loader) == [0, 1, 2, 3]
        wait_for(lambda: not loader._engine._supervisor.dispatcher.iterations if workers else True)
        got, thread = consume(loader)
        thread.join(0.2)
        assert got == []
        loader.resume()
        thread.join()
        assert flat(got) == [0, 1, 2, 3]


# ---- after close()


@pytest.mark.parametrize("workers", [0, 1])
def test_commands_to_a_closed_loader_raise(workers):
    loader = DataLoader(Numbers(4), num_workers=workers)
    loader.close()
    calls = [loader.pause, loader.resume, loader.step, loader.reload, loader.restart_workers]
    calls += [lambda: setattr(loader, "num_workers", 3), lambda: setattr(loader, "prefetch_factor", 3)]
    for call in calls:
        with pytest.raises(LoaderClosedError, match="closed: create a new one"):
            call()
    loader.close()


# ---- without workers


def test_without_workers_reload_takes_effect_and_restart_does_nothing():
    class Data(Numbers):
        def __getitem__(self, i):
            return 2 * i

    with DataLoader(Numbers(8), 2) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        loader.restart_workers()
        loader.reload(Data(8))
        got.extend(epoch)
        assert flat(got) == [0, 1, 4, 6, 8, 10, 12, 14]
        assert flat(loader) == [0, 2, 4, 6, 8, 10, 12, 14]
        with pytest.raises(ValueError, match=r"no worker 0.*num_workers=0"):
            loader.restart_workers(0)


# ---- the thread of the loop


def test_worker_output_can_be_printed_by_several_threads_concurrently(monkeypatch):
    """The threads of two loaders may: a `contextvars.Context` cannot be entered concurrently."""
    inside, release, errors = threading.Event(), threading.Event(), []

    class Stream(io.StringIO):
        def write(self, text):
            if text == "first":
                inside.set()
                assert release.wait(90)
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", stream := Stream())
    output = WorkerOutput()
    output.add("stdout", "first")

    def show():
        try:
            output.show_in_context()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=show)
    thread.start()
    assert inside.wait(90)
    output.add("stdout", "second")
    show()
    release.set()
    thread.join()
    assert not errors
    assert stream.getvalue() == "secondfirst"


class Prints(Slow):
    def __getitem__(self, i):
        print("sample", i)
        return super().__getitem__(i)


def test_concurrent_worker_output_and_stats_do_not_stop_the_loop(caplog):
    stop = threading.Event()
    errors = []

    def ask(loader):
        try:
            while not stop.is_set():
                loader.stats()
        except RuntimeError as error:
            errors.append(error)

    with DataLoader(Prints(400, wait=0.0002), 4, num_workers=2) as loader:
        threads = [threading.Thread(target=ask, args=(loader,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert [flat(loader) for _epoch in range(5)] == [list(range(400))] * 5
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors
        assert not events(loader, ev.SupervisorFailed)
    assert not [record for record in caplog.records if "failed" in record.message]


class Planted(Exception):
    pass


def test_a_loop_that_fails_is_logged_and_goes_on(caplog, monkeypatch, tmp_path):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    with DataLoader(Hangs(8, bad=3, flag=str(flag), hung=str(hung)), 1, num_workers=1) as loader:
        failures = []
        show = loader._engine._output.show_in_context

        def fail():
            if len(failures) < 2:
                failures.append(1)
                raise Planted("planted")
            show()

        monkeypatch.setattr(loader._engine._output, "show_in_context", fail)
        got = []
        consumer = threading.Thread(target=lambda: got.extend(flat(loader)))
        consumer.start()
        wait_for(hung.exists)
        flag.unlink()
        wait_for(lambda: len(failures) == 2 or loader._engine._command(lambda: None))
        loader.restart_workers()
        consumer.join(60)
        assert got == list(range(8))
        errors_reported = [event.error for event in events(loader, ev.SupervisorFailed)]
    assert errors_reported == ["Planted: planted"] * 2
    assert sum("thread that supervises the workers failed" in record.message for record in caplog.records) == 2


def test_commands_are_executed_in_the_order_in_which_they_were_given():
    with DataLoader(Slow(40), 2, num_workers=2, multiprocessing_context="forkserver") as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        loader._engine.replace_all()
        loader.pause()
        wait_for(lambda: events(loader, ev.LoaderPaused))
        order = events(loader, (ev.WorkerRestarted, ev.LoaderPaused))
        assert [type(event) for event in order] == [ev.WorkerRestarted, ev.WorkerRestarted, ev.LoaderPaused]
        loader.resume()
        assert flat(got + list(epoch)) == list(range(40))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pause_and_resume_reach_every_iterator(num_workers):
    """A second iterator has workers of its own, and may begin while the loader is paused."""
    with DataLoader(Numbers(40), 2, num_workers=num_workers) as loader:
        first = iter(loader)
        got = [next(first)]
        loader.pause()
        second = iter(loader)
        assert loader.stats().state == "paused"
        resume = threading.Timer(0.1, loader.resume)
        resume.start()
        other = [next(second)]
        resume.join()
        assert flat([*got, *first]) == flat([*other, *second]) == list(range(40))
