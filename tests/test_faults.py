"""Whatever happens to workers, every batch is delivered once and in order, or one clear error is; nothing leaks."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
import pathlib
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import datasets as d
import numpy as np
import psutil
import pytest
from datasets import (
    Numbers,
    Slow,
    alive,
    all_pids,
    at_work,
    flat,
    pids,
    run_script,
    wait_for,
    worker_processes,
    zygotes,
)

from nbloader import (
    DataLoader,
    DatasetTransferError,
    LoaderClosedError,
    LoaderTimeoutError,
    WorkerDiedError,
    WorkerStartError,
)
from nbloader import events as ev
from nbloader._platform import START_METHODS
from nbloader._platform.descriptors import close_all
from nbloader.batch.payload import BatchHeader, pack_header
from nbloader.engine.receiver import Receiver
from nbloader.scheduler import dispatcher
from nbloader.shm.segment import NO_SEGMENT
from nbloader.transport import environment, zygote_process
from nbloader.transport.channel import Channel, Kind
from nbloader.workers import process_pool
from nbloader.workers.api import OutputTail
from nbloader.workers.process_pool import ProcessHandle, ProcessPool, connect


def events(loader, kind):
    return [event for event in list(loader.events.history) if isinstance(event, kind)]


def rest(epoch, error):
    """The remaining batches of an epoch, and the errors of this type between them."""
    batches, errors = [], []
    while True:
        try:
            batches.append(next(epoch))
        except StopIteration:
            return batches, errors
        except error as raised:
            errors.append(raised)


# ---- workers that end


@pytest.mark.unit
def test_what_a_worker_has_written_is_not_displaced_by_the_stacks_of_a_crash():
    """As faulthandler of Python 3.14 writes them: the Python frames, and the C frames."""
    tail = OutputTail()
    tail.keep("last words\n  indented\nFatal Python error: Segmentation fault\n\n")
    tail.keep("Current thread 0x1 (most recent call first):\n")
    tail.keep("".join(f'  File "user.py", line {n} in f\n' for n in range(9)))
    tail.keep('  File "zygote_process.py", line 1 in become_worker\n')
    tail.keep("".join(f'  File "notebook.py", line {n} in g\n' for n in range(200)))
    tail.keep("\nCurrent thread's C stack trace (most recent call first):\n")
    tail.keep("".join(f'  Binary file "/usr/lib/library.so", at +{n} [0x1]\n' for n in range(200)))
    tail.keep("\nExtension modules: many\n  the end\n")
    said = str(tail)
    assert said.startswith("last words\n  indented\n")
    assert said.endswith("Extension modules: many\n  the end\n")
    assert "line 8 in f\n" in said
    assert "become_worker" in said
    assert "notebook.py" not in said
    assert "at +0 " in said
    assert "at +199 " not in said


@pytest.mark.portable
@pytest.mark.parametrize(
    ("how", "reason", "exitcode"),
    [
        (d.sigkill, "killed by SIGKILL", -9),
        (d.segfault, "killed by SIGSEGV", -11),
        (d.exit_with_7, "exited with code 7", 7),
        (d.sys_exit, "exited with code 3", 3),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_the_batches_of_a_worker_that_dies_are_produced_again(how, reason, exitcode, tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    data = d.Deadly(60, bad=33, how=how, flag=str(flag))
    with DataLoader(data, 4, num_workers=2, persistent_workers=True) as loader:
        assert flat(loader) == list(range(60))
        (died,) = [e for e in events(loader, ev.WorkerDied) if not e.expected]
        assert reason in died.reason
        assert died.exitcode == exitcode
        assert 8 in died.batches
        assert "last words" in died.stderr_tail
        assert [r.attempt for r in loader.events.batches() if r.index == 8] == [2]
        wait_for(lambda: len(pids(loader)) == 2)
        stats = loader.stats()
        assert (stats.deaths, stats.restarts) == (1, 1)
        assert flat(loader) == list(range(60))


def test_a_segfault_shows_where(tmp_path):
    with (
        DataLoader(d.Deadly(8, bad=5, how=d.segfault), 4, num_workers=1) as loader,
        pytest.raises(WorkerDiedError) as raised,
    ):
        list(loader)
    assert "SIGSEGV" in str(raised.value)
    assert "in segfault" in str(raised.value), "faulthandler's stack"


def test_a_worker_that_exits_is_not_reported_as_a_crash():
    with (
        DataLoader(d.Deadly(8, bad=5, how=d.sys_exit), 4, num_workers=1) as loader,
        pytest.raises(WorkerDiedError, match=r"exited with code 3.*\. The usual cause is a call of sys\.exit\(\) or"),
    ):
        list(loader)


@pytest.mark.portable
def test_a_poisoned_batch_is_an_error_and_the_others_are_delivered():
    with DataLoader(d.Deadly(40, bad=17, how=d.sigkill), 4, num_workers=2) as loader:
        for _ in range(2):
            epoch = iter(loader)
            batches, (error,) = rest(epoch, WorkerDiedError)
            assert flat(batches) == [*range(16), *range(20, 40)]
            for part in ("batch 4", "[16, 17, 18, 19]", "SIGKILL", "3 workers", "last words", "num_workers=0"):
                assert part in str(error)


@pytest.mark.portable
def test_workers_that_are_killed_from_outside_are_replaced():
    with DataLoader(Slow(120, wait=0.002), 3, num_workers=3) as loader:
        got, killed = [], set()
        dice = random.Random(3)
        for number, batch in enumerate(loader):
            got.append(batch)
            if number in (2, 10, 20, 30):
                pid = dice.choice(wait_for(lambda: [w.pid for w in at_work(loader) if w.pid not in killed]))
                os.kill(pid, signal.SIGKILL)  # there is such a process: a worker ends only by our hand
                killed.add(pid)
                wait_for(lambda: loader.stats().deaths == len(killed))  # before the epoch, and its workers, end
        assert flat(got) == list(range(120))


@pytest.mark.portable
def test_workers_that_die_between_epochs_are_replaced_for_the_next():
    with DataLoader(Numbers(20), 2, num_workers=2, persistent_workers=True) as loader:
        list(loader)
        wait_for(lambda: len(events(loader, ev.WorkerReady)) == 2)
        before = pids(loader)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: len(events(loader, ev.WorkerDied)) == 2)
        assert flat(loader) == list(range(20))
        assert len(wait_for(lambda: pids(loader))) <= 2
        assert not set(before) & set(pids(loader))
        assert loader.stats().deaths == 2


def test_too_many_deaths_end_the_epoch_with_the_reason():
    with DataLoader(d.Deadly(40, bad=2, how=d.exit_with_7), 4, num_workers=2, max_restarts=1) as loader:
        with pytest.raises(WorkerDiedError, match=r"(?s)2 workers died, more than max_restarts=1.*code 7.*last words"):
            list(loader)
        loader.reload(Numbers(8))
        assert flat(loader) == list(range(8))


@pytest.mark.portable
def test_a_worker_that_leaves_a_child_process_behind_is_replaced(tmp_path):
    """The child process holds the worker's output open, and must not hold its connection."""

    class Spawns(Numbers):
        def __getitem__(self, i):
            if i == 5 and not (tmp_path / "pid").exists():
                program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
                (tmp_path / "pid").write_text(str(program.pid))
                os._exit(1)
            return i

    try:
        with DataLoader(Spawns(20), 2, num_workers=2) as loader:
            assert flat(loader) == list(range(20))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_the_zygote_may_be_killed(method):
    with DataLoader(Slow(100, wait=0.002), 2, num_workers=2, multiprocessing_context=method) as loader:
        got, killed = [], []
        for number, batch in enumerate(loader):
            got.append(batch)
            if number == 10:
                killed = wait_for(lambda: zygotes(loader))
                for process in killed:
                    process.kill()
        assert flat(got) == list(range(100))
        assert len(killed) == 1
        assert flat(loader) == list(range(100))
        assert not any(alive(process.pid) for process in killed)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_killed_zygote_is_no_fault_of_a_batch_and_counts_once_for_all_its_workers(method, tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    data = d.Held(16, flag=str(flag))
    with DataLoader(data, 2, num_workers=3, max_restarts=3, multiprocessing_context=method) as loader:

        def kill():
            known = set()
            for _ in range(3):
                wait_for(lambda: [w.state for w in loader.stats().workers] == ["fetching"] * 3)
                wait_for(lambda: known.isdisjoint(pids(loader)))
                wait_for(lambda: [w.state for w in loader.stats().workers] == ["fetching"] * 3)
                known.update(pids(loader))
                for process in zygotes(loader):
                    process.kill()
            wait_for(lambda: known.isdisjoint(pids(loader)))
            flag.unlink()

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            assert flat(loader) == list(range(16))
        finally:
            thread.join()


# ---- workers that hang


@pytest.mark.parametrize("ids", [None, "the one"])
def test_a_hung_worker_is_restarted_from_another_thread(tmp_path, ids):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    with DataLoader(d.Hangs(60, bad=21, flag=str(flag), hung=str(hung)), 4, num_workers=3) as loader:

        def restart():
            wait_for(hung.exists)
            (stuck,) = wait_for(lambda: [w for w in loader.stats().workers if w.sample == 21])
            flag.unlink()
            loader.restart_workers(None if ids is None else [stuck.worker])

        thread = threading.Thread(target=restart)
        thread.start()
        assert flat(loader) == list(range(60))
        thread.join()
        assert [r.attempt for r in loader.events.batches() if r.index == 5] == [2]
        assert loader.stats().deaths == 0


def test_a_worker_that_dies_before_it_begins_a_batch_does_not_count_against_the_batch(monkeypatch):
    """Only a batch that has ended several workers is given up."""
    monkeypatch.setattr(dispatcher, "MAX_DEATHS", 1)
    with DataLoader(Numbers(40), 4, num_workers=1, persistent_workers=True) as loader:
        assert flat(loader) == list(range(40))
        (worker,) = map(psutil.Process, pids(loader))
        worker.suspend()
        wait_for(lambda: worker.status() == psutil.STATUS_STOPPED)
        epoch = iter(loader)  # its batches are sent to the worker, which reads none of them
        wait_for(lambda: loader.stats().in_flight)
        worker.kill()
        assert flat(epoch) == list(range(40))


@pytest.mark.portable
def test_a_stopped_worker_can_be_restarted():
    with DataLoader(Slow(60, wait=0.002), 2, num_workers=2) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        os.kill(all_pids(loader)[0], signal.SIGSTOP)
        loader.restart_workers([0])
        got.extend(epoch)
        assert flat(got) == list(range(60))


@pytest.mark.linux("it starts a hundred workers")
def test_restarting_a_hundred_times_within_an_epoch_loses_nothing():
    with DataLoader(Slow(300, wait=0.001), 2, num_workers=2, persistent_workers=True) as loader:
        got, restarts = [], 0
        for batch in loader:
            got.append(batch)
            if restarts < 100:
                loader.restart_workers([restarts % 2])
                restarts += 1
        assert flat(got) == list(range(300))
        assert restarts == 100
        wait_for(lambda: sum(w.state != "starting" for w in loader.stats().workers) == 2)
        wait_for(lambda: len(worker_processes()) == 2)  # one that was killed may not have ended yet


def test_only_existing_workers_can_be_restarted():
    with DataLoader(Numbers(4), num_workers=2) as loader:
        for wrong in (2, -1):
            with pytest.raises(ValueError, match=f"no worker {wrong}.*num_workers=2"):
                loader.restart_workers([0, wrong])
        for wrong in ("1", ["1"], 1.0, [None]):
            with pytest.raises(TypeError, match=r"worker ids must be an int or a list of ints, not .*"):
                loader.restart_workers(wrong)
        with pytest.raises(ValueError, match="no worker 2"):
            loader.restart_workers(np.int64(2))


@pytest.mark.portable
def test_a_timeout_names_batch_worker_and_sample_and_leaves_the_loader_usable(tmp_path):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    with DataLoader(d.Hangs(12, bad=5, flag=str(flag), hung=str(hung)), 2, num_workers=1, timeout=1) as loader:
        epoch = d.begin(loader)
        got = [next(epoch), next(epoch)]
        with pytest.raises(
            LoaderTimeoutError, match=r"timed out after 1 s.*batch 2 .*worker 0 \(pid \d+\).*sample 5"
        ) as raised:
            next(epoch)
        assert isinstance(raised.value, RuntimeError)
        flag.unlink()
        loader.restart_workers()
        wait_for(lambda: loader.stats().ready)  # the timeout applies to the start, too
        got.extend(epoch)
        assert flat(got) == list(range(12))


# ---- errors in the dataset


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_keeps_its_type_and_the_epoch_goes_on(workers):
    with DataLoader(d.Raises(40, bad=13, error=lambda: KeyError("gone", 3)), 4, num_workers=workers) as loader:
        for _ in range(2):
            batches, (error,) = rest(iter(loader), KeyError)
            assert flat(batches) == [*range(12), *range(16, 40)]
            assert error.args == ("gone", 3)
            assert "sample 13 of batch 3" in str(
                error.__notes__ if hasattr(error, "__notes__") else "sample 13 of batch 3"
            )
            if workers:
                assert "in __getitem__" in str(error.__cause__)
                assert "nbloader/" not in str(error.__cause__), "the traceback begins at the user's code"
                first, *_, last = str(error.__cause__).split("\n")
                assert first.startswith("raised in worker"), "no empty line before it"
                assert last, "nor after it"


@pytest.mark.parametrize(
    "error",
    [EOFError, BrokenPipeError, ConnectionResetError, OSError, MemoryError, TimeoutError, AssertionError, KeyError],
)
def test_errors_of_the_dataset_are_not_taken_for_errors_of_the_loader(error):
    with DataLoader(d.Raises(12, bad=3, error=error), 2, num_workers=1) as loader:
        batches, errors = rest(iter(loader), error)
        assert flat(batches) == [0, 1, *range(4, 12)]
        assert [type(e) for e in errors] == [error]
        assert loader.stats().deaths == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stop_iteration_in_the_dataset_does_not_end_the_epoch_silently(workers):
    with DataLoader(d.Raises(12, bad=3, error=StopIteration), 2, num_workers=workers) as loader:
        batches, errors = rest(iter(loader), RuntimeError)
        assert flat(batches) == [0, 1, *range(4, 12)]
        assert "StopIteration" in str(errors[0])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (d.not_rebuildable, "NotRebuildable: code 3"),
        (d.Unpicklable, "Unpicklable: "),
        (d.RaisesInStr, "RaisesInStr: "),
        (lambda: d.Unpicklable(1), "Unpicklable: 1"),
    ],
)
def test_an_error_that_cannot_be_pickled_keeps_its_type_and_its_text(error, text):
    with DataLoader(d.Raises(4, bad=2, error=error), 2, num_workers=1) as loader, pytest.raises(Exception) as raised:
        list(loader)
    name = type(raised.value).__name__
    assert text == f"{name}: " + ("" if name == "RaisesInStr" else str(raised.value))
    assert "in __getitem__" in str(raised.value.__cause__)


