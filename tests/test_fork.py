"""Workers that are forked from the notebook's process: `multiprocessing_context="fork"`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import importlib.util
import logging
import mmap
import multiprocessing
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import light
import numpy as np
import psutil
import pytest
import torch
from datasets import PATIENCE, Raises, alive, all_pids, flat, pids, run_script, wait_for

from nbloader import DataLoader, DatasetTransferError, WorkerStartError, get_worker_info
from nbloader._util import rng
from nbloader.loader import torch_compat
from nbloader.transport import forker
from nbloader.workers.reachable import holds_for_this_thread

pytestmark = [
    pytest.mark.skipif(not forker.SUPPORTED, reason="needs Linux and os.pidfd_open"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
FORK = {"num_workers": 1, "multiprocessing_context": "fork"}
SCRIPT = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"


def script(code, tmp_path):
    return run_script(SCRIPT + textwrap.dedent(code), tmp_path, warnings="ignore")


class Calls:
    """Calls a function for each sample."""

    def __init__(self, function, n=1, **attributes):
        self.function = function
        self.n = n
        vars(self).update(attributes)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.function(i)


def results(function, n=1, **arguments):
    """What a function returns in a forked worker."""
    with DataLoader(Calls(function, n), collate_fn=lambda samples: samples[0], **{**FORK, **arguments}) as loader:
        return list(loader)


# ---- what is inherited


def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_cannot_be_pickled_is_inherited(tmp_path):
    database = sqlite3.connect(tmp_path / "data.db", check_same_thread=False)
    database.execute("CREATE TABLE squares (i, square)")
    database.executemany("INSERT INTO squares VALUES (?, ?)", [(i, i * i) for i in range(9)])
    database.commit()
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("3.txt", "nine")
    path = tmp_path / "squares.py"
    path.write_text("def square(i): return i * i")
    spec = importlib.util.spec_from_file_location("squares_of_nowhere", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with (
        zipfile.ZipFile(tmp_path / "data.zip") as archive,
        open(tmp_path / "data.db", "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        generator = (i * i for i in range(3, 5))
        lock = threading.Lock()
        relu = torch.jit.trace(torch.nn.ReLU(), torch.tensor(1.0))
        compiled = torch.jit.script(square)
        samples = [
            lambda: database.execute("SELECT square FROM squares WHERE i = 3").fetchone()[0],
            lambda: archive.read("3.txt"),
            lambda: mapped[:6],
            lambda: file.read(6),
            lambda: next(generator),
            lambda: relu(torch.tensor(9.0)).item(),
            lambda: compiled(torch.tensor(3.0)).item(),
            lambda: module.square(3),
            lambda: lock.acquire(blocking=False),
        ]
        expected = [9, b"nine", b"SQLite", b"SQLite", 9, 9.0, 9.0, 9, True]
        assert results(lambda i: samples[i](), len(samples)) == expected
        assert next(generator) == 9  # the worker has advanced its own copy
        assert not lock.locked()
        for unpicklable in (generator, archive, mapped, file, database, compiled):
            with (
                DataLoader(
                    Calls(lambda i: i, held=unpicklable), num_workers=1, multiprocessing_context="forkserver"
                ) as loader,
                pytest.raises(DatasetTransferError, match='multiprocessing_context="fork"'),
            ):
                iter(loader)
    database.close()


def test_an_open_hdf5_file_is_inherited(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = np.arange(10)
        file.flush()
        assert results(lambda i: int(file["x"][i]), 3) == [0, 1, 2]


def test_an_open_lmdb_environment_is_inherited(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "data.lmdb")) as environment:
        with environment.begin(write=True) as transaction:
            transaction.put(b"key", b"value")
        assert results(lambda _: environment.begin().get(b"key")) == [b"value"]


def test_iterable_dataset_that_holds_a_generator():
    class Stream(torch.utils.data.IterableDataset):
        numbers = (i for i in range(5))

        def __iter__(self):
            yield from self.numbers

    with DataLoader(Stream(), 2, **FORK) as loader:
        assert [b.tolist() for b in loader] == [[0, 1], [2, 3], [4]]
        assert [b.tolist() for b in loader] == [[0, 1], [2, 3], [4]]  # new workers, as with torch


def test_state_of_the_process_is_inherited(monkeypatch):
    def state(_):
        return (
            torch.get_default_dtype(),
            light.Numbers.added,
            os.environ["NBLOADER_TEST"],
            ("error", FutureWarning) in [(action, category) for action, _, category, *_ in warnings.filters],
            logging.getLogger("nbloader.test").level,
            np.geterr()["under"],
            threading.current_thread() is threading.main_thread(),
            multiprocessing.parent_process().is_alive(),
            get_worker_info().id,
        )

    monkeypatch.setattr(light.Numbers, "added", "by a test", raising=False)
    monkeypatch.setattr(logging.getLogger("nbloader.test"), "level", 17)
    monkeypatch.setenv("NBLOADER_TEST", "before")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings(), np.errstate(under="raise"):
            warnings.simplefilter("error", FutureWarning)
            [inherited] = results(state)
    finally:
        torch.set_default_dtype(before)
    assert [inherited] == [(torch.float64, "by a test", "before", True, 17, "raise", True, True, 0)]


def test_each_epoch_has_new_workers_and_persistent_workers_stay(tmp_path):
    inits = tmp_path / "inits"

    def init(_):
        with inits.open("a") as file:
            file.write("x")

    def epoch(loader):
        return [
            (value, pid) for values, pids in loader for value, pid in zip(values.tolist(), pids.tolist(), strict=True)
        ]

    dataset = Calls(lambda i: (dataset.base + i, os.getpid()), 4, base=0)
    how = {"worker_init_fn": init, "multiprocessing_context": "fork", "num_workers": 1}
    with DataLoader(dataset, 2, **how) as loader:
        first = epoch(loader)
        half = iter(loader)
        next(half)
        dataset.base = 10
        second = epoch(loader)  # while another iteration is open
        assert [value for value, _pid in first + second] == [0, 1, 2, 3, 10, 11, 12, 13]
        assert inits.read_text() == 3 * "x"
        assert {pid for _value, pid in first}.isdisjoint(pid for _value, pid in second)
        del half
        wait_for(lambda: not pids(loader), "the end of the workers with their last iteration")
    with DataLoader(dataset, 2, **how, persistent_workers=True) as loader:
        first = epoch(loader)
        dataset.base = 20
        assert epoch(loader) == first
        assert inits.read_text() == 4 * "x"


def test_fork_is_used_when_it_is_asked_for(monkeypatch):
    for context in ("fork", multiprocessing.get_context("fork")):
        with DataLoader(light.Numbers(2), num_workers=1, multiprocessing_context=context) as loader:
            assert loader.multiprocessing_context.get_start_method() == "fork"
            assert torch_compat.start_method(loader.multiprocessing_context) == "fork"
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "fork")
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["forkserver", "fork"])
    assert torch_compat.start_method(None) == "fork"
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["fork", "forkserver"])
    assert torch_compat.start_method(None) == "forkserver"  # it may be no more than the default
    monkeypatch.setattr(forker, "SUPPORTED", False)
    with pytest.warns(UserWarning, match="forkserver"):
        assert torch_compat.start_method(multiprocessing.get_context("fork")) == "forkserver"


@pytest.fixture
def squares(tmp_path):
    """Opens a database with the squares of 0 to 99, with the default options."""
    with sqlite3.connect(tmp_path / "squares.db") as connection:
        connection.execute("CREATE TABLE squares (i, square)")
        connection.executemany("INSERT INTO squares VALUES (?, ?)", [(i, i * i) for i in range(100)])
    connection.close()
    opened = []

    def connect():
        opened.append(sqlite3.connect(tmp_path / "squares.db"))
        return opened[-1]

    yield connect
    for connection in opened:
        with contextlib.suppress(sqlite3.ProgrammingError):  # another thread has opened and closed it
            connection.close()


class Squares(Calls):
    """Reads them. If no row is there, computes with two threads of OpenMP."""

    def __init__(self, connection):
        super().__init__(self.read, 60, connection=connection)

    def read(self, i):
        torch.set_num_threads(2)
        assert torch.ones(1_000_000).exp().sum() > 0
        return self.connection.execute("SELECT square FROM squares WHERE i = ?", [i]).fetchone()[0], os.getpid()


def died(loader):
    return [event for event in loader.events.recent() if type(event).__name__ == "WorkerDied"]


def test_a_connection_of_sqlite3_with_default_options(squares):
    """Only the thread that opened it may use it: that thread forks, also to replace a worker, after the next wait."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.ones(1_000_000).exp().sum() > 0  # this thread has threads of OpenMP
        with DataLoader(Squares(squares()), 2, prefetch_factor=1, **FORK) as loader:
            epoch = iter(loader)
            got = [next(epoch)]
            stack = loader.stack(0)
            assert stack.endswith((" in become_worker\n", "of nbloader]\n"))  # without the frames of this test
            os.kill(all_pids(loader)[0], signal.SIGKILL)
            wait_for(lambda: died(loader), "the supervisor to see the end of the worker")
            assert pids(loader) == []
            got.append(next(epoch))
            loader.num_workers = 2
            while len(pids(loader)) < 2:
                got.append(next(epoch))
            loader.restart_workers()
            wait_for(lambda: len(died(loader)) == 3)
            got += epoch
            assert flat(squares for squares, _pids in got) == [i * i for i in range(60)]
            assert len({pid for _squares, pids in got for pid in pids.tolist()}) > 2
            assert os.getpid() not in {pid for _squares, pids in got for pid in pids.tolist()}
    finally:
        torch.set_num_threads(threads)


