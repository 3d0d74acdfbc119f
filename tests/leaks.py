"""The resources of this process, and those that are left since an earlier check. Used by conftest.py."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import threading
import time
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker

import psutil

SHM = pathlib.Path("/dev/shm")
FDS = pathlib.Path("/proc/self/fd")


@dataclass
class Belongings:
    """Processes, threads, file descriptors and shared-memory files at one moment."""

    processes: dict[int, psutil.Process]
    threads: set[threading.Thread]
    descriptors: dict[str, str]
    shm_files: set[str]
    kept: set[int]

    @classmethod
    def now(cls) -> Belongings:
        return cls(_descendants({}), _threads(), _descriptors(), _shm_files(), kept_pids())

    @classmethod
    def new_since(cls, before: Belongings) -> Belongings:
        """Resources that are here now and were not `before`."""
        new = cls(_descendants(before.processes), _threads(), _descriptors(), _shm_files(), kept_pids())
        # A number that was closed and given out again is no leak: what counts is how many there are. To each
        # process that is kept one connection stays open.
        surplus = len(new.descriptors) - len(before.descriptors)
        surplus -= len(new.kept) - len(before.kept)
        new.descriptors = {fd: to for fd, to in new.descriptors.items() if before.descriptors.get(fd) != to}
        if surplus <= 0:
            new.descriptors = {}
        new.threads -= before.threads
        new.shm_files -= before.shm_files
        return new

    def __bool__(self) -> bool:
        return bool(self.processes or self.threads or self.descriptors or self.shm_files)

    def __str__(self) -> str:
        lines = [f"process {_described(p)}" for p in self.processes.values()]
        lines += [f"thread {t.name} (daemon: {t.daemon})" for t in self.threads]
        lines += [f"file descriptor {fd} -> {to}" for fd, to in self.descriptors.items()]
        lines += [f"shared memory {SHM / name}" for name in self.shm_files]
        return "\n".join(f"  {line}" for line in lines)

    def wait(self, seconds: float) -> None:
        """Wait until one of these resources is gone, for a limited time."""
        if self.processes:
            psutil.wait_procs(list(self.processes.values()), timeout=seconds)
        elif self.threads:
            next(iter(self.threads)).join(seconds)
        else:
            time.sleep(seconds)  # a descriptor or a file: nothing tells when it goes


def left_behind(before: Belongings, grace: float) -> Belongings:
    """Resources that were not here `before` and are still here after at most `grace` seconds."""
    deadline = time.monotonic() + grace
    left = Belongings.new_since(before)
    while left and time.monotonic() < deadline:
        gc.collect()  # what hangs on a cycle, or on an exception that a test has caught, is closed by its finalizer
        left = Belongings.new_since(before)
        if left:
            left.wait(0.02)
    left.shm_files = {name for name in left.shm_files if not _used_elsewhere(name)}
    return left


def kept_pids() -> set[int]:
    """Processes that live as long as this one: the standard library's resource tracker and its fork server.

    Since Python 3.14, torch's workers come from the fork server.
    """
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    server = getattr(forkserver._forkserver, "_forkserver_pid", None)
    return {tracker, server} - {None}


def _descendants(settled: dict[int, psutil.Process]) -> dict[int, psutil.Process]:
    """Descendants of this process that are not in `settled`, nor below one that is (except for the kept ones)."""
    found: dict[int, psutil.Process] = {}
    kept = kept_pids()
    visited = {os.getpid()}
    for process in psutil.Process().children(recursive=True):  # parents first; one look at all processes of the system
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.ppid() in visited and process.pid not in settled:
                visited.add(process.pid)
                if process.pid not in kept:
                    found[process.pid] = process
    return found


def _threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if not t.daemon or t.name.startswith("nbloader")}


def _descriptors() -> dict[str, str]:
    """Open file descriptors and what each refers to; empty where the system does not say."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for fd in FDS.iterdir():
            with contextlib.suppress(OSError):  # the one that listed the folder is gone by now
                found[fd.name] = str(fd.readlink())
    return found


def _shm_files() -> set[str]:
    with contextlib.suppress(FileNotFoundError):
        # semaphores of multiprocessing, which its resource tracker clears away later, are none of the loader's; nor are
        # the scripts of the driver of a browser
        names = {path.name for path in SHM.iterdir()}
        return {name for name in names if not (name.startswith("sem.mp-") or name.endswith(".js"))}
    return set()


def _used_elsewhere(name: str) -> bool:
    """Whether a foreign process has the file mapped: then it does not belong to a test."""
    ours = {os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))}
    for pid in set(psutil.pids()) - ours:
        with contextlib.suppress(OSError):
            if str(SHM / name) in pathlib.Path(f"/proc/{pid}/maps").read_text(errors="replace"):
                return True
    return False


def _described(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)
