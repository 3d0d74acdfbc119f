"""Workers are forked from a zygote: the notebook's process as it was when the epoch began."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import importlib.util
import itertools
import logging
import mmap
import multiprocessing
import os
import pathlib
import re
import signal
import socket
import sqlite3
import sys
import textwrap
import threading
import time
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor

import light
import numpy as np
import psutil
import pytest
import torch
from datasets import Raises, alive, all_pids, flat, pids, run_script, wait_for, worker_processes, zygotes

from nbloader import DataLoader, DatasetTransferError, WorkerStartError, get_worker_info
from nbloader import events as ev
from nbloader._platform import CAN_FORK, forking
from nbloader.loader import torch_compat
from nbloader.workers.process_pool import ProcessPool

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="needs Linux and os.pidfd_open")
METHODS = ["fork", "forkserver"]
SCRIPT = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"


def script(code, tmp_path, **options):
    return run_script(SCRIPT + textwrap.dedent(code), tmp_path, **options)


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
    options = {"num_workers": 1, "collate_fn": lambda samples: samples[0], **arguments}
    with DataLoader(Calls(function, n), **options) as loader:
        return list(loader)


# ---- what is inherited


def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


@pytest.mark.filterwarnings("ignore:.*torch.jit")
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

    with DataLoader(Stream(), 2, num_workers=1) as loader:
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


# ---- the state at the beginning of an epoch


class Generations:
    """Each sample is the generation in which its worker was forked, and the worker's process."""

    def __init__(self, n=8):
        self.n = n
        self.generation = 0

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.generation, os.getpid()


def generations(batches):
    return [int(generation) for generations, _pids in batches for generation in generations]


def died(loader):
    return [event for event in loader.events.recent() if type(event).__name__ == "WorkerDied"]


def test_each_epoch_has_new_workers_with_the_state_at_its_beginning(tmp_path):
    inits = tmp_path / "inits"

    def init(_):
        with inits.open("a") as file:
            file.write("x")

    dataset = Generations()
    with DataLoader(dataset, 2, num_workers=1, worker_init_fn=init) as loader:
        for generation in range(3):
            dataset.generation = generation
            assert generations(loader) == [generation] * 8
        assert inits.read_text() == 3 * "x"
        half = iter(loader)
        next(half)
        assert pids(loader)
        del half
        wait_for(lambda: not pids(loader), "the end of the workers with their last iteration")


def test_an_iteration_keeps_its_state_while_another_one_begins():
    dataset = Generations(100)
    with DataLoader(dataset, 2, num_workers=1, prefetch_factor=1) as loader:
        earlier = iter(loader)
        first = next(earlier)
        dataset.generation = 1
        assert generations(loader) == [1] * 100
        assert generations([first, *earlier]) == [0] * 100


def test_persistent_workers_keep_the_state_until_the_dataset_is_reloaded():
    dataset = Generations()
    with DataLoader(dataset, 2, num_workers=2, persistent_workers=True) as loader:
        assert generations(loader) == [0] * 8
        before = all_pids(loader)
        dataset.generation = 1
        with pytest.warns(UserWarning, match="`generation` .* changed after the dataset was sent"):
            assert generations(loader) == [0] * 8
        assert all_pids(loader) == before
        os.kill(before[0], signal.SIGKILL)
        wait_for(lambda: len(died(loader)) == 1)
        assert generations(loader) == [0] * 8, "its replacement has the state of the others"
        loader.restart_workers()
        assert generations(loader) == [0] * 8, "so have workers that are restarted"
        loader.reload()
        assert generations(loader) == [1] * 8


def kill_one(loader):
    os.kill(all_pids(loader)[0], signal.SIGKILL)


def add_one(loader):
    loader.num_workers += 1


def restart_one(loader):
    loader.restart_workers([0])


