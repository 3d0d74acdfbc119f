"""Fuzz the loader: random loaders under random faults, controls and resumptions, each compared with an undisturbed one.

    python tests/fuzz.py --seconds 300            # a new seed, printed first
    python tests/fuzz.py --seed 7 --case 41       # one case again

Each case draws a dataset, a configuration and a list of disturbances from (seed, case). The reference is the same
loader without workers. Checked: every batch arrives once, in order, with the same bytes; without a fault, each sample
is fetched exactly once; a state saved in mid-epoch resumes with the next batch; no process is left behind.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import pathlib
import random
import signal
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import leaks
from datasets import at_work

from nbloader import DataLoader, get_worker_info

MAX_KILLS = 2
"""Kills per epoch. A batch is given up after three, which is right, but no case for a comparison."""
PATIENCE = 120.0
"""Seconds that a case may take before it counts as a hang."""


class Samples:
    """Random augmentations of numbered samples; counts how often each was fetched, in all processes together."""

    def __init__(self, length: int, width: int, delay: float, bad: frozenset[int]) -> None:
        self.length, self.width, self.delay, self.bad = length, width, delay, bad
        self.fetched = torch.zeros(length, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> dict[str, Any]:
        self.fetched[i] += 1
        info = get_worker_info()
        own = None if info is None else info.rng
        draw = random if own is None else own.random_generator
        if self.delay:
            time.sleep(self.delay * draw.random())
        if i in self.bad:
            raise OSError(f"sample {i} is unreadable")
        return {
            "index": i,
            "noise": (draw.random(), float(torch.rand((), generator=None if own is None else own.torch_generator))),
            "values": np.full(self.width, i, np.float32),
            "name": f"sample {i}",
        }


@dataclass
class Case:
    """What is tried."""

    seed: int
    number: int
    length: int = 0
    epochs: int = 1
    batch_size: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    """Options of the reference too."""
    disturbances: tuple[str, ...] = ()
    resume_at: int | None = None
    dataset: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def draw(cls, seed: int, number: int) -> Case:
        """Draw a case."""
        rng = random.Random(f"{seed}/{number}")
        case = cls(seed, number)
        case.length = rng.choice([1, 7, 60, 200, 600])
        case.epochs = rng.randint(1, 3)
        case.batch_size = rng.choice([1, 2, 4, 8, 16])
        bad = frozenset(rng.sample(range(case.length), rng.choice([0, 0, case.length // 20])))
        case.dataset = {
            "length": case.length,
            "width": rng.choice([1, 100, 20_000]),
            "delay": rng.choice([0, 0, 0.002]),
            "bad": bad,
        }
        case.shared = {"shuffle": rng.random() < 0.5, "drop_last": rng.random() < 0.2}
        if bad:
            case.shared["on_error"] = "skip"
        if case.batch_size >= 4 and rng.random() < 0.2:
            case.shared["chunk_size"] = case.batch_size // 2
        case.options = {"num_workers": rng.randint(1, 4), "workers": rng.choice(["process", "process", "thread"])}
        case.options |= rng.choice([{}, {}, {"prefetch": rng.randint(0, 9)}, {"prefetch_factor": rng.randint(1, 4)}])
        kinds = ["restart", "resize", "pause", "step", "stats", "prefetch"]
        if case.options["workers"] == "process":
            kinds += ["kill", "kill", "stop"]
        case.disturbances = tuple(rng.choices(kinds, k=rng.choice([0, 2, 8]) * case.epochs))
        if rng.random() < 0.3:
            case.resume_at = rng.randint(0, max(0, case.length // case.batch_size - 1))
        return case

    def loader(self, dataset: Samples, **options: Any) -> DataLoader[Any]:
        """A loader of this case."""
        generator = torch.Generator().manual_seed(self.number)
        return DataLoader(dataset, self.batch_size, generator=generator, **self.shared, **options)


class Disturber(threading.Thread):
    """Carries out disturbances at random moments of an epoch."""

    def __init__(self, loader: DataLoader[Any], kinds: tuple[str, ...], rng: random.Random) -> None:
        super().__init__(name="disturber", daemon=True)
        self.loader, self.kinds, self.rng = loader, kinds, rng
        self.stop = threading.Event()
        self.faults = 0
        self.errors: list[BaseException] = []

    def run(self) -> None:
        """Carry them out; stopped workers are restarted at the end."""
        try:
            for kind in self.kinds:
                if self.stop.wait(self.rng.random() * 0.02):
                    break
                getattr(self, kind)()
        except BaseException as error:
            self.errors.append(error)
        finally:
            self.loader.resume()

    def _signal(self, number: int) -> int | None:
        workers = at_work(self.loader)
        if not workers:
            return None
        worker = self.rng.choice(workers)
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, number)
        return worker.worker

    def kill(self) -> None:
        if self.faults < MAX_KILLS and self._signal(signal.SIGKILL) is not None:
            self.faults += 1

    def stop_(self) -> None:
        """Stop a worker, then restart it, as a user restarts one that hangs."""
        worker = self._signal(signal.SIGSTOP)
        if worker is not None:
            self.faults += 1
            self.stop.wait(0.02)
            with contextlib.suppress(ValueError):  # resized away meanwhile
                self.loader.restart_workers(worker)

    def restart(self) -> None:
        self.faults += 1
        with contextlib.suppress(ValueError):
            self.loader.restart_workers(self.rng.randrange(self.loader.num_workers))

    def resize(self) -> None:
        self.faults += 1  # a worker that leaves gives up what it has begun
        self.loader.num_workers = self.rng.randint(1, 4)

    def prefetch(self) -> None:
        self.loader.prefetch_factor = self.rng.randint(1, 4)

    def pause(self) -> None:
        self.loader.pause()
        self.stop.wait(0.005)
        self.loader.resume()

    def step(self) -> None:
        for _ in range(3):
            self.loader.step()
        self.loader.resume()

    def stats(self) -> None:
        self.loader.stats()


def let_threads_end() -> None:
    """Wait for worker threads that left the last epoch: they may be about to begin a sample."""
    for thread in threading.enumerate():
        if thread.name.startswith("nbloader-worker"):
            thread.join(5)


def same(one: Any, other: Any) -> bool:
    """Whether two batches are the same, bytes included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def reference(case: Case) -> list[list[Any]]:
    """The epochs of the case, without workers."""
    with case.loader(Samples(**case.dataset)) as loader:
        return [list(loader) for _ in range(case.epochs)]


