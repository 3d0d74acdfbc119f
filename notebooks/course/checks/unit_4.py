"""Checks of unit 4: processes, threads, and the interpreter lock."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, ClassVar

import cloudpickle

from . import Hint, Unit, attempt, choices, number

unit = Unit()
progress = unit.progress

MEETING = 0.5
"""Seconds that threads have to meet; a class that lets one after the other in waits so long once."""


@unit.task("4.1 Who sees the list")
def shared(entries: Any, *, measured: dict[str, int]) -> str:
    """`entries` predicts the length of the notebook's list for three kinds of workers."""
    choices(
        entries,
        measured,
        {
            "no workers": "the notebook itself reads the samples.",
            "threads": "threads live in the notebook's process and use the same object.",
            "processes": "each process has a copy of the dataset, with a list of its own. Who would send it back?",
        },
    )
    return "The entries of the processes are in their copies, and disappear with them."


@unit.task("4.2 What is shared can be torn")
def tally(cls: Callable[[Callable[[int], int]], Any]) -> str:
    """`Tally(step).add()` is called by four threads at the same moment."""
    together = threading.Barrier(4)

    def step(old: int) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            # Until four threads have read the old value, or only one can get here.
            together.wait(MEETING)
        return old + 1

    counter = attempt(cls, step)

    def add() -> None:
        threads = [threading.Thread(target=counter.add, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    attempt(add)
    if counter.value < 4:
        raise Hint(
            f"four threads added 1 each, and the value is {counter.value}. All of them read the old value before one "
            "wrote. Reading, step() and writing must be under one and the same lock, which all threads share."
        )
    if counter.value != 4:
        raise Hint(f"four threads added 1 each, and the value is {counter.value}.")
    return "One lock for the object, held from the reading to the writing."


@unit.task("4.3 How many at the same time")
def parallel(at_once: Any, *, measured: float) -> str:
    """`at_once` predicts how many of 4 workers make progress on 2 cores."""
    free = measured > 1.5  # more than one thread computed: a Python without the lock
    choices(
        at_once,
        {
            "threads that compute": 2 if free else 1,
            "processes that compute": 2,
            "threads that wait": 4,
            "processes that wait": 4,
        },
        {
            "threads that compute": "look at the first line of the experiment. Who holds the interpreter lock?",
            "processes that compute": "each has a lock of its own, but a core computes for one of them at a time. The "
            "question is about 2 cores, even if your machine has more.",
            "threads that wait": "a thread that waits holds neither the lock nor a core.",
            "processes that wait": "waiting needs no core.",
        },
    )
    return "Computing needs a core, and in threads the lock as well. Waiting needs neither."


@unit.task("4.4 A model")
def rate(function: Callable[..., Any]) -> str:
    """`rate(workers, waiting, computing, cores, lock)` is the upper limit of samples per second."""
    cases = (
        (
            (4, 0.01, 0.0, 2, True),
            400.0,
            "samples only wait: 4 workers make 100 per second each",
        ),
        (
            (1, 0.008, 0.002, 2, False),
            100.0,
            "one worker waits and computes one after the other",
        ),
        ((8, 0.0, 0.01, 2, False), 200.0, "8 processes compute, and there are 2 cores"),
        ((8, 0.0, 0.01, 2, True), 100.0, "8 threads compute, and only one at a time"),
        (
            (16, 0.09, 0.01, 2, True),
            100.0,
            "16 threads would make 160, but computing takes 10 ms under the lock",
        ),
        (
            (16, 0.09, 0.01, 2, False),
            160.0,
            "16 processes wait most of the time: the 2 cores would allow 200",
        ),
        ((1, 0.0, 0.01, 4, False), 100.0, "one worker cannot use more than one core"),
    )
    for arguments, expected, story in cases:
        made = number(attempt(function, *arguments), "samples per second")
        if abs(made - expected) > 1e-6 * expected:
            raise Hint(
                f"rate{arguments} is {expected:g}, and you return {made:g}: {story}."
            )
    return "The smallest of three limits: workers, cores, lock."


@unit.task("4.5 Choose")
def choose(choice: Any) -> str:
    """`choice` says which datasets need processes."""
    choices(
        choice,
        {
            "downloads images, and waits most of the time": "thread",
            "tokenizes text in pure Python": "process",
            "decodes images with a library that gives the lock back": "thread",
            "augments images with Python loops over their pixels": "process",
            "calls a C library that keeps its state in a global variable": "process",
            "waits for a database, and looks things up in a dict of 20 GB": "thread",
        },
        {
            "downloads images, and waits most of the time": "a thread that waits does not hold the lock.",
            "tokenizes text in pure Python": "pure Python holds the lock all the time.",
            "decodes images with a library that gives the lock back": "while the library decodes, other threads run.",
            "augments images with Python loops over their pixels": "these loops are Python code.",
            "calls a C library that keeps its state in a global variable": "two threads would overwrite each other's "
            "state. What do processes not share?",
            "waits for a database, and looks things up in a dict of 20 GB": "how many copies of it would there be?",
        },
    )
    return "Waiting and native code: threads. Python code, and what is not thread-safe: processes."


@unit.task("4.6 What can travel")
def travel(travels: Any, *, measured: dict[str, bool]) -> str:
    """`travels` predicts what cloudpickle can send."""
    choices(
        travels,
        measured,
        {
            "a NumPy array": "its bytes, shape and type are all that it is.",
            "a lambda": "Python's own pickle cannot, but cloudpickle sends the code.",
            "a class of this notebook": "cloudpickle sends the definition, not the name.",
            "an open binary file": "an open file is a number that the system knows in this process only.",
            "a database connection": "like an open file, it belongs to this process.",
            "a generator": "it is a function that has stopped in the middle.",
        },
    )
    return "Data and code travel. What the system or the interpreter holds for this process does not."


opened = 0
"""How often `open_counted` was called."""


def open_counted(path: Path, mode: str) -> IO[bytes]:
    """Open a file, and count."""
    global opened  # noqa: PLW0603 - copies of a dataset that are unpickled here must count together
    opened += 1
    return CountedFile(open(path, mode))  # type: ignore[return-value]  # noqa: PTH123 - as the open() that it replaces


class CountedFile:
    """A file that counts how much is read."""

    read_bytes = 0
    files: ClassVar[list[IO[bytes]]] = []
    """Those that the check has to close: many a dataset leaves that to the end of its process."""

    def __init__(self, file: IO[bytes]) -> None:
        self.files.append(file)
        self.file, self.seek, self.close, self.tell = (
            file,
            file.seek,
            file.close,
            file.tell,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def read(self, size: int = -1) -> bytes:
        """Read, and count."""
        data = self.file.read(size)
        CountedFile.read_bytes += len(data)
        return data

    def __enter__(self) -> CountedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_io.BufferedReader' object")


@unit.task("4.7 A file in a dataset")
def records(cls: Callable[..., Any], path: Path) -> str:
    """`Records(path, open_file)` can be sent to a worker, and opens the file once."""
    try:
        attempt(lambda: _records(cls, path))
    finally:
        while CountedFile.files:
            CountedFile.files.pop().close()
    return (
        "It sends the name of the file, and a new interpreter opens the file for itself. (A forked worker inherits a "
        "file that is open already. To notice that, compare os.getpid() with that of the process which opened it.)"
    )


def _records(cls: Callable[..., Any], path: Path) -> None:
    global opened  # noqa: PLW0603
    opened = CountedFile.read_bytes = 0
    dataset = cls(path, open_counted)
    if opened:
        raise Hint(
            "the file is opened in __init__, so an open file would have to travel. Open it on first use."
        )

    def send(what: Any, when: str) -> Any:
        try:
            sent = cloudpickle.dumps(what)
        except TypeError as error:
            raise Hint(
                f"{when}, it cannot be sent: {error}. Which attribute is that? Leave it out."
            ) from error
        if len(sent) > 20_000:  # the class itself takes some; the file has 40,000 bytes
            raise Hint(
                f"{when}, {len(sent):,} bytes are sent: the contents of the file. Send its name."
            )
        return cloudpickle.loads(sent)

    for copy, who in (
        (send(dataset, "before it is used"), "a worker"),
        (dataset, "the notebook"),
    ):
        opened = CountedFile.read_bytes = 0
        for i in (7, 3, 4999, 3):
            made = copy[i]
            if made != i.to_bytes(8, "big"):
                raise Hint(
                    f"sample {i} is {made!r}, and the file has {i.to_bytes(8, 'big')!r} at {8 * i}."
                )
        if opened != 1:
            raise Hint(
                f"{who} read four samples and opened the file {opened} times. Keep it open after the first one."
            )
        if CountedFile.read_bytes > 1000:
            raise Hint(
                f"for four samples of 8 bytes {CountedFile.read_bytes:,} bytes were read: seek, then read 8."
            )
    again = send(dataset, "after the notebook has read a sample")
    if again[5] != (5).to_bytes(8, "big"):
        raise Hint("after the notebook has used it, its copy returns another sample.")
    opened = 0
    if dataset[6] != (6).to_bytes(8, "big"):
        raise Hint("the notebook cannot use it any more after it was sent.")
    if opened:
        raise Hint(
            "after it was sent, the notebook has to open the file again: `__getstate__` has changed the dataset "
            "itself. Change a copy of `self.__dict__`."
        )


@unit.task("4.8 Is there a lock")
def has_lock(function: Callable[[Any], Any]) -> str:
    """`has_lock(sys)` says whether the interpreter lock is on."""
    pythons = (
        ("3.11, without _is_gil_enabled", SimpleNamespace(version_info=(3, 11)), True),
        (
            "3.13, an ordinary build",
            SimpleNamespace(version_info=(3, 13), _is_gil_enabled=lambda: True),
            True,
        ),
        (
            "3.13, free-threaded",
            SimpleNamespace(version_info=(3, 13), _is_gil_enabled=lambda: False),
            False,
        ),
        (
            "3.14, free-threaded, where a module has switched the lock on",
            SimpleNamespace(
                version_info=(3, 14), _is_gil_enabled=lambda: True, abiflags="t"
            ),
            True,
        ),
    )
    for name, sys, expected in pythons:
        try:
            made = attempt(function, sys)
        except Hint as hint:
            if "_is_gil_enabled" in str(hint):
                raise Hint(
                    f"Python {name}: there is no such function. What is true of all older versions?"
                ) from None
            raise
        if made is not expected:
            raise Hint(
                f"Python {name}: the lock is {'on' if expected else 'off'}, and you return {made!r}."
            )
    return "Ask for the state, not for the version."