@pytest.mark.parametrize("consumer_waits", [False, True])
@pytest.mark.parametrize("start", [kill_one, add_one, restart_one], ids=lambda start: start.__name__)
def test_a_worker_that_starts_later_has_the_state_of_the_others(start, consumer_waits):
    """It is also started while the cell is busy with something else."""
    dataset = Generations(1_000_000)
    with DataLoader(dataset, 2, num_workers=2, prefetch_factor=1) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        before = set(all_pids(loader))
        dataset.generation = 1
        start(loader)
        if not consumer_waits:
            wait_for(lambda: set(pids(loader)) - before, "the start of a worker while the consumer is away")
        while before.issuperset(got[-1][1].tolist()):
            got.append(next(epoch))
        assert set(generations(got)) == {0}
        assert next(iter(loader))[0].tolist() == [1, 1]


def test_reload_in_the_middle_of_an_epoch_gives_all_workers_the_present_state():
    dataset = Generations(1_000_000)
    with DataLoader(dataset, 2, num_workers=2, prefetch_factor=1) as loader:
        epoch = iter(loader)
        assert next(epoch)[0].tolist() == [0, 0]
        dataset.generation = 1
        loader.reload()
        for _ in range(100):  # some were ready before, perhaps later ones than the next
            next(epoch)
        assert set(generations(next(epoch) for _ in range(20))) == {1}


# ---- start methods


def test_fork_is_used_when_it_is_asked_for():
    for context in ("fork", multiprocessing.get_context("fork")):
        with DataLoader(light.Numbers(2), num_workers=1, multiprocessing_context=context) as loader:
            assert loader.multiprocessing_context.get_start_method() == "fork"
            assert torch_compat.start_method(loader.multiprocessing_context) == "fork"


def test_workers_are_clean_where_python_lacks_what_a_fork_needs(tmp_path):
    done = script(
        """
        import os
        del os.pidfd_open  # as in builds for old kernels
        import warnings
        from datasets import flat
        from nbloader import DataLoader, DatasetTransferError
        import light

        class RefusesToBePickled(light.Numbers):
            def __getstate__(self):
                raise LookupError("nobody pickles me")

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with DataLoader(light.Numbers(4), 2, num_workers=1, multiprocessing_context="fork") as loader:
                print(flat(loader) == [0, 1, 2, 3])
        print(["forkserver" in str(warning.message) for warning in caught])
        with DataLoader(RefusesToBePickled(2), num_workers=1) as loader:
            try:
                iter(loader)
            except DatasetTransferError as error:
                print(str(error.__cause__ or error))
        """,
        tmp_path,
    )
    assert done.stdout.splitlines()[:2] == ["True", "[True]"], done.stderr
    assert "nobody pickles me" in done.stdout


@pytest.mark.parametrize("default", ["fork", "forkserver"])  # the latter since Python 3.14
def test_the_start_method_of_multiprocessing_is_respected_if_it_was_selected(default, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: [default])
    for method in (None, "fork", "forkserver", "spawn"):
        monkeypatch.setattr(multiprocessing, "get_start_method", lambda method=method, **_: method)
        selected = method not in (None, default)
        assert torch_compat.start_method(None) == (method if selected else "fork")
        assert torch_compat.may_heal(None) != selected


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("how", ["set_start_method", "context"])
def test_workers_have_the_state_of_this_process_only_if_they_are_forked(method, how, tmp_path):
    done = script(
        f"""
        import multiprocessing, sys
        from nbloader import DataLoader
        import light

        class Settings(light.Numbers):
            def __getitem__(self, i):
                return getattr(sys, "of_the_notebook", "none")

        if __name__ == "__main__":
            sys.of_the_notebook = "changed"
            options = {{}}
            if {how!r} == "context":
                options["multiprocessing_context"] = {method!r}
            else:
                multiprocessing.set_start_method({method!r})
            with DataLoader(Settings(2), 2, num_workers=1, **options) as loader:
                print(*loader)
        """,
        tmp_path,
    )
    # Where a method is the default of `multiprocessing`, its selection cannot be noticed: forkserver since Python 3.14.
    selected = how == "context" or method != multiprocessing.get_all_start_methods()[0]
    value = "none" if selected and method != "fork" else "changed"
    assert (done.stdout, done.stderr) == (f"[{value!r}, {value!r}]\n", "")


