"""One place for the operating system: what it may use, and that the portable part is enough for everything else."""

from __future__ import annotations

import ast
import inspect
import os
import pathlib
import subprocess
import sys
import textwrap

import light
import pytest
from datasets import PATIENCE, alive, flat, wait_for

from nbloader import DataLoader, _platform
from nbloader._platform import portable, readable
from nbloader._platform.descriptors import close_all
from nbloader.loader import config

pytestmark = pytest.mark.portable

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "nbloader"
TESTS = ROOT / "tests"
SYSTEM_FOLDERS = ("/proc", "/sys/", "/dev/")


def run(code, folder, *paths, **environment):
    """Run code as a script with these folders in PYTHONPATH. Returns what it prints."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    found = [*map(str, paths), str(TESTS), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=110, check=False,
        cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, found)), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- who may know the system -----------------------------------------------------------------------------------------


def strings(path):
    """The strings of a module, those of f-strings included, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


@pytest.mark.unit
def test_only_the_platform_package_knows_paths_of_the_system():
    found = {
        path.relative_to(PACKAGE).parts[0]: text
        for path in PACKAGE.rglob("*.py")
        for text in strings(path)
        if text.startswith(SYSTEM_FOLDERS)
    }
    assert found.keys() == {"_platform"}


@pytest.mark.unit
def test_only_the_platform_package_may_import_what_a_system_lacks(tmp_path):
    """By a rule of ruff, which `make lint` checks."""
    pytest.importorskip("ruff")
    lines = ["import fcntl", "import os", "import resource", "import sys", "print(sys.platform, os.pidfd_open(1))"]
    for folder, wrong in (("workers", 4), ("_platform", 0)):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--output-format", "concise", "--no-cache",
             "--stdin-filename", str(PACKAGE / folder / "planted.py"), "-"],
            input="\n".join(lines) + "\n", capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        assert done.stdout.count("TID251") == wrong, done.stdout + done.stderr


@pytest.mark.unit
def test_the_environment_selects_the_platform(tmp_path):
    code = "from nbloader import _platform; print(_platform.NAME, _platform.START_METHODS)"
    assert run(code, tmp_path, NBLOADER_PLATFORM="portable") == "portable ('spawn',)\n"
    if sys.platform == "linux":
        assert run(code, tmp_path, NBLOADER_PLATFORM="").startswith("linux ")
    with pytest.raises(AssertionError, match="NBLOADER_PLATFORM is 'amiga': set it to one of"):
        run(code, tmp_path, NBLOADER_PLATFORM="amiga")


@pytest.mark.unit
def test_what_a_system_has_of_its_own_is_called_as_what_the_portable_part_has():
    name = f"nbloader._platform.{sys.platform}"
    own = vars(pytest.importorskip(name, reason="only the portable part")).items()
    replaced = {key: (value, vars(portable)[key]) for key, value in own if key in vars(portable)}
    functions = {key: pair for key, pair in replaced.items() if key in _platform.__all__ and callable(pair[0])}
    assert functions
    for key, (of_system, of_portable) in functions.items():
        assert inspect.signature(of_system) == inspect.signature(of_portable), key


ANOTHER = """
    import importlib.machinery, importlib.util, sys
    import multiprocessing, numpy, psutil, torch.utils.data  # before the system gets another name

    class Finder:
        def find_spec(self, name, path, target=None):
            if name == "nbloader._platform.amiga":
                return importlib.util.spec_from_file_location(name, "amiga.py")

    sys.meta_path.insert(0, Finder())
    sys.platform = "amiga"
    import nbloader
    from nbloader import _platform
    from nbloader._platform import portable

    class Numbers:
        rows = nbloader.share(numpy.arange(20))

        def __len__(self):
            return 20

        def __getitem__(self, i):
            return self.rows[i]

    with nbloader.DataLoader(Numbers(), 4, num_workers=2, workers="thread") as loader:
        assert [int(i) for batch in loader for i in batch] == list(range(20))
    assert _platform.cores() == 3
    assert _platform.cpu_times is portable.cpu_times
    print(_platform.NAME, _platform.HAS_ZYGOTES)
"""


