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
import importlib.util
import multiprocessing
import os
import pickle
import resource
import select
import signal
import socket
import sys
import threading
import weakref

from nbloader._util.descriptors import close_all, open_into
from nbloader._util.system import ROOT, cores, working_directory
from nbloader.transport import preload, server_process
from nbloader.transport.channel import Channel, Kind
from nbloader.transport.environment import Environment, in_kernel
from nbloader.transport.interpreter import start_interpreter, worker_environment

EARLY_START = "NBLOADER_EARLY_START"
"""Environment variable: 0 keeps a notebook from starting the fork server before the first loader is created."""
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
        entry = (
            f"import gc; gc.disable(); from {server_process.__name__} import main; main({theirs.fileno()}, {early!r})"
        )
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


def warm_up() -> None:
    """Start the process that workers are forked from, so that the first loader gets its workers sooner.

    The process imports torch, if it is installed, while this one continues. A second process imports the large packages
    that need torch and that this process has already imported. Both end if the first loader does not need torch, or if
    no loader is created within a minute. Without this call, the process starts when a loader with worker processes is
    created. In a notebook's kernel, it starts when `nbloader.DataLoader` is first looked up, unless the environment
    variable `NBLOADER_EARLY_START` is 0.

    This function is a no-op in a worker process and on a machine with one core.
    """
    a_worker = server_process.WORKER_MODULE in sys.modules or multiprocessing.parent_process() is not None
    if a_worker or cores() == 1:  # on a single core the server would only delay this process's import
        return
    with _lock, contextlib.suppress(OSError):  # the first loader will raise the same error
        if not _servers:
            if importlib.util.find_spec("torch") is None:
                _servers[False] = _Base(early=("numpy.random",))
                return
            _servers[True] = _Base(early=("torch",))
            _servers[True].packages = _first_packages(torch=True)
            packages = preload.imported_with_torch()
            if packages:
                _clones.append(_servers[True].clone(packages, early=True))


def warm_up_in_kernel() -> None:
    """Warm up in a notebook's kernel, where users pause between import and loop, unless `EARLY_START` is 0."""
    if os.environ.get(EARLY_START) != "0" and in_kernel():
        warm_up()


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
    """Return the arguments of `fork` in the order in which the server receives them."""
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
