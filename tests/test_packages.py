"""Installed packages that a dataset needs are imported once, in a clone of the fork server, and not by each worker."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap

import light
import pytest

from nbloader import DataLoader
from nbloader._util import system
from nbloader._util.code_places import is_library
from nbloader.cache import owner
from nbloader.transport import forkserver, preload

SIZE = preload.LARGE
"""Modules of the packages here."""


@pytest.fixture
def fork_server_preloads_test_dependencies():
    """Not here: these tests depend on what is imported."""


@pytest.fixture(autouse=True)
def no_server():
    forkserver.shutdown()
    yield
    forkserver.shutdown()
    forkserver._not_preloaded.clear()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package; returns it and a function that lists the processes, but this one, that have imported it."""
    site = tmp_path / "site-packages"

    def make(name, code="", folder=site):
        package = folder / name
        package.mkdir(parents=True)
        log = tmp_path / f"{name}.log"
        source = f"""
            import os
            def record():
                with open({str(log)!r}, "a") as file:
                    print(os.getpid(), file=file)
            class Data:
                def __len__(self): return 6
                def __getitem__(self, i): return os.getpid()
        """
        (package / "__init__.py").write_text(f"{textwrap.dedent(source)}\nrecord()\n{textwrap.dedent(code)}")
        for number in range(SIZE):
            (package / f"part{number}.py").write_text("")
        if str(folder) not in sys.path:
            monkeypatch.syspath_prepend(str(folder))
        module = importlib.import_module(name)
        for number in range(SIZE):
            importlib.import_module(f"{name}.part{number}")
        imported.append(name)
        log.write_text("")
        return module, lambda: [int(pid) for pid in log.read_text().split()]

    imported = []
    yield make
    for name in [module for module in sys.modules if module.partition(".")[0] in imported]:
        del sys.modules[name]


def workers_of(dataset, **options):
    """The pids of the workers that produced the batches of an epoch."""
    with DataLoader(dataset, None, num_workers=2, **options) as loader:
        return set(map(int, loader))


def test_a_package_is_imported_once_for_all_workers_of_all_loaders(install):
    package, importers = install("once")
    workers = workers_of(package.Data())
    workers |= workers_of(package.Data())
    [server] = importers()
    assert server in forkserver.pids()
    assert server not in workers


def test_a_module_of_the_user_is_imported_by_each_worker_and_what_it_needs_is_not(install, tmp_path):
    _package, importers = install("needed")
    module, importers_of_module = install("mine", "import needed", folder=tmp_path / "project")
    workers = workers_of(module.Data())
    workers |= workers_of(module.Data())
    assert len(importers()) == 1
    assert set(importers_of_module()) >= workers


def test_a_module_of_the_user_that_a_package_imports_is_imported_by_each_worker(install, tmp_path):
    _module, importers_of_module = install("plugin", folder=tmp_path / "project")
    package, importers = install("host", "import plugin")
    workers = workers_of(type("Both", (package.Data,), {"__getitem__": uses_plugin})())
    assert len(importers()) == 1
    assert set(importers_of_module()) >= workers


def uses_plugin(_self, _i):
    import plugin  # noqa: F401

    return os.getpid()


def test_a_loader_that_does_not_need_a_package_does_not_wait_for_its_import(install, tmp_path):
    blocked = tmp_path / "blocked"
    package, importers = install("slow", f"""
        import time
        while os.path.exists({str(blocked)!r}): time.sleep(0.01)
    """)  # fmt: skip
    blocked.touch()
    with DataLoader(package.Data(), None, num_workers=1) as waits, DataLoader(light.Numbers(3), num_workers=1) as quick:
        assert [batch.item() for batch in quick] == [0, 1, 2]
        blocked.unlink()
        assert len(set(map(int, waits))) == 1
    assert len(importers()) == 1


