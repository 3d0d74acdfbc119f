"""Zygotes: the processes that the workers of a pool are forked from.

    notebook --fork, on the consumer's thread--> zygote: one thread, closes what is not its own --fork--> workers
    notebook --new interpreter-----------------> clean zygote -------------------------------------fork--> workers

A *forked* zygote is the notebook's process as it was a moment ago: workers have the dataset, the functions, the modules
with their present settings, registrations and patches, without pickling anything. Replacements and additional workers
come from the same zygote, so all workers of an epoch have the same state. Nothing but the zygote is forked from the
notebook, once, on the consumer's thread, as torch forks its workers.

A forked process has only a copy of the thread that forked it. Locks that another thread held at that moment are never
released in it. So a zygote takes part in what can hang: before it reports that it is ready, it seeds the random
generators. One that is not ready within `READY_LIMIT` is killed and forked again. `fork_between_draws` waits until no
thread draws from torch's generator. OpenMP's threads are ended before the fork: the copy of a thread that has used them
would wait for them forever.

A *clean* zygote is a new interpreter that has imported NumPy, nbloader's worker, and torch if the notebook has. Its
workers receive the dataset as a pickle.

A zygote belongs to one pool. It ends with its pool, or when the notebook's process ends.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import functools
import gc
import importlib
import itertools
import logging
import operator
import os
import signal
import socket
import stat
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import NoReturn, TextIO

from nbloader._platform import HAS_ZYGOTES, readable, working_directory
from nbloader._util.signals import interrupts_deferred
from nbloader.transport import zygote_process
from nbloader.transport.channel import Channel, Kind
from nbloader.transport.interpreter import start_interpreter, worker_environment
from nbloader.transport.zygote_process import Run, WorkerFds, serve

if HAS_ZYGOTES:
    from nbloader._platform.forking import (
        can_read,
        end_of_process,
        end_openmp_threads,
        fork_between_draws,
        open_descriptors,
        reopen,
        replace,
    )

log = logging.getLogger(__name__)

READY_LIMIT = 2.0
"""Seconds within which a forked zygote must be ready."""
LOG_LIMIT = 0.1
"""Seconds to wait for each lock of logging."""
MAX_FORKS = 3
"""Number of forked zygotes that may not become ready before the start fails."""

_numbers = itertools.count()
_inherited_streams: list[object] = []
"""In a worker: the notebook's standard streams. If they were garbage-collected, text that they have buffered would be
written a second time."""


class ZygoteHungError(OSError):
    """The forked zygotes did not become ready."""


class Zygote:
    """A process that workers are forked from, as the notebook's process sees it."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        """Identifies it among all zygotes of this process."""
        self._channel: Channel | None = None
        self._pids: list[int] = []  # at most one
        self._owner = os.getpid()
        weakref.finalize(self, _end, self._pids, self._owner).atexit = False  # if `close` was interrupted

    @property
    def pid(self) -> int:
        """Its process id; 0 if it was not started, or has been closed."""
        return self._pids[0] if self._pids else 0

    @property
    def alive(self) -> bool:
        """Whether it can fork workers."""
        if self._channel is None or not self._pids:
            return False
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self._pids[0], os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        return False

    def fork(self, body: bytes, lifeline: int, fds: WorkerFds) -> None:
        """Request a worker.

        Args:
            body: Passed to the function that runs the worker.
            lifeline: Write end of a pipe: the zygote writes the worker's pid and exit code to it. The caller may close
                it, like the other descriptors, when this returns.
            fds: The worker's descriptors.

        Raises:
            OSError: The zygote has ended.
        """
        if self._channel is None:
            raise BrokenPipeError("the process that workers are forked from was not started")
        self._channel.send(Kind.FORK, body, fds=(lifeline, *fds))

    def close(self) -> None:
        """End the process, and with it every worker that it has forked."""
        _end(self._pids, self._owner)
        self.disown()

    def disown(self) -> None:
        """Close the connection. In a forked process, the zygote belongs to the parent."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _end(pids: list[int], owner: int) -> None:
    """Kill child processes of the process `owner`, wait until they have ended, and empty the list."""
    while pids and owner == os.getpid():
        with contextlib.suppress(ChildProcessError):  # other code has waited for it
            if os.waitpid(pids[-1], os.WNOHANG) == (0, 0):
                os.kill(pids[-1], signal.SIGKILL)
                os.waitpid(pids[-1], 0)
        del pids[-1:]


class CleanZygote(Zygote):
    """A zygote in a new interpreter.

    Raises:
        OSError: The system provides no process, or no connection.
    """

    def start(self) -> None:
        """Start the interpreter, without waiting for it."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._channel = Channel(ours, blocking=True)
            preload = ("torch",) if "torch" in sys.modules else ()
            # Garbage collections would take a sixth of the import time and free nothing; workers enable them again.
            entry = (
                "import gc; gc.disable(); "
                f"from {zygote_process.__name__} import main; main({theirs.fileno()}, {preload!r})"
            )
            # A kernel that shuts down kills all children in its process group and waits until they are reaped, but
            # nothing reaps them at that point. In its own session the zygote survives that, and ends with the kernel.
            process = start_interpreter(
                entry, (theirs.fileno(),), env=worker_environment(), start_new_session=True,
                cwd=None if working_directory() else os.sep,
            )  # fmt: skip
            self._pids.append(process.pid)
            process.returncode = 0  # `close` waits for it


