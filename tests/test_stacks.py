"""The Python stack of a worker can be requested while it hangs, whatever it hangs in."""

from __future__ import annotations

import os
import re
import signal
import sysconfig
import threading

import datasets as d
import light
import pytest
from datasets import Numbers, Slow, alive, all_pids, flat, pids, run_script, wait_for

from nbloader import DataLoader, NbloaderError
from nbloader.transport import stack_probe

FOREVER = 3600.0

STACK = """\
Thread 0x00007f00 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f01 (most recent call first):
  File "{stdlib}/json/decoder.py", line 355 in raw_decode
  File "{site}/PIL/Image.py", line 2 in open
  File "/home/me/data.py", line 12 in __getitem__
  File "{ours}/fetch.py", line 7 in fetch
  File "<string>", line 1 in <module>
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
@pytest.mark.parametrize("how", [light.sleep, light.spin, light.hang_in_c], ids=lambda how: how.__name__)
def test_stack_of_a_hanging_worker(how, method, tmp_path, monkeypatch):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    data = light.Hangs(20, bad=1, flag=str(flag), hung=str(hung), how=how)
    with DataLoader(data, 2, num_workers=1, multiprocessing_context=method) as loader:
        epoch = iter(loader)
        wait_for(hung.exists)
        wait_for(lambda: f"in {how.__name__}\n" in loader.stack(0))
        monkeypatch.setattr(stack_probe, "WAIT", FOREVER)
        monkeypatch.setattr(stack_probe, "QUIET", FOREVER)  # each is recognized as complete
        texts = {loader.stack(0) for _ in range(3)}
        for text in texts:
            assert "Current thread" in text
            assert re.search(r" in __getitem__\n  \[\.\.\. skipping \d+ frames of nbloader\]\n\Z", text), text
            where = stack_probe.place(text)
            assert where.startswith(light.__file__)
            assert where.endswith(f"in {how.__name__}")
        flag.unlink()
        loader.restart_workers(0)
        assert flat(epoch) == list(range(20))


def test_the_rest_of_a_late_response_is_not_taken_for_a_response(monkeypatch):
    """A request ends at the worker's outermost frame; faulthandler writes those of the notebook after that."""
    monkeypatch.setattr(stack_probe, "WAIT", FOREVER)
    monkeypatch.setattr(stack_probe, "QUIET", FOREVER)
    reader, writer = os.pipe2(os.O_NONBLOCK)
    late = '  File "<frozen runpy>", line 198 in _run_module_as_main\n'
    frames = ('"/data.py", line 12 in __getitem__', '"<string>", line 1 in <module>')
    response = "Stack (most recent call first):\n" + "".join(f"  File {frame}\n" for frame in frames)
    parts = iter([late, response])

    def send() -> bool:
        os.write(writer, next(parts).encode())
        return True  # nothing is sent to a process

    no_process = 2**22 + 1
    try:
        text = stack_probe.StackPipe(reader).stack_request(no_process, send)()
    finally:
        os.close(reader)
        os.close(writer)
    assert text.count("\n") == 3
    assert stack_probe.place(text) == "/data.py, line 12 in __getitem__"


def test_stack_of_a_worker_thread():
    go = threading.Event()

    class Waits(Numbers):
        def __getitem__(self, i):
            return i if go.wait(d.PATIENCE) else None

    with DataLoader(Waits(8), 2, num_workers=2, workers="thread") as loader:
        epoch = iter(loader)
        wait_for(lambda: all(w.batch is not None for w in loader.stats().workers))
        text = wait_for(lambda: "in __getitem__" in (text := loader.stack(1)) and text)
        assert stack_probe.place(text).startswith(__file__)
        go.set()
        assert flat(epoch) == list(range(8))