def bad_collate(samples):
    if 4 in samples:
        raise ZeroDivisionError("in collate")
    return samples


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_collate_fn_is_reported_as_such(workers):
    with DataLoader(Numbers(8), 2, num_workers=workers, collate_fn=bad_collate) as loader:
        batches, (error,) = rest(iter(loader), ZeroDivisionError)
        assert batches == [[0, 1], [2, 3], [6, 7]]
        assert "collating batch 2" in str(getattr(error, "__notes__", "collating batch 2"))
        assert [e.sample for e in events(loader, ev.BatchFailed)] == [None]


def test_a_batch_that_cannot_be_pickled_is_an_error_of_that_batch():
    with DataLoader(Numbers(4), 2, num_workers=1, collate_fn=lambda b: threading.Lock() if 2 in b else b) as loader:
        batches, errors = rest(iter(loader), TypeError)
    assert batches == [[0, 1]]
    assert "pickle" in str(errors[0])


def test_a_batch_that_cannot_be_rebuilt_is_an_error_of_that_batch(tmp_path):
    """Its class exists in the worker only."""
    (tmp_path / "only_there.py").write_text(
        "import typing\nclass Point(typing.NamedTuple):\n    x: int\nclass Thing:\n    pass\n"
    )

    def init(_worker):
        sys.path.insert(0, str(tmp_path))

    class Data(Numbers):
        def __getitem__(self, i):
            import only_there

            return i if i < 2 or i > 5 else only_there.Point(i) if i < 4 else only_there.Thing()

    with DataLoader(Data(8), 2, num_workers=1, worker_init_fn=init) as loader:
        batches, errors = rest(iter(loader), (ImportError, TypeError))
        assert flat(batches) == [0, 1, 6, 7]
        assert [type(e) for e in errors] == [ModuleNotFoundError, TypeError]
        loader.reload(Numbers(6))
        assert flat(loader) == list(range(6))