def test_a_connection_of_sqlite3_that_another_thread_has_opened(squares):
    """It works where that thread iterates the loader. Elsewhere an error names the way out, as in worker threads."""

    def read():
        connection = squares()
        with DataLoader(Squares(connection), 20, **FORK) as loader:
            return flat(squares for squares, _pids in loader), connection

    with ThreadPoolExecutor(1) as pool:
        read_there, connection = pool.submit(read).result()
        assert read_there == [i * i for i in range(60)]
        for how in (FORK, {"num_workers": 1, "workers": "thread"}):
            with DataLoader(Squares(connection), 2, **how) as loader, pytest.raises(sqlite3.ProgrammingError) as raised:
                next(iter(loader))
            assert "check_same_thread=False" in "\n".join(raised.value.__notes__)
        pool.submit(connection.close).result()


def test_where_a_connection_is_found(tmp_path):
    bound, free = sqlite3.connect(":memory:"), sqlite3.connect(":memory:", check_same_thread=False)
    namespace = {"connection": bound}
    exec("def read(i): return connection.execute('SELECT 1')\nclass Reads:\n  __getitem__ = read", namespace)
    cursor = bound.cursor()
    for found in (bound, [bound], {"a": [free, bound]}, lambda: cursor, namespace["read"], namespace["Reads"]()):
        assert holds_for_this_thread(None, found)
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(holds_for_this_thread, bound).result()
    bound.close()
    for found in (bound, free, [free], None):
        assert not holds_for_this_thread(found)
    free.close()