@pytest.mark.unit
def test_another_system_is_one_module(tmp_path):
    """It has the name of the system, and what it lacks is taken from the portable part."""
    module = """
        from nbloader._platform import portable

        def cores():
            return 3

        def new_file(opened):
            print("a file of Amiga")
            portable.new_file(opened)
    """
    (tmp_path / "amiga.py").write_text(textwrap.dedent(module))
    assert run(ANOTHER, tmp_path, NBLOADER_PLATFORM="").splitlines() == ["a file of Amiga", "amiga False"]
    with pytest.raises(AssertionError, match=r"set it to one of \('amiga', 'portable'\)"):
        run(ANOTHER, tmp_path, NBLOADER_PLATFORM="linux")


@pytest.mark.unit
def test_both_platforms_know_this_machine():
    for platform in (_platform, portable):
        assert 1 <= platform.cores() <= (os.cpu_count() or 1)
        assert platform.available_memory() > 0
        assert platform.memory_of(os.getpid()).private > 0
        assert platform.activity(os.getpid()).cpu > 0
        assert platform.process_space()
        before = platform.idle_time()
        if before is not None:  # some sandboxes do not report it
            assert 0 < before <= platform.idle_time()


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.unit
def test_a_fork_is_refused_where_nothing_can_be_forked(monkeypatch):
    monkeypatch.setattr(config, "HAS_ZYGOTES", False)
    with pytest.raises(ValueError, match="supported on Linux only: omit it"):
        DataLoader(light.Numbers(4), num_workers=1, multiprocessing_context="fork")


@pytest.mark.unit
def test_worker_processes_are_refused_where_no_descriptors_can_be_passed(monkeypatch):
    monkeypatch.setattr(config, "CAN_START_PROCESSES", False)
    with pytest.raises(ValueError, match="pass workers='thread' for 2 worker threads, or num_workers=0"):
        DataLoader(light.Numbers(4), num_workers=2)
    for arguments in ({}, {"num_workers": 2, "workers": "thread"}):
        with DataLoader(light.Numbers(4), **arguments) as loader:
            assert flat(loader) == [0, 1, 2, 3]


# ---- the portable part -----------------------------------------------------------------------------------------------


def test_the_end_of_a_child_can_be_waited_for():
    opened: list[int] = []
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        portable.end_of_child(process, opened)
        try:
            assert not readable(opened, 0)
            process.kill()
            assert readable(opened, PATIENCE) == opened
            assert process.wait() == -9
        finally:
            close_all(opened)


LOADS = """
    import os, signal, sys, threading, warnings
    import numpy as np
    import nbloader
    from nbloader import DataLoader

    class Rows:
        def __init__(self, n=64):
            self.rows = np.arange(n * 4096, dtype=np.float32).reshape(n, 4096)  # sent in a memory file
            self.shared = nbloader.share(self.rows[:2])
            self.lock = threading.Lock()

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            missing = [name for name in ("fork", "memfd_create", "pidfd_open") if hasattr(os, name)]
            assert not missing, missing
            with self.lock:
                return self.rows[i], np.random.rand(), i

    @nbloader.cached
    def squared(i):
        with open("computed", "a") as file:
            file.write(f"{i}\\n")
        return np.full(1000, i * i)

    class Cached(Rows):
        def __getitem__(self, i):
            return squared(int(i))

    def numbers(batches):
        return [int(i) for batch in batches for i in batch[2]]

    def same(one, two):
        return len(one) == len(two) and all(np.array_equal(a, b) for x, y in zip(one, two) for a, b in zip(x, y))

    if __name__ == "__main__":
        plain = list(DataLoader(Rows(), 8, shuffle=True, generator=__import__("torch").Generator().manual_seed(3)))
        def load(**arguments):
            generator = __import__("torch").Generator().manual_seed(3)
            return DataLoader(Rows(), 8, shuffle=True, generator=generator, **arguments)
        for arguments in ({"workers": "thread"}, {}, {"persistent_workers": True}):
            with load(num_workers=2, **arguments) as loader:
                assert [b[2].tolist() for b in loader] == [b[2].tolist() for b in plain], arguments
        with load(num_workers=2, persistent_workers=True) as loader:
            batches = []
            for number, batch in enumerate(loader):
                batches.append(batch)
                if number == 1:
                    os.kill(next(w.pid for w in loader.stats().workers if w.pid), signal.SIGKILL)
                if number == 4:
                    state = loader.state_dict()
            assert same(batches, plain), "a killed worker costs nothing, and the seed belongs to the batch"
        with load(num_workers=2) as loader:
            loader.load_state_dict(state)
            assert same(list(loader), plain[5:])
        with DataLoader(Cached(16), 4, num_workers=2, persistent_workers=True) as loader:
            loader.record("run.nbl")
            for _ in range(3):
                assert [int(v) for b in loader for v in b[:, 0]] == [i * i for i in range(16)]
        assert sorted(map(int, open("computed"))) == list(range(16)), "each is computed once, in whichever process"
        assert os.path.getsize("run.nbl") > 1000
        assert nbloader.play("run.nbl") is not None
        print("loaded")
"""


