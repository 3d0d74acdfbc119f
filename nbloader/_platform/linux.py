"""Linux: memory files, the end of processes, locks, limits. `proc.py` and `cgroups.py` have usage and memory."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import resource  # not when it is needed: with too many open files no module can be imported
import signal
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbloader._platform import cgroups, portable
from nbloader._platform.descriptors import open_into
from nbloader._platform.proc import (  # noqa: F401 - the rest of this system
    activity,
    cpu_times,
    memory_of,
    stat_of,
    state_of,
    switches_of,
    waits_for_locks,
    waits_in,
)

if TYPE_CHECKING:
    import subprocess

_HAS_PIDFD = hasattr(os, "pidfd_open")  # builds of Python for old kernels have none
START_METHODS: tuple[str, ...] = ("fork", "forkserver", "spawn") if _HAS_PIDFD else ("forkserver", "spawn")
"""How worker processes can be started, the default first."""

STACK_SIGNAL: int = signal.SIGRTMIN + 7
"""Requests a stack. Libraries use SIGUSR1 and SIGUSR2, and the C library uses the first real-time signals."""
STACK_IN_C_SIGNAL: int = signal.SIGRTMIN + 8
"""Sent if the first one is not answered, because the main thread is in C code."""
SAMPLE_SIGNAL: int | None = signal.SIGRTMIN + 9
"""Requests a sample of the line profiler; None if worker processes cannot be sampled on this system."""

_PAGEMAP = Path("/proc/self/pagemap")
_MAPS = Path("/proc/self/maps")


# ---- memory ---------------------------------------------------------------------------------------------------------


def new_file(opened: list[int]) -> None:
    """Create an empty memory file and append its descriptor to a list."""
    if not hasattr(os, "memfd_create"):
        portable.new_file(opened)
        return
    open_into(opened, os.memfd_create, "nbloader", os.MFD_CLOEXEC | getattr(os, "MFD_ALLOW_SEALING", 0))


def allocate(fd: int, size: int) -> None:
    """Give a memory file its size, and allocate the memory.

    Raises:
        OSError: There is not enough memory.
    """
    os.posix_fallocate(fd, 0, size)


def seal(fd: int) -> None:
    """Seal a memory file, so that no process can write to it any more."""
    if hasattr(fcntl, "F_ADD_SEALS"):
        with contextlib.suppress(OSError):  # a file that is no memfd
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)


def punch(fd: int, offset: int, nbytes: int) -> None:
    """Free the memory of a part of a memory file.

    Raises:
        OSError: The file system does not support holes.
    """
    keep_size_punch_hole = 0x03
    if _libc().fallocate(fd, keep_size_punch_hole, offset, nbytes):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return libc


def pages_written(address: int, nbytes: int) -> bool | None:
    """Return whether any page of a private file mapping was written to, and so is no longer a page of the file.

    None if the system does not report it.
    """
    import numpy as np  # here: not every process that uses this module needs NumPy

    first, last = address // mmap.PAGESIZE, (address + nbytes - 1) // mmap.PAGESIZE
    try:
        with _PAGEMAP.open("rb") as file:
            file.seek(first * 8)
            pages = np.frombuffer(file.read((last - first + 1) * 8), np.uint64)
    except OSError:
        return None
    # Bits of a page's 64-bit entry (the kernel's Documentation/admin-guide/mm/pagemap.rst).
    of_file, swapped, present = (pages >> np.uint64(bit) & np.uint64(1) for bit in (61, 62, 63))
    return pages.size != last - first + 1 or bool(((present | swapped) > of_file).any())


def mapped_path(address: int) -> str | None:
    """Return the path of the file that is mapped at an address, "" if there is none; None if that is unknown.

    The path of a deleted file ends with " (deleted)".
    """
    try:
        for line in _MAPS.read_text(errors="surrogateescape").splitlines():
            span, *_, name = line.split(maxsplit=5)
            begin, _, end = span.partition("-")
            if int(begin, 16) <= address < int(end, 16):
                return name
    except FileNotFoundError:
        return None
    except OSError:
        pass
    return ""


def available_memory() -> int | None:
    """Return how many bytes can be allocated without swapping or being killed; None if that is unknown."""
    return cgroups.available_memory()


# ---- files ----------------------------------------------------------------------------------------------------------


def open_again(opened: list[int], fd: int, flags: int) -> None:
    """Open the file of a descriptor once more, with an open file description of its own, and append it to a list.

    Raises:
        OSError: The file cannot be opened, or there are too many open files.
    """
    open_into(opened, os.open, f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


HAS_FILE_LOCKS = hasattr(fcntl, "F_OFD_SETLK")
"""Whether bytes of a file can be locked by an open file description, and so by a thread, until its process ends."""
_FLOCK = struct.Struct("@hhqqi4x")


def lock(fd: int, place: int, *, wait: bool = True, shared: bool = False) -> bool:
    """Lock a byte of a file.

    Args:
        fd: A descriptor of the open file description that will have the lock. Its earlier lock is replaced.
        place: Offset of the byte.
        wait: Whether to wait until other open file descriptions release the byte.
        shared: Whether others may have the same kind of lock at the same time.

    Returns:
        False if another one has a lock, and this must not wait.
    """
    try:
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        _flock(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, kind, place)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int, place: int) -> None:
    """Unlock a byte of a file, if this open file description has locked it."""
    _flock(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, place)


def _flock(fd: int, command: int, kind: int, place: int) -> None:
    fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))


# ---- processes ------------------------------------------------------------------------------------------------------


def end_of_child(process: subprocess.Popen[bytes], opened: list[int]) -> None:
    """Append a descriptor to a list that becomes readable when a child process ends.

    Raises:
        OSError: There are too many open files.
    """
    if _HAS_PIDFD:
        open_into(opened, os.pidfd_open, process.pid)
    else:
        portable.end_of_child(process, opened)


def process_space() -> str:
    """Return an identifier of the process-id namespace: processes with the same one can refer to each other by pid.

    All processes of a machine, or of a container, have the same identifier. They also share its CPU cores.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return portable.process_space()


def cores() -> int:
    """Return the number of CPU cores that this process may use, at least 1."""
    return cgroups.cores()


def idle_time() -> int | None:
    """Return the time for which all CPUs of the machine together had nothing to do, ns; None if that is unknown."""
    try:
        with Path("/proc/stat").open("rb") as file:
            _cpu, _user, _nice, _system, idle, iowait, *_ = file.readline().split()
    except (OSError, ValueError):
        return None
    return (int(idle) + int(iowait)) * 10**9 // os.sysconf("SC_CLK_TCK") or None  # some sandboxes report 0


def open_files_limit() -> str:
    """Return the number of files that this process may open, for a message."""
    return _limit(resource.RLIMIT_NOFILE)


def processes_limit() -> str:
    """Return the number of processes and threads that this user may run, for a message."""
    return _limit(resource.RLIMIT_NPROC)


def _limit(kind: int) -> str:
    limit = resource.getrlimit(kind)[0]
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