# ---- the fallback for what cannot be pickled


class RefusesToBePickled(light.Numbers):
    def __getstate__(self):
        raise LookupError("nobody pickles me")


@pytest.mark.leaves_behind("a descriptor of multiprocessing's heap")
def test_workers_are_forked_if_the_dataset_cannot_be_pickled(squares):
    """As in torch, where they are always forked, and with one warning."""
    value = multiprocessing.get_context("fork").Value("i", 5)
    number = Calls(lambda i: (value.value + i, os.getpid()), 2)
    connection = squares()  # only this thread may use it
    reads = Calls(lambda i: (connection.execute("SELECT ?", [i]).fetchone()[0], os.getpid()), 2)
    refuses = Calls(lambda i: (i, os.getpid()), 2, held=RefusesToBePickled(1))
    for dataset, persistent, first, why in (
        (reads, False, [0, 1], r"attribute 'function' \(function\) .* 'sqlite3.Connection' object"),
        (number, True, [5, 6], "a lock of multiprocessing's fork context"),
        (refuses, False, [0, 1], r"attribute 'held' \(RefusesToBePickled\) .*\(LookupError: nobody pickles me\)"),
    ):
        workers = set()
        with (
            DataLoader(dataset, 2, num_workers=1, persistent_workers=persistent) as loader,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            for epoch in range(2):
                if dataset is number:
                    value.value = 5 + epoch
                if dataset is refuses:
                    dataset.function = lambda i, epoch=epoch: (i + epoch, os.getpid())
                ((numbers, pids_seen),) = loader
                moved = 0 if dataset is reads else epoch
                assert numbers.tolist() == [i + moved for i in first]
                workers |= set(pids_seen.tolist())
        (warning,) = [str(warning.message) for warning in caught]
        assert re.match(rf"the dataset \(Calls\).* {why}.*: workers are forked", warning)
        assert os.getpid() not in workers
        assert len(workers) == (1 if persistent else 2)


@pytest.mark.filterwarnings("ignore:.*workers are forked")
def test_reload_between_datasets_that_can_and_cannot_be_pickled(squares):
    """In mid-epoch: workers of the fork server give way to forked ones, and these to others."""
    with DataLoader(light.Slow(60, wait=0.002), 2, num_workers=1, prefetch_factor=1) as loader:
        epoch = iter(loader)
        got = next(epoch).tolist()
        loader.reload(Squares(squares()))  # only this thread may use its connection: it forks in its next wait
        seen = []
        while not seen:
            batch = next(epoch)
            seen = batch if isinstance(batch, list) else []
            got += [i * i for i in batch.tolist()] if not seen else batch[0].tolist()
        assert set(seen[1].tolist()) == set(pids(loader))
        loader.reload(light.Numbers(60))
        for batch in epoch:
            got += batch[0].tolist() if isinstance(batch, list) else [i * i for i in batch.tolist()]
        assert got == [i * i for i in range(60)]
        loader.refresh()
        assert flat(loader) == list(range(60))


@pytest.mark.parametrize("default", ["fork", "forkserver"])  # the latter since Python 3.14
def test_workers_are_not_forked_if_another_start_method_may_have_been_selected(default, monkeypatch):
    monkeypatch.setattr(forker, "SUPPORTED", True)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: [default])
    for method, allowed in ((None, True), ("fork", True), ("forkserver", False), ("spawn", False)):
        monkeypatch.setattr(multiprocessing, "get_start_method", lambda method=method, **_: method)
        assert torch_compat.may_fork(None) == allowed


def test_it_is_an_error_where_workers_must_not_be_forked_or_it_does_not_help(monkeypatch):
    refuses = RefusesToBePickled(2)
    for dataset, arguments in (
        (refuses, {"multiprocessing_context": "forkserver"}),
        (refuses, {"multiprocessing_context": "spawn"}),
        ((i for i in range(2)), {}),  # each worker would yield all of it
    ):
        with DataLoader(dataset, num_workers=1, **arguments) as loader, pytest.raises(DatasetTransferError):
            iter(loader)
    assert torch_compat.may_fork(None)
    assert not torch_compat.may_fork(multiprocessing.get_context("fork"))
    monkeypatch.setattr(forker, "SUPPORTED", False)
    with DataLoader(refuses, num_workers=1) as loader, pytest.raises(DatasetTransferError, match="nobody pickles me"):
        iter(loader)


def test_a_forked_process_keeps_the_batches_that_it_inherits():
    """Also when this process drops them: their memory, in a segment or in a slab, is not written again."""
    for size in (8, 8000):
        data = np.arange(40 * size, dtype=np.float32).reshape(40, size)
        with DataLoader(data, 4, num_workers=1, persistent_workers=True) as loader:
            epoch = iter(loader)
            batch = next(epoch)
            (worker,) = loader._engine._group.pool.handles.values()
            lent = set(worker.segments._lent)
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(write)
                os.read(read, 1)
                os._exit(0 if batch.numpy().tobytes() == data[:4].tobytes() else 1)
            del batch
            for _ in range(3):
                for batch in epoch:
                    del batch
                epoch = iter(loader)
            os.close(read)
            os.close(write)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert bool(lent) == (size == 8000)
            assert lent.isdisjoint(worker.segments._maps), "both processes have released the segment"


# ---- what must not be inherited


def test_a_worker_of_a_process_that_has_used_openmp_may_use_it():
    """The forked copy of a thread that has used it would wait forever for its threads."""
    threads = torch.get_num_threads()

    def compute(_):
        torch.set_num_threads(2)
        return torch.ones(1_000_000).exp().sum().item() > 0

    try:
        torch.set_num_threads(2)
        assert compute(0)
        assert results(compute) == [True]
    finally:
        torch.set_num_threads(threads)


def test_locks_that_other_threads_of_the_notebook_hold_now_and_then(tmp_path):
    """Each thread is nearly always inside of what it does: without care, a worker would hang nearly always."""
    handler = logging.FileHandler(tmp_path / "log")
    stop = threading.Event()
    log = logging.getLogger("nbloader.test")
    log.addHandler(handler)
    log.propagate = False

    def repeat(function):
        while not stop.is_set():
            function()

    def sample(i):
        log.warning("from a worker")
        np.random.rand(3)
        return i

    busy = (lambda: log.warning("from a thread"), lambda: np.random.rand(1_000_000))
    threads = [threading.Thread(target=repeat, args=(function,)) for function in busy]
    for thread in threads:
        thread.start()
    try:
        for _epoch in range(5):
            assert results(sample, 2) == [0, 1]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        log.removeHandler(handler)
        log.propagate = True
        handler.close()
    assert (tmp_path / "log").read_text().count("from a worker") == 10


