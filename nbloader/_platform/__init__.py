"""The one place that knows the operating system. No other module looks at its name, at /proc, or at what it may lack.

    portable   temporary files, pipes, threads, psutil; workers are new interpreters (macOS, Windows)
    linux      memfd, pidfd, prctl, /proc, control groups, open file description locks; workers can be forked

To support another system, add a module with the name that `sys.platform` has there. What this module lacks is taken
from `portable`, so callers never ask which of them they use. Where they must know, a capability has a name: `CAN_FORK`,
`HAS_ZYGOTES`, `CAN_START_PROCESSES`, `HAS_FILE_LOCKS`. An answer of None (or `UNKNOWN`) says that the system does not
report it.

`NBLOADER_PLATFORM=portable` selects `portable` on every system: its tests then show what works elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import sys

from nbloader._platform.common import (
    exit_at_end_of,
    mapped,
    others_can_write,
    usable_cpus,
    when_forked,
    working_directory,
)
from nbloader._platform.passing import CAN_PASS
from nbloader._platform.polling import readable
from nbloader._platform.portable import (
    HAS_FILE_LOCKS,
    SAMPLE_SIGNAL,
    STACK_IN_C_SIGNAL,
    STACK_SIGNAL,
    START_METHODS,
    activity,
    allocate,
    available_memory,
    cores,
    cpu_times,
    end_of_child,
    idle_time,
    lock,
    mapped_path,
    memory_of,
    new_file,
    open_again,
    open_files_limit,
    pages_written,
    process_space,
    processes_limit,
    punch,
    seal,
    stat_of,
    state_of,
    switches_of,
    unlock,
    waits_for_locks,
    waits_in,
)
from nbloader._platform.records import UNKNOWN, Activity, ContextSwitches, CpuTimes, MemoryUse, Stat
from nbloader._platform.wakeup import Wakeup

NAMES = (sys.platform, "portable") if importlib.util.find_spec(f"{__name__}.{sys.platform}") else ("portable",)
"""The implementations that this system can use, the default first."""
NAME = os.environ.get("NBLOADER_PLATFORM") or NAMES[0]
"""The implementation in use."""
if NAME not in NAMES:
    raise ValueError(f"the environment variable NBLOADER_PLATFORM is {NAME!r}: set it to one of {NAMES}, or remove it")

__all__ = [
    "CAN_FORK",
    "CAN_START_PROCESSES",
    "HAS_FILE_LOCKS",
    "HAS_ZYGOTES",
    "NAME",
    "SAMPLE_SIGNAL",
    "STACK_IN_C_SIGNAL",
    "STACK_SIGNAL",
    "START_METHODS",
    "UNKNOWN",
    "Activity",
    "ContextSwitches",
    "CpuTimes",
    "MemoryUse",
    "Stat",
    "Wakeup",
    "activity",
    "allocate",
    "available_memory",
    "cores",
    "cpu_times",
    "end_of_child",
    "exit_at_end_of",
    "idle_time",
    "lock",
    "mapped",
    "mapped_path",
    "memory_of",
    "new_file",
    "open_again",
    "open_files_limit",
    "others_can_write",
    "pages_written",
    "process_space",
    "processes_limit",
    "punch",
    "readable",
    "seal",
    "stat_of",
    "state_of",
    "switches_of",
    "unlock",
    "usable_cpus",
    "waits_for_locks",
    "waits_in",
    "when_forked",
    "working_directory",
]

# For type checkers these are the functions of `portable`. tests/test_platform.py compares the signatures of others.
_system = vars(importlib.import_module(f"{__name__}.{NAME}"))
globals().update({name: _system[name] for name in __all__ if name in _system})

CAN_FORK = "fork" in START_METHODS
"""Whether workers can be forks of this process."""
CAN_START_PROCESSES = CAN_PASS
"""Whether there can be worker processes: their batches lie in memory whose descriptors are passed to this process."""
HAS_ZYGOTES = "forkserver" in START_METHODS
"""Whether there are processes from which workers are forked (`transport/zygote.py`)."""