def test_indices_that_cannot_be_sent_are_an_error_of_that_batch():
    with DataLoader(Numbers(4), num_workers=1, batch_sampler=[[0, 1], [threading.Lock()], [2, 3]]) as loader:
        batches, errors = rest(iter(loader), DatasetTransferError)
    assert flat(batches) == [0, 1, 2, 3]
    assert "batch 1" in str(errors[0])


# ---- errors at the start


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("what", ["dataset", "collate_fn", "worker_init_fn"])
def test_what_cannot_be_sent_to_workers_is_an_error_before_any_starts(what, persistent):
    samples = (i for i in range(4))
    arguments = {
        "dataset": {"dataset": Numbers(4, lock=threading.Lock(), samples=samples)},
        "collate_fn": {"dataset": Numbers(4), "collate_fn": lambda b: (samples, b)},
        "worker_init_fn": {"dataset": Numbers(4), "worker_init_fn": lambda _: samples},
    }[what]
    holder = r"the dataset \(Numbers\), with what its attribute 'samples' \(generator\) holds,"
    told = holder if what == "dataset" else what
    told += r" cannot be sent to .*cannot pickle 'generator'.*num_workers=0"
    arguments |= {"num_workers": 2, "persistent_workers": persistent, "multiprocessing_context": "forkserver"}
    with DataLoader(**arguments) as loader:
        for _ in range(2):
            with pytest.raises(DatasetTransferError, match=f"^{told}"):
                iter(loader)
        assert pids(loader) == []
        if what == "dataset":
            del loader.dataset.samples
            assert flat(loader) == [0, 1, 2, 3]


