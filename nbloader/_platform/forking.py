"""Linux: what processes need that are forked from the notebook's process. Import this only if `HAS_ZYGOTES`."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import itertools
import operator
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from nbloader._platform.linux import open_again
from nbloader._platform.proc import is_forked

_FDS = Path("/proc/self/fd")
_MAPS = Path("/proc/self/maps")
DRAWING_THREADS = 4
"""Number of threads that may wait for the lock of torch's generator at the same time when the process is forked."""
LOCK_PAUSE_US = 100
"""Microseconds that one of these threads is given to take the lock."""


def die_with_parent() -> None:
    """Make the kernel kill this process when the thread that forked it ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def end_of_process(pid: int) -> int:
    """Return a descriptor that becomes readable when a process ends.

    Raises:
        OSError: There is no such process, or there are too many open files.
    """
    return os.pidfd_open(pid)


def open_descriptors() -> list[int]:
    """Return the descriptors that this process has open, and that of the listing, which is closed by now."""
    return [int(entry.name) for entry in _FDS.iterdir()]


def can_read(fd: int) -> bool:
    """Whether a file was opened for reading.

    Raises:
        OSError: The descriptor is not open.
    """
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY


def reopen(fd: int) -> None:
    """Open a file again under the same descriptor, at the same position.

    Raises:
        OSError: The file cannot be opened, or there are too many open files.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | getattr(os, "O_DIRECT", 0))
    position = os.lseek(fd, 0, os.SEEK_CUR)
    again: list[int] = []
    open_again(again, fd, flags)
    os.lseek(again[0], position, os.SEEK_SET)
    replace(fd, again[0])


def replace(fd: int, other: int) -> None:
    """Let a descriptor refer to the file of another one, which is closed."""
    os.dup2(other, fd, inheritable=os.get_inheritable(fd))
    os.close(other)


# ---- the fork -----------------------------------------------------------------------------------------------------


def end_openmp_threads() -> None:
    """End the OpenMP threads that belong to this thread. Its forked copy would wait for them forever.

    Only GNU's library needs this; several copies of it may be loaded. Other libraries prepare themselves for a fork.
    The next parallel region starts new threads.

    Does nothing in a process that was itself forked: its threads may be those of its parent, which do not exist here,
    and the library would wait for their end forever.
    """
    if is_forked():
        return
    omp_pause_soft = 1  # release threads, keep settings
    for path in _openmp_libraries():
        with contextlib.suppress(OSError, AttributeError):  # the file was replaced, or is older than OpenMP 5.0
            ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all(omp_pause_soft)


def _openmp_libraries() -> set[str]:
    lines = _MAPS.read_text("utf-8", "surrogateescape").splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}


def fork_between_draws(pids: list[int]) -> None:
    """Fork like `os.fork()`, at a moment when no other thread draws numbers from torch's global generator.

    A thread that draws holds the lock of the generator, but not the interpreter lock. `get_state()` waits for the lock
    of the generator while it keeps the interpreter lock. Meanwhile, a thread that has finished drawing waits for the
    interpreter lock and cannot draw again. So this thread must not release the interpreter lock between `get_state()`
    and the fork. The interpreter may release it between any two instructions, and in the hooks that `os.fork()` calls
    (`os.register_at_fork`). Hence iterators call the functions that make up `os.fork()` one by one, with no instruction
    in between. (In a Python without an interpreter lock, the fork waits only for draws that have begun.)

    Since Python's own `os.fork` is not called, it does not warn about other threads, and a debugger does not attach.

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
        pids.clear()
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@functools.cache
def _c_library() -> ctypes.PyDLL:
    """Return the C library. Calls of its functions keep the interpreter lock."""
    return ctypes.PyDLL(None, use_errno=True)
