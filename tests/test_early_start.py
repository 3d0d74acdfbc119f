"""When the process that workers are forked from starts: with a loader, with `warm_up()`, or early in a notebook."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import types

import pytest
from datasets import run_script
from jupyter_client import KernelManager

from nbloader._util import system
from nbloader.transport import interpreter

ROOT = pathlib.Path(__file__).parent.parent
TIMEOUT = 90

CHILDREN = """
import json, psutil
import nbloader
def children():
    return [p.pid for p in psutil.Process().children()]
"""


def printed_by_script(code, tmp_path):
    done = run_script(CHILDREN + code, tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_in_a_script_neither_the_import_nor_a_lookup_starts_a_process(tmp_path):
    code = """
looked_up = [getattr(nbloader, name) for name in nbloader.__all__]
from nbloader import DataLoader
DataLoader([1, 2], 2).close()
DataLoader([1, 2], 2, workers="thread", num_workers=1).close()
print(json.dumps(children()))
"""
    assert printed_by_script(code, tmp_path) == []


def test_in_a_script_a_loader_with_worker_processes_starts_one(tmp_path):
    code = """
loader = nbloader.DataLoader([1, 2], 2, num_workers=1)
print(json.dumps(len(children())))
loader.close()
"""
    assert printed_by_script(code, tmp_path) == 1


@pytest.mark.skipif(system.cores() == 1, reason="on one core nothing starts early")
def test_warm_up_starts_one_that_the_first_loader_uses(tmp_path):
    code = """
nbloader.warm_up()
early = children()
import torch
class Tensors(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): return torch.tensor(i)
if __name__ == "__main__":
    with nbloader.DataLoader(Tensors(), 2, num_workers=1) as loader:
        list(loader)
        print(json.dumps([len(early), children() == early]))
"""
    assert printed_by_script(code, tmp_path) == [1, True]


KERNELS = {"a kernel": ({}, "1"), "switched off": ({"NBLOADER_EARLY_START": "0"}, "0")}
"""Environment variables, and the processes that a lookup starts with them."""


@pytest.fixture(scope="module", params=KERNELS)
def kernel(request, tmp_path_factory):
    """A client of a new kernel, and the processes that a lookup starts there."""
    environment, started = KERNELS[request.param]
    manager = KernelManager()
    manager.start_kernel(
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, cwd=tmp_path_factory.mktemp("kernel")
    )
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=TIMEOUT)
    yield client, started
    client.stop_channels()
    manager.shutdown_kernel()
    manager.cleanup_resources()
    manager.context.destroy()


@pytest.mark.skipif(system.cores() == 1, reason="on one core nothing starts early")
def test_in_a_kernel_the_lookup_of_dataloader_starts_one_unless_that_is_off(kernel):
    client, started = kernel
    printed = []

    def collect(message):
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    for line in ("", "nbloader.share", "nbloader.DataLoader"):
        cell = f"{CHILDREN}\n{line}\nprint(len(children()))"
        reply = client.execute_interactive(cell, timeout=TIMEOUT, output_hook=collect)
        assert reply["content"]["status"] == "ok", reply["content"]
    assert "".join(printed).split() == ["0", "0", started]


def test_what_only_looks_like_a_kernel_is_none(tmp_path):
    """IPython in a terminal, and a script that has imported ipykernel."""
    code = """
import ipykernel, IPython
from IPython.terminal.interactiveshell import TerminalInteractiveShell
nbloader.DataLoader
before = len(children())
del nbloader.DataLoader
TerminalInteractiveShell.instance()
nbloader.DataLoader
print(json.dumps([before, len(children())]))
"""
    assert printed_by_script(code, tmp_path) == [0, 0]


@pytest.mark.parametrize("kernel", [True, False])
def test_the_debugger_of_a_notebook_leaves_new_interpreters_alone(kernel, monkeypatch):
    """That of an IDE may debug them, too."""
    skipping = []

    @contextlib.contextmanager
    def skip_subprocess_arg_patch():
        skipping.append(True)
        yield
        skipping.pop()

    debugger = types.SimpleNamespace(skip_subprocess_arg_patch=skip_subprocess_arg_patch)
    monkeypatch.setitem(sys.modules, "pydevd", debugger)
    monkeypatch.setattr(interpreter, "in_kernel", lambda: kernel)
    monkeypatch.setattr(interpreter.subprocess, "Popen", lambda *_args, **_options: bool(skipping))
    assert interpreter.start_interpreter("pass", 0) is kernel
    assert not skipping
