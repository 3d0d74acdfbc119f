"""Workers that are removed or restarted finish their sample: what they hold, such as a lock, is released."""

from __future__ import annotations

import contextlib
import multiprocessing
import pathlib
import signal
import threading

import psutil
import pytest
from datasets import flat, wait_for
from locked import HalfLocked, Locked, LockedAsync, LockedBatches, LockedCollate, LockedStream

from nbloader import DataLoader, LoaderTimeoutError, NbloaderError
from nbloader import events as ev
from nbloader.engine import leaving, timeouts
from nbloader.engine.lost_locks import waits_for_lock
from nbloader.report.eventlog import line_of

HOLDER = 2

WAYS = {
    "restart one": lambda loader: loader.restart_workers([HOLDER]),
    "restart all": lambda loader: loader.restart_workers(),
    "resize": lambda loader: setattr(loader, "num_workers", HOLDER),
    "resize down and up": lambda loader: [setattr(loader, "num_workers", n) for n in (HOLDER, HOLDER + 2)],
    "reload": lambda loader: loader.reload(),
    "another kind": lambda loader: loader._use_kind("thread"),  # as `tune()` does
    "paused": lambda loader: [loader.pause(), loader.restart_workers(), loader.resume()],
}


class Holding:
    """A loader one of whose workers is in the middle of a sample, with a lock that the others need."""

    def __init__(self, dataset, **options):
        self.dataset = dataset
        self.loader = DataLoader(dataset, 2, num_workers=HOLDER + 1, **options)
        self.epoch = iter(self.loader)
        self.pid = int(wait_for(lambda: self.read(dataset.inside)))

    @staticmethod
    def read(path):
        return pathlib.Path(path).exists() and pathlib.Path(path).read_text()

    def go_on(self):
        pathlib.Path(self.dataset.go).touch()

    def events(self, kind):
        return [e for e in list(self.loader.events.history) if isinstance(e, kind) and e.pid == self.pid]

    def is_leaving(self):
        return self.events(ev.WorkerLeaving)

    def death(self):
        (died,) = wait_for(lambda: self.events(ev.WorkerDied))
        return died

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.loader.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_is_removed_in_the_middle_of_a_sample_finishes_it(way, tmp_path):
    with Holding(Locked(tmp_path, holder=HOLDER)) as holding:
        WAYS[way](holding.loader)
        wait_for(holding.is_leaving)
        assert psutil.pid_exists(holding.pid)
        holding.go_on()
        assert flat(holding.epoch) == list(range(40))
        died = holding.death()
        assert (died.exitcode, died.expected) == (0, True)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_with_each_start_method(method, tmp_path):
    dataset = Locked(tmp_path, holder=HOLDER, named=method != "fork")
    with Holding(dataset, multiprocessing_context=method) as holding:
        holding.loader.restart_workers()
        wait_for(holding.is_leaving)
        holding.go_on()
        assert flat(holding.epoch) == list(range(40))
        assert holding.death().exitcode == 0


@pytest.mark.parametrize("kind", [LockedBatches, LockedAsync, LockedCollate])
def test_with_each_kind_of_dataset(kind, tmp_path):
    dataset = kind(tmp_path, holder=HOLDER)
    collate_fn = getattr(dataset, "collate", None)
    with Holding(dataset, collate_fn=collate_fn, concurrency=2) as holding:
        holding.loader.restart_workers()
        wait_for(holding.is_leaving)
        holding.go_on()
        assert flat(holding.epoch) == list(range(40))
        assert holding.death().exitcode == 0


def test_a_generator_that_is_suspended_with_a_lock_releases_it():
    with DataLoader(LockedStream(), 2, num_workers=1) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        for _ in range(3):
            loader.restart_workers()
            got.append(next(epoch))
        assert flat([*got, *epoch]) == list(range(40))
        next(iter(loader))  # and in an epoch that is left early
        assert flat(loader) == list(range(40))


def test_an_epoch_that_is_left_early_lets_forked_workers_finish_their_sample(tmp_path):
    """Each epoch has new workers: those of the last one must not be killed with the lock."""
    with Holding(Locked(tmp_path, holder=HOLDER, named=False), multiprocessing_context="fork") as holding:
        del holding.epoch
        epoch = iter(holding.loader)
        assert psutil.pid_exists(holding.pid)
        holding.go_on()
        assert flat(epoch) == list(range(40))
        assert holding.death().exitcode == 0


