"""The fork server: a small process that forks workers, so that the notebook's own process need not be forked.

A kernel has many threads, and forking it can deadlock. The fork server is started once for the notebook's process,
imports what all workers need (numpy; torch in a second server, for datasets that use it), has one thread, and forks a
worker in 8 ms.

`multiprocessing`'s own fork server is not used because it imports `__main__` again in each worker, cannot import
more modules once it runs (torch, when the second dataset needs it), and leaves its children running when the parent is
killed and a child hangs. This one kills them when its connection closes.

For each worker the notebook's process gets a lifeline, the read end of a pipe: the server writes the worker's pid to
it, and the wait status when the worker has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import NoReturn

from nbloader._util.output import flush
from nbloader._util.system import ROOT, cores, working_directory
from nbloader.transport.channel import Channel, Kind

LIFELINE = struct.Struct("<q")
"""Content of a lifeline: the pid, then `~status` (negative), with the wait status as `os.waitpid` returns it."""

WORKER_MODULE = "nbloader.workers.process_worker"
"""Its `main(fd)` runs a worker. The server process imports it by name: this package does not import workers."""
TEMPLATE_MODULE = "nbloader.transport.template"
"""Its `main(fd)` runs a template."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


# ---- the notebook's side ----------------------------------------------------------------------------------------

UNUSED_S = 60.0
"""Seconds after which a server that was started early ends if no loader uses it."""


class _Server:
    """A server's process and the connection to it.

    Args:
        early: Modules it imports before it listens, where it is started early; it ends if no loader uses it.
    """

    def __init__(self, early: tuple[str, ...] = ()) -> None:
        self.owner = os.getpid()
        self.used = False  # by a loader
        self._forked = False
        ours, theirs = socket.socketpair()
        entry = f"from nbloader.transport.forkserver import main; main({theirs.fileno()}, {early!r})"
        try:
            # A kernel that shuts down kills all children in its process group and waits until they are reaped, which
            # nobody does by then. In a session of its own the server survives that, and ends when the kernel does.
            self.process = subprocess.Popen(
                python_command(entry), pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=worker_environment(),
                start_new_session=True, cwd=None if working_directory() else ROOT,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours, blocking=True)

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def send(self, kind: Kind, preload: list[str], fds: tuple[int, ...] = ()) -> None:
        self.used = True
        self._forked |= kind != Kind.PRELOAD
        self._raise_limit()
        self._channel.send(kind, json.dumps(preload).encode(), fds=fds)

    def _raise_limit(self) -> None:
        """This process's limit of open files may have been raised since the server was started."""
        if hasattr(resource, "prlimit"):
            with contextlib.suppress(OSError, ValueError):
                ours, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                soft, hard = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
                if soft < min(ours, hard):
                    resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (min(ours, hard), hard))

    def end(self) -> None:
        """End it and every worker that it started."""
        self._channel.close()
        if self.owner == os.getpid():
            if not self._forked:
                self.process.kill()  # it may be importing, and not read its connection
            self.process.wait()
        else:
            self.process.returncode = 0  # another process's child: not to be waited for here


_lock = threading.Lock()
_servers: dict[bool, _Server] = {}
"""By whether workers need torch. A server without torch is ready in 0.2 s; torch takes another second."""


def python_command(entry: str) -> list[str]:
    """The command that runs `entry` (code) in a new interpreter that finds the modules which this one finds.

    Raises:
        OSError: This process has no interpreter that could be started (`sys.executable`).
    """
    if not sys.executable:
        raise FileNotFoundError(f"sys.executable is {sys.executable!r}: set it to the path of a Python interpreter")
    entries: list[object] = list(sys.path)  # Python ignores entries that are not str, such as a pathlib.Path
    path = [place for place in entries if isinstance(place, str)]
    code = f"import sys; sys.path[:] = {path!r}; {entry}"
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code]  # type: ignore[attr-defined]


def worker_environment() -> dict[str, str]:
    """This process's environment, with one thread for each numeric library whose number of threads is not set."""
    return {**dict.fromkeys(ONE_THREAD, "1"), **os.environ}


def start_early() -> None:
    """Start the server with torch while this process itself imports torch, in case a loader will need it.

    Then workers with torch are ready when the first loader is iterated; else they come a second later. The server ends
    if the first loader does not need torch, or if there is no loader for a minute.
    """
    a_worker = WORKER_MODULE in sys.modules or multiprocessing.parent_process() is not None
    if a_worker or cores() == 1:  # alone on its core it would only delay this process's import
        return
    with _lock, contextlib.suppress(OSError):
        if not _servers:
            _servers[True] = _Server(early=("torch",))


def start(preload: list[str]) -> None:
    """Start the server now, without waiting for it, so that the first worker need not.

    Args:
        preload: Modules for it to import.
    """
    with _lock, contextlib.suppress(OSError):  # `fork` will raise the same error, where it can be handled
        torch = _with_torch(preload)
        if not torch and True in _servers and not _servers[True].used:
            _servers.pop(True).end()
        _ensure(torch).send(Kind.PRELOAD, preload)


