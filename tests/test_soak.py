"""Everything at once, at random: workers are killed and restarted, loops left early, and every batch is compared.

`make soak` runs it for minutes (NBLOADER_SOAK_SECONDS); the seed of a run that fails is in its name.
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
from nbloader.errors import WorkerDiedError, WorkerStartError

SECONDS = float(os.environ.get("NBLOADER_SOAK_SECONDS", "0"))
SEEDS = range(2) if not SECONDS else range(int(time.time()), int(time.time()) + 4)
EPOCHS = 25


class Numbers:
    def __init__(self, length, width):
        self.length = length
        self.width = width

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return i, np.full(self.width, i, np.float32)


class Mischief(threading.Thread):
    """Kills, restarts, pauses and looks, until it is told to stop."""

    def __init__(self, loader, seed):
        super().__init__(name="mischief", daemon=True)
        self.loader = loader
        self.random = random.Random(seed)
        self.stop = threading.Event()

    def run(self):
        while not self.stop.wait(self.random.random() * 0.02):
            what = self.random.random()
            if what < 0.3:
                self.loader.restart_workers([self.random.randrange(self.loader.num_workers)])
            elif what < 0.5:
                pids = [worker.pid for worker in self.loader.stats().workers if worker.pid]
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(self.random.choice(pids), signal.SIGKILL)
            elif what < 0.6:
                self.loader.pause()
                self.loader.resume()
            else:
                self.loader.stats()


def one_loader(chance, seed):
    """A loader, some epochs, each compared with what it must be. Returns how many epochs were looked at."""
    length, size, workers = chance.randint(1, 3000), chance.randint(1, 40), chance.randint(1, 4)
    ahead = chance.choice([{}, {}, {"prefetch_factor": chance.randint(1, 4)}, {"prefetch": chance.randint(0, 9)}])
    width = chance.choice([1, 10, 3000])
    epochs = chance.randint(1, 4)
    disturbed = False  # a kill of one epoch may be the last of three in the next
    with DataLoader(Numbers(length, width), size, num_workers=workers, **ahead) as loader:
        for _ in range(epochs):
            leave_at = chance.choice([None, None, chance.randint(1, 20)])
            mischief = Mischief(loader, seed) if chance.random() < 0.5 else None
            if mischief is not None:
                disturbed = True
                mischief.start()
            try:
                compare(loader, length, size, leave_at)
            except (WorkerDiedError, WorkerStartError):
                assert disturbed, "nobody killed a worker"
            finally:
                if mischief is not None:
                    mischief.stop.set()
                    mischief.join()
    return epochs


def compare(loader, length, size, leave_at):
    number = 0
    for index, values in loader:
        want = list(range(number * size, min(length, number * size + size)))
        assert index.tolist() == want
        assert (values.numpy() == np.array(want, np.float32)[:, None]).all()
        number += 1
        if number == leave_at:
            return
    assert number == -(-length // size)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 100)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_doubled_or_reordered(seed):
    chance = random.Random(seed)
    end = time.monotonic() + SECONDS / len(SEEDS)
    epochs = 0
    while epochs < EPOCHS or time.monotonic() < end:
        epochs += one_loader(chance, seed)
