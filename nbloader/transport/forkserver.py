"""The fork server: a small process that forks workers, so that the notebook's own process need not be forked.

A kernel has many threads, and forking it can deadlock. The fork server is started once for the notebook's process,
imports what all workers need (numpy; torch in a second server, for datasets that use it), has one thread, and forks a
worker in 8 ms. For a dataset that needs other large packages, it forks a clone of itself, which imports them once and
forks the workers: a loader that does not need them never waits for their import.

    notebook --CLONE(packages)--> server --fork--> clone: import packages
             --FORK-------------------------------> clone --fork--> worker

`multiprocessing`'s own fork server is not used because it imports `__main__` again in each worker, cannot import
more modules once it runs (torch, when the second dataset needs it), and leaves its children running when the parent is
killed and a child hangs. This server kills its children when its connection closes.

For each worker the notebook's process gets a lifeline, the read end of a pipe: the server writes the worker's pid to
it, and the wait status when the worker has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import multiprocessing
import os
import pickle
import resource
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from nbloader._util.descriptors import close_all, open_into
from nbloader._util.output import flush
from nbloader._util.system import ROOT, cores, working_directory
from nbloader.transport import preload
from nbloader.transport.channel import Channel, Kind
from nbloader.transport.environment import Environment, in_kernel

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
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


# ---- the notebook's side ----------------------------------------------------------------------------------------

UNUSED_S = 60.0
"""Seconds after which a server that was started early ends if no loader uses it."""


END_TIMEOUT = 5.0
"""Seconds to wait for a server to end after its connection was closed."""
MAX_CLONES = 8
"""Maximum number of clones: servers that have imported further packages, for different loaders."""


class _Server:
    """A server's process and the connection to it."""

    owner: int
    """Pid of the process that may end the server. A forked child of that process may not."""
    packages: frozenset[str] = frozenset()
    """Packages that the server has imported or is importing."""
    used = False
    """Whether a loader has sent it a request."""

    def __init__(self, sock: socket.socket) -> None:
        self.owner = os.getpid()
        self._forked = False
        self._channel = Channel(sock, blocking=True)

    @property
    def pid(self) -> int:
        """Its process id."""
        raise NotImplementedError

    def alive(self) -> bool:
        """Whether the server can receive requests."""
        raise NotImplementedError

    def send(self, kind: Kind, preload: list[str], fds: tuple[int, ...] = ()) -> None:
        """Send a request."""
        self.used = True
        self._forked |= kind != Kind.PRELOAD
        self._raise_limit()
        self._channel.send(kind, pickle.dumps(preload), fds=fds)

    def clone(self, packages: frozenset[str], *, early: bool = False) -> _Clone:
        """Make the server fork another one, which inherits all its modules and imports further packages.

        Args:
            packages: The packages to import.
            early: Whether the new server ends if no loader uses it.

        Raises:
            OSError: The server has ended.
        """
        self.used |= not early
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                body = pickle.dumps((sorted(packages), Environment.of_this_process()._replace(settings=None), early))
                self._channel.send(Kind.CLONE, body, fds=(theirs.fileno(),))
            except BaseException:
                ours.close()
                raise
        return _Clone(ours, self.packages | packages, packages)

    def end(self) -> None:
        """End the server and every worker that it started."""
        raise NotImplementedError

    def _raise_limit(self) -> None:
        """Raise the server's limit of open files to this process's, which may have been raised since the start."""
        if hasattr(resource, "prlimit") and self.pid:
            with contextlib.suppress(OSError, ValueError):
                ours, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                soft, hard = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
                if soft < min(ours, hard):
                    resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (min(ours, hard), hard))