def check(case: Case) -> collections.Counter[str]:
    """Run a case.

    Raises:
        AssertionError: It went wrong.
    """
    wanted = reference(case)
    rng = random.Random(f"{case.seed}/{case.number}/run")
    dataset = Samples(**case.dataset)
    count: collections.Counter[str] = collections.Counter()
    share = len(case.disturbances) // case.epochs
    with contextlib.ExitStack() as stack:
        loader = stack.enter_context(case.loader(dataset, **case.options))
        for epoch in range(case.epochs):
            kinds = case.disturbances[epoch * share : (epoch + 1) * share]
            let_threads_end()
            dataset.fetched.zero_()
            disturber = Disturber(loader, tuple("stop_" if kind == "stop" else kind for kind in kinds), rng)
            disturber.start()
            got = []
            resumed = False
            iterator = iter(loader)
            try:
                while True:
                    if len(got) == case.resume_at and not resumed and not disturber.is_alive():
                        state = loader.state_dict()
                        loader.close()
                        options = case.options | {"num_workers": rng.randint(1, 4)}
                        loader = stack.enter_context(case.loader(dataset, **options))
                        loader.load_state_dict(state)
                        iterator, resumed = iter(loader), True
                        count["resumptions"] += 1
                    batch = next(iterator, None)
                    if batch is None:
                        break
                    got.append(batch)
            finally:
                disturber.stop.set()
                disturber.join()
            assert not disturber.errors, f"a control raised {disturber.errors[0]!r}"
            assert len(got) == len(wanted[epoch]), f"epoch {epoch}: {len(got)} batches, not {len(wanted[epoch])}"
            for number, (mine, theirs) in enumerate(zip(got, wanted[epoch], strict=True)):
                assert same(mine, theirs), f"batch {number} of epoch {epoch} differs: {mine} is not {theirs}"
            if not disturber.faults and not resumed:
                expected = {1} if not case.shared["drop_last"] else {0, 1}
                found = set(dataset.fetched.tolist())
                assert found <= expected, f"without a fault, samples were fetched {sorted(found)} times"
                count["epochs with each sample fetched once"] += 1
            count["faults and controls"] += len(kinds)
            count["batches"] += len(got)
    return count


def main() -> int:
    """Run cases until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", type=int, help="run this case alone")
    arguments = parser.parse_args()
    print(f"fuzz: seed {arguments.seed}", flush=True)
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores: on purpose
    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    total: collections.Counter[str] = collections.Counter()
    end = time.monotonic() + arguments.seconds
    number = arguments.case or 0
    while True:
        case = Case.draw(arguments.seed, number)
        watchdog = threading.Timer(PATIENCE, lambda case=case: hang(case))
        watchdog.daemon = True
        watchdog.start()
        try:
            total += check(case)
        except BaseException:
            print(f"FAILED: python {sys.argv[0]} --seed {arguments.seed} --case {number}\n{case}", flush=True)
            raise
        finally:
            watchdog.cancel()
        total["cases"] += 1
        number += 1
        if arguments.case is not None or time.monotonic() > end:
            break
    children = psutil.Process().children(recursive=True)
    left = [p for p in children if p.pid not in leaks.kept_pids() and p.status() != psutil.STATUS_ZOMBIE]
    print(f"fuzz: {dict(total)}; processes left: {len(left)}")
    return int(bool(left))


def hang(case: Case) -> None:
    """Show where all threads stand, and end."""
    import faulthandler

    print(f"HANG: --seed {case.seed} --case {case.number}\n{case}", flush=True)
    faulthandler.dump_traceback()
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