def test_a_dataset_that_cannot_be_rebuilt_is_one_error():
    with DataLoader(d.FailsToUnpickle(4), 2, num_workers=3, multiprocessing_context="forkserver") as loader:
        for _ in range(2):
            with pytest.raises(ValueError, match=r"no such file: data\.bin") as raised:
                list(loader)
            assert "__setstate__" in str(raised.value.__cause__)
        loader.reload(Numbers(4))
        assert flat(loader) == [0, 1, 2, 3]


def test_an_error_while_the_consumer_is_away_reaches_it():
    with DataLoader(d.FailsToUnpickle(4), 2, num_workers=2, multiprocessing_context="forkserver") as loader:
        epoch = iter(loader)
        wait_for(lambda: not pids(loader))
        with pytest.raises(ValueError, match="no such file"):
            next(epoch)


def test_a_dataset_that_kills_its_workers_while_it_is_rebuilt_is_one_error():
    with (
        DataLoader(d.ExitsInUnpickling(4), 2, num_workers=2, multiprocessing_context="forkserver") as loader,
        pytest.raises(WorkerStartError, match=r"(?s)3 times before it was ready.*code 5.*last words"),
    ):
        list(loader)


def test_an_error_in_worker_init_fn_keeps_its_type():
    def init(worker):
        if worker == 1:
            raise LookupError("no such shard")

    with DataLoader(Slow(4000), 2, num_workers=2, worker_init_fn=init) as loader:
        for _ in range(2):
            with pytest.raises(LookupError, match="no such shard"):
                list(loader)


