"""Which modules the fork server imports, and when."""

import importlib
import json
import pathlib
import pickle
import socket
import subprocess
import sys
import textwrap
import tracemalloc
import types

import light
import numpy as np
import psutil
import pytest
import torch
from datasets import run_script

from nbloader import DataLoader, WorkerStartError
from nbloader._util import system
from nbloader.transport import forkserver, preload
from nbloader.transport.dataset_payload import SharedPickle
from nbloader.transport.process_setup import ProcessSetup


@pytest.fixture
def fork_server_preloads_test_dependencies():
    """Not here: these tests depend on what is imported."""


@pytest.fixture
def no_server():
    """Servers that a test starts end with it."""
    forkserver.shutdown()
    yield
    forkserver.shutdown()


class Plain:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return float(i)


def in_a_cell(**methods):
    """A dataset whose class is defined in a notebook cell."""
    return type("InACell", (), {"__module__": "__main__", **methods})()


def test_a_tensor_in_the_dataset_needs_torch():
    dataset = in_a_cell()
    assert preload.expected(dataset) == []
    dataset.data = np.zeros(3)
    assert preload.expected(dataset) == []
    dataset.data = torch.zeros(3)
    assert preload.expected(dataset) == ["torch"]


def test_a_class_from_a_module_needs_what_the_module_imports():
    assert "torch" in preload.expected(Plain()), "this module imports it"
    assert "torch" in preload.needed(b"", Plain())


def test_a_class_from_a_module_that_imports_the_loader_needs_torch(monkeypatch):
    """A worker imports that module, and the loader with it."""
    module = types.ModuleType("beside")
    module.DataLoader = DataLoader
    monkeypatch.setitem(sys.modules, "beside", module)
    dataset = type("Beside", (), {"__module__": "beside"})()
    assert preload.needed(b"", dataset) == ["torch", "nbloader.loader"]
    module.DataLoader = None
    assert preload.needed(b"", dataset) == []


def collate(samples):
    return samples


def test_a_function_from_a_module_needs_what_the_module_imports():
    assert "torch" in preload.needed(b"", in_a_cell(), collate, None, "raise")


def test_batches_that_torch_collates_need_torch():
    assert preload.expected(in_a_cell(), by_torch=True) == ["torch"]
    for transport, collate_fn, needed in (
        ("pickle", None, True),
        ("pickle", len, False),
        ("shared_memory", None, False),
    ):
        assert ("torch" in ProcessSetup(light.Numbers(4), collate_fn, None, "raise", transport).preload) == needed


def test_a_class_of_the_notebook_needs_what_its_methods_refer_to():
    def with_numpy(self, i):
        return np.zeros(i)

    def with_torch(self, i):
        return [torch.zeros(i) for _ in range(2)]

    assert preload.expected(in_a_cell(__getitem__=with_numpy)) == []
    assert preload.expected(in_a_cell(__getitem__=with_torch)) == ["torch"]


def test_a_tensor_anywhere_in_a_pickle_needs_torch():
    for dataset in ({"x": [torch.zeros(3)]}, [(torch.zeros(100_000),)]):
        assert preload.needed(SharedPickle(dataset).data, dataset) == ["torch"]
    assert preload.needed(SharedPickle({"x": np.zeros(3)}).data, {}) == []


def test_modules_named_in_a_pickle_are_needed_if_this_process_has_imported_them():
    assert preload.needed(b"... torch ... tensorflow", in_a_cell()) == ["torch"]


@pytest.mark.usefixtures("no_server")
def test_the_fork_server_starts_with_the_loader_which_does_not_wait_for_it(monkeypatch):
    sent = []
    send = forkserver.Channel.send

    def spy(channel, kind, *parts, **fds):
        if kind == forkserver.Kind.PRELOAD:
            sent.append(pickle.loads(parts[0]))
        return send(channel, kind, *parts, **fds)

    monkeypatch.setattr(forkserver.Channel, "send", spy)
    with DataLoader(Plain(), num_workers=1) as loader:
        assert forkserver.pids()
        assert sent == [preload.expected(Plain())]
        assert [float(batch) for batch in loader] == [0, 1, 2, 3]
    DataLoader(Plain(), num_workers=0)
    assert len(sent) == 1


@pytest.mark.usefixtures("no_server")
def test_the_fork_server_does_not_trace_allocations_and_its_workers_do(monkeypatch):
    """Under tracemalloc with 25 frames, which processes inherit, importing torch takes a minute."""

    class Traced:
        def __len__(self):
            return 1

        def __getitem__(self, i):
            imported_by_server = np.linalg.norm
            mine = object()
            return [
                tracemalloc.get_traceback_limit() if tracemalloc.is_tracing() else 0,
                tracemalloc.get_object_traceback(mine) is not None,
                tracemalloc.get_object_traceback(imported_by_server) is not None,
            ]

    monkeypatch.setenv("PYTHONTRACEMALLOC", "3")
    with DataLoader(Traced(), num_workers=1, collate_fn=list) as loader:
        assert list(loader) == [[[3, True, False]]]


@pytest.mark.usefixtures("no_server")
def test_entries_of_sys_path_that_python_ignores_are_ignored(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, pathlib.Path("/nowhere")])
    with DataLoader(light.Numbers(4), num_workers=1) as loader:
        assert [float(batch) for batch in loader] == [0, 1, 2, 3]


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("executable", [None, "/nowhere/python"])
def test_without_an_interpreter_the_loop_raises_and_the_constructor_does_not(monkeypatch, executable):
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", executable)
        forkserver.start_early()
        loader = DataLoader(light.Numbers(4), num_workers=1)
        with pytest.raises(WorkerStartError, match=r"not be started: .*(sys\.executable is None|/nowhere/python)"):
            list(loader)
    assert [float(batch) for batch in loader] == [0, 1, 2, 3]
    loader.close()


# ---- before any loader is made


EARLY = """
import json, os, sys, threading
import numpy as np
import psutil
import nbloader
from nbloader.transport import forkserver
assert not forkserver.pids()
nbloader.warm_up()
[early] = forkserver.pids()
from nbloader import DataLoader
import torch

class Numbers:
    def __len__(self): return 4
    def __getitem__(self, i): return np.float64(i)

class Tensors(Numbers):
    def __getitem__(self, i): return torch.tensor(float(i))

"""


def said_by(code, tmp_path):
    done = run_script(EARLY + textwrap.dedent(code), tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(system.cores() == 1, reason="on one core nothing starts early")
class TestTheServerThatWarmUpStarts:
    def test_gives_a_loader_that_needs_torch_its_workers(self, tmp_path):
        said = said_by(
            """
            with DataLoader(Tensors(), num_workers=1) as loader:
                got = [float(batch) for batch in loader]
                [worker] = loader.stats().workers
                print(json.dumps([got, psutil.Process(worker.pid).ppid() == early, forkserver.pids() == {early}]))
            """,
            tmp_path,
        )
        assert said == [[0, 1, 2, 3], True, True]

    def test_is_ended_by_a_first_loader_that_needs_none(self, tmp_path):
        said = said_by(
            """
            with DataLoader(Numbers(), num_workers=1) as loader:
                gone = not psutil.pid_exists(early)
                got = [float(batch) for batch in loader]
            with DataLoader(Tensors(), num_workers=1) as loader:
                got += [float(batch) for batch in loader]
            print(json.dumps([gone, got, len(forkserver.pids())]))
            """,
            tmp_path,
        )
        assert said == [True, [0, 1, 2, 3] * 2, 2]

    def test_is_gone_with_the_process(self, tmp_path):
        assert not psutil.pid_exists(said_by("print(json.dumps(early))", tmp_path))

    @pytest.mark.usefixtures("no_server")
    def test_is_not_started_by_workers(self, tmp_path, monkeypatch):
        (tmp_path / "has_loader.py").write_text(
            "import nbloader\n"
            "from nbloader.transport import forkserver\n"
            "nbloader.warm_up()\n"
            "class Servers:\n"
            "    def __len__(self): return 1\n"
            "    def __getitem__(self, i): return len(forkserver.pids())\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        for method in ("forkserver", "spawn"):
            dataset = importlib.import_module("has_loader").Servers()
            with DataLoader(dataset, num_workers=1, multiprocessing_context=method) as loader:
                assert [batch.tolist() for batch in loader] == [[0]]
        sys.modules.pop("has_loader")

    def test_ends_when_nobody_needs_it(self):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            entry = (
                f"from nbloader.transport import forkserver as f; f.UNUSED_S = 0; f.main({theirs.fileno()}, ('json',))"
            )
            command = forkserver.python_command(entry)
            assert subprocess.run(command, pass_fds=(theirs.fileno(),), timeout=90, check=False).returncode == 0
