"""Linux: CPU cores and memory available to this process.

In a container, the limits of the control groups (cgroups) apply, not the size of the machine. Limits are hierarchical:
every ancestor of the process's control group can set a lower limit, so each function takes the minimum over the group
and its ancestors.

    /proc/self/cgroup      the group of the process: one per controller (version 1), or a single one (version 2)
    /proc/self/mountinfo   where each hierarchy is mounted, and which group is the root of the mount

The functions that look up limits read files below `root`, so that tests can pass a directory with fake files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nbloader._platform.common import usable_cpus

_ROOT = Path("/")
UNLIMITED = 1 << 60
"""A limit of this many bytes or more is none: version 1 of control groups reports the largest number of pages."""


class CgroupVersion(NamedTuple):
    """Names of the files that hold the limits in one version of control groups."""

    filesystem: str
    """File system type of the mount."""
    memory_limits: tuple[str, ...]
    memory_usage: str
    inactive_file: str
    """Entry of `memory.stat`: page cache that the kernel reclaims first, in bytes."""
    cpusets: tuple[str, ...]
    """Files that list the permitted CPUs, such as "0-3,8". The first file that is not empty is used."""


V1 = CgroupVersion(
    "cgroup", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file",
    ("cpuset.effective_cpus", "cpuset.cpus"),
)  # fmt: skip
V2 = CgroupVersion(
    "cgroup2", ("memory.max", "memory.high"), "memory.current", "inactive_file", ("cpuset.cpus.effective",)
)


class Cgroup(NamedTuple):
    """One control group that limits this process."""

    directory: Path
    version: CgroupVersion


def cores(root: Path = _ROOT) -> int:
    """Return the number of CPU cores that this process may use, at least 1.

    This is the minimum of its CPU affinity and of the CPU sets and CPU bandwidths of its control groups. A bandwidth of
    1.5 cores counts as 2.
    """
    limits = [usable_cpus()]
    for group in cgroups("cpu", root):
        quota = _cpu_quota(group)
        if quota is not None:
            limits.append(-int(-quota // 1))
    for group in cgroups("cpuset", root):
        text = next(filter(None, (_text(group.directory / name) for name in group.version.cpusets)), "")
        limits += [count for count in [cpus_in(text)] if count]
    return max(1, min(limits))


def available_memory(root: Path = _ROOT) -> int | None:
    """Return how many bytes can be allocated without swapping or being killed; None if the system does not report it.

    This is the minimum of the memory available on the machine and the memory that each control group has left.

    Args:
        root: Where to look for /proc.
    """
    limits = [value for value in [_machine_memory(root)] if value is not None]
    for group in cgroups("memory", root):
        left = _memory_left(group)
        if left is not None:
            limits.append(max(0, left))
    return min(limits, default=None)


def cgroups(controller: str, root: Path) -> Iterator[Cgroup]:
    """Yield the control groups that limit this process, from its own group up to the root of the mounted hierarchy.

    Args:
        controller: "memory", "cpu" or "cpuset".
        root: Where to look for /proc. Mount points are also looked up below it.
    """
    paths = _cgroup_paths(_text(root / "proc/self/cgroup"))
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount = _Mount.parse(line)
        if mount is None or (mount.filesystem == V1.filesystem and controller not in mount.options):
            continue
        version = V1 if mount.filesystem == V1.filesystem else V2
        path = paths.get(controller if version is V1 else "")
        if path is None:
            continue
        top = root / mount.point.lstrip("/")
        try:
            inner = PurePosixPath(path).relative_to(mount.group)
        except ValueError:  # the mount shows another part of the hierarchy: only the root of the mount is known
            inner = PurePosixPath()
        for parts in range(len(inner.parts), -1, -1):
            yield Cgroup(top.joinpath(*inner.parts[:parts]), version)


def cpus_in(text: str) -> int:
    """Return the number of CPUs in a list such as "0-3,8"; 0 if the list is empty or malformed."""
    count = 0
    try:
        for part in filter(None, text.strip().split(",")):
            first, dash, last = part.partition("-")
            count += int(last if dash else first) - int(first) + 1
    except ValueError:
        return 0
    return count


class _Mount(NamedTuple):
    """A mounted hierarchy of control groups."""

    group: str
    """The control group at the root of the mount."""
    point: str
    filesystem: str
    options: tuple[str, ...]
    """In version 1, these include the controllers."""

    @classmethod
    def parse(cls, line: str) -> _Mount | None:
        """Parse a line of /proc/self/mountinfo (see proc(5)); return None if it is not a mount of control groups."""
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not separator or not kind or kind[0] not in (V1.filesystem, V2.filesystem):
            return None
        try:
            _id, _parent, _device, group, point = fields[:5]
        except ValueError:
            return None
        return cls(group, _unescaped(point), kind[0], tuple(kind[-1].split(",")))


def _unescaped(path: str) -> str:
    """Decode a path of mountinfo, in which white space and backslashes are escaped in octal."""
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _cgroup_paths(text: str) -> dict[str, str]:
    """Map each controller to the path of the process's group; the key "" is the single hierarchy of version 2."""
    paths = {}
    for line in text.splitlines():
        _number, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator:
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _cpu_quota(group: Cgroup) -> float | None:
    """Return the group's CPU bandwidth limit, in cores; None if there is no limit."""
    with contextlib.suppress(ValueError, ZeroDivisionError):
        if group.version is V2:
            quota, period = map(int, _text(group.directory / "cpu.max").split())  # "max ..." (no limit): ValueError
        else:
            quota = int(_text(group.directory / "cpu.cfs_quota_us"))
            period = int(_text(group.directory / "cpu.cfs_period_us"))
        return quota / period if quota > 0 else None
    return None


def _machine_memory(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            with contextlib.suppress(ValueError, IndexError):
                return int(line.split()[1]) * 1024
    return None


def _memory_left(group: Cgroup) -> int | None:
    """Return the bytes left below the group's limit; None if there is no limit. Inactive page cache counts as free."""
    limits = []
    for name in group.version.memory_limits:
        with contextlib.suppress(ValueError):  # "max" (no limit), or no such file
            limits.append(int(_text(group.directory / name)))
    if min(limits, default=UNLIMITED) >= UNLIMITED:
        return None
    try:
        used = int(_text(group.directory / group.version.memory_usage))
    except ValueError:
        used = 0
    for line in _text(group.directory / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == group.version.inactive_file:
            with contextlib.suppress(ValueError):
                used -= int(value)
    return min(limits) - max(0, used)


def _text(path: Path) -> str:
    """Return the text of a file; "" if the file does not exist or cannot be read."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError):
        return ""