class _Base(_Server):
    """A server in a new interpreter.

    Args:
        early: Modules to import before the server listens. Only for a server that is started early; it ends if no
            loader uses it.
    """

    def __init__(self, early: tuple[str, ...] = ()) -> None:
        ours, theirs = socket.socketpair()
        # Garbage collections would take a sixth of the import time and free nothing; workers enable them again.
        entry = f"import gc; gc.disable(); from {__name__} import main; main({theirs.fileno()}, {early!r})"
        try:
            # A kernel that shuts down kills all children in its process group and waits until they are reaped, but
            # nothing reaps them at that point. In its own session the server survives that, and ends with the kernel.
            self.process = start_interpreter(
                entry, theirs.fileno(), env=worker_environment(), start_new_session=True,
                cwd=None if working_directory() else ROOT,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        super().__init__(ours)

    @property
    def pid(self) -> int:
        """See `_Server`."""
        return self.process.pid

    def alive(self) -> bool:
        """See `_Server`."""
        return self.owner == os.getpid() and self.process.poll() is None

    def end(self) -> None:
        """See `_Server`."""
        self._channel.close()
        if self.owner == os.getpid():
            if not self._forked:
                self.process.kill()  # it may be importing and not reading its connection
            self.process.wait()
        else:
            self.process.returncode = 0  # another process's child: cannot be waited for here


class _Clone(_Server):
    """A server forked from another server. It imports packages without delaying loaders that do not need them.

    Args:
        sock: The connection to the clone.
        packages: See `_Server`.
        importing: The packages that the clone must import; it has the others already.
    """

    def __init__(self, sock: socket.socket, packages: frozenset[str], importing: frozenset[str]) -> None:
        super().__init__(sock)
        self.packages = packages
        self.importing = importing
        """Packages that the clone is importing now."""
        self.threads = 0
        """How many threads the clone had after the imports. If more than one, it starts new interpreters instead of
        forking."""
        self._pid = 0
        self._pidfds: list[int] = []  # one, where the system has them
        weakref.finalize(self, close_all, self._pidfds).atexit = False
        self._ended = False

    @property
    def pid(self) -> int:
        """See `_Server`. 0 until the clone has reported it."""
        self._receive(wait=False)
        return self._pid

    def await_pid(self) -> int:
        """Wait until the clone has reported its pid, and return the pid; 0 if the clone has ended before."""
        while not (self._pid or self._ended):
            self._receive(wait=True)
        return self._pid

    def alive(self) -> bool:
        """See `_Server`."""
        self._receive(wait=False)
        return self.owner == os.getpid() and not self._ended

    def _receive(self, *, wait: bool) -> None:
        try:
            for _kind, body in [] if self._ended else self._channel.receive(wait=wait):
                if not self._pid:
                    self._pid = int(bytes(body))
                    with contextlib.suppress(OSError, AttributeError):  # only Linux has pidfds
                        open_into(self._pidfds, os.pidfd_open, self._pid)
                else:
                    self.threads = int(bytes(body))
                    self.importing = frozenset()
        except (EOFError, OSError):
            self._ended = True

    def end(self) -> None:
        """See `_Server`."""
        ours = self.owner == os.getpid()
        if ours:
            self._receive(wait=False)
        self._channel.close()
        if self._pidfds and ours:
            if not self._forked:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfds[0], signal.SIGKILL)
            select.select(self._pidfds, [], [], END_TIMEOUT)
        close_all(self._pidfds)


_lock = threading.Lock()
_servers: dict[bool, _Base] = {}
"""The base servers, keyed by whether workers need torch. A server without torch is ready in 0.2 s; torch takes another
second."""
_clones: list[_Clone] = []
"""Servers that have imported, or are importing, further packages."""
_not_preloaded: set[str] = set()
"""Packages whose import ended a server or left threads in it: each worker imports them itself."""


def python_command(entry: str) -> list[str]:
    """Return the command that runs `entry` (code) in a new interpreter with the `sys.path` of this one.

    Raises:
        OSError: There is no interpreter to start: `sys.executable` is empty.
    """
    if not sys.executable:
        raise FileNotFoundError(f"sys.executable is {sys.executable!r}: set it to the path of a Python interpreter")
    entries: list[object] = list(sys.path)  # Python ignores entries that are not str, such as a pathlib.Path
    path = [place for place in entries if isinstance(place, str)]
    code = f"import sys; sys.path[:] = {path!r}; {entry}"
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code]  # type: ignore[attr-defined]


