"""Outcomes of batches that were not produced, and their error messages.

An outcome takes the place of a batch in the reorder buffer, so that an error is raised only when the consumer reaches
the batch. See `batch.payload.BatchOutcome`.
"""

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nbloader._platform import open_files_limit, processes_limit
from nbloader._util.format import plural
from nbloader.events.remote_errors import ErrorInfo, SampleFailure, add_note, rebuild

if TYPE_CHECKING:
    from nbloader.events.records import BatchFailed, SampleFailed

NAMED = 8
"""Maximum number of dataset indices in the event of a batch that failed."""
MAX_INDICES_LENGTH = 300
"""Maximum length of the dataset indices in a message, in characters."""


class _NoBatch:
    """Base class of outcomes without a batch. See `BatchOutcome`."""

    __slots__ = ()
    samples = 0
    nbytes = 0
    produce_ns = 0

    def discard(self) -> None:
        """Do nothing: there is no memory to release."""


@dataclass(frozen=True, slots=True)
class WorkerFailure(_NoBatch):
    """The dataset or the collate function raised in a worker."""

    failed: ClassVar[Literal[True]] = True
    empty: ClassVar[Literal[False]] = False
    worker: int
    """Worker id; -1 for the notebook's own process."""
    pid: int
    stage: str
    """"fetch" or "collate"."""
    position: int
    """Position of the sample in the batch; -1 if unknown."""
    error: ErrorInfo
    raised: Exception | None = None
    """The exception itself if the worker runs in this process; otherwise None."""

    def to_event(self, now: int, epoch: int, number: int, indices: Any) -> BatchFailed | None:
        """Return the event that reports this failure.

        Args:
            now: `time.perf_counter_ns()`.
            epoch: Number of the epoch that requested the batch.
            number: Batch number.
            indices: The dataset indices of the batch.
        """
        from nbloader.events.records import BatchFailed  # 20 ms, which a process without failures need not spend

        sample = indices[self.position] if self.position >= 0 else None
        first = _first_of(indices)
        return BatchFailed(now, epoch, number, self.worker, sample, self.error.summary, self.stage, first)

    def to_exception(self, number: int, indices: Any, *, batched: bool, epoch: int | None = None) -> Exception:
        """Return the exception to raise in the consumer.

        Args:
            number: Batch number.
            indices: The dataset indices of the batch; a single index if batching is off.
            batched: Whether samples are batched.
            epoch: Number of the epoch if `DataLoader.debug` can reproduce the batch. A note on the exception then says
                how.
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
    failures: Sequence[SampleFailure], epoch: int, number: int, indices: Any, worker: int, *, batched: bool
) -> Iterator[SampleFailed]:
    """Yield the events for samples that were skipped, replaced or retried.

    Args:
        failures: The failures in the batch.
        epoch: Number of the epoch that requested the batch.
        number: Batch number within the epoch.
        indices: Dataset indices of the batch; a single index if batching is off.
        worker: Worker id; -1 for the notebook's own process.
        batched: Whether samples are batched.
    """
    from nbloader.events.records import SampleFailed

    now = time.perf_counter_ns()
    for failure in failures:
        sample = (indices[failure.position] if failure.position >= 0 else None) if batched else indices
        yield SampleFailed(now, epoch, number, worker, sample, failure.error, failure.traceback, failure.done)


@dataclass(frozen=True, slots=True)
class EmptyBatch(_NoBatch):
    """All samples of a batch were skipped, so that the consumer does not see the batch."""

    failed: ClassVar[Literal[False]] = False
    empty: ClassVar[Literal[True]] = True


@dataclass(frozen=True, slots=True)
class LoaderFailure(_NoBatch):
    """A batch could not be produced because of a problem in the loader, such as a worker that died."""

    failed: ClassVar[Literal[True]] = True
    empty: ClassVar[Literal[False]] = False
    error: Exception

    def to_event(self, now: int, epoch: int, number: int, indices: Any) -> BatchFailed | None:  # noqa: ARG002
        """Return None: neither the dataset nor the collate function raised."""
        return None

    def to_exception(self, number: int, indices: Any, *, batched: bool, epoch: int | None = None) -> Exception:  # noqa: ARG002
        """Return the exception to raise in the consumer."""
        return self.error


def _first_of(indices: Any) -> tuple[Any, ...]:
    """Return the first dataset indices of a batch; () if an iterable dataset has none."""
    several = isinstance(indices, Sequence) and not isinstance(indices, str | bytes)
    several = several or getattr(indices, "ndim", 0) == 1
    return tuple(index for index in (indices[:NAMED] if several else (indices,)) if index is not None)


def abbreviated(indices: Any) -> str:
    """Return the `repr()` of dataset indices, truncated to fit into a message."""
    text = repr(indices)
    return text if len(text) <= MAX_INDICES_LENGTH else text[:MAX_INDICES_LENGTH] + "..."


def start_message(worker: int, num_workers: int, error: Exception) -> str:
    """Return the message of `WorkerStartError` for a system without enough resources to start a worker."""
    begin = f"worker {worker} (num_workers={num_workers}) could not be started: {error}."
    code = getattr(error, "errno", None)
    if code in (errno.EMFILE, errno.ENFILE):
        limit = open_files_limit()
        return (
            f"{begin} Each worker needs five file descriptors, and the limit is RLIMIT_NOFILE={limit}. Use fewer "
            "workers, or raise the limit with `ulimit -n`."
        )
    if code == errno.EAGAIN:
        return f"{begin} There are too many processes. Use fewer workers, or raise the limit with `ulimit -u`."
    return begin


def thread_message(what: str, error: Exception) -> str:
    """Return the error message for a thread that the system could not start.

    Args:
        what: The thread, such as "the thread that supervises the workers".
        error: What `threading.Thread.start` raised.
    """
    limit = processes_limit()
    return (
        f"{what} could not be started while this process had {plural(threading.active_count(), 'thread')}: {error}. "
        f"There are too many threads or processes (RLIMIT_NPROC={limit}). Use fewer workers, end other programs, or "
        "raise the limit with `ulimit -u` or in the settings of the container."
    )


def descriptors_message(worker: int, num_workers: int) -> str:
    """Return the error message for when this process cannot receive a worker's file descriptors."""
    limit = open_files_limit()
    return (
        f"too many open files: a message from worker {worker} (num_workers={num_workers}) could not be received, "
        f"because this process has reached its limit of file descriptors (RLIMIT_NOFILE={limit}). Close files, use "
        "fewer workers, or raise the limit with `ulimit -n`."
    )


