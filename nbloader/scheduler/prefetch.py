"""How far ahead batches are requested, and when queued batches move between workers: the whole policy, in one place.

The dispatcher asks, the policy answers; it knows neither workers nor batches. It is pure: durations and sizes are
passed in, and nothing here reads a clock. Another policy is another class with these attributes and methods.
"""

from __future__ import annotations

import math

DEEP_QUEUE = 16
"""Batches to request ahead per worker, at least, while they are small and fast, if the user left the window open."""
DEEPEST_QUEUE = 64
"""Batches per worker, at most, if all of them fit into `DEEP_BYTES`. A worker produces 16 tiny batches in half a
millisecond; then it sleeps, and waking it takes longer than producing a batch."""
DEEP_BYTES = 16 << 20
"""Memory that the batches of a window deeper than `DEEP_QUEUE` may take. Batches that have left the CPU caches before
the loop receives them cost more than the saved wake-ups: with 64 batches of 330 kB per worker the rate fell by 5 %."""
FAST_NS = 2_000_000
"""Production time below which a batch is fast."""
SMALL_BYTES = 512 * 1024
"""Size up to which a batch is small. The segments of so many larger batches would not stay in the caches."""
EXTENSION_BATCHES = 16
"""Batches per worker that may be requested beyond the window while the next batch to deliver is delayed."""
EXTENSION_BYTES = 128 << 20
"""Memory that these batches may take. Where cores are scarce, a delayed worker is only one that waits for a core, and
more batches ahead only cost memory: with 1 GB allowed, batches of 8 MB and four workers on two cores took up to 350 MB
of segments."""
QUEUED_WORK_NS = 2_000_000
"""Work in a worker's queue, in ns of production time, that the worker will not exhaust soon."""
STEAL_WORK_NS = 1_000_000
"""Production time that the stolen batches must add up to, so that stealing is worth its messages."""
STALL_NS = 5_000_000
"""Time after which a worker that is still processing one batch among fast ones is stalled: the batches behind it are
worth stealing one by one."""
QUEUED_PART = 4
"""Beside the batches that hold the samples in flight of an asynchronous dataset, one in so many is requested ahead."""
OPEN_TIMES = 4
"""So many times as many batches as that a worker may process while the loop waits. If waits are distributed
exponentially, a batch of 16 takes 3.4 times as long as a sample, and in its last third has few in flight."""
BLOCKED_TIMES = 32
"""So many times the window may be requested beyond it while the loop waits for an earlier batch, as far as it fits into
`EXTENSION_BYTES`. By simulation of exponential waits, with a concurrency of 500 and batches of 10, workers have 92 % of
that in flight with this, 49 % with a window of 4 times as many batches, and 20 % without."""
GROUP_NS = 600_000
"""Production time of batches that a waiting consumer may wait for together."""
GROUP_WAIT = 0.001
"""Seconds that it waits for them, at most."""
UNWATCHED = 0.002
"""Seconds for which a waiting consumer lets batches arrive without being woken, at most."""
AVERAGED_BATCHES = 8
"""Weight of the mean production time: a new batch counts one part in so many."""


