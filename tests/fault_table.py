"""Kinds of faults, the stages in which they strike, and what must come of each. docs/faults.md sums them up.

`python tests/fault_table.py` prints the table. test_fault_stages.py provokes each of its entries.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import os
import pathlib
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import light
import numpy as np
from light import Held, Numbers

REDONE, RAISED, NOTHING = "redone", "raised", "nothing"
"""What comes of a fault. The worker is replaced, and every batch is delivered once and in order. Or an exception is
raised once, where it belongs, and all other batches are delivered. Or nothing: every batch is delivered."""


@dataclass(frozen=True)
class Fault:
    """One entry of the table."""

    kind: str
    stage: str
    outcome: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.stage}"


# ---- in a worker: each kind is a function that runs there, in the midst of a stage


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segmentation_fault() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def os_exit() -> None:
    os._exit(7)


def kill_the_fork_server() -> None:
    """It takes its workers along."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def raise_an_exception() -> None:
    raise ValueError("last words")


def raise_what_cannot_be_pickled() -> None:
    raise Unpicklable("last words")


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("I stay here")


def exhaust_the_stack() -> None:
    exhaust_the_stack()


def exhaust_memory() -> None:
    np.empty(1 << 60, np.uint8)


def exhaust_descriptors() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        os.open(os.devnull, os.O_RDONLY)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def flood_the_output() -> None:
    print("x" * 300_000)


IN_WORKER: dict[str, tuple[Callable[[], None], str]] = {
    "SIGKILL": (kill, REDONE),
    "segmentation fault": (segmentation_fault, REDONE),
    "abort": (abort, REDONE),
    "`os._exit`": (os_exit, REDONE),
    "`sys.exit`": (sys.exit, REDONE),
    "zygote killed": (kill_the_fork_server, REDONE),
    "hang (restarted)": (light.sleep, REDONE),
    "deadlock in C (restarted)": (light.hang_in_c, REDONE),
    "SIGSTOP (restarted)": (stop, REDONE),
    "exception": (raise_an_exception, RAISED),
    "exception that cannot be pickled": (raise_what_cannot_be_pickled, RAISED),
    "endless recursion": (exhaust_the_stack, RAISED),
    "out of memory": (exhaust_memory, RAISED),
    "out of descriptors": (exhaust_descriptors, RAISED),
    "300 kB of output": (flood_the_output, NOTHING),
}
ERRORS: dict[str, tuple[Any, str]] = {
    "exception": (ValueError, "last words"),
    "exception that cannot be pickled": (Exception, "Unpicklable|last words"),
    "endless recursion": ((RecursionError, pickle.PicklingError), "recursion"),  # as cloudpickle calls it
    "out of memory": (MemoryError, "Unable to allocate"),
    "out of descriptors": (OSError, os.strerror(errno.EMFILE)),
}
EXIT_CODES = {
    "SIGKILL": -signal.SIGKILL,
    "segmentation fault": -signal.SIGSEGV,
    "abort": -signal.SIGABRT,
    "`os._exit`": 7,
    "`sys.exit`": 0,
}
WORKER_STAGES = ("unpickling", "initialization", "fetch", "collation", "encoding")
HANGS = ("hang (restarted)", "deadlock in C (restarted)", "SIGSTOP (restarted)")
BAD = 7
"""The sample with which it happens; in a batch of three it is that in the middle of batch 2."""


class Once:
    """Something that happens once, in whichever process comes first, if the file `flag` exists; then `hit` does."""

    def __init__(self, how: Callable[[], object], folder: pathlib.Path) -> None:
        self.how, self.flag, self.hit = how, str(folder / "flag"), str(folder / "hit")
        pathlib.Path(self.flag).touch()

    def __call__(self) -> None:
        try:
            os.rename(self.flag, self.hit)
        except FileNotFoundError:
            return
        self.how()

    @property
    def happened(self) -> bool:
        return os.path.exists(self.hit)


class InUnpickling(Numbers):
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.once()


class InFetch(Numbers):
    def __getitem__(self, i: int) -> int:
        if i == BAD:
            self.once()
        return i


