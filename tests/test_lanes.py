"""`make test` runs each test once, fails if a part fails, and leaves no process when it is interrupted."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import lanes
import psutil
import pytest

pytestmark = pytest.mark.unit

HERE = pathlib.Path(__file__).parent


def items_of(paths):
    """Two tests for each module; those of the second module are slow."""
    return [
        SimpleNamespace(
            path=path,
            nodeid=f"{path.parent.name}/{path.name}::test_{number}",
            get_closest_marker=lambda _name, slow=path == paths[1]: slow,
        )
        for path in paths
        for number in range(2)
    ]


def test_processes_that_share_the_tests_run_each_module_once_and_slow_and_large_ones_first(tmp_path):
    paths = [tmp_path / name / "test_it.py" for name in ("a", "b", "c", "d")]
    for size, path in enumerate(paths):
        path.parent.mkdir()
        path.write_text("#" * size)
    taken = tmp_path / "taken"
    taken.mkdir()
    processes = [(lanes.Turns(taken), items_of(paths)) for _ in range(2)]
    runs = [[], []]
    for turns, items in processes:
        turns.pytest_collection_modifyitems(items)
        assert [item.path.parent.name for item in items[::2]] == ["b", "d", "c", "a"]
    for both in zip(*(items for _, items in processes), strict=True):
        for number, item in enumerate(both):
            if processes[number][0].pytest_runtest_protocol(item) is None:
                runs[number].append(item.nodeid)
    assert sorted(runs[0] + runs[1]) == sorted(item.nodeid for item in items_of(paths))
    assert runs[1] == [], "it was never the first to come to a module"


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
        printed, _ = runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert printed.endswith("Interrupted.\n")
    assert len(processes) >= 2
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
