"""Workers that are forked from the notebook's own process, for loaders that request it.

A forked worker has everything that the notebook's process has, without pickling: open files and databases, generators,
changed globals of modules. But it has only one thread, a copy of the one that forked. The state of the other threads is
frozen: a lock that one of them held at that moment is never released in the worker. The process is therefore forked
from a dedicated thread:

- The thread has never used OpenMP. A thread that has (the main thread, after one torch operation on two cores) owns
  a pool of threads, and its forked copy waits for these forever in its next parallel region: 5 of 5 workers hung.
- The thread lives as long as its workers, and the kernel kills the workers when the thread ends: no worker survives the
  notebook, not even one that hangs in C code.
- The stack of the thread is short. Nothing on it refers to the user's objects.

The locks of logging are held during the fork, NumPy's global generator is replaced in the worker, and the fork waits
until no other thread draws from torch's generator (`_fork_between_draws`). `make forks` counts the workers that hang
nevertheless; the table in docs/explanation/fork-server.md shows the result.

The price: state that belongs to the main thread alone (values of a `threading.local`, `torch.no_grad()`) does not exist
in the worker. Context variables do.

An sqlite3 connection is usable only on the thread that opened it. sqlite3 recognizes a thread by its identifier, and a
forked process has the identifier of the thread that forked it. For datasets that hold such a connection, the consumer's
thread therefore forks (`fork_here`), with the same precautions. It first ends its OpenMP threads; the next parallel
region starts new ones. Such workers also inherit everything else that belongs to that thread, as torch's workers do,
and they end when that thread ends.

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
import multiprocessing.util  # a forked process would import it, while other threads hold import locks
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

from nbloader._util.descriptors import close_all, open_into
from nbloader.transport.child_process import die_with_parent, run_and_exit

SUPPORTED = hasattr(os, "fork") and hasattr(os, "pidfd_open")
"""Whether this system (Linux) and this Python support forked workers."""

LOCK_TIMEOUT = 1.0
"""Seconds to wait for a lock that another thread holds, before a fork."""

SETUP_LIMIT = 20.0
"""Seconds after which a worker that has not completed its setup is killed (by SIGALRM) and replaced. Such a
worker hangs because another thread held a lock during the fork that could not be acquired beforehand."""

DRAWING_THREADS = 4
"""Number of threads that may wait for the lock of torch's generator at the same time when the process is forked."""

LOCK_PAUSE_US = 100
"""Microseconds that one of these threads is given to take the lock."""

OPENMP_SOFT_PAUSE = 1
"""`omp_pause_soft` of the OpenMP API: release threads, keep settings."""

_one_at_a_time = threading.RLock()
"""Serializes forks. It is reentrant, because a signal handler may start a loader while its thread forks."""
_release = operator.methodcaller("release")
_forking = False
"""Whether a thread is forking a worker."""
_held: list[Any] = []
"""Locks that are held during a fork."""
_inherited_streams: list[object] = []
"""In a worker: the notebook's standard streams. If they were garbage-collected, text that they have buffered would be
written a second time."""


def is_forking() -> bool:
    """In a handler of `os.register_at_fork`: whether the new process becomes a worker."""
    return _forking


class ForkedProcess:
    """A child process, with the part of the interface of `subprocess.Popen` that pools use.

    Args:
        pid: Pid of the child, which has not been waited for.

    Raises:
        OSError: There are too many open files.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """As in `subprocess`. None until `wait` has returned; it stays None if other code has waited for the child."""
        self.fd = -1
        """Readable when the process has ended. The owner closes it."""
        opened: list[int] = []
        try:
            open_into(opened, os.pidfd_open, pid)
        except BaseException:  # includes interrupts
            close_all(opened)
            raise
        self.fd = opened[0]

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the process ends.

        Args:
            timeout: Seconds; None waits without limit.

        Returns:
            `returncode`.

        Raises:
            subprocess.TimeoutExpired: The process has not ended in time.
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
    """A request to fork a process.

    Args:
        run: What the process runs.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        # `Process` resets the state of `multiprocessing` in the forked process, such as its parent's finalizers.
        self.process = multiprocessing.Process(target=run_and_exit, args=(run,))
        self.context = contextvars.copy_context()
        self.answered = threading.Event()
        self.forked: ForkedProcess | None = None
        self.error: OSError | None = None


class Forker:
    """Forks this process. Closing it kills the processes that its thread has forked."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self.unclaimed: list[ForkedProcess] = []
        """Forked processes, until the caller of `fork` removes them because they have another owner. After an interrupt
        of that caller, they are ended by `close`."""
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        _thread.start_new_thread(serve_forks, (self._requests, self.unclaimed, self._ended))

    def fork(self, run: Callable[[], object]) -> ForkedProcess:
        """Fork a process.

        Args:
            run: What the process runs. When it returns, the process exits without running exit handlers of this one.

        Raises:
            OSError: There is not enough memory, or there are too many processes or open files.
        """
        request = _Request(run)
        self._requests.put(request)
        request.answered.wait()
        if request.forked is None:
            raise request.error or ChildProcessError("no process was forked")
        return request.forked

    def fork_here(self, run: Callable[[], object]) -> ForkedProcess:
        """Fork a process from the calling thread, so that `threading.get_ident()` is the same in the new process.

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
            return _fork(process, signals, self.unclaimed)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)

    def close(self) -> None:
        """End the thread, and with it every process that it has forked and that is still running."""
        self._requests.put(None)
        with self._ended:  # released again: a second call, after an interrupt of the first, does not hang
            self.end_unclaimed()

    def end_unclaimed(self) -> None:
        """Kill the processes that no other owner has taken over."""
        while self.unclaimed:
            process = self.unclaimed[-1]
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
            del self.unclaimed[-1]
            os.close(process.fd)