def test_forking_beside_other_threads_is_no_warning(tmp_path):
    """Python 3.12 and newer warn of `os.fork()` there."""
    done = script(
        """
        import threading
        from datasets import flat
        from nbloader import DataLoader
        import light

        stop = threading.Event()
        threading.Thread(target=stop.wait).start()
        with DataLoader(light.Numbers(8), 2, num_workers=2) as loader:
            print(flat(loader), flat(loader))
        stop.set()
        """,
        tmp_path,
    )
    assert (done.stdout, done.stderr) == (f"{list(range(8))} {list(range(8))}\n", "")


# ---- connections of sqlite3


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


def openmp_threads():
    """Two, or one where this thread's threads of OpenMP cannot be ended before a fork: in torch before 2.5 or so."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    libraries = {line.split()[-1] for line in lines if "/libgomp" in line}
    return 2 if all(hasattr(ctypes.CDLL(path), "omp_pause_resource_all") for path in libraries) else 1


class Squares(Calls):
    """Reads them. If no row is there, computes with two threads of OpenMP."""

    def __init__(self, connection):
        super().__init__(self.read, 60, connection=connection)

    def read(self, i):
        torch.set_num_threads(openmp_threads())
        assert torch.ones(1_000_000).exp().sum() > 0
        return self.connection.execute("SELECT square FROM squares WHERE i = ?", [i]).fetchone()[0], os.getpid()


def test_a_connection_of_sqlite3_with_default_options(squares):
    """Only the thread that opened it may use it: that thread forks the zygote."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(openmp_threads())
        assert torch.ones(1_000_000).exp().sum() > 0  # this thread has threads of OpenMP
        with DataLoader(Squares(squares()), 2, prefetch_factor=1, num_workers=1) as loader:
            epoch = iter(loader)
            got = [next(epoch)]
            stack = loader.stack(0)
            assert stack.endswith((" in become_worker\n", "of nbloader]\n"))  # without the frames of this test
            os.kill(all_pids(loader)[0], signal.SIGKILL)
            wait_for(lambda: died(loader), "the supervisor to see the end of the worker")
            wait_for(lambda: pids(loader), "another worker while the consumer is away")
            first = set(got[0][1].tolist())
            while first.issuperset(got[-1][1].tolist()):  # some batches may have been ready
                got.append(next(epoch))
            loader.num_workers = 2
            wait_for(lambda: len(pids(loader)) == 2)
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
        with DataLoader(Squares(connection), 20, num_workers=1) as loader:
            return flat(squares for squares, _pids in loader), connection

    with ThreadPoolExecutor(1) as pool:
        read_there, connection = pool.submit(read).result()
        assert read_there == [i * i for i in range(60)]
        for how in ({}, {"workers": "thread"}):
            with (
                DataLoader(Squares(connection), 2, num_workers=1, **how) as loader,
                pytest.raises(sqlite3.ProgrammingError) as raised,
            ):
                next(iter(loader))
            assert "check_same_thread=False" in "\n".join(raised.value.__notes__)
        pool.submit(connection.close).result()


# ---- what cannot be pickled


class RefusesToBePickled(light.Numbers):
    def __getstate__(self):
        raise LookupError("nobody pickles me")


def test_reload_between_datasets_that_can_and_cannot_be_pickled(squares):
    with DataLoader(light.Slow(60, wait=0.002), 2, num_workers=1, prefetch_factor=1) as loader:
        epoch = iter(loader)
        got = next(epoch).tolist()
        loader.reload(Squares(squares()))  # only this thread may use its connection
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


