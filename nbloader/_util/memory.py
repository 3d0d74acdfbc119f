"""How much memory is left, asked before a large piece is taken."""

from __future__ import annotations

import contextlib
from pathlib import Path


def available() -> int | None:
    """Bytes that can be taken without swapping or being killed: the machine's, or the container's if that is less.

    Returns:
        None where the system does not tell.
    """
    found = [value for value in (_machine(), _container()) if value is not None]
    return min(found) if found else None


def _machine() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _container() -> int | None:
    """What a control group leaves; page cache that the kernel would give back is not counted, so this is cautious."""
    for folder, limit, usage, cache in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):
            allowed = int(Path(folder, limit).read_text())  # "max" means no limit: a ValueError
            used = int(Path(folder, usage).read_text())
            stat = dict(line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
            return allowed - used + int(stat.get(cache, 0))
    return None
