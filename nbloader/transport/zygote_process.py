"""The process of a zygote: it forks workers on request, reports when they end, and kills them when it ends itself.

    pool: Zygote.fork() -> request: a frame, with descriptors -> serve() -> fork -> run(body, descriptors) -> exit
                                                                    |
    pool: lifeline <- pid, and later the wait status ---------------+

A zygote has one thread, so a fork copies no lock that another thread holds. It runs no code of the user's. It ends when
its connection closes, or when the process that started it has ended.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from nbloader._platform import HAS_ZYGOTES
from nbloader.transport.channel import Channel
from nbloader.transport.child_process import run_and_exit, use_outputs

if HAS_ZYGOTES:
    from nbloader._platform.forking import die_with_parent

LIFELINE = struct.Struct("<q")
"""Content of a lifeline: the pid, then `~status` (negative), with the wait status as `os.waitpid` returns it."""

WORKER_MODULE = "nbloader.workers.process_worker"
"""The module whose `main(fd)` runs a worker. A clean zygote imports it by name: this package does not import workers.
"""


class WorkerFds(NamedTuple):
    """The descriptors of a worker, in the order in which they are sent after the lifeline.

    Standard error comes first: together with the lifeline, it can report that the others could not be received.
    """

    stderr: int
    sock: int
    """The connection to the notebook's process."""
    stdout: int
    status: int
    """The file for the worker's `SharedStatus`."""
    stack: int
    """The pipe for the worker's stack."""


Run = Callable[[bytes, WorkerFds], object]


def main(fd: int, preload: tuple[str, ...]) -> None:
    """Run a clean zygote, in a new interpreter.

    Args:
        fd: Descriptor of the connected socket.
        preload: Further modules to import, once for all workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = importlib.import_module(WORKER_MODULE)
    for name in preload:
        with contextlib.suppress(Exception):  # the worker will raise the same error and report it
            importlib.import_module(name)

    def run(_body: bytes, fds: WorkerFds) -> None:
        gc.enable()
        use_outputs(fds.stdout, fds.stderr)
        os.close(fds.status)  # the pool sends them again, with the dataset
        os.close(fds.stack)
        worker.main(fds.sock)

    serve(Channel(socket.socket(fileno=fd), blocking=True), run)


def serve(channel: Channel, run: Run, parent: int | None = None) -> NoReturn:
    """Fork workers on request until the connection closes, then kill the workers that still run.

    Args:
        channel: The connection to the notebook's process.
        run: Runs a worker, given the body of the request and the worker's descriptors. The process exits when it
            returns.
        parent: A descriptor that becomes readable when the notebook's process ends, even if another process keeps the
            connection open. None for a clean zygote.
    """
    wakeup, wakeup_write = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wakeup_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_write)
    lifelines: dict[int, int] = {}
    own = [channel.fileno(), wakeup, wakeup_write, *([] if parent is None else [parent])]
    poll = select.poll()
    for fd in set(own) - {wakeup_write}:
        poll.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _events in poll.poll()}
        if wakeup in ready:
            os.read(wakeup, 4096)
            _reap(lifelines)
        if parent in ready:
            _kill_all(lifelines)
        if channel.fileno() in ready:
            try:
                frames = channel.receive()
            except (EOFError, OSError):
                _kill_all(lifelines)
            for _kind, body in frames:
                _fork_worker(channel, lifelines, own, functools.partial(run, bytes(body)))


def _fork_worker(
    channel: Channel, lifelines: dict[int, int], own: list[int], run: Callable[[WorkerFds], object]
) -> None:
    fds: list[int] = []
    try:
        for _ in range(1 + len(WorkerFds._fields)):
            fds.append(channel.take_fd())  # noqa: PERF401 - those before the failure are needed
        gc.freeze()  # a collection in a worker would copy the pages of all objects that exist now
        pid = os.fork()
    except OSError as error:
        _refuse(error, fds)
        return
    lifeline, *others = fds
    if pid == 0:
        for fd in (lifeline, *own, *lifelines.values()):
            os.close(fd)
        become_worker(run, WorkerFds(*others))
    lifelines[pid] = lifeline
    with contextlib.suppress(BrokenPipeError):  # the pool has given up: the worker will see a closed connection
        os.write(lifeline, LIFELINE.pack(pid))
    for fd in others:
        os.close(fd)


def become_worker(run: Callable[[WorkerFds], object], fds: WorkerFds) -> NoReturn:
    """In the forked process: run a worker, and exit.

    `stack_probe` recognizes the frame of this function: the frames outside it belong to the zygote and the notebook.
    """

    def work() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent()
        run(fds)

    run_and_exit(work)


def _refuse(error: OSError, fds: list[int]) -> None:
    """Report that no worker could be started: a text as its last output, and an exit code.

    Without an exit code, the worker would count as ended together with this process.

    Args:
        error: The reason.
        fds: The descriptors of the request that were received, in order.
    """
    with contextlib.suppress(BrokenPipeError):  # the pool has given up
        if len(fds) > 1:
            os.write(fds[1], f"no process could be started: {error}\n".encode())
        if fds:
            os.write(fds[0], LIFELINE.pack(~(os.EX_OSERR << 8)))
    for fd in fds:
        os.close(fd)


def _reap(lifelines: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        lifeline = lifelines.pop(pid, None)
        if lifeline is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(lifeline, LIFELINE.pack(~status))
            os.close(lifeline)


def _kill_all(lifelines: dict[int, int]) -> NoReturn:
    for pid in lifelines:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in lifelines:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    os._exit(0)  # with torch imported, a normal exit takes a second
