"""Systems other than Linux: with temporary files, pipes and threads, and what psutil reports.

This imports nothing that Windows lacks. There, threads and `num_workers=0` load; worker processes need a system that
passes descriptors over a socket (`CAN_START_PROCESSES`).
"""
# ruff: noqa: ARG001 - what the other system needs to know

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from nbloader._platform.common import usable_cpus
from nbloader._platform.descriptors import close_all, open_pipe
from nbloader._platform.records import UNKNOWN, Activity, ContextSwitches, CpuTimes, MemoryUse, Stat

if TYPE_CHECKING:
    import subprocess

START_METHODS: tuple[str, ...] = ("spawn",)
"""How worker processes can be started, the default first."""

STACK_SIGNAL: int = getattr(signal, "SIGUSR2", 0)
"""Requests a stack."""
STACK_IN_C_SIGNAL: int = getattr(signal, "SIGUSR1", 0)
"""Sent if the first one is not answered, because the main thread is in C code."""
SAMPLE_SIGNAL: int | None = getattr(signal, "SIGURG", None)
"""Requests a sample of the line profiler; None if worker processes cannot be sampled on this system. A process that has
no handler for it ignores it."""

_STATES = {"running": "R", "sleeping": "S", "disk-sleep": "D"}
"""Linux's letters for states of psutil."""


# ---- memory ---------------------------------------------------------------------------------------------------------


def new_file(opened: list[int]) -> None:
    """Create an empty memory file and append its descriptor to a list: a temporary file without a name."""
    import tempfile  # here, as below: most processes on Linux do not need it

    fd, path = tempfile.mkstemp(prefix="nbloader-")
    opened += [fd]
    Path(path).unlink()


def allocate(fd: int, size: int) -> None:
    """Give a memory file its size, if there is enough space. The space is not reserved.

    Raises:
        OSError: There is not enough space.
    """
    import shutil
    import tempfile

    if size > shutil.disk_usage(tempfile.gettempdir()).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, size)


def seal(fd: int) -> None:
    """Do nothing: that nobody writes to a finished memory file is not enforced here."""


def punch(fd: int, offset: int, nbytes: int) -> None:
    """Free the memory of a part of a memory file.

    Raises:
        OSError: Always.
    """
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def pages_written(address: int, nbytes: int) -> bool | None:
    """Return None: whether a page of a private mapping was written to is unknown."""
    return None


def mapped_path(address: int) -> str | None:
    """Return None: which file is mapped at an address is unknown."""
    return None


def available_memory() -> int | None:
    """Return how many bytes can be allocated without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


def memory_of(pid: int) -> MemoryUse | None:
    """Private and shared memory of a process; None if the system does not report it."""
    import psutil

    with contextlib.suppress(psutil.Error):
        use = psutil.Process(pid).memory_full_info()
        return MemoryUse(use.uss, use.rss - use.uss)
    return None


# ---- files ----------------------------------------------------------------------------------------------------------


HAS_FILE_LOCKS = False
"""Whether bytes of a file can be locked by an open file description, and so by a thread, until its process ends."""


def open_again(opened: list[int], fd: int, flags: int) -> None:
    """Open the file of a descriptor once more.

    Raises:
        OSError: Always.
    """
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def lock(fd: int, place: int, *, wait: bool = True, shared: bool = False) -> bool:
    """Lock a byte of a file.

    Raises:
        OSError: Always.
    """
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def unlock(fd: int, place: int) -> None:
    """Do nothing: nothing can be locked."""


# ---- processes ------------------------------------------------------------------------------------------------------


def end_of_child(process: subprocess.Popen[bytes], opened: list[int]) -> None:
    """Append a descriptor to a list that becomes readable when a child process ends: a thread waits for that.

    Raises:
        OSError: There are too many open files.
        RuntimeError: There are too many threads.
    """
    ends: list[int] = []
    try:
        open_pipe(opened, ends)

        def wait() -> None:
            process.wait()
            close_all(ends)

        threading.Thread(target=wait, name="nbloader-child", daemon=True).start()
    except BaseException:
        close_all(ends)
        raise


def process_space() -> str:
    """Return an identifier of the machine: processes with the same one can refer to each other by pid."""
    import platform

    return platform.node()


def open_files_limit() -> str:
    """Return the number of files that this process may open, for a message."""
    return "unknown"


def processes_limit() -> str:
    """Return the number of processes and threads that this user may run, for a message."""
    return "unknown"


# ---- usage ----------------------------------------------------------------------------------------------------------


def cores() -> int:
    """Return the number of CPU cores that this process may use, at least 1."""
    return usable_cpus()


def idle_time() -> int | None:
    """Return the time for which all CPUs of the machine together had nothing to do, ns; None if that is unknown."""
    import psutil

    times = psutil.cpu_times()
    return round((times.idle + getattr(times, "iowait", 0.0)) * 1e9) or None


def activity(pid: int) -> Activity | None:
    """Return what the main thread of a process does; None if the process has ended."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        times = process.cpu_times()
        return Activity(_STATES.get(process.status(), UNKNOWN), int((times.user + times.system) * 1e9))
    return None


def state_of(pid: int, thread: int) -> str:
    """Return `UNKNOWN`."""
    return UNKNOWN


def waits_in(pid: int, thread: int) -> str:
    """Return `UNKNOWN`."""
    return UNKNOWN


def waits_for_locks(pid: int) -> bool:
    """Return False: what a thread waits for is unknown."""
    return False


def cpu_times(pid: int, thread: int | None = None) -> CpuTimes | None:
    """Return None: how long a thread has waited for a core is unknown."""
    return None


def stat_of(pid: int, thread: int | None = None) -> Stat | None:
    """Return None: page faults are unknown."""
    return None


def switches_of(pid: int, thread: int) -> ContextSwitches | None:
    """Return None: context switches are unknown."""
    return None
