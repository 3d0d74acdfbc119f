"""How often the verdict is right: loaders with a planted cause, and what the verdict about their epoch says.

    make bench-diagnosis                     all workloads, each in turn
    make bench-diagnosis ONLY=collate,lock   those whose names begin so
    make bench-diagnosis SEEDS=3             each so many times
    make bench-diagnosis SIZES=0.5,1,2       each in so many sizes: batches of so many times the samples
    make bench-diagnosis LIVE=1              what a live view says, five times a second, in the second half of an epoch

Each workload is a real loader with real workers, whose dataset, sampler, collate function, worker or loop is made slow
in one way, or in two. The truth is a set of causes: a verdict is right if its first cause is among them, and if a pair
is planted, its second cause, too. In a live view each look counts, at the verdict about the last seconds or, if the
cause does not recur, about the epoch so far. Work of other programs on the machine is a cause of its own: where more
than `FOREIGN` cores were used by others while a workload computed, "cores_taken" and "workers_compute_full" are right,
too. The table is written to build/planted/table.md.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import functools
import itertools
import multiprocessing
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import nbloader

FOREIGN = 0.3
"""Cores used by other programs from which the machine counts as busy."""
ROW = np.arange(16, dtype=np.float32)
TABLE = Path(__file__).resolve().parent.parent / "build" / "planted" / "table.md"


def compute(seconds: float) -> None:
    """Python code that takes so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))


class Samples:
    """A dataset whose samples do something: a function of the index, called in the worker."""

    def __init__(self, length: int, work: Callable[[int], object] | None = None, row: Any = ROW) -> None:
        self.length, self.work, self.row = length, work, row

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        if self.work is not None:
            self.work(index)
        return self.row


class OpensLate(Samples):
    """A dataset that opens its files with the first sample of a worker."""

    opened = False

    def __getitem__(self, index: int) -> Any:
        if not self.opened:
            time.sleep(0.8)
            self.opened = True
        return super().__getitem__(index)


class UnpickledSlowly(Samples):
    """A dataset that each worker takes long to rebuild."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        time.sleep(0.8)
        vars(self).update(state)


@dataclass(frozen=True)
class Sleeping:
    seconds: float

    def __call__(self, _index: int) -> None:
        time.sleep(self.seconds)


@dataclass(frozen=True)
class Computing:
    seconds: float

    def __call__(self, _index: int) -> None:
        compute(self.seconds)


@dataclass(frozen=True)
class ComputingAndSleeping:
    computing: float
    sleeping: float

    def __call__(self, _index: int) -> None:
        compute(self.computing)
        time.sleep(self.sleeping)


@dataclass(frozen=True)
class SlowWhere:
    """Some samples are slow."""

    which: Callable[[int], bool]
    slow: float
    usual: float = 0.001

    def __call__(self, index: int) -> None:
        time.sleep(self.slow if self.which(index) else self.usual)


@dataclass(frozen=True)
class HangsOnce:
    """A sample that hangs until its worker is restarted."""

    flag: str
    at: int = 150

    def __call__(self, index: int) -> None:
        time.sleep(0.001)
        if index == self.at and not os.path.exists(self.flag):
            Path(self.flag).touch()
            time.sleep(60)


@dataclass(frozen=True)
class FileLock:
    path: str
    seconds: float

    def __call__(self, _index: int) -> None:
        with open(self.path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(self.seconds)


@dataclass(frozen=True)
class Semaphore:
    lock: Any
    seconds: float
    work: Callable[[float], None] = time.sleep

    def __call__(self, _index: int) -> None:
        with self.lock:
            self.work(self.seconds)


class Matrices:
    """Threads of the linear algebra library compute in each worker."""

    def __call__(self, _index: int) -> None:
        import torch

        a = torch.ones(384, 384)
        for _ in range(4):
            a = a @ a / 384


def many_torch_threads(_worker: int) -> None:
    import torch

    torch.set_num_threads(4)


def collate_after(work: Callable[[int], object], samples: list[Any]) -> Any:
    work(0)
    return np.stack(samples)


def collate_objects(samples: list[Any]) -> list[dict[str, list[float]]]:
    return [{f"key {i} {j}": [float(k) for k in range(20)] for j in range(40)} for i in range(len(samples) * 4)]


def sleep_in_init(_worker: int) -> None:
    time.sleep(1.0)


def one_is_slow(worker: int) -> None:
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    if worker == 1 and info is not None:
        info.dataset.work = Sleeping(0.012)


class SlowSampler:
    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            time.sleep(self.seconds)
            yield index


def burn(parent: int) -> None:
    while os.getppid() == parent:
        sum(range(1000))


@dataclass(frozen=True)
class Planted:
    """A workload and what is planted in it."""

    name: str
    truth: frozenset[str]
    """Right causes."""
    dataset: Callable[[Path], Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of the loader."""
    step: Sleeping | Computing = Sleeping(0.002)
    """What the loop does with a batch."""
    second: frozenset[str] = frozenset()
    """Right second causes of a pair; the order of the two does not matter."""
    computes: bool = False
    """Whether it needs cores, so that programs beside it change the truth."""
    burners: int = 0
    """Processes beside it that compute all the time."""
    quick: bool = False
    """Whether it takes little time and no core: such ones are part of the tests."""

    @property
    def recurs(self) -> bool:
        """Whether the last seconds have the cause, too, and not only the epoch."""
        return not self.truth & {"startup", "stall"}


