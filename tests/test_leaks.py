"""The leak check of conftest.py finds each kind of resource, and reports nothing where nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid

import leaks
import pytest


def test_nothing_is_reported_where_nothing_is_left():
    before = leaks.Belongings.now()
    subprocess.run([sys.executable, "-c", ""], check=True)
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert not leaks.left_behind(before, grace=5)


def test_resources_that_end_within_the_grace_time_are_not_reported():
    before = leaks.Belongings.now()
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    threading.Timer(0.1, go.set).start()
    assert not leaks.left_behind(before, grace=5)


def test_a_process_is_reported():
    before = leaks.Belongings.now()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        left = leaks.left_behind(before, grace=0.1)
        process.communicate(b"\n")
    assert set(left.processes) == {process.pid}
    assert f"process {process.pid}" in str(left)


def test_a_grandchild_is_reported_below_a_new_process_but_not_below_an_old_one():
    code = "import subprocess, sys; input(); p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1); "
    code += "print(p.pid, flush=True); input(); p.communicate(b'x')"
    before = leaks.Belongings.now()
    with subprocess.Popen([sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        since = leaks.Belongings.now()
        process.stdin.write(b"\n")
        process.stdin.flush()
        grandchild = int(process.stdout.readline())
        new, old = leaks.left_behind(before, grace=0.1), leaks.left_behind(since, grace=0.1)
        process.communicate(b"\n")
    assert set(new.processes) == {process.pid, grandchild}
    assert not old.processes


@pytest.mark.parametrize(
    ("daemon", "name", "found"), [(False, "x", True), (True, "nbloader-x", True), (True, "x", False)]
)
def test_threads_that_are_not_daemons_or_ours_are_reported(daemon, name, found):
    before = leaks.Belongings.now()
    go = threading.Event()
    thread = threading.Thread(target=go.wait, daemon=daemon, name=name)
    thread.start()
    left = leaks.left_behind(before, grace=0.1)
    go.set()
    thread.join()
    assert left.threads == ({thread} if found else set())


@pytest.mark.skipif(not leaks.FDS.exists(), reason="the system does not list file descriptors")
def test_a_file_descriptor_is_reported():
    before = leaks.Belongings.now()
    fd = os.open(__file__, os.O_RDONLY)
    left = leaks.left_behind(before, grace=0.1)
    os.close(fd)
    assert left.descriptors == {str(fd): __file__}


@pytest.mark.skipif(not leaks.SHM.exists(), reason="the system has no /dev/shm")
def test_a_shared_memory_file_is_reported_unless_another_program_uses_it():
    before = leaks.Belongings.now()
    path = leaks.SHM / f"nbloader-test-{uuid.uuid4().hex}"
    path.write_bytes(b"x")
    left = leaks.left_behind(before, grace=0.1)
    path.unlink()
    assert path.name in left.shm_files