def test_workers_do_without_a_working_directory_that_was_deleted(tmp_path):
    """As torch's by fork. MKL ends a process that loads it there, so it must not be that of the workers."""
    done = script(
        """
        from nbloader._platform import START_METHODS

        class Tensors(Numbers):
            def __getitem__(self, i):
                try:
                    open("file")
                except FileNotFoundError as error:
                    return torch.ones(3) @ torch.ones(3), str(error)

        torch.ones(3) @ torch.ones(3)
        os.mkdir("deleted")
        os.chdir("deleted")
        os.rmdir(os.getcwd())
        for method in START_METHODS:
            with DataLoader(Tensors(1), None, num_workers=1, multiprocessing_context=method) as loader:
                print(*loader)
        """,
        tmp_path,
    )
    assert done.stdout.splitlines() == ["[tensor(3.), \"[Errno 2] No such file or directory: 'file'\"]"] * len(
        START_METHODS
    )
    assert done.stderr == ""


@pytest.mark.unit
def test_a_working_directory_that_cannot_be_entered_is_named(caplog, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    environment.Environment.of_this_process()._replace(cwd="/no/such/place").install()
    assert f"/no/such/place; relative paths refer to {tmp_path}" in caplog.text


class Streams:
    """As `worker_init_fn`: each worker has another standard output that cannot be flushed."""

    def __call__(self, worker):
        sys.stdout.write("printed ")
        if worker == 1:
            sys.stdout.close()
        else:
            sys.stdout = {0: None, 2: object(), 3: Broken()}[worker]


class Broken:
    def flush(self):
        raise ArithmeticError


def test_a_standard_output_that_cannot_be_flushed_is_no_fault_of_a_batch():
    class Fails(Numbers):
        def __getitem__(self, i):
            if i == self.n - 1:
                raise LookupError("the last one")
            return i

    options = {"num_workers": 4, "dispatch": "round_robin", "worker_init_fn": Streams()}
    with DataLoader(Fails(9), 1, **options) as loader:
        it = iter(loader)
        assert flat(next(it) for _ in range(8)) == list(range(8))
        with pytest.raises(LookupError, match="the last one"):
            next(it)
        assert not any(isinstance(event, ev.WorkerDied) for event in loader.events.recent())


class Exhausted(Channel):
    """A process that has as many open files as it may have, where a frame with descriptors must wait."""

    def send_all(self, frames, fds=()):
        if fds:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        super().send_all(frames, fds)


def test_too_few_descriptors_to_start_a_worker_is_an_error_that_names_the_limit(monkeypatch):
    with DataLoader(Numbers(4), 2, num_workers=1, multiprocessing_context="forkserver") as loader:
        with monkeypatch.context() as patched:
            patched.setattr(process_pool, "Channel", Exhausted)
            with pytest.raises(WorkerStartError, match=r"Too many open files.*RLIMIT_NOFILE"):
                list(loader)
        assert flat(loader) == list(range(4))


# ---- programs that look at torch's iterator


def test_an_iterator_lists_its_workers_and_one_that_is_killed_there_is_replaced():
    with DataLoader(Slow(200, wait=0.005), 2, num_workers=2) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        wait_for(lambda: loader.stats().ready)
        workers = epoch._workers
        assert [worker.pid for worker in workers] == all_pids(loader)
        assert [(worker.is_alive(), worker.exitcode) for worker in workers] == [(True, None)] * 2
        workers[0].kill()
        workers[0].join(d.PATIENCE)
        assert (workers[0].is_alive(), workers[0].exitcode) == (False, -signal.SIGKILL)
        workers[0].terminate()  # which does nothing any more
        got.extend(epoch)
        assert flat(got) == list(range(200))


def test_worker_threads_are_listed_and_cannot_be_killed():
    with DataLoader(Slow(40), 2, num_workers=2, workers="thread") as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        worker = epoch._workers[0]
        assert worker.pid == os.getpid()
        worker.kill()
        worker.join(0)
        assert worker.is_alive()
        got.extend(epoch)
        assert flat(got) == list(range(40))


# ---- much at once


def test_a_flood_of_output_blocks_nothing(capsys):
    class Loud(Numbers):
        def __getitem__(self, i):
            print("x" * 300_000, end="")
            print("y" * 300_000, file=sys.stderr)
            return i

    with DataLoader(Loud(8), 2, num_workers=2) as loader:
        assert flat(loader) == list(range(8))
    out, err = capsys.readouterr()
    assert out.count("x") == err.count("y") == 8 * 300_000


def test_final_output_without_a_newline_is_read_even_if_the_death_is_seen_first():
    """Which descriptor is read first is chance, so here the death is reported before anything was read."""
    pool, reports = ProcessPool("forkserver"), []
    theirs: list[int] = []
    with contextlib.ExitStack() as closing:
        closing.callback(close_all, theirs)
        ours: list[int] = []
        ends, others = connect(ours, theirs)
        handle = ProcessHandle(0, ends, ours)
        handle.lifeline, lifeline = os.pipe()
        ours.append(handle.lifeline)
        theirs.append(lifeline)
        for fd in handle.outputs:
            pool._selector.register(fd, selectors.EVENT_READ)
        os.write(others.stdout, b"x" * 65_536)
        os.write(others.stderr, b"one line\nlast words")
        pool._end(handle, 3, reports)
    pool.dispose()
    told = [(report.stream, report.text) for report in reports[:-1]]
    assert told == [("stdout", "x" * 65_536), ("stderr", "one line\n"), ("stderr", "last words")]
    assert handle.stderr_tail == "one line\nlast words"
    assert reports[-1].exitcode == 3


@pytest.mark.parametrize("size", [10, 80_000, 150_000])
def test_a_batch_that_arrived_before_its_worker_died_counts_even_if_the_death_is_seen_first(size):
    """Also if it takes several reads, or the first read gives another frame."""
    pool, reports = ProcessPool("forkserver"), []
    theirs: list[int] = []
    with contextlib.ExitStack() as closing:
        closing.callback(close_all, theirs)
        ours: list[int] = []
        ends, others = connect(ours, theirs)
        handle = ProcessHandle(0, ends, ours)
        handle.lifeline, lifeline = os.pipe()
        ours.append(handle.lifeline)
        theirs.append(lifeline)
        sender = Channel(socket.socket(fileno=os.dup(others.sock)), blocking=True)
        closing.callback(sender.close)
        sender.send(Kind.SEGMENT, (0).to_bytes(8, "little"), fds=(others.status,))
        header = BatchHeader(4, 7, NO_SEGMENT, size, 0)
        sender.send(Kind.BATCH, pack_header(*header), bytes(size))
        os.write(lifeline, zygote_process.LIFELINE.pack(~9))
        pool._read_lifeline(handle, handle.lifeline, reports)
    pool.dispose()
    done, gone = reports
    assert (done.epoch, done.job) == (4, 7)
    assert gone.exitcode == -9


def make_trouble(loader, stop, dice):
    """Restart, kill, pause and resume until `stop` is set; on a busy machine, wait until the last fault is handled."""
    moved = threading.Event()
    loader.events.subscribe(lambda event: moved.set() if isinstance(event, ev.BatchRecord) else None)
    while not stop.wait(0.01):
        if not moved.is_set():
            continue
        moved.clear()
        kind = dice.randrange(5)
        if kind == 0:
            loader.restart_workers([dice.randrange(3)])
        elif kind == 1 and (running := at_work(loader)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(running).pid, signal.SIGKILL)
        elif kind == 2:
            loader.pause()
            loader.stats()
            loader.resume()
        elif kind == 3:
            loader.restart_workers()


def given_up(error: WorkerDiedError) -> int:
    """The poisoned batch: three kills in a row may hit the same one."""
    return int(re.search(r"batch (\d+) ", str(error))[1])


def test_kills_restarts_pauses_and_second_iterators_together():
    """Chaos for some epochs: each of them is complete and in order."""
    stop = threading.Event()
    with DataLoader(Slow(200, wait=0.0005), 2, num_workers=3, max_restarts=10_000) as loader:
        thread = threading.Thread(target=make_trouble, args=(loader, stop, random.Random(7)))
        thread.start()
        try:
            for _ in range(4):
                epoch = iter(loader)
                got, early = rest(itertools.islice(epoch, 10), WorkerDiedError)
                with contextlib.suppress(WorkerDiedError):
                    next(iter(loader))
                batches, errors = rest(epoch, WorkerDiedError)
                lost = {i for error in early + errors for i in (2 * given_up(error), 2 * given_up(error) + 1)}
                assert flat(got + batches) == [i for i in range(200) if i not in lost]
                assert len(lost) < 20
        finally:
            stop.set()
            thread.join()
        assert flat(loader) == list(range(200))


def test_a_loader_inside_a_worker_of_another_loader():
    with DataLoader(d.Nested(3), 1, num_workers=2) as loader:
        assert flat(loader) == [15, 16, 17]


# ---- scripts: interrupts, ends, forks

SCRIPT = """
import os, signal, sys, threading, time
sys.path.insert(0, {tests!r})
from datasets import *
from light import Numbers, Slow  # workers without torch start in a tenth of the time
from nbloader import DataLoader
import psutil
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may have it ignored
"""


def script(code: str, tmp_path: pathlib.Path, **options) -> subprocess.CompletedProcess:
    return run_script(SCRIPT.format(tests=os.path.dirname(__file__)) + textwrap.dedent(code), tmp_path, **options)


def test_an_interrupt_ends_the_loop_at_once_and_the_loader_stays_usable(tmp_path):
    done = script(
        """
        loader = DataLoader(Slow(10, wait=3600), 2, num_workers=2)
        begun = time.monotonic()
        def interrupt():
            wait_for(lambda: any(w.batch is not None for w in loader.stats().workers))
            for worker in psutil.Process().children(recursive=True):  # as a terminal does
                os.kill(worker.pid, signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            for batch in loader:
                print("a batch?")
        except KeyboardInterrupt:
            print("interrupted")
        loader.reload(Numbers(6))
        print(flat(loader))
        """,
        tmp_path,
    )
    assert (done.stdout.splitlines(), done.stderr) == (["interrupted", "[0, 1, 2, 3, 4, 5]"], "")


@pytest.mark.parametrize("persistent", [False, True])
def test_after_interrupts_at_any_moment_the_loader_stays_usable(tmp_path, persistent):
    done = script(
        """
        loader = DataLoader(Numbers(400), 2, num_workers=2, persistent_workers=PERSISTENT)
        list(loader)
        interrupted = 0
        for number in range(60):
            arrived = threading.Event()

            def interrupt():  # again if it came in a finalizer: Python only prints what is raised there
                wait = 0.0005 * number
                while not arrived.wait(wait):
                    os.kill(os.getpid(), signal.SIGINT)
                    wait = 2

            thread = threading.Thread(target=interrupt)
            got = []
            try:
                thread.start()
                while True:
                    got = []
                    for batch in loader:
                        got.append(batch)
            except KeyboardInterrupt:
                arrived.set()
                interrupted += 1
            thread.join()
            assert flat(got) == list(range(2 * len(got))), got
        assert flat(loader) == list(range(400))
        wait_for(lambda: len(worker_processes()) == 2 * PERSISTENT)
        threads = [thread for thread in threading.enumerate() if thread.name != "nbloader-child"]  # one per worker
        print(interrupted, len(pids(loader)), len(threads))
        """.replace("PERSISTENT", str(persistent)),
        tmp_path,
        warnings="default",  # a socket that is being made when the interrupt comes is closed by the garbage collector
    )
    assert "Error" not in done.stderr.replace("ResourceWarning", "")
    assert done.stdout.split() == (["60", "2" if persistent else "0", "2"])


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_do_not_delay_the_shutdown_of_a_kernel(method):
    """ipykernel signals the children in its process group, and waits until they are reaped."""
    with DataLoader(Numbers(4), num_workers=1, multiprocessing_context=method, persistent_workers=True) as loader:
        next(iter(loader))
        [worker] = all_pids(loader)
        for pid in (worker, psutil.Process(worker).ppid()):
            assert os.getpgid(pid) != os.getpgrp()


def test_an_exception_of_a_signal_handler_counts_as_an_interrupt(monkeypatch):
    """Such as the TimeoutError of a handler that limits the time of a cell: between any two instructions."""
    take = Receiver.take

    def alarm(_signal, _frame):
        raise TimeoutError("too long")

    def interrupted(receiver):
        if take(receiver) is not None:
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, alarm)
    with DataLoader(Numbers(6), 2, num_workers=2) as loader, contextlib.ExitStack() as restored:
        restored.callback(signal.signal, signal.SIGALRM, before)
        it = iter(loader)
        with monkeypatch.context() as patched:
            patched.setattr(Receiver, "take", interrupted)
            with pytest.raises(TimeoutError, match="too long"):
                list(it)
        with pytest.raises(LoaderClosedError, match="ended by an interrupt"):
            next(it)
        assert flat(loader) == list(range(6))