def test_it_is_an_error_where_workers_must_not_be_forked():
    refuses = RefusesToBePickled(2)
    for method in ("forkserver", "spawn"):
        with (
            DataLoader(refuses, num_workers=1, multiprocessing_context=method) as loader,
            pytest.raises(DatasetTransferError, match="nobody pickles me"),
        ):
            iter(loader)
    with DataLoader(refuses, num_workers=1) as loader:
        assert flat(loader) == [0, 1]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
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


# ---- files and connections


class Records:
    """Looks for a record with `seek`, and reads it from there."""

    def __init__(self, file, n):
        self.file, self.n = file, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.file.seek(4 * i)
        time.sleep(0.0005)
        return int.from_bytes(self.file.read(4), "little")


@pytest.mark.parametrize("kind", ["named", "deleted", "memory", "read and written"])
def test_each_worker_has_its_own_positions_in_open_files(kind, tmp_path):
    path = tmp_path / "records"
    path.write_bytes(np.arange(200, dtype="<i4").tobytes())
    if kind == "memory":
        file = os.fdopen(os.memfd_create("records"), "r+b", buffering=0)
        file.write(path.read_bytes())
    else:
        file = path.open("r+b" if kind == "read and written" else "rb", buffering=0)
    if kind == "deleted":
        path.unlink()
    with file, DataLoader(Records(file, 200), 2, num_workers=3) as loader:
        file.seek(44)
        epoch = iter(loader)
        got = [next(epoch)]
        assert file.tell() == 44
        os.kill(all_pids(loader)[0], signal.SIGKILL)
        got += epoch
        assert flat(got) == list(range(200))
        assert file.read(4) == b"\x0b\0\0\0"


def test_all_processes_append_to_a_file_that_is_only_written(tmp_path):
    with open(tmp_path / "log", "w", buffering=1) as file:
        file.write("notebook\n")
        assert results(lambda i: file.write(f"{i}\n"), 4, num_workers=2) == [2] * 4
        file.write("end\n")
    lines = (tmp_path / "log").read_text().splitlines()
    assert (lines[0], sorted(lines[1:-1]), lines[-1]) == ("notebook", ["0", "1", "2", "3"], "end")


def test_a_port_of_the_notebook_is_free_when_the_notebook_has_closed_it():
    """A kernel that restarts takes its ports again."""
    server = socket.create_server(("127.0.0.1", 0))
    with server, DataLoader(light.Slow(1000), 2, num_workers=2) as loader:
        epoch = iter(loader)
        next(epoch)
        all_pids(loader)
        address = server.getsockname()
        server.close()
        socket.create_server(address).close()
        assert next(epoch).tolist() == [2, 3]


def test_nobody_listens_at_a_path_on_which_the_notebook_has_stopped_to_listen(tmp_path):
    address = str(tmp_path / "socket")
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with server, client, DataLoader(light.Slow(1000), 2, num_workers=2) as loader:
        server.bind(address)
        server.listen()
        epoch = iter(loader)
        next(epoch)
        all_pids(loader)
        server.close()
        with pytest.raises(ConnectionRefusedError):
            client.connect(address)


def sockets(process="self"):
    found = set()
    for fd in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{process}/fd/{fd}"))
    return {name for name in found if name.startswith("socket:")}


def connections_of(loader):
    """This process's ends of the connections to the zygote and to the workers."""
    pool = loader._engine._group.pool
    channels = [pool._zygote._channel, *(handle.channel for handle in pool.handles.values())]
    return {os.readlink(f"/proc/self/fd/{channel.fileno()}") for channel in channels}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("persistent", [False, True])
