"""With scarce resources the loader works, or reports what is missing; and it exposes nothing to other users."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys

import numpy as np
import psutil
import pytest
from datasets import Images, Numbers, Sums, pids, run_script, wait_for, zygotes

from nbloader import DataLoader

HEAD = f"""
import os, resource, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from datasets import *
from light import Images, Numbers, Slow  # workers without torch start in a tenth of the time
from nbloader import DataLoader, WorkerStartError
"""


class Uneven(Numbers):
    """Sample 5 is 64 MB, the others are small."""

    def __getitem__(self, i):
        return np.full(16_000_000 if i == 5 else 16, i, np.float32)


def test_shared_memory_does_not_come_from_dev_shm():
    """/dev/shm has 64 MB in a container, which is often too small."""

    def used(process):
        return {m.path for m in process.memory_maps(grouped=True) if m.path.startswith("/dev/shm")}

    before = used(psutil.Process())  # other tests share tensors and semaphores
    with DataLoader(Sums(np.ones((100, 20_000))), 10, num_workers=2) as loader:
        epoch = iter(loader)
        next(epoch)
        assert used(psutil.Process()) <= before
        workers = wait_for(lambda: pids(loader))  # one of them may have been quick enough for the first batch
        assert all(used(psutil.Process(pid)) <= before for pid in workers)


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_dev_shm_of_64_kb_suffices(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        HEAD + "loader = DataLoader(Sums(np.ones((100, 20_000))), 10, num_workers=2, prefetch_factor=4)\n"
        "images = DataLoader(Images(200), 32, num_workers=2)\n"
        "print(sum(float(b.sum()) for b in loader), len([b for b in images]))\n"
    )
    small = "mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 77; exec "
    command = ["unshare", "-m", "sh", "-c", f"{small} {sys.executable} {script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    if done.returncode in (1, 77) and "script.py" not in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr}")
    assert (done.stdout, done.stderr) == ("2000000.0 7\n", "")


def test_128_descriptors_suffice_even_for_a_consumer_that_keeps_all_batches(tmp_path):
    done = run_script(
        HEAD
        + """
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
with DataLoader(Images(800), 2, num_workers=6) as loader:
    for _ in range(2):
        kept = list(loader)
        assert [int(i) for _, ns in kept for i in ns] == list(range(800))
        assert all((image == n[:, None, None]).all() for image, n in kept)
    for number, _ in enumerate(loader):
        if number % 4 == 0:
            loader.restart_workers([0])
print(len(os.listdir("/proc/self/fd")) < 128)
""",
        tmp_path,
        warnings="ignore",  # more workers than this machine has cores
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_more_workers_than_descriptors_allow_is_an_error_that_names_the_limit(tmp_path):
    done = run_script(
        HEAD
        + """
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
with DataLoader(Slow(400), 2, num_workers=60) as loader:
    try:
        list(loader)
    except WorkerStartError as error:
        print(error)
with DataLoader(Slow(400), 2, num_workers=2) as loader:
    epoch = iter(loader)
    next(epoch)
    loader.num_workers = 60
    try:
        list(epoch)
    except WorkerStartError as error:
        print(error)
    loader.num_workers = 3
    print(flat(loader) == list(range(400)))
""",
        tmp_path,
        warnings="ignore",
    )
    first, second, works = done.stdout.splitlines()
    for line in (first, second):
        assert "could not be started" in line
        assert "Too many open files" in line
        assert "RLIMIT_NOFILE=128" in line
        assert "num_workers=60" in line
    assert (works, done.stderr) == ("True", "")


def test_memory_that_cannot_be_received_is_an_error_that_names_the_limit_and_the_next_epoch_works(tmp_path):
    done = run_script(
        HEAD
        + """
from nbloader import NbloaderError
def count():
    return len(os.listdir("/proc/self/fd"))
with DataLoader(Images(400), 2, num_workers=3) as loader:
    before = count()
    for free in (0, 1, 2, 400):
        kept, taken = [], []
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 4096))
        try:
            for batch in loader:
                kept.append(batch)  # so that each needs another segment
                if len(kept) == 3 or (len(kept) > 3 and not free):  # 0: again, since a segment may just have used one
                    try:
                        while True:
                            taken.append(os.dup(0))
                    except OSError:
                        pass
                    for fd in taken[:free]:
                        os.close(fd)
                    del taken[:free]
        except NbloaderError as error:
            print(error)
        for fd in taken:
            os.close(fd)
        kept.clear()
        assert [int(n) for _, ns in loader for n in ns] == list(range(400))