def test_the_replacement_does_not_wait_for_the_worker_that_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr(leaving, "STUCK_S", 1000.0)  # else it is killed where the epoch takes two seconds
    with Holding(Waiting(tmp_path, holder=HOLDER)) as holding:
        holding.loader.restart_workers([HOLDER])
        assert flat(holding.epoch) == list(range(40))
        assert not holding.events(ev.WorkerDied)
        holding.go_on()
        assert holding.death().exitcode == 0


class Waiting(Locked):
    """No sample holds a lock."""

    def __getitem__(self, i):
        self.wait_for_holder()
        self.wait()
        return i


def test_what_a_leaving_worker_still_sends_is_not_delivered_after_a_reload(tmp_path):
    class Marked(LockedCollate):
        version = "old"

        def collate(self, samples):
            super().collate(samples)
            return [(self.version, sample) for sample in samples]

    dataset = Marked(tmp_path, holder=HOLDER)
    with Holding(dataset, collate_fn=dataset.collate) as holding:
        dataset.version = "new"
        holding.loader.reload(keep=False)
        wait_for(holding.is_leaving)
        holding.go_on()
        assert [sample for batch in holding.epoch for sample in batch] == [("new", i) for i in range(40)]


@pytest.mark.parametrize("way", ["fewer workers", "another kind"])
def test_a_search_kills_no_worker_however_long_its_sample_takes(way, tmp_path, monkeypatch):
    """It may hold a lock: a worker that `restart_workers` would kill at once may finish its sample."""
    for name in ("STUCK_S", "STUCK_TIMES", "START_LIMIT"):
        monkeypatch.setattr(leaving, name, 0)
    with Holding(Locked(tmp_path, holder=HOLDER)) as holding:
        if way == "fewer workers":
            holding.loader.tune(num_workers=HOLDER)
        else:
            holding.loader._use_kind("thread")
        wait_for(holding.is_leaving)
        holding.go_on()
        assert flat(holding.epoch) == list(range(40))
        died = holding.death()
        assert (died.exitcode, died.expected) == (0, True)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_the_end_of_an_epoch_kills_no_worker_that_a_search_has_removed(method, tmp_path, monkeypatch):
    """Workers may end with the epoch: one that already leaves is told nothing new."""
    for name in ("STUCK_S", "STUCK_TIMES", "START_LIMIT"):
        monkeypatch.setattr(leaving, name, 0)
    with Holding(Waiting(tmp_path, holder=HOLDER), multiprocessing_context=method) as holding:
        holding.loader.tune(num_workers=HOLDER)
        wait_for(holding.is_leaving)
        assert flat(holding.epoch) == list(range(40))
        assert not holding.events(ev.WorkerDied)
        holding.go_on()
        died = holding.death()
        assert (died.exitcode, died.expected) == (0, True)
        assert len(holding.is_leaving()) == 1


@pytest.mark.parametrize("stop", [False, True], ids=["hangs", "stopped"])
def test_a_stuck_worker_is_killed(stop, tmp_path):
    """A batch takes some milliseconds: after two seconds it is stuck, whether it was told to leave before or after."""
    with Holding(Waiting(tmp_path, holder=HOLDER)) as holding:
        if stop:
            psutil.Process(holding.pid).send_signal(signal.SIGSTOP)
        wait_for(lambda: holding.loader._parts.engine._supervisor.window.load.produce_ns)
        holding.loader.restart_workers([HOLDER])
        assert flat(holding.epoch) == list(range(40))
        died = holding.death()
        assert (died.exitcode, died.expected) == (-signal.SIGKILL, True)


def test_closing_kills_workers_that_are_leaving(tmp_path):
    with Holding(Waiting(tmp_path, holder=HOLDER)) as holding:
        holding.loader.restart_workers()
        wait_for(holding.is_leaving)
        holding.loader.close()
        wait_for(lambda: not psutil.pid_exists(holding.pid), "a process that was killed may be a zombie for a moment")


