"""Worker threads in an interpreter without the GIL."""

from __future__ import annotations

import itertools
import subprocess
import sys
import sysconfig
import threading
import time

import numpy as np
import pytest

from nbloader import DataLoader, get_worker_info
from nbloader._util import rng

pytestmark = pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"),
    reason="this interpreter has the GIL: run it with a free-threaded build of Python 3.13 or newer",
)
PATIENCE = 60.0


def test_no_module_that_the_loader_imports_turns_the_gil_on():
    """Python does so, with a warning, when it imports an extension module that is not made for free threading."""
    code = """
import sys, torch
from nbloader import DataLoader
for options in {"workers": "thread"}, {"workers": "process"}:
    with DataLoader(torch.arange(6), 2, num_workers=2, **options) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
print(sys._is_gil_enabled())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


class Meets:
    """Each of two samples runs Python code until the other one has begun. Neither waits, nor calls the system."""

    def __init__(self):
        self.begun = [False, False]

    def __len__(self):
        return 2

    def __getitem__(self, i):
        self.begun[i] = True
        deadline = time.monotonic() + PATIENCE
        while not self.begun[1 - i]:
            if time.monotonic() > deadline:
                raise TimeoutError("the other sample did not run at the same time")
        return i


def test_worker_threads_run_python_code_at_the_same_time():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(4 * PATIENCE)  # with the GIL, the thread that has it would keep it until it gives up
    try:
        with DataLoader(Meets(), 1, num_workers=2, workers="thread", output="numpy") as loader:
            assert [batch.tolist() for batch in loader] == [[0], [1]]
    finally:
        sys.setswitchinterval(interval)


class Drawn:
    """Samples of several types, with random numbers."""

    def __len__(self):
        return 1200

    def __getitem__(self, i):
        own = get_worker_info().rng
        return i, own.random_generator.random(), own.numpy_generator.random(), {"name": str(i), "row": np.full(3, i)}


@pytest.mark.parametrize("options", [{"shuffle": True}, {"chunk_size": 2}], ids=str)
def test_batches_are_those_of_one_thread_while_another_controls_the_loader(options):
    """The controls go through all states of the engine while worker threads produce."""

    def epoch(num_workers, control):
        rng.seed_everything(7)
        options_here = {"num_workers": num_workers, "workers": "thread", "output": "numpy", **options}
        with DataLoader(Drawn(), 4, **options_here) as loader, controlled(loader, control):
            return [repr(batch) for _ in range(2) for batch in loader]

    expected = epoch(1, lambda _loader, _step: None)
    assert epoch(4, control_step) == expected


def control_step(loader, step):
    match step % 4:
        case 0:
            loader.restart_workers()
        case 1:
            loader.num_workers = 2 + step % 3
        case 2:
            assert loader.stats()
            loader.pause()
            loader.resume()
        case 3:
            assert loader.events.batches() is not None


class controlled:  # noqa: N801  used as a function
    """Context manager that calls a function again and again, on a thread of its own."""

    def __init__(self, loader, control):
        self._ends = threading.Event()
        self._errors = []
        self._thread = threading.Thread(target=self._run, args=(loader, control))

    def _run(self, loader, control):
        try:
            for step in itertools.count():
                control(loader, step)
                if self._ends.wait(0.003):
                    return
        except Exception as error:
            self._errors.append(error)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_exc):
        self._ends.set()
        self._thread.join()
        assert not self._errors