class ForkedZygote(Zygote):
    """A zygote that is a fork of this process."""

    def start(self, run: Run, check: Callable[[], object]) -> None:
        """Fork this process, on the calling thread, and wait until the zygote is ready.

        Args:
            run: Runs a worker, see `serve`.
            check: Called in the zygote, to take the locks that workers will take. If another thread of this process
                held one of them, this does not return, and the process is forked again.

        Raises:
            OSError: There is not enough memory, or there are too many processes or open files.
            ZygoteHungError: No zygote became ready.
        """
        for _ in range(MAX_FORKS):
            # Deferred: Python drops what a handler raises in functions that it calls after a fork.
            with interrupts_deferred(), _between_log_records():
                self._start_once(run, check)
            if self._is_ready():
                return
            log.debug("zygote %d was not ready after %g s", self.pid, READY_LIMIT)
            self.close()
        raise ZygoteHungError(
            f"{MAX_FORKS} forks of this process were not ready within {READY_LIMIT:g} s: another thread holds a lock "
            'that workers need. Pass multiprocessing_context="forkserver" for workers that are not forked from it.'
        )

    def _start_once(self, run: Run, check: Callable[[], object]) -> None:
        end_openmp_threads()
        ours, theirs = socket.socketpair()
        with theirs:
            self._channel = Channel(ours, blocking=True)
            parent = os.getpid()
            collects = gc.isenabled()
            signals = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            pids: list[int] = []
            # Another thread may receive a signal, whose handler then raises an exception here, after any call. So one
            # call does all of this, and nothing that it calls is written in Python (as `signal.pthread_sigmask` is).
            finish: Callable[[], object] = functools.partial(list, map(operator.methodcaller("__call__"), (
                functools.partial(self._pids.extend, filter((0).__lt__, pids)),
                gc.enable if collects else gc.disable,
                functools.partial(_signal.pthread_sigmask, signal.SIG_SETMASK, signals),
            )))  # fmt: skip
            try:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                gc.disable()  # no garbage collection in the child: only the parent may finalize garbage
                fork_between_draws(pids)
                if pids == [0]:
                    self.disown()
                    become_zygote(theirs, parent, signals, run, check, collects=collects)
            finally:
                finish()

    def _is_ready(self) -> bool:
        if self._channel is None:
            return False
        deadline = time.monotonic() + READY_LIMIT
        while readable([self._channel], deadline - time.monotonic()):
            try:
                for kind, body in self._channel.receive(wait=False):
                    if kind == Kind.INIT_ERROR:
                        raise ChildProcessError(f"a fork of this process failed:\n{bytes(body).decode()}")
                    return True
            except EOFError:
                raise ChildProcessError("a fork of this process has ended before it was ready") from None
        return False


