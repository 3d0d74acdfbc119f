"""Limits of control groups (cgroups): memory and cores that a process in a container may use."""

import os
from pathlib import Path

import pytest

from nbloader._platform import cgroups

pytestmark = pytest.mark.unit

MB = 1_000_000
UNLIMITED_V1 = str((1 << 63) - 4096)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def machine(root: Path, *, available_mb: int = 21_000) -> None:
    write(root, {"proc/meminfo": f"MemTotal: 64000000 kB\nMemAvailable: {available_mb * MB // 1024} kB"})


def v2(root: Path, path: str = "/pods/app", group: str = "/") -> Path:
    """A process in a group of version 2; gives the directory of the mount."""
    machine(root)
    write(root, {
        "proc/self/cgroup": f"0::{path}",
        "proc/self/mountinfo": "22 27 0:21 / /proc rw - proc proc rw\n"
        f"31 23 0:28 {group} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate",
    })  # fmt: skip
    return root / "sys/fs/cgroup"


def v1(root: Path, path: str = "/pods/app", group: str = "/") -> Path:
    """A process in groups of version 1, with the controllers for CPUs mounted together; gives the mounts' parent."""
    machine(root)
    write(root, {
        "proc/self/cgroup": f"9:name=systemd:/\n4:memory:{path}\n3:cpuset:{path}\n1:cpu,cpuacct:{path}\n0::/",
        "proc/self/mountinfo": f"35 31 0:32 {group} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        f"36 31 0:33 {group} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"37 31 0:34 {group} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    })  # fmt: skip
    return root / "sys/fs/cgroup"


@pytest.fixture
def affinity(monkeypatch):
    """A machine of 64 cores, all of which the process may run on."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)), raising=False)


# --- memory


def test_without_control_groups_the_machines_memory_counts(tmp_path):
    machine(tmp_path)
    assert cgroups.available_memory(tmp_path) == pytest.approx(21_000 * MB, abs=1024)


def test_memory_is_unknown_where_the_system_does_not_tell(tmp_path):
    assert cgroups.available_memory(tmp_path) is None


def test_v2_memory_is_the_limit_less_what_is_used_plus_reclaimable_cache(tmp_path):
    own = v2(tmp_path) / "pods/app"
    write(own, {"memory.max": str(700 * MB), "memory.current": str(300 * MB)})
    write(own, {"memory.stat": f"anon 200000000\ninactive_file {50 * MB}\nactive_file 9"})
    assert cgroups.available_memory(tmp_path) == 450 * MB


@pytest.mark.parametrize("parent_mb", [500, 900])
def test_v2_the_smallest_memory_on_the_way_up_counts(tmp_path, parent_mb):
    top = v2(tmp_path)
    write(top / "pods/app", {"memory.max": str(700 * MB), "memory.current": "0"})
    write(top / "pods", {"memory.max": str(parent_mb * MB), "memory.current": "0"})
    assert cgroups.available_memory(tmp_path) == min(700, parent_mb) * MB


def test_v2_max_is_no_limit_and_high_is_one(tmp_path):
    top = v2(tmp_path)
    write(top / "pods/app", {"memory.max": "max", "memory.current": str(9 * MB)})
    assert cgroups.available_memory(tmp_path) == pytest.approx(21_000 * MB, abs=1024)
    write(top / "pods", {"memory.max": "max", "memory.high": str(100 * MB), "memory.current": str(60 * MB)})
    assert cgroups.available_memory(tmp_path) == 40 * MB


def test_v2_in_a_namespace_the_mount_is_the_own_group(tmp_path):
    top = v2(tmp_path, path="/")
    write(top, {"memory.max": str(700 * MB), "memory.current": str(100 * MB)})
    assert cgroups.available_memory(tmp_path) == 600 * MB


@pytest.mark.parametrize(("path", "group"), [("/docker/abc", "/docker/abc"), ("/../other", "/"), ("/x", "/docker/abc")])
def test_a_mount_of_a_part_of_the_hierarchy_is_read_at_its_root(tmp_path, path, group):
    top = v2(tmp_path, path=path, group=group)
    write(top, {"memory.max": str(700 * MB), "memory.current": "0"})
    assert cgroups.available_memory(tmp_path) == 700 * MB


def test_v1_memory_walks_up_too(tmp_path):
    top = v1(tmp_path) / "memory"
    write(top / "pods/app", {"memory.limit_in_bytes": UNLIMITED_V1, "memory.usage_in_bytes": str(100 * MB)})
    assert cgroups.available_memory(tmp_path) == pytest.approx(21_000 * MB, abs=1024)
    write(top / "pods", {"memory.limit_in_bytes": str(700 * MB), "memory.usage_in_bytes": str(600 * MB)})
    write(top / "pods", {"memory.stat": f"inactive_file 1\ntotal_inactive_file {20 * MB}"})
    assert cgroups.available_memory(tmp_path) == 120 * MB


def test_v1_docker_without_a_namespace(tmp_path):
    top = v1(tmp_path, path="/docker/abc", group="/docker/abc") / "memory"
    write(top, {"memory.limit_in_bytes": str(700 * MB), "memory.usage_in_bytes": "0"})
    assert cgroups.available_memory(tmp_path) == 700 * MB


def test_memory_beyond_the_limit_leaves_nothing(tmp_path):
    top = v2(tmp_path, path="/")
    write(top, {"memory.max": str(100 * MB), "memory.current": str(130 * MB)})
    assert cgroups.available_memory(tmp_path) == 0


def test_unreadable_files_set_no_limit(tmp_path):
    top = v2(tmp_path)
    write(top / "pods/app", {"memory.max": "", "cpu.max": "many 0", "cpuset.cpus.effective": "0-x"})
    (top / "pods/memory.max").mkdir(parents=True)
    assert cgroups.available_memory(tmp_path) == pytest.approx(21_000 * MB, abs=1024)
    assert cgroups.cores(tmp_path) >= 1
    write(tmp_path, {"proc/self/cgroup": "nonsense", "proc/self/mountinfo": "31 23 - cgroup2\n- \n1 - cgroup"})
    assert cgroups.available_memory(tmp_path) == pytest.approx(21_000 * MB, abs=1024)


# --- cores


@pytest.mark.usefixtures("affinity")
def test_without_control_groups_the_affinity_counts(tmp_path):
    assert cgroups.cores(tmp_path) == 64


@pytest.mark.usefixtures("affinity")
@pytest.mark.parametrize(("cpu_max", "expected"), [("max 100000", 64), ("200000 100000", 2), ("150000 100000", 2),
                                                   ("5000 100000", 1), ("100000 0", 64)])  # fmt: skip
def test_v2_cpu_bandwidth(tmp_path, cpu_max, expected):
    write(v2(tmp_path) / "pods/app", {"cpu.max": cpu_max})
    assert cgroups.cores(tmp_path) == expected


@pytest.mark.usefixtures("affinity")
def test_v2_the_smallest_number_of_cores_on_the_way_up_counts(tmp_path):
    top = v2(tmp_path)
    write(top / "pods/app", {"cpu.max": "800000 100000", "cpuset.cpus.effective": "0-15"})
    write(top / "pods", {"cpu.max": "300000 100000", "cpuset.cpus.effective": "0-15"})
    assert cgroups.cores(tmp_path) == 3
    write(top / "pods", {"cpuset.cpus.effective": "0,4"})
    assert cgroups.cores(tmp_path) == 2


@pytest.mark.usefixtures("affinity")
def test_v1_bandwidth_and_cpusets(tmp_path):
    top = v1(tmp_path)
    write(top / "cpu,cpuacct/pods/app", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"})
    assert cgroups.cores(tmp_path) == 64
    write(top / "cpu,cpuacct/pods", {"cpu.cfs_quota_us": "350000", "cpu.cfs_period_us": "100000"})
    assert cgroups.cores(tmp_path) == 4
    write(top / "cpuset/pods/app", {"cpuset.cpus": "0-1,7"})
    assert cgroups.cores(tmp_path) == 3


def test_the_affinity_is_an_upper_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3}, raising=False)
    write(v2(tmp_path) / "pods/app", {"cpu.max": "800000 100000"})
    assert cgroups.cores(tmp_path) == 1


@pytest.mark.parametrize(("text", "count"), [("0-3,8\n", 5), ("0", 1), ("", 0), ("\n", 0), ("0-", 0), ("a", 0)])
def test_lists_of_cpus(text, count):
    assert cgroups.cpus_in(text) == count


def test_this_machine_has_cores_and_memory():
    assert 1 <= cgroups.cores() <= (os.cpu_count() or 1)
    left = cgroups.available_memory()
    assert left is None or left > 0
