"""Which modules the fork server imports, and when."""

import functools
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
from nbloader.transport import forkserver, interpreter, preload
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


DRAWING = '''
import functools
import importlib.util
import random as python_random
import sys

import numpy as np


def noise():
    return np.random.rand()


def deeper():
    return noise()


class Base:
    def __len__(self):
        return 6


class Draws(Base):
    def __getitem__(self, i):
        return np.random.rand()


class DrawsByFunction(Base):
    def __getitem__(self, i):
        return deeper()


class DrawsInProperty(Base):
    @property
    def value(self):
        return noise()

    @functools.cached_property
    def cached(self):
        return noise()

    def __getitem__(self, i):
        return self.value


class Inherits(Draws):
    pass


class Around(Base):
    def __getitem__(self, i):
        return self.call()


def closure(function=noise):
    def call():
        return function()
    return call


class Plain(Base):
    transform = staticmethod(np.square)

    def __getitem__(self, i):
        return self.transform(i)


class Late(Base):
    """Imports numpy.random in the middle of an epoch, in a way that no estimate finds."""

    def __getitem__(self, i):
        had = "numpy.ran" + "dom" in sys.modules
        importlib.util.find_spec("numpy.ran" + "dom")
        return (importlib.import_module("numpy.ran" + "dom").rand() if i != 1 else -1.0), had
'''


@pytest.fixture
def drawing(tmp_path, monkeypatch):
    """A module of the user's with datasets that draw random numbers, or do not."""
    (tmp_path / "drawing_datasets.py").write_text(DRAWING)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("drawing_datasets")
    sys.modules.pop("drawing_datasets")


def draws_from_numpy(*parts):
    pickled = SharedPickle(parts)
    return preload.draws_from_numpy(pickled.code, pickled.spawning.named)


@pytest.mark.parametrize("name", ["Draws", "DrawsByFunction", "DrawsInProperty", "Inherits"])
def test_code_that_draws_from_numpy_is_found(drawing, name):
    assert draws_from_numpy(getattr(drawing, name)())


@pytest.mark.parametrize("line", ["from numpy.random import rand", "import numpy\nG = numpy.random.default_rng()"])
def test_modules_that_draw_from_numpy_when_they_are_imported_are_found(line, drawing, tmp_path):
    """Also if they are imported by another one."""
    (tmp_path / "drawing_inner.py").write_text(f"{line}\ndel {'rand' if 'rand' in line[-4:] else 'G'}\n")
    (tmp_path / "drawing_outer.py").write_text("import drawing_inner\nclass A: pass\n")
    try:
        assert draws_from_numpy(importlib.import_module("drawing_outer").A())
    finally:
        del sys.modules["drawing_outer"], sys.modules["drawing_inner"]


def test_code_that_draws_from_numpy_is_found_in_functions_and_attributes(drawing):
    assert draws_from_numpy(drawing.Plain(), drawing.deeper)
    dataset = drawing.Plain()
    assert not draws_from_numpy(dataset)
    dataset.transform = drawing.Draws()
    assert draws_from_numpy(dataset)
    dataset.transform = drawing.closure()
    assert draws_from_numpy(dataset)
    dataset.transform = np.random.default_rng(0)
    assert draws_from_numpy(dataset)


class Claims:
    """Claims to be a class."""

    __class__ = type


class Hidden:
    __module__ = None


class Unhashable(types.ModuleType):
    __hash__ = None

    def __eq__(self, other):
        return False


class Unreadable(types.ModuleType):
    def __getattribute__(self, name):
        raise NotImplementedError(name)


STRANGE = {
    "claims": Claims,
    "hidden": Hidden,
    "hidden class": lambda: Hidden,
    "unhashable module": lambda: Unhashable("u"),
    "unreadable module": lambda: Unreadable("v"),
    "partial": lambda: functools.partial(len),
    "list": list,
    "builtin": lambda: print,
}


@pytest.mark.parametrize("name", STRANGE)
def test_whatever_a_module_holds_is_no_error(drawing, name):
    vars(drawing)["value"] = STRANGE[name]()
    assert isinstance(draws_from_numpy(drawing.Plain()), bool)
    assert ProcessSetup(drawing.Plain(), None, None, "raise").packages == frozenset()


@pytest.mark.parametrize("module", [None, Unhashable("drawing_datasets"), object()], ids=["None", "module", "object"])
def test_a_module_that_is_none_is_no_error(drawing, module, monkeypatch):
    dataset = drawing.Plain()
    pickled = SharedPickle(dataset)
    monkeypatch.setitem(sys.modules, "drawing_datasets", module)
    assert isinstance(preload.draws_from_numpy(pickled.code, pickled.spawning.named), bool)


def test_packages_are_expected_to_draw_from_numpy(drawing):
    assert draws_from_numpy(drawing.Plain(), psutil.pid_exists)
    assert not draws_from_numpy(drawing.Plain(), pathlib.Path("x"), json.dumps, np.sum, len)


def test_code_of_the_notebook_that_draws_from_numpy_is_found():
    def with_random(self, i):
        return np.random.rand()

    def without(self, i):
        return np.square(i)

    with_random.__module__ = without.__module__ = "__main__"
    assert draws_from_numpy(in_a_cell(__getitem__=with_random))
    assert not draws_from_numpy(in_a_cell(__getitem__=without))


@pytest.mark.usefixtures("no_server")
def test_workers_import_numpy_random_when_they_need_it(drawing):
    """And draw then what they would have drawn if it had been imported before."""
    setup = ProcessSetup(drawing.Late(), None, None, "raise")
    assert setup.preload == []
    with DataLoader(drawing.Late(), batch_size=2, num_workers=1, generator=torch.Generator().manual_seed(3)) as loader:
        late, had = zip(*loader, strict=True)
    assert [value.tolist() for value in had] == [[False, True], [True, True], [True, True]]
    assert ProcessSetup(drawing.Draws(), None, None, "raise").preload == ["numpy.random"]
    with DataLoader(drawing.Draws(), batch_size=2, num_workers=1, generator=torch.Generator().manual_seed(3)) as loader:
        expected = list(loader)
    assert late[0].tolist() == [expected[0][0].item(), -1.0]
    assert torch.equal(torch.cat(late[1:]), torch.cat(expected[1:]))


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
        forkserver.warm_up()
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
                "from nbloader.transport import server_process as s; s.UNUSED_S = 0; "
                f"s.main({theirs.fileno()}, ('json',))"
            )
            command = interpreter.python_command(entry)
            assert subprocess.run(command, pass_fds=(theirs.fileno(),), timeout=90, check=False).returncode == 0
