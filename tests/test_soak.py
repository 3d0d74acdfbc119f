"""A random mix of faults: workers are killed, hang, are restarted and resized, loops end early, samples raise.

Every batch is compared. `make soak` runs this for minutes (NBLOADER_SOAK_SECONDS); the name of a failing test contains
its seed.
"""

import contextlib
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from nbloader import DataLoader
from nbloader.errors import LoaderTimeoutError, NbloaderError, WorkerDiedError, WorkerStartError

SECONDS = float(os.environ.get("NBLOADER_SOAK_SECONDS", "0"))
SEEDS = range(2) if not SECONDS else range(int(time.time()), int(time.time()) + 4)
SHORT = 8.0
"""Seconds per seed without that variable; epochs in progress are finished."""


class Numbers:
    """Sample i is i, repeated; those in `bad` raise."""

    def __init__(self, length, width, bad):
        self.length = length
        self.width = width
        self.bad = bad

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        if i in self.bad:
            raise OSError(f"no sample {i}")
        return i, np.full(self.width, i, np.float32)


class Mischief(threading.Thread):
    """Kills, hangs, restarts, resizes, pauses, steps and takes snapshots, until it is stopped."""

    def __init__(self, loader, seed):
        super().__init__(name="mischief", daemon=True)
        self.loader = loader
        self.random = random.Random(seed)
        self.stop = threading.Event()

    def run(self):
        deeds = {
            self.restart: 25, self.kill: 15, self.hang: 5, self.resize: 10, self.breathe: 10, self.step: 5,
            self.ask: 3, self.loader.stats: 27,
        }  # fmt: skip
        while not self.stop.wait(self.random.random() * 0.02):
            if self.at_work() or self.random.random() < 0.05:  # else no worker would ever get so far
                self.random.choices(list(deeds), deeds.values())[0]()
        self.loader.restart_workers()  # one may hang

    def at_work(self):
        return [w for w in self.loader.stats().workers if w.state in ("idle", "fetching", "collating", "sending")]

    def worker(self):
        return self.random.randrange(self.loader.num_workers)

    def signal(self, number):
        """Send a signal to a worker that is processing a batch. Returns its id."""
        processes = [w for w in self.at_work() if w.pid and w.kind == "process"]
        if not processes:
            return None
        victim = self.random.choice(processes)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, number)
        return victim.worker

    def restart(self):
        self.loader.restart_workers(self.worker())

    def kill(self):
        self.signal(signal.SIGKILL)

    def hang(self):
        """Stop a worker until it is restarted: by us, or by the loader after `timeout`."""
        stopped = self.signal(signal.SIGSTOP)
        if stopped is not None and not self.loader.timeout:
            self.stop.wait(self.random.random() * 0.1)
            with contextlib.suppress(ValueError):  # it has left meanwhile
                self.loader.restart_workers(stopped)

    def resize(self):
        self.loader.num_workers = self.random.randint(1, 5)
        if self.random.random() < 0.3:
            self.loader.prefetch_factor = self.random.randint(0, 4)

    def breathe(self):
        self.loader.pause()
        self.loader.resume()

    def step(self):
        for _ in range(self.random.randrange(4)):
            self.loader.step()
        self.loader.resume()

    def ask(self):
        with contextlib.suppress(NbloaderError, ValueError):
            self.loader.stack(self.worker())


def one_loader(chance, seed):
    """Iterate some epochs of a loader, and compare each with what it must be."""
    length, size, workers = chance.randint(1, 3000), chance.randint(1, 40), chance.randint(1, 4)
    options = chance.choice([{}, {}, {"prefetch_factor": chance.randint(1, 4)}, {"prefetch": chance.randint(0, 9)}])
    options |= chance.choice([{}, {}, {"timeout": 5, "on_timeout": "restart"}])
    options |= chance.choice([{}, {}, {}, {"workers": "thread"}])
    bad = {chance.randrange(length) for _ in range(chance.choice([0, 0, length // 20, length // 2]))}
    data = Numbers(length, chance.choice([1, 10, 3000]), bad)
    batches = [[i for i in range(at, min(length, at + size)) if i not in bad] for at in range(0, length, size)]
    wanted = [batch for batch in batches if batch]
    epochs = chance.randint(1, 4)
    disturbed = False  # a kill of one epoch may be the last of three in the next
    with DataLoader(data, size, num_workers=workers, on_error="skip" if bad else "raise", **options) as loader:
        for _ in range(epochs):
            leave_at = chance.choice([None, None, chance.randint(1, 20)])
            mischief = Mischief(loader, seed) if chance.random() < 0.5 else None
            if mischief is not None:
                disturbed = True
                mischief.start()
            try:
                compare(loader, wanted, leave_at)
            except (WorkerDiedError, WorkerStartError, LoaderTimeoutError):
                assert disturbed, "nobody killed or stopped a worker"
            finally:
                if mischief is not None:
                    mischief.stop.set()
                    mischief.join()


def compare(loader, wanted, leave_at):
    number = 0
    for number, (index, values) in enumerate(loader, 1):
        want = wanted[number - 1]
        assert index.tolist() == want
        assert (values.numpy() == np.array(want, np.float32)[:, None]).all()
        if number == leave_at:
            return
    assert number == len(wanted)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 100)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_batch_is_lost_duplicated_or_reordered(seed):
    chance = random.Random(seed)
    end = time.monotonic() + (SECONDS / len(SEEDS) or SHORT)
    while time.monotonic() < end:
        one_loader(chance, seed)
