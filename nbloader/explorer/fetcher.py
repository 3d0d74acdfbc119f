"""Reads samples with workers of the loader's own kinds, on demand.

    any thread      want, scan, ask, give_up, retry -> RequestQueue, under the lock -> wake
    this thread     take -> Task (one sample, its own seed) -> WorkerPool -> ReadSample -> on_read([(request, sample)])

One thread owns the pool: it starts workers, gives each of them one request at a time, and receives the samples. It
blocks on the pool's file descriptor and a wake-up. It starts with the first request and ends, with its workers, after
`IDLE` seconds without a request; the next request starts a new thread.

A worker that has read a sample gets its next request before the sample is reported. The first sample that a view wants
is reported at once, and so is one requested by `ask`; the others are collected for up to `COLLECT` seconds, since each
report becomes a message, which costs three processes a millisecond each.

| what fails                             | consequence                                                               |
|----------------------------------------|---------------------------------------------------------------------------|
| the dataset raises                     | a value: the sample's place shows the error                               |
| the dataset hangs                      | the sample can be given up; meanwhile another worker reads the others.    |
|                                        | Its worker ends after the sample, and is killed if it is stuck            |
| the worker dies                        | the sample's place shows how; another worker starts                       |
| the dataset cannot be sent to processes| it is read in threads, and `on_note` says so                              |
| a worker cannot rebuild the dataset    | `on_problem`; the next request tries again                                |
| `on_read` raises                       | a defect: logged, `on_problem`; the next request starts another thread    |
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nbloader._platform import Wakeup
from nbloader._util.format import clean, duration
from nbloader._util.rng import mix
from nbloader._util.threads import daemon
from nbloader.batch.payload import BatchPayload
from nbloader.batch.task import Task
from nbloader.engine.leaving import LeavingWorkers
from nbloader.errors import DatasetTransferError
from nbloader.events.failures import WorkerFailure
from nbloader.events.remote_errors import describe
from nbloader.explorer.describer import Hints
from nbloader.explorer.normalization import Normalization
from nbloader.explorer.reader import ReadSample, Request, SampleReader, as_read, failure, scan_request
from nbloader.explorer.requests import RequestQueue, SampleCache
from nbloader.explorer.sources import Source
from nbloader.workers.api import WorkerHandle, WorkerKind, WorkerPool
from nbloader.workers.messages import BatchDone, WorkerGone, WorkerInitFailed, WorkerInitialized, WorkerMessage
from nbloader.workers.registry import create_kind, kind_class
from nbloader.workers.spec import WorkerSpec

log = logging.getLogger(__name__)

IDLE = 60.0
"""Seconds without a request after which the workers end."""
PATIENCE = 2.0
"""Seconds that all workers may be busy with one sample each, until another worker is started for the waiting
requests."""
COLLECT = 0.016
"""Seconds between two reports of samples that are only on screen. A page draws no more often."""
SPARE = 4
"""Number of extra workers that may be started because others hang."""
GRACE = 0.5
"""Seconds that workers get to exit by themselves."""
CACHE_BYTES = 64 << 20
"""Memory for samples that were read."""
MAX_FAILED_STARTS = 3
"""Number of consecutive workers that may die before they are ready."""


@dataclass(slots=True)
class _Reading:
    """A request that a worker is processing."""

    request: Request
    job: int
    began: float


class SampleFetcher:
    """Reads the samples of one source for the views of one explorer. All public methods may be called on any thread.

    Args:
        source: The samples.
        renderers: User-defined renderers.
        normalization: The normalization to undo when pictures are drawn.
        hints: Kinds of fields, as the user states them.
        num_workers: Number of workers that read at the same time.
        kind: "process" or "thread".
        seed: Sample `i` is drawn with a seed derived from this one, `i` and the number of the draw.
        on_read: Called on the fetcher's thread with the samples that were read since the last call.
        on_note: Called with a line of text for the user.
        on_problem: Called with an error that concerns all samples, as JSON; with "" when samples are read again.
    """

    def __init__(
        self,
        source: Source,
        renderers: tuple[Any, ...],
        normalization: Normalization | None = None,
        hints: Hints | None = None,
        *,
        num_workers: int,
        kind: str,
        seed: int,
        on_read: Callable[[list[tuple[Request, ReadSample]]], None],
        on_note: Callable[[str], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._source = source
        self._reader = SampleReader(
            source.dataset, source.names, renderers, normalization,
            hints=hints, tokenizer=source.tokenizer, root=source.root, tabular=source.tabular,
        )  # fmt: skip
        self.num_workers = 1 if source.streaming else num_workers
        self.kind = kind
        self.seed = seed
        self._on_read, self._on_note, self._on_problem = on_read, on_note, on_problem
        self._cache = SampleCache(CACHE_BYTES)
        self._queue = RequestQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._wakeup = Wakeup()
        self._given_up: set[int] = set()
        self._first: dict[str, Request] = {}
        """The most urgent request of each view."""
        self._repack = False
        self._closed = False
        # Only the thread uses the rest.
        self._kind: WorkerKind | None = None
        self._setup: Any = None
        self._pool: WorkerPool | None = None
        self._leaving = LeavingWorkers(lambda: self._usual_ns)
        self._usual_ns = 0  # the longest time that a sample took
        self._busy: dict[int, _Reading] = {}
        self._starting: set[int] = set()
        self._failed_starts = 0
        self._jobs = 0
        self._unreported: list[tuple[Request, ReadSample]] = []
        self._reported_at = 0.0
        _fetchers.add(self)

    @property
    def in_process(self) -> bool:
        """Whether the workers are threads of this process."""
        return kind_class(self.kind).in_process

    # ---- any thread -------------------------------------------------------------------------------------------------

    def want(self, view: str, indices: Iterable[int]) -> list[tuple[Request, ReadSample]]:
        """Set what a view has on screen. Returns the samples that were already read; `on_read` gets the others."""
        with self._lock:
            wanted = list(indices)
            there = self.there(wanted)
            self._queue.want(view, wanted, self._cache)
            self._first.update((view, Request(index)) for index in wanted[:1])
            self._run()
        return there

    def scan(self, indices: Iterable[int]) -> None:
        """Scan these samples, too, while nothing else is wanted; `on_read` gets them. They are not cached."""
        with self._lock:
            self._queue.scan(map(scan_request, indices))
            self._run()

    def probe(self, draws: Mapping[int, int]) -> None:
        """Scan samples again under other seeds; `on_read` gets them.

        Args:
            draws: The number of the random draw, not 0, by dataset index.
        """
        with self._lock:
            self._queue.scan(scan_request(index, draw) for index, draw in draws.items())
            self._run()

    def stop_scan(self) -> None:
        """Stop the scan after the samples that are being read."""
        with self._lock:
            self._queue.stop_scan()

    def there(self, indices: Iterable[int]) -> list[tuple[Request, ReadSample]]:
        """Return those of the samples that were read and are still cached."""
        with self._lock:
            return [(r, sample) for r in map(Request, indices) if (sample := self._cache.get(r)) is not None]

    def ask(self, request: Request) -> ReadSample | None:
        """Read a sample before the others. Returns the sample if it was already read; otherwise `on_read` gets it."""
        with self._lock:
            sample = self._cache.get(request)
            if sample is None:
                self._queue.ask(request)
                self._run()
        return sample

    def forget(self, view: str) -> None:
        """Forget a view that was closed."""
        with self._lock:
            self._queue.forget(view)
            self._first.pop(view, None)

    def give_up(self, index: int) -> None:
        """Stop waiting for a sample. Its worker ends, and is killed if it is stuck."""
        with self._lock:
            self._given_up.add(index)
        self._wakeup.set()

    def retry(self, indices: Iterable[int]) -> None:
        """Read samples again, with new workers and the dataset as it is now."""
        with self._lock:
            self._repack = True
            for index in indices:
                self._cache.drop_sample(index)
                self._queue.ask(Request(index))
            self._run()

    def close(self) -> None:
        """Stop the workers. Closing twice is a no-op."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._queue.clear()
        self._wakeup.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            self._cache.clear()
        self._wakeup.close()

    def _run(self) -> None:
        """Make the thread check the queue."""
        if self._closed:
            return
        if self._thread is None and self._queue.waiting:
            self._thread = daemon(self._loop, name="nbloader-explorer")
            self._thread.start()
        self._wakeup.set()

    # ---- the fetcher's thread ---------------------------------------------------------------------------------------

    def _loop(self) -> None:
        quiet_since = time.monotonic()
        try:
            while True:
                self._receive()
                self._end_given_up()
                self._refresh()
                self._dispatch()
                self._report()
                now = time.monotonic()
                if self._busy or self._starting:
                    quiet_since = now
                if self._closed or now - quiet_since >= IDLE:
                    self._stop(GRACE)
                    with self._lock:
                        if self._closed or not self._queue.waiting:
                            self._thread = None
                            return
                    quiet_since = now
                    continue
                self._wait(quiet_since)
        except Exception as error:  # a defect here or in `on_read`: the next request starts again
            log.exception("the explorer's thread failed")
            self._unreported.clear()
            self._stop(GRACE)
            self._setup = None
            with self._lock:  # together: a request that arrives now must not be dropped
                self._queue.clear()
                self._queue.reading.clear()
                self._thread = None
            info = describe(error, by_value=False)
            self._on_problem(failure(f"The explorer failed: {info.summary}", info.traceback))

    def _wait(self, quiet_since: float) -> None:
        fileno = None if self._pool is None else self._pool.fileno()
        filenos = (*self._leaving.filenos, *(() if fileno is None else (fileno,)))
        limits = [self._timeout(quiet_since), self._leaving.seconds_left()]
        self._wakeup.wait(filenos, min((limit for limit in limits if limit is not None), default=None))

    def _timeout(self, quiet_since: float) -> float | None:
        """Return the seconds until the thread must act even without a message; None for no limit."""
        now = time.monotonic()
        if self._unreported:
            return max(0.0, self._reported_at + COLLECT - now)
        if not self._busy:
            return None if self._starting else max(0.0, quiet_since + IDLE - now)
        with self._lock:
            stuck = self._queue.waiting and self._may_start()
        return max(0.0, self._all_busy_since() + PATIENCE - now) if stuck else None

    def _all_busy_since(self) -> float:
        return max((reading.began for reading in self._busy.values()), default=0.0)

    def _may_start(self) -> bool:
        """Whether another worker may be started because all are busy."""
        spare = 0 if self._source.streaming else SPARE
        return len(self._handles()) < self.num_workers + spare and not self._starting

    def _handles(self) -> list[WorkerHandle]:
        return [] if self._pool is None else [h for h in self._pool.handles.values() if not h.expected]

    def _refresh(self) -> None:
        """Start over with the dataset as it is now, if that was requested."""
        with self._lock:
            repack, self._repack = self._repack, False
            if repack:
                self._queue.reading.clear()
                # Samples to read again are no longer cached: their earlier content is not reported either.
                self._unreported = [read for read in self._unreported if read[0].view.scan or read[0] in self._cache]
        if repack:
            interrupted = [reading.request for reading in self._busy.values()]
            self._stop(None)
            self._setup = None
            self._failed_starts = 0
            with self._lock:
                for request in interrupted:
                    self._queue.ask(request)

    def _dispatch(self) -> None:
        """Give each idle worker a request; start workers if there are too few."""
        while True:
            with self._lock:
                if self._closed or not self._queue.waiting:
                    return
            idle = next((h for h in self._handles() if h.ready and h.uid not in self._busy), None)
            if idle is None:
                handles = self._handles()
                late = self._busy and time.monotonic() - self._all_busy_since() >= PATIENCE
                if len(handles) < self.num_workers or (late and self._may_start()):
                    if not self._start_worker(len(handles)):
                        return
                    continue
                return
            with self._lock:
                request = self._queue.take()
            if request is not None:
                self._submit(idle, request)

    def _submit(self, handle: WorkerHandle, request: Request) -> None:
        if self._pool is None:
            return
        self._jobs += 1
        seed = sample_seed(self.seed, request)
        task = Task(0, self._jobs, request, seed, job=self._jobs)
        self._busy[handle.uid] = _Reading(request, self._jobs, time.monotonic())
        for _task, error in self._pool.submit(handle.uid, [task]):
            self._finish(handle.uid, ReadSample(failure(f"{type(error).__name__}: {error}"), [], 0.0, 0.0, failed=True))

    def _start_worker(self, worker: int) -> bool:
        """Start a worker. Returns False if that failed; the failure was reported."""
        spec = WorkerSpec(kind=self.kind, batched=False, output="numpy", num_workers=self.num_workers)
        try:
            if self._kind is None or self._setup is None:
                self._kind = create_kind(spec)
                self._setup = self._kind.pack(self._reader, as_read, self._source.worker_init_fn, "raise")
            if self._pool is None:
                self._pool = self._kind.create_pool()
            self._pool.prepare(self._setup)
            self._starting.add(self._pool.start(worker, spec, self._setup).uid)
        except DatasetTransferError as error:
            if self.in_process:
                self._report_problem(failure(f"{type(error).__name__}: {error}"))
                return False
            self.kind, self._kind = "thread", None
            self._on_note(f"Read in threads, because it cannot be sent to worker processes: {clean(error, 300)}")
            return True
        except OSError as error:
            self._report_problem(failure(f"no worker could be started: {error}"))
            return False
        return True

    def _report_problem(self, problem: str) -> None:
        """Report that no sample can be read for now. All requests are dropped: the user has to try again."""
        with self._lock:
            self._queue.clear()
        self._setup = None
        self._on_problem(problem)

    def _receive(self) -> None:
        for message in [] if self._pool is None else self._pool.poll(0):
            self._handle(message)
        self._leaving.kill_stuck()
        _discard(self._leaving.poll())

    def _handle(self, message: WorkerMessage) -> None:
        if isinstance(message, WorkerInitialized):
            self._starting.discard(message.uid)
            self._failed_starts = 0
            self._on_problem("")
        elif isinstance(message, WorkerInitFailed):
            self._starting.discard(message.uid)  # a `WorkerGone` follows, and says less
            summary = f"The dataset cannot be used in a worker: {message.error.summary}"
            self._report_problem(failure(summary, message.error.traceback))
        elif isinstance(message, BatchDone):
            self._on_done(message)
        elif isinstance(message, WorkerGone):
            self._on_gone(message)

    def _on_done(self, message: BatchDone) -> None:
        reading = self._busy.get(message.uid)
        if reading is None or reading.job != message.job:  # the sample was given up
            message.outcome.discard()
            return
        outcome: Any = message.outcome
        if isinstance(outcome, WorkerFailure):
            sample = ReadSample(failure(outcome.error.summary, outcome.error.traceback), [], 0.0, 0.0, failed=True)
        else:
            payload: BatchPayload = outcome
            sample = payload.open()
            self._usual_ns = max(self._usual_ns, int(1e9 * sample.seconds))
            handle = None if self._pool is None else self._pool.handles.get(message.uid)
            if handle is not None:
                sample = sample._replace(worker=handle.worker)
        self._finish(message.uid, sample)

    def _on_gone(self, message: WorkerGone) -> None:
        starting = message.uid in self._starting
        self._starting.discard(message.uid)
        if message.uid in self._busy:
            code = message.exitcode
            how = (
                "ended" if code is None else f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            )
            self._finish(message.uid, ReadSample(failure(f"The worker {how}."), [], 0.0, 0.0, failed=True))
        elif starting and self._pool is not None:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                self._report_problem(failure("Workers end before they are ready."))

    def _finish(self, uid: int, sample: ReadSample) -> None:
        reading = self._busy.pop(uid)
        with self._lock:
            self._queue.finish(reading.request)
            if self._closed:
                return
            if sample.end is None and not reading.request.view.scan:
                self._cache.put(reading.request, sample)
        self._unreported.append((reading.request, sample))

    def _report(self) -> None:
        """Call `on_read`, unless more samples are about to arrive and none of these is urgent."""
        if not self._unreported:
            return
        now = time.monotonic()
        if self._busy and now < self._reported_at + COLLECT:
            with self._lock:
                first = set(self._first.values())
            if all(request == Request(request.index) and request not in first for request, _ in self._unreported):
                return
        samples, self._unreported = self._unreported, []
        self._reported_at = now
        self._on_read(samples)

    def _end_given_up(self) -> None:
        with self._lock:
            given_up, self._given_up = self._given_up, set()
        for uid, reading in list(self._busy.items()):
            if reading.request.index in given_up and self._pool is not None:
                handle = self._pool.handles.get(uid)
                after = duration(time.monotonic() - reading.began)
                self._finish(uid, ReadSample(failure(f"nbloader gave up after {after}."), [], 0.0, 0.0, failed=True))
                if handle is not None:
                    handle.expected = True
                    self._leaving.dismiss(handle)

    def _stop(self, grace: float | None) -> None:
        """Stop all workers; what they are reading is dropped.

        Args:
            grace: Seconds after which all workers are killed that have not ended; None to let them finish their sample.
        """
        pool, self._pool = self._pool, None
        self._busy.clear()
        self._starting.clear()
        if pool is not None:
            self._leaving.pools.append(pool)
            _discard(self._leaving.retire(pool, 0))
        if grace is not None:
            _discard(self._leaving.close(grace))


def _discard(messages: Iterable[WorkerMessage]) -> None:
    """Release the memory of samples that nobody wants any more."""
    for message in messages:
        if isinstance(message, BatchDone):
            message.outcome.discard()


def sample_seed(seed: int, request: Request) -> int:
    """Return the seed of the random generators for a request.

    Args:
        seed: Seed of the explorer.
        request: The request.
    """
    if request.delivery is not None:
        return request.delivery.seed
    if request.view.scan:  # one seed for all: equal samples stay equal after random augmentation
        return mix(seed, request.draw) if request.draw else mix(seed)
    return mix(seed, request.index, request.draw)


_fetchers: weakref.WeakSet[SampleFetcher] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop all workers when the interpreter exits."""
    for fetcher in list(_fetchers):
        fetcher.close()
