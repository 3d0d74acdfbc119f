"""Errors of workers, raised in the notebook: the original type, the worker's traceback, what to do."""

from __future__ import annotations

import errno
import pickle
import resource
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, TypeAlias

import cloudpickle

from nbloader.errors import WorkerTraceback
from nbloader.events.records import BatchFailed, SampleFailed

Described: TypeAlias = "tuple[bytes | None, str, str, str]"
"""An error from another process: (pickle or None, type name, message, traceback). Made by `describe`."""

SHOWN = 300
"""Characters of a list of indices that a message shows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """In the place of a batch that could not be made: the error as the worker described it."""

    worker: int
    pid: int
    stage: str
    """"fetch" or "collate"."""
    position: int
    """Position of the sample in the batch; -1 where it is not known."""
    error: Described
    raised: Exception | None = None
    """The error itself, from a worker in this process."""
    failed: ClassVar[bool] = True
    empty: ClassVar[bool] = False
    samples: ClassVar[int] = 0
    nbytes: ClassVar[int] = 0
    produce_ns: ClassVar[int] = 0

    def to_event(self, now: int, run: int, number: int, indices: Any) -> BatchFailed | None:
        """The event of this failure.

        Args:
            now: perf_counter ns.
            run: Iteration of the batch.
            number: Batch number.
            indices: The dataset indices of the batch.
        """
        sample = indices[self.position] if self.position >= 0 else None
        return BatchFailed(now, run, number, self.worker, sample, f"{self.error[1]}: {self.error[2]}")

    def to_exception(self, number: int, indices: Any, *, batched: bool) -> Exception:
        """The exception to raise in the consumer.

        Args:
            number: Batch number.
            indices: The dataset indices of the batch; a single one if batching is off.
            batched: Whether samples make batches.
        """
        where = f"worker {self.worker} (pid {self.pid})" if self.worker >= 0 else "this process"
        if self.stage == "fetch" and batched and self.position >= 0:
            what = f"fetching sample {indices[self.position]!r} of batch {number}"
        elif self.stage == "fetch":
            what = f"fetching {indices!r}"
        else:
            what = f"collating batch {number}"
        return rebuild(self.error, f"raised in {where} while {what}", self.raised)

    def discard(self) -> None:
        """Nothing to give back."""


class SpareSample(NamedTuple):
    """A sample that could not be fetched, and did not end its batch."""

    position: int
    """Position in the batch; -1 for an error of the whole batch."""
    error: str
    """Type and message."""
    traceback: str
    done: str
    """"skipped", "replaced", or "retried": `__getitems__` raised, and the samples were then fetched one by one."""


def samples_failed(
    spared: Sequence[SpareSample], run: int, number: int, indices: Any, worker: int, *, batched: bool
) -> Iterator[SampleFailed]:
    """The events of samples that were left out of a batch, or replaced.

    Args:
        spared: What raised.
        run: Iterator of the batch.
        number: Batch number within that iterator.
        indices: What the batch was made of: dataset indices, or a single one where batching is off.
        worker: Worker id; -1 for the notebook's own process.
        batched: Whether the samples make a batch.
    """
    now = time.perf_counter_ns()
    for spare in spared:
        sample = (indices[spare.position] if spare.position >= 0 else None) if batched else indices
        yield SampleFailed(now, run, number, worker, sample, spare.error, spare.traceback, spare.done)


@dataclass(frozen=True, slots=True)
class Nothing:
    """In the place of a batch of which no sample is left: the consumer does not see it."""

    failed: ClassVar[bool] = False
    empty: ClassVar[bool] = True
    samples: ClassVar[int] = 0
    nbytes: ClassVar[int] = 0
    produce_ns: ClassVar[int] = 0

    def discard(self) -> None:
        """Nothing to give back."""


@dataclass(frozen=True, slots=True)
class Given:
    """In the place of a batch that could not be made: an error of the loader's own."""

    error: Exception
    failed: ClassVar[bool] = True
    empty: ClassVar[bool] = False
    samples: ClassVar[int] = 0
    nbytes: ClassVar[int] = 0
    produce_ns: ClassVar[int] = 0

    def to_event(self, now: int, run: int, number: int, indices: Any) -> BatchFailed | None:  # noqa: ARG002
        """None: no worker failed."""
        return None

    def to_exception(self, number: int, indices: Any, *, batched: bool) -> Exception:  # noqa: ARG002
        """The exception to raise in the consumer."""
        return self.error

    def discard(self) -> None:
        """Nothing to give back."""


