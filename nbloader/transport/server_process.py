"""The process of a fork server: it imports what workers need, forks them on request, and kills them when it ends.

It has one thread, and `forkserver` starts it in a new interpreter. Everything that it imports delays the first batch of
a loader, so this module imports neither `subprocess` nor `multiprocessing`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from nbloader.transport.channel import Channel, Kind
from nbloader.transport.child_process import die_with_parent, run_and_exit, use_outputs

LIFELINE = struct.Struct("<q")
"""Content of a lifeline: the pid, then `~status` (negative), with the wait status as `os.waitpid` returns it."""

WORKER_MODULE = "nbloader.workers.process_worker"
"""The module whose `main(fd)` runs a worker. The server imports it by name, as this package does not import workers."""
TEMPLATE_MODULE = "nbloader.transport.template"
"""The module whose `main(fd)` runs a template."""
MANY = 1000
"""A number larger than the thread count of any process that nbloader starts."""
SAFE_THREADS = (b"jemalloc_bg_thd",)
"""Names of native threads that do not make a fork unsafe: their library, jemalloc, takes its locks before a fork and
does not need the threads in the child. Importing pyarrow or Hugging Face's datasets starts one."""
UNUSED_S = 60.0
"""Seconds after which a server that was started early ends if no loader uses it."""


def main(fd: int, early: tuple[str, ...] = ()) -> None:
    """Run the server: fork workers on request, report when they end, and kill them when the notebook's process is gone.

    Args:
        fd: Descriptor of the connected socket.
        early: Modules to import first. If there are any, the server ends unless a request arrives within `UNUSED_S`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _suspend_tracing()
    importlib.import_module(WORKER_MODULE)  # what every worker needs, imported once
    _import_all(early)
    serve(Channel(socket.socket(fileno=fd), blocking=True), UNUSED_S if early else None)


_frames_to_trace: list[int] = []
"""The frame limit with which workers start tracemalloc; empty if they do not start it."""


def _suspend_tracing() -> None:
    """Stop tracemalloc, which PYTHONTRACEMALLOC or `-X` may have started, until this process becomes a worker.

    With 25 frames, importing torch takes 54 s of CPU time instead of 1.4 s, and nobody needs the server's allocations.
    """
    if os.environ.get("PYTHONTRACEMALLOC") or "tracemalloc" in sys._xoptions:
        import tracemalloc  # imported only if needed: it would slow down every start

        if tracemalloc.is_tracing():
            _frames_to_trace.append(tracemalloc.get_traceback_limit())
            tracemalloc.stop()


def _resume_tracing() -> None:
    if _frames_to_trace:
        import tracemalloc

        tracemalloc.start(_frames_to_trace[0])


def serve(channel: Channel, timeout: float | None = None, *, threads: int = 1) -> NoReturn:
    """Fork workers on request until the connection closes, then kill the workers that still run.

    Args:
        channel: The connection to the notebook's process.
        timeout: Seconds within which the first request must come; None for no limit.
        threads: Number of threads of this process. It forks only if it has one: another thread might hold a lock.
    """
    wakeup, wakeup_write = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wakeup_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_write)
    lifelines: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        while True:
            ready = selector.select(timeout)
            if not ready and timeout is not None:
                os._exit(0)
            for key, _events in ready:
                if key.fileobj is channel:
                    try:
                        frames = channel.receive()
                    except EOFError:
                        _kill_all(lifelines)
                        os._exit(0)  # with torch imported, a normal exit takes a second
                    for kind, body in frames:
                        inherited = [selector.fileno(), wakeup, wakeup_write, *lifelines.values()]
                        if kind == Kind.CLONE:
                            _clone_server(channel, bytes(body), inherited)
                            continue
                        timeout = None
                        _import_all(pickle.loads(body))
                        if kind != Kind.PRELOAD:
                            module = WORKER_MODULE if kind == Kind.FORK else TEMPLATE_MODULE
                            _fork_worker(channel, lifelines, inherited, module, threads)
                else:
                    os.read(wakeup, 4096)
                    _reap(lifelines)


def _clone_server(channel: Channel, request: bytes, inherited: list[int]) -> None:
    """Fork another server, which imports packages and then serves."""
    try:
        sock = channel.take_fd()
    except OSError:  # the notebook's process sees the connection close
        return
    try:
        gc.freeze()
        pid = os.fork()
    except OSError:
        pid = -1
    if pid:
        os.close(sock)
        return
    try:
        signal.set_wakeup_fd(-1)
        for fd in (channel.fileno(), *inherited):
            os.close(fd)
        ours = Channel(socket.socket(fileno=sock), blocking=True)
        ours.send(Kind.CLONE, str(os.getpid()).encode())
        # If the packages leave threads: with too many open files, no module could be imported later.
        importlib.import_module("nbloader.transport.interpreter")
        packages, environment, early = pickle.loads(request)
        environment.install()
        _import_packages(packages)
        threads = _count_threads()
        ours.send(Kind.CLONE, str(threads).encode())
        serve(ours, UNUSED_S if early else None, threads=threads)
    except (OSError, EOFError):  # the notebook's process has ended, or no longer needs this server
        os._exit(0)
    finally:
        os._exit(1)


def _import_packages(names: Iterable[str]) -> None:
    """Import modules of installed packages.

    If these import modules of the user's own, those are unloaded again: they may change, and workers import them.
    """
    from nbloader.transport.preload import is_installed  # only clones need it

    before = set(sys.modules)
    _import_all(names)
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        if "__file__" in vars(module) and not is_installed(module):
            del sys.modules[name]


def _count_threads() -> int:
    """Count the threads of this process, including native ones, but not those that are safe in forks.

    The result is `MANY` if the process uses an accelerator, which a forked child cannot use.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return MANY
    try:
        tasks = list(Path("/proc/self/task").iterdir())
    except OSError:  # only Linux has it
        return threading.active_count()
    return sum(not _is_safe_in_forks(task) for task in tasks)


