"""The prefetch policy: how far ahead batches are requested, and how many of them one worker holds.

The dispatcher queries the policy, which knows neither workers nor batches. The policy is pure: durations and sizes are
passed in, and nothing here reads a clock. To replace `Window`, write a class with the methods of `PrefetchPolicy`.
"""

from __future__ import annotations

import math
from typing import Protocol

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


class PrefetchPolicy(Protocol):
    """What the dispatcher asks for. A batch is blocked if it has arrived and waits for an earlier one."""

    def room(self, outstanding: int, blocked: int) -> int:
        """Return the number of batches to request from the sampler now.

        Args:
            outstanding: Batches that were requested and not delivered; those that have arrived count, too.
            blocked: How many of these are blocked.
        """

    def depth(self, blocked: int) -> int:
        """Return the number of batches, or of chunks of them, that one worker may hold.

        Args:
            blocked: Number of batches that are blocked.
        """

    def affords(self, outstanding: int) -> bool:
        """Return whether there is memory for another batch.

        Args:
            outstanding: Batches that workers hold or that have arrived, and were not delivered.
        """


class Window:
    """The default policy: each worker holds what it produces in about 2 ms, between 2 and 16 batches.

    The sum over all workers is the window. Batches that have arrived and wait for an earlier one do not count, up to a
    credit of batches and bytes, so that one slow batch does not stop the other workers.

    Args:
        num_workers: Workers that share the window.
        prefetch_factor: Batches to request ahead, per worker.
        prefetch: Batches to request ahead in total; replaces `prefetch_factor`, and is never exceeded.
        adaptive: Whether the window follows from the production time and the size of batches.
        strict: Whether the window is never exceeded.
        concurrency: Samples that a worker fetches at a time, across batches; 0 if it fetches one batch after the other.
    """

    def __init__(
        self,
        num_workers: int = 1,
        *,
        prefetch_factor: int = MIN_DEPTH,
        prefetch: int | None = None,
        adaptive: bool = False,
        strict: bool = False,
        concurrency: int = 0,
    ) -> None:
        self._num_workers = num_workers
        self._prefetch_factor = prefetch_factor
        self._prefetch = prefetch
        self._adaptive = adaptive
        self._strict = strict
        self._affordable: int | None = None
        """Batches for which there is memory, if that is what limits the window."""
        self.nbytes = 0
        """Size of the last batch."""
        self.produce_ns = 0
        """Time to produce a batch, or a chunk of one, ns: a running mean; 0 before the first batch."""
        self.concurrency = concurrency
        """Samples that a worker fetches at a time, across batches; 0 if it fetches one batch after the other."""
        self._batch_size = 0.0  # samples, a running mean; 0 before the first batch
        self._job_size = 1
        self._plan()

    def _plan(self) -> None:
        workers, per_worker, concurrent = self._num_workers, self._prefetch_factor, 0
        if self.concurrency:
            concurrent = math.ceil(self.concurrency / max(1, self._batch_size)) if self._batch_size else 0
            per_worker = concurrent + max(1, per_worker, -(-concurrent // 4))
        elif self._adaptive and self.produce_ns:
            fitting = WINDOW_BYTES // (workers * max(1, self.nbytes))
            wanted = -(-QUEUED_NS // self.produce_ns)
            per_worker = max(per_worker, min(MAX_DEPTH, wanted, fitting))
        self.planned = per_worker * workers if self._prefetch is None else self._prefetch
        """Value of `size` if there is enough memory."""
        limits = [self.planned] if self._affordable is None else [self.planned, self._affordable]
        self.size = min(limits)
        """Batches of one iteration that may be outstanding, apart from those that are blocked."""
        self.prefetches = self.planned > 0
        """Whether batches are requested before the consumer asks for them."""
        self._credit = self.size
        if self._prefetch is None and self._affordable is None and not self._strict:
            self._credit += min(BLOCKED_TIMES * self.size, WINDOW_BYTES // max(1, self.nbytes))
        self._depth = self._blocked_depth = max(1, -(-self.size // workers))
        self._blocked_size = self.size
        if self.concurrency and self._prefetch is None:
            jobs = math.ceil(self.concurrency / self._job_size) + 1  # one is begun in part
            if self._job_size < self._batch_size:
                self._depth = max(self._depth, jobs + self._prefetch_factor)
            self._blocked_depth = max(self._depth, CONCURRENT_TIMES * jobs)
            self._blocked_size = max(self.size, CONCURRENT_TIMES * (concurrent + 1) * workers)
        self._step = (-(-self.size // workers) - concurrent - MIN_DEPTH) * workers // 2
        """Batches to request at once, so that one message requests several if workers hold more than `MIN_DEPTH`."""

    # ---- what changes the plan ----------------------------------------------------------------------------------

    def resize(self, num_workers: int) -> None:
        """Change the number of workers that share the window."""
        self._num_workers = num_workers
        self._plan()

    def set_size(self, prefetch_factor: int, *, prefetch: int | None = None, adaptive: bool = False) -> None:
        """Change the number of batches to request ahead; the arguments are those of the constructor."""
        self._prefetch_factor, self._prefetch, self._adaptive = prefetch_factor, prefetch, adaptive
        self._plan()

    def expect(self, samples: int, chunk: int = 0) -> None:
        """Update the mean batch size, from which the window of an asynchronous dataset is planned.

        Args:
            samples: Number of samples in a batch.
            chunk: Number of samples in a chunk; 0 if batches are not chunked.
        """
        mean = self._batch_size
        self._batch_size = mean + (samples - mean) / AVERAGED_BATCHES if mean else max(1, samples)
        self._job_size = chunk or max(1, round(self._batch_size))
        self._plan()

    def observe(self, nbytes: int, produce_ns: int, chunks: int = 1) -> None:
        """Record the size and the production time of a batch.

        Args:
            nbytes: Size of what a worker produced: a batch, or a chunk of one.
            produce_ns: Time that the worker took to produce it, in ns.
            chunks: Number of chunks of the batch; 1 if it was not chunked.
        """
        self.nbytes = nbytes * chunks
        mean = self.produce_ns
        self.produce_ns = max(1, mean + (produce_ns - mean) // AVERAGED_BATCHES if mean else produce_ns)
        self._plan()

    def limit(self, batches: int | None) -> bool:
        """Limit the window to the batches for which there is memory.

        Args:
            batches: Number of batches for which there is memory; None for no limit.

        Returns:
            Whether the limit is lower than the previous one.
        """
        before = self._affordable
        self._affordable = None if batches is None or batches >= self.planned else max(1, batches)
        self._plan()
        return self._affordable is not None and (before is None or self._affordable < before)

    # ---- what the dispatcher asks for -----------------------------------------------------------------------------

    def room(self, outstanding: int, blocked: int) -> int:
        """See `PrefetchPolicy`. One batch is always requested if none is outstanding."""
        if not outstanding:
            return max(1, self.size)
        unfinished = self._blocked_size if blocked else self.size
        room = min(unfinished + blocked, self._credit) - outstanding
        return room if room > 0 and room >= self._step else 0

    def depth(self, blocked: int) -> int:
        """See `PrefetchPolicy`. Until the size of a batch is known, a worker holds one."""
        if not (self.produce_ns or self.concurrency):
            return 1
        return self._blocked_depth if blocked else self._depth

    def affords(self, outstanding: int) -> bool:
        """See `PrefetchPolicy`."""
        return self._affordable is None or outstanding < self._affordable
