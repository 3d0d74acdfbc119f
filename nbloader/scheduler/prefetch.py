"""The prefetch policy: how far ahead batches are requested, and when queued batches move between workers.

The dispatcher queries the policy, which knows neither workers nor batches. The policy is pure: durations and sizes are
passed in, and nothing here reads a clock. To replace it, write a class with the same attributes and methods.
"""

from __future__ import annotations

import math

DEEP_QUEUE = 16
"""Minimum number of batches to prefetch per worker while they are small and fast, if the user did not set the
window."""
DEEPEST_QUEUE = 64
"""Maximum number of batches to prefetch per worker, if all of them fit into `DEEP_BYTES`. A worker produces 16 tiny
batches in half a millisecond; then it sleeps, and waking it takes longer than producing a batch."""
DEEP_BYTES = 16 << 20
"""Memory that the batches of a window deeper than `DEEP_QUEUE` may take. Batches that have left the CPU caches before
the loop receives them cost more than the saved wake-ups: with 64 batches of 330 kB per worker, the rate fell by 5 %."""
FAST_NS = 2_000_000
"""Production time, in ns, below which a batch is fast."""
SMALL_BYTES = 512 * 1024
"""Size up to which a batch is small. In a deep window, the segments of larger batches would not stay in the CPU
caches."""
EXTENSION_BATCHES = 16
"""Batches per worker that may be requested beyond the window while the next batch to deliver is delayed."""
EXTENSION_BYTES = 128 << 20
"""Memory that the batches beyond the window may take. Where cores are scarce, a delayed worker is merely waiting for a
core, and prefetching more batches only costs memory: with 1 GB allowed, batches of 8 MB and four workers on two cores
took up to 350 MB of segments."""
QUEUED_WORK_NS = 2_000_000
"""Production time of the batches in a worker's queue, in ns, that keeps the worker busy for a while."""
STEAL_WORK_NS = 1_000_000
"""Minimum total production time of stolen batches, in ns, for which stealing is worth its messages."""
STALL_NS = 5_000_000
"""Time, in ns, after which a worker counts as stalled if it is still processing one batch while batches are fast: then
even a single batch queued behind it is worth stealing."""
QUEUED_PART = 4
"""An asynchronous worker prefetches 1/QUEUED_PART more batches (at least `prefetch_factor` more) than it needs to keep
`concurrency` samples in flight."""
OPEN_TIMES = 4
"""While the window is extended, an asynchronous worker may hold up to this multiple of `begun` batches. If waits are
distributed exponentially, a batch of 16 takes 3.4 times as long as a sample, and has few samples in flight in the last
third of that time."""
BLOCKED_TIMES = 32
"""While the consumer waits for an earlier batch of an asynchronous dataset, the window may be extended by this multiple
of itself, limited by `EXTENSION_BYTES`. In a simulation of exponential waits, with a concurrency of 500 and batches of
10, workers have 92 % of these 500 samples in flight with this extension, 49 % with a window of 4 times as many batches,
and 20 % without either."""
GROUP_NS = 600_000
"""Total production time, in ns, of the batches that a waiting consumer may wait for at once."""
GROUP_WAIT = 0.001
"""Maximum time, in seconds, that a consumer waits for several batches at once."""
UNWATCHED = 0.002
"""Maximum time, in seconds, for which a waiting consumer lets batches arrive without being woken."""
AVERAGED_BATCHES = 8
"""Each new batch has weight 1/AVERAGED_BATCHES in the running means of production time and batch size."""


