"""A small process that forks workers, so that the notebook's own process is never forked.

A kernel has many threads, and a fork of it can deadlock. The fork server is started once for the notebook's process,
imports what all workers need (numpy, and torch where a dataset uses it), has one thread, and forks a worker in 8 ms.

`multiprocessing`'s own fork server is not used because it imports `__main__` again in each worker, cannot import
more once it runs (torch, when the second dataset needs it), and leaves its children running when the parent is killed
and a child hangs. This one kills them: it sees the connection close.

For each worker the notebook's process gets a lifeline, the read end of a pipe: the server writes the worker's pid to
it, and its wait status when it has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from typing import NoReturn

from nbloader.wire import Channel, Kind

LIFELINE = struct.Struct("<q")
"""What a lifeline carries: the pid, then `~status` (negative) of the wait status, as `os.waitpid` gives it."""

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


# ---- the notebook's side ----------------------------------------------------------------------------------------

_lock = threading.Lock()
_server: tuple[int, Channel, subprocess.Popen[bytes]] | None = None  # (our pid, connection, process)


def python_command(entry: str) -> list[str]:
    """The command that runs `entry` (code) in a new interpreter that finds the modules which this one finds."""
    code = f"import sys; sys.path[:] = {sys.path!r}; {entry}"
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code]  # type: ignore[attr-defined]


def worker_environment() -> dict[str, str]:
    """This process's environment, with one thread for each numeric library that is not told otherwise."""
    return {**dict.fromkeys(ONE_THREAD, "1"), **os.environ}


def fork(sock: int, stdout: int, stderr: int, preload: list[str]) -> int:
    """Start a worker.

    Args:
        sock: Descriptor of the worker's end of its connection.
        stdout: Descriptor that becomes its standard output.
        stderr: Descriptor that becomes its standard error.
        preload: Modules for the server to import first (never the user's own: those may be edited).

    Returns:
        The lifeline's descriptor; the caller owns it.
    """
    lifeline, theirs = os.pipe()
    request = json.dumps(preload).encode()
    try:
        with _lock:
            fds = (sock, stdout, stderr, theirs)
            try:
                _ensure().send(Kind.FORK, request, fds=fds)
            except OSError:  # the server was killed: start another
                _forget()
                _ensure().send(Kind.FORK, request, fds=fds)
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(theirs)
    return lifeline


def start(preload: list[str]) -> None:
    """Start the server now, without waiting for it, so that the first worker need not.

    Args:
        preload: Modules for it to import.
    """
    with _lock, contextlib.suppress(OSError):  # what fails here fails again in `fork`, where somebody asks for it
        _ensure().send(Kind.PRELOAD, json.dumps(preload).encode())


def pid() -> int | None:
    """The server's pid, or None when none runs for this process."""
    server = _server
    return server[2].pid if server is not None and server[0] == os.getpid() else None


def shutdown() -> None:
    """End the server and every worker that it started. The next `fork` starts another."""
    with _lock:
        _forget()


def _ensure() -> Channel:
    global _server  # noqa: PLW0603 - one per process, like the process itself
    if _server is not None and _server[0] == os.getpid():
        return _server[1]
    ours, theirs = socket.socketpair()
    with theirs:
        entry = f"from nbloader.forkserver import main; main({theirs.fileno()})"
        process = subprocess.Popen(
            python_command(entry), pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=worker_environment()
        )
    channel = Channel(ours, blocking=True)
    _server = os.getpid(), channel, process
    return channel


def _forget() -> None:
    global _server  # noqa: PLW0603 - one per process, like the process itself
    if _server is None:
        return
    owner, channel, process = _server
    _server = None
    channel.close()
    if owner == os.getpid():
        process.wait()
    else:
        process.returncode = 0  # another process's child: not to be waited for here


weakref.finalize(_lock, shutdown)  # at exit, after the finalizers of all loaders, which are made later


# ---- the server -------------------------------------------------------------------------------------------------


def main(fd: int) -> None:
    """The server: fork workers when asked, report their ends, and kill them all when the notebook's process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    import numpy.random  # noqa: F401 - lazily imported by NumPy

    import nbloader.worker  # noqa: F401 - what every worker needs, imported once

    wakeup, wakeup_write = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    channel = Channel(socket.socket(fileno=fd), blocking=True)
    lifelines: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        while True:
            for key, _events in selector.select():
                if key.fileobj is channel:
                    try:
                        frames = channel.receive()
                    except EOFError:
                        _kill_all(lifelines)
                        os._exit(0)  # at once: with torch imported an interpreter takes a second to end
                    for kind, body in frames:
                        _import_all(json.loads(bytes(body)))
                        if kind == Kind.FORK:
                            _fork_worker(channel, lifelines, [selector.fileno(), wakeup, wakeup_write])
                else:
                    os.read(wakeup, 4096)
                    _reap(lifelines)


def _fork_worker(channel: Channel, lifelines: dict[int, int], inherited: list[int]) -> None:
    sock, stdout, stderr, lifeline = (channel.take_fd() for _ in range(4))
    try:
        pid = os.fork()
    except OSError as error:  # no process left: the worker's place sees its lifeline end, and this as its last words
        os.write(stderr, f"no process could be started: {error}\n".encode())
        for fd in (sock, stdout, stderr, lifeline):
            os.close(fd)
        return
    if pid == 0:
        for fd in (channel.fileno(), lifeline, *lifelines.values(), *inherited):
            os.close(fd)
        _become_worker(sock, stdout, stderr)
    lifelines[pid] = lifeline
    with contextlib.suppress(BrokenPipeError):  # given up meanwhile: it will see its connection closed
        os.write(lifeline, LIFELINE.pack(pid))
    for fd in (sock, stdout, stderr):
        os.close(fd)


def _become_worker(sock: int, stdout: int, stderr: int) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        from nbloader import worker

        worker.main(sock)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - nothing above this frame but the server's loop, which must not run in a worker
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def die_with_parent() -> None:
    """On Linux: have the kernel kill this process when its parent (a single-threaded one) ends."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _import_all(names: list[str]) -> None:
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):  # the worker will meet the same error and report it
                __import__(name)


def _reap(lifelines: dict[int, int]) -> None:
    while lifelines:
        pid, status = os.waitpid(-1, os.WNOHANG)
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
