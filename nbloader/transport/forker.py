"""Workers that are forked from the notebook's own process, for loaders that ask for it.

A forked worker has all that the notebook's process has, without pickling: open files and databases, generators,
changed globals of modules. But it has only one thread, a copy of the one that forked. What the other threads held at
that moment stays as it was: a lock that one of them held is never released in the worker. So the process is forked on a
thread of its own:

- It has never used OpenMP. A thread that has (the main thread, after one operation of torch on two cores) has a pool of
  threads, and its forked copy waits for them forever in its next parallel region: 5 of 5 workers hung.
- It lives as long as its workers, and the kernel kills these when it ends: no worker survives the notebook, even one
  that hangs in C code.
- Its stack is short. Nothing on it refers to the user's objects.

The locks of logging are held during the fork, NumPy's global generator is replaced in the worker, and the fork waits
until no other thread draws from torch's (`_fork_between_draws`). `make forks` counts the workers that hang all the
same, and the table in docs/explanation/fork-server.md has the result.

The price: what belongs to the main thread alone (values of a `threading.local`, `torch.no_grad()`) is not there in the
worker. Context variables are there.

A connection of sqlite3 is usable only on the thread that opened it, which sqlite3 knows by its identifier, and a forked
process has the identifier of the thread that forked it. So for datasets that hold such a connection the consumer's
thread forks (`fork_here`), with the same care, and after it has ended its threads of OpenMP: the next parallel region
starts others. Workers then also have what else belongs to that thread, as torch's have, and end with it.

    pool: Forker.fork(run) -> thread: os.fork() -> worker: become a process of its own, run(), os._exit()
    pool: Forker.fork_here(run) -> os.fork() ------------^
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import contextvars
import ctypes
import functools
import gc
import importlib
import itertools
import logging
import multiprocessing
import multiprocessing.util  # what a forked process would import, while other threads hold import locks
import operator
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

from nbloader.transport.forkserver import die_with_parent, run_and_exit

SUPPORTED = hasattr(os, "fork") and hasattr(os, "pidfd_open")
"""Whether this system (Linux) and this Python can do it."""

LOCK_TIMEOUT = 1.0
"""Seconds to wait for a lock that another thread holds, before a fork."""

SETUP_LIMIT = 20.0
"""Seconds after which a worker that does not get through its set-up is killed, by SIGALRM, and replaced: another thread
held a lock that cannot be taken before the fork."""

DRAWING_THREADS = 4
"""Threads that may wait for the lock of torch's generator at the same time, when the process is forked."""

LOCK_PAUSE_US = 100
"""Microseconds in which one of them can take it."""

OPENMP_SOFT_PAUSE = 1
"""`omp_pause_soft` of the OpenMP API: release threads, keep settings."""

_one_at_a_time = threading.RLock()
"""A signal handler may start a loader while its thread forks."""
_release = operator.methodcaller("release")
_held: list[Any] = []
"""Locks that are held during a fork."""
_inherited_streams: list[object] = []
"""In a worker: the notebook's standard streams. If they were collected, what they hold would be written again."""


class ForkedProcess:
    """A child process of this one. It has that part of the interface of `subprocess.Popen` which pools use.

    Args:
        pid: The child, which nobody has waited for.

    Raises:
        OSError: There are too many open files.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """As in `subprocess`; None until `wait` has returned, and if other code has waited for all child processes."""
        self.fd = os.pidfd_open(pid)
        """Readable when the process has ended. The owner closes it."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it ends.

        Args:
            timeout: Seconds; None waits without limit.

        Returns:
            `returncode`.

        Raises:
            subprocess.TimeoutExpired: It has not ended.
        """
        if timeout is not None:
            ended = select.poll()
            ended.register(self.fd, select.POLLIN)
            if not ended.poll(timeout * 1000):
                raise subprocess.TimeoutExpired(f"worker process {self.pid}", timeout)
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class _Request:
    """A process that is to be forked.

    Args:
        run: What it runs.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        # It knows what of `multiprocessing` a forked process must reset, such as the finalizers of its parent.
        self.process = multiprocessing.Process(target=run_and_exit, args=(run,))
        self.context = contextvars.copy_context()
        self.answered = threading.Event()
        self.forked: ForkedProcess | None = None
        self.error: OSError | None = None


