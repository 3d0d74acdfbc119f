"""Reads what Linux reports in /proc about processes and threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from nbloader._util.descriptors import open_into

UNKNOWN = "?"
"""Takes the place of what the system does not report."""
_TICK = 1_000_000_000 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
"""Unit of the CPU times in /proc/PID/stat, ns."""


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
    """Memory that no other process shares."""
    shared: int
    """Memory that several processes map (segments, the dataset, libraries)."""


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
    """Private and shared memory of a process; None if the system does not report it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
        kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
        return MemoryUse(private * 1024, (kilobytes["Rss"] - private) * 1024)
    except (OSError, ValueError, KeyError, IndexError):
        return None


def context_switches(status: str) -> ContextSwitches | None:
    """The context switches in a thread's status, which ends with them."""
    counts = status.rpartition("\nvoluntary_ctxt_switches:")[2].split("nonvoluntary_ctxt_switches:")
    return ContextSwitches(int(counts[0]), int(counts[1])) if len(counts) == 2 else None  # noqa: PLR2004 - both