def test_a_worker_is_forked_while_no_thread_draws_from_the_global_generator_of_torch():
    """One thread draws, and another computes in Python: it takes the interpreter lock whenever it can get it."""
    stop = threading.Event()
    drawn = torch.empty(1_000_000)

    def repeat(function, *arguments):
        while not stop.is_set():
            function(*arguments)

    threads = [threading.Thread(target=repeat, args=args) for args in ((drawn.uniform_,), (sum, range(100)))]
    forks = forker.Forker()
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            process = forks.fork(lambda: torch.manual_seed(7))
            forks.unclaimed.clear()
            try:
                assert process.wait(PATIENCE) == 0
            finally:
                os.close(process.fd)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        forks.close()


def test_a_worker_that_hangs_in_its_set_up_is_replaced(tmp_path, monkeypatch):
    """It waits for a lock that is not known here, until its limit is over. The user's code has no limit."""
    left = tmp_path / "left"
    held = threading.Lock()
    held.acquire()

    def seed(_):
        if not left.exists():
            left.write_text(str(signal.getitimer(signal.ITIMER_REAL)[0]))
            signal.setitimer(signal.ITIMER_REAL, 1e-6)
            held.acquire()

    monkeypatch.setattr(rng, "seed_everything", seed)
    with DataLoader(Calls(lambda _: signal.getitimer(signal.ITIMER_REAL)[0], 4), **FORK) as loader:
        assert flat(loader) == [0, 0, 0, 0]
        assert 0 < float(left.read_text()) <= forker.SETUP_LIMIT
        [died] = [e for e in loader.events.recent() if type(e).__name__ == "WorkerDied" and not e.expected]
        assert died.exitcode == -signal.SIGALRM


def test_a_module_that_another_thread_is_importing_does_not_block_a_worker(tmp_path, monkeypatch):
    (tmp_path / "half_imported.py").write_text(
        "import sys\nfirst = 1\nsys.nbloader_reached.set()\nsys.nbloader_go.wait()\nsecond = 2\n"
    )
    reached, go = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "nbloader_reached", reached, raising=False)
    monkeypatch.setattr(sys, "nbloader_go", go, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    thread = threading.Thread(target=importlib.import_module, args=("half_imported",))
    thread.start()
    try:
        reached.wait()
        assert results(lambda _: importlib.import_module("half_imported").first) == [1]
    finally:
        go.set()
        thread.join()


def test_what_a_worker_logs_to_the_standard_error_of_the_notebook_appears_as_its_own(capfd):
    log = logging.getLogger("nbloader.test")
    handler = logging.StreamHandler(sys.stderr)
    log.addHandler(handler)
    log.propagate = False
    try:
        assert results(lambda i: log.warning("from worker %s", get_worker_info().id) or i) == [0]
    finally:
        log.removeHandler(handler)
        log.propagate = True
    assert capfd.readouterr().err == "from worker 0\n"


def test_a_notebook_without_standard_streams(tmp_path):
    done = script(
        """
        import os, pathlib
        for fd in (0, 1, 2):
            os.close(fd)
        from datasets import flat
        from nbloader import DataLoader
        import light
        with DataLoader(light.Numbers(4), 2, num_workers=2, multiprocessing_context="fork") as loader:
            pathlib.Path("result").write_text(repr(flat(loader)))
        """,
        tmp_path,
    )
    assert (done.returncode, (tmp_path / "result").read_text()) == (0, "[0, 1, 2, 3]")


def test_a_worker_runs_no_signal_handler_of_the_notebook():
    def handlers(_):
        wakeup = signal.set_wakeup_fd(-1)
        now = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
        return now, wakeup, signal.pthread_sigmask(signal.SIG_BLOCK, [])

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    ignored = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    try:
        expected = [signal.SIG_IGN, signal.SIG_DFL, signal.SIG_IGN], -1, signal.pthread_sigmask(signal.SIG_BLOCK, [])
        assert results(handlers) == [expected]
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGUSR1, ignored)
        os.close(read)
        os.close(write)


