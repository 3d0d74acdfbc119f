"""Indices in, samples out: the part of a batch's path that runs the user's dataset, wherever it runs."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import MutableSequence
from typing import Any, NamedTuple

import numpy as np

_clock = time.perf_counter_ns

# Where a worker tells what it is at: integers in shared memory, so that they can be read while it hangs.
STATE, RUN, NUMBER, SINCE, POSITION, PID = range(6)
STATUS_SIZE = 6
STATES = ("starting", "idle", "fetching", "collating", "sending")
STARTING, IDLE, FETCHING, COLLATING, SENDING = range(5)


class Fetched(NamedTuple):
    """Samples, and what it took to get them."""

    samples: Any
    """A list of samples; what `__getitems__` returned; or a single sample where batching is off."""
    begin: int
    """perf_counter ns."""
    end: int
    """perf_counter ns."""
    slowest: int
    """Position of the slowest sample in the batch; -1 where they were not fetched one by one."""
    slowest_ns: int


def fetch(dataset: Any, indices: Any, *, batched: bool, status: MutableSequence[int]) -> Fetched:
    """Get the samples of one batch.

    Args:
        dataset: Anything with `__getitem__`; `__getitems__` is used where it exists, as torch does.
        indices: A list of indices; one index where `batched` is False.
        batched: Whether the samples make a batch.
        status: Where to tell what is being done; `status[POSITION]` is the sample at which an error was raised.
    """
    begin = before = _clock()
    status[STATE], status[SINCE], status[POSITION] = FETCHING, begin, 0
    if not batched:
        sample = dataset[indices]
        end = _clock()
        return Fetched(sample, begin, end, 0, end - begin)
    getitems = getattr(dataset, "__getitems__", None)
    if getitems:
        status[POSITION] = -1
        samples = getitems(indices)
        return Fetched(samples, begin, _clock(), -1, 0)
    samples = []
    slowest = slowest_ns = -1
    for position, index in enumerate(indices):
        status[POSITION] = position
        samples.append(dataset[index])
        now = _clock()
        if now - before > slowest_ns:
            slowest, slowest_ns = position, now - before
        before = now
    return Fetched(samples, begin, before, slowest, max(slowest_ns, 0))


def mix(*numbers: int) -> int:
    """A 64-bit seed from some integers, so that neighbouring inputs give unrelated seeds (splitmix64's finalizer)."""
    z = 0
    for number in numbers:
        z = (z ^ (number & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z


_seed = 0


def seed_everything(seed: int) -> None:
    """Seed `random`, NumPy's global generator and, where torch is imported, torch's. About 8 us."""
    global _seed  # noqa: PLW0603 - the generators are global too
    _seed = seed
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the global generator is what datasets use
    seed_torch()


def seed_torch() -> None:
    """Seed torch, where it is imported, with what the others were seeded with last."""
    torch = sys.modules.get("torch")
    if torch is not None:
        # torch.manual_seed would also queue a call for CUDA each time, with a formatted stack
        torch.random.default_generator.manual_seed(_seed & 0x7FFFFFFFFFFFFFFF)


def torch_was_seeded() -> bool:
    """Whether somebody else has seeded torch since."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.initial_seed() != _seed & 0x7FFFFFFFFFFFFFFF


class KeptRandomState:
    """In a `with`: gives the notebook its own random state back afterwards, for batches made in its process."""

    def __enter__(self) -> KeptRandomState:
        """Keep the state."""
        self._random = random.getstate()
        self._numpy = np.random.get_state(legacy=False)  # noqa: NPY002
        torch = sys.modules.get("torch")
        self._torch = torch.random.default_generator.get_state() if torch is not None else None
        return self

    def __exit__(self, *_exc: object) -> None:
        """Restore it."""
        random.setstate(self._random)
        np.random.set_state(self._numpy)  # noqa: NPY002
        if self._torch is not None:
            sys.modules["torch"].random.default_generator.set_state(self._torch)
