"""The prefetch window: how far ahead batches are requested, and how many of them one worker holds.

    settings, sizes and durations (Load) --policy--> Plan --> Window.room, depth, affords

A policy is a pure function; `by_time` is the one in use. To try another one, write a function from `Load` to `Plan` and
assign it to `POLICY`. Nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

MIN_DEPTH = 2
"""Batches per worker: one that it produces, and one that it produces next. This is torch's default."""
MAX_DEPTH = 16
"""Maximum number of batches per worker, unless the user sets the number."""
QUEUED_NS = 2_000_000
"""Production time of the batches in a worker's queue, in ns, that keeps the worker busy while the consumer is busy."""
WINDOW_BYTES = 16 << 20
"""Memory that batches beyond `MIN_DEPTH` per worker may take."""
BLOCKED_TIMES = 32
"""Multiple of the window that may be outstanding while one batch blocks those that have arrived after it, limited by
`WINDOW_BYTES`. In a simulation of exponential waits, with a concurrency of 500 and batches of 10, asynchronous workers
have 92% of these 500 samples in flight with this number, and 49% with 4."""
CONCURRENT_TIMES = 4
"""While a batch blocks others, an asynchronous worker may hold this multiple of the batches that it can process at a
time. If waits are distributed exponentially, a batch of 16 takes 3.4 times as long as a sample, and has few samples in
flight in the last third of that time."""
AVERAGED_BATCHES = 8
"""Each new batch has weight 1/AVERAGED_BATCHES in the running means of production time and batch size."""


class Load(NamedTuple):
    """What a plan is made from: what the user said, and what was measured."""

    num_workers: int = 1
    prefetch_factor: int = MIN_DEPTH
    """Batches to request ahead, per worker."""
    prefetch: int | None = None
    """Batches to request ahead in total; replaces `prefetch_factor`, and is never exceeded."""
    adaptive: bool = False
    """Whether the window follows from the production time and the size of batches."""
    strict: bool = False
    """Whether the window is never exceeded."""
    concurrency: int = 0
    """Samples that a worker fetches at a time, across batches; 0 if it fetches one batch after the other."""
    affordable: int | None = None
    """Batches for which there is memory, if that is what limits the window."""
    nbytes: int = 0
    """Size of the last batch."""
    produce_ns: int = 0
    """Time to produce a batch, or a chunk of one, ns: a running mean; 0 before the first batch."""
    batch_size: float = 0.0
    """Samples in a batch, a running mean; 0 before the first batch. It is used with `concurrency` only."""
    job_size: int = 1
    """Samples in a job: a batch, or a chunk of one. It is used with `concurrency` only."""


class Plan(NamedTuple):
    """How far ahead to request. A batch is blocked if it has arrived and waits for an earlier one."""

    planned: int
    """Value of `size` if there is enough memory."""
    size: int
    """Batches of one iteration that may be outstanding, apart from those that are blocked."""
    blocked_size: int
    """Value of `size` while batches are blocked."""
    credit: int
    """Batches of one iteration that may be outstanding in all."""
    depth: int
    """Batches, or chunks of them, that one worker may hold."""
    blocked_depth: int
    """Value of `depth` while batches are blocked."""
    step: int
    """Batches to request at once, so that one message requests several if workers hold more than `MIN_DEPTH`."""


PrefetchPolicy: TypeAlias = "Callable[[Load], Plan]"