def test_processes_of_a_loader_hold_no_connection_of_another_loader(method, persistent):
    """Otherwise its workers would not see that it was closed."""
    options = {"num_workers": 2, "persistent_workers": persistent}
    with DataLoader(light.Slow(1000), 2, **options, multiprocessing_context=method) as other:
        epoch = iter(other)
        next(epoch)
        all_pids(other)
        connections = connections_of(other)
        assert len(connections) == 3
        with DataLoader(light.Slow(1000), 2, **options) as loader:
            ours = iter(loader)
            next(ours)
            workers = all_pids(loader)
            for pid in [*workers, *(process.pid for process in zygotes(loader))]:
                assert not sockets(pid) & connections
            for pid in workers:
                assert not sockets(pid) & connections_of(loader), "the ends of this process"
            other.close()
            wait_for(lambda: {process.pid for process in worker_processes()} == set(workers))


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


def test_workers_of_a_fork_of_a_process_that_has_used_openmp(tmp_path):
    """The threads of OpenMP that the fork seems to have exist in its parent only: their end cannot be awaited."""
    result = script(
        """
        import faulthandler, multiprocessing
        import torch
        from nbloader import DataLoader

        def train():
            faulthandler.dump_traceback_later(60, exit=True)
            with DataLoader(range(4), 2, num_workers=2) as loader:
                print([batch.tolist() for batch in loader], flush=True)

        torch.set_num_threads(2)
        assert torch.ones(1_000_000).exp().sum() > 0
        child = multiprocessing.get_context("fork").Process(target=train)
        child.start()
        child.join()
        """,
        tmp_path,
    )
    assert result.stdout == "[[0, 1], [2, 3]]\n", result.stderr


