"""Each kind of fault in each stage. fault_table.py has the kinds; here they are provoked."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import pickle
import signal
import threading
import weakref

import datasets as d
import fault_table
import light
import psutil
import pytest
from datasets import all_pids, at_stage, at_work, flat, pids, wait_for
from fault_table import (
    ERRORS,
    EXIT_CODES,
    HANGS,
    IN_WORKER,
    NOTHING,
    PROVOKED,
    RAISED,
    REDONE,
    HoldsTheFirst,
    Large,
    Once,
    Rebuilt,
    RunsAside,
    provokes,
    rebuild,
)
from light import Hangs, Held, Images, Numbers, Slow
from stand_in import DeviceFull, StandIn

from nbloader import DataLoader, DatasetTransferError, LoaderClosedError, WorkerDiedError, WorkerStartError
from nbloader import events as ev

STAGES = ("arrival", "init", "fetch", "collate", "encode")


def died(loader):
    return [e for e in list(loader.events.history) if isinstance(e, ev.WorkerDied) and not e.expected]


def working(loader):
    return [w for w in at_work(loader) if w.state != "idle"]


def when_working(loader, number):
    """Wait until so many workers work; return the processes of all."""
    return wait_for(lambda: len(working(loader)) == number and pids(loader))


def kill_workers(loader):
    for pid in wait_for(lambda: pids(loader)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_zygote_of(worker):
    """Kill the parent of this worker process; the fork server of workers with torch is left alone."""
    os.kill(psutil.Process(worker).ppid(), signal.SIGKILL)


# ---- the table


def test_the_table_has_as_many_entries_as_the_page_says():
    faults = [*fault_table.in_workers(), *fault_table.IN_NOTEBOOK]
    page = pathlib.Path(__file__).parents[1] / "docs" / "faults.md"
    assert f"The tests provoke {len(faults)} faults" in page.read_text(encoding="utf-8")
    assert len({(fault.kind, fault.stage) for fault in faults}) == len(faults)


# ---- in a worker


@pytest.mark.parametrize("fault", list(fault_table.in_workers()), ids=str)
def test_a_fault_in_a_worker(fault, tmp_path):
    once = Once(IN_WORKER[fault.kind][0], tmp_path)
    starting = fault.stage in fault_table.WORKER_STAGES[:2]
    number = 1 if starting else 2  # another worker could deliver the whole epoch meanwhile
    with DataLoader(batch_size=3, num_workers=number, **fault_table.in_stage(fault.stage, 24, once)) as loader:
        restart = restart_the_one_that_hangs(loader, once) if fault.kind in HANGS else contextlib.nullcontext()
        with restart:
            got, errors = epoch_of(loader, until_an_error=starting)
        assert once.happened
        if fault.outcome == RAISED:
            (error,) = errors
            kind, text = ERRORS[fault.kind]
            assert isinstance(error, kind)
            assert any(part in f"{error} {error.__cause__}" for part in text.split("|"))
            if not starting:
                assert flat(got) == [*range(6), *range(9, 24)]
            assert died(loader) == []
        else:
            assert errors == []
            assert flat(got) == list(range(24))
        if fault.kind in EXIT_CODES:
            (event,) = wait_for(lambda: died(loader))  # the others may have been quicker than the news
            assert event.exitcode == EXIT_CODES[fault.kind]
        assert flat(loader) == list(range(24)), "the next epoch"
        assert len(died(loader)) == (fault.kind in EXIT_CODES) or fault.kind == "zygote killed"


def epoch_of(loader, *, until_an_error):
    """The batches of an epoch, and the errors between them."""
    epoch, got, errors = iter(loader), [], []
    while True:
        try:
            got.append(next(epoch))
        except StopIteration:
            return got, errors
        except Exception as error:
            errors.append(error)
            if until_an_error:
                return got, errors


def restart_the_one_that_hangs(loader, once):
    def restart():
        wait_for(lambda: once.happened)
        loader.restart_workers()

    return RunsAside(restart)


# ---- in the notebook's process


@provokes("the sampler raises", "sampling", "raised, after the batches before it")
def _(_tmp_path):
    def sampler():
        yield from range(10)
        raise ValueError("no more")

    with DataLoader(Numbers(24), 2, num_workers=2, sampler=Resampled(sampler)) as loader:
        got = []
        with pytest.raises(ValueError, match="no more"):
            got.extend(loader)
        assert flat(got) == list(range(10))


@provokes("Ctrl-C", "sampling", "raised; the next epoch is complete")
def _(_tmp_path):
    interrupted = []

    def sampler():
        for i in range(24):
            if i == 13 and not interrupted:
                interrupted.append(i)
                raise KeyboardInterrupt
            yield i

    with DataLoader(Numbers(24), 2, num_workers=2, sampler=Resampled(sampler)) as loader:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        assert flat(loader) == list(range(24))


@provokes("the workers are killed", "sampling", REDONE)
def _(_tmp_path):
    def sampler():
        for i in range(24):
            if i == 13:
                kill_workers(loader)
            yield i

    with DataLoader(Numbers(24), 2, num_workers=2, sampler=Resampled(sampler)) as loader:
        assert flat(loader) == list(range(24))
        assert wait_for(lambda: died(loader))


@provokes("an index cannot be unpickled in a worker", "sampling", RAISED)
def _(_tmp_path):
    class Bad(int):
        def __reduce__(self):
            return rebuild, ([7], ValueError("bad index"), None)

    with DataLoader(Numbers(24), 2, num_workers=2, sampler=[*range(6), Bad(6), *range(7, 24)]) as loader:
        for _ in range(2):
            epoch, got = iter(loader), []
            with pytest.raises(DatasetTransferError, match=r"of type Bad or int.*bad index"):
                got.extend(epoch)
            got.extend(epoch)
            assert flat(got) == [*range(6), *range(8, 24)]
        assert died(loader) == []


class Resampled:
    """A sampler of known length, of a generator function."""

    def __init__(self, function):
        self.function = function

    def __len__(self):
        return 24

    def __iter__(self):
        return self.function()


def provoke_interrupt(tmp_path, workers):
    flag = tmp_path / "flag"
    flag.touch()
    with DataLoader(Held(12, flag=str(flag)), 2, num_workers=workers) as loader:

        def interrupt():
            wait_for(lambda: loader.stats().state == "running" and (not workers or working(loader)))
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt), RunsAside(interrupt):
            list(loader)
        flag.unlink()
        assert flat(loader) == list(range(12))


@provokes("Ctrl-C", "waiting for a batch", "raised at once; the next epoch is complete")
def _(tmp_path):
    provoke_interrupt(tmp_path, 2)


@provokes("Ctrl-C, without workers", "waiting for a batch", "raised at once; the next epoch is complete")
def _(tmp_path):
    provoke_interrupt(tmp_path, 0)


@provokes("`close()` in another thread", "waiting for a batch", "`LoaderClosedError`")
def _(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    with DataLoader(Held(12, flag=str(flag)), 2, num_workers=2) as loader:

        def close():
            wait_for(lambda: working(loader))
            loader.close()

        with pytest.raises(LoaderClosedError), RunsAside(close):
            list(loader)


@provokes("the zygote is killed", "waiting for a batch", REDONE)
def _(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    with DataLoader(Held(12, flag=str(flag)), 2, num_workers=2) as loader:

        def strike():
            wait_for(lambda: len(working(loader)) == 2)
            before = set(pids(loader))
            kill_zygote_of(min(before))
            wait_for(lambda: before.isdisjoint(pids(loader)))
            flag.unlink()

        with RunsAside(strike):
            assert flat(loader) == list(range(12))


@provokes("the worker that sends is killed", "receiving", REDONE)
def _(tmp_path):
    provoke_while_sending(tmp_path, lambda pid: os.kill(pid, signal.SIGKILL))


@provokes("the worker that sends is stopped, and restarted", "receiving", REDONE)
def _(tmp_path):
    provoke_while_sending(tmp_path, lambda pid: os.kill(pid, signal.SIGSTOP), restart=True)


@provokes("the zygote is killed", "receiving", REDONE)
def _(tmp_path):
    provoke_while_sending(tmp_path, kill_zygote_of)


def provoke_while_sending(tmp_path, strike, *, restart=False):
    """Part of a message is sent: it is larger than what the socket holds, and nobody reads."""
    flag = tmp_path / "flag"
    flag.touch()
    with DataLoader(Large(12, flag=str(flag)), 2, num_workers=2, collate_fn=list) as loader:
        epoch = iter(loader)
        wait_for(lambda: len(working(loader)) == 2)
        engine = loader._engine

        def strike_one_that_sends():
            flag.unlink()
            strike(wait_for(lambda: [gauge.pid for gauge in engine._group.gauges() if gauge.state == "sending"])[0])

        engine._loop.ask(strike_one_that_sends)  # on the thread that would read
        if restart:
            loader.restart_workers()
        assert [int(text[-9:]) for batch in epoch for text in batch] == list(range(12))


@provokes("the worker of an earlier batch is killed while later ones are here", "reordering", REDONE)
def _(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    with DataLoader(HoldsTheFirst(24, flag=str(flag)), 2, num_workers=2) as loader:
        epoch = iter(loader)
        wait_for(lambda: loader.stats().reordering >= 1)
        (worker,) = wait_for(lambda: at if len(at := working(loader)) == 1 else None)  # the other one waits for room
        flag.unlink()
        os.kill(worker.pid, signal.SIGKILL)
        assert flat(epoch) == list(range(24))


@provokes("another epoch begins", "reordering", "both are complete")
def _(_tmp_path):
    with DataLoader(Numbers(24), 2, num_workers=2) as loader:
        first = iter(loader)
        got = [next(first)]
        assert flat(loader) == list(range(24))
        got.extend(first)
        assert flat(got) == list(range(24))


@provokes("a batch cannot be unpickled", "building the batch", RAISED)
def _(_tmp_path):
    with DataLoader(Numbers(12), 2, num_workers=1, collate_fn=Rebuilt.of(ValueError("bad pickle"))) as loader:
        for _ in range(2):
            epoch, got = iter(loader), []
            with pytest.raises(Exception, match="bad pickle"):
                got.extend(epoch)
            got.extend(epoch)
            assert flat(got) == [*range(6), *range(8, 12)]
        assert died(loader) == []


@provokes("Ctrl-C", "building the batch", "raised; the next epoch is complete")
def _(tmp_path):
    once = tmp_path / "once"
    with DataLoader(Numbers(12), 2, num_workers=1, collate_fn=Rebuilt.of(KeyboardInterrupt(), once)) as loader:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        once.touch()
        assert flat(loader) == list(range(12))


@provokes("the memory cannot be registered", "pinning", NOTHING)
def _(_tmp_path):
    device = StandIn(3, register_fails_at=0)
    with DataLoader(Images(24), 4, num_workers=2, device=device) as loader:
        batches = list(loader)
        device.synchronize()
        assert_images(batches, 24)


@provokes("the device is full", "upload", "raised; the next call tries the same batch again")
def _(_tmp_path):
    device = StandIn(1, room=100)
    with DataLoader(Images(24), 4, num_workers=2, device=device) as loader:
        epoch = iter(loader)
        for _ in range(2):
            with pytest.raises(DeviceFull, match="batch 0"):
                next(epoch)
        device.room = None
        batches = list(epoch)
        device.synchronize()
        assert_images(batches, 24)


@provokes("the workers are killed", "upload", REDONE)
def _(_tmp_path):
    device = StandIn(None)  # copies as late as possible
    with DataLoader(Images(48), 4, num_workers=2, device=device) as loader:
        epoch = iter(loader)
        batches = [next(epoch)]
        kill_workers(loader)
        batches.extend(epoch)
        device.synchronize()
        assert_images(batches, 48)


def assert_images(batches, n):
    assert [int(i) for _images, numbers in batches for i in numbers] == list(range(n))
    assert all((images == numbers[:, None, None]).all() for images, numbers in batches)


def provoke_in_the_loop(strike):
    with DataLoader(Slow(40, wait=0.001), 2, num_workers=2) as loader:
        got = []
        epoch = iter(loader)
        while len(got) < 20:
            with contextlib.suppress(KeyboardInterrupt, ZeroDivisionError):
                for batch in epoch:
                    got.append(batch)
                    if len(got) == 5:
                        strike(loader)
        assert flat(got) == list(range(40))
        return loader.stats()


@provokes("the loop raises, and goes on with the same iterator", "loop", NOTHING)
def _(_tmp_path):
    assert provoke_in_the_loop(lambda _loader: 1 // 0).deaths == 0


@provokes("Ctrl-C, and it goes on with the same iterator", "loop", NOTHING)
def _(_tmp_path):
    assert provoke_in_the_loop(lambda _loader: signal.raise_signal(signal.SIGINT)).deaths == 0


@provokes("the workers are killed", "loop", REDONE)
def _(_tmp_path):
    provoke_in_the_loop(kill_workers)


@provokes("the zygote is killed", "loop", REDONE)
def _(_tmp_path):
    provoke_in_the_loop(lambda loader: kill_zygote_of(wait_for(lambda: pids(loader))[0]))


@provokes("a subscriber of events raises", "loop", "logged; it is removed")
def _(_tmp_path):
    calls = []
    with DataLoader(Numbers(24), 2, num_workers=2) as loader:
        loader.events.subscribe(lambda event: calls.append(event) or 1 // 0)
        assert flat(loader) == list(range(24))
        assert len(calls) in (1, 2)  # the loop and the supervisor may publish at the same moment
        called = len(calls)
        assert flat(loader) == list(range(24))
        assert len(calls) == called


@provokes("an `on_wait` callback raises", "waiting for a batch", "logged; it is removed")
def _(tmp_path):
    flag, calls = tmp_path / "flag", []
    flag.touch()
    with DataLoader(Held(12, flag=str(flag)), 2, num_workers=2) as loader:

        def callback():
            calls.append(flag.unlink())
            return 1 // 0

        loader.on_wait(callback)
        assert flat(loader) == list(range(12))
        assert len(calls) == 1


@provokes("the workers are killed", "between two epochs", NOTHING)
def _(_tmp_path):
    with DataLoader(Numbers(24), 2, num_workers=2, persistent_workers=True) as loader:
        assert flat(loader) == list(range(24))
        kill_workers(loader)
        assert flat(loader) == list(range(24))


@provokes("the zygote is killed", "between two epochs", NOTHING)
def _(_tmp_path):
    with DataLoader(Numbers(24), 2, num_workers=2, persistent_workers=True) as loader:
        assert flat(loader) == list(range(24))
        kill_zygote_of(wait_for(lambda: pids(loader))[0])
        assert flat(loader) == list(range(24))


@provokes("the workers are killed", "saving a state", REDONE)
def _(_tmp_path):
    with DataLoader(Numbers(24), 2, num_workers=2) as loader:
        epoch = iter(loader)
        got = [next(epoch) for _ in range(3)]
        kill_workers(loader)
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        assert flat([*got, *epoch]) == list(range(24))
    with DataLoader(Numbers(24), 2, num_workers=1) as loader:
        loader.load_state_dict(state)
        assert flat(loader) == list(range(6, 24))


@provokes("the workers are killed", "resumption", REDONE)
def _(_tmp_path):
    with DataLoader(Numbers(24), 2, num_workers=2) as loader:
        epoch = iter(loader)
        for _ in range(3):
            next(epoch)
        state = loader.state_dict()
        loader.load_state_dict(state)
        epoch = iter(loader)
        kill_workers(loader)
        assert flat(epoch) == list(range(6, 24))


@provokes("the state is damaged", "resumption", "raised; nothing has changed")
def _(_tmp_path):
    with DataLoader(Numbers(24), 2, num_workers=2) as loader:
        epoch = iter(loader)
        got = [next(epoch) for _ in range(3)]
        before = loader.state_dict()
        with pytest.raises((TypeError, ValueError, KeyError)):
            loader.load_state_dict(dict.fromkeys(before))
        assert flat([*got, *epoch]) == list(range(24))


@provokes("a worker hangs", "closing", "it is killed")
def _(tmp_path):
    provoke_closing(tmp_path, lambda _pid: None)


@provokes("a worker is stopped", "closing", "it is killed")
def _(tmp_path):
    provoke_closing(tmp_path, lambda pid: os.kill(pid, signal.SIGSTOP))


@provokes("the zygote is killed", "closing", NOTHING)
def _(tmp_path):
    provoke_closing(tmp_path, kill_zygote_of)


def provoke_closing(tmp_path, strike):
    flag = tmp_path / "flag"
    flag.touch()
    with DataLoader(Held(12, flag=str(flag)), 2, num_workers=2) as loader:
        epoch = iter(loader)
        before = when_working(loader, 2)
        strike(before[0])
    wait_for(lambda: not any(map(d.alive, before)))
    with pytest.raises(LoaderClosedError):
        next(epoch)


@provokes("a worker hangs", "garbage collection of the loader", "it is killed")
def _(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    loader = DataLoader(Held(12, flag=str(flag)), 2, num_workers=2)
    epoch = iter(loader)
    before = when_working(loader, 2)
    gone = weakref.ref(loader)
    del loader, epoch
    wait_for(lambda: gc.collect() is not None and gone() is None)  # one of its threads may look at it at this moment
    wait_for(lambda: not any(map(d.alive, before)))


@pytest.mark.parametrize("fault", fault_table.IN_NOTEBOOK, ids=str)
def test_a_fault_in_the_notebook(fault, tmp_path):
    PROVOKED[fault](tmp_path)


# ---- more than one fault


@pytest.mark.parametrize("stage", STAGES)
def test_workers_that_always_die_are_one_error_after_a_bounded_number_of_tries(stage):
    with DataLoader(batch_size=3, num_workers=2, **at_stage(stage, 24, d.exit_with_7)) as loader:
        epoch = iter(loader)
        got = []
        with pytest.raises((WorkerDiedError, WorkerStartError), match=r"(?s)code 7.*last words") as raised:
            got.extend(epoch)
        if stage in ("arrival", "init"):
            assert "3 times before it was ready" in str(raised.value)
        else:
            assert "batch 2 (samples [6, 7, 8])" in str(raised.value)
            got.extend(epoch)
            assert len(got) == 7, "the others come"
        assert len(died(loader)) <= 8, "a bounded number of tries"


@pytest.mark.parametrize("how", [light.spin, light.hang_in_c], ids=lambda how: how.__name__)
def test_a_worker_that_hangs_in_any_way_is_restarted(how, tmp_path):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    with DataLoader(Hangs(30, bad=7, flag=str(flag), hung=str(hung), how=how), 2, num_workers=2) as loader:

        def restart():
            wait_for(hung.exists)
            flag.unlink()
            loader.restart_workers()

        thread = threading.Thread(target=restart)
        thread.start()
        assert flat(loader) == list(range(30))
        thread.join()


def test_a_worker_killed_at_any_moment_loses_nothing(tmp_path):
    """Batches are large, so that some workers are killed while they write or send."""
    with DataLoader(Images(300), 3, num_workers=2, max_restarts=1000) as loader:
        stop = threading.Event()

        def kill():
            moment = 0.0005
            while not stop.wait(moment):
                moment = moment % 0.02 + 0.0013
                with contextlib.suppress(ProcessLookupError):
                    for worker in working(loader)[:1]:
                        os.kill(worker.pid, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            for _ in range(3):
                numbers, error = [], None
                epoch = iter(loader)
                while True:
                    try:
                        image, i = next(epoch)
                    except StopIteration:
                        break
                    except WorkerDiedError as raised:  # three kills in a row may meet the same batch
                        error = raised
                        continue
                    assert (image == i[:, None, None]).all()
                    numbers.extend(i.tolist())
                assert numbers == sorted(set(numbers))
                assert len(numbers) == 300 or error is not None
        finally:
            stop.set()
            thread.join()


def test_a_death_is_seen_while_the_consumer_is_away():
    with DataLoader(Slow(40, wait=0.001), 2, num_workers=2) as loader:
        epoch = iter(loader)
        next(epoch)
        before = all_pids(loader)  # of these, the event that tells that one is ready may still come
        victim = before[0]
        told = threading.Event()
        loader.events.subscribe(lambda e: told.set() if isinstance(e, ev.WorkerReady) and e.pid not in before else None)
        os.kill(victim, signal.SIGKILL)
        assert told.wait(d.PATIENCE), "nobody replaced it"
        assert [e.pid for e in died(loader)] == [victim]
        assert flat(epoch) == list(range(2, 40))