def test_workers_hold_no_end_of_the_connections_of_others():
    def sockets(_):
        return {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if alive_fd(fd)}

    def alive_fd(fd):
        return os.path.lexists(f"/proc/self/fd/{fd}")

    with DataLoader(light.Numbers(2), num_workers=1) as other, DataLoader(light.Numbers(2), num_workers=1) as spare:
        assert flat(other) == [0, 1]
        pools = [loader._engine._group.pool for loader in (other, spare) if loader._engine._group.pool is not None]
        how = {"collate_fn": list, "dispatch": "round_robin", "multiprocessing_context": "fork"}
        with DataLoader(Calls(sockets, 2), num_workers=2, **how) as loader:
            epoch = iter(loader)
            wait_for(lambda: len(pids(loader)) == 2)
            pools.append(loader._engine._group.pool)
            ours = {
                os.readlink(f"/proc/self/fd/{fd}")
                for pool in pools
                for handle in pool.handles.values()
                for fd in (handle.channel.fileno(), *handle.outputs, handle.stack_pipe.fd)
            }
            assert len(ours) == 12
            for [found] in epoch:
                assert {name for name in found & ours if name.startswith("socket")} == set()


def test_what_a_worker_drops_of_its_parent_leaves_the_parent_alone():
    """A dataset may refer to a loader: in a worker its finalizers must not end workers of the notebook."""

    def drop(_):
        held.clear()
        gc.unfreeze()
        gc.collect()
        return len(held)

    other = DataLoader(light.Numbers(100), 2, num_workers=1)
    held = [other, iter(other)]
    first = next(held[1])
    assert results(drop) == [0]
    assert flat([first, *held[1]]) == list(range(100))
    assert flat(held[0]) == list(range(100))
    other.close()


def test_an_interpreter_that_exits_leaves_no_worker_and_runs_its_handlers_once(tmp_path):
    done = script(
        """
        import atexit, multiprocessing.util, os, psutil, sys, weakref
        from datasets import wait_for
        from nbloader import DataLoader
        import light

        class Kept:
            pass
        kept = Kept()
        weakref.finalize(kept, print, "finalized")
        multiprocessing.util.Finalize(None, print, ("ended",), exitpriority=1)
        atexit.register(print, "exit")
        unwritten = open("unwritten", "w")
        unwritten.write("once")
        print("begin")
        class Slow(light.Slow):
            def __getitem__(self, i):
                print("sample")
                return super().__getitem__(i)
        loader = DataLoader(Slow(10, wait=3600), 2, num_workers=2, multiprocessing_context="fork")
        epoch = iter(loader)
        wait_for(lambda: sum(w.batch is not None for w in loader.stats().workers) == 2)
        print(*[p.pid for p in psutil.Process().children()])
        """,
        tmp_path,
    )
    begin, *lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, begin) == (0, "", "begin")
    assert sorted(line for line in lines if line != "sample" and not line[0].isdigit()) == [
        "ended",
        "exit",
        "finalized",
    ]
    left = [int(pid) for line in lines if line[0].isdigit() for pid in line.split()]
    assert len(left) == 2
    assert not any(map(alive, left))
    assert (tmp_path / "unwritten").read_text() == "once"


# ---- faults


def test_a_killed_worker_is_replaced_by_a_copy_of_the_process_as_it_is_then():
    seen = SimpleNamespace(generation=0)
    dataset = Calls(lambda i: (i, seen.generation), 40)
    with DataLoader(dataset, 2, prefetch_factor=1, **FORK) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        [pid] = all_pids(loader)
        seen.generation = 1
        os.kill(pid, signal.SIGKILL)
        got += epoch
        assert flat([b[0] for b in got]) == list(range(40))
        assert flat([got[0][1]]) == [0, 0]
        assert flat([got[-1][1]]) == [1, 1]
        [died] = [e for e in loader.events.recent() if type(e).__name__ == "WorkerDied" and not e.expected]
        assert (died.pid, died.exitcode) == (pid, -signal.SIGKILL)
        assert not psutil.pid_exists(pid)


def test_a_hanging_worker_is_restarted_after_the_timeout(tmp_path):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    data = light.Hangs(8, bad=1, flag=str(flag), hung=str(hung), how=light.hang_in_c)

    def stop_hanging():
        wait_for(hung.exists)
        flag.unlink()

    thread = threading.Thread(target=stop_hanging)
    thread.start()
    with DataLoader(data, 2, timeout=1, on_timeout="restart", **FORK) as loader:
        assert flat(loader) == list(range(8))
    thread.join()