class PrefetchPolicy:
    """The default policy: a fixed window, deeper for small and fast batches, extended while one batch is delayed.

    Args:
        num_workers: Workers that share the window.
        prefetch_factor: Batches to request ahead, per worker.
        prefetch: Batches to request ahead in total; replaces `prefetch_factor`.
        adaptive: Whether the window grows to between `DEEP_QUEUE` and `DEEPEST_QUEUE` batches per worker while they are
            small and fast.
        unlimited_queue: Whether one worker may hold any number of batches.
        concurrency: Samples that a worker fetches at a time, across batches; 0 if it fetches one batch after the other.
        deep_bytes: Replaces `DEEP_BYTES`: a larger number for workers that messages take long to reach.
    """

    def __init__(
        self,
        num_workers: int = 1,
        *,
        prefetch_factor: int = 2,
        prefetch: int | None = None,
        adaptive: bool = False,
        unlimited_queue: bool = False,
        concurrency: int = 0,
        deep_bytes: int | None = None,
    ) -> None:
        self._num_workers = num_workers
        self._deep_bytes = DEEP_BYTES if deep_bytes is None else deep_bytes
        self._prefetch_factor = prefetch_factor
        self._prefetch = prefetch
        self._adaptive = adaptive
        self._unlimited_queue = unlimited_queue
        self._deep = False
        self.fast = True
        """Whether batches are small and fast at present."""
        self.affordable: int | None = None
        """Batches for which there is memory, if that is what limits the window; else None."""
        self.nbytes = 0
        """Size of the last batch."""
        self._produce_ns = 0  # a running mean
        self.concurrency = concurrency
        """Samples that a worker fetches at a time, across batches; 0 if it fetches one batch after the other."""
        self._batch_size = 0.0  # samples, a running mean; 0 before the first batch
        self._job_size = 1
        self._plan()

    def _plan(self) -> None:
        per_worker, self.begun, self.enough = self._prefetch_factor, 1, 1
        """Batches, or chunks of them, that a worker may be processing at a time; and with how many it is busy."""
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
        """Size of a batch above which the window is planned again: it would take twice the memory."""
        deep = 0
        if self._deep:
            deep = self._deep_window
            if deep > DEEP_QUEUE * self._num_workers:
                self._outgrown = 2 * self._deep_bytes // deep
        self.planned_window = max(base, deep)
        """What `window` is if there is enough memory."""
        self.window = self.planned_window if self.affordable is None else min(self.planned_window, self.affordable)
        """Batches of one iteration that may be outstanding (requested and not delivered)."""
        self.queue_depth = max(1, -(-self.window // self._num_workers))
        """Batches, or chunks of them, that one worker may hold, including the one that it is processing."""
        if self._prefetch is None and self._job_size < self._batch_size:
            self.queue_depth = max(self.queue_depth, self.begun + self._prefetch_factor)
        if self._unlimited_queue:
            self.queue_depth = 1 << 30

    @property
    def _deep_window(self) -> int:
        fitting = self._deep_bytes // max(1, self.nbytes)
        return max(self._num_workers * DEEP_QUEUE, min(self._num_workers * DEEPEST_QUEUE, fitting))

    # ---- what changes the plan ----------------------------------------------------------------------------------

    def resize(self, num_workers: int) -> None:
        """So many workers share the window from now on."""
        self._num_workers = num_workers
        self._plan()

    def set_window(self, prefetch_factor: int, *, prefetch: int | None = None, adaptive: bool = False) -> None:
        """Request so many batches ahead from now on; the arguments are those of the constructor."""
        self._prefetch_factor, self._prefetch, self._adaptive = prefetch_factor, prefetch, adaptive
        self._deep = False
        self._plan()

    @property
    def cancels_begun(self) -> bool:
        """Whether workers can drop jobs that they are processing."""
        return self.concurrency > 0

    def expect(self, samples: int, chunk: int = 0) -> None:
        """Learn how many samples batches have: the window holds as many batches as workers process at a time.

        Args:
            samples: Samples of a batch.
            chunk: Samples of a chunk; 0 if batches are not cut.
        """
        mean = self._batch_size
        self._batch_size = mean + (samples - mean) / AVERAGED_BATCHES if mean else max(1, samples)
        self._job_size = chunk or max(1, round(self._batch_size))
        self._plan()

    def observe(self, nbytes: int, produce_ns: int, chunks: int = 1) -> None:
        """Learn what a batch cost.

        Args:
            nbytes: Size of what a worker produced: a batch, or a chunk of one.
            produce_ns: Time that it took the worker.
            chunks: Chunks of the batch; 1 if it was not cut.
        """
        self.nbytes = nbytes * chunks
        mean = self._produce_ns
        self._produce_ns = mean + (produce_ns - mean) // AVERAGED_BATCHES if mean else produce_ns
        self.fast = self.nbytes <= SMALL_BYTES and self._produce_ns < FAST_NS

    def afford(self, batches: int | None) -> bool:
        """Limit the window to the batches for which there is memory.

        Args:
            batches: Their number; None for no limit.

        Returns:
            Whether the limit is lower than the one before.
        """
        before = self.affordable
        self.affordable = None if batches is None or batches >= self.planned_window else max(1, batches)
        self._plan()
        return self.affordable is not None and (before is None or self.affordable < before)

    def adapt(self) -> None:
        """A batch is delivered: request many at a time while they are small and fast.

        Waking a worker for each such batch costs more than producing it: with two per worker, system calls took two
        thirds of the consumer's time.
        """
        if self._adaptive and (self.fast != self._deep or self.nbytes > self._outgrown):
            self._deep = self.fast
            self._plan()

    # ---- what the plan says -------------------------------------------------------------------------------------

    def refill_size(self, room: int, extension: int) -> int:
        """How many batches to request now.

        Args:
            room: Batches that fit into the window and its extension.
            extension: The part of them that is extension.

        Returns:
            0 while few fit: they are requested together, so that one message carries several. Half of a deep window
            at once: a quarter took 0.29 messages per tiny batch instead of 0.17, and 4 % more of the loop's CPU time.
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
        """Whether a batch that is delivered takes its place in an extended window along.

        Otherwise the window stays extended until no batch has overtaken another. Of two workers at fast batches one is
        always ahead, so each delivered batch would be replaced at once, with a message of its own: 0.75 per batch.
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

        Two more than `QUEUED_WORK_NS` takes: the worker may be done with one, and another may be on its way.
        """
        if self.concurrency:
            return self.extended_depth
        return 2 + QUEUED_WORK_NS // max(1, self._produce_ns)

    @property
    def min_steal(self) -> int:
        """Batches that must move at once for stealing to be worth its messages."""
        return -(-STEAL_WORK_NS // self._produce_ns) if self._produce_ns else 1

    @property
    def stall_ns(self) -> int:
        """Time that a worker may spend on one batch before a single batch behind it is worth stealing."""
        return STALL_NS

    def group(self, held: int) -> int:
        """Batches for which a waiting consumer may wait together, while they are small and fast.

        Args:
            held: Batches that workers hold.
        """
        return max(1, min(held // 2, GROUP_NS // max(1, self._produce_ns))) if self._deep else 1

    def unwatched(self, held: int) -> float:
        """Seconds for which a waiting consumer lets batches arrive without being woken; 0 to be woken by the next one.

        A wake-up for each batch costs the loop and the worker a switch each, and where they share a core the worker is
        interrupted. Small, fast batches are received several at a time instead, while workers have enough in their
        queues: of batches of 330 kB from two workers on two cores, the loop takes 23 % less CPU time, and 3 % more
        arrive.

        Args:
            held: Batches that workers hold.
        """
        if not self._deep or self.concurrency:
            return 0.0
        interval = self._produce_ns / (1e9 * self._num_workers)
        seconds = min(UNWATCHED, held // 2 * interval)
        return seconds if seconds >= 2 * interval else 0.0

    def recheck_after(self, *, one_producer: bool) -> float:
        """Seconds after which a waiting consumer looks at the workers again.

        Args:
            one_producer: Whether it waits for one worker only, since all others have a sufficient queue; otherwise a
                worker is idle while another has queued batches.
        """
        return (QUEUED_WORK_NS if one_producer else STALL_NS) / 1e9
