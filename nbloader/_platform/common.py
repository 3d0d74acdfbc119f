"""What is the same on all systems, apart from functions that one of them may lack."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import stat
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any


def when_forked(**functions: Callable[[], object]) -> None:
    """Register functions for when this process forks, as `os.register_at_fork`, on systems that fork."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(**functions)


def others_can_write(status: os.stat_result) -> bool:
    """Return whether another user may have written to a file or folder; False on Windows, where this is not known."""
    user = getattr(os, "geteuid", None)
    return user is not None and (status.st_uid != user() or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)))


def usable_cpus() -> int:
    """Return the number of CPUs that the scheduler may give to this process, at least 1. See `cores` for limits."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def working_directory() -> str | None:
    """Return the working directory; None if it was deleted.

    If it was deleted, worker processes run in the root directory. Relative paths do not exist there, just as in this
    process, and torch works. (MKL ends a process that loads it in a deleted directory.)
    """
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return None


def exit_at_end_of(fd: int) -> None:
    """Exit this process, with a thread that waits for it, as soon as the other end of a pipe is closed.

    Args:
        fd: The read end of a pipe to which nobody writes. Only the parent process has the other end, so it is closed at
            the latest when that ends, however it ends.
    """

    def wait() -> None:
        os.read(fd, 1)
        os._exit(1)

    threading.Thread(target=wait, name="nbloader-watch", daemon=True).start()


def mapped(fd: int, size: int, *, private: bool = False) -> Any:
    """Map a file into memory, writable, without keeping a descriptor of it.

    `mmap.mmap` keeps a duplicate of the descriptor (this is optional only since Python 3.13), so a consumer that keeps
    batches would soon have too many open files. Also, `mmap.mmap` unmaps the memory before the callbacks of weak
    references run, but pinned memory must be unpinned before it is unmapped.

    Args:
        fd: Descriptor of the file.
        size: Size in bytes.
        private: Whether to map the file copy-on-write, so that writes stay in this process.

    Returns:
        A ctypes array of `size` bytes. The file stays mapped as long as this array or anything built on it exists. Its
        attribute `unmap` is the finalizer, for those who must unmap it later than that.

    Raises:
        OSError: The system's limit on mappings is reached.
    """
    kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"{size:,} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")
    memory: Any = (ctypes.c_char * size).from_address(address)
    memory.unmap = weakref.finalize(memory, _libc().munmap, address, size)
    memory.unmap.atexit = False
    return memory


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc
