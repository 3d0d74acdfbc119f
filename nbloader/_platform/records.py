"""What the system reports about processes and threads."""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN = "?"
"""Takes the place of what the system does not report."""


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


class Activity(NamedTuple):
    """What the main thread of a process does at one moment."""

    state: str
    """Linux's letter for the state of the thread: "R" if it runs or could run, "S" and "D" if it waits; or `UNKNOWN`.
    """
    cpu: int
    """CPU time that the thread has used, ns; that of the whole process if the system does not report it."""


class Stat(NamedTuple):
    """Counters of a process, for all its threads together, or of a thread."""

    minor_faults: int
    major_faults: int
    cpu: int
    """CPU time in user and kernel mode, ns."""
    threads: int
    """Number of threads of the process."""