def serve_forks(
    requests: queue.SimpleQueue[_Request | None], unclaimed: list[ForkedProcess], ended: _thread.LockType
) -> None:
    """Run the forking thread. `threading` must not start it: its forked copy would not count as the main thread."""
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
    process: multiprocessing.Process, signals: set[int | signal.Signals], unclaimed: list[ForkedProcess]
) -> ForkedProcess:
    global _forking  # noqa: PLW0603 - read in the forked process
    parent = os.getpid()
    pids: list[int] = []
    try:
        # No garbage collection in the child: only the parent may finalize garbage, which can flush files.
        with _one_at_a_time, _locks_of_logging(), _no_collection() as collects:
            _forking = True
            try:
                _fork_between_draws(pids)
            finally:
                _forking = False
            if pids == [0]:
                become_worker(process, parent, signals, collects=collects)
        open_into(unclaimed, ForkedProcess, pids[0])
    except BaseException:  # includes interrupts
        if pids and pids[0] > 0 and not any(process.pid == pids[0] for process in unclaimed):
            os.kill(pids[0], signal.SIGKILL)
            os.waitpid(pids[0], 0)
        raise
    return unclaimed[-1]


def _end_openmp_threads() -> None:
    """End the OpenMP threads that belong to this thread. Its forked copy would wait for them forever.

    Only GNU's library needs this; several copies of it may be loaded. Other libraries prepare themselves for a fork.
    """
    lines = Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines()
    for path in {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}:
        with contextlib.suppress(OSError, AttributeError):  # the file was replaced, or is older than OpenMP 5.0
            ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all(OPENMP_SOFT_PAUSE)


def _fork_between_draws(pids: list[int]) -> None:
    """Fork like `os.fork()`, at a moment when no other thread draws numbers from torch's global generator.

    A thread that draws holds the lock of the generator, but not the interpreter lock. `get_state()` waits for the lock
    of the generator while it keeps the interpreter lock. Meanwhile, a thread that has finished drawing waits for the
    interpreter lock and cannot draw again. So this thread must not release the interpreter lock between `get_state()`
    and the fork. The interpreter may release it between any two instructions, and in the hooks that `os.fork()` calls
    (`os.register_at_fork`). Hence iterators call the functions that make up `os.fork()` one by one, with no instruction
    in between. (In a Python without an interpreter lock, the fork waits only for draws that have begun.)

    Args:
        pids: Receives what `os.fork()` would return. The caller finds it there even if an interrupt follows.

    Raises:
        OSError: There is not enough memory for another process, or there are too many processes.
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
        list(itertools.chain.from_iterable(steps))  # keeps the states: freeing a tensor releases the interpreter lock
    except BaseException:
        if not pids:
            python.PyOS_AfterFork_Parent()
        raise
    if pids[0] < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@functools.cache
def _c_library() -> ctypes.PyDLL:
    """Return the C library. Calls of its functions keep the interpreter lock."""
    return ctypes.PyDLL(None, use_errno=True)


@contextlib.contextmanager
def _locks_of_logging() -> Iterator[None]:
    """Hold the locks of logging, so that no worker waits for a thread that was writing to a log file during the fork.

    The locks are taken in the order in which logging itself takes them. A lock that is not free in time is skipped: the
    thread that holds it may be waiting for this one.
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
    """Disable the garbage collector, and yield whether it was enabled."""
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
    """In the forked process: detach it from the notebook's process, run its target, and exit.

    `stack_probe` recognizes the frame of this function: the frames outside it belong to the notebook.
    """
    global _one_at_a_time  # noqa: PLW0603 - it is held, by the parent
    try:
        sys.settrace(None)  # the notebook's debugger
        sys.setprofile(None)
        gc.freeze()  # a collection would copy the pages of all objects, and finalize objects of the parent
        if collects:
            gc.enable()
        _one_at_a_time = threading.RLock()
        for lock in reversed(_held):
            with contextlib.suppress(RuntimeError):  # logging has replaced its locks
                lock.release()
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:  # a new one, as a thread may have held the lock of the old one
            numpy_random.set_bit_generator(type(numpy_random.get_bit_generator())())
        # Other threads may have held import locks. A module that one was importing can be used as far as it was loaded.
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
    """In a forked process: replace standard output and error, also in logging handlers that write to the parent's."""
    for name, stream in (("stdout", stdout), ("stderr", stderr)):
        inherited = {id(old): old for old in (getattr(sys, name), getattr(sys, f"__{name}__"))}
        _inherited_streams.extend(inherited.values())
        setattr(sys, name, stream)
        for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
            for handler in getattr(logger, "handlers", ()):
                if isinstance(handler, logging.StreamHandler) and id(handler.stream) in inherited:
                    handler.stream = stream  # `setStream` would flush the old one, whose lock may be held


def setup_complete() -> None:
    """In a forked process: cancel the time limit of the setup, which no lock blocked. User code has no limit."""
    signal.setitimer(signal.ITIMER_REAL, 0)