def start_interpreter(entry: str, fd: int, **options: Any) -> subprocess.Popen[bytes]:
    """Run code in a new interpreter.

    pydevd, on which JupyterLab's debugger is built, changes the command of each new interpreter so that it is debugged
    too. But a kernel's debugger supports only one process: the new interpreter would wait for the debugger, imports
    would take many times as long, and pydevd's threads would keep the process alive after the kernel has ended. In a
    kernel, that change is therefore skipped. The debuggers of IDEs, which do debug child processes, still attach.

    Args:
        entry: The code.
        fd: A descriptor that the process inherits.
        **options: Further arguments of `subprocess.Popen`.

    Raises:
        OSError: The process cannot be started.
    """
    skip = getattr(sys.modules.get("pydevd"), "skip_subprocess_arg_patch", None)
    with skip() if skip is not None and in_kernel() else contextlib.nullcontext():
        return subprocess.Popen(python_command(entry), pass_fds=(fd,), stdin=subprocess.DEVNULL, **options)


def worker_environment() -> dict[str, str]:
    """Return this process's environment, with one thread for each numeric library whose thread count is not set."""
    return {**dict.fromkeys(ONE_THREAD, "1"), **os.environ}


def start_early() -> None:
    """Start the server with torch, if torch is installed, while this process imports torch itself.

    Workers with torch are then ready when the first loader is iterated; otherwise they start a second later. A clone of
    the server imports the large packages that need torch and that this process has imported. The servers end if the
    first loader does not need torch, or if there is no loader for a minute.
    """
    a_worker = WORKER_MODULE in sys.modules or multiprocessing.parent_process() is not None
    if a_worker or cores() == 1:  # on a single core the server would only delay this process's import
        return
    with _lock, contextlib.suppress(OSError):  # the first loader will raise the same error
        if not _servers:
            if importlib.util.find_spec("torch") is None:
                _servers[False] = _Base(early=("numpy",))
                return
            _servers[True] = _Base(early=("torch",))
            _servers[True].packages = _first_packages(torch=True)
            packages = preload.imported_with_torch()
            if packages:
                _clones.append(_servers[True].clone(packages, early=True))


def start(preload: list[str], packages: frozenset[str] = frozenset()) -> None:
    """Start the server now, without waiting for it, so that it is ready for the first worker.

    Args:
        preload: Modules for the server to import.
        packages: Further modules of installed packages that workers will need.
    """
    with _lock, contextlib.suppress(OSError):  # `fork` will raise the same error, where it can be handled
        torch = _with_torch(preload)
        if not torch:
            _end_unused()
        _server_for(torch, packages).send(Kind.PRELOAD, preload)


def fork(
    sock: int,
    stdout: int,
    stderr: int,
    lifeline: int,
    preload: list[str],
    kind: Kind = Kind.FORK,
    *,
    packages: frozenset[str] = frozenset(),
) -> None:
    """Start a worker.

    Args:
        sock: Descriptor of the worker's end of the connection.
        stdout: Descriptor that becomes its standard output.
        stderr: Descriptor that becomes its standard error.
        lifeline: Write end of a pipe: the server writes the worker's pid and exit code to it. The caller may close it,
            like the others, when this returns.
        preload: Modules for the server to import first (never the user's own: those may be edited).
        kind: `FORK_TEMPLATE` starts a template instead of a worker.
        packages: Further modules of installed packages that the worker needs. If no server has imported them, a clone
            is started that does.

    Raises:
        OSError: The server cannot be started.
    """
    torch = _with_torch(preload)
    fds = fork_request(sock, stdout, stderr, lifeline)
    with _lock:
        server = None
        try:
            server = _server_for(torch, packages)
            server.send(kind, preload, fds)
        except OSError:  # the server was killed just now: start another
            _forget(server, torch)
            _server_for(torch, packages).send(kind, preload, fds)


def fork_request(sock: int, stdout: int, stderr: int, lifeline: int) -> tuple[int, ...]:
    """Return the arguments of `fork` in the order in which `_fork_worker` receives them."""
    return lifeline, stderr, sock, stdout  # the first two can report that the others could not be received


def pids() -> set[int]:
    """Return the pids of this process's servers. Waits for servers that are being started."""
    with _lock:
        _release_ended()
        clones = [clone.await_pid() for clone in _clones]
        return {server.pid for server in _servers.values()} | set(clones) - {0}


def shutdown() -> None:
    """End the servers and every worker that they started. The next `fork` starts another."""
    with _lock:
        while _clones:
            _clones.pop().end()
        while _servers:
            _servers.popitem()[1].end()