class Forker:
    """Forks this process. What its own thread has forked is killed when it is closed."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._unclaimed: set[ForkedProcess] = set()
        """Processes whose `fork()` has not returned: an interrupt may have come in between."""
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        _thread.start_new_thread(serve_forks, (self._requests, self._unclaimed, self._ended))

    def fork(self, run: Callable[[], object]) -> ForkedProcess:
        """Fork a process.

        Args:
            run: What it does. It exits when this returns, without anything that this process does at its exit.

        Raises:
            OSError: There is no memory for it, or there are too many processes or open files.
        """
        request = _Request(run)
        self._requests.put(request)
        request.answered.wait()
        if request.forked is None:
            raise request.error or ChildProcessError("no process was forked")
        self._unclaimed.discard(request.forked)
        return request.forked

    def fork_here(self, run: Callable[[], object]) -> ForkedProcess:
        """Fork a process from the calling thread: `threading.get_ident()` is the same there.

        Args:
            run: See `fork`.

        Raises:
            OSError: See `fork`.
        """
        process = _Request(run).process
        _end_openmp_threads()
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            forked = _fork(process, signals, self._unclaimed)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        self._unclaimed.discard(forked)
        return forked

    def close(self) -> None:
        """End the thread, and with it every process that it has forked and that still runs."""
        self._requests.put(None)
        self._ended.acquire()
        while self._unclaimed:
            process = self._unclaimed.pop()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
            os.close(process.fd)


def serve_forks(
    requests: queue.SimpleQueue[_Request | None], unclaimed: set[ForkedProcess], ended: _thread.LockType
) -> None:
    """The thread. If `threading` had started it, its forked copy would not count as the main thread."""
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # a worker starts without handlers
    while (request := requests.get()) is not None:
        try:
            request.forked = request.context.run(_fork, request.process, signals, unclaimed)
        except OSError as error:
            request.error = error
        request.answered.set()
        del request
    ended.release()


def _fork(
    process: multiprocessing.Process, signals: set[int | signal.Signals], unclaimed: set[ForkedProcess]
) -> ForkedProcess:
    parent = os.getpid()
    pids: list[int] = []
    try:
        # No collection: garbage is the parent's to finalize, with the files that it would flush.
        with _one_at_a_time, _locks_of_logging(), _no_collection() as collects:
            _fork_between_draws(pids)
            if pids == [0]:
                become_worker(process, parent, signals, collects=collects)
        forked = ForkedProcess(pids[0])
    except BaseException:  # an interrupt, too
        if pids and pids[0] > 0:
            os.kill(pids[0], signal.SIGKILL)
            os.waitpid(pids[0], 0)
        raise
    unclaimed.add(forked)
    return forked


def _end_openmp_threads() -> None:
    """End the threads of OpenMP that belong to this thread. Its forked copy would wait for them forever.

    Only GNU's library needs it, of which several copies may be loaded. The others prepare themselves for a fork.
    """
    lines = Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines()
    for path in {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}:
        with contextlib.suppress(OSError, AttributeError):  # the file was replaced, or is older than OpenMP 5.0
            ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all(OPENMP_SOFT_PAUSE)


def _fork_between_draws(pids: list[int]) -> None:
    """As `os.fork()`, at a moment when no other thread draws numbers from torch's global generator.

    A thread that draws holds a lock of the generator, but not the interpreter lock. `get_state()` waits for the former
    and keeps the latter: meanwhile a thread that has drawn waits for the interpreter lock, and cannot draw again. So
    this thread must not release it between `get_state()` and the fork. The interpreter does so between any two
    instructions, and in the hooks that `os.fork()` calls (`os.register_at_fork`). Hence the functions that `os.fork()`
    consists of are called one by one, by iterators: without an instruction in between. (Where there is no interpreter
    lock, only draws that have begun are waited for.)

    Args:
        pids: Gets what `os.fork()` would return. If an interrupt follows, the caller finds it there.

    Raises:
        OSError: There is no memory for another process, or there are too many.
    """
    sys.audit("os.fork")
    python, c = ctypes.pythonapi, _c_library()
    waits: tuple[Callable[[], object], ...] = ()
    generator = getattr(sys.modules.get("torch"), "default_generator", None)  # None while a thread imports torch
    if generator is not None:
        pause = functools.partial(c.usleep, LOCK_PAUSE_US)
        waits = generator.get_state, *(pause, generator.get_state) * (DRAWING_THREADS - 1)
    call = operator.methodcaller("__call__")
    before = map(call, (python.PyOS_BeforeFork, *waits))
    fork = map(pids.append, map(call, (c.fork,)))
    after = {0: python.PyOS_AfterFork_Child}
    steps = before, fork, map(call, map(after.get, pids, (python.PyOS_AfterFork_Parent,)))
    try:
        list(itertools.chain.from_iterable(steps))  # keeps the states: when a tensor is freed, the lock is released
    except BaseException:
        if not pids:
            python.PyOS_AfterFork_Parent()
        raise
    if pids[0] < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@functools.cache
def _c_library() -> ctypes.PyDLL:
    """The C library, with functions that keep the interpreter lock."""
    return ctypes.PyDLL(None, use_errno=True)


@contextlib.contextmanager
def _locks_of_logging() -> Iterator[None]:
    """Hold the locks of logging, so that no other thread is writing to a file for which a worker would wait.

    They are taken in the order in which logging itself takes them. One that is not free in time is skipped, rather than
    wait for a thread that may wait for this one.
    """
    held = []
    try:
        for lock in _locks():
            if lock.acquire(timeout=LOCK_TIMEOUT):
                held.append(lock)  # noqa: PERF401 - an interrupt must find those that are held
        _held[:] = held
        yield
    finally:
        collections.deque(map(_release, held), maxlen=0)  # in one call: an interrupt may come between two
        _held.clear()


def _locks() -> Iterator[Any]:
    yield logging._lock  # type: ignore[attr-defined]
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {id(handler): handler for logger in loggers for handler in getattr(logger, "handlers", ())}
    for handler in handlers.values():
        if handler.lock is not None:
            yield handler.lock


@contextlib.contextmanager
def _no_collection() -> Iterator[bool]:
    """Turn the garbage collector off. Gives whether it was on."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield collects
    finally:
        if collects:
            gc.enable()