class InEncoding:
    """A batch that does it while it is pickled, and arrives as a list."""

    def __init__(self, once: Once, samples: list[int]) -> None:
        self.once, self.samples = once, samples

    def __reduce__(self) -> tuple[Any, ...]:
        if BAD in self.samples:
            self.once()
        return list, (self.samples,)


def in_stage(stage: str, n: int, once: Once) -> dict[str, Any]:
    """Arguments of a loader in whose workers something happens in this stage."""
    if stage == "unpickling":
        return {"dataset": InUnpickling(n, once=once), "multiprocessing_context": "forkserver"}
    if stage == "initialization":
        return {"dataset": Numbers(n), "worker_init_fn": lambda _worker: once()}
    if stage == "fetch":
        return {"dataset": InFetch(n, once=once)}
    if stage == "collation":
        return {"dataset": Numbers(n), "collate_fn": lambda samples: (once() if BAD in samples else None, samples)[1]}
    return {"dataset": Numbers(n), "collate_fn": lambda samples: InEncoding(once, samples)}


# ---- other datasets, in modules without torch: a fork server that has been killed is soon there again


class HoldsTheFirst(Held):
    def __getitem__(self, i):
        return super().__getitem__(i) if i == 0 else i


class Large(Held):
    """Each sample is a text of a megabyte, which travels in the message."""

    def __getitem__(self, i):
        return f"{super().__getitem__(i):01000000d}"


class Rebuilt:
    """A batch that raises when it is unpickled, if sample 7 is in it and the file `unless` does not exist."""

    @staticmethod
    def of(error, unless=None):
        return lambda samples: Rebuilt(samples, error, unless)

    def __init__(self, samples, error, unless):
        self.content = samples, error, unless

    def __reduce__(self):
        return rebuild, self.content


def rebuild(samples, error, unless):
    if 7 in samples and not (unless is not None and unless.exists()):
        raise error
    return samples


# ---- in the notebook's process: test_fault_stages.py has a function for each of them

IN_NOTEBOOK: list[Fault] = []
PROVOKED: dict[Fault, Callable[..., None]] = {}


def provokes(kind: str, stage: str, outcome: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the one that provokes a fault and checks what comes of it."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        fault = Fault(kind, stage, outcome)
        IN_NOTEBOOK.append(fault)
        PROVOKED[fault] = function
        return function

    return register


def in_workers() -> Iterator[Fault]:
    for kind, (_how, outcome) in IN_WORKER.items():
        for stage in WORKER_STAGES:
            yield Fault(kind, stage, outcome)


# ---- the table


def table() -> str:
    """All faults as a table in Markdown."""
    stages = f"{', '.join(WORKER_STAGES[:-1])} or {WORKER_STAGES[-1]}"
    in_worker = collections.defaultdict(list)
    for kind, (_how, outcome) in IN_WORKER.items():
        in_worker[outcome].append(kind)
    in_notebook = collections.defaultdict(list)
    for fault in IN_NOTEBOOK:
        in_notebook[fault.kind, fault.outcome].append(fault.stage)
    lines = [f"| in a worker, during {stages} | outcome |", "|---|---|"]
    lines += [f"| {', '.join(kinds)} | {outcome} |" for outcome, kinds in in_worker.items()]
    lines += ["", "| what happens in the notebook's process | during | outcome |", "|---|---|---|"]
    lines += [
        f"| {kind} | {', '.join(stages)} | {outcome.replace('; ', ', and ')} |"
        for (kind, outcome), stages in sorted(in_notebook.items(), key=_order)
    ]
    return "\n".join(lines)


def _order(row: tuple[tuple[str, str], list[str]]) -> int:
    """By the first row of the same kind."""
    (kind, _outcome), _stages = row
    return [fault.kind for fault in IN_NOTEBOOK].index(kind)


class RunsAside:
    """Runs a function in a thread while a `with` block is executed, and raises its exception at the end."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function,))

    def _run(self, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


if __name__ == "__main__":
    import fault_table  # the functions register there, not in __main__
    import test_fault_stages  # noqa: F401

    print(fault_table.table())