@contextlib.contextmanager
def repeated(*functions):
    """Let threads call functions again and again."""
    stop = threading.Event()

    def repeat(function):
        while not stop.is_set():
            function()

    threads = [threading.Thread(target=repeat, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("draw", [np.random.rand, torch.rand], ids=["NumPy", "torch"])
def test_locks_of_global_generators_that_other_threads_hold_now_and_then(draw, capsys):
    """A thread is nearly always inside of what it does: without care, a worker would hang nearly always.

    Another thread takes the interpreter lock whenever it can get it.
    """
    with repeated(lambda: draw(1_000_000), lambda: sum(range(100))):
        for _epoch in range(5):
            assert results(lambda i: draw(3) is None or i, 2) == [0, 1]
    assert "nbloader" not in capsys.readouterr().err


@contextlib.contextmanager
def held(lock):
    """Let another thread hold a lock."""
    acquired, release = threading.Event(), threading.Event()

    def hold():
        with lock:
            acquired.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    acquired.wait()
    try:
        yield
    finally:
        release.set()
        thread.join()


def test_a_lock_of_logging_that_another_thread_holds_at_the_fork(tmp_path):
    handler = logging.FileHandler(tmp_path / "log")
    log = logging.getLogger("nbloader.test")
    log.addHandler(handler)
    log.propagate = False
    try:
        with DataLoader(Calls(lambda i: log.warning("from a worker") or i, 2), num_workers=1) as loader:
            with held(handler.lock):
                epoch = iter(loader)
                wait_for(lambda: loader.stats().ready)
            assert flat(epoch) == [0, 1]
    finally:
        log.removeHandler(handler)
        log.propagate = True
        handler.close()
    assert (tmp_path / "log").read_text() == 2 * "from a worker\n"


GUARDED = """
import threading
lock = threading.Lock()
def read(i):
    with lock:
        return i
"""
HEALED = re.compile(r'nbloader: a worker that was forked .* hung .*multiprocessing_context="forkserver"')


@pytest.fixture
def guarded(tmp_path, monkeypatch):
    """A module with a lock."""
    (tmp_path / "guarded.py").write_text(GUARDED)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("guarded")
    del sys.modules["guarded"]


def assert_heals(loader, capsys):
    """Whether an epoch is complete, and the next one, with one line."""
    for _ in range(2):
        assert flat(loader) == list(range(8))
    said = capsys.readouterr()
    assert len(HEALED.findall(said.out + said.err)) == 1


@pytest.mark.slow
def test_a_lock_of_a_module_that_another_thread_holds_at_the_fork(guarded, capsys):
    with DataLoader(Calls(guarded.read, 8), 2, num_workers=2) as loader, held(guarded.lock):
        assert_heals(loader, capsys)


@pytest.mark.slow
def test_a_lock_that_is_needed_before_the_first_batch(guarded, capsys):
    with (
        DataLoader(light.Numbers(8), 2, num_workers=2, worker_init_fn=guarded.read) as loader,
        held(guarded.lock),
    ):
        assert_heals(loader, capsys)


def begin_at(number):
    threading.current_thread().number = number


def next_number(step):
    return threading.current_thread().number + step


class ReadsWithThreads(light.Numbers):
    def __init__(self, n):
        super().__init__(n, pool=ThreadPoolExecutor(1, initializer=begin_at, initargs=(0,)))

    def __getitem__(self, i):
        return self.pool.submit(next_number, i).result()


@pytest.mark.slow
def test_a_thread_pool_that_the_dataset_has_used(capsys):
    dataset = ReadsWithThreads(8)
    assert dataset[3] == 3
    with dataset.pool, DataLoader(dataset, 2, num_workers=2) as loader:
        assert_heals(loader, capsys)


@pytest.mark.slow
def test_a_worker_that_hangs_is_not_replaced_by_a_clean_one_if_fork_was_asked_for(guarded, capsys):
    with (
        DataLoader(Calls(guarded.read, 8), 2, num_workers=1, multiprocessing_context="fork", timeout=13) as loader,
        held(guarded.lock),
        pytest.raises(RuntimeError, match=r"guarded\.py"),
    ):
        next(iter(loader))
    assert not HEALED.search(capsys.readouterr().err)


@pytest.mark.slow
def test_that_no_clean_worker_can_take_over_is_said_once(guarded, capsys):
    """It is looked for every 5 s."""
    dataset = Calls(guarded.read, 8)
    dataset.unpicklable = (each for each in "ab")
    with (
        DataLoader(dataset, 2, num_workers=1, timeout=16) as loader,
        held(guarded.lock),
        pytest.raises(RuntimeError, match=r"guarded\.py"),
    ):
        next(iter(loader))
    said = capsys.readouterr()
    assert (said.out + said.err).count("New interpreters cannot replace it") == 1


@pytest.mark.slow
def test_a_zygote_that_hangs_before_it_is_ready_is_killed_and_a_clean_one_takes_over(tmp_path):
    """As with a library that waits for its threads after a fork."""
    done = script(
        """
        import os, threading
        from datasets import flat
        from nbloader import DataLoader, WorkerStartError
        import light

        notebook = os.getpid()

        def wait():
            if os.getppid() == notebook:
                threading.Event().wait()

        os.register_at_fork(after_in_child=wait)
        with DataLoader(light.Numbers(8), 2, num_workers=2) as loader:
            print(flat(loader) == flat(loader) == list(range(8)))
        with DataLoader(light.Numbers(8), 2, num_workers=2, multiprocessing_context="fork") as loader:
            try:
                iter(loader)
            except WorkerStartError as error:
                print('multiprocessing_context="forkserver"' in str(error))
        """,
        tmp_path,
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert len(HEALED.findall(done.stderr)) == 1


def test_a_running_event_loop(tmp_path):
    """As in a kernel: cells run within one."""
    done = script(
        """
        import asyncio
        from datasets import flat
        from nbloader import DataLoader
        import light

        async def read(i):
            await asyncio.sleep(0.001)
            return i

        class Waits(light.Numbers):
            def __getitem__(self, i):
                return asyncio.run(read(i))

        class Async(light.Numbers):
            async def __getitem__(self, i):
                return await read(i)

        async def cell():
            for dataset in Waits(8), Async(8):
                with DataLoader(dataset, 2, num_workers=2) as loader:
                    print(flat(loader), flat(loader))

        asyncio.run(cell())
        """,
        tmp_path,
    )
    assert (done.stdout.splitlines(), done.stderr) == ([f"{list(range(8))} {list(range(8))}"] * 2, "")


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
        print(*[p.pid for p in psutil.Process().children(recursive=True)])
        """,
        tmp_path,
        warnings="ignore",  # `unwritten` is left open
    )
    begin, *lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, begin) == (0, "", "begin")
    assert sorted(line for line in lines if line != "sample" and not line[0].isdigit()) == [
        "ended",
        "exit",
        "finalized",
    ]
    left = [int(pid) for line in lines if line[0].isdigit() for pid in line.split()]
    assert len(left) == 3  # the zygote and its workers
    wait_for(lambda: not any(map(alive, left)), "the end of those that were killed")
    assert (tmp_path / "unwritten").read_text() == "once"


# ---- faults


@pytest.mark.parametrize("method", METHODS)
def test_a_zygote_that_is_killed_between_epochs(method):
    options = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": method}
    with DataLoader(light.Numbers(40), 2, **options) as loader:
        assert flat(loader) == list(range(40))
        all_pids(loader)
        [process] = zygotes(loader)
        process.kill()
        wait_for(lambda: len(died(loader)) == 2)
        assert flat(loader) == list(range(40))
        all_pids(loader)
        [other] = zygotes(loader)
        assert other != process
        assert not alive(process.pid)


@pytest.mark.parametrize("method", METHODS)
def test_a_zygote_that_is_stopped_delays_only_what_needs_it(method):
    with DataLoader(light.Slow(200), 2, num_workers=2, multiprocessing_context=method) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        victim, _other = all_pids(loader)
        [process] = zygotes(loader)
        process.suspend()
        os.kill(victim, signal.SIGKILL)
        got += [next(epoch) for _ in range(20)]
        process.resume()
        got += epoch
        assert flat(got) == list(range(200))


@pytest.mark.parametrize("method", METHODS)
def test_a_loader_with_a_stopped_zygote_can_be_closed(method):
    with DataLoader(light.Slow(200), 2, num_workers=2, multiprocessing_context=method) as loader:
        epoch = iter(loader)
        next(epoch)
        workers = all_pids(loader)
        [process] = zygotes(loader)
        process.suspend()
    wait_for(lambda: not any(map(alive, [process.pid, *workers])), "the end of all processes")


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_no_process_waits_for_the_next_loader(method, persistent):
    options = {"num_workers": 2, "persistent_workers": persistent, "multiprocessing_context": method}
    before = set(psutil.Process().children(recursive=True))
    with DataLoader(light.Numbers(8), 2, **options) as loader:
        assert flat(loader) == list(range(8))
        if method == "fork" and not persistent:
            wait_for(lambda: set(psutil.Process().children(recursive=True)) <= before, "the end of an epoch's workers")
    wait_for(lambda: set(psutil.Process().children(recursive=True)) <= before, "the end of all processes")


def test_a_hanging_worker_is_restarted_after_the_timeout(tmp_path):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    data = light.Hangs(8, bad=1, flag=str(flag), hung=str(hung), how=light.hang_in_c)

    def stop_hanging():
        wait_for(hung.exists)
        flag.unlink()

    thread = threading.Thread(target=stop_hanging)
    thread.start()
    with DataLoader(data, 2, timeout=1, on_timeout="restart", num_workers=1) as loader:
        assert flat(loader) == list(range(8))
    thread.join()


def test_exceptions_and_exit_codes_of_workers():
    with DataLoader(Raises(8, bad=3, error=KeyError), 2, num_workers=1) as loader:
        epoch = iter(loader)
        assert next(epoch).tolist() == [0, 1]
        with pytest.raises(KeyError) as raised:
            next(epoch)
        assert "__getitem__" in str(raised.value.__cause__)
        assert flat(epoch) == [4, 5, 6, 7]
    with (
        DataLoader(light.Numbers(4), 2, worker_init_fn=lambda _: sys.exit(7), num_workers=1) as loader,
        pytest.raises(WorkerStartError, match="exited with code 7"),
    ):
        next(iter(loader))


def test_resize_reload_and_restart_in_an_epoch():
    with DataLoader(light.Slow(60, wait=0.002), 2, num_workers=1) as loader:
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


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EAGAIN], ids=errno.errorcode.get)
def test_a_process_that_cannot_be_forked_is_an_error_and_the_next_epoch_works(error, monkeypatch):
    class Refuses:
        @staticmethod
        def usleep(microseconds):
            time.sleep(microseconds / 1e6)

        @staticmethod
        def fork():
            ctypes.set_errno(error)
            return -1

    with DataLoader(light.Numbers(4), num_workers=1) as loader:
        with monkeypatch.context() as patched:
            patched.setattr(forking, "_c_library", lambda: Refuses)
            with pytest.raises(WorkerStartError, match=os.strerror(error)):
                iter(loader)
        assert flat(loader) == [0, 1, 2, 3]


@pytest.mark.parametrize("possible", [0, 1])
def test_a_zygote_that_cannot_fork_is_an_error_and_the_next_epoch_works(possible, monkeypatch):
    fork_once, forked = os.fork, []

    def fork():
        forked.append(None)
        if len(forked) > possible:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork_once()

    with DataLoader(light.Numbers(1_000_000), num_workers=2) as loader:  # one worker cannot end before the other fails
        with monkeypatch.context() as patched:
            patched.setattr(os, "fork", fork)  # the zygote inherits it
            with pytest.raises(WorkerStartError, match=f"no process could be started.*{os.strerror(errno.EAGAIN)}"):
                for _ in loader:
                    pass
        assert flat(itertools.islice(loader, 4)) == [0, 1, 2, 3]


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


def test_classes_of_the_notebook_keep_their_identity_in_indices_and_batches(tmp_path):
    done = script(
        """
        import dataclasses, enum
        from nbloader import DataLoader

        class Kind(enum.Enum):
            TRAIN = "train"

        @dataclasses.dataclass(frozen=True)
        class Index:
            kind: Kind
            i: int

        class Point:
            def __init__(self, i):
                self.i = i

        class Points:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                assert type(index) is Index and index.kind is Kind.TRAIN
                return index, Point(index.i)

        batches = [[Index(Kind.TRAIN, i) for i in pair] for pair in ((0, 1), (2, 3))]
        for method in None, "forkserver":
            options = {"num_workers": 2, "collate_fn": list, "multiprocessing_context": method}
            with DataLoader(Points(), batch_sampler=batches, **options) as loader:
                for (index, point), (_, other) in loader:
                    assert type(index) is Index and index.kind is Kind.TRAIN
                    assert type(point) is type(other) is Point
                    print(point.i, other.i)
        """,
        tmp_path,
    )
    assert (done.stdout.split(), done.stderr) == (["0", "1", "2", "3"] * 2, "")


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_has_its_process_id_even_if_its_zygote_reports_it_late(method, monkeypatch):
    read = ProcessPool._read_lifeline

    def late(pool, handle, fd, messages):
        if handle.ready or handle.leaving or handle.killed:
            read(pool, handle, fd, messages)

    monkeypatch.setattr(ProcessPool, "_read_lifeline", late)
    with DataLoader(light.Numbers(40), 2, num_workers=2, multiprocessing_context=method) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        wait_for(lambda: sum(isinstance(event, ev.WorkerReady) for event in loader.events.history) == 2)
        assert flat([*got, *epoch]) == list(range(40))
    events = list(loader.events.history)
    started = [event.pid for event in events if isinstance(event, ev.WorkerStarted)]
    ready = [event.pid for event in events if isinstance(event, ev.WorkerReady)]
    assert len(started) == 2
    assert sorted(ready) == sorted(started)
    assert {event.pid for event in events if isinstance(event, ev.BatchRecord)} <= set(started)