def _p(name: str, truth: str, dataset: Any, *, second: str = "", step: Any = None, **more: Any) -> Planted:
    own = {key: more.pop(key) for key in ("computes", "burners", "quick") if key in more}
    make = dataset if callable(dataset) and not isinstance(dataset, Samples) else lambda _folder: dataset
    arguments = {"batch_size": 16, "num_workers": 2} | more
    return Planted(
        name,
        frozenset(truth.split("|")),
        make,
        arguments,
        step=step or Sleeping(0.002),
        second=frozenset(second.split("|")) - {""},
        **own,
    )


def workloads(pace: float = 1.0) -> tuple[Planted, ...]:
    """All workloads.

    Args:
        pace: The quick ones, but for start-up, are in slow motion: each of their times is so many times as long. Where
            other programs use the cores, a sample of 4 ms waits longer for a core than for itself; one of 32 ms does
            not.
    """
    return (
        _p("healthy", "consumer", Samples(640, Sleeping(0.001 * pace)), step=Sleeping(0.07 * pace), quick=True),
        _p("healthy, tiny batches", "consumer", Samples(2000), step=Sleeping(0.01)),
        _p("healthy, 8 workers", "consumer", Samples(640, Sleeping(0.004)), num_workers=8, step=Sleeping(0.03)),
        _p("healthy, large batches", "consumer", Samples(320, None, np.zeros(300_000, "f4")), step=Sleeping(0.06)),
        _p("healthy, no workers", "consumer", Samples(640), num_workers=0, step=Sleeping(0.03)),
        _p("healthy, threads", "consumer", Samples(640, Sleeping(0.001)), workers="thread", step=Sleeping(0.03)),
        _p("loop in Python", "consumer_python", Samples(640, Sleeping(0.001)), step=Computing(0.03)),
        _p("waiting samples", "workers_wait", Samples(320, Sleeping(0.004 * pace)), quick=True),
        _p("waiting samples, 8 workers", "workers_wait", Samples(1600, Sleeping(0.008)), num_workers=8),
        _p("waiting samples, threads", "workers_wait", Samples(640, Sleeping(0.004)), workers="thread"),
        _p("computing, a core free", "workers_compute", Samples(400, Computing(0.003)), num_workers=1, computes=True),
        _p("computing, no core free", "workers_compute_full", Samples(640, Computing(0.003)), num_workers=3,
           computes=True),
        _p("computing, other programs", "cores_taken", Samples(400, Computing(0.003)), num_workers=2, burners=4),
        _p("collate computes", "collate", Samples(480, Sleeping(0.0005)), num_workers=1,
           collate_fn=functools.partial(collate_after, Computing(0.04)), computes=True),
        _p("collate waits", "collate", Samples(320, Sleeping(0.0005 * pace)), quick=True,
           collate_fn=functools.partial(collate_after, Sleeping(0.05 * pace))),
        _p("slow worker", "worker", Samples(960, Sleeping(0.002)), num_workers=3, worker_init_fn=one_is_slow),
        _p("slow samples, every 40th", "slow_samples", Samples(800, SlowWhere(lambda i: i % 40 == 7, 0.15))),
        _p("slow samples, a range", "slow_samples", Samples(960, SlowWhere(lambda i: 300 <= i < 340, 0.08)),
           num_workers=3, shuffle=True),
        _p("one stall", "stall", Samples(560, SlowWhere(lambda i: i == 222, 1.5 * pace, 0.001 * pace)),
           step=Sleeping(0.012 * pace), quick=True),
        _p("a hang, restarted", "stall", lambda folder: Samples(640, HangsOnce(str(folder / "flag"))),
           step=Sleeping(0.02), timeout=1.5, on_timeout="restart"),
        _p("window of 1", "window", Samples(240, Sleeping(0.004 * pace)), num_workers=4, prefetch=1, quick=True),
        _p("window of 2 of 6", "window", Samples(640, Sleeping(0.006)), num_workers=6, prefetch=2),
        _p("pickled objects", "pickle", Samples(1600, None), batch_size=16, collate_fn=collate_objects, computes=True),
        _p("huge batches", "huge_batches", Samples(2000, None, np.zeros(600_000, np.float32)), batch_size=32,
           computes=True),
        _p("start-up, worker_init_fn", "startup", Samples(160, Sleeping(0.001)), worker_init_fn=sleep_in_init,
           quick=True),
        _p("start-up, first samples", "startup", OpensLate(200, Sleeping(0.001))),
        _p("start-up, unpickling", "startup", UnpickledSlowly(160, Sleeping(0.001)),
           multiprocessing_context="forkserver"),  # forks unpickle nothing
        _p("no workers, waiting", "in_process", Samples(320, Sleeping(0.003 * pace)), num_workers=0, quick=True),
        _p("no workers, computing", "in_process", Samples(320, Computing(0.003)), num_workers=0),
        _p("interpreter lock", "interpreter_lock", Samples(480, Computing(0.002)), workers="thread", num_workers=4,
           computes=True),
        _p("lock of a file", "lock", lambda folder: Samples(480, FileLock(str(folder / "lock"), 0.003)), num_workers=4),
        _p("lock of multiprocessing", "lock",
           lambda _folder: Samples(480, Semaphore(multiprocessing.get_context("fork").Lock(), 0.003)), num_workers=4,
           multiprocessing_context="fork"),
        _p("lock while computing", "lock",
           lambda _folder: Samples(480, Semaphore(multiprocessing.get_context("fork").Lock(), 0.003, compute)),
           multiprocessing_context="fork"),
        _p("threads in workers", "threads", Samples(600, Matrices()), worker_init_fn=many_torch_threads, computes=True),
        _p("slow sampler", "sampler", Samples(480), sampler=SlowSampler(480, 0.002 * pace), quick=True),
        _p("waiting and collate", "workers_wait", Samples(480, Sleeping(0.003)), second="collate",
           collate_fn=functools.partial(collate_after, Sleeping(0.05))),
        _p("computing and waiting", "workers_compute|workers_compute_full",
           Samples(400, ComputingAndSleeping(0.002, 0.002)), second="workers_wait", num_workers=1, computes=True),
        _p("start-up and waiting", "startup", Samples(480, Sleeping(0.005)), second="workers_wait",
           worker_init_fn=sleep_in_init),
        _p("sampler and waiting", "sampler", Samples(480, Sleeping(0.008)), second="workers_wait", num_workers=2,
           sampler=SlowSampler(480, 0.002)),
        _p("slow samples and collate", "slow_samples", Samples(960, SlowWhere(lambda i: i % 40 == 7, 0.1, 0.0005)),
           second="collate", collate_fn=functools.partial(collate_after, Sleeping(0.05))),
        _p("stall and waiting", "stall", Samples(800, SlowWhere(lambda i: i == 444, 1.5, 0.002)),
           second="workers_wait"),
    )  # fmt: skip


