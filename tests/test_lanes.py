"""`make test` runs each test once, fails if a part fails, and leaves no process when it is interrupted."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap

import lanes
import psutil
import pytest

pytestmark = pytest.mark.unit

HERE = pathlib.Path(__file__).parent


SHARED = {
    "pytest.ini": "[pytest]\nmarkers = slow\n",
    "conftest.py": """
        import sys
        sys.path.insert(0, TESTS)
        import lanes, pathlib, pytest

        def pytest_configure(config):
            config.pluginmanager.register(lanes.Turns(pathlib.Path(TAKEN)))

        @pytest.fixture(scope="session", autouse=True)
        def once():
            print("<set up>")
            yield
            print("<torn down>")
    """,
    "inner/__init__.py": "",
    "inner/conftest.py": """
        import pytest

        @pytest.fixture(scope="package", autouse=True)
        def inner():
            print("<inner set up>")
            yield
            print("<inner torn down>")
    """,
    "inner/test_large.py": "def test_1(): pass\ndef test_2(): pass\n" + "#" * 300,
    "inner/test_small.py": "def test_1(): pass\ndef test_2(): pass\n" + "#" * 200,
    "test_slow.py": "import pytest\npytestmark = pytest.mark.slow\ndef test_1(): pass\ndef test_2(): pass\n",
    "test_large.py": "def test_1(): pass\ndef test_2(): pass\n" + "#" * 100,
}


@pytest.fixture
def shared(tmp_path):
    """Write four modules of two tests each, and return a function that runs what nobody has taken."""
    taken = tmp_path / "taken"
    taken.mkdir()
    for name, text in SHARED.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text.replace("TESTS", repr(str(HERE))).replace("TAKEN", repr(str(taken)))))

    def run(*already):
        for module in already:
            (taken / module.replace("/", "-")).touch()
        command = [sys.executable, "-m", "pytest", "-v", "-s", "-p", "no:cacheprovider", str(tmp_path / "tests")]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "tests", check=False)

    return run


def passed(result):
    """Names of the tests that passed, in order."""
    assert "error" not in result.stdout.lower(), result.stdout
    return re.findall(r"^(?:<.*>)?(\S+)::\S+", result.stdout, re.MULTILINE)[::2]


@pytest.mark.slow
def test_processes_that_share_the_tests_run_each_module_once_and_slow_and_large_ones_first(shared):
    first = shared()
    assert first.returncode == 0, first.stdout
    assert passed(first) == ["test_slow.py", "inner/test_large.py", "inner/test_small.py", "test_large.py"]
    assert re.findall("<(.*?)>", first.stdout) == ["set up", "inner set up", "inner torn down", "torn down"]
    assert "8 passed" in first.stdout
    second = shared()
    assert (second.returncode, passed(second)) == (0, []), "it was never the first to come to a module"


@pytest.mark.slow
def test_what_other_processes_have_taken_does_not_keep_a_package_set_up(shared):
    """After a package's last test of ours, the next test collected is one of the same package that another runs."""
    result = shared("inner/test_small.py")
    assert passed(result) == ["test_slow.py", "inner/test_large.py", "test_large.py"]
    assert re.findall("<(.*?)>", result.stdout) == ["set up", "inner set up", "inner torn down", "torn down"]
    assert result.returncode == 0, result.stdout


def python(code):
    return (sys.executable, "-c", textwrap.dedent(code))


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (5, 1)])
def test_a_command_that_fails_is_shown_and_makes_the_status_1(status, expected, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(lanes, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    first, second, third = (
        lanes.Command("first", python(f"print('said'); exit({status})")),
        lanes.Command("second", python("print(7)")),
        lanes.Command("third", python("print(8)")),
    )
    monkeypatch.setattr(lanes, "lanes", lambda _make, _taken: [[first, second], [third]])
    assert asyncio.run(lanes.main("make")) == expected
    printed = capfd.readouterr().out
    assert printed.count("said\n") == 2, "in its output and in the summary"
    assert ("FAILED (5)" in printed) == bool(status)
    assert [line.split()[0] for line in printed.splitlines()[-3:]] == ["first", "second", "third"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_commands_and_what_they_started(number, tmp_path):
    """Here a process in a session of its own, like a Jupyter kernel, that ignores interrupts."""
    started = tmp_path / "started"
    os.mkfifo(started)
    child = f"""
        import os, signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        open({str(started)!r}, "w").write(str(os.getpid()))
        time.sleep(600)
    """
    command = f"import subprocess; subprocess.run({python(child)}, start_new_session=True)"
    code = f"""
        import asyncio, pathlib, sys
        sys.path.insert(0, {str(HERE)!r})
        import lanes
        lanes.ROOT = pathlib.Path({str(tmp_path)!r})
        lanes.LOGS = lanes.ROOT / "logs"
        lanes.lanes = lambda make, taken: [[lanes.Command("one", {python(command)})]]
        sys.exit(asyncio.run(lanes.main("make")))
    """
    with subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True) as runner:
        processes = [psutil.Process(int(started.read_text())), *psutil.Process(runner.pid).children(recursive=True)]
        runner.send_signal(number)
        printed, _ = runner.communicate(timeout=90)
    assert runner.returncode == 130
    assert printed.endswith("Interrupted.\n")
    assert len(processes) >= 2
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