def describe(error: BaseException, *, by_value: bool = True) -> Described:
    """An error in words: (pickle, type name, message, traceback).

    Args:
        error: What was raised.
        by_value: Whether it is for another process; else the pickle is None.
    """
    trace = users_part(error)
    text = "".join(traceback.format_exception(type(error), error, trace))
    data = None
    if by_value:
        try:
            data = cloudpickle.dumps(error)
            pickle.loads(data)
        except Exception:  # noqa: BLE001 - an exception's own pickling may raise anything
            data = None
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - so may its __str__
        message = "<no message: its __str__ raises>"
    return data, type(error).__name__, message, text


def users_part(error: BaseException) -> TracebackType | None:
    """The traceback of an error from where the user's code begins."""
    own = "nbloader"
    trace = error.__traceback__
    while (
        trace is not None and trace.tb_next is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(own)
    ):
        trace = trace.tb_next
    return trace


def rebuild(error: Described, note: str, raised: Exception | None = None) -> Exception:
    """The error that a worker described, to be raised here.

    Args:
        error: What the worker said.
        note: Where it happened, added as a note.
        raised: The error itself, where the worker is a thread.

    Returns:
        The error itself; or one of the original type where that can be rebuilt, else a RuntimeError, whose `__cause__`
        is the worker's traceback as text.
    """
    data, name, message, trace = error
    if raised is not None:
        if isinstance(raised, StopIteration):
            raised, cause = RuntimeError(f"{name}: {message}"), raised
            raised.__cause__ = cause
        add_note(raised, note)
        return raised
    rebuilt: Any = None
    if data is not None:
        try:
            rebuilt = pickle.loads(data)
        except Exception:  # noqa: BLE001 - an exception's own unpickling may raise anything
            rebuilt = None
    # A StopIteration would end the loop as if the epoch were over.
    usable = isinstance(rebuilt, Exception) and not isinstance(rebuilt, StopIteration)
    result: Exception = rebuilt if usable else RuntimeError(f"{name}: {message}")
    add_note(result, note)
    result.__cause__ = WorkerTraceback(f"{note}:\n{trace.rstrip()}")
    return result


def add_note(error: BaseException, note: str) -> None:
    """As `BaseException.add_note`, on Python 3.10 too (where the note is kept and not printed)."""
    notes: Any = getattr(error, "__notes__", ())
    error.__notes__ = [*notes, note]  # type: ignore[attr-defined,unused-ignore]


def shown(indices: Any) -> str:
    """Indices for a message, not too long."""
    text = repr(indices)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def start_message(worker: int, num_workers: int, error: Exception) -> str:
    """What `WorkerStartError` says when the system does not give what a worker needs."""
    begin = f"worker {worker} (num_workers={num_workers}) could not be started: {error}."
    code = getattr(error, "errno", None)
    if code in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{begin} Each worker takes five files, and RLIMIT_NOFILE={limit}: use fewer, or raise `ulimit -n`."
    if code == errno.EAGAIN:
        return f"{begin} There are too many processes: use fewer workers, or raise `ulimit -u`."
    return begin


def died_message(number: int, indices: Any, deaths: int, pid: int, exitcode: int | None, reason: str, tail: str) -> str:
    """What `WorkerDiedError` says about a batch that killed its workers; begins with the words of torch's error."""
    if exitcode is not None and exitcode < 0:
        begin = f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(-exitcode) or -exitcode}"
    else:
        begin = f"DataLoader worker (pid(s) {pid}) exited unexpectedly"
    if exitcode is None or exitcode < 0:
        cause = "A crash in native code or too little memory are the usual causes"
    else:
        cause = "A call of sys.exit() or os._exit(), or a KeyboardInterrupt raised there, are the usual causes"
    return (
        f"{begin}: batch {number} (samples {shown(indices)}) ended {deaths} workers in a row; the last one {reason}. "
        f"{cause}: load these samples with num_workers=0 to see it. The worker's standard error ended with:\n"
        f"{tail or '(nothing)'}"
    )
