"""A loop that waits for a long time reports why, and `timeout` raises an error or restarts a worker."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import threading
import time

import datasets as d
import light
import pytest
from datasets import Hangs, Numbers, Slow, begin, flat, wait_for

from nbloader import DataLoader, LoaderTimeoutError, NbloaderError
from nbloader import events as ev
from nbloader._util.bell import Bell
from nbloader.engine import timeouts
from nbloader.engine.timeouts import Due, WaitTimer

S = 1_000_000_000

CLEAN = {"multiprocessing_context": "forkserver"}  # workers that unpickle the dataset


def hangs(tmp_path, n=12, bad=5, **attributes):
    flag = tmp_path / "flag"
    flag.touch()
    return Hangs(n, bad=bad, flag=str(flag), hung=str(tmp_path / "hung"), **attributes), flag


def arriving(loader) -> bool:
    with contextlib.suppress(NbloaderError):
        return "in __setstate__" in loader.stack(0)
    return False


def wait_for_line(capsys) -> str:
    """Wait for output on the cell's standard error."""
    lines: list[str] = []
    wait_for(lambda: lines.append(capsys.readouterr().err) or "".join(lines))
    return "".join(lines)


# ---- the timer


def test_without_a_timeout_there_is_one_notice():
    wait = WaitTimer(0, timeout=0, first=True)
    assert wait.check(S, paused=False) == (None, 29)
    assert wait.check(30 * S, paused=False) == (Due.DELAY_NOTICE, None)
    assert wait.check(31 * S, paused=False) == (None, None)
    assert wait.check(999 * S, paused=False) == (None, None)


def test_a_timeout_is_due_each_time_it_passes():
    wait = WaitTimer(0, timeout=2, first=True)
    assert wait.check(S, paused=False) == (None, 1)
    assert wait.check(2 * S, paused=False) == (Due.TIMEOUT, None)
    wait.since = 2 * S
    assert wait.check(3 * S, paused=False) == (None, 1)
    assert wait.check(5 * S, paused=False) == (Due.TIMEOUT, None)


def test_a_wait_begins_when_the_workers_are_ready():
    wait = WaitTimer(0, timeout=2, first=True)
    assert not wait.note_ready(0, ready=True)
    assert not wait.note_ready(S, ready=False)
    assert wait.check(S, paused=False) == (None, 1)
    assert wait.note_ready(S + S // 2, ready=True)
    assert not wait.note_ready(2 * S, ready=True)
    assert wait.check(2 * S, paused=False) == (None, 1.5)


@pytest.mark.parametrize("timeout", [0, 2])
def test_a_pause_does_not_count_and_is_reported_only_before_the_first_batch(timeout):
    wait = WaitTimer(0, timeout=timeout, first=True)
    assert wait.check(S, paused=True) == (None, 5)
    assert wait.check(6 * S, paused=True) == (Due.PAUSE_NOTICE, None)
    assert wait.check(100 * S, paused=True) == (None, None)
    assert wait.check(101 * S, paused=False) == (None, timeout or 30)
    later = WaitTimer(0, timeout=timeout, first=False)
    assert later.check(100 * S, paused=True) == (None, None)


# ---- the notice in the cell


def test_a_loop_that_waits_for_long_gets_one_line_that_names_the_batch_and_its_worker(tmp_path, capsys, monkeypatch):
    data, flag = hangs(tmp_path, bad=5)
    with DataLoader(data, 2, num_workers=2) as loader:
        epoch = begin(loader)
        wait_for(lambda: loader.stats().ready == 2, "the batches before the one that hangs")
        monkeypatch.setattr(timeouts, "DELAY_NOTICE", 0.5)
        told = []

        def restart():
            told.append(wait_for_line(capsys))
            time.sleep(1)  # there is only one line, however long the wait lasts
            flag.unlink()
            loader.restart_workers()

        thread = threading.Thread(target=restart)
        thread.start()
        assert flat(epoch) == list(range(12))
        thread.join()
        text = told[0] + capsys.readouterr().err
        assert re.fullmatch(
            r"nbloader: this loop has waited \d+ s for batch 2\. Worker [01] \(pid \d+\) has been fetching batch 2 for "
            r"\d+\.\d s, at sample 5: .*light\.py, line \d+ in sleep\. If it hangs, restart it .*"
            r"loader\.restart_workers\([01]\).*\n",
            text,
        )


def test_the_notice_names_the_line_at_which_a_dataset_hangs_while_it_is_rebuilt(capsys, monkeypatch):
    monkeypatch.setattr(timeouts, "DELAY_NOTICE", 0.5)
    with DataLoader(d.HangsInUnpickling(4), 2, num_workers=1, **CLEAN) as loader:
        epoch = iter(loader)
        wait_for(lambda: arriving(loader))
        told = []

        def close():
            told.append(wait_for_line(capsys))
            loader.close()

        thread = threading.Thread(target=close)
        thread.start()
        with pytest.raises(RuntimeError, match="closed"):
            next(epoch)
        thread.join()
        assert re.search(
            r"for batch 0\. Worker 0 \(pid \d+\) has been starting for .* in __setstate__\.", "".join(told)
        )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loop_over_a_paused_loader_gets_one_notice(workers, capsys, monkeypatch):
    monkeypatch.setattr(timeouts, "PAUSE_NOTICE", 0.3)
    with DataLoader(Numbers(6), 2, num_workers=workers) as loader:
        loader.pause()
        told = []

        def resume():
            told.append(wait_for_line(capsys))
            time.sleep(0.5)
            loader.resume()

        thread = threading.Thread(target=resume)
        thread.start()
        assert flat(loader) == list(range(6))
        thread.join()
        assert told[0] + capsys.readouterr().err == timeouts.PAUSE_NOTICE_TEXT


# ---- the timeout


@pytest.mark.parametrize("how", [light.sleep, light.hang_in_c], ids=lambda how: how.__name__)
def test_a_timeout_error_contains_the_stack_of_the_worker(tmp_path, how):
    data, flag = hangs(tmp_path, how=how)
    with DataLoader(data, 2, num_workers=2, timeout=0.7) as loader:
        epoch = begin(loader)
        wait_for(lambda: loader.stats().ready == 2, "the batches before the one that hangs")
        got = [next(epoch), next(epoch)]
        with pytest.raises(LoaderTimeoutError, match=r"(?s)after 0\.7 s.*sample 5.*most recent call first") as raised:
            next(epoch)
        assert f"in {how.__name__}\n" in str(raised.value)
        assert "light.py" in str(raised.value)
        flag.unlink()
        loader.restart_workers()
        wait_for(lambda: loader.stats().ready)  # the timeout applies to the start, too
        got.extend(epoch)
        assert flat(got) == list(range(12))


@pytest.mark.parametrize("how", [light.sleep, light.spin, light.hang_in_c], ids=lambda how: how.__name__)
def test_a_stalled_worker_is_restarted_automatically(tmp_path, capsys, how):
    data, flag = hangs(tmp_path, n=40, bad=5, how=how)
    with DataLoader(data, 2, num_workers=2, timeout=1.5, on_timeout="restart") as loader:
        epoch = begin(loader)
        loader.events.subscribe(lambda e: flag.unlink(missing_ok=True) if isinstance(e, ev.WorkerRestarted) else None)
        assert flat(epoch) == list(range(40))
        restarted = [e for e in list(loader.events.history) if isinstance(e, ev.WorkerRestarted)]
        assert restarted[0].reason == "batch 2 took longer than timeout=1.5 s"
        assert loader.stats().deaths == 0
        assert all(r.attempt >= 2 for r in loader.events.batches() if r.index == 2)
        assert re.search(
            r"batch 2 did not arrive within 1\.5 s, so nbloader is restarting worker \d and .* in \w+\.",
            capsys.readouterr().err,
        )


class HangsOnce:
    """Sample 41 hangs, or ends its worker, when it is first read after the flag was set. Sample 42 takes a while."""

    def __init__(self, flag: pathlib.Path, *, ends: bool) -> None:
        self.flag, self.ends = flag, ends

    def __len__(self) -> int:
        return 400

    def __getitem__(self, i: int) -> int:
        if i == 41 and self.flag.exists():
            self.flag.unlink()
            time.sleep(0 if self.ends else 3600)
            os._exit(3)
        if i == 42:
            time.sleep(0.05)
        return i


@pytest.mark.parametrize("chunk_size", [None, 5])
@pytest.mark.parametrize("how", ["timeout", "request", "death"])
def test_a_batch_says_at_which_sample_a_worker_was_lost(tmp_path, how, chunk_size):
    flag = tmp_path / "flag"
    data = HangsOnce(flag, ends=how == "death")
    limit = {"timeout": 1.5, "on_timeout": "restart"} if how == "timeout" else {}
    with DataLoader(data, 10, num_workers=2, chunk_size=chunk_size, persistent_workers=True, **limit) as loader:
        assert flat(loader) == list(range(400))
        flag.touch()
        epoch = begin(loader)
        got = [next(epoch) for _ in range(4)]
        if how == "request":
            stuck: list[int] = []
            wait_for(lambda: stuck.extend(w.worker for w in loader.stats().workers if w.sample == 41) or stuck)
            wait_for(lambda: not flag.exists())
            loader.restart_workers(stuck[:1])
        got.extend(epoch)
        assert flat(got) == list(range(400))
        (record,) = [r for r in loader.events.batches() if (r.epoch, r.index) == (1, 4)]
        assert record.attempt >= 2
        assert (record.lost_sample, record.slowest_index) == (41, 42)
        assert {r.lost_sample for r in loader.events.batches()} == {None, 41}
        if how == "timeout":
            said = loader.stats().epoch_verdict.sentence
            assert said.startswith("Look at sample 41, or limit waits"), said
            assert "batch 4, which was produced again after a worker was lost at sample 41 (attempt" in said
            assert "sample 42" not in said


def test_a_stalled_worker_thread_is_abandoned_and_replaced(capsys):
    go = threading.Event()

    class Waits(Numbers):
        def __getitem__(self, i):
            if i == 5 and not hung:
                hung.add(threading.current_thread().name)
                go.wait(d.PATIENCE)
            return i

    hung: set[str] = set()
    with DataLoader(Waits(20), 2, num_workers=2, workers="thread", timeout=1, on_timeout="restart") as loader:
        assert flat(loader) == list(range(20))
        assert len(hung) == 1
        assert re.search(r"so nbloader is restarting worker \d and .* in __getitem__\.", capsys.readouterr().err)
        go.set()


def test_a_batch_that_stalls_three_workers_is_an_error_and_the_others_are_delivered(tmp_path):
    data, _flag = hangs(tmp_path, n=20, bad=5)
    with DataLoader(data, 2, num_workers=2, timeout=0.7, on_timeout="restart") as loader:
        epoch = begin(loader)
        got = [next(epoch), next(epoch)]
        begun = time.monotonic()
        with pytest.raises(LoaderTimeoutError, match=r"(?s)batch 2 did not arrive.*in sleep"):
            next(epoch)
        assert time.monotonic() - begun > 2
        got.extend(epoch)
        assert flat(got) == [0, 1, 2, 3, *range(6, 20)]


@pytest.mark.parametrize("on_timeout", ["raise", pytest.param("restart", marks=pytest.mark.slow)])
def test_a_start_that_takes_too_long_is_an_error(on_timeout):
    """With "restart" only after 30 s."""
    with DataLoader(d.HangsInUnpickling(4), 2, num_workers=1, timeout=0.5, on_timeout=on_timeout, **CLEAN) as loader:
        epoch = iter(loader)
        wait_for(lambda: arriving(loader))
        with pytest.raises(LoaderTimeoutError, match=r"(?s)begun it: worker 0 .* starting.*__setstate__"):
            next(epoch)
        loader.reload(Numbers(4))
        loader.restart_workers()


def test_workers_may_take_longer_to_start_than_the_timeout_if_stalled_ones_are_restarted():
    with DataLoader(d.SlowToUnpickle(8), 2, num_workers=1, timeout=2, on_timeout="restart", **CLEAN) as loader:
        assert flat(loader) == list(range(8))
        assert loader.stats().restarts == 0


def test_slow_batches_within_the_timeout_restart_nothing():
    with DataLoader(Slow(40, wait=0.02), 2, num_workers=2, timeout=20, on_timeout="restart") as loader:
        assert flat(loader) == list(range(40))
        assert loader.stats().restarts == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"on_timeout": "wait", "num_workers": 1}, "on_timeout must be one of 'raise', 'restart', not 'wait'"),
        ({"on_timeout": None}, "on_timeout must be one of"),
        ({"on_timeout": "restart", "num_workers": 1}, "needs workers and a timeout.*timeout=0"),
        ({"on_timeout": "restart", "timeout": 1}, "needs workers and a timeout.*num_workers=0"),
    ],
)
def test_invalid_values_of_on_timeout_are_errors(arguments, text):
    with pytest.raises(ValueError, match=text):
        DataLoader(Numbers(4), **arguments)


def test_a_bell_that_rings_after_the_look_and_before_the_wait_wakes():
    bell = Bell()
    bell.ring()
    bell.listening = True
    begin = time.perf_counter()
    bell.wait(0.01)
    assert time.perf_counter() - begin >= 0.01, "nobody listened to the first one"
    for _ in range(3):
        bell.ring()
    bell.wait(None)
    begin = time.perf_counter()
    bell.wait(0.01)
    assert time.perf_counter() - begin >= 0.01, "three rings are one wake-up"