WORKLOADS = workloads()


@dataclass(frozen=True)
class Outcome:
    """What became of a workload."""

    workload: Planted
    cause: str
    also: str
    sentence: str
    foreign: float
    """Cores that other programs used meanwhile."""

    @property
    def right(self) -> bool:
        """Whether the first cause is among the right ones, and for a pair both are."""
        w = self.workload
        foreign = self.foreign > FOREIGN
        busy = {"cores_taken", "workers_compute_full"} if w.computes and foreign else set()
        if foreign and self.cause == "startup" and not w.second and self.also in w.truth | busy:
            return True  # on a busy machine an epoch of a second begins with a second of starting workers
        return self._matches(w.truth | busy)

    @property
    def as_planted(self) -> bool:
        """The same without regard to other programs on the machine."""
        return self._matches(self.workload.truth)

    def _matches(self, first: AbstractSet[str]) -> bool:
        second = self.workload.second
        if not second:
            return self.cause in first
        return (self.cause in first and self.also in second) or (self.cause in second and self.also in first)

    @property
    def partly(self) -> bool:
        """Whether at least one planted cause is named, first or second."""
        planted = self.workload.truth | self.workload.second
        return self.right or self.cause in planted or self.also in planted


def _cpu_seconds() -> tuple[float, float]:
    """CPU time of the machine but idle, and of this process and its children."""
    machine = psutil.cpu_times()
    busy = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - getattr(machine, "guest", 0.0)
    own = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        own += times.user + times.system + times.children_user + times.children_system
    return busy, own


