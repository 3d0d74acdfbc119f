"""Indices in, samples out: the part of a batch's path that runs the user's dataset, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import MutableSequence
from typing import Any, NamedTuple

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