@pytest.mark.slow
def test_everything_loads_without_what_only_linux_has(tmp_path):
    """Without fork, memfd, pidfd, prctl, /proc, fcntl and resource, in the notebook's process and in workers."""
    assert run(LOADS, tmp_path, TESTS / "hidden", NBLOADER_PLATFORM="portable").endswith("loaded\n")


@pytest.mark.slow
def test_workers_end_with_a_process_that_is_killed(tmp_path):
    """Even if they hang: they see the end of a pipe that only their parent has."""
    code = """
        import os, signal, time
        from nbloader import DataLoader

        class Hangs:
            def __len__(self):
                return 4

            def __getitem__(self, i):
                open(f"worker-{os.getpid()}", "w").close()
                while True:
                    time.sleep(60)

        if __name__ == "__main__":
            with DataLoader(Hangs(), num_workers=2) as loader:
                batches = iter(loader)
                while len([name for name in os.listdir() if name.startswith("worker-")]) < 2:
                    time.sleep(0.01)
                print("hang", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    """
    with pytest.raises(AssertionError):
        run(code, tmp_path, NBLOADER_PLATFORM="portable")
    workers = [int(path.name.partition("-")[2]) for path in tmp_path.glob("worker-*")]
    assert len(workers) == 2
    wait_for(lambda: not any(map(alive, workers)), "the end of the workers")


WINDOWS = """
    import asyncio, faulthandler, mmap, multiprocessing, os, select, selectors, signal, socket, subprocess, sys
    import cloudpickle, numpy, psutil, torch, torch.utils.data

    for module, names in (
        (os, ("O_CLOEXEC fork geteuid getppid pread preadv pwrite pwritev readv register_at_fork sched_getaffinity "
              "set_blocking setsid sysconf uname waitid EX_OSERR WNOHANG")),
        (signal, "SIGCHLD SIGKILL SIGRTMIN SIGUSR1 SIGUSR2 pthread_sigmask siginterrupt"),
        (socket, "CMSG_SPACE MSG_CMSG_CLOEXEC MSG_DONTWAIT SCM_RIGHTS"),
        (select, "poll epoll"),
        (selectors, "EpollSelector PollSelector"),
        (mmap, "MAP_PRIVATE MAP_SHARED PROT_READ PROT_WRITE"),
        (faulthandler, "register"),
    ):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    selectors.DefaultSelector = selectors.SelectSelector

    import nbloader
    from nbloader import DataLoader

    class Numbers:
        def __len__(self):
            return 20

        def __getitem__(self, i):
            return i

    for arguments in ({}, {"num_workers": 2, "workers": "thread"}):
        with DataLoader(Numbers(), 4, **arguments) as loader:
            assert [i for batch in loader for i in batch.tolist()] == list(range(20))
            loader.stats()

    @nbloader.cached
    def double(x):
        return numpy.full(1000, 2 * x)

    nbloader.configure_cache(directory="cache", disk=10**6)
    assert [double(1)[0] for _ in range(3)] == [2, 2, 2]
    print(len([file for _, _, files in os.walk("cache") for file in files]), "entry on disk")

    try:
        DataLoader(Numbers(), 4, num_workers=2)
    except ValueError as error:
        print(error)
"""


@pytest.mark.slow
def test_threads_load_where_windows_has_nothing_else(tmp_path):
    """Without what Windows lacks. Its hosted job (.github/workflows) runs the tests of threads themselves."""
    printed = run(WINDOWS, tmp_path, NBLOADER_PLATFORM="portable")
    assert "1 entry on disk" in printed
    assert "worker processes are not supported" in printed