@contextlib.contextmanager
def viewed(loader: Any, *, recurs: bool) -> Iterator[list[Any]]:
    """Look at a loader five times a second, as the dashboard does, and collect verdicts from half of the epoch on."""
    verdicts: list[Any] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            stats = loader.stats()
            if stats.state == "running" and 2 * stats.batches_done >= stats.batches_total:
                verdicts.append(stats.now_verdict if recurs else stats.epoch_verdict)

    viewer = threading.Thread(target=look)
    viewer.start()
    try:
        yield verdicts
    finally:
        ended.set()
        viewer.join()


def run(workload: Planted, seed: int = 0, size: float = 1.0) -> Outcome:
    """Iterate one epoch, close the loader, and ask it what limited the loop. For the arguments, see `looks`."""
    *_live, outcome = looks(workload, seed, size)
    return outcome


def looks(workload: Planted, seed: int = 0, size: float = 1.0, *, live: bool = False) -> list[Outcome]:
    """Iterate one epoch, and return what a live view has said in its second half, and what is said after it.

    Args:
        workload: What is planted.
        seed: Of a shuffled order.
        size: Batches have so many times the samples, and the loop takes so many times as long for each.
        live: Whether there is a live view.
    """
    arguments = workload.arguments | {"batch_size": max(1, round(size * workload.arguments["batch_size"]))}
    step = dataclasses.replace(workload.step, seconds=size * workload.step.seconds)
    burners = [
        multiprocessing.get_context("fork").Process(target=burn, args=(os.getpid(),), daemon=True)
        for _ in range(workload.burners)
    ]
    for burner in burners:
        burner.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            np.random.seed(seed)
            loader = nbloader.DataLoader(workload.dataset(Path(folder)), **arguments)
            (busy, own), began = _cpu_seconds(), time.monotonic()
            with viewed(loader, recurs=workload.recurs) if live else contextlib.nullcontext([]) as verdicts:
                for number, _batch in enumerate(loader):
                    step(number)
            (busy_after, own_after), took = _cpu_seconds(), time.monotonic() - began
            loader.close()
            verdicts.append(loader.stats().epoch_verdict)
    finally:
        for burner in burners:
            burner.kill()
            burner.join()
    foreign = max(0.0, (busy_after - busy - (own_after - own)) / took)
    return [Outcome(workload, verdict.cause, verdict.also, verdict.sentence, foreign) for verdict in verdicts]