assert worker_processes() == []
print(count() <= before)
""",
        tmp_path,
        warnings="ignore",
    )
    *errors, nothing_left = done.stdout.splitlines()
    assert errors
    for error in errors:
        assert "too many open files" in error
        assert "num_workers=3" in error
        assert "RLIMIT_NOFILE=200" in error
        assert "`ulimit -n`" in error
    assert (nothing_left, done.stderr) == ("True", "")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_zygote_without_descriptors_is_an_error_and_the_next_epoch_works(method, tmp_path):
    done = run_script(
        HEAD
        + f"""
with DataLoader(Slow(4000, wait=0.01), 2, num_workers=1, multiprocessing_context={method!r}) as loader:
    epoch = iter(loader)
    next(epoch)
    [zygote] = zygotes(loader)
    free = len(os.listdir(f"/proc/{{zygote.pid}}/fd")) + 3  # a worker needs six
    resource.prlimit(zygote.pid, resource.RLIMIT_NOFILE, (free, free))
    loader.num_workers = 2
    try:
        list(epoch)
    except WorkerStartError as error:
        print(error)
    loader.reload(Numbers(40))
    print(flat(loader) == list(range(40)))
""",
        tmp_path,
        warnings="ignore",
    )
    *error, works = done.stdout.splitlines()
    assert "no process could be started" in " ".join(error), done.stderr
    assert works == "True"


def limit_memory(_worker):
    """Simulate a lack of memory: limit what a process may map to little more than it has mapped."""
    import psutil

    now = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (now + 40_000_000, resource.RLIM_INFINITY))


def limit_files(_worker):
    """Simulate a lack of memory for segments: limit the size of files, which include memfds."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))


@pytest.mark.parametrize("limit", [limit_memory, limit_files], ids=lambda limit: limit.__name__)
def test_a_lack_of_memory_for_a_batch_is_an_error_of_that_batch(limit):
    with DataLoader(Uneven(12), 1, num_workers=1, worker_init_fn=limit) as loader:
        got, errors = [], []
        epoch = iter(loader)
        while True:
            try:
                got.append(int(next(epoch)[0, 0]))
            except StopIteration:
                break
            except MemoryError as error:
                errors.append(str(error))
        assert got == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
        (text,) = errors
        assert re.search("Unable to allocate|shared memory", text)
        assert loader.stats().deaths == 0, "nobody got a SIGBUS"


def test_a_lack_of_shared_memory_for_the_dataset_is_an_error(tmp_path):
    done = run_script(
        HEAD
        + """
data = Sums(np.ones((100, 20_000)))
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
with DataLoader(data, 10, num_workers=2, multiprocessing_context="forkserver") as loader:
    try:
        list(loader)
    except Exception as error:
        print(type(error).__name__, error)
    loader.reload(Numbers(4))
    print(flat(loader))
""",
        tmp_path,
    )
    error, works = done.stdout.splitlines()
    assert "MB of shared memory could not be allocated" in error
    assert (works, done.stderr) == ("[0, 1, 2, 3]", "")


def open_to_others(process):
    """Ports on which a process listens, and its named sockets."""
    connections = process.net_connections(kind="all")
    ports = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]
    return ports + [c.laddr for c in connections if c.family.name == "AF_UNIX" and c.laddr]


def test_nothing_is_exposed_to_other_users():
    before = open_to_others(psutil.Process())
    with DataLoader(Images(400), 4, num_workers=2) as loader:
        epoch = iter(loader)
        next(epoch)
        loader.stats()
        workers = wait_for(lambda: pids(loader))
        assert open_to_others(psutil.Process()) == before
        for pid in [*(process.pid for process in zygotes(loader)), *workers]:
            assert set(open_to_others(psutil.Process(pid))) <= set(before), "connections that others had accepted"
        for segment in os.listdir("/dev/shm"):
            assert "nbloader" not in segment
