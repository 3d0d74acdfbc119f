"""Reads what Linux reports in /proc about processes and threads."""

from __future__ import annotations

import os
import re
from pathlib import Path

from nbloader._platform.descriptors import open_into
from nbloader._platform.records import UNKNOWN, Activity, ContextSwitches, CpuTimes, MemoryUse, Stat

_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""Unit of the CPU times in /proc/PID/stat, ns."""
_MAPPING = re.compile(
    rb"^Rss: +(\d+) (?:.*\n)+?Private_Clean: +(\d+) .*\nPrivate_Dirty: +(\d+) (?:.*\n)+?Anonymous: +(\d+) ",
    re.MULTILINE,
)
"""Sizes of a mapping in /proc/PID/smaps, kB."""


def stat_of(pid: int, thread: int | None = None) -> Stat | None:
    """Return the counters of a process, or of one of its threads; None if it has ended."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    try:
        return parse_stat(_contents(path))
    except (OSError, ValueError):
        return None


def parse_stat(text: str) -> Stat:
    """Parse /proc/PID/stat, see proc(5).

    Raises:
        ValueError: It does not have the expected format.
    """
    (
        _state, _parent, _group, _session, _terminal, _foreground, _flags, minor_faults, _children_minor,
        major_faults, _children_major, user, system, _children_user, _children_system, _priority, _nice, threads,
        *_rest,
    ) = text.rpartition(") ")[2].split()  # the name before it may contain spaces  # fmt: skip
    return Stat(int(minor_faults), int(major_faults), (int(user) + int(system)) * _TICK, int(threads))


def is_forked() -> bool:
    """Whether this process is a fork that has not started another program since; False if the system does not say."""
    forked_without_exec = 0x40  # PF_FORKNOEXEC of the kernel
    try:
        fields = _contents("/proc/self/stat").rpartition(") ")[2].split()
        _state, _parent, _group, _session, _terminal, _foreground, flags, *_rest = fields
        return bool(int(flags) & forked_without_exec)
    except (OSError, ValueError):
        return False


def activity(pid: int) -> Activity | None:
    """Return what the main thread of a process does; None if the process has ended."""
    try:
        text = _contents(f"/proc/{pid}/task/{pid}/stat")
        return Activity(_state_in(text), parse_stat(text).cpu)
    except (OSError, ValueError):
        return None


def _contents(path: str) -> str:
    """The first 4 kB of a file; a third of the time of `Path.read_text`."""
    file: list[int] = []
    try:
        open_into(file, os.open, path, os.O_RDONLY)
        return os.read(file[0], 4096).decode("ascii", "replace")
    finally:
        if file:
            os.close(file[0])


def state_of(pid: int, thread: int) -> str:
    """Return Linux's letter for the state of a thread; `UNKNOWN` if the system does not report it."""
    try:
        return _state_in(_contents(f"/proc/{pid}/task/{thread}/stat"))
    except OSError:
        return UNKNOWN


def _state_in(stat: str) -> str:
    return stat.rpartition(") ")[2][:1] or UNKNOWN


def waits_in(pid: int, thread: int) -> str:
    """Return the name of the kernel's function in which a thread waits, "0" if there is none, or `UNKNOWN`."""
    try:
        return _contents(f"/proc/{pid}/task/{thread}/wchan")
    except OSError:
        return UNKNOWN


def waits_for_locks(pid: int) -> bool:
    """Whether a process has not ended, and all its threads wait for locks."""
    try:
        threads = [int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return bool(threads) and all(waits_in(pid, thread).startswith("futex") for thread in threads)


def cpu_times(pid: int, thread: int | None = None) -> CpuTimes | None:
    """Scheduler statistics of a thread, None if the system does not report it.

    Args:
        pid: Its process.
        thread: Its native id; None for the main thread.
    """
    try:
        running, waiting, _ = _contents(f"/proc/{pid}/task/{thread or pid}/schedstat").split()
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


def switches_of(pid: int, thread: int) -> ContextSwitches | None:
    """Return the context switches of a thread, with which its status ends; None if the system does not report them."""
    try:
        status = _contents(f"/proc/{pid}/task/{thread}/status")
    except OSError:
        return None
    counts = status.rpartition("\nvoluntary_ctxt_switches:")[2].split("nonvoluntary_ctxt_switches:")
    return ContextSwitches(int(counts[0]), int(counts[1])) if len(counts) == 2 else None  # noqa: PLR2004 - both