def test_concurrent_requests_do_not_disturb_anything(monkeypatch):
    monkeypatch.setattr(stack_probe, "WAIT", FOREVER)
    with DataLoader(Slow(1_000_000, wait=0.001), 2, num_workers=2) as loader:  # workers end with their epoch
        epoch = iter(loader)
        got = [next(epoch)]
        all_pids(loader)
        texts = []

        def request():
            texts.extend(loader.stack(number % 2) for number in range(20))

        threads = [threading.Thread(target=request) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            got.append(next(epoch))
        for thread in threads:
            thread.join()
        assert flat(got) == list(range(2 * len(got)))
        assert len(texts) == 60
        outermost = ("in become_worker\n", "of nbloader]\n", "line 1 in <module>\n")
        assert all(text.count("Current thread") == 1 and text.endswith(outermost) for text in texts)


def test_a_worker_survives_a_request_at_any_moment(tmp_path, monkeypatch):
    """Also while it enters a function. There faulthandler reads frames that are not complete, and crashes."""
    monkeypatch.setattr(stack_probe, "WAIT", FOREVER)
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    with DataLoader(light.Hangs(1, bad=0, flag=str(flag), hung=str(hung), how=light.call), num_workers=1) as loader:
        epoch = iter(loader)
        wait_for(hung.exists)
        (pid,) = all_pids(loader)
        for _ in range(3000):
            assert loader.stack(0).count("Current thread") == 1
        assert pids(loader) == [pid]
        assert loader.stats().deaths == 0
        assert epoch is not None


def test_a_worker_that_cannot_respond_raises_within_bounded_time(monkeypatch):
    monkeypatch.setattr(stack_probe, "WAIT", FOREVER)
    with DataLoader(Numbers(4), 2, num_workers=2, persistent_workers=True) as loader:
        with pytest.raises(NbloaderError, match="worker 1 is not running"):
            loader.stack(1)
        assert flat(loader) == [0, 1, 2, 3]
        stopped, _other = all_pids(loader)
        wait_for(lambda: all(w.state == "idle" for w in loader.stats().workers))
        wait_for(lambda: "_next_task" in loader.stack(1))  # it may not be there yet
        os.kill(stopped, signal.SIGSTOP)
        monkeypatch.setattr(stack_probe, "WAIT", 0.3)
        with pytest.raises(NbloaderError, match=r"did not respond to a stack request within 0\.3 s\. .*stopped"):
            loader.stack(0)
        os.kill(stopped, signal.SIGCONT)
        with pytest.raises(ValueError, match="no worker 2"):
            loader.stack(2)
        with pytest.raises(TypeError, match="must be an int"):
            loader.stack("0")


def test_a_worker_that_dies_during_a_request_raises(monkeypatch):
    monkeypatch.setattr(stack_probe, "WAIT", FOREVER)
    with DataLoader(Slow(10, wait=3600), 2, num_workers=1) as loader:
        epoch = iter(loader)
        wait_for(lambda: any(w.batch is not None for w in loader.stats().workers))
        (pid,) = all_pids(loader)
        os.kill(pid, signal.SIGSTOP)

        def request_and_kill():
            request = loader._engine._group.stack_request(0)
            threading.Thread(target=lambda: os.kill(pid, signal.SIGKILL)).start()
            with pytest.raises(NbloaderError, match="It has ended"):
                request()

        loader._engine._loop.ask(request_and_kill)
        assert epoch is not None


def test_without_workers_the_stack_is_that_of_the_main_thread():
    with DataLoader(Numbers(4), 2) as loader:
        text = loader.stack(0)
        first, innermost, *_ = text.splitlines()
        assert first.startswith("Current thread")
        assert innermost.endswith("in test_without_workers_the_stack_is_that_of_the_main_thread"), "not of nbloader"
        with pytest.raises(ValueError, match=r"no worker 1.*num_workers=0"):
            loader.stack(1)


def test_frames_of_nbloader_outside_of_the_datasets_code_are_counted():
    ours = os.path.dirname(stack_probe.__file__)
    fetch, start = f'  File "{ours}/fetch.py", line 7 in fetch\n', '  File "<string>", line 1 in <module>\n'
    text = STACK.format(stdlib=sysconfig.get_path("stdlib"), site=sysconfig.get_path("purelib"), ours=ours)
    assert text.endswith(fetch + start)
    assert stack_probe.without_internals(text) == text.replace(
        fetch + start, "  [... skipping 2 frames of nbloader]\n"
    ), "and the other thread is whole"
    user = '  File "/home/me/data.py", line 12 in __getitem__\n'
    cached = f'  File "{ours}/cached.py", line 3 in __call__\n'
    one = "  [... skipping 1 frame of nbloader]\n"
    assert stack_probe.without_internals(cached + user + fetch + user) == cached + user + one + user
    idle = f"Current thread 0x1 (most recent call first):\n{cached}{fetch}{start}"
    assert stack_probe.without_internals(idle) == idle
    without_user = text.replace(user, "")
    assert stack_probe.without_internals(without_user).endswith("in open\n  [... skipping 2 frames of nbloader]\n")


def test_the_place_is_a_line_of_the_user_if_there_is_one():

    stdlib, site = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
    text = STACK.format(stdlib=stdlib, site=site, ours=os.path.dirname(stack_probe.__file__))
    assert stack_probe.place(text) == "/home/me/data.py, line 12 in __getitem__"
    without = text.replace('  File "/home/me/data.py", line 12 in __getitem__\n', "")
    assert stack_probe.place(without) == f"{stdlib}/json/decoder.py, line 355 in raw_decode"
    assert stack_probe.place("") == "an unknown place"


def test_the_place_in_a_notebook_is_named_as_in_its_tracebacks(tmp_path):
    done = run_script(
        """
        from IPython.core.interactiveshell import InteractiveShell
        from nbloader.transport import stack_probe
        shell = InteractiveShell.instance()
        shell.run_cell("def f():\\n    g(1)")
        path = shell.user_ns["f"].__code__.co_filename
        print(stack_probe.place(f'Current thread 0x1 (most recent call first):\\n  File "{path}", line 2 in f\\n'))
        """,
        tmp_path,
        warnings="default",
    )
    assert "In[" in done.stdout, done.stderr
    assert done.stdout.strip().endswith(", line 2 in f")


def test_stack_of_a_worker_whose_dataset_never_arrives():
    with DataLoader(d.HangsInUnpickling(4), 2, num_workers=1, multiprocessing_context="forkserver") as loader:
        epoch = iter(loader)
        assert "in __setstate__" in wait_for(lambda: stack_or_nothing(loader))
        assert [w.state for w in loader.stats().workers] == ["starting"]
        (pid,) = wait_for(lambda: pids(loader), "its pid")
        assert alive(pid)
        assert epoch is not None


def stack_or_nothing(loader):
    try:
        text = loader.stack(0)
    except NbloaderError:
        return ""
    return text if "__setstate__" in text else ""