def test_a_package_that_starts_threads_is_imported_by_each_worker(install):
    """A process with threads is not forked: a thread might hold a lock."""
    package, importers = install("threads", """
        import threading
        event = threading.Event()
        threading.Thread(target=event.wait, daemon=True).start()
    """)  # fmt: skip
    first = workers_of(package.Data())
    second = workers_of(package.Data())
    package.event.set()
    assert set(importers()) >= first | second
    assert "threads" in forkserver._not_preloaded


def test_a_package_whose_only_thread_is_one_of_jemalloc_is_imported_once(install):
    """pyarrow starts one. jemalloc prepares it for a fork."""
    package, importers = install("columnar", """
        import ctypes, threading
        event, named = threading.Event(), threading.Event()
        def purge():
            ctypes.CDLL(None).prctl(15, b"jemalloc_bg_thd", 0, 0, 0)  # PR_SET_NAME
            named.set()
            event.wait()
        threading.Thread(target=purge, daemon=True).start()
        named.wait()
    """)  # fmt: skip
    workers = workers_of(package.Data()) | workers_of(package.Data())
    package.event.set()
    assert workers.isdisjoint(importers())
    assert len(importers()) == 1


def test_a_package_that_ends_the_server_is_imported_by_each_worker(install, tmp_path):
    survives = tmp_path / "survives"
    survives.touch()
    package, importers = install("deadly", f"""
        if not os.path.exists({str(survives)!r}):
            open({str(survives)!r}, "w").close()
            os._exit(3)
    """)  # fmt: skip
    survives.unlink()
    workers = workers_of(package.Data())
    assert set(importers()) > workers
    assert "deadly" in forkserver._not_preloaded


def test_a_package_is_imported_with_the_environment_of_this_process(install, monkeypatch):
    package, _importers = install("asks", "class Data(Data):\n    home = os.environ.get('ASKED', '')\n"
                                          "    def __getitem__(self, i): return self.home")  # fmt: skip
    workers_of(light.Numbers(2))
    monkeypatch.setenv("ASKED", "here")
    with DataLoader(package.Data(), None, num_workers=1) as loader:
        assert set(loader) == {"here"}


@pytest.mark.skipif(system.cores() == 1, reason="on one core nothing starts early")
def test_packages_that_need_torch_are_imported_when_the_server_is_started_early(install):
    pytest.importorskip("torch")
    package, importers = install("early", "import torch")
    forkserver.warm_up()
    workers = workers_of(package.Data())
    [server] = importers()
    assert server in forkserver.pids()
    assert server not in workers
    assert len(forkserver.pids()) == 2, "the server with torch, and its clone"


@pytest.mark.unit
def test_what_counts_as_installed_is_the_same_everywhere(tmp_path, monkeypatch):
    """Also in a folder of packages that is a symbolic link: its files have two names."""
    packages, link = tmp_path / "packages", tmp_path / "site-packages"
    packages.mkdir()
    (packages / "linked_package.py").touch()
    link.symlink_to(packages)
    monkeypatch.syspath_prepend(str(link))
    module = importlib.import_module("linked_package")
    del sys.modules["linked_package"]
    assert not owner.is_users(str(link / "linked_package.py"))
    for file, installed in (
        (link / "linked_package.py", True),
        (packages / "linked_package.py", True),
        (tmp_path / "own.py", False),
    ):
        module.__file__ = str(file)
        assert preload.is_installed(module) == is_library(str(file)) == installed


@pytest.mark.unit
def test_only_large_installed_packages_are_imported_ahead(install, tmp_path):
    pytest.importorskip("torch")
    install("large")
    install("own", "import large, json, torch", folder=tmp_path / "project")
    assert preload.packages(["own", "json", "torch", "__main__", "missing"]) == {"large"}
    assert preload.packages(["large.part1"]) == {"large.part1"}
    assert not preload.need_torch(["large"])
    assert preload.imported_with_torch().isdisjoint({"large", "own"})
    install("with_torch", "import torch")
    assert preload.need_torch(["with_torch.part3"])
    assert "with_torch.part3" in preload.imported_with_torch()