def died_message(
    number: int, indices: Any, sample: Any, deaths: int, pid: int, exitcode: int | None, reason: str, tail: str
) -> str:
    """Return the message of `WorkerDiedError` for a batch that killed its workers. It begins like torch's message.

    Args:
        number: Batch number.
        indices: Dataset indices of the batch.
        sample: Dataset index of the sample that the last worker was fetching; None if unknown.
        deaths: Number of workers that died while they processed the batch.
        pid: Process id of the last of these workers.
        exitcode: Exit status of the last worker, or minus the number of the signal that killed it; None if unknown.
        reason: How the last worker ended, such as "was killed by SIGKILL".
        tail: The last lines that it wrote to standard error.
    """
    if exitcode is not None and exitcode < 0:
        begin = f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(-exitcode) or -exitcode}"
    else:
        begin = f"DataLoader worker (pid(s) {pid}) exited unexpectedly"
    if exitcode is None or exitcode < 0:
        cause = "The usual cause is a crash in native code or a lack of memory"
    else:
        cause = "The usual cause is a call of sys.exit() or os._exit(), or a KeyboardInterrupt raised there"
    at = "" if sample is None else f" at sample {abbreviated(sample)}"
    these = "these samples one by one" if sample is None else "this sample"
    return (
        f"{begin}: batch {number} (samples {abbreviated(indices)}) ended {deaths} workers in a row. The last one "
        f"{reason}{at}. "
        f"{cause}. To reproduce it, load {these} with num_workers=1, "
        "because a crash with num_workers=0 would end the notebook's kernel. "
        f"The worker's standard error ended with:\n"
        f"{tail or '(nothing)'}"
    )
