"""Outcomes of batches that were not produced, and the messages of their errors.

An outcome takes the place of a batch in the reorder buffer, so that an error is raised when the consumer reaches the
batch, and not before. See `batch.payload.BatchOutcome`.
"""

from __future__ import annotations

import errno
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nbloader.events.records import BatchFailed, SampleFailed
from nbloader.events.remote_errors import ErrorInfo, SampleFailure, add_note, rebuild

MAX_INDICES_LENGTH = 300
"""Maximum number of characters of dataset indices in a message."""


class _NoBatch:
    """The base of outcomes without a batch. See `BatchOutcome`."""

    __slots__ = ()
    failed = True
    empty = False
    samples = 0
    nbytes = 0
    produce_ns = 0

    def discard(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True, slots=True)
class WorkerFailure(_NoBatch):
    """The dataset or the collate function raised in a worker."""

    worker: int
    """Worker id; -1 for the notebook's own process."""
    pid: int
    stage: str
    """"fetch" or "collate"."""
    position: int
    """Position of the sample in the batch; -1 where unknown."""
    error: ErrorInfo
    raised: Exception | None = None
    """The exception itself, if the worker is in this process."""

    def to_event(self, now: int, run: int, number: int, indices: Any) -> BatchFailed | None:
        """The event of this failure.

        Args:
            now: perf_counter ns.
            run: Iteration of the batch.
            number: Batch number.
            indices: The dataset indices of the batch.
        """
        sample = indices[self.position] if self.position >= 0 else None
        return BatchFailed(now, run, number, self.worker, sample, self.error.summary)

    def to_exception(self, number: int, indices: Any, *, batched: bool, epoch: int | None = None) -> Exception:
        """The exception to raise in the consumer.

        Args:
            number: Batch number.
            indices: The dataset indices of the batch; a single one if batching is off.
            batched: Whether samples make batches.
            epoch: Number of the epoch, if `DataLoader.debug` can make the batch again: then a note says how.
        """
        where = f"worker {self.worker} (pid {self.pid})" if self.worker >= 0 else "this process"
        sample = ""
        if self.stage == "fetch" and batched and self.position >= 0:
            what = f"fetching sample {indices[self.position]!r} of batch {number}"
            sample = f", index={indices[self.position]!r}"
        elif self.stage == "fetch":
            what = f"fetching {indices!r}"
        else:
            what = f"collating batch {number}"
        error = rebuild(self.error, f"raised in {where} while {what}", self.raised)
        if epoch is not None:
            this = "sample" if sample or not batched else "batch"
            add_note(error, f"to debug this {this}: loader.debug(epoch={epoch}, batch={number}{sample})")
        return error


def samples_failed(
    failures: Sequence[SampleFailure], run: int, number: int, indices: Any, worker: int, *, batched: bool
) -> Iterator[SampleFailed]:
    """The events of samples that were skipped, replaced or retried.

    Args:
        failures: What failed.
        run: Iterator of the batch.
        number: Batch number within that iterator.
        indices: Dataset indices of the batch; a single one if batching is off.
        worker: Worker id; -1 for the notebook's own process.
        batched: Whether samples make batches.
    """
    now = time.perf_counter_ns()
    for failure in failures:
        sample = (indices[failure.position] if failure.position >= 0 else None) if batched else indices
        yield SampleFailed(now, run, number, worker, sample, failure.error, failure.traceback, failure.done)


@dataclass(frozen=True, slots=True)
class EmptyBatch(_NoBatch):
    """All samples of a batch were skipped: the consumer does not see it."""

    failed = False
    empty = True


@dataclass(frozen=True, slots=True)
class LoaderFailure(_NoBatch):
    """A batch that could not be produced for a reason of the loader's own, such as a worker that died."""

    error: Exception

    def to_event(self, now: int, run: int, number: int, indices: Any) -> BatchFailed | None:  # noqa: ARG002
        """None: no worker failed."""
        return None

    def to_exception(self, number: int, indices: Any, *, batched: bool, epoch: int | None = None) -> Exception:  # noqa: ARG002
        """The exception to raise in the consumer."""
        return self.error


def abbreviated(indices: Any) -> str:
    """The `repr()` of dataset indices, cut to a length that fits into a message."""
    text = repr(indices)
    return text if len(text) <= MAX_INDICES_LENGTH else text[:MAX_INDICES_LENGTH] + "..."


def start_message(worker: int, num_workers: int, error: Exception) -> str:
    """The message of `WorkerStartError` when the system has not enough resources for a worker."""
    begin = f"worker {worker} (num_workers={num_workers}) could not be started: {error}."
    code = getattr(error, "errno", None)
    if code in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"{begin} Each worker needs five file descriptors, and RLIMIT_NOFILE={limit}: use fewer workers, or raise "
            "`ulimit -n`."
        )
    if code == errno.EAGAIN:
        return f"{begin} There are too many processes: use fewer workers, or raise `ulimit -u`."
    return begin


def thread_message(what: str, error: Exception) -> str:
    """The message of the error when the system provides no thread.

    Args:
        what: The thread, such as "the thread that supervises the workers".
        error: What `threading.Thread.start` raised.
    """
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return (
        f"{what} could not be started beside {threading.active_count()} threads: {error}. There are too many threads "
        f"or processes (RLIMIT_NPROC={'unlimited' if limit == resource.RLIM_INFINITY else limit}): use fewer workers, "
        "end other programs, or raise `ulimit -u`; in a container, its limit of processes."
    )


def descriptors_message(worker: int, num_workers: int) -> str:
    """The message of the error when this process cannot receive a worker's descriptors."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"too many open files: what worker {worker} (num_workers={num_workers}) sent could not be received, because "
        f"this process has as many file descriptors as it may have (RLIMIT_NOFILE={limit}). Close files, use fewer "
        "workers, or raise `ulimit -n`."
    )


def died_message(number: int, indices: Any, deaths: int, pid: int, exitcode: int | None, reason: str, tail: str) -> str:
    """The message of `WorkerDiedError`, about a batch that killed its workers. It begins as torch's error does.

    Args:
        number: Batch number.
        indices: Dataset indices of the batch.
        deaths: Number of workers that died while they processed it.
        pid: Process id of the last one.
        exitcode: Its exit status, or minus the signal that killed it; None where unknown.
        reason: How it ended, such as "was killed by SIGKILL".
        tail: The last lines that it wrote to standard error.
    """
    if exitcode is not None and exitcode < 0:
        begin = f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(-exitcode) or -exitcode}"
    else:
        begin = f"DataLoader worker (pid(s) {pid}) exited unexpectedly"
    if exitcode is None or exitcode < 0:
        cause = "A crash in native code or too little memory are the usual causes"
    else:
        cause = "A call of sys.exit() or os._exit(), or a KeyboardInterrupt raised there, are the usual causes"
    return (
        f"{begin}: batch {number} (samples {abbreviated(indices)}) ended {deaths} workers in a row; the last one "
        f"{reason}. "
        f"{cause}: load these samples with num_workers=0 to see it. The worker's standard error ended with:\n"
        f"{tail or '(nothing)'}"
    )
