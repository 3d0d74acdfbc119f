"""Messages of a dashboard are handled while a cell is running, on each supported ipykernel; others keep their order."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_client import BlockingKernelClient, KernelManager

from nbloader.frontend import comm

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parent.parent
KERNELS = Path(sys.prefix) / "kernels"
TIMEOUT = 90

SETUP = """
import time, threading
from comm import create_comm
from nbloader.frontend import comm as ours
got = []
def listen(name):
    c = create_comm(target_name="test", comm_id=name)
    def on_msg(msg):
        got.append((name, msg["content"]["data"]["n"]))
        print("handled", name, msg["content"]["data"]["n"])
    c.on_msg(on_msg)
    return c
mine, other = listen("mine"), listen("other")
ours.adopt(mine)
"""
BUSY = """
print("busy")
deadline = time.monotonic() + 20
event = threading.Event()
while len(got) < 3 and time.monotonic() < deadline:
    event.wait(0.02)
    ours.pump()
print("cell saw", got)
"""


REPLY_HIDES_A_REQUEST = """
import select, zmq
kernel = get_ipython().kernel
def reply():
    socket = kernel.shell_stream.socket
    socket.EVENTS  # whatever came before counts as noticed
    print("busy")
    select.select([socket.FD], [], [], 20)
    kernel.shell_channel_thread.manager._send_on_shell_channel([b"nobody", b""])
    replied.set()
replied = threading.Event()
if getattr(kernel, "shell_channel_thread", None) is None:
    print("busy")
else:
    kernel.shell_channel_thread.io_loop.add_callback(reply)
    replied.wait(20)
deadline = time.monotonic() + 20
while not got and time.monotonic() < deadline:
    time.sleep(0.02)
    ours.pump()
print("cell saw", got)
"""


@pytest.fixture(scope="module", params=["current", "ipykernel-6.30", "ipykernel-7.0", "ipykernel-7.3"])
def client(request: pytest.FixtureRequest) -> Iterator[BlockingKernelClient]:
    """A client of a kernel of each version."""
    path = [str(ROOT)]
    if request.param != "current":
        path.insert(0, str(KERNELS / request.param))
        if not (KERNELS / request.param).is_dir():
            pytest.skip(f"{request.param} is not installed beside {sys.prefix}; make test installs it")
    manager = KernelManager()
    manager.start_kernel(env=os.environ | {"PYTHONPATH": os.pathsep.join(path)})
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=TIMEOUT)
    yield client
    client.stop_channels()
    manager.shutdown_kernel()
    manager.cleanup_resources()
    manager.context.destroy()


def run(client: BlockingKernelClient, code: str) -> str:
    return until_idle(client, client.execute(code))


def begin(client: BlockingKernelClient, code: str) -> str:
    """Execute a cell, and return its id once it has printed that it is busy."""
    cell = client.execute(code)
    while client.get_iopub_msg(timeout=TIMEOUT)["content"].get("text", "").strip() != "busy":
        pass
    return cell


def until_idle(client: BlockingKernelClient, parent: str) -> str:
    """Return what is printed with a cell as its parent until the cell is idle, and its reply was sent.

    A request that arrives while ipykernel 7.0 to 7.3 sends a reply may never be read (ipython/ipykernel#1554).
    """
    printed = []
    ended = False
    while not ended:
        msg = client.get_iopub_msg(timeout=TIMEOUT)
        if msg["parent_header"].get("msg_id") != parent:
            continue
        if msg["msg_type"] == "stream":
            printed.append(msg["content"]["text"])
        assert msg["msg_type"] != "error", msg["content"]
        # the pump sends "idle" for the comm's message, never for the cell
        ended = msg["msg_type"] == "status" and msg["content"]["execution_state"] == "idle"
    while client.get_shell_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != parent:
        pass
    return "".join(printed)


def send(client: BlockingKernelClient, comm_id: str, number: int) -> None:
    client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": comm_id, "data": {"n": number}}))


@pytest.mark.leaves_behind("the kernel's client keeps a thread and sockets until its fixture ends")
def test_adopted_messages_are_handled_in_a_busy_cell_and_all_others_after_it_in_order(
    client: BlockingKernelClient,
) -> None:
    run(client, SETUP)
    cell = begin(client, BUSY)
    send(client, "mine", 1)
    send(client, "other", 2)
    next_cell = client.execute("print('next cell saw', got)")
    send(client, "mine", 3)
    send(client, "mine", 4)

    printed = until_idle(client, cell)
    # The parent of what the handler printed is the running cell.
    assert "handled mine 1\nhandled mine 3\nhandled mine 4\n" in printed
    assert "cell saw [('mine', 1), ('mine', 3), ('mine', 4)]" in printed
    # The message for another widget was sent before the next cell, and is handled before it.
    assert "('mine', 4), ('other', 2)]" in until_idle(client, next_cell)


@pytest.mark.leaves_behind("the kernel's client keeps a thread and sockets until its fixture ends")
def test_the_kernel_works_as_before_after_pumping(client: BlockingKernelClient) -> None:
    assert "1 2 3" in run(client, "ours.pump(); ours.pump(); print(1, 2, 3)")
    send(client, "mine", 9)
    assert "True" in run(client, "print(('mine', 9) in got)")


@pytest.mark.leaves_behind("the kernel's client keeps a thread and sockets until its fixture ends")
def test_a_request_that_arrives_while_the_kernel_replies_is_handled_in_a_busy_cell(
    client: BlockingKernelClient,
) -> None:
    run(client, SETUP)
    cell = begin(client, REPLY_HIDES_A_REQUEST)
    send(client, "mine", 7)
    assert "cell saw [('mine', 7)]" in until_idle(client, cell)


def test_pumping_without_a_kernel_does_nothing() -> None:
    assert comm.pump() == 0


def test_pumping_on_another_thread_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "_kernel", lambda: pytest.fail("asked for the kernel"))
    results: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(target=lambda: results.put(comm.pump()))
    thread.start()
    thread.join()
    assert results.get_nowait() == 0


@pytest.mark.parametrize("kernel", [SimpleNamespace(), SimpleNamespace(shell_channel_thread=object())])
def test_an_unknown_kernel_is_left_alone(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    monkeypatch.setattr(comm, "_kernel", lambda: kernel)
    assert comm.pump() == 0


def test_adopting_anything_but_a_comm_does_nothing() -> None:
    comm.adopt(None)
    comm.adopt(object())
