"""Processes that share the tests run each one once, and leave nothing when they are interrupted or crash."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

pytest.importorskip("xdist", reason="pytest-xdist is not installed")

pytestmark = pytest.mark.slow

HERE = pathlib.Path(__file__).parent
QUICK = "import os\ndef test_1(): assert 'SERVER' not in os.environ\ndef test_2(): pass\n"
MODULES = {
    "browser/__init__.py": "",
    "browser/conftest.py": """
        import os, pytest

        @pytest.fixture(scope="package", autouse=True)
        def server():
            os.environ["SERVER"] = "runs"
            yield
            del os.environ["SERVER"]
    """,
    "browser/test_a.py": "def test_1(): pass\n",
    "browser/test_b.py": "def test_1(): pass\n",
    "test_large.py": QUICK + "#" * 100,
    "test_slow.py": "import pytest\npytestmark = pytest.mark.slow\n" + QUICK,
    "test_small.py": QUICK,
}
STARTS = """
    import os, signal, subprocess, sys
    CHILD = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); signal.pause()"

    def test_1():
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, start_new_session=True)
        child.stdout.read(1)
        with open("started", "w") as file:
            print(child.pid, file=file)
"""
"""A process in a session of its own, like a kernel, that ignores interrupts. The test goes on when its pid is read."""


@pytest.fixture
def pytest_with(tmp_path):
    """A function that starts pytest on modules, as `make test` does."""

    def start(modules, processes):
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
        for name, source in modules.items():
            path = tmp_path / "tests" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))
        for name in ("conftest.py", "leaks.py"):
            shutil.copy(HERE / name, tmp_path / "tests")
        os.mkfifo(tmp_path / "started")
        options = ("--no-loadscope-reorder", "--max-worker-restart=0", "--verbose", "-p", "xdist", "tests")
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", f"--numprocesses={processes}", *options],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )  # fmt: skip

    return start


def run(process):
    """The output of a process, and the tests that passed: the process and the id of each."""
    output, _ = process.communicate(timeout=100)
    return output, re.findall(r"^\[(gw\d)\] .* PASSED (\S+)", output, re.MULTILINE)


def test_those_in_a_browser_come_first_then_slow_ones_and_large_modules(pytest_with):
    with pytest_with(MODULES, 1) as process:
        output, passed = run(process)
    assert process.returncode == 0, output
    modules = ("browser/test_b.py", "browser/test_a.py", "test_slow.py", "test_large.py", "test_small.py")
    assert list(dict.fromkeys(test.partition("::")[0] for _, test in passed)) == [f"tests/{name}" for name in modules]


def test_one_process_runs_those_in_a_browser_and_each_test_runs_once(pytest_with):
    with pytest_with(MODULES, 2) as process:
        output, passed = run(process)
    assert process.returncode == 0, output
    assert len(passed) == len(dict(map(reversed, passed))) == 8
    assert len({number for number, test in passed if "browser" in test}) == 1
    for module in {test.partition("::")[0] for _, test in passed}:
        assert len({number for number, test in passed if test.startswith(module)}) == 1


def started(process, folder):
    """The processes that pytest has started, when a test of `STARTS` runs."""
    child = int((folder / "started").read_text())
    return [psutil.Process(child), *psutil.Process(process.pid).children(recursive=True)]


def run_on(processes):
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_of_the_first_process_ends_all(number, pytest_with, tmp_path):
    with pytest_with({"test_it.py": f"{STARTS}        child.wait()\n"}, 1) as process:
        processes = started(process, tmp_path)
        process.send_signal(number)
        output, _ = run(process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert len(processes) >= 2
    assert not run_on(processes)


def test_a_crash_is_a_failure_and_what_the_process_has_started_is_ended(pytest_with, tmp_path):
    with pytest_with({"test_it.py": f"{STARTS}        os.kill(os.getpid(), signal.SIGKILL)\n"}, 2) as process:
        processes = started(process, tmp_path)
        output, passed = run(process)
    assert process.returncode not in {0, pytest.ExitCode.NO_TESTS_COLLECTED}, output
    assert re.search("FAILED tests/test_it.py::test_1|crashed while running 'tests/test_it.py::test_1'", output)
    assert not passed
    assert not run_on(processes)