def _with_torch(preload: list[str]) -> bool:
    return any(name.startswith("torch") for name in preload)


def _first_packages(torch: bool) -> frozenset[str]:
    return frozenset({"torch"} if torch else ())


def _forget(server: _Server | None, torch: bool) -> None:
    """Remove a server to which a request could not be sent."""
    if isinstance(server, _Clone):
        _forget_clone(server)
    elif torch in _servers:
        _servers.pop(torch).end()


def _forget_clone(clone: _Clone) -> None:
    """Remove a clone that has ended. If it was importing packages, they are blamed and never preloaded again."""
    _not_preloaded.update(clone.importing)
    _clones.remove(clone)
    clone.end()


def _end_unused() -> None:
    """End the servers that were started early and that the first loader does not need."""
    for clone in [clone for clone in _clones if not clone.used]:
        _clones.remove(clone)
        clone.end()
    if True in _servers and not _servers[True].used:
        _servers.pop(True).end()


def _release_ended() -> None:
    """Close the connections to servers that were killed, or that were started early and have ended unused."""
    for clone in _clones[:]:
        if not clone.alive():
            _forget_clone(clone)
    for key, server in list(_servers.items()):
        if not server.alive():
            del _servers[key]
            server.end()


def _ensure(torch: bool) -> _Base:
    if torch not in _servers:
        _servers[torch] = _Base()
        _servers[torch].packages = _first_packages(torch)
    return _servers[torch]


def _server_for(torch: bool, packages: frozenset[str]) -> _Server:
    """Return a server that has imported these packages or is importing them; start one if necessary.

    A clone that is still importing other packages is not cloned: the new server would have to wait for it. If there are
    `MAX_CLONES` clones already, the base server is returned.
    """
    _release_ended()
    for clone in _clones:
        if clone.threads > 1:
            _not_preloaded.update(clone.packages)
    packages -= _not_preloaded
    if not packages:
        return _ensure(torch)
    needed = packages | _first_packages(torch)
    usable = [clone for clone in _clones if clone.threads <= 1]
    having = [clone for clone in usable if clone.packages >= needed]
    if having:
        return min(having, key=lambda clone: (bool(clone.importing), len(clone.packages)))
    base = _ensure(torch)
    if len(_clones) >= MAX_CLONES:
        return base
    ready = [clone for clone in usable if clone.packages >= base.packages and not clone.importing]
    parent = max([base, *ready], key=lambda server: (len(server.packages & packages), -len(server.packages)))
    clone = parent.clone(packages - parent.packages)
    _clones.append(clone)
    return clone


def _after_fork() -> None:
    """In a forked child: forget the servers, which are the parent's, and replace the lock, which may be held."""
    global _lock  # noqa: PLW0603 - it may be held by a thread that is not here
    _lock = threading.Lock()
    while _clones:
        _clones.pop().end()
    while _servers:
        _servers.popitem()[1].end()


os.register_at_fork(after_in_child=_after_fork)
weakref.finalize(_Server, shutdown)  # at exit, after the finalizers of all loaders, which are registered later


# ---- the server -------------------------------------------------------------------------------------------------


def main(fd: int, early: tuple[str, ...] = ()) -> None:
    """Run the server: fork workers on request, report when they end, and kill them when the notebook's process is gone.

    Args:
        fd: Descriptor of the connected socket.
        early: Modules to import first. If there are any, the server ends unless a request arrives within `UNUSED_S`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _suspend_tracing()
    import numpy.random  # noqa: F401 - lazily imported by NumPy

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
    before = set(sys.modules)
    _import_all(names)
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        if "__file__" in vars(module) and not preload.is_installed(module):
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
    entry = f"from nbloader.transport.forkserver import die_with_parent; die_with_parent(); import {module} as w"
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


def use_outputs(stdout: int, stderr: int) -> None:
    """Make these descriptors the standard output and error of this process."""
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)


def run_and_exit(run: Callable[[], object]) -> NoReturn:
    """In a forked process: run a function and exit, without running the exit handlers of the parent."""
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
    """On Linux: make the kernel kill this process when the thread that forked it ends."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


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
