"""Reads what Linux reports in /proc about processes and threads."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from nbloader._util.descriptors import open_into

UNKNOWN = "?"
"""Takes the place of what the system does not report."""
_TICK = 1_000_000_000 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
"""Unit of the CPU times in /proc/PID/stat, ns."""
_MAPPING = re.compile(
    rb"^Rss: +(\d+) (?:.*\n)+?Private_Clean: +(\d+) .*\nPrivate_Dirty: +(\d+) (?:.*\n)+?Anonymous: +(\d+) ",
    re.MULTILINE,
)
"""Sizes of a mapping in /proc/PID/smaps, kB."""


class CpuTimes(NamedTuple):
    """Scheduler statistics of a thread, ns."""

    running: int
    """Time during which the thread ran on a core."""
    waiting: int
    """Time during which the thread was runnable but had no core."""


class ContextSwitches(NamedTuple):
    """How often a thread has given up or lost its core."""

    voluntary: int
    """Number of times that the thread gave up its core to wait for something."""
    involuntary: int
    """Number of times that the scheduler gave the core to another thread."""


class MemoryUse(NamedTuple):
    """Resident memory of a process, bytes."""

    private: int
    """Memory that belongs to this process alone."""
    shared: int
    """Files (segments, shared datasets, libraries), and what a fork has shared and nobody has written to since."""


class Stat(NamedTuple):
    """Fields of /proc/PID/stat, see proc(5). The figures of a process are those of all its threads together."""

    minor_faults: int
    major_faults: int
    user_ticks: int
    system_ticks: int
    threads: int

    @property
    def cpu(self) -> int:
        """CPU time in user and kernel mode, ns."""
        return (self.user_ticks + self.system_ticks) * _TICK

    @classmethod
    def parse(cls, text: str) -> Stat:
        """Parse the file.

        Raises:
            ValueError: It does not have the expected format.
        """
        (
            _state, _parent, _group, _session, _terminal, _foreground, _flags, minor_faults, _children_minor,
            major_faults, _children_major, user, system, _children_user, _children_system, _priority, _nice, threads,
            *_rest,
        ) = text.rpartition(") ")[2].split()  # the name before it may contain spaces  # fmt: skip
        return cls(int(minor_faults), int(major_faults), int(user), int(system), int(threads))


def contents(path: str) -> str:
    """The first 4 kB of a file; a third of the time of `Path.read_text`."""
    file: list[int] = []
    try:
        open_into(file, os.open, path, os.O_RDONLY)
        return os.read(file[0], 4096).decode("ascii", "replace")
    finally:
        if file:
            os.close(file[0])


def state_of(path: str) -> str:
    """Return Linux's letter for the state of a thread; `UNKNOWN` if the file cannot be read.

    Args:
        path: Path of the thread's `stat` file.
    """
    try:
        return contents(path).rpartition(") ")[2][:1] or UNKNOWN
    except OSError:
        return UNKNOWN


def waits_in(task: str) -> str:
    """Return the name of the kernel's function in which a thread waits, "0" if there is none, or `UNKNOWN`.

    Args:
        task: Path of the thread's folder.
    """
    try:
        return contents(f"{task}/wchan")
    except OSError:
        return UNKNOWN


def tasks(pid: int) -> list[str]:
    """Return the paths of the folders of a process's threads; none if the process has ended."""
    try:
        return [str(task) for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


def cpu_times(pid: int, thread: int | None = None) -> CpuTimes | None:
    """Scheduler statistics of a thread, None if the system does not report it.

    Args:
        pid: Its process.
        thread: Its native id; None for the main thread.
    """
    try:
        running, waiting, _ = contents(f"/proc/{pid}/task/{thread or pid}/schedstat").split()
        return CpuTimes(int(running), int(waiting))
    except (OSError, ValueError):
        return None


def memory_of(pid: int) -> MemoryUse | None:
    """Private and shared memory of a process; None if the system does not report it.

    Linux calls a page of a file private if only one process has read it. Here it is shared: another process that reads
    it needs no copy.
    """
    try:
        found = _MAPPING.findall(Path(f"/proc/{pid}/smaps").read_bytes())
    except OSError:
        return None
    mappings = [tuple(map(int, kilobytes)) for kilobytes in found]
    resident = sum(rss for rss, _clean, _dirty, _anonymous in mappings)
    private = sum(min(clean + dirty, anonymous) for _rss, clean, dirty, anonymous in mappings)
    return MemoryUse(private * 1024, (resident - private) * 1024) if mappings else None


def context_switches(status: str) -> ContextSwitches | None:
    """The context switches in a thread's status, which ends with them."""
    counts = status.rpartition("\nvoluntary_ctxt_switches:")[2].split("nonvoluntary_ctxt_switches:")
    return ContextSwitches(int(counts[0]), int(counts[1])) if len(counts) == 2 else None  # noqa: PLR2004 - both