def test_the_log_says_that_a_worker_leaves(tmp_path):
    with Holding(Locked(tmp_path, holder=HOLDER)) as holding:
        holding.loader.num_workers = HOLDER
        (leaving,) = wait_for(holding.is_leaving)
        holding.go_on()
        list(holding.epoch)
        assert line_of(leaving).text == f"worker {HOLDER} (pid {holding.pid}) leaves after its current sample"
        assert line_of(holding.death()).text.startswith(f"worker {HOLDER} (pid {holding.pid}) stopped")


# ---- the lock of a process that was killed

PATHS = {
    "lock": "dataset.lock",
    "rlock": "dataset.lock",
    "inside": "dataset.lock.inner['lock']",
}


class Wrapper:
    """Holds a lock inside another object."""

    def __init__(self):
        self.inner = {"lock": multiprocessing.get_context("spawn").Lock()}

    def __enter__(self):
        self.inner["lock"].acquire()

    def __exit__(self, *_exc):
        self.inner["lock"].release()


LOCKS = {
    "lock": lambda: multiprocessing.get_context("spawn").Lock(),
    "rlock": lambda: multiprocessing.get_context("spawn").RLock(),
    "inside": Wrapper,
}


def all_wait_for_the_lock(loader):
    with contextlib.suppress(NbloaderError):  # one is not running now
        return all(waits_for_lock(loader.stack(worker)) for worker in range(HOLDER + 1))
    return False


@pytest.mark.parametrize("kind", LOCKS)
def test_a_notice_names_the_lock_that_nobody_will_release_and_reload_helps(kind, tmp_path, capsys, monkeypatch):
    dataset = Locked(tmp_path, holder=HOLDER)
    dataset.lock = LOCKS[kind]()
    with Holding(dataset) as holding:
        psutil.Process(holding.pid).kill()
        wait_for(lambda: all_wait_for_the_lock(holding.loader), "the replacement, which waits for the lock, too")
        monkeypatch.setattr(timeouts, "DELAY_NOTICE", 0.5)
        told = []

        def repair():
            wait_for(lambda: told.append(capsys.readouterr().err) or "waited" in "".join(told))
            dataset.lock = LOCKS[kind]()
            holding.loader.reload()

        thread = threading.Thread(target=repair)
        thread.start()
        assert flat(holding.epoch) == list(range(40))
        thread.join()
        text = "".join(told)
        assert f"All workers wait for {PATHS[kind]}, which none of them holds" in text
        assert "call loader.reload()" in text


def test_a_timeout_names_the_lock(tmp_path):
    with Holding(Locked(tmp_path, holder=HOLDER), timeout=2) as holding:
        psutil.Process(holding.pid).kill()
        wait_for(lambda: all_wait_for_the_lock(holding.loader), "the replacement, which waits for the lock, too")
        with pytest.raises(LoaderTimeoutError, match=r"All workers wait for dataset\.lock, which none of them holds"):
            list(holding.epoch)


def test_a_notice_blames_no_lock_that_a_worker_holds(tmp_path, capsys, monkeypatch):
    with Holding(Locked(tmp_path, holder=HOLDER)) as holding:
        monkeypatch.setattr(timeouts, "DELAY_NOTICE", 0.5)
        told = []

        def go_on():
            wait_for(lambda: told.append(capsys.readouterr().err) or "waited" in "".join(told))
            holding.go_on()

        thread = threading.Thread(target=go_on)
        thread.start()
        assert flat(holding.epoch) == list(range(40))
        thread.join()
        assert "All workers wait" not in "".join(told)


LOOPS = {
    "restart one": lambda loader, turn: loader.restart_workers([turn % 3]),
    "restart all": lambda loader, _turn: loader.restart_workers(),
    "resize": lambda loader, turn: setattr(loader, "num_workers", (1, 4, 2, 3)[turn % 4]),
    "reload": lambda loader, _turn: loader.reload(),
    "step": lambda loader, _turn: [loader.pause(), loader.restart_workers(), loader.resume()],
    "another kind": lambda loader, turn: loader._use_kind(("thread", "process")[turn % 2]),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", LOOPS)
def test_no_loop_hangs_whenever_workers_are_removed(way):
    """Twenty times, at any moment of a sample that holds the lock for half of its time."""
    with DataLoader(HalfLocked(), 2, num_workers=3) as loader:
        got = []
        for turn, batch in enumerate(loader):
            got.append(batch)
            if turn % 3 == 0:
                LOOPS[way](loader, turn // 3)
        assert flat(got) == list(range(120))