def warm_up() -> None:
    """Import what the first loaders import, so that no workload contains that."""
    warnings.filterwarnings("ignore", "This DataLoader will create")
    for dataset in (Samples(4), Samples(4, Matrices())):
        with nbloader.DataLoader(dataset, num_workers=1) as loader:
            list(loader)


def table(outcomes: list[Outcome], load: str) -> str:
    """The confusion table and the shares, as Markdown."""
    single = [o for o in outcomes if not o.workload.second]
    pairs = [o for o in outcomes if o.workload.second]
    healthy = [o for o in single if o.workload.name.startswith("healthy")]
    alarms = sum(not o.cause.startswith("consumer") for o in healthy)
    today = datetime.now(timezone.utc)
    foreign = np.mean([o.foreign for o in outcomes])
    lines = [
        f"{today:%Y-%m-%d}, {os.cpu_count()} cores, load {load}, {foreign:.2f} cores used by other programs.",
        "",
        f"- One planted cause: {_share(single)}",
        f"- Pairs, both named: {_share(pairs)}; at least one of them named: {sum(o.partly for o in pairs)}",
        f"- False alarms on healthy loaders: {alarms} of {len(healthy)}",
        f"- Cannot tell: {sum(o.cause == 'unknown' for o in outcomes)} of {len(outcomes)}",
        "",
        "| planted | truth | verdicts | right |",
        "|---|---|---|---|",
    ]
    for name, group in itertools.groupby(outcomes, key=lambda o: o.workload.name):
        rows = list(group)
        w = rows[0].workload
        truth = " or ".join(sorted(w.truth)) + (f" and {' or '.join(sorted(w.second))}" if w.second else "")
        found = collections.Counter(f"{o.cause}{' and ' if o.also else ''}{o.also}" for o in rows)
        said = ", ".join(f"{cause}{f' ({n}x)' if len(rows) > 1 else ''}" for cause, n in found.most_common())
        lines.append(f"| {name} | {truth} | {said} | {sum(o.right for o in rows)} of {len(rows)} |")
    return "\n".join(lines) + "\n"


def _share(outcomes: list[Outcome]) -> str:
    right = sum(o.right for o in outcomes)
    share = 100 * right / max(1, len(outcomes))
    return f"{right} of {len(outcomes)} right ({share:.0f}%), {sum(o.as_planted for o in outcomes)} as planted"


def main() -> None:
    """Run the workloads and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names to begin with, separated by commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sizes", default="1", help="times the usual samples of a batch: 0.5,1,2")
    parser.add_argument("--live", action="store_true", help="what a live view says in the second half of an epoch")
    options = parser.parse_args()
    sizes = [float(size) for size in options.sizes.split(",")]
    begins = tuple(name.strip() for name in options.only.split(",")) if options.only else ("",)
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    warm_up()
    outcomes = []
    for workload in WORKLOADS:
        if workload.name.startswith(begins):
            for size, seed in itertools.product(sizes, range(options.seeds)):
                *during, after = looks(workload, seed, size, live=options.live)
                outcomes += during if options.live else [after]
                for outcome in {(one.cause, one.also): one for one in (*during, after)}.values():
                    mark = "right" if outcome.right else "WRONG"
                    print(f"{mark}: {workload.name}, {size:g}x ({outcome.foreign:.1f} cores foreign): "
                          f"{outcome.cause} {outcome.also}\n"
                          f"    {outcome.sentence}", flush=True)  # fmt: skip
    text = table(outcomes, load)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
