"""Each kind of death at each stage of a worker: once, and every batch is delivered; always, and one clear error is."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import datasets as d
import light
import pytest
from datasets import Hangs, Images, Slow, at_stage, flat, run_script, wait_for

from nbloader import DataLoader, WorkerDiedError, WorkerStartError
from nbloader import events as ev

STAGES = ("arrival", "init", "fetch", "collate", "encode")
DEATHS = (d.sigkill, d.segfault, d.exit_with_7)
EXITS = {"sigkill": -9, "segfault": -11, "exit_with_7": 7}


def died(loader):
    return [e for e in list(loader.events.history) if isinstance(e, ev.WorkerDied) and not e.expected]


@pytest.mark.parametrize("how", DEATHS, ids=lambda how: how.__name__)
@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_that_dies_once_is_replaced_and_every_batch_is_delivered(stage, how, tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    with DataLoader(batch_size=3, num_workers=2, **at_stage(stage, 24, how, flag)) as loader:
        assert flat(loader) == list(range(24))
        assert not flag.exists()
        (event,) = wait_for(lambda: died(loader))  # the others may have been quicker than the news
        assert event.exitcode == EXITS[how.__name__]
        assert flat(loader) == list(range(24))
        assert len(died(loader)) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_workers_that_always_die_are_one_error_in_bounded_time(stage):
    begun = time.monotonic()
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
    assert time.monotonic() - begun < 60


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
                ready = [w.pid for w in loader.stats().workers if w.state in ("fetching", "collating", "sending")]
                with contextlib.suppress(ProcessLookupError):
                    for pid in ready[:1]:
                        os.kill(pid, 9)

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
        wait_for(lambda: sum(w.state == "idle" for w in loader.stats().workers) == 2)
        victim = loader.stats().workers[0].pid
        told = threading.Event()
        loader.events.subscribe(lambda e: told.set() if isinstance(e, ev.WorkerReady) and e.pid != victim else None)
        os.kill(victim, 9)
        assert told.wait(d.PATIENCE), "nobody replaced it"
        assert [e.pid for e in died(loader)] == [victim]
        assert flat(epoch) == list(range(2, 40))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_ends_the_cell_at_once_whatever_the_loop_waits_for(workers, tmp_path):
    done = run_script(
        f"""
        import os, signal, sys, threading, time
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from datasets import *
        from nbloader import DataLoader
        signal.signal(signal.SIGINT, signal.default_int_handler)
        loader = DataLoader(Slow(10, wait=3600), 2, num_workers={workers})
        sent = []
        def interrupt():
            time.sleep(0.5)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            next(iter(loader))
        except KeyboardInterrupt:
            print(time.monotonic() - sent[0])
        loader.reload(Numbers(4))
        print(flat(loader))
        """,
        tmp_path,
    )
    took, batches = done.stdout.splitlines()
    assert (batches, done.stderr) == ("[0, 1, 2, 3]", "")
    assert float(took) < 5, "a second, but for a busy machine"