def fork(sock: int, stdout: int, stderr: int, preload: list[str], kind: Kind = Kind.FORK) -> int:
    """Start a worker.

    Args:
        sock: Descriptor of the worker's end of the connection.
        stdout: Descriptor that becomes its standard output.
        stderr: Descriptor that becomes its standard error.
        preload: Modules for the server to import first (never the user's own: those may be edited).
        kind: `FORK_TEMPLATE` for a template of workers instead.

    Returns:
        The lifeline's descriptor; the caller owns it.
    """

    def send(fds: tuple[int, ...]) -> None:
        torch = _with_torch(preload)
        with _lock:
            try:
                _ensure(torch).send(kind, preload, fds)
            except OSError:  # the server was killed just now: start another
                if torch in _servers:
                    _servers.pop(torch).end()
                _ensure(torch).send(kind, preload, fds)

    return request_fork(send, sock, stdout, stderr)


def request_fork(send: Callable[[tuple[int, ...]], None], sock: int, stdout: int, stderr: int) -> int:
    """Send the descriptors of a process that is to be forked.

    Args:
        send: Sends them to the process that is to fork it.
        sock: See `fork`; so are the others.
        stdout: See `fork`.
        stderr: See `fork`.

    Returns:
        The lifeline's descriptor; the caller owns it.
    """
    lifeline, theirs = os.pipe()
    try:
        send((theirs, stderr, sock, stdout))  # the first two serve to report that the others could not be received
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(theirs)
    return lifeline


def pids() -> set[int]:
    """The pids of this process's servers."""
    return {server.process.pid for server in list(_servers.values()) if server.alive()}


def shutdown() -> None:
    """End the servers and every worker that they started. The next `fork` starts another."""
    with _lock:
        while _servers:
            _servers.popitem()[1].end()


def _with_torch(preload: list[str]) -> bool:
    return any(name.startswith("torch") for name in preload)


def _ensure(torch: bool) -> _Server:
    for key, server in list(_servers.items()):
        if not server.alive():  # killed, or it was started early and has ended unused
            del _servers[key]
            server.end()
    if torch not in _servers:
        _servers[torch] = _Server()
    return _servers[torch]


def _after_fork() -> None:
    """In a forked child: the servers are the parent's, and so is whoever holds the lock."""
    global _lock  # noqa: PLW0603 - it may be held by a thread that is not here
    _lock = threading.Lock()
    while _servers:
        _servers.popitem()[1].end()


os.register_at_fork(after_in_child=_after_fork)
weakref.finalize(_Server, shutdown)  # at exit, after the finalizers of all loaders, which are registered later


# ---- the server -------------------------------------------------------------------------------------------------


def main(fd: int, early: tuple[str, ...] = ()) -> None:
    """Run the server: fork workers on request, report their ends, kill them all when the notebook's process is gone.

    Args:
        fd: Descriptor of the connected socket.
        early: Modules to import first; then the server ends if there is no request within `UNUSED_S`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # a sixth of the time of importing torch, for nothing
    import numpy.random  # noqa: F401 - lazily imported by NumPy

    importlib.import_module(WORKER_MODULE)  # what every worker needs, imported once

    channel = Channel(socket.socket(fileno=fd), blocking=True)
    _import_all(early)
    serve(channel, UNUSED_S if early else None)


def serve(channel: Channel, timeout: float | None = None) -> NoReturn:
    """Fork workers on request until the connection closes, and then kill those that run.

    Args:
        channel: The connection to the notebook's process.
        timeout: Seconds within which the first request must come; None for no limit.
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
            timeout = None
            for key, _events in ready:
                if key.fileobj is channel:
                    try:
                        frames = channel.receive()
                    except EOFError:
                        _kill_all(lifelines)
                        os._exit(0)  # with torch imported, a normal exit takes a second
                    for kind, body in frames:
                        _import_all(json.loads(bytes(body)))
                        if kind != Kind.PRELOAD:
                            module = WORKER_MODULE if kind == Kind.FORK else TEMPLATE_MODULE
                            _fork_worker(channel, lifelines, [selector.fileno(), wakeup, wakeup_write], module)
                else:
                    os.read(wakeup, 4096)
                    _reap(lifelines)


def _fork_worker(channel: Channel, lifelines: dict[int, int], inherited: list[int], module: str) -> None:
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
        pid = os.fork()
    except OSError as error:
        _refuse(error, fds)
        return
    if pid == 0:
        for fd in (channel.fileno(), lifeline, *lifelines.values(), *inherited):
            os.close(fd)
        _become_worker(sock, stdout, stderr, module)
    lifelines[pid] = lifeline
    with contextlib.suppress(BrokenPipeError):  # the pool has given it up: the worker will see its connection closed
        os.write(lifeline, LIFELINE.pack(pid))
    for fd in (sock, stdout, stderr):
        os.close(fd)


def _refuse(error: OSError, fds: list[int]) -> None:
    """No worker could be started: the pool sees the lifeline end, and this text as the worker's last output.

    Args:
        error: Why.
        fds: The request's descriptors, or the first of them.
    """
    if len(fds) > 1:
        with contextlib.suppress(BrokenPipeError):  # the pool has given it up
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
        importlib.import_module(module).main(sock)

    run_and_exit(work)


def use_outputs(stdout: int, stderr: int) -> None:
    """Take these descriptors as the standard output and error of this process."""
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)


def run_and_exit(run: Callable[[], object]) -> NoReturn:
    """In a forked process: run this and exit. Nothing of what the parent does when it exits is done."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - above this frame is only the parent's code, which must not run here
        sys.excepthook(*sys.exc_info())
    finally:
        flush(sys.stdout)
        flush(sys.stderr)
        os._exit(code)


def die_with_parent() -> None:
    """On Linux: have the kernel kill this process when the thread that has forked it ends."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _import_all(names: Iterable[str]) -> None:
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):  # the worker will raise the same error and report it
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
