"""Datasets, functions and helpers of the tests that use real workers. A separate module, because workers import it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import light
import numpy as np
import psutil
import torch
from leaks import kept_pids

from nbloader import get_worker_info
from nbloader._platform import HAS_ZYGOTES

if TYPE_CHECKING:
    from nbloader.events.gauges import WorkerGauge

PATIENCE = 90.0
"""Seconds that a test waits for a condition before it fails."""


class Numbers(light.Numbers):
    """`light.Numbers` in workers that have torch, since this module has."""


class Images(light.Images):
    """`light.Images` in workers that have torch."""


class Augmented(Numbers):
    """Draws from every generator that is seeded: those of a worker thread, elsewhere the global ones."""

    def __getitem__(self, i):
        info = get_worker_info()
        own = None if info is None else info.rng
        if own is None:
            return i, random.random(), np.random.rand(), torch.rand(2), np.random.randint(1000)
        numpy = own.numpy_generator
        return (
            i,
            own.random_generator.random(),
            numpy.random(),
            torch.rand(2, generator=own.torch_generator),
            int(numpy.integers(1000)),
        )


class Structured(Numbers):
    """One of each kind of data that can be collated."""

    def __getitem__(self, i):
        return {
            "image": np.full((3, 5), i, np.float32),
            "large": torch.full((3000,), i, dtype=torch.bfloat16),
            "name": f"sample {i}",
            "nested": [(i, float(i)), {"flag": i % 2 == 0, "raw": bytes([i])}],
        }


class Slow(light.Slow):
    """`light.Slow` in workers that have torch."""


class Raises(Numbers):
    """Raises `error()` at index `bad`."""

    def __getitem__(self, i):
        if i == self.bad:
            raise self.error()
        return i


class Hangs(light.Hangs):
    """`light.Hangs` in workers that have torch."""


class Held(light.Held):
    """`light.Held` in workers that have torch."""


def sigkill():
    os.kill(os.getpid(), signal.SIGKILL)


def exit_with_7():
    os._exit(7)


def sys_exit():
    sys.exit(3)


def segfault():
    ctypes.string_at(0)


class Deadly(Numbers):
    """Ends its worker by `how` at index `bad`; with a `flag`, only if that file exists, and removes it."""

    flag = None

    def __getitem__(self, i):
        if i == self.bad:
            if self.flag is not None:
                try:
                    os.unlink(self.flag)
                except FileNotFoundError:
                    return i
            print("last words", file=sys.stderr)
            self.how()
        return i


class Stage:
    """Ends the worker by `how`; with a `flag`, only if that file exists, and removes it."""

    def __init__(self, how, flag):
        self.how, self.flag = how, flag

    def trigger(self):
        if self.flag is not None:
            try:
                os.unlink(self.flag)
            except FileNotFoundError:
                return
        print("last words", file=sys.stderr)
        self.how()


class DiesInUnpickling(Numbers):
    def __setstate__(self, state):
        self.__dict__.update(state)
        self.stage.trigger()


class DiesInFetch(Numbers):
    def __getitem__(self, i):
        if i == 7:
            self.stage.trigger()
        return i


class DiesInPickling:
    def __init__(self, stage, numbers):
        self.stage, self.numbers = stage, numbers

    def __reduce__(self):
        if 7 in self.numbers:
            self.stage.trigger()
        return list, (self.numbers,)


def at_stage(stage, n, how, flag=None):
    """Arguments of a loader whose worker dies in a stage of sample 7, or of its start."""
    end = Stage(how, None if flag is None else str(flag))
    if stage == "arrival":
        return {"dataset": DiesInUnpickling(n, stage=end), "multiprocessing_context": "forkserver"}
    if stage == "init":
        return {"dataset": Numbers(n), "worker_init_fn": lambda _worker: end.trigger()}
    if stage == "fetch":
        return {"dataset": DiesInFetch(n, stage=end)}
    if stage == "collate":
        return {"dataset": Numbers(n), "collate_fn": lambda b: (end.trigger() if 7 in b else None, b)[1]}
    return {"dataset": Numbers(n), "collate_fn": lambda b: DiesInPickling(end, b)}


class Environment(Numbers):
    """Each sample describes the worker's environment."""

    def __getitem__(self, i):
        info, theirs = get_worker_info(), torch.utils.data.get_worker_info()
        return {
            "pid": os.getpid(),
            "cwd": os.getcwd(),
            "env": dict(os.environ),
            "path": list(sys.path),
            "info": None if info is None else (info.id, info.num_workers, info.seed, len(info.dataset)),
            "theirs": None if theirs is None else (theirs.id, theirs.num_workers, theirs.seed, len(theirs.dataset)),
            "threads": torch.get_num_threads(),
            "main": getattr(sys.modules["__main__"], "__file__", None),
        }