def _is_safe_in_forks(task: Path) -> bool:
    """Whether a thread does not make a fork unsafe: its library prepares it for forks, or it has ended."""
    try:
        return (task / "comm").read_bytes().strip() in SAFE_THREADS
    except OSError:
        return True


def _fork_worker(channel: Channel, lifelines: dict[int, int], inherited: list[int], module: str, threads: int) -> None:
    fds: list[int] = []
    try:
        for _ in range(4):
            fds.append(channel.take_fd())  # noqa: PERF401 - those before the failure are needed
    except OSError as error:
        _refuse(error, fds)
        return
    lifeline, stderr, sock, stdout = fds
    gc.freeze()  # a collection in a worker would copy the pages of all objects that exist now
    try:
        pid = os.fork() if threads == 1 else _spawn_worker(sock, stdout, stderr, module)
    except OSError as error:
        _refuse(error, fds)
        return
    if pid == 0:
        for fd in (channel.fileno(), lifeline, *inherited):
            os.close(fd)
        _become_worker(sock, stdout, stderr, module)
    lifelines[pid] = lifeline
    with contextlib.suppress(BrokenPipeError):  # the pool has given up: the worker will see a closed connection
        os.write(lifeline, LIFELINE.pack(pid))
    for fd in (sock, stdout, stderr):
        os.close(fd)


def _spawn_worker(sock: int, stdout: int, stderr: int, module: str) -> int:
    """Start a worker in a new interpreter, since this process has other threads. Returns its pid."""
    from nbloader.transport.interpreter import start_interpreter  # imported by `_clone_server`

    entry = f"from nbloader.transport.child_process import die_with_parent; die_with_parent(); import {module} as w"
    process = start_interpreter(f"{entry}; w.main({sock})", sock, stdout=stdout, stderr=stderr)
    process.returncode = 0  # `_reap` waits for it
    return process.pid


def _refuse(error: OSError, fds: list[int]) -> None:
    """Report that no worker could be started: the pool sees the lifeline close, and a text as the worker's last output.

    Args:
        error: The reason.
        fds: The descriptors of the request that were received, in order.
    """
    if len(fds) > 1:
        with contextlib.suppress(BrokenPipeError):  # the pool has given up
            os.write(fds[1], f"no process could be started: {error}\n".encode())
    for fd in fds:
        os.close(fd)


def _become_worker(sock: int, stdout: int, stderr: int, module: str) -> NoReturn:
    def work() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.enable()
        die_with_parent()
        use_outputs(stdout, stderr)
        _resume_tracing()
        importlib.import_module(module).main(sock)

    run_and_exit(work)


def _import_all(names: Iterable[str]) -> None:
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):  # the worker will raise the same error and report it
                __import__(name)


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


def _kill_all(lifelines: dict[int, int]) -> None:
    for pid in lifelines:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in lifelines:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