# ---- the fork -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _between_log_records() -> Iterator[None]:
    """Hold the locks of logging, so that no thread is writing to a log file.

    logging renews its own locks in a forked process, but not the lock of the file's buffer. The locks are taken in the
    order in which logging takes them. One that is not free in time is skipped: its holder may be waiting for another.
    """
    handlers = [reference() for reference in list(logging._handlerList)]  # type: ignore[attr-defined]
    locks = [logging._lock, *(getattr(handler, "lock", None) for handler in handlers)]  # type: ignore[attr-defined]
    with contextlib.ExitStack() as held:
        for lock in locks:
            if lock is not None and lock.acquire(timeout=LOG_LIMIT):
                held.callback(lock.release)
        yield


# ---- in the zygote ------------------------------------------------------------------------------------------------


def become_zygote(
    sock: socket.socket, parent: int, signals: set[int | signal.Signals], run: Run, check: Callable[[], object], *,
    collects: bool,
) -> NoReturn:  # fmt: skip
    """In the forked process: detach it from the notebook's process, and serve.

    Args:
        sock: This process's end of the connection.
        parent: Pid of the notebook's process.
        signals: The signals that the notebook's thread blocks.
        run: See `serve`.
        check: See `ForkedZygote.start`.
        collects: Whether the garbage collector was enabled.
    """
    try:
        sys.settrace(None)  # the notebook's debugger
        sys.setprofile(None)
        gc.freeze()  # a collection would copy the pages of all objects, and finalize objects of the parent
        if collects:
            gc.enable()
        notebook = end_of_process(parent)
        if os.getppid() != parent:
            os._exit(1)
        # A kernel that shuts down kills all children in its process group and waits until they are reaped, but nothing
        # reaps them at that point. In its own session the zygote survives that, and ends with the kernel.
        os.setsid()
        _reset_signals(signals)
        channel = Channel(sock, blocking=True)
        try:
            _replace_held_state()
            _own_files()
            check()
        except BaseException:  # noqa: BLE001 - the notebook raises it
            channel.send(Kind.INIT_ERROR, traceback.format_exc().encode("utf-8", "backslashreplace"))
        else:
            channel.send(Kind.READY)
            serve(channel, run, notebook)
    finally:
        os._exit(1)


def _reset_signals(blocked: set[int | signal.Signals]) -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _replace_held_state() -> None:
    """Replace locks that another thread may have held. Python and logging replace their own."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.set_bit_generator(type(numpy_random.get_bit_generator())())
    # Other threads may have held import locks. A module that one was importing can be used as far as it was loaded.
    getattr(importlib._bootstrap, "_module_locks", {}).clear()


_read_files: list[int] = []
"""In a zygote: the descriptors of files that can be read."""


def _own_files() -> None:
    """Give this process its own positions in files, and end its share of listening sockets.

    A forked process shares the position of an open file with its parent, so that a `seek` of one changes what the
    other reads. Files that are only written, such as logs, stay shared, so that all processes append to them. Sockets
    on which the notebook listens for connections, such as a kernel's ports, are replaced: otherwise they would stay
    taken as long as a worker runs.
    """
    for fd in open_descriptors():
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISREG(mode):
                if can_read(fd):
                    reopen(fd)
                    _read_files.append(fd)
            elif stat.S_ISSOCK(mode) and _listens(fd):
                replace(fd, os.open(os.devnull, os.O_RDWR))
        except OSError as error:  # it was the descriptor of the listing, or its file cannot be opened again
            log.debug("descriptor %d stays shared with the notebook's process: %s", fd, error)


def reopen_files() -> None:
    """In a worker: open the files that the notebook had open, so that the worker has positions of its own."""
    for fd in _read_files:
        with contextlib.suppress(OSError):  # as it was possible in the zygote, the system is out of descriptors
            reopen(fd)


def _listens(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as sock:
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def redirect_streams(stdout: TextIO, stderr: TextIO) -> None:
    """In a forked worker: replace standard output and error, also in logging handlers that write to the parent's."""
    for name, stream in (("stdout", stdout), ("stderr", stderr)):
        inherited = {id(old): old for old in (getattr(sys, name), getattr(sys, f"__{name}__"))}
        _inherited_streams.extend(inherited.values())
        setattr(sys, name, stream)
        for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
            for handler in getattr(logger, "handlers", ()):
                if isinstance(handler, logging.StreamHandler) and id(handler.stream) in inherited:
                    handler.stream = stream  # `setStream` would flush the old one, whose lock may be held