@pytest.mark.portable
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_killed_notebook_leaves_no_process(tmp_path, method):
    done = script(
        f"""
        import light
        loader = DataLoader(light.Slow(10, wait=3600), 2, num_workers=2, multiprocessing_context={method!r})
        it = iter(loader)
        wait_for(lambda: sum(w.batch is not None for w in loader.stats().workers) == 2)
        print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert done.returncode == -9, done.stderr
    left = [int(pid) for pid in done.stdout.split()]
    assert len(left) >= 2
    wait_for(lambda: not any(map(alive, left)), "the end of all processes")


@pytest.mark.portable
def test_an_interpreter_that_exits_without_close_does_so_silently_and_soon(tmp_path):
    done = script(
        """
        loader = DataLoader(Slow(10, wait=3600), 2, num_workers=2)
        it = iter(loader)
        other = DataLoader(Numbers(10), 2, num_workers=2)
        half = iter(other)
        next(half)
        wait_for(lambda: sum(w.batch is not None for w in loader.stats().workers) == 2)
        print(*[p.pid for p in psutil.Process().children(recursive=True)], time.time(), flush=True)
        """,
        tmp_path,
    )
    ended = time.time()
    *left, at = done.stdout.split()
    assert (done.returncode, done.stderr) == (0, "")
    assert ended - float(at) < 60  # the samples take an hour
    wait_for(lambda: not any(alive(int(pid)) for pid in left), "the end of those that were killed")


def test_a_forked_child_gets_its_own_workers_and_the_parent_keeps_its_workers(tmp_path):
    done = script(
        """
        loader = DataLoader(Slow(60, wait=0.001), 2, num_workers=2)
        epoch = iter(loader)
        got = [next(epoch)]
        import warnings
        warnings.simplefilter("ignore")  # fork with threads
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            ok = flat(loader) == list(range(60))
            loader.close()
            os._exit(0 if ok else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        got.extend(epoch)
        print(flat(got) == list(range(60)), flat(loader) == list(range(60)))
        loader.close()
        """,
        tmp_path,
    )
    assert (done.stdout.split(), done.stderr) == (["0", "True", "True"], "")


def test_what_the_traceback_of_a_failed_cell_keeps_alive_is_released():
    """IPython keeps the last traceback, and with it the frame, the iterator and the batch."""
    loader = DataLoader(d.Raises(20, bad=7, error=KeyError), 2, num_workers=2)
    with pytest.raises(KeyError) as kept:
        for _batch in loader:
            pass
    assert flat(DataLoader(Numbers(4), 2)) == [0, 1, 2, 3]
    with pytest.raises(KeyError):
        list(loader)
    del kept
    loader.close()
    gc.collect()
    assert psutil.Process().num_fds() < 200