def test_exceptions_and_exit_codes_of_workers():
    with DataLoader(Raises(8, bad=3, error=KeyError), 2, **FORK) as loader:
        epoch = iter(loader)
        assert next(epoch).tolist() == [0, 1]
        with pytest.raises(KeyError) as raised:
            next(epoch)
        assert "__getitem__" in str(raised.value.__cause__)
        assert flat(epoch) == [4, 5, 6, 7]
    with (
        DataLoader(light.Numbers(4), 2, worker_init_fn=lambda _: sys.exit(7), **FORK) as loader,
        pytest.raises(WorkerStartError, match="exited with code 7"),
    ):
        next(iter(loader))


def test_resize_reload_and_restart_in_an_epoch():
    with DataLoader(light.Slow(60, wait=0.002), 2, **FORK) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        loader.num_workers = 2
        wait_for(lambda: len(pids(loader)) == 2)
        before = set(pids(loader))
        loader.restart_workers()
        got.append(next(epoch))
        wait_for(lambda: len(set(pids(loader)) - before) == 2)
        loader.reload(light.Slow(60, wait=0))
        loader.num_workers = 1
        got += epoch
        assert flat(got) == list(range(60))


def test_no_memory_for_another_process_is_an_error(monkeypatch):
    def fork():
        ctypes.set_errno(errno.ENOMEM)
        return -1

    monkeypatch.setattr(forker, "_c_library", lambda: SimpleNamespace(usleep=time.sleep, fork=fork))
    monkeypatch.setattr(forker, "LOCK_PAUSE_US", 0)
    with DataLoader(light.Numbers(4), **FORK) as loader, pytest.raises(WorkerStartError, match="Cannot allocate"):
        iter(loader)


def test_a_worker_that_was_forked_during_an_interrupt_is_ended(monkeypatch):
    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            super().wait(timeout)
            raise KeyboardInterrupt

    forks = forker.Forker()
    monkeypatch.setattr(forker.threading, "Event", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        forks.fork(signal.pause)
    [process] = forks.unclaimed
    assert alive(process.pid)
    forks.close()
    assert not psutil.pid_exists(process.pid)
    assert process.returncode == -signal.SIGKILL


def test_an_interrupt_between_the_fork_and_its_end_leaves_no_process(monkeypatch):
    made = []

    def interrupted(pid):
        made.append(pid)
        raise KeyboardInterrupt

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    forks = forker.Forker()
    monkeypatch.setattr(forker, "ForkedProcess", interrupted)
    with pytest.raises(KeyboardInterrupt):
        forks.fork_here(signal.pause)
    assert not psutil.pid_exists(made[0])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    assert gc.isenabled()
    forks.close()


def test_workers_end_with_the_thread_that_forked_them():
    """The kernel kills them when the notebook is killed, even those that hang in C code."""
    read, write = os.pipe()

    def wait():
        os.close(read)
        os.write(write, b"x")
        signal.pause()

    forks = forker.Forker()
    process = forks.fork(wait)
    forks.unclaimed.clear()
    assert os.read(read, 1) == b"x"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    forks.close()
    assert process.wait() == process.wait(0) == -signal.SIGKILL
    for fd in (process.fd, read, write):
        os.close(fd)


# ---- nested


def test_loaders_in_forked_processes_and_in_forked_workers(tmp_path):
    done = script(
        """
        import multiprocessing
        from datasets import flat
        from nbloader import DataLoader
        import light

        class Nested(light.Numbers):
            def __getitem__(self, i):
                with DataLoader(light.Numbers(4), 2, num_workers=1, multiprocessing_context="fork") as inner:
                    return sum(flat(inner)) + sum(flat(shared)) + i

        shared = DataLoader(light.Numbers(3), num_workers=1, multiprocessing_context="fork")

        def rank():
            print(flat(loader), flush=True)
            loader.close()

        loader = DataLoader(Nested(2), num_workers=1, multiprocessing_context="fork")
        epoch = iter(loader)
        first = next(epoch)
        process = multiprocessing.get_context("fork").Process(target=rank, daemon=True)
        process.start()
        process.join()
        print(flat([first, *epoch]), process.exitcode)
        """,
        tmp_path,
    )
    assert (done.stdout.splitlines(), done.stderr) == (["[9, 10]", "[9, 10] 0"], "")