def by_time(load: Load) -> Plan:
    """Plan that each worker holds what it produces in about 2 ms, between 2 and 16 batches.

    The sum over all workers is the window. Batches that are blocked do not count, up to a credit of batches and bytes,
    so that one slow batch does not stop the other workers. Until the size of a batch is known, a worker holds one.
    """
    workers, per_worker, concurrent = load.num_workers, load.prefetch_factor, 0
    if load.concurrency:
        concurrent = math.ceil(load.concurrency / max(1, load.batch_size)) if load.batch_size else 0
        per_worker = concurrent + max(1, per_worker, -(-concurrent // 4))
    elif load.adaptive and load.produce_ns:
        fitting = WINDOW_BYTES // (workers * max(1, load.nbytes))
        wanted = -(-QUEUED_NS // load.produce_ns)
        per_worker = max(per_worker, min(MAX_DEPTH, wanted, fitting))
    planned = per_worker * workers if load.prefetch is None else load.prefetch
    size = planned if load.affordable is None else min(planned, load.affordable)
    credit = size
    if load.prefetch is None and load.affordable is None and not load.strict:
        credit += min(BLOCKED_TIMES * size, WINDOW_BYTES // max(1, load.nbytes))
    depth = blocked_depth = max(1, -(-size // workers))
    blocked_size = size
    if load.concurrency and load.prefetch is None:
        jobs = math.ceil(load.concurrency / load.job_size) + 1  # one is begun in part
        if load.job_size < load.batch_size:
            depth = max(depth, jobs + load.prefetch_factor)
        blocked_depth = max(depth, CONCURRENT_TIMES * jobs)
        blocked_size = max(size, CONCURRENT_TIMES * (concurrent + 1) * workers)
    if not (load.produce_ns or load.concurrency):
        depth = blocked_depth = 1
    return Plan(
        planned=planned, size=size, blocked_size=blocked_size, credit=credit, depth=depth, blocked_depth=blocked_depth,
        step=(-(-size // workers) - concurrent - MIN_DEPTH) * workers // 2,
    )  # fmt: skip


POLICY: PrefetchPolicy = by_time
"""The policy of all loaders."""


class Window:
    """The prefetch window of one loader: it measures, and asks the policy for a plan whenever something has changed.

    The engine's thread changes it. The consumer's thread reads it, too: a plan is replaced as a whole.

    Args:
        load: What the user said.
    """

    def __init__(self, load: Load) -> None:
        self.load = load
        self.plan = POLICY(load)

    def _update(self, **changes: Any) -> None:
        self.load = self.load._replace(**changes)
        self.plan = POLICY(self.load)

    @property
    def prefetches(self) -> bool:
        """Whether batches are requested before the consumer asks for them."""
        return self.plan.planned > 0

    # ---- what changes the plan ----------------------------------------------------------------------------------

    def resize(self, num_workers: int) -> None:
        """Change the number of workers that share the window."""
        self._update(num_workers=num_workers)

    def set_size(self, prefetch_factor: int, *, prefetch: int | None = None, adaptive: bool = False) -> None:
        """Change the number of batches to request ahead. For the arguments, see `Load`."""
        self._update(prefetch_factor=prefetch_factor, prefetch=prefetch, adaptive=adaptive)

    def expect(self, samples: int, chunk: int = 0) -> None:
        """Update the mean batch size, from which the window of an asynchronous dataset is planned.

        Args:
            samples: Number of samples in a batch.
            chunk: Number of samples in a chunk; 0 if batches are not chunked.
        """
        mean = self.load.batch_size
        mean = mean + (samples - mean) / AVERAGED_BATCHES if mean else max(1, samples)
        self._update(batch_size=mean, job_size=chunk or max(1, round(mean)))

    def observe(self, nbytes: int, produce_ns: int, chunks: int = 1) -> None:
        """Record the size and the production time of a batch.

        Args:
            nbytes: Size of what a worker produced: a batch, or a chunk of one.
            produce_ns: Time that the worker took to produce it, in ns.
            chunks: Number of chunks of the batch; 1 if it was not chunked.
        """
        mean = self.load.produce_ns
        mean = max(1, mean + (produce_ns - mean) // AVERAGED_BATCHES if mean else produce_ns)
        self._update(nbytes=nbytes * chunks, produce_ns=mean)

    def limit(self, batches: int | None) -> bool:
        """Limit the window to the batches for which there is memory.

        Args:
            batches: Number of batches for which there is memory; None for no limit.

        Returns:
            Whether the limit is lower than the previous one.
        """
        before = self.load.affordable
        affordable = None if batches is None or batches >= self.plan.planned else max(1, batches)
        self._update(affordable=affordable)
        return affordable is not None and (before is None or affordable < before)

    # ---- what the dispatcher and the consumer ask for ---------------------------------------------------------------

    def room(self, outstanding: int, blocked: int) -> int:
        """Return the number of batches to request from the sampler now; at least one if none is outstanding.

        Args:
            outstanding: Batches that were requested and not delivered; those that have arrived count, too.
            blocked: How many of these are blocked.
        """
        plan = self.plan
        if not outstanding:
            return max(1, plan.size)
        unfinished = plan.blocked_size if blocked else plan.size
        room = min(unfinished + blocked, plan.credit) - outstanding
        return room if room > 0 and room >= plan.step else 0

    def depth(self, blocked: int) -> int:
        """Return the number of batches, or of chunks of them, that one worker may hold.

        Args:
            blocked: Number of batches that are blocked.
        """
        return self.plan.blocked_depth if blocked else self.plan.depth

    def affords(self, outstanding: int) -> bool:
        """Return whether there is memory for another batch.

        Args:
            outstanding: Batches that workers hold or that have arrived, and were not delivered.
        """
        affordable = self.load.affordable
        return affordable is None or outstanding < affordable