def become_worker(
    process: multiprocessing.Process, parent: int, signals: set[int | signal.Signals], *, collects: bool
) -> NoReturn:
    """In the forked process: make it a process of its own, run what it is for, and exit.

    `stack_probe` recognizes this function: those that have called it belong to the notebook.
    """
    global _one_at_a_time  # noqa: PLW0603 - it is held, by the parent
    try:
        sys.settrace(None)  # the notebook's debugger
        sys.setprofile(None)
        gc.freeze()  # a collection would copy the pages of all objects, and finalize what is the parent's
        if collects:
            gc.enable()
        _one_at_a_time = threading.RLock()
        for lock in reversed(_held):
            with contextlib.suppress(RuntimeError):  # logging has replaced its locks
                lock.release()
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:  # another one, since a thread may have held the lock of the old one
            numpy_random.set_bit_generator(type(numpy_random.get_bit_generator())())
        # Those that other threads hold: a module that one of them was importing can be imported as far as it was.
        getattr(importlib._bootstrap, "_module_locks", {}).clear()
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, SETUP_LIMIT)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        process._bootstrap(os.pidfd_open(parent))  # type: ignore[attr-defined]
    finally:
        os._exit(1)


def redirect_streams(stdout: TextIO, stderr: TextIO) -> None:
    """In a forked process: use these as standard output and error, also where logging writes to the parent's."""
    for name, stream in (("stdout", stdout), ("stderr", stderr)):
        inherited = {id(old): old for old in (getattr(sys, name), getattr(sys, f"__{name}__"))}
        _inherited_streams.extend(inherited.values())
        setattr(sys, name, stream)
        for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
            for handler in getattr(logger, "handlers", ()):
                if isinstance(handler, logging.StreamHandler) and id(handler.stream) in inherited:
                    handler.stream = stream  # `setStream` would flush the old one, whose lock may be held


def setup_complete() -> None:
    """In a forked process: the locks that were not taken before the fork are free. The user's code has no limit."""
    signal.setitimer(signal.ITIMER_REAL, 0)