class FailsToUnpickle(Numbers):
    """Can be pickled, but not unpickled."""

    def __getstate__(self):
        return {"n": self.n}

    def __setstate__(self, _state):
        raise ValueError("no such file: data.bin")


class ExitsInUnpickling(FailsToUnpickle):
    def __setstate__(self, _state):
        print("last words", file=sys.stderr)
        os._exit(5)


class HangsInUnpickling(FailsToUnpickle):
    def __setstate__(self, _state):
        time.sleep(3600)


class SlowToUnpickle(FailsToUnpickle):
    def __setstate__(self, state):
        time.sleep(2.2)
        self.__dict__.update(state)


class Nested(Numbers):
    """Each sample iterates a loader inside the worker."""

    def __getitem__(self, i):
        from nbloader import DataLoader

        with DataLoader(Numbers(6), 2, num_workers=2) as inner:
            return sum(int(batch.sum()) for batch in inner) + i


class Sums:
    """Sums over a large array that is shared by the workers."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return len(self.array)

    def __getitem__(self, i):
        return float(self.array[i].sum())


class NotRebuildable(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, code, *, hint):
        super().__init__(f"code {code}")
        self.hint = hint


def not_rebuildable():
    return NotRebuildable(3, hint="none")


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("I stay here")


class RaisesInStr(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class OnDevice(torch.Tensor):
    """A tensor whose device is a GPU, on a machine without one."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3,), device="cuda:0")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls()


class Uploads(Numbers):
    """A dataset that uploads its samples by itself."""

    def __getitem__(self, i):
        return OnDevice()


# ---- helpers


def without_address(value) -> str:
    """The text of a parameter, as the id of a test. Addresses differ between the processes that share the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def flat(batches) -> list[int]:
    return [int(i) for batch in batches for i in batch]


def wait_for(condition, what: str = "the condition"):
    """Block until `condition()` is true; return its value."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not become true within {PATIENCE:g} s")
        time.sleep(0.005)
    return value


def alive(pid: int) -> bool:
    """Whether a process is running (a zombie is not)."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def pids(loader) -> list[int]:
    """The processes that exist now. A worker may start late: others may have produced all batches before it exists."""
    return [worker.pid for worker in loader.stats().workers if worker.pid]


def at_work(loader) -> list[WorkerGauge]:
    """The workers that are initialized now, and whose pid is known."""
    return [worker for worker in loader.stats().workers if worker.pid and worker.state not in ("starting", "dead")]


def all_pids(loader) -> list[int]:
    """The processes of all workers, by worker id, once every worker is initialized."""

    def initialized():
        found = [worker.pid for worker in at_work(loader)]
        return found if len(found) == loader.num_workers and all(map(alive, found)) else None

    return wait_for(initialized, "the start of all workers")


def zygotes(loader) -> list[psutil.Process]:
    """The processes that the workers which exist now were forked from: one for each pool."""
    found: dict[int, psutil.Process] = {}
    for pid in pids(loader):
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(psutil.Process(pid).ppid())
            if parent.ppid() == os.getpid():  # else it has ended, and its workers are about to
                found[parent.pid] = parent
    return list(found.values())


def worker_processes() -> list[psutil.Process]:
    """All running children of zygotes, which are the children of this process; without zygotes, its children."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            candidates = child.children() if HAS_ZYGOTES else [child] * (child.pid not in kept_pids())
            found += [p for p in candidates if p.status() != psutil.STATUS_ZOMBIE]
    return found


def run_script(
    code: str, tmp_path: pathlib.Path, *, warnings: str = "error", timeout: float = 110
) -> subprocess.CompletedProcess:
    """Run code as a script in a separate process."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, "-W", warnings, str(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=tmp_path,
    )


def begin(loader):
    """Begin an epoch and wait for its first batch, so that the time to start workers does not count."""
    epoch = iter(loader)
    wait_for(lambda: loader.stats().ready)
    return epoch