class PrefetchPolicy:
    """The default policy: a fixed window, deeper for small and fast batches, extended while one batch is delayed.

    Args:
        num_workers: Workers that share the window.
        prefetch_factor: Batches to request ahead, per worker.
        prefetch: Batches to request ahead in total; replaces `prefetch_factor`.
        adaptive: Whether the window grows to between `DEEP_QUEUE` and `DEEPEST_QUEUE` batches per worker while they are
            small and fast.
        concurrency: Samples that a worker fetches at a time, across batches; 0 if it fetches one batch after the other.
        deep_bytes: Replaces `DEEP_BYTES`, with a larger value for workers that messages take long to reach.
    """

    def __init__(
        self,
        num_workers: int = 1,
        *,
        prefetch_factor: int = 2,
        prefetch: int | None = None,
        adaptive: bool = False,
        concurrency: int = 0,
        deep_bytes: int | None = None,
    ) -> None:
        self._num_workers = num_workers
        self._deep_bytes = DEEP_BYTES if deep_bytes is None else deep_bytes
        self._prefetch_factor = prefetch_factor
        self._prefetch = prefetch
        self._adaptive = adaptive
        self._deep = False
        self.fast = True
        """Whether batches are small and fast at present."""
        self.affordable: int | None = None
        """Batches for which there is memory, if that is what limits the window; else None."""
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
        per_worker, self.begun, self.enough = self._prefetch_factor, 1, 1
        """`begun`: batches, or chunks of them, that a worker may be processing at a time. `enough`: with this many it
        is busy."""
        if self.concurrency and self._batch_size:
            concurrent = math.ceil(self.concurrency / self._batch_size)
            per_worker = concurrent + max(1, self._prefetch_factor, -(-concurrent // QUEUED_PART))
            self.enough = math.ceil(self.concurrency / self._job_size)
            self.begun = self.enough + 1  # one is begun in part
        base = per_worker * self._num_workers if self._prefetch is None else self._prefetch
        if self.concurrency and self._prefetch is None:
            base = max(1, base)  # before the first batch
        self.prefetches = base > 0
        """Whether batches are requested before the consumer asks for them."""
        self._outgrown: float = math.inf
        """Batch size above which the window is planned again, since it would take twice the allowed memory."""
        deep = 0
        if self._deep:
            deep = self._deep_window
            if deep > DEEP_QUEUE * self._num_workers:
                self._outgrown = 2 * self._deep_bytes // deep
        self.planned_window = max(base, deep)
        """Value of `window` if there is enough memory."""
        self.window = self.planned_window if self.affordable is None else min(self.planned_window, self.affordable)
        """Batches of one iteration that may be outstanding (requested and not delivered)."""
        self.queue_depth = max(1, -(-self.window // self._num_workers))
        """Batches, or chunks of them, that one worker may hold, including the one that it is processing."""
        if self._prefetch is None and self._job_size < self._batch_size:
            self.queue_depth = max(self.queue_depth, self.begun + self._prefetch_factor)

    @property
    def _deep_window(self) -> int:
        fitting = self._deep_bytes // max(1, self.nbytes)
        return max(self._num_workers * DEEP_QUEUE, min(self._num_workers * DEEPEST_QUEUE, fitting))

    # ---- what changes the plan ----------------------------------------------------------------------------------

    def resize(self, num_workers: int) -> None:
        """Change the number of workers that share the window."""
        self._num_workers = num_workers
        self._plan()

    def set_window(self, prefetch_factor: int, *, prefetch: int | None = None, adaptive: bool = False) -> None:
        """Change the number of batches to request ahead; the arguments are those of the constructor."""
        self._prefetch_factor, self._prefetch, self._adaptive = prefetch_factor, prefetch, adaptive
        self._deep = False
        self._plan()

    @property
    def cancels_begun(self) -> bool:
        """Whether workers can drop jobs that they are processing."""
        return self.concurrency > 0

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
        self.produce_ns = mean + (produce_ns - mean) // AVERAGED_BATCHES if mean else produce_ns
        self.fast = self.nbytes <= SMALL_BYTES and self.produce_ns < FAST_NS

    def afford(self, batches: int | None) -> bool:
        """Limit the window to the batches for which there is memory.

        Args:
            batches: Number of batches for which there is memory; None for no limit.

        Returns:
            Whether the limit is lower than the previous one.
        """
        before = self.affordable
        self.affordable = None if batches is None or batches >= self.planned_window else max(1, batches)
        self._plan()
        return self.affordable is not None and (before is None or self.affordable < before)

    def adapt(self) -> None:
        """Adapt the window after a delivery: request many batches at a time while they are small and fast.

        Waking a worker for each such batch costs more than producing it: with two batches per worker, system calls took
        two thirds of the consumer's time.
        """
        if self._adaptive and (self.fast != self._deep or self.nbytes > self._outgrown):
            self._deep = self.fast
            self._plan()

    # ---- what the plan says -------------------------------------------------------------------------------------

    def refill_size(self, room: int, extension: int) -> int:
        """Return the number of batches to request now.

        Args:
            room: Batches that fit into the window and its extension.
            extension: How many of these belong to the extension.

        Returns:
            The number of batches; 0 while only few fit, so that one message requests several. Half of a deep window is
            requested at once: requesting a quarter took 0.29 messages per tiny batch instead of 0.17, and 4 % more of
            the loop's CPU time.
        """
        inside = room - extension
        group = self.window // (2 if self._deep and not self.concurrency else 8)
        return max(0, room) if inside <= 0 or inside >= group else 0

    @property
    def extended_window(self) -> int:
        """Batches that may be outstanding while the next one to deliver is delayed."""
        affordable = EXTENSION_BYTES // max(1, self.nbytes)
        if self.affordable is not None:
            return self.window
        if not self.concurrency:
            return self.window + min(EXTENSION_BATCHES * self._num_workers, affordable)
        return self.window if self._prefetch is not None else self.window + min(BLOCKED_TIMES * self.window, affordable)

    @property
    def extension_step(self) -> int:
        """Batches to request beyond the window at a time."""
        return self.begun if self.concurrency else max(1, self.window // 8)

    @property
    def shrinks(self) -> bool:
        """Whether delivering a batch also shrinks the window's extension by one.

        Otherwise the window stays extended until no batch has overtaken another. With two workers and fast batches, one
        worker is always ahead, so each delivered batch would be replaced at once, with a separate message: 0.75
        messages per batch.
        """
        return not self.concurrency

    @property
    def extended_depth(self) -> int:
        """Batches that one worker may hold while the window is extended."""
        if not self.concurrency or self._prefetch is not None:
            return self.queue_depth
        return max(self.queue_depth, OPEN_TIMES * self.begun)

    @property
    def sufficient_queue(self) -> int:
        """Batches in a worker's queue that keep it busy for a while.

        Two more than a worker produces in `QUEUED_WORK_NS`: it may have finished one, and another may still be on its
        way.
        """
        if self.concurrency:
            return self.extended_depth
        return 2 + QUEUED_WORK_NS // max(1, self.produce_ns)

    @property
    def min_steal(self) -> int:
        """Batches that must move at once for stealing to be worth its messages."""
        return -(-STEAL_WORK_NS // self.produce_ns) if self.produce_ns else 1

    @property
    def stall_ns(self) -> int:
        """Time that a worker may spend on one batch before a single batch behind it is worth stealing."""
        return STALL_NS

    def group(self, held: int) -> int:
        """Return how many batches a waiting consumer may wait for at once, while they are small and fast.

        Args:
            held: Batches that workers hold.
        """
        return max(1, min(held // 2, GROUP_NS // max(1, self.produce_ns))) if self._deep else 1

    def unwatched(self, held: int) -> float:
        """Return for how many seconds batches may arrive without waking a waiting consumer; 0 if the next one wakes it.

        Waking the consumer for each batch costs the loop and the worker a context switch each, and interrupts the
        worker if they share a core. Instead, several small, fast batches are received at a time while workers have
        enough in their queues: with batches of 330 kB from two workers on two cores, the loop takes 23 % less CPU time,
        and 3 % more batches arrive.

        Args:
            held: Batches that workers hold.
        """
        if not self._deep or self.concurrency:
            return 0.0
        interval = self.produce_ns / (1e9 * self._num_workers)
        seconds = min(UNWATCHED, held // 2 * interval)
        return seconds if seconds >= 2 * interval else 0.0

    def recheck_after(self, *, one_producer: bool) -> float:
        """Return the seconds after which a waiting consumer checks the workers again.

        Args:
            one_producer: Whether the consumer waits for one worker only, since all others have a sufficient queue;
                otherwise a worker is idle while another has queued batches.
        """
        return (QUEUED_WORK_NS if one_producer else STALL_NS) / 1e9
